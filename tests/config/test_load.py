"""Composing experiments: every file, every kind of mistake, again and again in one process."""

import os
from dataclasses import fields

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import cbjax
from cbjax.config import ConfigError, experiments
from cbjax.config.paths import config_dir
from cbjax.config.schema import RunConfig

NEEDED = {"real_prompts": ["workload.path=prompts.jsonl"]}


def load(*overrides: str, name: str = "worked_example"):
    return cbjax.load_config(name, overrides)


@pytest.mark.parametrize("name", experiments())
def test_every_experiment_composes_and_says_what_it_is(name):
    experiment = load(*NEEDED.get(name, []), name=name)
    assert experiment.description.endswith(".")
    labels = [cell.label for cell in experiment.cells]
    assert len(set(labels)) == len(labels) >= 1
    for cell in experiment.cells:
        assert isinstance(cell.config, RunConfig)
        assert cell.config.seats is None, "the alias was resolved into the policy's own knob"


MISTAKES = {
    "polcy=vllm": ["polcy = vllm", "did you mean policy?"],
    "policy=vlm": ["policy = 'vlm'", "did you mean vllm?"],
    "policy.max_batch=3": ["policy.max_batch = 3", "did you mean max_batch_size?"],
    "policy.max_batch_size=two": ["policy.max_batch_size = 'two'", "type int"],
    "policy.padding=square": ["padding = 'square'", "padded", "ragged"],
    "seats=abc": ["seats = 'abc'", "integer"],
    "seats=0": ["seats = 0", "at least 1"],
    "budget=1": ["max_num_batched_tokens = 1", "raise the budget", "continuous"],
    "block_size=8": ["block_size = 8", "did you mean kv.block_size?"],
    "kv.block_sze=8": ["kv.block_sze = 8", "did you mean kv.block_size?"],
    "kv.block_size=0": ["kv.block_size = 0", "at least 1"],
    "kv.memory_fraction=0.5": ["kv.memory_fraction = 0.5", "kv.num_blocks = 16", "null"],
    "model.dtype=float16": ["model.dtype = 'float16'", "bfloat16"],
    "backend.name=gpu": ["backend.name = 'gpu'", "model, simulated, unit_clock"],
    "record=everything": ["record = 'everything'", "tokens"],
    "workload.arrivals.kind=poisson": ["workload.arrivals.rate = None", "above 0"],
    "workload=file": ["workload.path = None", "workload.path=prompts.jsonl"],
    "workload.requests.B.output=6": ["workload.requests.B.output", "RequestConfig"],
    "workload.requests.B.output_tokens=0": ["B.output_tokens = 0", "at least 1"],
    "slo.ttft_s=-1": ["slo.ttft_s", "-1", "more than 0"],
    "study.figures=some": ["study.figures = 'some'", "all, none, study"],
    "seats=glob(*)": ["seats=glob(*)", "list the values"],
    "seats": ["'seats'", "key=value"],
    "experiment=quickstart": ["one experiment at a time"],
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_named_with_its_value_and_a_remedy(override):
    with pytest.raises(ConfigError) as caught:
        load(override)
    assert len(str(caught.value).splitlines()) == 1
    for part in MISTAKES[override]:
        assert part in str(caught.value)


def test_an_unknown_experiment_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean quickstart"):
        load(name="quickstat")


def test_loading_again_and_again_leaves_the_process_as_it_was():
    folder, before = os.getcwd(), set(os.listdir())
    first = load()
    assert all(load() == first for _ in range(3))
    assert load("seed=1") != first
    assert os.getcwd() == folder and set(os.listdir()) == before


def test_a_hydra_that_is_already_in_use_survives(tmp_path, monkeypatch):
    """hydra 2915, 695: GlobalHydra already initialised, config paths relative to the caller."""
    monkeypatch.chdir(tmp_path)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        load()
        load("seats=3")
        assert "quickstart" not in compose("slo/none")
    assert not GlobalHydra.instance().is_initialized()


def test_the_config_holds_only_plain_values_in_dataclasses():
    config = load().cells[0].config
    assert {type(getattr(config, field.name)).__module__ for field in fields(config)} <= {
        "builtins", "cbjax.config.schema"
    }


def test_an_experiment_knows_the_command_that_runs_it_again():
    given = ["seats=2,3", "study.timeline=false", "results_dir=elsewhere", "force=true"]
    again = "python -m cbjax.run +experiment=worked_example seats=2,3 study.timeline=false"
    assert load(*given).command == again
