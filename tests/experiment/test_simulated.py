"""The simulated backend: the same files as the engine's, from a cost model."""

import polars as pl
import pytest

import cbjax
from cbjax.config import ConfigError, build_policy
from cbjax.experiment.backends.simulated import limits_and_system

BASE = [
    "backend=simulated", "policy=static", "seats=4", "budget=64", "kv.block_size=4",
    "kv.positions=128", "model.max_length=64", "workload.num_requests=12", "study.figures=none",
    "workload.classes.mixed.prompt_lengths.high=24",
    "workload.classes.mixed.output_lengths.high=20",
]


def asked(folder, *overrides):
    """The grid experiment with one cell per level of record."""
    return cbjax.load_config("budget_block_grid", [f"results_dir={folder}", *BASE, *overrides])


def test_pools_of_all_sizes_share_one_program(tmp_path):
    """Where blocks are only counted their number is no shape; shared ones have names."""

    def limits_of(policy: str, positions: int, *overrides: str):
        given = [f"policy={policy}", f"kv.positions={positions}", *overrides]
        [cell] = asked(tmp_path, *given).cells
        return limits_and_system(cell.config, build_policy(cell.config.policy))[0]

    assert limits_of("vllm", 128) == limits_of("vllm", 256)
    sharing = "policy.enable_prefix_caching=true"
    assert limits_of("vllm", 128, sharing) != limits_of("vllm", 256, sharing)


def flat(metrics) -> dict[str, float]:
    """Numbers by name; what is known only with a schedule left out."""
    found = {}
    for name, value in metrics.items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": one for key, one in flat(value).items()}
        elif value is not None and name != "wasted_tokens":
            found[name] = value
    return found


def test_records_agree_and_whole_answers_have_no_gaps(tmp_path):
    """FAULTS I8: with answers delivered whole ITL is named as not measured, at every level."""
    result = cbjax.run_experiment(
        asked(tmp_path, "policy.delivery=at_end", "record=requests,tokens")
    )
    short, exact = sorted(result.runs, key=lambda run: len(run.tables.iterations))
    assert (short.folder / "requests.parquet").is_file()
    assert not len(short.tables.iterations) and len(exact.tables.schedule)
    for run in (short, exact):
        assert "delivered whole" in run.summary["not_measured"]["itl_s"]
        assert run.summary["backend"] == "simulated"
        assert run.environment["cost"]["name"] == "linear"
        # FAULTS I10: what was there at the start is said.
        assert run.environment["prefix_cache_at_start"] == "empty"
        assert "before the start" in run.environment["counted"]["compilation"]
    # The recorder adds a start and a duration in seconds, the short way in nanoseconds.
    assert flat(short.metrics) == pytest.approx(flat(exact.metrics), rel=1e-9)
    requests = pl.read_parquet(exact.folder / "requests.parquet")
    assert requests["token_times_s"].list.n_unique().max() == 1


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("backend.cost.name=lineal", "backend.cost.name = 'lineal'.*linear"),
        ("+backend.cost.base=1", "backend.cost.base = 1.*base_s"),
        ("backend.cost.base_s=-1", "base_s = -1"),
        ("model.max_length=null", "model.max_length = null"),
    ],
)
def test_wrong_settings_are_named(tmp_path, override, words):
    with pytest.raises(ConfigError, match=words):
        cbjax.run_experiment(asked(tmp_path, override))
