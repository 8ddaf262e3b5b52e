"""How long answers will be, as a predictor that may err sees them before the run."""

from dataclasses import replace

import numpy as np

from cbjax.workload.checks import require
from cbjax.workload.records import Workload
from cbjax.workload.streams import Stream, generator

_LONGEST = float(1 << 30)


def with_predictions(workload: Workload, error: float, seed: int = 0) -> Workload:
    """The same requests, each with a prediction of its answer's length.

    It is `max_tokens * exp(error * z)`, at least 1: right in the median, with a standard normal z
    that belongs to the request, the same at every error and load.

    Args:
        workload: a request without a bound on its output gets no prediction.
        error: standard deviation of the prediction's logarithm; 0 = it is right.
        seed: of the z.

    Raises:
        ValueError: an error below 0.
    """
    require(0 <= error < np.inf, "prediction_error", error, "use a finite number from 0")
    off = np.exp(error * generator(seed, Stream.PREDICTIONS).standard_normal(len(workload)))
    requests = tuple(
        request if request.max_tokens is None
        else replace(request, predicted_tokens=_predicted(request.max_tokens, factor))
        for request, factor in zip(workload.requests, off.tolist(), strict=True)
    )
    return replace(workload, requests=requests)


def _predicted(tokens: int, factor: float) -> int:
    return round(min(max(tokens * factor, 1.0), _LONGEST))
