"""The search of a capacity as a study: its runs are the loads tried, kept and found again."""

import pytest

import cbjax
from cbjax.config import ConfigError
from cbjax.experiment.show import show_study
from cbjax.report import capacities
from cbjax.results import read_capacity
from tests.experiment.toy import toy
from tests.workload.formats.files import real

# Prompts of 10 and answers of 5 tokens, one seat and 10 ms an iteration: 20 requests a second.
ONE_SERVER = [
    "policy=vllm", "seats=1", "budget=64", "backend=simulated", "kv.num_blocks=64",
    "model.max_length=64", "hardware.name=null", "ladder=single",
    "backend.cost={name: linear, base_s: 0.01, per_token_s: 0.0, per_context_s: 0.0}",
    "workload.num_requests=300", "workload.arrivals={kind: constant}",
]


def one_server(tmp_path, *overrides):
    none = "median: null, sigma: null, low: null, high: null"
    lengths = ", ".join(
        f"{part}_lengths: {{kind: fixed, value: {tokens}, {none}}}"
        for part, tokens in (("prompt", 10), ("output", 5))
    )
    kinds = ["short_answer", "long_prompt", "long_generation"]
    classes = [f"workload.classes.{kind}={{{lengths}}}" for kind in kinds]
    return cbjax.load_config(
        "capacity", [*ONE_SERVER, *classes, f"results_dir={tmp_path}", *overrides]
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    return cbjax.run_experiment(one_server(
        tmp_path_factory.mktemp("search"), "study.search.precision=0.02", "slo.ttft_s=0.5",
    ))


def test_the_capacity_of_a_known_server_is_found(searched):
    """A request takes 5 iterations of 10 ms; above 20 a second the queue grows."""
    row = capacities(read_capacity(searched.folder)).to_dicts()[0]
    assert row["capacity"] <= 20.5 and row["highest"] >= 19.5
    assert row["highest"] <= row["capacity"] * 1.02 + 1e-9
    assert "queue growth" in row["gave_way"]


def test_its_runs_are_the_loads_that_were_tried(searched):
    rates = read_capacity(searched.folder)["rate"].unique().sort().to_list()
    assert sorted(run.config["workload"]["arrivals"]["rate"] for run in searched.runs) == rates
    assert not searched.comparison["differs"].any(), "the load is swept on purpose"


def test_a_finished_search_is_shown_and_not_run_again(searched):
    again = cbjax.run_experiment(searched.experiment)
    assert again.reused and again.folder == searched.folder
    said = []
    show_study(again, said.append)
    assert any("capacity.png" in str(line) for line in said)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("slo=none", "choose one, e.g. slo=interactive"),
        ("workload.arrivals={kind: all_at_once, rate: null}", "has no rate to look for"),
        ("study.search.start=0.001", "least = 0.01, start = 0.001"),
        ("study.search.growth=2", "growth = 2"),
    ],
)
def test_a_question_without_an_answer_is_refused(tmp_path, override, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        cbjax.run_experiment(one_server(tmp_path, override))


def test_several_seeds_give_an_interval(tmp_path):
    result = cbjax.run_experiment(one_server(
        tmp_path, "study.search.seeds=2", "study.search.precision=0.5", "slo.ttft_s=0.5",
        "workload.arrivals={kind: poisson}",
    ))
    row = capacities(read_capacity(result.folder)).to_dicts()[0]
    assert row["seeds"] == 2 and row["margin"] is not None


@pytest.mark.slow
def test_an_hour_of_azure_for_three_policies(tmp_path):
    """19,366 requests a load, all of them accounted for."""
    path = real("azure2023/AzureLLMInferenceTrace_conv.csv")
    result = cbjax.run_experiment(cbjax.load_config("capacity", [
        "policy=orca,vllm,sglang", "workload=azure_conv", f"workload.path={path}",
        "workload.num_requests=null", "study.figures=none", f"results_dir={tmp_path}",
    ]))
    found = capacities(read_capacity(result.folder))
    assert sorted(found["policy"]) == ["orca", "sglang", "vllm"]
    assert (found["capacity"] > 0).all()
    assert all(run.metrics["completed"] + run.metrics["rejected"] == 19366 for run in result.runs)


def test_the_best_settings_come_with_command_lines(tmp_path):
    said = []
    show_study(cbjax.run_experiment(toy("plan", tmp_path)), said.append)
    assert any("vllm serve llama3.1-8b" in str(line) for line in said)
