"""Traces and conversations chosen on the command line: settings in, requests out."""

import json
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

import cbjax
from cbjax.config import ConfigError
from cbjax.config.paths import config_dir, group_choices
from cbjax.experiment.cell import settings
from cbjax.experiment.workload import build_workload
from cbjax.results import identity_hash
from cbjax.workload import formats
from tests.experiment.toy import toy

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.5000000,{100 + second},{10 + second}\n" for second in range(50)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 3000 * (row // 5), "input_length": 1000, "output_length": 32,
                "hash_ids": [0, row]}) + "\n"
    for row in range(40)
)


def config_of(*overrides: str):
    return cbjax.load_config("worked_example", overrides).cells[0].config


def times_of(config) -> list[float]:
    return [request.scheduled_arrival_s for request in build_workload(config)]


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "conv.csv"
    path.write_text(AZURE)
    return ["workload=azure_conv", f"workload.path={path}"]


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    return ["workload=mooncake", f"workload.path={path}"]


@pytest.mark.parametrize("name", group_choices("workload"))
def test_every_workload_composes_and_says_what_it_is(name):
    needed = ["workload.path=prompts.jsonl"] if name == "file" else []
    config = config_of(f"workload={name}", *needed)
    assert group_choices("workload")[name]
    if config.workload.source == "trace":
        assert config.workload.arrivals.kind == "recorded"
        with pytest.raises(ConfigError, match="^workload.path = None: no file is named") as raised:
            build_workload(config)
        assert formats.get(config.workload.trace.format).DOWNLOAD in str(raised.value)


def test_the_lines_of_the_documentation_compose():
    page = (Path(__file__).parents[2] / "docs" / "workloads.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in page.splitlines() if line.startswith("    workload=")]
    assert {config_of(*line).workload.trace.format for line in lines} == set(formats.names)


def test_every_format_has_a_workload():
    texts = [path.read_text() for path in (config_dir() / "workload").glob("*.yaml")]
    wanted = [yaml.safe_load(text) for text in texts]
    chosen = {one["trace"]["format"] for one in wanted if one["source"] == "trace"}
    assert chosen == set(formats.names)


def test_a_trace_is_replayed_as_it_was(azure):
    workload = build_workload(config_of(*azure))
    assert [request.scheduled_arrival_s for request in workload] == list(range(50))
    assert [request.prompt_tokens for request in workload] == list(range(100, 150))
    assert workload.offered_rate == pytest.approx(50 / 49)


def test_a_changed_trace_is_another_run(azure):
    def hash_now() -> str:
        cell = cbjax.load_config("worked_example", azure).cells[0]
        return identity_hash(settings(cell), cell.config.seed)

    before = hash_now()
    assert before == hash_now()
    path = Path(azure[1].split("=")[1])
    path.write_text(AZURE.replace(",100,", ",101,"))
    assert hash_now() != before
    path.write_text(AZURE)
    assert hash_now() == before


def test_a_window_scaled_lengths_a_number_and_a_rate(azure):
    config = config_of(
        *azure, "workload.trace.start_s=10", "workload.trace.duration_s=20",
        "workload.trace.prompt_scale=0.5", "workload.trace.max_output_tokens=25",
        "workload.num_requests=10", "workload.arrivals.rate=4",
    )
    workload = build_workload(config)
    assert [request.prompt_tokens for request in workload] == [
        (length + 1) // 2 for length in range(110, 120)
    ]
    assert [request.max_tokens for request in workload] == [20, 21, 22, 23, 24, *[25] * 5]
    times = [request.scheduled_arrival_s for request in workload]
    assert times == pytest.approx([i / 4 for i in range(10)])


def test_other_arrivals_for_the_requests_of_a_trace(azure):
    config = config_of(*azure, "workload.arrivals={kind: poisson, rate: 2}", "seed=3")
    workload = build_workload(config)
    assert workload.offered_rate == 2.0
    assert times_of(config) != list(range(50))
    loop = config_of(*azure, "workload.arrivals={kind: closed_loop, concurrency: 2}")
    assert build_workload(loop).concurrency == 2


def test_ticks_are_spread_the_same_way_at_every_rate(mooncake):
    rates = [f"workload.arrivals.rate={rate}" for rate in (1, 8)]
    slow, fast = (np.array(times_of(config_of(*mooncake, rate))) for rate in rates)
    assert len(np.unique(slow)) == 40
    np.testing.assert_allclose(slow, 8 * fast)
    ticked = times_of(config_of(*mooncake, "workload.trace.spread_ticks=false"))
    assert len(np.unique(ticked)) == 8


def test_shared_prefixes_reach_the_requests(mooncake):
    config = config_of(*mooncake, "workload.trace.prompt_scale=0.03125")
    workload = build_workload(config)
    assert {request.segments.ids[0] for request in workload} == {0}
    assert workload.requests[3].segments.lengths == (16, 16)


def test_options_of_a_format_are_settings(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("when,in,out\n0,5,6\n1500,7,8\n")
    columns = "{arrival_s: when, prompt_tokens: in, output_tokens: out}"
    config = config_of(
        "workload=table", f"workload.path={path}", f"workload.trace.options.columns={columns}",
        "workload.trace.options.time_unit=ms",
    )
    assert times_of(config) == [0, 1.5]


def test_the_mix_and_conversations_need_no_file():
    mix = build_workload(config_of("workload=mix"))
    counts = Counter(request.class_name for request in mix)
    assert counts == {"short_answer": 120, "long_prompt": 50, "long_generation": 30}
    assert mix.offered_rate == 2.0
    talks = build_workload(config_of("workload=sessions"))
    counts = Counter(request.class_name for request in talks)
    assert set(counts) == {"first_turn", "later_turn"} and counts["first_turn"] == 50


MISTAKES = {
    "workload.trace.format=azur": "workload.trace.format = 'azur': did you mean azure?",
    "workload.trace.options.model=x": "workload.trace.options.model = 'x': .*leave it out",
    "workload.trace.on_bad_row=ignore": "workload.trace.on_bad_row = 'ignore': ",
    "workload.trace.limit=0": "workload.trace.limit = 0: ",
    "workload.trace.start=3": "workload.trace.start = 3: there is no such setting",
    "workload.trace.start_s=900": "workload: start_s = 900.0: no request arrives",
    "workload.trace.prompt_scale=0": "workload: prompt_scale = 0.0: ",
    "workload.arrivals.burstiness=2": "workload.arrivals.burstiness = 2.0: .*has none",
    "workload.arrivals.rate=0": "workload.arrivals.rate = 0.0: use a finite number above 0",
    "workload=sessions workload.sessions.turns.value=3": "workload.sessions.turns.value = 3: ",
    "workload=sessions workload.sessions.count=0": "workload.sessions.count = 0: ",
    "workload=sessions workload.sessions.longest=100": "workload: sessions.longest = 100: ",
    "workload=synthetic workload.arrivals.kind=recorded": ".*kind = 'recorded': only a trace",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(azure, mistake):
    with pytest.raises(ConfigError, match=f"^{MISTAKES[mistake]}"):
        config = config_of(*azure, *mistake.split(" "))
        if config.workload.source == "synthetic":
            config = config_of(
                "workload=synthetic", "workload.classes.mixed.prompt_lengths.low=1",
                "workload.arrivals.kind=recorded",
            )
        build_workload(config)


def test_a_trace_runs_through_a_study(azure, tmp_path):
    experiment = toy(
        "worked_example", tmp_path, *azure, "workload.num_requests=4", "kv.num_blocks=600",
        "model.max_length=600", "workload.trace.prompt_scale=0.1", "budget=64",
        "study.figures=none",
    )
    result = cbjax.run_experiment(experiment)
    for run in result.runs:
        assert run.metrics["completed"] == 4
        assert run.tables.requests["prompt_tokens"].to_list() == [10, 11, 11, 11]
        assert run.tables.requests["output_tokens"].to_list() == [10, 11, 12, 13]
