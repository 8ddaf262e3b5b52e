"""What the comparison of two records says, on made-up samples; nothing is timed."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.history import BETTER, CPU, INSTRUCTIONS, SAME, WORSE, Record, compare, main


def record(median, spread, count=9, commit="aaa", counted=CPU, seed=0):
    samples = median * (1 + spread * np.random.default_rng(seed).standard_normal(count))
    return Record(commit, "2026-01-01", {}, "a machine", "scheduler", counted, samples.tolist())


@pytest.mark.parametrize(
    ("ratio", "spread", "counted", "verdict"),
    [
        (1.0, 0.02, CPU, SAME),
        (1.5, 0.02, CPU, WORSE),
        (0.6, 0.02, CPU, BETTER),
        (1.1, 0.3, CPU, SAME),  # lost in the spread
        (1.02, 0.0005, CPU, SAME),  # sure, but smaller than what CPU seconds can tell
        (1.02, 0.0005, INSTRUCTIONS, WORSE),
        (0.97, 0.0005, INSTRUCTIONS, BETTER),
    ],
)
@pytest.mark.parametrize("count", [3, 9, 40])
def test_a_change_counts_beyond_its_spread(ratio, spread, counted, verdict, count):
    before = record(2.0, spread, count, counted=counted)
    after = record(2.0 * ratio, spread, count, counted=counted, seed=1)
    found = compare(before, after)
    assert found.low <= found.ratio <= found.high
    assert found.verdict == verdict and verdict in str(found)


def test_intervals_hold_the_true_ratio_about_as_often_as_they_say():
    held = [
        (found := compare(record(1.0, 0.1, 15, seed=seed), record(1.2, 0.1, 15, seed=1000 + seed)))
        and found.low <= 1.2 <= found.high
        for seed in range(100)
    ]
    assert 88 <= sum(held) <= 100


@pytest.mark.parametrize("field", ["metric", "machine", "counted"])
def test_unlike_records_are_not_compared(field):
    with pytest.raises(ValueError, match=f"{field} = "):
        compare(record(1, 0.1), replace(record(1, 0.1), **{field: "other"}))


def test_the_command_compares_the_last_two_commits_and_says_worse(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    assert main(["compare", "--file", str(path)]) == 2
    assert "no history yet" in capsys.readouterr().err
    history = [record(9.0, 0.01, commit="old"), record(1.0, 0.01, commit="bbb"),
               record(2.0, 0.01, commit="ccc")]
    lines = [json.dumps(asdict(one)) for one in history]
    path.write_text(lines[0] + "\n")
    assert main(["compare", "--file", str(path)]) == 2
    assert "only one commit" in capsys.readouterr().err
    path.write_text("\n".join(lines) + "\n")
    assert main(["compare", "--file", str(path)]) == 1
    assert "worse" in capsys.readouterr().out
    assert main(["compare", "old", "cc", "--file", str(path)]) == 0
    assert "better" in capsys.readouterr().out
    assert main(["compare", "zzz", "--file", str(path)]) == 2
    assert "zzz: not in the history; there are old, bbb, ccc" in capsys.readouterr().err
