"""The HTML report: complete, self-contained, and safe from what users write into labels."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Group
from rich.table import Table

from cbjax.report import draw_gaps, save
from cbjax.report.html import write_report
from cbjax.report.zoom import zoomable

HOSTILE = "<img src=x onerror=alert(1)></script>&\"'{{ 7*7 }}"


class Page(HTMLParser):
    """Tags with their attributes, and the text that is seen."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture
def page(tmp_path):
    def make(runs, table="", figures=None, index=None, differing=None, failed=None):
        given = {"index": index or {}, "differing": differing or {}, "figures": figures or {},
                 "failed": failed or {}}
        path = write_report(tmp_path, runs=runs, table=table, **given)
        return Page(path.read_text(encoding="utf-8"))

    return make


def test_cells_that_failed_are_listed_with_their_errors(page, runs):
    text = " ".join(page(runs, failed={"seats=2": HOSTILE}).text)
    assert "These cells failed" in text and f"seats=2: {HOSTILE}" in text
    assert "These cells failed" not in " ".join(page(runs).text)


def test_a_report_tells_what_was_run_and_loads_nothing(page, runs, tmp_path):
    table = Table("metric", "value", title="demo")
    table.add_row("TTFT", "1.5")
    found = page(
        runs, Group(table, "said below"), {save(draw_gaps(runs), tmp_path / "gaps.png"): draw_gaps},
        {"experiment": "demo", "description": "Does it?", "study_hash": "abc", "source": "sha256:1",
         "command": "python -m cbjax.run +experiment=demo seats=4"},
    )
    text = " ".join(found.text)
    for expected in ("demo", "Does it?", "study abc", "+experiment=demo seats=4", "TTFT", "1.5",
                     "said below", "static padded", "KV block size (tokens)", "processor"):
        assert expected in text
    (image,) = found.all("img")
    assert image["src"].startswith("data:image/png;base64,")
    assert "Gaps between tokens" in image["alt"] and "static padded" in image["alt"]
    links = [tag.get("src") or tag.get("href") for _, tag in found.tags]
    assert not [link for link in links if link and re.match(r"(https?:)?//", link)]
    assert found.all("html")[0]["lang"] == "en" and len(found.all("h1")) == 1


def test_what_the_runs_share_is_told_once_and_what_differs_in_a_row_each(page, runs):
    text = " ".join(page(runs).text)
    assert text.count("policy") >= 1 and "the same in all runs" in text
    one = page(runs[:1])
    assert "the same in all runs" not in " ".join(one.text)
    assert {"scope": "row"} in one.all("th")


def test_parts_without_data_are_left_out(page, runs):
    bare = replace(runs[0], tables=runs[0].tables.at_level("requests"))
    found = page([bare])
    ids = {attributes["id"] for attributes in found.all("section")}
    assert ids == {"run", "tables", "files"}
    assert not found.all("script") and not found.all("canvas")
    assert {tag["href"] for tag in found.all("a")} >= {"#run", "#tables", "#files"}
    assert "#timeline" not in {tag["href"] for tag in found.all("a")}


def test_runs_that_differ_more_than_they_should_are_named(page, runs):
    text = " ".join(page(runs, differing={"vllm": ["environment.processor"]}).text)
    assert "vllm: environment.processor" in text


def test_what_users_write_is_shown_and_never_run(page, batcher_run):
    run = replace(batcher_run("x", count=3), label=HOSTILE, names={0: HOSTILE})
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    found = page([run], Group(table, HOSTILE), index={"experiment": HOSTILE, "command": HOSTILE},
                 differing={HOSTILE: [HOSTILE]})
    assert not found.all("img")
    assert len(found.all("script")) == 2
    assert "".join(found.text).count(HOSTILE) >= 6


def test_the_timeline_holds_every_iteration_and_token(runs):
    data = zoomable(runs)
    assert json.loads(json.dumps(data)) == data
    for run, shown in zip(runs, data["runs"], strict=True):
        assert shown["label"] == run.label and shown["cut_s"] is None
        assert len(shown["iterations"]) == len(run.tables.iterations)
        computed = sum(span[5] for span in shown["spans"] if span[3] in ("prefill", "decode"))
        assert computed == run.tables.iterations["scheduled_tokens"].sum()
        assert max(span[1] for span in shown["spans"]) <= shown["end_s"] + 1e-6


def test_long_timelines_are_cut_and_say_so(runs, monkeypatch):
    monkeypatch.setattr("cbjax.report.zoom.MOST_ITERATIONS", 30)
    (first, *_) = zoomable(runs)["runs"]
    assert len(first["iterations"]) == 10
    assert first["cut_s"] == runs[0].tables.iterations["start_s"][10]
    assert max(span[1] for span in first["spans"]) <= first["cut_s"]


def test_runs_without_a_schedule_have_no_timeline(runs):
    bare = replace(runs[0], tables=runs[0].tables.at_level("requests"))
    assert zoomable([bare]) is None


def test_a_knob_that_only_some_have_and_that_is_unset_is_the_same(page, runs):
    other = replace(runs[1], config={**runs[1].config, "knob": None})
    assert "knob" in " ".join(page([runs[0], other]).text)
