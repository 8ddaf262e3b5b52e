"""Your own requests: named columns of CSV or JSON Lines."""

import json

import pytest

from cbjax.workload import read_trace
from tests.workload.formats.files import real, write

CSV = """arrival_s,prompt_tokens,output_tokens,class_name,priority
10.5,7,3,chat,1
12,8,4,"bulk, at night",0
12.25,9,5,chat,-1
"""


def test_our_own_names_need_no_options(tmp_path):
    trace = read_trace(write(tmp_path, "t.csv", CSV), "table")
    assert trace.arrival_s.tolist() == [0, 1.5, 1.75]
    assert trace.prompt_tokens.tolist() == [7, 8, 9] and trace.output_tokens.tolist() == [3, 4, 5]
    kinds = [trace.class_names[index] for index in trace.classes]
    assert kinds == ["chat", "bulk, at night", "chat"]
    assert trace.priority.tolist() == [1, 0, -1]


def test_json_lines_and_csv_hold_the_same(tmp_path):
    rows = [
        {"arrival_s": 10.5, "prompt_tokens": 7, "output_tokens": 3, "text": "x", "line": 1},
        {"arrival_s": 12, "prompt_tokens": 8, "output_tokens": 4, "class_name": "bulk"},
    ]
    path = write(tmp_path, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path, "table")
    assert trace.arrival_s.tolist() == [0, 1.5] and trace.prompt_tokens.tolist() == [7, 8]
    assert [trace.class_names[index] for index in trace.classes] == ["default", "bulk"]


@pytest.mark.parametrize(
    ("unit", "times"),
    [("ms", ["0", "1500"]), ("us", ["0", "1500000"]), ("ns", ["5", "1500000005"]),
     ("date", ["2024-01-01T00:00:00Z", "2024-01-01T00:00:01.5Z"])],
)
def test_other_names_and_units(tmp_path, unit, times):
    text = "".join(f"{at},{length},2,z\n" for at, length in zip(times, (5, 6), strict=True))
    path = write(tmp_path, "t.csv", "when,in,out,extra\n" + text)
    names = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"}
    trace = read_trace(path, "table", columns=names, time_unit=unit)
    assert trace.arrival_s == pytest.approx([0, 1.5])
    assert trace.prompt_tokens.tolist() == [5, 6]


def test_lengths_without_times_only_on_request(tmp_path):
    path = write(tmp_path, "t.csv", "prompt_tokens,output_tokens\n5,6\n7,8\n")
    with pytest.raises(ValueError, match="options.columns.arrival_s = 'arrival_s': .*no such col"):
        read_trace(path, "table")
    trace = read_trace(path, "table", columns={"arrival_s": None})
    assert trace.arrival_s.tolist() == [0, 0] and trace.rate is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("soon,7,3,chat,1", "arrival_s is no time in 's'"),
        ("nan,7,3,chat,1", "arrival_s is no time in 's'"),
        ("1,-7,3,chat,1", "prompt_tokens is no whole number from 1"),
        ("1,7,0,chat,1", "output_tokens is no whole number from 1"),
        ("1,99999999999,3,chat,1", "prompt_tokens is no whole number from 1"),
        ("1,7,3,chat,high", "priority is no whole number"),
        ("1,7,3,chat", "not 5 fields"),
        ("\udcff,7,3,chat,1", "arrival_s is no time"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_or_skipped_and_counted(tmp_path, row, reason):
    path = tmp_path / "t.csv"
    path.write_bytes((CSV + row + "\n").encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=f"line 5: {reason}"):
        read_trace(path, "table")
    with pytest.warns(UserWarning, match="1 bad rows"):
        assert len(read_trace(path, "table", on_bad_row="skip")) == 3


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("t.txt", "x", {}, "its ending does not tell the format; use .csv"),
        ("t.csv", "", {}, "the file is empty"),
        ("t.csv", "arrival_s,prompt_tokens,output_tokens\n", {}, "it holds no requests"),
        ("t.csv", "a,a\n1,2\n", {}, "its header has a field twice: a, a"),
        ("t.csv", CSV, {"columns": {"prompt": "x"}}, "options.columns = 'prompt': use some of"),
        ("t.csv", CSV, {"columns": {"prompt_tokens": "x"}},
         "options.columns.prompt_tokens = 'x': the file has no such column; use one of arrival_s"),
        ("t.csv", CSV, {"time_unit": "h"}, "options.time_unit = 'h': use one of"),
        ("t.csv", CSV, {"column": {}}, "options.column = {}: .*use one of columns, time_unit"),
    ],
)
def test_impossible_files_and_options_are_named(tmp_path, name, text, options, message):
    with pytest.raises(ValueError, match=message):
        read_trace(write(tmp_path, name, text), "table", **options)


def test_published_lengths_without_times():
    names = {"arrival_s": None, "prompt_tokens": "num_prefill_tokens",
             "output_tokens": "num_decode_tokens"}
    (path,) = real("vidur/processed_traces").glob("arxiv*.csv")
    trace = read_trace(path, "table", columns=names)
    assert len(trace) == 28_257
    assert trace.prompt_tokens.mean() == pytest.approx(2588, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(291, abs=0.5)
