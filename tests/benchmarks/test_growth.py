"""Growth is judged by rules that a fast growth fails; the command leaves rows and a figure."""

import polars as pl
import pytest

from benchmarks.growth import main
from benchmarks.growth_rules import FLAT, LINEAR, Row, judge


def rows(most, cost, sizes=(1, 2, 4, 8, 16, 32)):
    return [Row("axis", "series", size, cost(size), cost(size), most) for size in sizes]


@pytest.mark.parametrize(
    ("most", "cost", "holds"),
    [
        (FLAT, lambda size: 3.0, True),
        (FLAT, lambda size: 3.0 + 0.01 * size, True),
        (FLAT, lambda size: 0.1 * size, False),
        (FLAT, lambda size: 1.0 + (size > 8) * size, False),
        (LINEAR, lambda size: 1.0 + size, True),
        (LINEAR, lambda size: 0.5 * size, True),
        (LINEAR, lambda size: size**1.5, False),
        (LINEAR, lambda size: 20.0 + size**2, False),  # a constant part hides it at first
    ],
)
def test_a_series_holds_if_it_grows_no_faster_than_it_may(most, cost, holds):
    [verdict] = judge(rows(most, cost))
    assert verdict.holds is holds
    assert ("holds" in str(verdict)) is holds


def test_the_command_leaves_rows_and_a_figure(tmp_path, capsys):
    main(["waiting", "--quick", "--repeats", "3", "--out", str(tmp_path)])
    kept = pl.read_csv(tmp_path / "rows.csv")
    assert kept["size"].unique().sort().to_list() == [10, 1000]
    assert (kept["cpu"] > 0).all()
    assert (tmp_path / "growth.png").stat().st_size > 1000
    assert str(tmp_path) in capsys.readouterr().out


def test_an_unknown_axis_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["wating"])
    assert "'wating'" in capsys.readouterr().err
