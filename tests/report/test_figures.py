"""Figures are drawn for real runs, in one style, with units and without overlaps."""

from dataclasses import replace
from itertools import combinations

import matplotlib
import polars as pl
import pytest
from matplotlib.figure import Figure

from cbjax.metrics import Tables
from cbjax.report import (
    draw_by_run,
    draw_gaps,
    draw_grid,
    draw_latencies,
    draw_occupancy,
    draw_padding,
    draw_timeline,
    house_style,
    policy_colour,
    save,
)
from cbjax.report.grid import grid_axes, is_full_grid
from cbjax.report.style import POLICY_COLOURS, line_styles, safe
from cbjax.results import collect_runs

FIGURES = (draw_timeline, draw_latencies, draw_gaps, draw_occupancy, draw_padding)


def labels_of(figure: Figure) -> list[str]:
    return [label for axis in figure.axes for label in (axis.get_xlabel(), axis.get_ylabel())]


def assert_legible(figure: Figure) -> None:
    """No text on another text, nothing cut off, no legend on the data."""
    figure.draw_without_rendering()
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert all(not box.overlaps(axis.get_window_extent()) for axis in figure.axes)
    texts = []
    for axis in figure.axes:
        if axis.axison:
            titles = [axis.title, axis._left_title, axis.xaxis.label, axis.yaxis.label]
            ticks = [*ticks_in_view(axis.xaxis), *ticks_in_view(axis.yaxis)]
            texts += [text for text in (*ticks, *titles, *axis.texts) if text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    page = figure.bbox.padded(1)
    for text, box in boxes:
        inside = page.x0 <= box.x0 <= box.x1 <= page.x1 and page.y0 <= box.y0 <= box.y1 <= page.y1
        assert inside, f"{text!r} is cut off"
    for (first, one), (second, other) in combinations(boxes, 2):
        clear = not one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9))
        assert clear, f"{first!r} overlaps {second!r}"


def ticks_in_view(axis) -> list:
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1 for tick in ticks]


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_of_three_runs_are_legible(draw, runs, tmp_path):
    figure = draw(runs)
    assert_legible(figure)
    path = save(figure, tmp_path / "figures" / "one.png")
    assert path.stat().st_size > 10_000


def test_a_line_per_run_is_legible_with_many_runs(runs):
    rows = collect_runs(runs[0].folder.parent)
    many = pl.concat([rows.with_columns(label=pl.lit(f"run {n} ") + pl.col("label"))
                      for n in range(4)])
    figure = draw_by_run(many)
    assert_legible(figure)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[:4] == ["TTFT (s)", "ITL (s)", "E2E latency (s)", "output tokens/s"]
    assert "mean requests running" in titles


def test_a_panel_shows_what_its_run_had(runs):
    rows = collect_runs(runs[0].folder.parent)
    axis = next(
        axis for axis in draw_by_run(rows).axes if axis.get_title(loc="left") == "output tokens/s"
    )
    drawn = [bar.get_width() for bar in axis.patches]
    assert drawn == pytest.approx(rows["output_tokens_per_s"].to_list())


def test_gaps_stand_where_they_ended(batcher_run):
    run = batcher_run("one", count=3)
    figure = draw_gaps([run])
    dots = figure.axes[0].collections[0].get_offsets()
    times = [sorted(one) for one in run.tables.requests["token_times_s"]]
    expected = [
        (after, after - before)
        for one in times for before, after in zip(one, one[1:], strict=False)
    ]
    for place in (0, 1):
        drawn = sorted(dots.data[:, place].tolist())
        assert drawn == pytest.approx(sorted(pair[place] for pair in expected))
    assert figure.axes[0].get_ylim()[1] > max(gap for _, gap in expected)


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_of_one_small_run_are_legible(draw, example):
    assert_legible(draw([example(True)]))


def test_a_timeline_of_24_requests_with_preemption_is_legible(batcher_run):
    figure = draw_timeline([batcher_run("many", count=24, num_blocks=24, seats=6)])
    assert_legible(figure)
    entries = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"prefill chunk", "decode", "queued", "preempted here"} <= set(entries)


def test_axes_name_their_units(runs):
    assert "time since the start (s)" in labels_of(draw_timeline(runs))
    assert "time to first token (s)" in labels_of(draw_latencies(runs))
    assert "KV blocks" in labels_of(draw_occupancy(runs))
    assert "positions (log scale)" in labels_of(draw_padding(runs))


def test_timelines_share_time_and_can_be_cut(runs):
    figure = draw_timeline(runs, until_s=0.25)
    assert len({axis.get_xlim() for axis in figure.axes}) == 1
    assert "(the first 0.25 s of" in figure.axes[0].get_title(loc="left")
    assert "time since the start (ms)" in labels_of(figure)


def test_requests_are_named_in_the_timeline(example):
    figure = draw_timeline([example(False)])
    assert {"A", "B", "C"} <= {text.get_text() for text in figure.axes[0].texts}


def test_whole_answers_are_named_as_not_measured(batcher_run):
    run = batcher_run("at end", static=True, at_end=True, num_blocks=400)
    texts = [text.get_text() for axis in draw_latencies([run]).axes for text in axis.texts]
    assert any("not measured" in text and "at end" in text for text in texts)


def test_figures_of_runs_without_rows_say_what_to_record(runs):
    bare = replace(runs[0], tables=runs[0].tables.at_level("requests"))
    for draw in (draw_timeline, draw_occupancy, draw_padding):
        with pytest.raises(ValueError, match="record=iterations"):
            draw([bare])


def grid_table() -> pl.DataFrame:
    rows = [
        {
            "policy.max_num_batched_tokens": budget,
            "budget": budget,
            "kv.block_size": block,
            "kv.num_blocks": 1024 // block,
            "output_tokens_per_s": budget / block,
            "ttft_s.p95": None if budget == 64 and block == 16 else 0.1,
        }
        for budget in (32, 64, 128)
        for block in (8, 16, 32)
    ]
    return pl.DataFrame(rows)


def test_grids_have_a_panel_per_metric_and_a_number_per_cell():
    figure = draw_grid(grid_table(), "kv.block_size", "budget")
    assert_legible(figure)
    first, second = figure.axes
    assert first.get_title(loc="left") == "output tokens/s"
    assert len(first.texts) == 9
    assert "–" in {text.get_text() for text in second.texts}
    assert "KV block size (tokens)" in labels_of(figure)
    assert "token budget (tokens)" in labels_of(figure)
    with pytest.raises(ValueError, match="'nonsense' is not a setting"):
        draw_grid(grid_table(), "nonsense", "budget")
    with pytest.raises(ValueError, match="none of the metrics"):
        draw_grid(grid_table(), "kv.block_size", "budget", metrics=["preemptions"])


def test_settings_that_move_together_are_one_axis():
    swept = ["policy.max_num_batched_tokens", "budget", "kv.num_blocks", "kv.block_size"]
    table = grid_table()
    axes = grid_axes(table, swept)
    assert axes == ["policy.max_num_batched_tokens", "kv.num_blocks"]
    assert is_full_grid(table, axes)
    assert not is_full_grid(table.head(5), axes)
    assert not is_full_grid(table, axes[:1])
    assert grid_axes(table.head(3), swept) == ["kv.num_blocks"]


def test_a_knob_of_some_policies_is_no_axis():
    table = pl.DataFrame({
        "policy.name": ["vllm", "orca"] * 2, "rate": [1, 1, 2, 2],
        "policy.max_num_seqs": [4, None] * 2,
    })
    assert grid_axes(table, ["policy.name", "policy.max_num_seqs", "rate"]) == [
        "policy.name", "rate"
    ]
    assert not is_full_grid(table, ["policy.max_num_seqs", "rate"])


def test_a_policy_keeps_its_colour_and_runs_of_one_policy_differ(runs):
    styles = line_styles([*runs, runs[2]])
    assert [style["color"] for style in styles[:3]] == [
        POLICY_COLOURS[name] for name in ("static padded", "static ragged", "vllm")
    ]
    assert styles[2]["color"] == styles[3]["color"]
    assert styles[2]["linestyle"] != styles[3]["linestyle"]
    assert policy_colour("my_policy") == policy_colour("my_policy")


def test_the_style_leaves_the_surroundings_alone():
    before = dict(matplotlib.rcParams)
    with house_style():
        assert matplotlib.rcParams["legend.frameon"] is False
    assert dict(matplotlib.rcParams) == before


def test_japanese_and_dollars_are_safe(batcher_run, tmp_path):
    assert safe("a$b") == r"a\$b"
    assert safe("plain – é") == "plain – é"
    assert "会" in safe("会話") or safe("会話") == "\\u4f1a\\u8a71"
    save(draw_timeline([batcher_run("会話 $x$")]), tmp_path / "japanese.png")


def test_external_endpoints_have_latencies_to_draw(runs):
    bare = Tables(requests=runs[0].tables.requests, iterations=runs[0].tables.iterations.clear())
    assert_legible(draw_latencies([replace(runs[0], tables=bare)]))
