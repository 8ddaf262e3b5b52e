"""TGI's router in plain Python: its outer loop, its queue, and the model server's chunk rule.

Written from the numbered steps of its description. One pass of the loop may run two forwards, a
prefill and then a decode; here each is an iteration.
"""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Tgi(Scheduler):
    """Knobs by the system's own names, and the state of its loop."""

    version: str = "v3"
    max_batch_prefill_tokens: int = 4096
    max_batch_total_tokens: int = 0
    max_batch_size: int = 128
    max_concurrent_requests: int = 128
    max_input_tokens: int = 0
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    prefill_chunking: bool = True
    default_generation_length: int = 0
    waiting_tokens: int = 1
    just_interrupted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chunks = self.version == "v3" and self.prefill_chunking
        self.whole_prompts = not self.chunks

    def arrive(self, id: int, prompt: int, max_tokens: int, priority: int = 0) -> str | None:
        word = super().arrive(id, prompt, max_tokens, priority)
        if word:
            return word
        alive = [one for one in self.running if not self._spent(one)]
        if prompt > (self.max_input_tokens or self.max_length - 1):
            word = "input_too_long"
        elif len(alive) + len(self.queue) > self.max_concurrent_requests:
            word = "overloaded"
        if word:
            self.queue.pop()
        return word

    def _spent(self, sequence: Sequence) -> bool:
        return 0 < self.default_generation_length <= sequence.outputs

    def schedule(self) -> dict:
        refused = [(one.id, "cut") for one in self.running if self._spent(one)]
        for one in [one for one in self.running if self._spent(one)]:
            self.running.remove(one)
            self.drop(one)
        decided = self._mixed() if self.chunks else self._alternating()
        return decided | dict(refused=tuple(refused))

    # Without chunks.

    def _alternating(self) -> dict:
        if not self.running:
            new, limited_by = self._next_batch(0)
            self.waiting_tokens, self.just_interrupted = 1, False
        elif self.just_interrupted:
            new, limited_by = [], "freeze" if self.queue else "queue_empty"
            self.just_interrupted = False
        else:
            least = 0
            if self.waiting_tokens < self.max_waiting_tokens:
                size = np.float32(len(self.running)) * np.float32(self.waiting_served_ratio)
                least = int(np.floor(size))
            new, limited_by = self._next_batch(least)
            self.just_interrupted = bool(new)
        if new:
            self.waiting_tokens = 1
        else:
            for sequence in self.running:
                self.run(sequence, 1)
            self.waiting_tokens += bool(self.running)
        self.running += new
        return self.decided(new=new, limited_by=limited_by)

    def _next_batch(self, least: int) -> tuple[list[Sequence], str]:
        if not self.queue:
            return [], "queue_empty"
        if len(self.queue) < least:
            return [], "wait_timer"
        new: list[Sequence] = []
        prompts = charged = tokens = 0
        pool = self.num_blocks * self.block_size
        total = (self.max_batch_total_tokens or pool) - self.block_size * sum(
            one.blocks for one in self.running
        )
        limited_by = "queue_empty"
        for head in self.queue:
            if len(self.running) + len(new) == self.max_batch_size:
                limited_by = "seats"
                break
            tokens += self.pending(head)
            if self.version == "v2":
                prompts += self._whole(head.prompt)
                charged += self._whole(head.prompt) + self._whole(self._new_tokens(head))
            else:
                prompts += self.pending(head)
            if prompts > self._whole(self.max_batch_prefill_tokens):
                limited_by = "budget"
                break
            if tokens > self.iteration_tokens:
                limited_by = "budget"
                break
            alone = not self.running and not new
            if self.version == "v2" and charged > total and not alone:
                limited_by = "blocks"
                break
            if not self.fits(head):
                limited_by = "blocks"
                break
            self.take(head, self._reservation(head))
            new.append(head)
        if len(new) < least:
            self.put_back(new)
            return [], "wait_timer"
        for head in new:
            self.queue.remove(head)
            self.run(head, head.prompt - head.computed)
        return new, limited_by

    # With chunks.

    def _mixed(self) -> dict:
        budget = self.max_batch_prefill_tokens - (len(self.running) - 1)
        grants: list[tuple[Sequence, int]] = []
        for sequence in reversed(self.running):
            left = sequence.prompt - sequence.computed
            tokens = 1
            if left > 0:
                tokens = max(min(left, budget), 1)
                budget -= tokens
            grants.append((sequence, tokens))
        for sequence, tokens in reversed(grants):
            self.run(sequence, tokens)
        current = sum(tokens for _, tokens in grants)
        budget = self._whole(max(self.max_batch_prefill_tokens - current, 0))
        budget = min(budget, self.iteration_tokens - current)
        new: list[Sequence] = []
        limited_by = "queue_empty"
        while self.queue:
            head = self.queue[0]
            if len(self.running) == self.max_batch_size:
                limited_by = "seats"
            elif budget == 0:
                limited_by = "budget"
            elif not self.fits(head):
                limited_by = "blocks"
            else:
                self.running.append(self.queue.pop(0))
                self.take(head, self._reservation(head))
                tokens = min(head.prompt - head.computed, budget)
                self.run(head, tokens)
                budget -= tokens
                new.append(head)
                continue
            break
        return self.decided(new=new, limited_by=limited_by)

    def _whole(self, tokens: int) -> int:
        return self.blocks_of(tokens) * self.block_size

    def pending(self, sequence: Sequence) -> int:
        """Tokens to compute of one that waits."""
        return sequence.prompt

    def fits(self, sequence: Sequence) -> bool:
        """Whether there are blocks for one that waits, to its end."""
        return self._reservation(sequence) <= self.free

    def put_back(self, sequences: list[Sequence]) -> None:
        """They were given blocks and do not start after all."""
        for sequence in sequences:
            self.drop(sequence)

    def _new_tokens(self, sequence: Sequence) -> int:
        if self.default_generation_length:
            return min(sequence.max_tokens, self.default_generation_length)
        return sequence.max_tokens

    def _reservation(self, sequence: Sequence) -> int:
        return self.blocks_of(sequence.prompt + self._new_tokens(sequence) - 1)


@st.composite
def cases(draw):
    """A TGI system of any version with a workload."""
    # Here, because what draws cases for all systems knows their oracles.
    from tests.policies.beside import LIMITS, Case, systems, workloads

    block_size, num_blocks, max_length = draw(systems())
    version = draw(st.sampled_from(["v2", "v3", "v3"]))
    knobs = dict(
        version=version, max_batch_size=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 6])),
        prefill_chunking=draw(st.booleans()),
        default_generation_length=draw(st.sampled_from([0, 0, 0, 3, 9])),
    )
    if knobs["default_generation_length"]:
        # A whole batch may be cut and replaced in one decision: as many must be in the window.
        knobs["max_batch_size"] = min(knobs["max_batch_size"], LIMITS.rows // 2)
    if version == "v3" and knobs["prefill_chunking"]:
        knobs["max_batch_prefill_tokens"] = draw(st.integers(1, LIMITS.tokens))
    else:
        knobs["max_batch_prefill_tokens"] = draw(st.integers(max_length - 1, LIMITS.tokens))
        knobs["waiting_served_ratio"] = draw(st.sampled_from([0.0, 0.3, 0.7, 1.2]))
        knobs["max_waiting_tokens"] = draw(st.sampled_from([1, 2, 3, 6, 20]))
    pool = num_blocks * block_size
    if version == "v2" and pool >= max_length:
        total = st.one_of(st.just(0), st.integers(max_length, pool))
        knobs["max_batch_total_tokens"] = draw(total)
    # Whoever waits behind the window has not been seen, and cannot be refused yet.
    most = draw(st.sampled_from([LIMITS.rows, 20]))
    if most == LIMITS.rows:
        knobs["max_concurrent_requests"] = draw(st.integers(1, 8))
        knobs["max_input_tokens"] = draw(st.sampled_from([0, 0, 5, 12]))
    workload = draw(workloads(block_size, max_length, most))
    return Case("tgi", knobs, block_size, num_blocks, max_length, workload)
