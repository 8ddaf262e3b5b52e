"""The model step: one compiled program per rung, and one per sampling variant.

Weights and KV cache are arguments, never closed over; the cache is donated and updated in place.
Forward and sampling are separate programs, so that their number is a sum, not a product.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from cbjax.core.batch import pack
from cbjax.core.ladder import Ladder, Rung
from cbjax.core.plan import Plan
from cbjax.core.state import State
from cbjax.engine.sampling import (
    Sampling,
    SamplingParams,
    ends_here,
    sample,
    stack_sampling,
)
from cbjax.engine.swap import HostPool
from cbjax.models import LoadedModel, ModelConfig, Weights, forward
from pallas_kernels.kv_write.api import new_kv_cache
from pallas_kernels.quantised import Cache

_MAX_STOP_IDS = 16

Progress = Callable[[str, int, int], None]  # (label, done, total)


@partial(
    jax.jit, static_argnames=("config", "rung", "attention"), donate_argnames=("keys", "values")
)
def forward_step(
    weights: Weights, keys: Cache, values: Cache, state: State, plan: Plan, *,
    config: ModelConfig, rung: Rung, attention: str | None,
):
    """Pack the plan into a batch of one rung and run the model on it.

    Args:
        weights: the model's.
        keys, values: the KV cache; donated.
        state, plan: as `schedule` returned them.
        config, rung, attention: static.

    Returns:
        Logits `[S, V]`, the rows they belong to (P where none is sampled), the output tokens of
        each row so far, and the cache.
    """
    batch = pack(state, plan, rung)
    logits, keys, values = forward(weights, config, keys, values, batch, attention=attention)
    rows = jnp.where(batch.sampled, batch.rows, state.rows.request.shape[0])
    return logits, rows, state.rows.known - state.rows.prompt, keys, values


@partial(jax.jit, static_argnames=("vocab_size", "greedy_only"))
def sample_step(
    logits: Array, rows: Int[Array, "S"], outputs: Int[Array, "P"], params: SamplingParams, *,
    vocab_size: int, greedy_only: bool,
) -> tuple[Int[Array, "P"], Bool[Array, "P"]]:
    """Draw a token for each sampled row.

    Args:
        logits: `[S, V]`.
        rows: row of each sequence; P where none is sampled.
        outputs: output tokens of each row so far: the index of the token in its request.
        params: sampling settings of all P rows.
        vocab_size, greedy_only: static.

    Returns:
        Token of each row, and whether it ends its request.
    """
    count = outputs.shape[0]
    row = jnp.minimum(rows, count - 1)
    mine = params.at(row)
    index = outputs[row]
    drawn = sample(logits, mine, index, vocab_size, greedy_only=greedy_only)
    tokens = jnp.zeros(count, jnp.int32).at[rows].set(drawn, mode="drop")
    stopped = jnp.zeros(count, bool).at[rows].set(ends_here(mine, drawn), mode="drop")
    return tokens, stopped


@dataclass
class ModelExecutor:
    """Runs plans on a model: owns the KV cache and the sampling settings of the rows."""

    model: LoadedModel
    rows: int  # P
    keys: Cache
    values: Cache
    attention: str | None
    params: SamplingParams
    samplings: dict[int, Sampling]  # by request
    host: HostPool | None  # None where the system swaps nothing

    def place(self, request_id: int, row: int) -> None:
        """Write the request's sampling settings into its row."""
        one = stack_sampling(
            [self.samplings.pop(request_id)], self.model.tokenizer.eos_ids,
            max_stop_ids=_MAX_STOP_IDS,
        )
        for column, value in zip(jax.tree.leaves(self.params), jax.tree.leaves(one), strict=True):
            column[row] = value[0]

    def move(self, state: State, host_plan: Plan) -> None:
        """Take KV to the host or back."""
        assert self.host is not None
        self.keys, self.values = self.host.move(self.keys, self.values, state, host_plan)

    def execute(self, state: State, plan: Plan, host_plan: Plan, rung: Rung):
        """Compute the plan's tokens; returns them once they are on the host."""
        greedy = not (self.params.temperature[host_plan.samples] > 0).any()
        return jax.device_get(self._run(state, plan, rung, greedy))

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
        self, state: State, idle: Plan, ladder: Ladder, progress: Progress | None = None
    ) -> None:
        """Compile and run every program once, on a plan that schedules nothing."""
        runs = [(rung, True) for rung in ladder.rungs]
        by_sequences = {rung.sequences: rung for rung in ladder.rungs}
        runs += [(rung, False) for rung in by_sequences.values()]
        for done, (rung, greedy_only) in enumerate(runs):
            if progress:
                progress(f"compiling {rung}", done, len(runs))
            jax.block_until_ready(self._run(state, idle, rung, greedy_only))
        if self.host is not None:
            self.keys, self.values = self.host.warm_up(
                self.keys, self.values, state.blocks.tables.shape[1]
            )
        if progress:
            progress("compiled", len(runs), len(runs))


def model_executor(
    model: LoadedModel, *, rows: int, num_blocks: int, block_size: int, dtype: str,
    attention: str | None, swaps: bool = False,
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
        model, rows, keys, values, attention, params, {}, HostPool() if swaps else None
    )


def bytes_per_block(config: ModelConfig, block_size: int, dtype: str) -> int:
    """Memory of one KV block in all layers, keys and values."""
    cache = jax.eval_shape(lambda: new_kv_cache(
        config.num_layers, 1, config.num_kv_heads, block_size, config.head_dim, dtype
    ))
    return sum(part.size * part.dtype.itemsize for part in jax.tree.leaves(cache))
