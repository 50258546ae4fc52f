"""Rewards: their formulas, how they are called, and what they may return."""

from __future__ import annotations

import functools
import json
import math

import numpy
import pytest
import torch

from commands import TINY, marl_train
from marl_runner.errors import ConfigError, RewardError
from marl_runner.rewards.call import RewardCaller, checked_rewards
from marl_runner.rewards.length_ratio import LengthRatio
from marl_runner.rewards.processors import RewardProcessors
from marl_runner.rewards.registry import REWARDS, register_reward
from marl_runner.rewards.weighted import Weighted
from marl_runner.settings import MAGRPOConfig
from marl_runner.types import Reward, Task
from scripted_team import endless, trainer_of

TASK = Task("3", {"prompt": "p", "answer": 42})


def called(function, num_agents=2, texts=("a", "b"), **options):
    return scored(function, num_agents, texts, **options).value


def scored(function, num_agents=2, texts=("a", "b"), **options):
    return RewardCaller(function, num_agents, **options)(list(texts), "sent", TASK, "task 3, turn 1, joint action 0")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("ab", "abcd", 1.0),  # rho 2, the lower bound
        ("ab", "abcdef", 1.0),  # rho 3, the upper bound
        ("ab", "abcde", 1.0),  # rho 2.5
        ("ab", "ab", math.exp(-1.0)),  # rho 1, distance 1
        ("a", "abcde", math.exp(-2.0)),  # rho 5, distance 2
        ("ab", "", math.exp(-2.0)),  # rho 0, distance 2
        ("", "abc", 0.0),  # nothing to divide by
        ("", "", 0.0),
    ],
)
def test_length_ratio_by_hand(first, second, expected):
    assert LengthRatio(2.0, 3.0)([first], [second]) == [pytest.approx(expected)]


def test_length_ratio_scores_each_joint_action_of_a_list():
    assert LengthRatio(2.0, 3.0)(["a", "ab"], ["aa", "ab"]) == [1.0, pytest.approx(math.exp(-1))]


def test_length_ratio_of_three_agents_is_the_mean_over_neighbours():
    # a → aa: rho 2 → 1; aa → aa: rho 1 → e^-1
    assert LengthRatio(2.0, 3.0)(["a"], ["aa"], ["aa"]) == [pytest.approx((1 + math.exp(-1)) / 2)]


def test_length_ratio_declares_its_range_and_keeps_it():
    reward = LengthRatio(2.0, 3.0)
    least, greatest = reward.reward_range
    for first in range(6):
        for second in range(30):
            assert least <= reward(["x" * first], ["x" * second])[0] <= greatest


@pytest.mark.parametrize("bounds", [(3.0, 2.0), (-1.0, 2.0), (2.0, math.inf), (math.nan, 3.0)])
def test_length_ratio_refuses_bounds_that_are_no_range(bounds):
    with pytest.raises(ConfigError, match="need 0 <= target_min <= target_max"):
        LengthRatio(*bounds)


def test_the_registry_holds_each_reward_once():
    assert REWARDS["length_ratio"] is LengthRatio
    with pytest.raises(ConfigError, match="reward 'length_ratio' is already registered by LengthRatio"):
        register_reward("length_ratio")(LengthRatio)


def test_processors_scale_and_shift():
    assert RewardProcessors.scale(100.0)(0.5) == 50.0
    assert RewardProcessors.shift(-4.0)(0.5) == -3.5
    assert called(lambda a, b: [0.5], processor=RewardProcessors.scale(100.0)) == 50.0


@pytest.mark.parametrize(
    "answer",
    [
        [2],
        (2.0,),
        [True + 1],
        torch.tensor([2.0], requires_grad=True),
        torch.tensor([2]),
        [torch.tensor(2.0, requires_grad=True)],
        numpy.array([2.0]),
        [numpy.float32(2.0)],
        [numpy.int64(2)],
    ],
)
def test_numbers_of_any_library_are_accepted_and_detached(answer):
    reward = called(lambda a, b: answer)
    assert reward == 2.0
    assert type(reward) is float


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        ([1.0], 4, "returned 1 values, expected a list of 4 numbers"),
        ([1.0] * 5, 4, "returned 5 values, expected a list of 4 numbers"),
        ([], 1, "returned 0 values, expected a list of 1 number"),
        (0.5, 1, "returned float 0.5, expected a list of 1 number"),
        ("0.5", 1, "returned str '0.5'"),
        (["0.5"], 1, "returned a list holding str '0.5'"),
        ({"reward": 1.0}, 1, "returned dict"),
        ([{"reward": [1.0]}], 1, "returned the component 'reward' as list"),
        ({0.5}, 1, "returned set"),
        (None, 1, "returned NoneType"),
        ([[1.0]], 1, "returned a list holding list"),
        (torch.tensor(1.0), 1, "returned Tensor"),
        (torch.ones(2), 1, "returned 2 values"),
        (torch.ones(1, 1), 1, "returned a list holding list"),
        ((x for x in [1.0]), 1, "returned generator"),
        ([1j], 1, "returned a list holding complex"),
    ],
)
def test_another_count_or_type_is_an_error_naming_function_got_and_expected(answer, expected, message):
    with pytest.raises(RewardError, match=message.replace("[", r"\[")) as caught:
        checked_rewards(answer, expected, "mine.reward", "task 3")
    assert "mine.reward" in str(caught.value)
    assert "task 3" in str(caught.value)


def test_a_coroutine_is_an_error_and_leaves_no_warning(recwarn):
    async def reward(a, b):
        return [1.0]

    with pytest.raises(RewardError, match="is async and returned a coroutine"):
        called(reward)
    assert len(recwarn) == 0


def test_none_abstains_and_the_processor_never_sees_it():
    assert called(lambda a, b: [None], processor=lambda reward: reward * 2) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_errors_unless_they_abstain(value):
    with pytest.raises(RewardError, match=r"returned (nan|inf|-inf) \(task 3, turn 1, joint action 0\)"):
        called(lambda a, b: [value])
    caller = RewardCaller(lambda a, b: [value], 2, nonfinite="abstain")
    assert caller(["a", "b"], "sent", TASK, "here") == Reward(None)
    assert caller.num_nonfinite == 1


def test_a_processor_that_makes_nan_is_an_error():
    with pytest.raises(RewardError, match="returned nan"):
        called(lambda a, b: [1.0], processor=lambda reward: math.nan)


def test_a_processor_that_raises_is_named_with_the_place():
    with pytest.raises(RewardError, match=r"processor .* raised ZeroDivisionError.*joint action 0, reward 0.0"):
        called(lambda a, b: [0.0], processor=lambda reward: 1 / reward)


def test_an_integer_beyond_the_float_range_is_an_error():
    with pytest.raises(RewardError, match="beyond the float range"):
        called(lambda a, b: [10**400])


def test_a_processor_that_returns_no_number_is_an_error():
    with pytest.raises(RewardError, match=r"processor .* returned str '1', expected a number"):
        called(lambda a, b: [1.0], processor=lambda reward: "1")


def test_an_exception_is_raised_with_name_and_place_and_called_once():
    calls = []

    def broken(first, second):
        calls.append(1)
        raise TypeError("unsupported operand")

    with pytest.raises(RewardError, match="broken raised TypeError: unsupported operand") as caught:
        called(broken)
    assert calls == [1]
    assert isinstance(caught.value.__cause__, TypeError)
    assert "task 3, turn 1, joint action 0" in str(caught.value)


def test_a_reward_may_be_the_sum_of_named_components():
    # 0.5 + 1.0 = 1.5, times 100 by the processor; the components stay as they were returned
    reward = scored(lambda a, b: [{"length": 0.5, "ratio": numpy.int64(1)}], processor=RewardProcessors.scale(100.0))
    assert reward == Reward(150.0, {"length": 0.5, "ratio": 1.0})
    assert all(type(value) is float for value in reward.components.values())


def test_the_sum_of_components_is_rounded_once():
    # one after the other, ten times 0.1 is 0.9999999999999999
    assert called(lambda a, b: [{str(i): 0.1 for i in range(10)}]) == 1.0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"tests": None}, "returned the component 'tests': None .* to abstain, return None in place of the mapping"),
        ({"tests": "1"}, "returned the component 'tests' as str '1', expected a number"),
        ({"tests": [1.0]}, "returned the component 'tests' as list"),
        ({3: 1.0}, "returned the component 3: 1.0"),
        ({}, "returned a mapping without components"),
    ],
)
def test_a_component_without_a_name_or_a_number_is_an_error(answer, message):
    with pytest.raises(RewardError, match=message):
        called(lambda a, b: [answer])


def test_a_component_that_is_not_finite_is_an_error_or_abstains_with_all_components():
    def broken(a, b):
        return [{"length": 1.0, "ratio": math.nan}]

    with pytest.raises(RewardError, match="returned nan"):
        called(broken)
    assert scored(broken, nonfinite="abstain") == Reward(None)


def test_components_are_logged_per_turn_in_training_and_evaluation_and_written_with_the_tree():
    # "ab" has a share of 1/2 of each letter: length 2, letter_a 1; rewards of both completions are the same
    def letters(texts):
        return [{"length": float(len(texts[0])), "letter_a": float(texts[0].count("a"))}]

    cfg = MAGRPOConfig(num_agents=1, num_turns=1, num_generations=2, num_train_epochs=1, eval_num_samples=1)
    rows = [{"prompt": "p"}]
    scripts = [endless("ab")]
    trainer, recorder = trainer_of(scripts, letters, cfg, rows=rows, eval_dataset=rows)
    trainer.train()
    by_kind = {event.kind: event.metrics for event in recorder.events}
    assert by_kind["train"]["turn_1/reward/length"] == 2.0
    assert by_kind["train"]["turn_1/reward/letter_a"] == 1.0
    assert by_kind["train"]["turn_1/reward_mean"] == 3.0
    assert by_kind["eval"]["eval/turn_1/reward/length"] == 2.0
    assert by_kind["eval"]["eval/turn_1/reward/letter_a"] == 1.0
    (_, root, _) = recorder.trees[0]
    assert root.joint_actions_J[0].components == {"length": 2.0, "letter_a": 1.0}


class Callable:
    def __call__(self, *completions, batch_items):
        return [float(batch_items[0]["answer"])]


@pytest.mark.parametrize(
    "function",
    [
        lambda first, second: [42.0],
        lambda *completions: [42.0 if completions == (["a"], ["b"]) else 0.0],
        lambda first, second, batch_items: [float(batch_items[0]["answer"])],
        lambda first, second, *, batch_items: [float(batch_items[0]["answer"])],
        lambda first, second, prompts=None: [42.0 if prompts == ["sent"] else 0.0],
        lambda prompts, first, second: [42.0 if (prompts, first, second) == (["sent"], ["a"], ["b"]) else 0.0],
        lambda first, prompts, second: [42.0 if (prompts, first, second) == (["sent"], ["a"], ["b"]) else 0.0],
        lambda *completions, batch_items=None, prompts=None: [42.0 if batch_items and prompts else 0.0],
        lambda first, second, **context: [42.0 if set(context) == {"prompts", "batch_items"} else 0.0],
        lambda first, second, weight=42.0: [weight],
        functools.partial(lambda weight, first, second: [weight], 42.0),
        functools.partial(lambda first, second, weight: [weight], weight=42.0),
        Callable(),
    ],
)
def test_arguments_are_bound_by_name(function):
    assert called(function) == 42.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda first: [1.0], "takes 1 completion arguments, but the team has 2 agents"),
        (lambda first, second, third: [1.0], "takes 3 completion arguments, but the team has 2 agents"),
        (lambda first, scale=2.0: [1.0], "takes 1 completion arguments, but the team has 2 agents"),
        (lambda first, second, *, weather: [1.0], "needs the keyword weather"),
        (lambda prompts, *texts: [1.0], "must take prompts by keyword"),
        (lambda prompts, first, second, /: [1.0], "must take prompts by keyword"),
        (7, "reward_func must be callable, got 7"),
    ],
)
def test_a_signature_that_does_not_fit_the_team_is_refused_before_anything_runs(function, message):
    with pytest.raises(ConfigError, match=message):
        RewardCaller(function, 2)


def test_a_reward_that_changes_the_row_does_not_change_the_dataset():
    rows = [{"prompt": "p", "answer": 1, "nested": {"calls": 0}}]

    def careless(texts, batch_items):
        batch_items[0]["answer"] += 1
        batch_items[0]["nested"]["calls"] += 1
        return [float(batch_items[0]["answer"] * batch_items[0]["nested"]["calls"])]

    cfg = MAGRPOConfig(num_agents=1, num_turns=1, num_generations=2, num_train_epochs=2, eval_interval=0)
    trainer, recorder = trainer_of([endless("a")], careless, cfg, rows=rows)
    trainer.train()
    assert rows == [{"prompt": "p", "answer": 1, "nested": {"calls": 0}}]
    assert {a.reward for _, root, _ in recorder.trees for a in root.joint_actions_J} == {2.0}


# Several rewards with their weights


def test_a_weighted_reward_by_hand():
    # 0.5 * 1 (2 characters to 1 is in the range) + 2 * (0.25 - 1), by components where there are some
    reward = Weighted(
        {"length": LengthRatio(2.0, 3.0), "levels": lambda first, second: [{"a": 0.25, "b": -1}]},
        {"length": 0.5, "levels": 2.0},
    )
    scored_once = scored(reward, texts=("a", "bb"))
    assert scored_once == Reward(-1.0, {"length": 0.5, "levels/a": 0.5, "levels/b": -2.0})


def test_a_weighted_reward_gives_each_the_context_that_it_names():
    reward = Weighted(
        {
            "row": lambda first, second, batch_item: [batch_item["answer"]],
            "prompt": lambda first, second, *, prompts, batch_items: [len(prompts[0]) + batch_items[0]["answer"]],
            "between": lambda first, prompts, second: [len(first[0]) + len(prompts[0]) + len(second[0])],
        },
        {"row": 1.0, "prompt": 10.0, "between": 100.0},
    )
    # 42 + 10 * (len("sent") + 42) + 100 * (1 + 4 + 2)
    assert called(reward, texts=("a", "bb")) == 42 + 460 + 700


def test_a_weighted_reward_abstains_where_one_of_them_does():
    reward = Weighted({"a": lambda x, y: [1.0], "b": lambda x, y: [None]}, {"a": 1.0, "b": 1.0})
    assert scored(reward) == Reward(None)


def test_a_weighted_reward_names_the_one_that_returns_something_else():
    reward = Weighted({"mine": lambda x, y: "1"}, {"mine": 1.0})
    with pytest.raises(RewardError, match=r"reward mine returned str '1', expected a list of 1 number"):
        called(reward)


class Declaring:
    reward_range = (-1.0, 3.0)
    required_fields = ("tests", "prompt")
    min_agents = 3

    def __init__(self):
        self.started = 0

    def start(self):
        self.started += 1

    def check_row(self, row):
        return "is bad" if row["prompt"] == "bad" else ""

    def __call__(self, *texts):
        return [0.0]


def test_a_weighted_reward_declares_what_its_parts_declare():
    part = Declaring()
    reward = Weighted({"a": LengthRatio(2.0, 3.0), "b": part}, {"a": 0.5, "b": -2.0})
    # [0, 1] * 0.5 and [-1, 3] * -2, which is [-6, 2]
    assert reward.reward_range == (0.0 - 6.0, 0.5 + 2.0)
    assert reward.required_fields == ("tests", "prompt")
    assert reward.min_agents == 3
    assert (reward.check_row({"prompt": "bad"}), reward.check_row({"prompt": "good"})) == ("is bad", "")
    reward.start()
    assert part.started == 1
    assert Weighted({"a": part, "b": lambda x, y: [0]}, {"a": 1.0, "b": 1.0}).reward_range is None


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ({}, {}, r"reward.rewards \(none\) and reward.weights \(none\) need the same names, at least one"),
        ({"a": len}, {"b": 1.0}, r"reward.rewards \(a\) and reward.weights \(b\) need the same names"),
        ({"a": len}, {"a": math.inf}, "reward.weights.a must be a finite number, got inf"),
    ],
)
def test_weights_that_do_not_fit_are_refused(rewards, weights, message):
    with pytest.raises(ConfigError, match=message):
        Weighted(rewards, weights)


def test_a_weighted_reward_is_composed_of_options_of_the_group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "reward").mkdir(parents=True)
    (tmp_path / "conf" / "reward" / "mine.yaml").write_text(
        "defaults:\n  - weighted\n  - /reward@rewards.length: length_ratio\n  - _self_\n"
        "rewards:\n  length:\n    target_min: 1.0\nweights:\n  length: 0.5\n"
    )
    ended = marl_train("--config-dir=conf", *TINY, "reward=mine", "hydra.run.dir=run", "tracking.console=false")
    assert (ended.code, ended.err) == (0, "")
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (train,) = [event for event in metrics if event["kind"] == "train"]
    assert train["turn_1/reward/length"] == pytest.approx(train["turn_1/reward_mean"])
