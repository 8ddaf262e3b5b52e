"""Vidur's side of `benchmarks.simulator`: runs in an environment that has Vidur and not cbjax.

    <its python> benchmarks/vidur_side.py requests.npz

Reads the requests (columns `arrival_s`, `prompt`, `output`) and the numbers of the system from the
file, simulates them once per repeat and prints one line of JSON. Vidur's step-time model gives way
to base + tokens; its scheduler is the one that fills a budget with chunks (decodes first, then
prefills by arrival). What it would write is off: what is timed is its event loop.
"""

import json
import logging
import statistics
import sys
import tempfile
import time

import numpy as np
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    SyntheticRequestGeneratorConfig,
)
from vidur.entities import Request
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.request_generator import RequestGeneratorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType, RequestGeneratorType


class Took:
    """What an iteration took, in Vidur's terms."""

    def __init__(self, seconds: float):
        self.total_time = self.model_time = seconds


class Linear:
    """The step-time model of the benchmark in place of Vidur's."""

    base_s: float
    per_token_s: float

    def __init__(self, **_unused):
        pass

    def get_execution_time(self, batch, _stage) -> Took:
        """Seconds of this batch."""
        return Took(self.base_s + self.per_token_s * batch.total_num_q_tokens)


class Restarted(Request):
    """A request whose restart forgets nothing: the original stops at an assertion otherwise."""

    def restart(self):
        """Start again after a preemption, the count of the stage's tokens included."""
        super().restart()
        self._num_stage_processed_tokens = 0


class Given:
    """The requests of the file in place of drawn ones."""

    columns: dict
    requests: list  # the last ones made

    def __init__(self, _config):
        pass

    def generate(self) -> list:
        """One request per row."""
        names = ("arrival_s", "prompt", "output")
        rows = zip(*(self.columns[name].tolist() for name in names), strict=True)
        Given.requests = [Restarted(*row) for row in rows]
        return Given.requests


def put(registry, key, ours) -> None:
    """Ours under a name that Vidur looks up."""
    registry.unregister(key)
    registry.register(key, ours)


def main(path: str) -> None:
    """Simulate the file's requests and print what came out."""
    given = dict(np.load(path))
    Linear.base_s, Linear.per_token_s = float(given["base_s"]), float(given["per_token_s"])
    Given.columns = given
    put(ExecutionTimePredictorRegistry, ExecutionTimePredictorType.RANDOM_FORREST, Linear)
    put(RequestGeneratorRegistry, RequestGeneratorType.SYNTHETIC, Given)
    logging.disable(logging.CRITICAL)
    spent = []
    for _ in range(int(given["repeats"])):
        with tempfile.TemporaryDirectory() as folder:
            simulator = Simulator(config_of(given, folder))
            begin = time.process_time()
            simulator.run()
            spent.append(time.process_time() - begin)
    arrival, first, end = (
        np.array([getattr(one, name) for one in Given.requests])
        for name in ("arrived_at", "prefill_completed_at", "completed_at")
    )
    print(json.dumps(dict(
        cpu_s=statistics.median(spent),
        mean_ttft_s=float(np.mean(first - arrival)), mean_e2e_s=float(np.mean(end - arrival)),
        p95_ttft_s=float(np.percentile(first - arrival, 95)),
        p95_e2e_s=float(np.percentile(end - arrival, 95)),
        preemptions=sum(one.num_restarts for one in Given.requests),
    )))


def config_of(given: dict, folder: str) -> SimulationConfig:
    """One accelerator, one stage, nothing kept or drawn."""
    return SimulationConfig(
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            cache_config=CacheConfig(
                block_size=int(given["block_size"]), num_blocks=int(given["num_blocks"]),
                watermark_blocks_fraction=0.0,
            ),
            replica_scheduler_config=SarathiSchedulerConfig(
                batch_size_cap=int(given["seats"]), chunk_size=int(given["budget"])
            ),
        ),
        request_generator_config=SyntheticRequestGeneratorConfig(num_requests=1),
        metrics_config=MetricsConfig(
            write_metrics=False, enable_chrome_trace=False, store_plots=False,
            store_utilization_metrics=False, output_dir=folder,
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1])
