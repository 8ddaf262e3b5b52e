"""Averages over seeds, and `python -m cbjax.collect`, which writes them."""

import polars as pl
import pytest

from cbjax import collect
from cbjax.metrics import mean_interval
from cbjax.report import plain_text, study_table
from cbjax.results import average_seeds, collect_runs, open_study, parts_of, read_run

SETTINGS = [(8, "budget=64, block_size=8"), (16, "budget=64, block_size=16")]


@pytest.fixture
def sweep(tmp_path, small_files):
    """Two settings with three seeds each, TTFT p95 being 1 s times the seed's factor."""
    with open_study(tmp_path, "demo", {}, swept=["kv.block_size"]) as study:
        for block_size, label in SETTINGS:
            for seed, factor in enumerate([1.0, 2.0, 6.0]):
                files = small_files(f"{label}, seed={seed}")
                files["summary"]["metrics"]["ttft_s"]["p95"] = factor
                config = {"kv": {"block_size": block_size}, "seed": seed}
                study.save_run(config, seed, **files)
    return study.path


@pytest.fixture
def make_more(tmp_path, small_files):
    """More block sizes in a study beside it, so that there are too many runs for columns."""
    def make(*block_sizes):
        with open_study(tmp_path, "demo", {"more": True}, swept=["kv.block_size"]) as study:
            for block_size in block_sizes:
                for seed in range(3):
                    files = small_files(f"budget=64, block_size={block_size}, seed={seed}")
                    config = {"kv": {"block_size": block_size}, "seed": seed}
                    study.save_run(config, seed, **files)

    return make


def test_seeds_become_one_row_with_mean_and_interval(sweep):
    averages = average_seeds(collect_runs(sweep), ["ttft_s.p95"])
    assert averages["block_size"].to_list() == [8, 16]
    assert averages["budget"].dtype == pl.Int64
    assert averages["seeds"].to_list() == [3, 3] and averages["policy"].to_list() == ["vllm"] * 2
    interval = mean_interval([1.0, 2.0, 6.0])
    for name, value in (("", 3.0), (".low", interval.low), (".high", interval.high)):
        assert averages[f"ttft_s.p95{name}"].to_list() == pytest.approx([value] * 2)


def test_other_settings_are_not_averaged_although_they_bear_the_same_label(tmp_path, small_files):
    with open_study(tmp_path, "demo", {}) as study:
        for seed, rate in ((0, 1.0), (1, 2.0)):
            study.save_run({"rate": rate, "seed": seed}, seed, **small_files("a"))
    averages = average_seeds(collect_runs(tmp_path))
    assert averages["seeds"].to_list() == [1, 1]
    assert averages["ttft_s.p95.low"].null_count() == 2, "one seed has no interval"


def test_a_metric_that_no_run_has_is_named(sweep):
    with pytest.raises(ValueError, match="ttft_s.p42"):
        average_seeds(collect_runs(sweep), ["ttft_s.p42"])


def test_parts_of_a_label():
    assert parts_of("static, long, seats=4, seed=1") == {"variant": "static, long", "seats": "4"}
    assert parts_of("budget=8, kv.block_size=4") == {"budget": "8", "kv.block_size": "4"}


def test_a_study_of_several_seeds_is_shown_as_averages(sweep, make_more):
    make_more(2, 4)
    rows = collect_runs(sweep.parent)
    runs = [read_run(folder) for folder in rows["folder"]]
    shown = plain_text(study_table(rows, runs, ["kv.block_size"]))
    assert "KV block size" in shown and "±" in shown and "3 seeds" in shown
    assert "seed=" not in shown, "a row per setting and none per seed"


def test_collect_writes_rows_and_tables(sweep, tmp_path, capsys):
    names = {end: tmp_path / f"table.{end}" for end in ("parquet", "csv", "md", "tex")}
    written = [text for path in names.values() for text in ("--to", str(path))]
    assert collect.main([str(sweep), "--metrics", "ttft_s.p95", *written]) == 0
    shown = capsys.readouterr().out
    rows = pl.read_parquet(names["parquet"])
    assert rows.equals(collect_runs(sweep)) and len(pl.read_csv(names["csv"])) == 6
    markdown = names["md"].read_text()
    assert markdown in shown
    assert markdown.splitlines()[0] == "| KV block size (tokens) | TTFT p95 (s) |"
    assert markdown.splitlines()[2] == "| 8 | 3.00 ± 6.57 |"
    assert "95 % confidence interval" in markdown and "3 seeds" in markdown
    latex = names["tex"].read_text()
    assert r"8 & 3.00 $\pm$ 6.57 \\" in latex and r"95 \% " not in latex.splitlines()[1]
    assert latex.count(r"\begin{tabular}{lr}") == 1


def test_collect_names_what_failed_and_what_differs(tmp_path, small_files, capsys):
    with open_study(tmp_path, "demo", {}, swept=["kv"]) as study:
        for number, device in enumerate(["cpu", "cpu", "TPU v5e"]):
            study.save_run({"kv": number}, 0, **small_files(f"kv={number}", device=device))
        told = {key: small_files("kv=3")[key] for key in ("label", "policy", "environment")}
        study.save_failure({"kv": 3}, 0, backend="model", error="MemoryError: too much", **told)
        assert study.find_failure({"kv": 3}, 0) == "MemoryError: too much"
    assert collect.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "failed  kv=3: MemoryError: too much" in shown
    assert "differ outside the swept settings, in environment.device" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nowhere"], "nowhere does not exist"), (["."], "no finished runs in ."),
     ([".", "--to", "x.docx"], "no finished runs")],
)
def test_collect_says_what_is_wrong(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert collect.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_ending_is_refused(sweep, tmp_path, capsys):
    assert collect.main([str(sweep), "--to", str(tmp_path / "x.docx")]) == 2
    assert "use one of .parquet, .csv, .md, .tex" in capsys.readouterr().err


def test_the_table_goes_to_pandas(sweep):
    pytest.importorskip("pandas", reason="the extra pandas is not installed")
    pytest.importorskip("pyarrow", reason="the extra pandas is not installed")
    frame = collect_runs(sweep).to_pandas()
    assert frame["ttft_s.p95"].dtype == "float64" and len(frame) == 6
