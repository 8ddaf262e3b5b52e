"""ServeGen: rates, families and lengths of clients, drawn window by window."""

import json

import numpy as np
import pytest

from cbjax.workload import cut, read_trace
from tests.workload.formats.files import real

LENGTHS = {
    "0": {"input_tokens": "{10: 0.25, 20: 0.75}", "output_tokens": "{5: 1.0}"},
    "21600": {"input_tokens": "{}", "output_tokens": "{}"},
}


def client(folder, number, *rows, lengths=LENGTHS):
    (folder / f"chunk-{number}-trace.csv").write_text("".join(f"{row}\n" for row in rows))
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))
    return folder


GAMMA = ["0,0,0,,0,0", "600,4.0,1.0,Gamma,0.5,0.5", "1200,2.0,0.5,Weibull,2.0,0.5641895835"]


def test_rates_families_and_lengths_by_window(tmp_path):
    client(tmp_path, 3, *GAMMA)
    trace = read_trace(tmp_path, "servegen", duration_s=1800, seed=1)
    assert trace.class_names == ("client 3",)
    gamma, weibull = (trace.arrival_s[(trace.arrival_s >= at) & (trace.arrival_s < at + 600)]
                      for at in (600, 1200))
    assert len(trace) == len(gamma) + len(weibull), "nothing is sent where the rate is 0"
    assert len(gamma) == pytest.approx(2400, rel=0.1)
    assert len(weibull) == pytest.approx(1200, rel=0.1)
    for times, variation in ((gamma, 2**0.5), (weibull, 0.5227)):  # of shape 0.5 and of shape 2
        gaps = np.diff(times)
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1)
    assert set(trace.prompt_tokens.tolist()) == {10, 20}
    assert np.mean(trace.prompt_tokens == 20) == pytest.approx(0.75, abs=0.03)
    assert set(trace.output_tokens.tolist()) == {5}


def test_a_seed_fixes_everything_and_windows_and_clients_are_independent(tmp_path):
    client(tmp_path, 3, *GAMMA)

    def times(seed=1, **wanted):
        trace = read_trace(tmp_path, "servegen", seed=seed, **{"duration_s": 1800, **wanted})
        return trace.arrival_s[trace.classes == trace.class_names.index("client 3")].tolist()

    alone = times()
    assert alone == times() and alone != times(seed=2)
    assert times(duration_s=900) == [at for at in alone if at < 900]
    assert times(start_s=1000, duration_s=800) == [at for at in alone if at >= 1000]
    client(tmp_path, 8, *GAMMA)
    assert times() == alone
    assert times(clients=[3]) == alone
    both = read_trace(tmp_path, "servegen", duration_s=1800, seed=1)
    assert both.class_names == ("client 3", "client 8") and len(both) > 1.8 * len(alone)


def test_a_cut_window_begins_at_0(tmp_path):
    client(tmp_path, 3, *GAMMA)
    trace = read_trace(tmp_path, "servegen", start_s=600, duration_s=600)
    assert trace.arrival_s.min() >= 600
    window = cut(trace, 600, 600)
    assert window.arrival_s.min() < 5 and window.duration_s == 600


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1200,1.0,1.0,Normal,1,1", "a family that is neither Gamma nor Weibull"),
        ("1200,1.0,1.0,Gamma,0,1", "shape or scale is not above 0"),
        ("1200,1.0,1.0", "not start, rate, CV, family, shape and scale"),
        ("21600,1.0,1.0,Gamma,1.0,1.0", "no input_tokens for the window from 21600 s"),
    ],
)
def test_a_bad_window_is_refused_or_skipped_and_counted(tmp_path, row, reason):
    client(tmp_path, 3, *GAMMA[:2], row)
    with pytest.raises(ValueError, match=f"{reason}.*client 3"):
        read_trace(tmp_path, "servegen", duration_s=22_000)
    with pytest.warns(UserWarning, match="1 bad rows"):
        trace = read_trace(tmp_path, "servegen", duration_s=22_000, on_bad_row="skip")
    assert len(trace) > 2000 and trace.bad_rows.by_reason == {reason: 1}


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="there are no clients in it; give a folder"):
        read_trace(tmp_path, "servegen", duration_s=60)
    client(tmp_path, 3, *GAMMA)
    with pytest.raises(ValueError, match="duration_s = None: .*such as 3600"):
        read_trace(tmp_path, "servegen")
    with pytest.raises(ValueError, match=r"options.clients = 4: use some of \[3\]"):
        read_trace(tmp_path, "servegen", duration_s=60, clients=[4])
    with pytest.raises(ValueError, match="this is no folder"):
        read_trace(tmp_path / "chunk-3-trace.csv", "servegen", duration_s=60)


def test_published_clients_send_at_their_rates():
    folder = real("servegen/language/m-small")
    trace = read_trace(folder, "servegen", duration_s=600, clients=[12], seed=3)
    rate = float((folder / "chunk-12-trace.csv").read_text().split(",")[1])
    assert len(trace) / 600 == pytest.approx(rate, rel=0.05)
