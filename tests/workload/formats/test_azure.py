"""Azure LLM inference traces: seven digits in 2023, six and an offset in 2024."""

import numpy as np
import pytest

from cbjax.workload import read_trace
from tests.workload.formats.files import real, write

ROWS_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:50.9951691,879,55
"""
ROWS_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""


def test_2023_keeps_all_seven_digits(tmp_path):
    trace = read_trace(write(tmp_path, "conv.csv", ROWS_2023), "azure")
    np.testing.assert_allclose(trace.arrival_s, [0, 4.3145790, 4.3145791], rtol=0, atol=1e-12)
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.class_names == ("azure",) and trace.segments is None


def test_2024_has_six_digits_and_an_offset(tmp_path):
    trace = read_trace(write(tmp_path, "code.csv", ROWS_2024), "azure")
    np.testing.assert_allclose(trace.arrival_s, [0, 0.007405], rtol=0, atol=1e-12)
    assert trace.prompt_tokens.tolist() == [2162, 2399]


def test_a_stamp_on_the_full_second_has_no_digits(tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01+00:00,5,6\n"
    text += "2024-05-10 00:00:03.500000+00:00,5,6\n"
    assert read_trace(write(tmp_path, "a.csv", text), "azure").arrival_s.tolist() == [0, 2.5]


def test_windows_ends_byte_order_mark_gzip_and_limit(tmp_path):
    text = "\ufeff" + ROWS_2023.replace("\n", "\r\n")
    trace = read_trace(write(tmp_path, "conv.csv.gz", text), "azure", limit=2)
    assert trace.output_tokens.tolist() == [44, 109]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("16.11.2023 18:15,5,6", "TIMESTAMP is no time"),
        ("2023-11-16 18:15:51.0,0,6", "ContextTokens is no whole number from 1"),
        ("2023-11-16 18:15:51.0,5,", "GeneratedTokens is no whole number from 1"),
        ("2023-11-16 18:15:51.0,5.5,6", "ContextTokens is no whole number from 1"),
        ("2023-11-16 18:15:51.0,5", "not 3 fields"),
        ("2023-11-16 18:15:51.0,5,6,7", "not 3 fields"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_or_skipped_and_counted(tmp_path, row, reason):
    path = write(tmp_path, "conv.csv", ROWS_2023 + "\n" + row + "\n")
    with pytest.raises(ValueError, match=rf"(?s)1 bad rows.*line 6: {reason}.*on_bad_row='skip'"):
        read_trace(path, "azure")
    with pytest.warns(UserWarning, match=f"line 6: {reason}"):
        trace = read_trace(path, "azure", on_bad_row="skip")
    assert len(trace) == 3 and len(trace.bad_rows) == 1


def test_rows_out_of_order_are_put_in_order(tmp_path):
    header, first, *rest = ROWS_2023.splitlines()
    path = write(tmp_path, "conv.csv", "\n".join([header, *rest, first]))
    assert read_trace(path, "azure").output_tokens.tolist() == [44, 109, 55]


def test_another_file_is_known_by_its_header(tmp_path):
    path = write(tmp_path, "conv.csv", "a,b\n1,2\n")
    with pytest.raises(ValueError, match="its header has no field 'TIMESTAMP'; it has a, b"):
        read_trace(path, "azure")


@pytest.mark.parametrize(
    ("name", "rows", "rate", "prompt", "output", "variation"),
    [("conv", 19_366, 5.53, 1155, 211, 1.09), ("code", 8_819, 2.57, 2048, 28, 13.15)],
)
def test_the_published_files(name, rows, rate, prompt, output, variation):
    trace = read_trace(real(f"azure2023/AzureLLMInferenceTrace_{name}.csv"), "azure")
    gaps = np.diff(trace.arrival_s)
    assert len(trace) == rows and len(trace.bad_rows) == 0
    assert trace.rate == pytest.approx(rate, abs=0.005)
    assert trace.prompt_tokens.mean() == pytest.approx(prompt, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(output, abs=0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.005)
