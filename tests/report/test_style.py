"""Colours: fixed by the policy's name, and apart for everybody's eyes."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import polars as pl
import pytest

from cbjax.config.paths import module_names
from cbjax.report import draw_latencies, policy_colour
from cbjax.report.lines import lines_of
from cbjax.report.style import OTHER_COLOURS, POLICY_COLOURS, line_styles

# How eyes without one kind of cone see linear RGB (Machado, Oliveira and Fernandes 2009).
EYES = {
    "usual": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
XYZ = [[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1095, 0.8730]]
APART = 15.0  # of CIE Lab; about 2 can just be seen side by side


def lab(colour, eyes):
    """CIE Lab of "#RRGGBB" as some eyes see it."""
    part = np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(np.array(XYZ) @ np.clip(np.array(eyes) @ linear, 0, 1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
def test_no_two_colours_are_confused(eyes):
    every = sorted({*POLICY_COLOURS.values(), *OTHER_COLOURS})
    for one, other in combinations(every, 2):
        distance = np.linalg.norm(lab(one, EYES[eyes]) - lab(other, EYES[eyes]))
        assert distance > APART, f"{one} and {other} look alike"


def test_every_policy_has_a_colour_of_its_own():
    assert set(module_names("cbjax.policies")) <= set(POLICY_COLOURS)
    named = {name: colour for name, colour in POLICY_COLOURS.items() if name != "static"}
    assert len(set(named.values())) == len(named)


def test_a_new_policy_keeps_a_colour_that_no_known_one_has():
    assert policy_colour("my_policy") == policy_colour("my_policy")
    assert policy_colour("my_policy") not in POLICY_COLOURS.values()
    assert len({policy_colour(f"idea {n}") for n in range(40)}) == len(OTHER_COLOURS)


def test_lines_of_one_policy_differ_in_their_dashes():
    styles = line_styles(["static padded", "vllm", "vllm", "mine"])
    assert [style["color"] for style in styles[:2]] == [
        POLICY_COLOURS[name] for name in ("static padded", "vllm")
    ]
    assert styles[1]["color"] == styles[2]["color"]
    assert styles[1]["linestyle"] != styles[2]["linestyle"]


def test_variants_look_alike_in_every_figure(batcher_run):
    """Two variants of one policy: the same colour and dash as distributions and as lines."""
    first = batcher_run("vllm", count=4)
    runs = [first, replace(first, label="long chunks")]
    drawn = {
        line.get_label(): (line.get_color(), line.get_linestyle())
        for line in draw_latencies(runs).axes[-1].get_lines()
    }
    rows = pl.DataFrame([{"label": f"{run.label}, rate={rate}", "policy": run.policy, "rate": rate}
                         for rate in (1.0, 2.0) for run in runs])
    for line in lines_of(rows, "rate"):
        assert (line.style["color"], line.style["linestyle"]) == drawn[line.label]
