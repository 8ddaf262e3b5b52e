"""One look for every figure: sizes, fonts, and colours that mean the same thing everywhere.

Colours are those of Okabe and Ito, and more chosen to be as far from them and from one another, for
people with the common kinds of colour blindness as for others. A policy keeps its colour in every
figure that has others beside it; what a request is doing has its own fixed colours.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, LIGHT_GREY, PALE = "#666666", "#C8C8C8", "#EFEFEF"

POLICY_COLOURS: Mapping[str, str] = {
    "static": VERMILION,
    "static padded": VERMILION,
    "static ragged": ORANGE,
    "orca": PURPLE,
    "vllm": BLUE,
    "vllm_v0": "#5A00F0",
    "vllm_0_11": "#8796FF",
    "sglang": GREEN,
    "sarathi": SKY,
    "tensorrt_llm": "#5A783C",
    "tgi": "#5A0F00",
    "transformers": "#E1C369",
    "triton": "#4B0087",
    "llama_cpp": BLACK,
    "ollama": "#784B78",
    "composed": "#D200B4",
}
# Of policies that are not listed, such as a user's own.
OTHER_COLOURS = ("#A55AFF", "#96D296", "#FF004B", "#4B004B", "#2D3C3C", "#A50F00", "#8700C3")
FORMATS, KNOWN_FORMATS = ("png",), ("png", "svg", "pdf")
UNDATED: Mapping[str, Mapping[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
# Variants of one policy, where no other is beside them.
VARIANT_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)
WIDE_RANGE = 30.0
LINE_STYLES = ("-", "--", ":", "-.")

# Fonts with Japanese glyphs that common systems have; the first one present is used as fallback.
JAPANESE_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "VL Gothic",
)

SETTINGS: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 130,
    "svg.fonttype": "none",
    "svg.hashsalt": "cbjax",
    "pdf.fonttype": 42,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw inside this; the settings of a surrounding notebook are left as they were."""
    settings: Any = {**SETTINGS, "font.family": ["DejaVu Sans", *_japanese_fonts()]}
    with matplotlib.rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, laid out so that labels never overlap."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06))


def scale_latency(axis: Axes, positive: np.ndarray) -> None:
    """Scale a horizontal axis of latencies: from 0, or logarithmic over more than a factor of 30.

    Args:
        axis: drawn on already.
        positive: all values above 0 that it shows.
    """
    if not len(positive) or positive.max() <= WIDE_RANGE * positive.min():
        axis.set_xlim(left=0)
        return
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format that the path ends in; its folder is made if missing.

    The same figure gives the same bytes: no file says when it was made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with house_style():
        figure.savefig(path, metadata=UNDATED.get(path.suffix))
    return path


def save_as(figure: Figure, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figure once per format.

    Args:
        figure: drawn.
        path: without its suffix.
        formats: of `KNOWN_FORMATS`.
    """
    return [save(figure, path.with_name(f"{path.name}.{suffix}")) for suffix in formats]


def policy_colour(policy: str) -> str:
    """The colour of a policy; one not listed above gets another, fixed by its name."""
    if policy in POLICY_COLOURS:
        return POLICY_COLOURS[policy]
    place = hashlib.sha256(policy.encode()).digest()[0]
    return OTHER_COLOURS[place % len(OTHER_COLOURS)]


def line_styles(policies: Sequence[str]) -> list[dict[str, Any]]:
    """Colour and dash per line: the policy's colour; lines of one colour differ in their dashes.

    Where all lines are of one policy, colours and dashes tell them apart.

    Args:
        policies: of the lines, in the order of the study.
    """
    if len(policies) > 1 and len(set(policies)) == 1:
        apart = zip(cycle(VARIANT_COLOURS), cycle(LINE_STYLES), policies, strict=False)
        return [{"color": colour, "linestyle": dash} for colour, dash, _ in apart]
    seen: dict[str, int] = {}
    styles = []
    for colour in map(policy_colour, policies):
        dash = LINE_STYLES[seen.get(colour, 0) % len(LINE_STYLES)]
        seen[colour] = seen.get(colour, 0) + 1
        styles.append({"color": colour, "linestyle": dash})
    return styles


def safe(text: str) -> str:
    """The text with every character that no present font can draw written as its code.

    Without a Japanese font a label then reads `\\u8a71` instead of an empty box, and two different
    labels stay different. Dollar signs are kept from starting a formula.
    """
    drawn = "".join(
        char if ord(char) in _drawable() or char == "\n" else f"\\u{ord(char):04x}" for char in text
    )
    return drawn.replace("$", r"\$")


@cache
def _japanese_fonts() -> tuple[str, ...]:
    present = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in JAPANESE_FONTS if name in present)[:1]


@cache
def _drawable() -> frozenset[int]:
    families = ["DejaVu Sans", *_japanese_fonts()]
    files = [font_manager.findfont(family) for family in families]
    charmaps = [font_manager.get_font(file).get_charmap() for file in files]
    return frozenset(code for charmap in charmaps for code in charmap)
