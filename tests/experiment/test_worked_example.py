"""The example everybody can check by hand, from the real loop."""

import pytest

import cbjax
from tests.experiment.toy import toy


def times(folder, *overrides):
    """Per run, when each request was admitted and when it ended, in iterations."""
    result = cbjax.run_experiment(toy("worked_example", folder, "study.figures=none", *overrides))
    return {
        run.label: {
            name: (admitted, finished)
            for name, admitted, finished in run.tables.requests.select(
                "class", "admitted_s", "finished_s"
            ).iter_rows()
        }
        for run in result.runs
    }


def test_continuous_batching_gives_a_freed_seat_away_at_once(tmp_path):
    found = times(tmp_path)
    assert found["static"] == {"A": (0, 2), "B": (0, 4), "C": (4, 6)}
    assert found["continuous"] == {"A": (0, 2), "B": (0, 4), "C": (2, 4)}


@pytest.mark.parametrize("length", [1, 6])
def test_the_length_of_b_moves_c(tmp_path, length):
    found = times(tmp_path, f"workload.requests.B.output_tokens={length}")
    freed = max(2, length)
    assert found["static"]["C"] == (freed, freed + 2)
    earliest = min(2, length)
    assert found["continuous"]["C"] == (earliest, earliest + 2)
