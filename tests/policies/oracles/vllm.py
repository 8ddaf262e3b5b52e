"""vLLM V1's scheduler in plain Python, without prefix caching.

Written from the numbered steps of its description (running pass, then waiting pass) and the
surprises seen in decisions recorded from release 0.32.
"""

from dataclasses import dataclass

from tests.policies.oracles.common import Scheduler, Sequence


@dataclass
class Vllm(Scheduler):
    """Knobs by the system's own names."""

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0

    def schedule(self) -> dict:
        left = self.max_num_batched_tokens
        alone = len(self.running) + len(self.queue) == 1
        preempted: list[Sequence] = []

        index = 0
        while index < len(self.running) and left > 0:
            sequence = self.running[index]
            tokens = self._capped(sequence.tokens - sequence.computed, alone)
            tokens = min(tokens, left)
            lacking = self.blocks_of(sequence.computed + tokens) - sequence.blocks
            while lacking > self.free:
                victim = self._victim()
                # Whoever had its turn before the requester may go as well: undo that turn.
                if self.running.index(victim) < index:
                    index -= 1
                    undone = next(pair for pair in self.scheduled if pair[0] is victim)
                    self.scheduled.remove(undone)
                    left += undone[1]
                self.running.remove(victim)
                self.drop(victim)
                victim.computed = 0
                self._requeue(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if preempted and preempted[-1] is sequence:
                break
            self.take(sequence, max(lacking, 0))
            self.run(sequence, tokens)
            left -= tokens
            index += 1

        new: list[Sequence] = []
        resumed: list[Sequence] = []
        if preempted:
            limited_by = "preempting"
        else:
            limited_by = self._admit(left, alone, new, resumed)
        return self.decided(new=new, resumed=resumed, preempted=preempted, limited_by=limited_by)

    def _victim(self) -> Sequence:
        if self.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=lambda sequence: (sequence.priority, sequence.id))

    def _requeue(self, victim: Sequence) -> None:
        self.queue.insert(0, victim)
        if self.policy == "priority":
            self.queue.sort(key=lambda sequence: sequence.id)

    def _head(self) -> Sequence:
        if self.policy == "fcfs":
            return self.queue[0]
        return min(self.queue, key=lambda sequence: (sequence.priority, sequence.id))

    def _capped(self, tokens: int, alone: bool) -> int:
        threshold = self.long_prefill_token_threshold
        return threshold if 0 < threshold < tokens and not alone else tokens

    def _admit(self, left: int, alone: bool, new: list[Sequence], resumed: list[Sequence]) -> str:
        while self.queue:
            if len(self.running) == self.max_num_seqs:
                return "seats"
            if left == 0:
                return "budget"
            head = self._head()
            tokens = self._capped(head.tokens, alone)
            if tokens > left:
                if not self.enable_chunked_prefill:
                    return "budget"
                tokens = left
            must_fit = self.blocks_of(
                head.tokens if self.scheduler_reserve_full_isl else tokens
            )
            if must_fit > self.free:
                return "blocks"
            # The null block counts here although nobody ever gets it.
            kept = int(self.watermark * (self.num_blocks + 1)) if self.running else 0
            if must_fit + kept > self.free:
                return "watermark"
            self.queue.remove(head)
            self.running.append(head)
            (resumed if head.ran_before else new).append(head)
            head.ran_before = True
            self.take(head, self.blocks_of(tokens))
            self.run(head, tokens)
            left -= tokens
        return "queue_empty"


@dataclass
class Vllm011(Vllm):
    """Release 0.11: the first chunk is all that must fit, and a whole prompt may be passed by."""

    scheduler_reserve_full_isl: bool = False

    def _capped(self, tokens: int, alone: bool) -> int:
        threshold = self.long_prefill_token_threshold
        return min(tokens, threshold) if threshold else tokens

    def _admit(self, left: int, alone: bool, new: list[Sequence], resumed: list[Sequence]) -> str:
        passed: list[Sequence] = []
        why = None
        while self.queue and why is None:
            head = self._head()
            tokens = self._capped(head.tokens, alone)
            if len(self.running) == self.max_num_seqs:
                why = "seats"
            elif left == 0:
                why = "budget"
            elif tokens > left and not self.enable_chunked_prefill:
                self.queue.remove(head)
                passed.append(head)
            elif self.blocks_of(min(tokens, left)) > self.free:
                why = "blocks"
            else:
                self.queue.remove(head)
                self.running.append(head)
                (resumed if head.ran_before else new).append(head)
                head.ran_before = True
                self.take(head, self.blocks_of(min(tokens, left)))
                self.run(head, min(tokens, left))
                left -= min(tokens, left)
        if why is None:
            why = "budget" if passed else "queue_empty"
        # They wait where they waited.
        self.queue = passed + self.queue
        if self.policy == "priority":
            self.queue.sort(key=lambda sequence: sequence.id)
        return why
