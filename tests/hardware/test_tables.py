"""The tables of accelerators and models, against numbers published elsewhere."""

from types import SimpleNamespace

import pytest

from cbjax import hardware
from cbjax.hardware import models

# Parameters as counted from the published weights.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "gemma-7b": 8_537_680_896,
}


@pytest.mark.parametrize("name", models.names())
def test_sizes_add_up_to_the_published_number_of_parameters(name):
    assert models.load(name).params == PARAMETERS[name]


@pytest.mark.parametrize("name", hardware.names())
def test_every_accelerator_is_complete_and_cited(name):
    chip = hardware.load(name)
    assert chip.name == name and chip.title and chip.source
    assert 16e9 < chip.memory < 1e12 and 0.5e12 < chip.bandwidth < 1e13
    assert 1e14 < chip.rate("bfloat16") < 5e15
    for dtype in ("int8", "float8"):
        if dtype in chip.rates:  # half the bits, twice the rate, up to the vendors' rounding
            assert chip.rates[dtype] == pytest.approx(2 * chip.rate("bfloat16"), rel=0.02)


def test_derating_scales_bandwidth_and_rates_and_leaves_memory():
    chip = hardware.load("h100")
    slower = chip.derated(bandwidth=0.8, rates=0.5)
    assert slower.bandwidth == 0.8 * chip.bandwidth
    assert slower.rate("bfloat16") == 0.5 * chip.rate("bfloat16")
    assert slower.memory == chip.memory


def test_a_shape_is_read_from_any_record_of_these_names():
    shape = models.load("qwen3-8b")
    other = SimpleNamespace(**{**vars(shape), "eos_ids": (1,)})
    assert models.shape_of(other, "mine").params == shape.params


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: hardware.load("h10"), "hardware = 'h10': did you mean h100"),
        (lambda: models.load("gpt"), "model = 'gpt': there are smollm2-135m"),
        (lambda: hardware.load("a100").rate("float8"), "dtype = 'float8': no peak rate.* a100"),
        (lambda: hardware.load("a100").derated(bandwidth=1.5), "derated.bandwidth = 1.5: give a"),
        (lambda: hardware.Accelerator("x", 0, 1, {}), "hardware.memory = 0: give"),
    ],
)
def test_what_is_not_there_is_named_with_the_remedy(make, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        make()
