"""A small finished run to store, find and collect."""

from collections.abc import Callable
from typing import Any

import pytest

from cbjax.metrics import IterationEvent, Recorder, summarise
from cbjax.results import describe_environment


def _small_files(label: str = "vllm", policy: str = "vllm", **facts: Any) -> dict[str, Any]:
    """The arguments of `write_run` beyond config and seed, for a run of one request."""
    recorder = Recorder()
    recorder.submitted(0, scheduled_arrival_s=0.0, submitted_s=0.0, prompt_tokens=4)
    recorder.iteration(
        IterationEvent(
            0.0, 1.0, admitted=[0], grants=[(0, 4, 4, "prefill")], emitted=[0], running=1
        )
    )
    recorder.iteration(
        IterationEvent(1.0, 0.5, grants=[(0, 1, 1, "decode")], emitted=[0], finished=[(0, "stop")])
    )
    tables = recorder.tables()
    return {
        "label": label,
        "policy": policy,
        "environment": describe_environment(compile_count=2, compile_s=1.5, **facts),
        "summary": summarise(tables.requests, tables.iterations, backend="test"),
        "tables": tables,
    }


@pytest.fixture
def small_files() -> Callable[..., dict[str, Any]]:
    return _small_files


@pytest.fixture
def files() -> dict[str, Any]:
    return _small_files()
