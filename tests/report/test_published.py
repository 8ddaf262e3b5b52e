"""Published numbers beside simulated ones: what is off, by how much, and what is missing."""

import polars as pl
import pytest

from cbjax.report import plain_text
from cbjax.report.views import published
from cbjax.results import write_capacity

ROWS = pl.DataFrame({
    "label": ["paged", "reserved"], "kv_utilisation": [0.9, 0.3], "mean_running": [30.0, None],
})
BASE = {"what": "useful share", "source": "a paper", "metric": "kv_utilisation", "of": ["paged"]}


def compared(folder, **claim):
    return published.compare(ROWS, folder, [{**BASE, "published": 0.6, **claim}]).to_dicts()[0]


def test_a_number_is_off_by_a_share_of_the_published_one(tmp_path):
    row = compared(tmp_path)
    assert (row["simulated"], row["off"]) == (0.9, pytest.approx(0.5))
    assert compared(tmp_path, of=["reserved"])["off"] == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("published", "off"), [([0.8, 1.0], 0.0), ([0.5, 0.6], 0.5), ([1.0, 2.0], -0.1)]
)
def test_a_range_is_met_inside_and_missed_by_its_nearer_end(tmp_path, published, off):
    assert compared(tmp_path, published=published)["off"] == pytest.approx(off)


def test_two_runs_give_their_ratio(tmp_path):
    row = compared(tmp_path, of=["paged", "reserved"], published=2.0, called="paging")
    assert (row["of"], row["simulated"]) == ("paging", pytest.approx(3.0))


def test_a_capacity_is_read_from_the_search(tmp_path):
    found = {"label": "paged", "policy": "vllm", "seed": 0, "low": 2.0, "high": 2.1, "rate": 2.0,
             "limit": "ttft p95", "value": 0.5, "bound": 1.0, "held": True}
    write_capacity(tmp_path, pl.DataFrame([found]))
    assert compared(tmp_path, metric="capacity", published=4.0)["off"] == pytest.approx(-0.5)


def test_what_was_not_simulated_is_a_dash_and_still_drawn(tmp_path):
    claims = [{**BASE, "published": 0.6}, {**BASE, "of": ["elsewhere"], "published": 0.5},
              {**BASE, "metric": "mean_running", "of": ["reserved"], "published": 7.0,
               "cannot": "nobody knows why"}]
    assert published.compare(ROWS, tmp_path, claims)["simulated"].to_list() == [0.9, None, None]
    text = plain_text(published.table(ROWS, tmp_path, claims=claims))
    assert "+50 %" in text and "–" in text and "nobody knows why" in text
    published.draw(ROWS, tmp_path, claims=claims)


@pytest.mark.parametrize(
    ("claim", "text"), [({"of": []}, "one run, or two"), ({"of": ["a", "b", "c"]}, "of = ")]
)
def test_a_wrong_claim_is_refused(tmp_path, claim, text):
    with pytest.raises(ValueError, match=text):
        compared(tmp_path, **claim)


def test_a_claim_without_a_source_is_refused(tmp_path):
    claim = {name: value for name, value in BASE.items() if name != "source"}
    with pytest.raises(ValueError, match="has no 'source'"):
        published.compare(ROWS, tmp_path, [{**claim, "published": 0.6}])
