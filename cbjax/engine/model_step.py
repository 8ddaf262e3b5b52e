"""What computes plans on a model: it owns the KV cache and the sampling settings of the rows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np
from jax.typing import ArrayLike

from cbjax.core.inbox import Inbox, empty_inbox
from cbjax.core.ladder import Ladder, Rung
from cbjax.core.limits import Limits
from cbjax.core.plan import Plan
from cbjax.core.policy import Policy
from cbjax.core.rows import NO_REQUEST
from cbjax.core.state import State
from cbjax.engine import copying
from cbjax.engine.megastep import Dispatch, Shape, megastep
from cbjax.engine.sampling import Sampling, SamplingParams, stack_sampling
from cbjax.engine.step_programs import forward_step, sample_step
from cbjax.engine.swap import HostPool
from cbjax.models import LoadedModel, ModelConfig
from pallas_kernels.kv_write.api import new_kv_cache
from pallas_kernels.quantised import Cache

_MAX_STOP_IDS = 16

Progress = Callable[[str, int, int], None]  # (label, done, total)


@dataclass
class ModelExecutor:
    """Runs plans on a model: one iteration at a time, or several in a megastep."""

    model: LoadedModel
    rows: int  # P
    keys: Cache
    values: Cache
    attention: str | None
    params: SamplingParams
    samplings: dict[int, Sampling]  # by request
    host: HostPool | None  # None where the system swaps nothing
    block_size: int
    most: int = 1  # iterations of a megastep; 1 = there is none
    _watched: set[int] = field(default_factory=set)  # rows whose text may end them (stop strings)

    def place(self, request_id: int, row: int) -> None:
        """Write the request's sampling settings into its row."""
        settings = self.samplings.pop(request_id)
        self._watched.discard(row)
        if settings.stop:
            self._watched.add(row)
        one = stack_sampling(
            [settings], self.model.tokenizer.eos_ids,
            max_stop_ids=_MAX_STOP_IDS,
        )
        for column, value in zip(jax.tree.leaves(self.params), jax.tree.leaves(one), strict=True):
            column[row] = value[0]

    def move(self, state: State, host_plan: Plan) -> None:
        """Take KV to the host or back, and from sample to sample."""
        if self.host is not None:
            self.keys, self.values = self.host.move(self.keys, self.values, state, host_plan)
        self.keys, self.values = copying.copy_taken(
            self.keys, self.values, state, host_plan, self.block_size
        )

    def execute(self, state: State, plan: Plan, host_plan: Plan, rung: Rung):
        """Compute the plan's tokens; returns them once they are on the host."""
        greedy = self._greedy(host_plan.samples)
        return jax.device_get(self._run(state, plan, rung, greedy))

    def at_once(self, host_plan: Plan, rung: Rung) -> int:
        """Most iterations that a dispatch beginning with this plan may take.

        One where the host has to look at every token, and on rungs for prefill, which a batch
        leaves after an iteration or two.
        """
        alive = np.flatnonzero(host_plan.requests != NO_REQUEST)
        if not _decodes(rung) or self._watched.intersection(alive):
            return 1
        return self.most

    def dispatch(
        self, policy: Policy, state: State, plan: Plan, host_plan: Plan, *, limits: Limits,
        ladder: Ladder, rung: Rung, inbox: Inbox, limit: int, ends_leave: bool,
    ) -> tuple[State, Dispatch]:
        """Compute the plan and what is decided after it, as `megastep` says; waits for the end."""
        greedy = self._greedy(host_plan.requests != NO_REQUEST)
        shape = self._shape(limits, ladder, rung, greedy)
        state, done = self._run_many(shape, policy, state, plan, inbox, limit, ends_leave)
        return state, jax.block_until_ready(done)

    def _greedy(self, rows: ArrayLike) -> bool:
        return not (self.params.temperature[np.asarray(rows)] > 0).any()

    def _shape(self, limits: Limits, ladder: Ladder, rung: Rung, greedy_only: bool) -> Shape:
        return Shape(
            self.model.config, limits, rung, ladder.rungs[: ladder.rungs.index(rung)], self.most,
            self.attention, self.model.tokenizer.vocab_size, greedy_only,
        )

    def _run_many(
        self, shape: Shape, policy: Policy, state: State, plan: Plan, inbox: Inbox, limit: int,
        ends_leave: bool,
    ) -> tuple[State, Dispatch]:
        state, self.keys, self.values, done = megastep(
            policy, self.model.weights, self.keys, self.values, state, plan, self.params, inbox,
            np.int32(limit), np.bool_(ends_leave), shape=shape,
        )
        return state, done

    def _run(self, state: State, plan: Plan, rung: Rung, greedy_only: bool):
        logits, rows, outputs, self.keys, self.values = forward_step(
            self.model.weights, self.keys, self.values, state, plan,
            config=self.model.config, rung=rung, attention=self.attention,
        )
        return sample_step(
            logits, rows, outputs, self.params,
            vocab_size=self.model.tokenizer.vocab_size, greedy_only=greedy_only,
        )

    def warm_up(
        self, policy: Policy, state: State, idle: Plan, limits: Limits, ladder: Ladder,
        progress: Progress | None = None,
    ) -> State:
        """Compile and run every program once, on a plan that schedules nothing."""
        runs = [(rung, True) for rung in ladder.rungs]
        by_sequences = {rung.sequences: rung for rung in ladder.rungs}
        runs += [(rung, False) for rung in by_sequences.values()]
        decodes = [rung for rung in ladder.rungs if _decodes(rung)] if self.most > 1 else []
        many = [(rung, greedy_only) for rung in decodes for greedy_only in (True, False)]
        total = len(runs) + len(many)
        for done, (rung, greedy_only) in enumerate(runs):
            if progress:
                progress(f"compiling {rung}", done, total)
            jax.block_until_ready(self._run(state, idle, rung, greedy_only))
        inbox = empty_inbox(limits)
        for done, (rung, greedy_only) in enumerate(many, len(runs)):
            if progress:
                progress(f"compiling {rung} x {self.most}", done, total)
            shape = self._shape(limits, ladder, rung, greedy_only)
            state, ran = self._run_many(shape, policy, state, idle, inbox, 1, False)
            jax.block_until_ready(ran)
        if self.host is not None:
            self.keys, self.values = self.host.warm_up(
                self.keys, self.values, state.blocks.tables.shape[1]
            )
        if idle.taken is not None:
            self.keys, self.values = copying.warm_up(
                self.keys, self.values, state.blocks.tables.shape[1]
            )
        if progress:
            progress("compiled", total, total)
        return state


def model_executor(
    model: LoadedModel, *, rows: int, num_blocks: int, block_size: int, dtype: str,
    attention: str | None, swaps: bool = False, megastep: int = 1,
) -> ModelExecutor:
    """An executor with an empty KV cache of `num_blocks` blocks of `block_size` positions."""
    config = model.config
    keys, values = new_kv_cache(
        config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim, dtype
    )
    params = stack_sampling(
        [None] * rows, model.tokenizer.eos_ids, max_stop_ids=_MAX_STOP_IDS
    )
    return ModelExecutor(
        model, rows, keys, values, attention, params, {}, HostPool() if swaps else None, block_size,
        megastep,
    )


def _decodes(rung: Rung) -> bool:
    return rung.tokens == rung.sequences


def bytes_per_block(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Memory of one KV block in all layers, keys and values."""
    cache = jax.eval_shape(lambda: new_kv_cache(
        config.num_layers, 1, config.num_kv_heads, block_size, config.head_dim, dtype
    ))
    return sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(cache))
