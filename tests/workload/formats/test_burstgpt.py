"""BurstGPT: three layouts, fields by name, failures as rows of their own kind."""

import pytest

from cbjax.workload import read_trace
from tests.workload.formats.files import real, write

TWO = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
"""
THREE = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.0,101b03d1,1,ChatGPT,472,18,490,Conversation log
45.0,35793c3d,4,ChatGPT,1087,230,1317,Conversation log
118.0,,8,GPT-4,417,276,693,API log
"""
WITHOUT_TOTAL = """Timestamp,Model,Request tokens,Response tokens,Log Type
5,ChatGPT,472,18,Conversation log
45,ChatGPT,1087,230,Conversation log
118,GPT-4,417,276,API log
"""
FAILED = "120,ChatGPT,417,0,417,API log\n130,ChatGPT,0,0,0,API log\n140,ChatGPT,0,4,4,API log\n"


@pytest.mark.parametrize("text", [TWO, THREE, WITHOUT_TOTAL])
def test_the_layouts_hold_the_same(tmp_path, text):
    trace = read_trace(write(tmp_path, "b.csv", text), "burstgpt")
    assert trace.arrival_s.tolist() == [0, 40, 113]
    assert trace.prompt_tokens.tolist() == [472, 1087, 417]
    assert trace.output_tokens.tolist() == [18, 230, 276]
    kinds = [trace.class_names[index] for index in trace.classes]
    assert kinds == ["Conversation log", "Conversation log", "API log"]


def test_failures_are_counted_by_kind_and_left_out_by_choice(tmp_path):
    path = write(tmp_path, "b.csv", TWO + FAILED)
    with pytest.raises(ValueError, match="(?s)3 bad rows.*2 x .*the request failed.*1 x Request"):
        read_trace(path, "burstgpt")
    with pytest.warns(UserWarning, match="3 bad rows"):
        trace = read_trace(path, "burstgpt", on_bad_row="skip")
    assert len(trace) == 3
    assert trace.bad_rows.by_reason == {
        "Response tokens is 0: the request failed": 2, "Request tokens is 0": 1
    }


def test_one_model_or_one_kind_of_log(tmp_path):
    path = write(tmp_path, "b.csv", THREE)
    assert read_trace(path, "burstgpt", model="GPT-4").prompt_tokens.tolist() == [417]
    assert len(read_trace(path, "burstgpt", log_type="Conversation log")) == 2
    with pytest.raises(ValueError, match="options.model = 'GPT-5': .*use one of ChatGPT, GPT-4"):
        read_trace(path, "burstgpt", model="GPT-5")


def test_a_time_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="line 5: Timestamp is no number of seconds"):
        read_trace(write(tmp_path, "b.csv", TWO + "x,ChatGPT,1,2,3,API log\n"), "burstgpt")


def test_a_published_window():
    trace = read_trace(real("burstgpt/burstgpt3_window_sample.csv"), "burstgpt")
    assert (len(trace), trace.duration_s) == (107, 2543.0)
    assert len(trace.bad_rows) == 0
