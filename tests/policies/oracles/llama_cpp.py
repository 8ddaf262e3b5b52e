"""llama.cpp's server in plain Python: slots in a list, tasks in a line, remembered tokens in lists.

Written from the numbered steps of its description, and from our own rule for an overflow. What a
slot remembers and reuses are whole blocks; with blocks of one token that is the original's rule.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from cbjax.parity.workload import Request, Workload, output_token
from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Slot:
    """One slot; `memory` are the tokens of whole blocks that it keeps while it is idle."""

    sequence: Sequence | None = None
    last_used: int = -1
    memory: list[int] = field(default_factory=list)


@dataclass
class LlamaCpp(Scheduler):
    """Knobs by the system's own names, and the slots."""

    n_parallel: int = 4
    n_batch: int = 2048
    ctx_size: int = 0
    kv_unified: bool = True
    cont_batching: bool = True
    cache_prompt: bool = False
    slot_prompt_similarity: float = 0.1
    overflow: str = "defer"
    slots: list[Slot] = field(default_factory=list)
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)
    now: int = 0
    failed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots = [Slot() for _ in range(self.n_parallel)]
        blocks = self.ctx_size // self.block_size if self.ctx_size else self.num_blocks
        self.beyond = self.num_blocks - blocks  # blocks of the pool that are no cells
        self.own = min(blocks // self.n_parallel * self.block_size, self.max_length)

    def arrive(self, id, *numbers, token_ids=()) -> str | None:
        self.texts[id] = token_ids
        return super().arrive(id, *numbers)

    def _text(self, one: Sequence) -> list[int]:
        outputs = [output_token(one.id, index) for index in range(one.outputs)]
        return [*self.texts[one.id], *outputs]

    @property
    def cells(self) -> int:
        """Blocks that nobody uses or remembers."""
        remembered = sum(
            len(slot.memory) // self.block_size for slot in self.slots if slot.sequence is None
        )
        return self.free - self.beyond - remembered

    def schedule(self) -> dict:
        self.found = {}
        # Slots of requests that ended since: in the order in which the slots are looked at.
        for slot in self.slots:
            if slot.sequence is not None and slot.sequence not in self.running:
                self._release(slot)
        refused = []
        if self.failed:
            for slot in self.slots:
                if slot.sequence is not None:
                    refused.append((slot.sequence.id, "kv_overflow"))
                    self._end(slot)
        self.failed = False
        new, resumed, limited_by = self._fill_slots()
        batch = self._batch()
        needs = [(slot, tokens, self._need(slot, tokens)) for slot, tokens in batch]
        for slot in self.slots:
            if sum(need for *_, need in needs) > self.cells and slot.sequence is None:
                slot.memory = []
        preempted: list[Sequence] = []
        if sum(need for *_, need in needs) > self.cells:
            if self.overflow == "abort_all":
                self.failed = True
                needs = list(self._until_full(batch))
            else:
                limited_by = "preempting"
                preempted = self._make_room(needs)
        for slot, tokens, need in needs:
            one = slot.sequence
            if one is None:
                continue
            self.take(one, need)
            one.computed += tokens
            whole = one.computed // self.block_size * self.block_size
            slot.memory = self._text(one)[:whole] if self.cache_prompt else []
        granted = {slot.sequence.id: tokens for slot, tokens, _ in needs if slot.sequence}
        self.scheduled = [
            (one, granted[one.id]) for one in self.running if granted.get(one.id)
        ]
        decided = self.decided(
            new=new, resumed=resumed, preempted=preempted, limited_by=limited_by,
        )
        admitted = [*new, *resumed]
        cached = [(one.id, self.found[one.id]) for one in self.running if one in admitted]
        return decided | dict(
            refused=tuple(refused), cached=tuple(cached) if self.cache_prompt else ()
        )

    def _make_room(self, needs) -> list[Sequence]:
        """The highest slot gives its cells back until the others have enough."""
        gone = []
        while sum(need for slot, _, need in needs if slot.sequence) > self.cells:
            slot = [slot for slot in self.slots if slot.sequence][-1]
            gone.append(slot.sequence)
            slot.sequence, slot.memory = None, []
            self.drop(gone[-1])
            self.running.remove(gone[-1])
            gone[-1].computed = 0
            self.queue.insert(0, gone[-1])
            slot.last_used = 10**9
        for slot in self.slots:
            if slot.last_used == 10**9:
                self.now += 1
                slot.last_used = self.now
        return gone

    def _until_full(self, batch):
        """Token by token, until one finds no cell; the rest of the batch is lost."""
        left, stuck = self.cells, False
        for slot, tokens in batch:
            blocks, done = slot.sequence.blocks, 0
            while done < tokens and not stuck:
                if self.blocks_of(slot.sequence.computed + done + 1) > blocks:
                    stuck = left == 0
                    blocks, left = blocks + (not stuck), left - (not stuck)
                done += not stuck
            yield slot, done, blocks - slot.sequence.blocks

    def _end(self, slot: Slot) -> None:
        self.drop(slot.sequence)
        self.running.remove(slot.sequence)
        slot.memory = []
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        self.now += 1
        slot.last_used, slot.sequence = self.now, None

    def _fill_slots(self) -> tuple[list[Sequence], list[Sequence], str]:
        new: list[Sequence] = []
        resumed: list[Sequence] = []
        # What all that run may still take for tokens that are already known. Idle slots are cleared
        # for it if need be.
        room = self.free - self.beyond - sum(
            max(self.blocks_of(one.tokens) - one.blocks, 0) for one in self.running
        )
        while self.queue:
            if all(slot.sequence for slot in self.slots):
                return new, resumed, "seats"
            head = self.queue[0]
            if self.kv_unified and self.overflow == "defer":
                if self.blocks_of(head.tokens) > room:
                    return new, resumed, "blocks"
                room -= self.blocks_of(head.tokens)
            self.queue.pop(0)
            slot = self._choose(head)
            kept = min(self._alike(slot, head), head.tokens - 1) // self.block_size
            self.take(head, kept)
            head.computed = self.found[head.id] = kept * self.block_size
            slot.sequence, slot.memory = head, []
            self.running.append(head)
            (resumed if head.ran_before else new).append(head)
            head.ran_before = True
        return new, resumed, "queue_empty"

    def _alike(self, slot: Slot, one: Sequence) -> int:
        """Leading tokens that a slot has in common with a request."""
        count = 0
        for mine, theirs in zip(slot.memory, self._text(one), strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def _choose(self, one: Sequence) -> Slot:
        best, share = None, np.float32(0)
        for slot in self.slots:
            if slot.sequence is None and self.slot_prompt_similarity:
                alike = np.float32(self._alike(slot, one)) / np.float32(one.tokens)
                if alike > share and alike > np.float32(self.slot_prompt_similarity):
                    best, share = slot, alike
        if best:
            return best
        for slot in self.slots:
            # Among equals the last one is found.
            if slot.sequence is None and (not best or slot.last_used <= best.last_used):
                best = slot
        return best

    def _batch(self) -> list[tuple[Slot, int]]:
        """Tokens of each busy slot, in the order in which they stand in the batch."""
        generating, prompts = [], []
        for slot in self.slots:
            one = slot.sequence
            if one is not None:
                decodes = one.outputs and one.computed == one.tokens - 1
                (generating if decodes else prompts).append(slot)
        batch = [(slot, 1) for slot in generating]
        for slot in prompts:
            joins = self.cont_batching or not generating
            room = self.n_batch - sum(tokens for _, tokens in batch) if joins else 0
            batch.append((slot, min(slot.sequence.tokens - slot.sequence.computed, room)))
        return batch

    def _need(self, slot: Slot, tokens: int) -> int:
        one = slot.sequence
        if not self.kv_unified:
            return self.blocks_of(self.own) - one.blocks
        return max(self.blocks_of(one.computed + tokens) - one.blocks, 0) if tokens else 0


@st.composite
def cases(draw, shares_cells=(True, True, True, False)):
    """A llama.cpp server with a workload; without shared cells each slot holds a full context."""
    # Here, because what draws cases for all systems knows their oracles.
    from tests.policies.beside import LIMITS, Case, systems, workloads

    block_size, num_blocks, max_length = draw(systems())
    overflow = draw(st.sampled_from(["defer", "defer", "abort_all"]))
    # Rows of requests that an overflow ends are free one iteration later: with more slots the
    # window would be too small to fill them all at once.
    slots = draw(st.sampled_from([1, 2, 3, 4] if overflow == "abort_all" else [2, 3, 4, 5, 6]))
    unified = draw(st.sampled_from(shares_cells))
    knobs = dict(
        n_parallel=slots, n_batch=draw(st.one_of(st.integers(1, 8), st.integers(2, LIMITS.tokens))),
        kv_unified=unified, cont_batching=draw(st.sampled_from([True, True, True, False])),
        overflow=overflow,
    )
    if unified:
        pool = num_blocks * block_size
        least = -(-max_length // block_size) * block_size
        if least < pool:
            knobs["ctx_size"] = draw(st.one_of(st.just(0), st.integers(least, pool)))
    else:
        # Short contexts, so that the pool has one for every slot.
        max_length = draw(st.sampled_from([12, 16]))
        each = -(-max_length // block_size)
        num_blocks = min(slots * each + draw(st.integers(0, 3)), 64, 96 // block_size)
        knobs["n_parallel"] = slots = max(min(slots, num_blocks // each), 1)
    workload = draw(workloads(block_size, max_length))
    return Case("llama_cpp", knobs, block_size, num_blocks, max_length, workload)


@st.composite
def cached_cases(draw, base):
    """The same with prompts that begin alike, and slots that remember."""
    case = draw(base)
    longest = case.max_length + 5
    openings = [tuple(range(100 * one, 100 * one + longest)) for one in range(2)]
    apart = draw(st.sampled_from([1, 2, 5]))  # time for slots to be idle
    requests: list[Request] = []
    for request in case.workload.requests:
        opening = draw(st.sampled_from(openings))
        shared = draw(st.one_of(st.just(request.prompt), st.integers(0, request.prompt)))
        tail = tuple(range(1000 + 100 * request.id, 1000 + 100 * request.id + longest))
        ids = (opening[:shared] + tail)[: request.prompt]
        requests.append(replace(request, arrival=apart * request.arrival, token_ids=ids))
    aborts = tuple((apart * when, id) for when, id in case.workload.aborts)
    workload = Workload(tuple(requests), aborts)
    knobs = case.knobs | dict(cache_prompt=True)
    if case.name == "llama_cpp":
        knobs["slot_prompt_similarity"] = draw(st.sampled_from([0.1, 0.1, 0.0, 0.5, 1.0]))
    return replace(case, knobs=knobs, workload=workload)


@st.composite
def ollama_cases(draw):
    """The same server with Ollama's numbers."""
    from tests.policies.beside import LIMITS

    case = draw(cases(shares_cells=(False,)))
    knobs = dict(
        num_parallel=case.knobs["n_parallel"], num_batch=draw(st.integers(1, LIMITS.tokens))
    )
    return replace(case, name="ollama", knobs=knobs)


def ollama(num_parallel: int = 1, num_batch: int = 512, **numbers) -> LlamaCpp:
    """The server that Ollama starts."""
    return LlamaCpp(n_parallel=num_parallel, n_batch=num_batch, kv_unified=False, **numbers)
