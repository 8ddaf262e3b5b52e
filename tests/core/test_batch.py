"""The iteration batch: every token at its place, and padding that touches nothing."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cbjax import policies
from cbjax.core.batch import pack
from cbjax.core.blocks import NO_BLOCK
from cbjax.core.commit import commit_jit
from cbjax.core.inbox import empty_inbox
from cbjax.core.ladder import Rung
from cbjax.core.limits import Limits, system
from cbjax.core.rows import NO_ROW
from cbjax.core.schedule import schedule_jit
from cbjax.core.state import initial_state
from cbjax.core.time import from_seconds

LIMITS = Limits(
    seats=4, window=4, tokens=16, blocks=32, blocks_per_sequence=16, inbox=4, context=32
)
RUNG = Rung(24, 6)
pack_jit = jax.jit(partial(pack, rung=RUNG))


def token(request: int, position: int) -> int:
    """What token stands where: unique, so that a wrong place shows."""
    return 100 * (request + 1) + position


@settings(max_examples=40)
@given(
    prompts=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    block_size=st.sampled_from([2, 3, 4, 16]),
    budget=st.integers(4, 16),
)
def test_every_token_is_packed_at_its_place(prompts, block_size, budget):
    policy = policies.vllm(max_num_batched_tokens=budget, max_num_seqs=4)
    state = initial_state(
        policy, LIMITS, system(LIMITS, block_size=block_size, num_blocks=32, max_length=32)
    )
    inbox = empty_inbox(LIMITS)
    for request, length in enumerate(prompts):
        inbox.request[request], inbox.max_tokens[request] = request, 3
        inbox.prompt[request] = inbox.known[request] = length
        inbox.token_ids[request, :length] = [token(request, p) for p in range(length)]
    inbox = replace(inbox, count=np.int32(len(prompts)))
    written: dict[int, int] = {}  # next position of each request
    for _ in range(40):
        state, plan = schedule_jit(policy, state, inbox, LIMITS)
        inbox = empty_inbox(LIMITS)
        if int(plan.scheduled_tokens) == 0:
            break
        batch = jax.device_get(pack_jit(state, plan))
        check(batch, jax.device_get(plan), jax.device_get(state), written)
        known = np.asarray(state.rows.known)
        drawn = np.array(
            [token(int(r), int(k)) if r >= 0 else 0
             for r, k in zip(plan.requests, known, strict=True)],
            np.int32,
        )
        nobody = np.zeros(LIMITS.rows, bool)
        state, _ = commit_jit(state, plan, drawn, nobody, from_seconds(0.0))
    assert written == {request: length + 2 for request, length in enumerate(prompts)}


def check(batch, plan, state, written) -> None:
    total = int(batch.num_tokens)
    assert total == int(plan.scheduled_tokens) == batch.query_starts[-1]
    for sequence in range(int(batch.num_sequences)):
        row = int(batch.rows[sequence])
        request = int(plan.requests[row])
        start, end = batch.query_starts[sequence : sequence + 2]
        first = written.get(request, 0)
        assert batch.positions[start:end].tolist() == list(range(first, first + end - start))
        written[request] = first + int(end - start)
        assert batch.context_lengths[sequence] == written[request]
        for t in range(start, end):
            position = int(batch.positions[t])
            assert batch.sequences[t] == sequence
            assert batch.token_ids[t] == token(request, position)
            block, offset = divmod(position, int(state.system.block_size))
            assert batch.write_blocks[t] == batch.block_tables[sequence, block] != NO_BLOCK
            assert batch.write_offsets[t] == offset
        assert bool(batch.sampled[sequence]) == bool(plan.samples[row])
        if batch.sampled[sequence]:
            assert batch.sample_tokens[sequence] == end - 1
    # No two tokens share a place, and padding names none.
    places = set(zip(batch.write_blocks[:total], batch.write_offsets[:total], strict=True))
    assert len(places) == total
    assert (batch.write_blocks[total:] == LIMITS.blocks).all()
    assert (batch.sequences[total:] == RUNG.sequences).all()
    unused = int(batch.num_sequences)
    assert (batch.context_lengths[unused:] == 0).all() and not batch.sampled[unused:].any()
    assert (batch.rows[unused:] == NO_ROW).all()
    assert (batch.block_tables[unused:] == NO_BLOCK).all()
