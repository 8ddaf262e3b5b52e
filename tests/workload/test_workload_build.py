"""Whole workloads: shares, determinism, independent streams, token ids."""

from dataclasses import replace

import pytest

from cbjax.workload import (
    Arrivals,
    Lengths,
    Prompt,
    RequestClass,
    Workload,
    assign_classes,
    builtin_prompts,
    make_workload,
    synthetic_token_ids,
    tokenise_workload,
    workload_from_prompts,
)

CHAT = RequestClass("chat", 2.0, prompts=tuple(Prompt(f"p{i}", max_tokens=9) for i in range(4)))
BULK = RequestClass(
    "bulk",
    1.0,
    prompt_lengths=Lengths("uniform", low=10, high=500),
    output_lengths=Lengths("log_normal", median=50, sigma=1.0, low=1, high=300),
    priority=5,
)


class Spelling:
    """A tokenizer of one id per character; a conversation begins with id 1."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def encode_chat(self, messages):
        return [1, *(ord(letter) for letter in messages[0]["content"])]


def test_the_same_arguments_give_the_same_workload_and_another_seed_another():
    arrivals = Arrivals("poisson", rate=2.0)
    first = make_workload([CHAT, BULK], 30, arrivals=arrivals, seed=4)
    assert first == make_workload([CHAT, BULK], 30, arrivals=arrivals, seed=4)
    other = make_workload([CHAT, BULK], 30, arrivals=arrivals, seed=5)
    for field in ("class_name", "scheduled_arrival_s", "prompt", "max_tokens", "seed"):
        assert [getattr(r, field) for r in first] != [getattr(r, field) for r in other], field


def test_the_rate_changes_times_only():
    slow = make_workload([CHAT, BULK], 20, arrivals=Arrivals("poisson", rate=1.0), seed=4)
    fast = make_workload([CHAT, BULK], 20, arrivals=Arrivals("poisson", rate=8.0), seed=4)
    assert (slow.offered_rate, fast.offered_rate) == (1.0, 8.0)
    for one, other in zip(slow, fast, strict=True):
        assert one.scheduled_arrival_s == 8 * other.scheduled_arrival_s
        assert replace(one, scheduled_arrival_s=0.0) == replace(other, scheduled_arrival_s=0.0)


def test_other_lengths_of_one_class_leave_everything_else_alone():
    longer = replace(BULK, prompt_lengths=Lengths("fixed", value=900))
    first = make_workload([CHAT, BULK], 30, seed=4)
    second = make_workload([CHAT, longer], 30, seed=4)
    for one, other in zip(first, second, strict=True):
        if one.class_name == "chat":
            assert one == other
        else:
            assert replace(one, prompt_tokens=900) == other


def test_shares_are_met_up_to_rounding_in_shuffled_order():
    for count in (1, 7, 24, 100):
        classes = assign_classes([0.5, 0.3, 0.2], count, seed=1)
        for index, share in enumerate([0.5, 0.3, 0.2]):
            assert abs(classes.count(index) - share * count) < 1
    classes = assign_classes([1, 1], 40, seed=1)
    assert classes != sorted(classes)
    assert assign_classes([1, 0], 5, seed=1) == [0] * 5


def test_prompts_of_a_class_are_all_used_before_any_comes_again():
    workload = make_workload([CHAT], 10, seed=3)
    used = [request.prompt for request in workload]
    assert sorted(used[:4]) == sorted(used[4:8]) == ["p0", "p1", "p2", "p3"]
    assert len(set(used[8:])) == 2


def test_fields_follow_the_class():
    workload = make_workload([CHAT, BULK], 30, seed=2)
    assert [request.request_id for request in workload] == list(range(30))
    for request in workload:
        if request.class_name == "bulk":
            assert request.prompt is None and 10 <= request.prompt_tokens <= 500
            assert request.ignore_eos and request.priority == 5
        else:
            assert request.prompt_tokens is None and request.max_tokens == 9
            assert not request.ignore_eos and request.priority == 0
        assert 0 <= request.seed < 2**32
    assert len({request.seed for request in workload}) == 30


def test_a_class_may_override_bounds_and_end_of_sequence():
    kind = replace(CHAT, output_lengths=Lengths("fixed", value=3), ignore_eos=True)
    assert {(r.max_tokens, r.ignore_eos) for r in make_workload([kind], 5)} == {(3, True)}
    natural = replace(BULK, ignore_eos=False)
    assert not any(request.ignore_eos for request in make_workload([natural], 5))


def test_prompts_in_given_order_with_a_bound_for_those_without():
    prompts = [Prompt("a", "x", 5), Prompt((7, 8, 9), "y")]
    workload = workload_from_prompts(prompts, num_requests=3, max_tokens=11)
    assert [(r.class_name, r.prompt, r.prompt_tokens, r.max_tokens) for r in workload] == [
        ("x", "a", None, 5), ("y", (7, 8, 9), 3, 11), ("x", "a", None, 5)
    ]
    assert len(workload_from_prompts(prompts)) == 2


def test_closed_loop_leaves_later_arrivals_open():
    loop = Arrivals("closed_loop", concurrency=3)
    workload = make_workload([CHAT], 8, arrivals=loop)
    assert workload.concurrency == 3 and workload.offered_rate is None
    assert [request.scheduled_arrival_s for request in workload] == [0.0] * 3 + [None] * 5


def test_tokenising_fills_in_ids_and_lengths():
    chat = Prompt("ab").as_chat()
    mixed = workload_from_prompts([Prompt("ab"), chat, Prompt((5, 6))])
    tokens = [r.prompt for r in tokenise_workload(mixed, Spelling(), vocab_size=256)]
    assert tokens == [(97, 98), (1, 97, 98), (5, 6)]
    bulk = make_workload([BULK], 6, seed=2)
    filled = tokenise_workload(bulk, Spelling(), vocab_size=50, excluded_ids=(0, 2))
    for before, after in zip(bulk, filled, strict=True):
        assert len(after.prompt) == after.prompt_tokens == before.prompt_tokens
        assert not {0, 2} & set(after.prompt) and max(after.prompt) < 50
    assert len({request.prompt for request in filled}) == 6


def test_synthetic_ids_follow_seed_and_request_and_miss_only_the_excluded():
    ids = synthetic_token_ids(1, 4, 3000, 12, excluded_ids=(0, 5, 11, 99))
    assert set(ids) == {1, 2, 3, 4, 6, 7, 8, 9, 10}
    assert ids == synthetic_token_ids(1, 4, 3000, 12, excluded_ids=(0, 5, 11))
    assert ids != synthetic_token_ids(1, 5, 3000, 12, excluded_ids=(0, 5, 11))
    with pytest.raises(ValueError, match="^vocab_size = 2: "):
        synthetic_token_ids(1, 4, 3, 2, excluded_ids=(0, 1))


def test_builtin_prompts_make_a_workload_of_exact_shares():
    classes = [
        RequestClass(name, prompts=builtin_prompts(name, language="en"))
        for name in ("short_answer", "long_prompt", "long_generation")
    ]
    names = [request.class_name for request in make_workload(classes, 24)]
    assert all(names.count(kind.name) == 8 for kind in classes)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: make_workload([CHAT], 0), "num_requests"),
        (lambda: make_workload([], 3), "class.share"),
        (lambda: make_workload([replace(CHAT, share=0)], 3), "class.share"),
        (lambda: make_workload([CHAT, CHAT], 3), "class.name"),
        (lambda: make_workload([CHAT], 3, seed=-1), "seed"),
        (lambda: RequestClass("", prompts=CHAT.prompts), "class.name"),
        (lambda: RequestClass("x", share=-1, prompts=CHAT.prompts), "class.share"),
        (lambda: RequestClass("x"), "class.prompts"),
        (lambda: RequestClass("x", prompts=()), "class.prompts"),
        (lambda: RequestClass("x", prompts=CHAT.prompts, prompt_lengths=BULK.prompt_lengths),
         "class.prompts"),
        (lambda: RequestClass("x", prompt_lengths=BULK.prompt_lengths), "class.output_lengths"),
        (lambda: workload_from_prompts([]), "prompts"),
        (lambda: workload_from_prompts([Prompt("a")], max_tokens=0), "max_tokens"),
    ],
)
def test_impossible_values_name_field_value_and_remedy(make, named):
    with pytest.raises(ValueError, match=rf"^{named} = .*: .*(use|give|say|needs)"):
        make()


def test_a_workload_out_of_order_is_refused():
    good = make_workload([CHAT], 4, arrivals=Arrivals("poisson", rate=1.0))
    with pytest.raises(ValueError, match="^request_id = "):
        Workload(good.requests[::-1], good.arrivals, 0)
    late = replace(good.requests[0], scheduled_arrival_s=99.0)
    with pytest.raises(ValueError, match="^scheduled_arrival_s = "):
        Workload((late, *good.requests[1:]), good.arrivals, 0)
    open_end = replace(good.requests[3], scheduled_arrival_s=None)
    with pytest.raises(ValueError, match="^scheduled_arrival_s = None"):
        Workload((*good.requests[:3], open_end), good.arrivals, 0)
