"""Drawing tokens: exact filters, no NaN anywhere, and no dependence on batch mates."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbjax.engine.sampling import (
    CANDIDATES,
    NO_STOP,
    Sampling,
    _kept,
    ends_here,
    sample,
    stack_sampling,
)

VOCAB = 256
KEPT = jax.jit(_kept)


def logits_of(seed: int, rows: int = 1, size: int = VOCAB, step: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32) * 2
    return np.round(values / step).astype(np.float32) * np.float32(step) if step else values


def draw(
    logits: np.ndarray,
    requests: list,
    index: int | list = 0,
    vocab: int | None = None,
    eos: tuple[int, ...] = (),
    fill_to: int = 8,
    **options,
) -> list[int]:
    """The token of each request; unused rows fill the batch up, so that few shapes compile."""
    unused = max(0, fill_to - len(requests))
    indices = np.pad(np.broadcast_to(np.asarray(index, np.int32), len(requests)), (0, unused))
    params = stack_sampling([*requests, *[None] * unused], eos)
    vocab = vocab or logits.shape[1]
    logits = np.pad(logits, ((0, unused), (0, 0)))
    tokens = sample(logits, params, indices, vocab, **options)
    return np.asarray(tokens)[: len(requests)].tolist()


def draws(logits: np.ndarray, request_of, count: int, **options) -> np.ndarray:
    """`count` draws of one row of logits, by the seeds 0..count-1, 64 rows at a time."""
    tokens = []
    for start in range(0, count, 64):
        requests = [request_of(seed) for seed in range(start, start + 64)]
        tokens += draw(np.broadcast_to(logits, (64, logits.shape[-1])), requests, **options)
    return np.array(tokens[:count])


def expected_kept(logits: np.ndarray, mass: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """Top-k, then top-p, by sorting: greater logit first, then lower id."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[:top_k] if top_k else order
    if top_p >= 1:
        return set(order)
    running = np.cumsum(mass[order].astype(np.float64))
    return set(order[: int(np.argmax(running >= top_p * running[-1])) + 1])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.one_of(st.integers(0, 5), st.integers(CANDIDATES - 1, VOCAB + 5)),
    top_p=st.sampled_from([0.01, 0.3, 0.77, 0.9, 0.95, 0.99, 0.9999, 1.0]),
    step=st.sampled_from([0.0, 0.5, 2.0]),
    temperature=st.sampled_from([0.3, 1.0, 5.0]),
)
def test_filters_keep_what_sorting_keeps_ties_included(seed, top_k, top_p, step, temperature):
    logits = logits_of(seed, step=step)[0]
    mass = np.exp((logits - logits.max()) / np.float32(temperature)).astype(np.float32)
    kept = set(np.flatnonzero(KEPT(logits, mass, np.int32(top_k), np.float32(top_p))).tolist())
    wanted = expected_kept(logits, mass, top_k, float(np.float32(top_p)))
    if kept != wanted:
        # only float32 sums may decide otherwise, and only about the one token at the edge
        (edge,) = kept ^ wanted
        total = sum(mass[list(expected_kept(logits, mass, top_k, 1.0))].astype(np.float64))
        above = sum(mass[list(kept & wanted)].astype(np.float64))
        assert abs(above - top_p * total) < 1e-5 * total


def test_exactly_k_survive_when_all_logits_are_equal():
    """FAULTS F3."""
    flat = np.zeros(VOCAB, np.float32)
    for top_k in (1, 2, 7, CANDIDATES, CANDIDATES + 1, VOCAB - 1, VOCAB):
        kept = np.flatnonzero(KEPT(flat, np.ones_like(flat), np.int32(top_k), np.float32(1)))
        assert kept.tolist() == list(range(top_k))


def test_top_k_of_one_is_greedy():
    """FAULTS F3."""
    logits = logits_of(3, rows=8, step=1.0)
    requests = [Sampling(temperature=1.5, top_k=1, seed=seed) for seed in range(8)]
    assert draw(logits, requests) == np.argmax(logits, axis=1).tolist()


def test_padded_vocabulary_is_never_drawn():
    """FAULTS F5: vocabulary of 10 padded to 16, the padding holding the greatest logits."""
    logits = np.zeros(16, np.float32)
    logits[10:] = 50.0
    for options in ((1e30,), (1.0, 0, 0.999), (1.0, 12)):
        tokens = draws(logits, lambda seed, o=options: Sampling(*o, seed=seed), 256, vocab=10)
        assert tokens.max() < 10
    assert len(set(draws(logits, lambda seed: Sampling(1.0, seed=seed), 256, vocab=10))) == 10


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-30, 1e-8, 1e-3])
def test_tiny_temperatures_are_greedy_in_effect(temperature):
    """FAULTS F7."""
    logits = logits_of(5, rows=8)
    requests = [Sampling(temperature, top_p=0.9, seed=seed) for seed in range(8)]
    assert draw(logits, requests) == np.argmax(logits, axis=1).tolist()


def test_no_nan_where_a_greedy_row_meets_banned_tokens_and_extreme_logits():
    """FAULTS F6, with jax told to stop at the first NaN."""
    logits = logits_of(7, rows=6)
    logits[:, 3] = -np.inf
    logits[1, :] = -np.inf
    logits[1, 9] = 0.0
    logits[2] *= 1e37
    logits[3] = 0.0
    logits[4, 5] = np.inf
    requests = [None, Sampling(1.0, top_p=0.5), Sampling(1.0, top_k=3), Sampling(1e-30),
                Sampling(1.0), Sampling(0.0)]
    with jax.debug_nans(True):
        tokens = draw(logits, requests)
    assert tokens[0] == np.argmax(logits[0]) and tokens[5] == np.argmax(logits[5])
    assert tokens[1] == 9 and tokens[4] == 5
    assert 3 not in tokens


def test_a_request_draws_the_same_whoever_shares_its_batch():
    """FAULTS F1: alone, with mates, in other seats, in other batch sizes."""
    mine = logits_of(11)[0]
    request = Sampling(0.8, top_k=40, top_p=0.95, seed=42)
    mates = [None, Sampling(1.3, seed=42), Sampling(0.7, top_p=0.999, seed=1), Sampling()]
    for index in (0, 1, 17):
        alone = draw(mine[None], [request], index, fill_to=1)[0]
        for rows, seats in ((2, (0, 1)), (8, (0, 3, 7))):
            for seat in seats:
                logits = logits_of(rows * 10 + seat, rows=rows)
                logits[seat] = mine
                requests = [mates[(seat + row) % 4] for row in range(rows)]
                requests[seat] = request
                indices = [3] * rows
                indices[seat] = index
                assert draw(logits, requests, indices, fill_to=rows)[seat] == alone


def test_rows_drawn_at_once_agree_with_rows_drawn_one_by_one(monkeypatch):
    """Accelerators draw all rows at once, the CPU one after another."""
    logits = logits_of(17, rows=8, step=0.25)
    requests = [None, Sampling(1.0, seed=1), Sampling(2.0, top_k=150, seed=2),
                Sampling(9.0, top_p=0.95, seed=3), Sampling(9.0, 150, 0.99, seed=4),
                Sampling(0.5, top_k=5, seed=5), Sampling(1.0, top_p=0.3, seed=6), None]
    one_by_one = draw(logits, requests)
    params = stack_sampling(requests, ())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    at_once = sample.__wrapped__(logits, params, np.zeros(8, np.int32), VOCAB)
    assert np.asarray(at_once).tolist() == one_by_one


def test_tokens_of_a_request_vary_with_index_and_seed():
    logits = np.zeros((64, VOCAB), np.float32)
    by_index = draw(logits, [Sampling(1.0, seed=4)] * 64, list(range(64)))
    by_seed = draw(logits, [Sampling(1.0, seed=seed) for seed in range(64)])
    assert len(set(by_index)) > 40 and len(set(by_seed)) > 40


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.8}])
def test_frequencies_follow_the_probabilities(options):
    """Eight tokens in three groups of lanes, everything else banned."""
    ids = [0, 5, 127, 128, 200, 255, 256, 299]
    some = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 1.5, -2.0, 0.25], np.float32)
    logits = np.full(300, -np.inf, np.float32)
    logits[ids] = some
    size = 4096
    tokens = draws(logits, lambda seed: Sampling(1.3, seed=seed, **options), size)
    mass = np.exp(some / 1.3)
    kept = expected_kept(some, mass, options.get("top_k", 0), options.get("top_p", 1.0))
    share = np.where(np.isin(np.arange(8), list(kept)), mass, 0)
    share /= share.sum()
    seen = np.bincount(tokens, minlength=300)[ids] / size
    assert seen.sum() == 1
    assert np.all(np.abs(seen - share) <= 5 * np.sqrt(share * (1 - share) / size))


def test_greedy_only_program_agrees_with_the_general_one():
    logits = logits_of(13, rows=4, size=300, step=0.5)
    assert draw(logits, [None] * 4, greedy_only=True) == draw(logits, [None] * 4)
    assert draw(logits, [None] * 4) == np.argmax(logits, axis=1).tolist()


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Sampling(min_tokens=4), 7),
        (Sampling(), 106),
        (Sampling(ignore_eos=True, min_tokens=4), 106),
        (Sampling(ignore_eos=True, stop_token_ids=(7,)), 106),
    ],
)
def test_all_ending_ids_count_and_wait_for_min_tokens(request_, expected):
    """FAULTS F14: end-of-sequence ids 1 and 106, id 106 the likeliest at the third token."""
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [106, 1, 7]] = [5, 4, 3]
    eos = (1, 106)
    token = draw(logits, [request_], 2, eos=eos)
    assert token == [expected]
    ended = bool(ends_here(stack_sampling([request_], eos), np.array(token))[0])
    assert ended == (expected in request_.ending_ids(eos))
    assert draw(logits, [request_], 4, eos=eos) == [106]


def test_ignoring_eos_keeps_the_users_own_stop_ids():
    """FAULTS F14: an id that is both end-of-sequence and the user's own still ends the request."""
    assert Sampling(ignore_eos=True, stop_token_ids=(5, 1)).ending_ids((1, 106)) == (1, 5)
    assert Sampling(stop_token_ids=(5,)).ending_ids((1, 106)) == (1, 5, 106)


def test_min_tokens_over_the_whole_vocabulary_still_draws_a_real_id():
    logits = np.zeros((2, 16), np.float32)
    requests = [Sampling(min_tokens=9), Sampling(1.0, min_tokens=9)]
    assert max(draw(logits, requests, vocab=3, eos=(0, 1, 2))) < 3


def test_rows_are_padded_and_can_be_selected():
    params = stack_sampling([Sampling(0.5, seed=9, stop_token_ids=(4,)), None], (2,))
    assert params.stop_ids.tolist() == [[2, 4] + [NO_STOP] * 6, [NO_STOP] * 8]
    assert params.at(np.array([1, 0])).seed.tolist() == [0, 9]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("top_k", -1), ("top_p", 0.0),
        ("top_p", 1.1), ("seed", -1), ("seed", 2**32), ("max_tokens", 0), ("min_tokens", -1),
        ("stop", ("",)), ("stop", ""), ("stop_token_ids", (-1,)),
    ],
)
def test_impossible_settings_name_field_value_and_remedy(field, value):
    with pytest.raises(ValueError, match=rf"^sampling.{field} = .*: (use|give)"):
        Sampling(**{field: value})


def test_more_ending_ids_than_the_program_holds_are_refused():
    with pytest.raises(ValueError, match="^sampling.stop_token_ids.*max_stop_ids=2"):
        stack_sampling([Sampling(stop_token_ids=(4, 5))], (1, 2), max_stop_ids=2)
    with pytest.raises(ValueError, match="^sampling.min_tokens = 5: .*max_tokens=4"):
        Sampling(min_tokens=5, max_tokens=4)
