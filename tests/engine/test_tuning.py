"""A tuned ladder: batches take the cheapest rung, tokens stay what they are."""

import pytest

from cbjax import policies, tune
from cbjax.cache import VARIABLE
from cbjax.config import load_config
from cbjax.core.ladder import Ladder, Rung, by_cost
from cbjax.engine import Engine, tuning
from cbjax.engine.tuning import RungCost
from cbjax.experiment.sizes import ladder_of
from cbjax.models import load_model
from tests.engine.serving import mixed_requests, serve_all, small_ladder


def test_a_batch_takes_the_cheapest_rung_that_holds_it():
    small, middle, large = Rung(4, 4), Rung(8, 8), Rung(16, 8)
    ladder = by_cost({small: 3.0, middle: 1.0, large: 2.0})
    # The small one is never the cheapest, so it would only be compiled.
    assert ladder.rungs == (middle, large)
    assert ladder.rungs[ladder.choose(2, 2)] == middle
    assert by_cost({large: 1.0, small: 1.0}).rungs == (small, large)


def test_rungs_are_chosen_that_earn_their_compile_time():
    costs = [RungCost(Rung(4, 4), 1.0, 50.0), RungCost(Rung(8, 8), 1.9, 50.0),
             RungCost(Rung(16, 8), 2.0, 50.0)]
    batches = {(4, 4): 90, (8, 8): 10}
    assert tuning.choose_rungs(costs, batches, 10) == {Rung(16, 8): 2.0}
    assert set(tuning.choose_rungs(costs, batches, 100)) == {Rung(16, 8), Rung(4, 4)}
    assert len(tuning.choose_rungs(costs, batches, 100_000)) == 3
    assert tuning.expected_step({Rung(16, 8): 2.0, Rung(4, 4): 1.0}, batches) == pytest.approx(1.1)


def test_candidates_end_in_the_greatest_batch():
    found = tuning.candidates(20, 6)
    assert found[-1] == Rung(20, 6) and found == sorted(set(found))
    assert Rung(3, 3) in found and all(rung.sequences <= 6 for rung in found)


def test_tuned_for_other_seats_it_still_ends_in_the_greatest_batch():
    costs = {Rung(4, 4): 1.0, Rung(64, 8): 3.0}
    assert tuning.ladder_within(costs, 16, 2).rungs == (Rung(2, 2), Rung(16, 2))
    assert tuning.ladder_within(costs, 100, 32).rungs[-1] == Rung(100, 32)


@pytest.mark.slow
def test_the_command_keeps_a_ladder_that_changes_no_token(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    settings = ["model=tiny", "ladder=tuned", "seats=4", "budget=16"]
    config = load_config("quickstart", settings).cells[-1].config
    policy = policies.vllm(max_num_batched_tokens=16, max_num_seqs=4)
    with pytest.raises(ValueError, match="run python -m cbjax.tune model=tiny dtype=float32"):
        ladder_of(config, policy, 64)
    assert tune.main(["model=tiny", "seats=4", "budget=8", "prompt=8", "output=8"]) == 0
    printed = capsys.readouterr().out
    assert "8x4" in printed and "kept:" in printed
    tuned = ladder_of(config, policy, 64)
    assert isinstance(tuned, Ladder) and tuned.choose(16, 4) == len(tuned.rungs) - 1

    requests = mixed_requests(8, 256, longest_prompt=24, most_output=8, seed=3)
    # Costs that turn the order round: small batches go to the great rung.
    turned = by_cost({Rung(16, 4): 1.0, Rung(4, 4): 2.0})
    served = [
        serve_all(
            Engine(
                load_model("tiny"), policy=policy, block_size=4, num_blocks=40, max_length=64,
                ladder=ladder,
            ),
            requests,
        ).tokens
        for ladder in (small_ladder(16, 4), tuned, turned)
    ]
    assert served[0] == served[1] == served[2]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["seat=4"], "did you mean seats?"),
        (["seats=many"], "seats = 'many'"),
        (["seats=8", "budget=4"], "budget = 4: give at least the seats, 8"),
    ],
)
def test_wrong_settings_are_named(words, error, capsys):
    assert tune.main(words) == 2
    assert error in capsys.readouterr().err
