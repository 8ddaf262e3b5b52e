"""Citation, changelog and README agree with the package, and links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml

import cbjax
from cbjax.config import experiments

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_citation_is_valid_and_of_this_version():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    # What the format asks for, and what it allows of the fields used here.
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert all(set(author) <= {"name", "website"} for author in found["authors"])
    assert found["version"] == cbjax.__version__
    assert found["license"] == "Apache-2.0"


def test_the_changelog_knows_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert versions[0] == cbjax.__version__
    assert versions == sorted(versions, reverse=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            words = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in words, f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_run_names_an_experiment_that_is_there(page):
    text = page.read_text(encoding="utf-8")
    known = {*experiments(), *re.findall(r"`configs/experiment/(\w+)\.yaml`:", text)}
    for settings in re.findall(r"python -m cbjax\.run +([^`#\n]+)", text):
        named = re.search(r"\+experiment=(\w+|\.\.\.)", settings)
        assert named and named[1] in {*known, "..."}, f"{page.name}: {settings}"


def test_every_page_is_linked():
    """From the README, or from a page of the docs."""
    for page in (ROOT / "docs").glob("*.md"):
        others = [other.read_text(encoding="utf-8") for other in PAGES if other != page]
        assert any(page.name in text for text in others), f"nothing links to {page.name}"


def test_results_have_a_small_figure_of_every_ablation():
    """Each has the command that makes its rows and the one that draws it from them."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    redrawn = r"view\.py results/\1/<hash> --metrics [^#]*?!\[\1\]\(figures/\1\.svg\)"
    drawn = re.findall(rf"\+experiment=(\w+).*\n.*{redrawn}", text)
    assert set(drawn) >= {
        "admission", "victims", "burstiness", "prefix_sharing", "priorities", "length_prediction",
        "ladder_load", "kv_block_size", "block_context",
    }
    files = sorted((ROOT / "docs" / "figures").iterdir())
    assert [path.name for path in files] == sorted(f"{name}.svg" for name in drawn)
    assert max(path.stat().st_size for path in files) < 60_000
