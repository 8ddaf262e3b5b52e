"""SGLang's radix cache: prefixes found again, whole leaves evicted, orders that look at it."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from cbjax.core.limits import system
from cbjax.parity.driver import run
from cbjax.parity.workload import Request, Workload, output_token
from cbjax.policies import _sglang_tree as trees
from cbjax.policies._sglang_tree import Tree
from tests.policies.beside import SHARED, Case, array_log, mismatch, oracle_log
from tests.policies.oracles.radix import RadixTree
from tests.policies.test_oracles import compare, describe

PLAIN = dict(
    max_running_requests=4, chunked_prefill_size=-1, disable_overlap_schedule=True,
    schedule_conservativeness=0.0, disable_radix_cache=False,
)


def log_of(texts, num_blocks=64, block_size=1, **knobs):
    """The array policy's log of (arrival, text, max_tokens); the oracle says the same."""
    requests = tuple(
        Request(id, arrival, len(text), max_tokens, token_ids=tuple(text))
        for id, (arrival, text, max_tokens) in enumerate(texts)
    )
    one = Case("sglang", PLAIN | knobs, block_size, num_blocks, 48, Workload(requests))
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    return log


def text(start, length):
    return list(range(start, start + length))


def grants(log):
    return [dict(entry.scheduled) for entry in log]


def order(log):
    """Requests in order of admission."""
    return [id for entry in log for id in entry.new]


@pytest.mark.parametrize("examples", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_array_policy_decides_as_its_oracle(examples, report_line):
    seen = compare("sglang_radix", examples)
    report_line(describe("sglang_radix", seen))
    assert seen["preempted"] >= examples / 12 and seen["resumed"] >= examples / 20


def test_a_prompt_is_found_after_its_prefill_and_an_output_after_its_end():
    first = text(1, 6)
    # While request 0 runs, its prompt is known; once it ended, so are its outputs, but the last.
    again = [*first, *(output_token(0, place) for place in range(3)), 99]
    log = log_of([(0, first, 4), (1, again, 1), (6, again, 1)])
    assert grants(log)[:2] == [{0: 6}, {1: 4}]
    found = next(entry for entry in log if 2 in entry.new)
    assert dict(found.scheduled) == {2: 1}


def test_one_token_is_always_computed():
    log = log_of([(0, text(1, 8), 1), (1, text(1, 8), 1)])
    assert grants(log) == [{0: 8}, {1: 1}]


def test_a_prefix_is_a_whole_number_of_pages():
    """Pages of 4: of 6 tokens that are alike one page is found, and two tokens are not."""
    log = log_of([(0, text(1, 9), 1), (1, text(1, 6) + text(50, 3), 1)], 16, block_size=4)
    assert grants(log) == [{0: 9}, {1: 5}]


def test_nothing_is_shared_without_the_cache():
    log = log_of([(0, text(1, 8), 1), (1, text(1, 8), 1)], disable_radix_cache=True)
    assert grants(log) == [{0: 8}, {1: 8}]


def test_two_that_are_computed_together_keep_one_copy():
    log = log_of([(0, text(1, 8), 3), (0, text(1, 8), 3)], num_blocks=40)
    assert grants(log)[0] == {0: 8, 1: 8}
    # 8 shared tokens and one each of the outputs; the second copy was given back.
    assert log[0].free_blocks == 24 and log[1].free_blocks == 40 - 8 - 2


def test_the_least_recently_used_leaf_is_evicted_whole():
    """Room for two of three texts: the one that was asked for again is still there."""
    work = [(0, text(1, 8), 1), (1, text(20, 8), 1), (2, text(1, 8), 1), (3, text(40, 5), 1)]
    late = [(4, text(1, 8), 1), (5, text(20, 8), 1)]
    log = log_of(work + late, num_blocks=20, check_memory=False)
    # The third text needs 5 tokens, 4 are at hand: all 8 of the second go.
    assert grants(log) == [{0: 8}, {1: 8}, {2: 1}, {3: 5}, {4: 1}, {5: 8}]


def test_a_split_text_keeps_its_beginning_longer_than_its_end():
    """Two texts with one beginning are three nodes: the end that is older goes first."""
    begin = text(1, 6)
    work = [(0, begin + [30, 31, 32], 1), (1, begin + [40, 41, 42], 1), (2, text(60, 9), 1)]
    late = [(3, begin + [40, 41, 42], 1), (4, begin + [30, 31, 32], 1)]
    log = log_of(work + late, num_blocks=18, check_memory=False)
    # 12 are cached and 6 free, 9 are needed: both ends and the beginning's 6 would be too many.
    assert grants(log)[:3] == [{0: 9}, {1: 3}, {2: 9}]
    assert grants(log)[3:] == [{3: 9}, {4: 3}]


def test_a_retracted_request_finds_its_prompt_again():
    log = log_of([(0, text(1, 8), 10), (1, text(20, 4), 7)], num_blocks=22, retract_decode_steps=0)
    retracts, again = (
        next(entry for entry in log if getattr(entry, name))
        for name in ("preempted", "resumed")
    )
    # Both have 6 outputs, so the longer prompt goes. Its 8 tokens stay in the tree, unused but
    # for it; the outputs are computed again.
    assert retracts.preempted == (0,)
    assert dict(again.scheduled) == {0: 6}


def test_an_aborted_request_leaves_what_it_computed():
    """Aborted in the iteration after its prefill, and later with an output."""
    for when, known in ((1, 6), (3, 8)):
        ids = [*text(1, 6), output_token(0, 0), output_token(0, 1), 99, 98]
        requests = (
            Request(0, 0, 6, 9, token_ids=tuple(text(1, 6))),
            Request(1, 4, 10, 1, token_ids=tuple(ids)),
        )
        one = Case("sglang", PLAIN, 1, 64, 48, Workload(requests, ((when, 0),)))
        log = array_log(one)
        assert mismatch(log, oracle_log(one)) is None
        assert dict(next(entry for entry in log if 1 in entry.new).scheduled) == {1: 10 - known}


WARM = [(0, text(1, 12), 1), (1, text(30, 6), 1)]
CROWD = [
    (2, text(70, 5), 2), (2, text(30, 6) + [90], 2), (2, text(1, 12) + [91], 2),
    (2, text(30, 6) + [92], 2),
]
ONE_SEAT = dict(max_running_requests=1)


def test_longest_prefix_goes_first():
    assert order(log_of(WARM + CROWD, **ONE_SEAT)) == [0, 1, 2, 3, 4, 5]
    assert order(log_of(WARM + CROWD, schedule_policy="lpm", **ONE_SEAT)) == [0, 1, 4, 3, 5, 2]


def test_depth_first_begins_where_most_requests_wait():
    log = log_of(WARM + CROWD, schedule_policy="dfs-weight", **ONE_SEAT)
    # Two wait below the second text, one below the first, and one finds nothing. Once one of the
    # two is served the branches are equals, and the older one is first.
    assert order(log) == [0, 1, 3, 4, 5, 2]


def test_depth_first_serves_a_node_after_what_is_below_it():
    long = text(1, 4) + text(10, 4)
    waiting = [(1, text(1, 4) + [90], 2), (1, [*long, 91], 2)]
    log = log_of([(0, long, 1), *waiting], schedule_policy="dfs-weight", **ONE_SEAT)
    assert order(log) == [0, 2, 1]
    calm = log_of([(0, long, 1), *waiting], **ONE_SEAT)
    assert order(calm) == [0, 1, 2]


def test_one_request_fills_the_cache_for_those_that_begin_alike():
    """Of three with 33 tokens in common the second and third step behind an unlike one."""
    alike = text(1, 33)
    work = [(0, [*alike, 50], 2), (0, [*alike, 51], 2), (0, [*alike, 52], 2), (0, text(60, 5), 2)]
    log = log_of(work, num_blocks=64, schedule_policy="lpm", max_prefill_tokens=40)
    assert grants(log)[:2] == [{0: 34, 3: 5}, {1: 1, 2: 1}]
    # 31 tokens in common are not worth waiting for.
    short = [(0, [*one[:31], 70 + id], 2) for id, (_, one, _) in enumerate(work)]
    log = log_of(short, num_blocks=64, schedule_policy="lpm", max_prefill_tokens=40)
    assert order(log)[:2] == [0, 1]


@pytest.mark.slow
def test_a_long_queue_stays_as_it_is():
    """More than 128 wait: "lpm" sorts nobody, although the last one's prefix is cached."""
    limits = replace(SHARED, window=140, inbox=160, blocks=512, cached_tokens=512)
    numbers = system(limits, block_size=1, num_blocks=512, max_length=48)
    for waiting, last in ((129, False), (128, True)):
        texts = [(0, text(1, 9), 1)]
        texts += [(1, [100 + 2 * id, 101 + 2 * id], 2) for id in range(waiting - 1)]
        texts += [(1, [*text(1, 8), 77], 2)]
        requests = tuple(
            Request(id, arrival, len(ids), most, token_ids=tuple(ids))
            for id, (arrival, ids, most) in enumerate(texts)
        )
        policy = Case(
            "sglang", PLAIN | dict(schedule_policy="lpm") | ONE_SEAT, 1, 512, 48,
            Workload(requests),
        ).policy()
        log = run(policy, Workload(requests), limits, numbers)
        assert (order(log)[1] == waiting) == last


def test_victims_of_a_more_urgent_request_give_back_what_nobody_shares():
    """Two run on one prompt: only both together give its memory back."""
    knobs = dict(
        enable_priority_scheduling=True, priority_scheduling_preemption_threshold=0,
        max_running_requests=4,
    )
    alike = text(1, 12)
    requests = (
        Request(0, 0, 12, 9, token_ids=tuple(alike)),
        Request(1, 1, 12, 9, token_ids=tuple(alike)),
        Request(2, 4, 16, 3, priority=5, token_ids=tuple(text(30, 16))),
    )
    one = Case("sglang", PLAIN | knobs, 1, 24, 48, Workload(requests))
    log = array_log(one)
    assert mismatch(log, oracle_log(one)) is None
    assert next(entry.preempted for entry in log if entry.preempted) == (1, 0)


def test_tree_is_that_of_token_runs():
    """Random walks and new leaves beside a tree of runs: the same nodes, in the same order of use.

    Blocks are numbered by the text that they end, so that both trees can name them.
    """
    random = np.random.default_rng(0)
    tree, beside = trees.empty_tree(rows=1, blocks=512), RadixTree(1)
    ids: dict[tuple, int] = {}
    for _ in range(60):
        words = tuple(random.integers(0, 2, random.integers(1, 9)).tolist())
        had = beside.insert(list(words))
        path = jnp.array([
            ids.setdefault(words[: end + 1], len(ids)) if end < len(words) else 0
            for end in range(8)
        ])
        tree = trees.hang(trees.walk(tree, path, had), path, had, len(words))
        assert nodes_of(tree) == runs_of(beside, ids)


def nodes_of(tree: Tree) -> list[tuple]:
    """(last block, node above, children) in order of use."""
    node, above, children, used = map(
        np.asarray, (tree.node, tree.above, tree.children, tree.used)
    )
    there = [block for block in range(len(node)) if node[block] == block]
    there.sort(key=lambda block: used[block])
    return [(block, int(above[block]), int(children[block])) for block in there]


def runs_of(tree: RadixTree, ids: dict[tuple, int]) -> list[tuple]:
    def whole(node) -> tuple:
        return () if node is tree.root else whole(node.parent) + node.key

    nodes = sorted(tree._nodes(), key=lambda node: node.used)
    return [
        (ids[whole(node)], ids.get(whole(node.parent), -1), len(node.children)) for node in nodes
    ]
