"""The door: what can never run is refused, what asks for too much clamped (FAULTS A1, E2, E3)."""

import pytest

from cbjax.core.inbox import door
from cbjax.core.limits import Limits, blocks_for, system
from cbjax.core.policy import Traits
from cbjax.core.reasons import Refusal

LIMITS = Limits(seats=2, window=2, tokens=16, blocks=8, blocks_per_sequence=8, inbox=2)
ON_DEMAND, RESERVED = Traits(), Traits(whole_prompts=True, reserves_output=True)


def at_door(prompt, max_tokens, traits=ON_DEMAND, *, num_blocks=8, max_length=24, block_size=4):
    numbers = system(
        LIMITS, block_size=block_size, num_blocks=num_blocks, max_length=max_length
    )
    allowed, refusal = door(prompt, max_tokens, LIMITS, numbers, traits)
    return int(allowed), Refusal(int(refusal))


@pytest.mark.parametrize(
    ("prompt", "options", "refusal"),
    [
        (0, {}, Refusal.EMPTY_PROMPT),
        (24, {}, Refusal.PROMPT_TOO_LONG),
        (25, {}, Refusal.PROMPT_TOO_LONG),
        (23, {}, Refusal.NONE),
        (8, dict(num_blocks=2), Refusal.NEVER_FITS),
        (7, dict(num_blocks=2), Refusal.NONE),
        (17, dict(traits=RESERVED), Refusal.PROMPT_EXCEEDS_ITERATION),
        (16, dict(traits=RESERVED), Refusal.NONE),
    ],
)
def test_what_never_fits_is_refused_with_its_reason(prompt, options, refusal):
    assert at_door(prompt, 5, **options)[1] is refusal
    assert refusal.sentence


def test_a_single_token_needs_no_kv_of_its_own():
    """The last token's KV is never stored, so a prompt may fill the pool."""
    assert at_door(8, 1, num_blocks=2) == (1, Refusal.NONE)
    assert at_door(8, 1, RESERVED, num_blocks=2)[1] is Refusal.NEVER_FITS


@pytest.mark.parametrize("asked", [0, 1000])
def test_absent_and_too_large_outputs_become_what_fits(asked):
    assert at_door(10, asked)[0] == 14  # max_length
    assert at_door(5, asked, num_blocks=2)[0] == 4  # pool of 8: the last token needs no slot
    assert at_door(5, asked, RESERVED, num_blocks=2)[0] == 3


@pytest.mark.parametrize("traits", [ON_DEMAND, RESERVED])
@pytest.mark.parametrize("prompt", range(1, 24))
def test_what_passes_can_finish_alone(traits, prompt):
    allowed, refusal = at_door(prompt, 0, traits, num_blocks=4)
    if refusal is Refusal.NONE:
        stored = prompt + allowed - (0 if traits.reserves_output else 1)
        assert allowed >= 1 and blocks_for(stored, 4) <= 4
