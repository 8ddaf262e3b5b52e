"""`python -m cbjax.roofline`: table, rows and figure."""

import polars as pl
import pytest

from cbjax.hardware import load, models, roofline
from cbjax.roofline import main

ARGUMENTS = ["hardware=v6e", "model=llama3.1-8b"]


def test_rows_and_figure_are_kept_and_their_place_is_said(tmp_path, capsys):
    given = [*ARGUMENTS, "batch=1,256", "context=1024", "chunk=0,64", f"results_dir={tmp_path}"]
    assert main(given) == 0
    said = capsys.readouterr().out
    folder = tmp_path / "roofline" / "v6e-llama3.1-8b"
    assert str(folder) in said and "not measured" in said and "256*" in said
    assert (folder / "roofline.png").stat().st_size > 10_000
    rows = pl.read_parquet(folder / "rows.parquet")
    assert rows["batch"].to_list() == [1, 1, 256, 256]
    assert rows["kv_fits"].to_list() == [True, True, False, False]
    costs = roofline.step_costs(models.load("llama3.1-8b"))
    work = roofline.iteration(batch=256, context=1024, chunk=64, block_size=16)
    assert rows["floor_s"][-1] == roofline.floor(load("v6e"), costs, work).seconds


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["model=llama3.1-8b"], "hardware = None: choose one of a100"),
        (["hardware=v6e"], "model = None: choose one of smollm2"),
        ([*ARGUMENTS, "bach=1"], "'bach=1': did you mean batch?"),
        ([*ARGUMENTS, "batch=x"], "batch = 'x': give a number"),
        ([*ARGUMENTS, "block_size=0"], "block_size = 0: give a number of at least 1"),
        ([*ARGUMENTS, "batch=0", "chunk=0"], "batch = (0,): give sequences"),
        (["hardware=h100", "model=llama2-7b", "dtype=float32"], "dtype = 'float32': no peak rate"),
        (["hardware=v6e", "model=llama3.1-70b"], "hardware = 'v6e': 0.9 of its 34.4 GB"),
    ],
)
def test_a_wrong_setting_is_named_with_its_remedy(given, text, capsys):
    assert main(given) == 2
    assert capsys.readouterr().err.startswith(f"error: {text}")


def test_help_lists_the_tables(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "tpu7x" in said and "llama3.1-70b" in said
