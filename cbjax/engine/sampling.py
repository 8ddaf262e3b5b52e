"""Choosing the next token: what a user may ask for, and the pure function that draws it.

A token is drawn from its own row and the key ``fold_in(key(seed), index of the token)`` alone, so a
request's tokens are the same whatever it is batched with, wherever it sits and however often it was
preempted. On the CPU every row even runs through the same compiled loop body, whatever the batch
size, so that not a single sum is taken in another order.

Sorting a vocabulary costs 10 ms a row on a CPU, so nothing is sorted. The tokens that survive
top-k and top-p are a prefix of one total order (greater logit first, then lower id); where that
prefix ends is read off the `CANDIDATES` greatest logits when it lies among them, and otherwise
found by bisection over the bits of the logits. Both are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

AnyArray = Array | np.ndarray

NO_STOP = -1
CANDIDATES = 128
LANES = 128

_LOWEST = float(np.finfo(np.float32).min)
_SMALLEST_TEMPERATURE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Sampling:
    """How one request chooses its tokens and when it ends.

    Args:
        temperature: 0 takes the likeliest token (greedy); larger flattens the distribution.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens whose share, after top-k, first reaches this.
        seed: 32-bit seed; a request's tokens follow from it and the logits alone.
        max_tokens: most output tokens; None allows as many as fit.
        min_tokens: neither end-of-sequence nor stop ids before this many output tokens.
        stop: strings that end the text; neither they nor what follows is shown.
        stop_token_ids: ids that end the request, beside the model's end-of-sequence ids.
        ignore_eos: ignore all end-of-sequence ids of the model, but not `stop_token_ids`.

    Raises:
        ValueError: a value is impossible; the text names field, value and remedy.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        _check(np.isfinite(self.temperature) and self.temperature >= 0, "temperature",
               self.temperature, "use 0 for greedy decoding or a finite number above 0")
        _check(self.top_k >= 0, "top_k", self.top_k, "use 0 for no limit or a number from 1")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "use 1 for no limit or a share in (0, 1]")
        _check(0 <= self.seed < 2**32, "seed", self.seed, "use a whole number in [0, 2**32)")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens,
               "use at least 1, or leave it out to allow as many as fit")
        _check(self.min_tokens >= 0, "min_tokens", self.min_tokens, "use 0 or more")
        _check(self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens",
               self.min_tokens, f"use at most max_tokens={self.max_tokens}")
        _check(all(isinstance(text, str) and text for text in self.stop), "stop", self.stop,
               "give strings of at least one character")
        _check(all(token >= 0 for token in self.stop_token_ids), "stop_token_ids",
               self.stop_token_ids, "give token ids from 0")

    def ending_ids(self, eos_ids: Sequence[int]) -> tuple[int, ...]:
        """All ids that end this request: its own and, unless ignored, the model's `eos_ids`."""
        ignored = () if self.ignore_eos else tuple(eos_ids)
        return tuple(sorted({*self.stop_token_ids, *ignored}))


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of several samples that a request with `seed` asks for; the first keeps it.

    Mixed rather than counted up, so that it is not the seed of the next request's first sample.
    """
    return seed if not sample else int(np.random.SeedSequence((seed, sample)).generate_state(1)[0])


def _check(holds: bool | np.bool_, field: str, value: object, remedy: str) -> None:
    if not holds:
        raise ValueError(f"sampling.{field} = {value!r}: {remedy}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingParams:
    """The sampling settings of S rows as arrays; an unused row is greedy and never stops.

    Attributes:
        temperature: `[S]` float32, 0 is greedy.
        top_k: `[S]` int32, 0 is off.
        top_p: `[S]` float32, 1 is off.
        seed: `[S]` uint32.
        min_tokens: `[S]` int32.
        stop_ids: `[S, E]` int32, padded with `NO_STOP`.
    """

    temperature: Float[AnyArray, "S"]
    top_k: Int[AnyArray, "S"]
    top_p: Float[AnyArray, "S"]
    seed: Int[AnyArray, "S"]
    min_tokens: Int[AnyArray, "S"]
    stop_ids: Int[AnyArray, "S E"]

    def at(self, rows: Int[Array, "S"]) -> "SamplingParams":
        """The settings of `rows`; a negative row yields those of some row, to be ignored."""
        return jax.tree.map(lambda column: column[rows], self)


def stack_sampling(
    requests: Sequence[Sampling | None], eos_ids: Sequence[int], *, max_stop_ids: int = 8
) -> SamplingParams:
    """Lay the settings of S requests out as numpy rows (None: an unused row).

    Args:
        requests: one entry per row.
        eos_ids: end-of-sequence ids of the model; all of them count.
        max_stop_ids: the width E, fixed so that one compiled program serves every request.

    Raises:
        ValueError: a request has more ending ids than E.
    """
    filled = [Sampling(ignore_eos=True) if request is None else request for request in requests]
    stop_ids = np.full((len(filled), max_stop_ids), NO_STOP, np.int32)
    for row, request in enumerate(filled):
        ids = request.ending_ids(eos_ids)
        _check(len(ids) <= max_stop_ids, "stop_token_ids", ids,
               f"with the model's end-of-sequence ids they are {len(ids)}, more than "
               f"max_stop_ids={max_stop_ids}: pass fewer or raise max_stop_ids")
        stop_ids[row, : len(ids)] = ids
    return SamplingParams(
        temperature=np.array([request.temperature for request in filled], np.float32),
        top_k=np.array([min(request.top_k, 2**31 - 1) for request in filled], np.int32),
        top_p=np.array([request.top_p for request in filled], np.float32),
        seed=np.array([request.seed for request in filled], np.uint32),
        min_tokens=np.array([request.min_tokens for request in filled], np.int32),
        stop_ids=stop_ids,
    )


def ends_here(params: SamplingParams, tokens: Int[Array, "S"]) -> Bool[Array, "S"]:
    """Whether each row's newly drawn token is one of its ending ids."""
    return jnp.any(tokens[:, None] == params.stop_ids, axis=1) & (tokens >= 0)


@partial(jax.jit, static_argnames=("vocab_size", "greedy_only"))
def sample(
    logits: Float[Array, "S V"],
    params: SamplingParams,
    token_index: Int[Array, "S"],
    vocab_size: int,
    *,
    greedy_only: bool = False,
) -> Int[Array, "S"]:
    """Draw the next token of every row.

    Args:
        logits: `[S, V]` float32; -inf entries are never drawn.
        params: settings of the same rows.
        token_index: `[S]`, 0 for a request's first output token, counted through preemptions.
        vocab_size: ids from here on are padding and have probability 0.
        greedy_only: leave the drawing out of the program; valid if no row has a temperature.
            Without it the drawing is skipped at run time whenever every row is greedy.

    Returns:
        `[S]` int32 tokens in `[0, vocab_size)`.
    """
    allowed = _mask(logits.astype(jnp.float32), params, token_index, vocab_size)
    greedy = jax.vmap(_argmax)(allowed)
    if greedy_only:
        return jnp.minimum(greedy, vocab_size - 1)

    def draw_rows() -> Int[Array, "S"]:
        rows = (allowed, greedy, params, token_index)
        if jax.default_backend() == "cpu":
            return lax.map(lambda row: _draw_or_keep(*row), rows)
        return jax.vmap(_draw_or_keep)(*rows)

    tokens = lax.cond(jnp.any(params.temperature > 0), draw_rows, lambda: greedy)
    return jnp.minimum(tokens, vocab_size - 1)


def _mask(logits: Array, params: SamplingParams, token_index: Array, vocab_size: int) -> Array:
    """Rule out padded ids for good, and ending ids until `min_tokens` are out.

    Ending ids get the lowest finite value: should they be all that is left, one is drawn rather
    than a padded id. The axis is filled up to whole groups of `LANES`.
    """
    num_rows, size = logits.shape
    padded = jnp.arange(size) >= vocab_size
    logits = jnp.where(padded, -jnp.inf, jnp.minimum(logits, -_LOWEST))
    too_early = (token_index < params.min_tokens)[:, None] & (params.stop_ids >= 0)
    banned = jnp.where(too_early & (params.stop_ids < vocab_size), params.stop_ids, size)
    logits = logits.at[jnp.arange(num_rows)[:, None], banned].set(_LOWEST, mode="drop")
    return jnp.pad(logits, ((0, 0), (0, -size % LANES)), constant_values=-jnp.inf)


def _argmax(row: Float[Array, "V"]) -> Int[Array, ""]:
    """First greatest entry. In two steps, as XLA's own argmax is ten times slower on the CPU."""
    groups = row.reshape(-1, LANES)
    group = jnp.argmax(groups.max(axis=1))
    return (group * LANES + jnp.argmax(groups[group])).astype(jnp.int32)


def _draw_or_keep(
    row: Float[Array, "V"], greedy: Array, params: SamplingParams, index: Array
) -> Int[Array, ""]:
    """The drawn token of one row, or its greedy one at temperature 0."""
    return lax.cond(params.temperature > 0, lambda: _draw(row, params, index), lambda: greedy)


def _draw(row: Float[Array, "V"], params: SamplingParams, index: Array) -> Int[Array, ""]:
    """Draw one token: first its group of `LANES`, by the group's mass, then it within the group.

    Both draws add Gumbel noise to log masses and take the greatest, so that a token of mass 0 can
    never come out, and a few hundred random numbers serve a whole vocabulary.
    """
    scale = jnp.maximum(params.temperature, _SMALLEST_TEMPERATURE)
    below = jnp.maximum(row.max(), _LOWEST) - row
    mass = jnp.exp(-below / scale)
    restricted = (params.top_k > 0) | (params.top_p < 1)
    kept = lax.cond(
        restricted,
        lambda: jnp.where(_kept(row, mass, params.top_k, params.top_p), mass, 0.0),
        lambda: mass,
    ).reshape(-1, LANES)
    key = jax.random.fold_in(jax.random.key(params.seed, impl="threefry2x32"), index)
    noise = jax.random.gumbel(key, (LANES + kept.shape[0],))
    group = jnp.argmax(jnp.log(kept.sum(axis=1)) + noise[LANES:])
    lane = jnp.argmax(jnp.log(kept[group]) + noise[:LANES])
    return (group * LANES + lane).astype(jnp.int32)


def _kept(row: Array, mass: Array, top_k: AnyArray, top_p: AnyArray) -> Bool[Array, "V"]:
    """Which tokens survive top-k, then top-p: exactly a prefix of (greater logit, lower id).

    The prefix is described by the logit it ends at and by how many tokens of just that logit are
    in. Each is read off the greatest candidates if it lies among them, else found by bisection.
    """
    size = row.shape[0]
    order = _orderable(row)
    best, ids = lax.top_k(row, min(CANDIDATES, size))
    best_order, running = _orderable(best), jnp.cumsum(mass[ids])
    ids_in_order = jnp.arange(size)

    limit = jnp.where(top_k > 0, jnp.minimum(top_k, size), size)
    near = limit <= best.shape[0]
    last = jnp.minimum(limit, best.shape[0]) - 1
    far_cut = _bisect(lambda at: _sum(order >= at) >= limit, near | (limit == size))
    cut = jnp.where(near, best_order[last], far_cut)
    ties = limit - _sum(order > cut)
    mass_of_one = mass[jnp.argmax(order == cut)]
    total = _sum(jnp.where(order > cut, mass, 0.0)) + ties * mass_of_one
    wanted = top_p * jnp.where(near, running[last], total)

    reached = running >= wanted
    near = jnp.any(reached)
    count = jnp.argmax(reached) + 1
    far_cut = _bisect(lambda at: _mass_from(order, at, mass) >= wanted, near | (top_p >= 1))
    p_cut = jnp.where(near, best_order[count - 1], far_cut)
    missing = wanted - _mass_from(order, p_cut + 1, mass)
    mass_of_one = jnp.maximum(mass[jnp.argmax(order == p_cut)], _SMALLEST_TEMPERATURE)
    far_ties = jnp.clip(jnp.ceil(missing / mass_of_one), 1, size).astype(jnp.int32)
    p_ties = jnp.where(near, count - _sum(order > p_cut), far_ties)

    p_first = (top_p < 1) & ((p_cut > cut) | ((p_cut == cut) & (p_ties < ties)))
    cut, ties = jnp.where(p_first, p_cut, cut), jnp.where(p_first, p_ties, ties)
    tied = order == cut
    all_in = _sum(tied) <= ties
    end = _bisect(lambda at: _sum(tied & (ids_in_order < at)) <= ties, all_in, 0, size + 1)
    return (order > cut) | (tied & (all_in | (ids_in_order < end)))


def _orderable(values: Float[Array, "..."]) -> Int[Array, "..."]:
    """Whole numbers ordered like the float32 `values`, equal only where those are equal."""
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _sum(values: Array) -> Array:
    """Sum of a whole row, lane by lane first, which XLA vectorises."""
    dtype = jnp.int32 if values.dtype == jnp.bool_ else values.dtype
    return values.reshape(-1, LANES).sum(axis=0, dtype=dtype).sum()


def _mass_from(order: Array, at: Array, mass: Array) -> Array:
    return _sum(jnp.where(order >= at, mass, 0.0))


def _bisect(
    holds: Callable[[Array], Array], known: Array, low: int = -(2**31), high: int = 2**31 - 1
) -> Int[Array, ""]:
    """The greatest whole number in `[low, high)` that `holds`, given that it does up to somewhere.

    Returns `low` at once if the answer is `known` already.
    """

    def middle(bounds: tuple[Array, Array]) -> Array:
        return (bounds[0] & bounds[1]) + ((bounds[0] ^ bounds[1]) >> 1)

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        at = middle(bounds)
        kept = holds(at)
        return jnp.where(kept, at, bounds[0]), jnp.where(kept, bounds[1], at)

    start = jnp.where(known, jnp.int32(low), jnp.int32(high))
    bounds = lax.while_loop(
        lambda bounds: middle(bounds) != bounds[0], halve, (jnp.int32(low), start)
    )
    return bounds[0]
