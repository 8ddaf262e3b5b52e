"""Admission in the SGLang oracle: the budgets of a prefill batch, and who gets into it."""

from dataclasses import dataclass, field

from tests.policies.oracles.radix import RadixTree
from tests.policies.oracles.sglang_memory import Member, Memory

UNIT = 1 << 30  # the ratio is counted in parts of this
CLIP = 4096  # most output tokens that an estimate counts
IN_BATCH = 32  # tokens shared with another waiting request from which one of the two steps back
LPM_LONGEST_QUEUE = 128


@dataclass
class Admission(Memory):
    """Knobs by the system's own names, the running batch, and the tests that a request passes."""

    max_running_requests: int = 256
    chunked_prefill_size: int = 4096
    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    ignore_eos: bool = False
    enable_priority_scheduling: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_low_priority_values_first: bool = False
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    keep_finished: bool = False
    check_memory: bool = True
    batch: list[Member] = field(default_factory=list)  # the running batch, finished ones included
    last: list[Member] = field(default_factory=list)  # members of the last step
    last_prefilled: bool = False
    chunked: Member | None = None
    full: bool = False
    kind: str = "idle"
    prefills: int = 0  # members of this step that prefill; they come first
    iteration: int = -1
    entries: int = 0
    victims: list[Member] = field(default_factory=list)
    seen: list[Member] = field(default_factory=list)  # ends seen by the last `finish`
    unseen: list[tuple] = field(default_factory=list)  # launched, not yet processed
    limited_by: str = "queue_empty"

    def _estimate(self, member: Member) -> int:
        return min(member.max_tokens - member.outputs, CLIP)

    def _crossing(self, members: list[Member]) -> int:
        """Pages that the next token of each needs."""
        return sum(1 for one in members if not one.over and one.computed % self.block_size == 0)

    # What is left of the memory is whole tokens minus an estimate with a fraction. The ratio is
    # rounded to parts, so a product within their error of a whole number counts as that number.

    def _at_least(self, tokens: int) -> bool:
        """Whether the estimate of what runs, times the ratio, is at least that many tokens."""
        return (self.estimated * (self.ratio + 2)) // UNIT >= tokens

    def _rounded_up(self) -> int:
        return -((-self.estimated * max(self.ratio - 2, 0)) // UNIT)

    def _charge(self, extend: int, output: int) -> None:
        extend = self.whole_pages(extend)
        self.charged += extend + output
        self.charged_now += extend
        self.left_input -= extend
        self.left_chunk -= extend

    def _seats_out(self, run: list[Member]) -> bool:
        return len(run) >= self.max_running_requests - len(self.batch)

    def _answer(self, member: Member, run: list[Member]) -> str:
        if self._seats_out(run):
            return "seats"
        if self._lacks_memory(member, run):
            return "no_token"
        return self._lacks_budget(member, run)

    def _known_ends(self) -> bool:
        return self.ignore_eos and not self.tree

    def _lacks_memory(self, member: Member, run: list[Member]) -> bool:
        if self._known_ends():
            lacks = self._ends_collide(member, run)
        else:
            total = member.extend + self._estimate(member)
            locked = self.tree.unlocked_above(member.node) if self.tree else 0
            lacks = self._at_least(self.available - locked - self.charged - total)
        # Alone it runs whatever the estimate says, or it would wait for ever.
        return lacks and not (self.check_memory and not self.batch and not run)

    def _lacks_budget(self, member: Member, run: list[Member]) -> str:
        pages = self.whole_pages(member.extend)
        if not self._known_ends() and pages >= self.left_input and run:
            return "other"
        if not self._whole(member) and self._chunk() <= 0:
            return "other"
        return "takes"

    def _whole(self, member: Member) -> bool:
        # A chunk that is no whole number of pages need not be cut for the page's sake.
        least = member.extend if self._known_ends() else self.whole_pages(member.extend)
        return least <= self.left_chunk

    def _chunk(self) -> int:
        if self._known_ends():
            return self.left_chunk
        return self.left_chunk // self.block_size * self.block_size

    def _add(self, member: Member, run: list[Member]) -> None:
        self.lock(member)
        run.append(member)
        if self._whole(member):
            self._charge(member.extend, min(member.max_tokens, CLIP))
        else:
            assert self.chunked is None
            self.chunked = member
            member.target = member.prefix + self._chunk()
            self._charge(member.extend, 0)

    def _state(self) -> str:
        memory = self.available - self.charged
        if self._at_least(memory) or self.available - self.charged_now <= 0:
            return "no_token"
        return "other" if self.left_input <= 0 or self.left_chunk <= 0 else "continue"

    def _ends_collide(self, member: Member, run: list[Member]) -> bool:
        """Every end is known: follow the running set from one end to the next."""
        pages = self.whole_pages(member.extend)
        free = self.available - self.charged_now
        if pages > free or self._rounded_up() > self.available - self.charged - pages:
            return True

        def state(one: Member) -> tuple[int, int]:
            return one.max_tokens - one.outputs, one.tokens

        if self.states is None:
            everyone = [state(one) for one in [member, *self.batch, *run] if not one.over]
            self.states = sorted((one for one in everyone if one[0] > 0), key=lambda one: one[0])
        else:
            left = state(member)[0]
            # With the most left it lands before the last one.
            end = max(len(self.states) - 1, 0)
            place = next((at for at, one in enumerate(self.states) if left <= one[0]), end)
            self.states.insert(place, state(member))
        freed = 0
        for index, (left, held) in enumerate(self.states):
            still = len(self.states) - index
            if free - pages + freed - left * still <= still:
                return True
            freed += held
        return False

    def _make_room(self, member: Member, run: list[Member]) -> bool:
        """Retract the least urgent, youngest first, until it fits; nobody if it never does."""
        sign = -1 if self.schedule_low_priority_values_first else 1
        if self._lacks_budget(member, run) == "other":
            return False
        gap = self.priority_scheduling_preemption_threshold
        order = sorted(
            (
                one for one in self.batch
                if not one.over and sign * (member.priority - one.priority) > gap
            ),
            key=lambda one: (sign * one.priority, -one.place),
        )
        batch, estimated = list(self.batch), self.estimated
        lent, enough = [], False
        for victim in order:
            self.batch.remove(victim)
            self.lend(victim)
            lent.append(victim)
            self.estimated -= self._estimate(victim)
            enough = self._answer(member, run) == "takes"
            if enough:
                break
        for victim in lent:
            self.take_back(victim)
        if enough:
            for victim in lent:
                self._retract(victim)
        else:
            self.batch, self.estimated = batch, estimated
        return enough

    def _retract(self, victim: Member) -> None:
        self.release(victim, insert=False)
        victim.retracted = True
        victim.launched = victim.outputs
        self.running.remove(victim)
        self.victims.append(victim)
        self._enqueue(victim)

    # ---------------------------------------------------------------- order

    def _sort(self) -> None:
        policy = self.schedule_policy
        if policy == "random":
            self.queue.sort(key=lambda one: (self._shuffled(one.id), one.place))
        elif policy == "lof":
            self.queue.sort(key=lambda one: -one.max_tokens)
        elif policy == "lpm" and self.tree and len(self.queue) <= LPM_LONGEST_QUEUE:
            back = self._sharing()
            self.queue.sort(key=lambda one: (one in back, 0 if one in back else -one.prefix))
        elif policy == "dfs-weight" and self.tree:
            self._sharing()
            self.queue = self._depth_first(self.tree.root)
        if self.enable_priority_scheduling:
            sign = 1 if self.schedule_low_priority_values_first else -1
            self.queue.sort(key=lambda one: sign * one.priority)

    def _shuffled(self, id: int) -> int:
        """A number that looks random, by the iteration and the request."""
        number = (id * 0x9E3779B1 + self.iteration * 0x85EBCA77) % 2**32
        for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 1)):
            number = (number ^ number >> shift) * factor % 2**32
        return number >> 1

    def _sharing(self) -> list[Member]:
        """Requests that wait for another one to fill the cache for them; matches all prefixes."""
        back = []
        waiting = RadixTree(1)
        for member in self.queue:
            # The whole text here; the last token is left out only when it is admitted.
            text = self.text(member, member.tokens)
            member.node, member.prefix = self.tree.match(text)
            if member.prefix <= IN_BATCH:
                if waiting.match(text)[1] >= IN_BATCH:
                    back.append(member)
                else:
                    waiting.insert(text)
        return back

    def _depth_first(self, node) -> list[Member]:
        """Subtrees with the most waiting requests first, a node's own requests after them."""
        below = [self._depth_first(child) for child in node.children.values()]
        below.sort(key=lambda members: -len(members))
        own = [member for member in self.queue if member.node is node]
        return [member for members in below for member in members] + own
