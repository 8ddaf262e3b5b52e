"""The floors below step times composed from measured kernels, where somebody put these."""

import json
from pathlib import Path

import pytest

from cbjax import hardware
from cbjax.hardware import models, roofline

# Linear fits of operator times of Llama 3.1 8B in bfloat16 (aiconfigurator, Apache-2.0); norms,
# sampling and the host are not in them, and they fit to a few percent.
FITS = Path(__file__).parents[3] / "shared" / "traces" / "llama31_8b_bf16_step_fits.json"
FIT_ERROR = 0.95
DEVICES = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm",
           "l40s": "l40s"}


@pytest.mark.parametrize("name", DEVICES)
def test_no_measured_step_is_below_its_floor_nor_far_above(name):
    if not FITS.exists():
        pytest.skip("no measured step times are here")
    fits = json.loads(FITS.read_text())[DEVICES[name]]
    chip, costs = hardware.load(name), roofline.step_costs(models.load("llama3.1-8b"))
    decode, prefill = fits["decode_ms"], fits["prefill_ms"]
    for batch in (1, 16, 64):
        for context in (128, 1024, 8192):
            work = roofline.iteration(batch=batch, context=context, block_size=16)
            floor = 1e3 * roofline.floor(chip, costs, work).seconds
            measured = decode["base"] + decode["per_seq"] * batch
            measured += decode["per_ctx_token"] * batch * context
            assert FIT_ERROR * floor <= measured <= 2 * floor, (batch, context)
    for tokens in (512, 2048, 8192):
        floor = 1e3 * roofline.floor(chip, costs, roofline.iteration(chunk=tokens)).seconds
        measured = prefill["base"] + prefill["per_token"] * tokens
        measured += prefill["per_token_sq"] * tokens**2
        assert FIT_ERROR * floor <= measured <= 2.5 * floor, tokens
