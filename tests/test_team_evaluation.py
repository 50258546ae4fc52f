"""What an evaluation computes, on scripted teams and by hand.

1. pass@k is the unbiased estimate, exactly; a rule says what passes, at the last turn played and at each turn.
2. An interval is the percentile bootstrap over tasks: the samples of a task stay together.
3. Every estimate is a mean over tasks of the task's own mean, computed as training's evaluation computes it.
4. What is drawn is named by task, sample and turn, and never what training's own evaluations draw.
"""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from statistics import mean

import pytest

from marl_runner.errors import ConfigError
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.team_evaluation.interval import bootstrap_interval
from marl_runner.team_evaluation.passing import DEFAULT_RULE, PassRule, pass_at_k
from marl_runner.team_evaluation.play import evaluate_team, greedy
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Reward, Sampling
from scripted_team import Recorder, endless, script, trainer_of

SAMPLING = Sampling(max_new_tokens=8, temperature=0.6, top_p=0.6, top_k=50)


def config(**changes) -> MAGRPOConfig:
    defaults = {"num_agents": 1, "num_generations": 2, "num_turns": 1, "early_termination_threshold": None}
    return MAGRPOConfig(**{**defaults, **changes})


def by_letter(texts):
    return [float("abcdefghij".index(texts[0]))]


def by_tests(texts):
    """Components: `tests` in tenths by the letter (k passes), and 0.5 for having answered."""
    return [{"tests": 1.0 if texts[0] == "j" else "abcdefghij".index(texts[0]) / 10, "style": 0.5}]


def again(agent_completions):
    return ["again"] * len(agent_completions)


def evaluated(scripts, reward, num_samples=1, tasks="xy", settings=None, options=None, **asked):
    """One evaluation of a scripted team over tasks whose prompts are these letters, and the trainer."""
    rows = [{"prompt": letter} for letter in tasks]
    trainer, _ = trainer_of(scripts, reward, settings or config(), eval_dataset=rows, **(options or {}))
    return evaluate_team(trainer, trainer.eval_tasks, num_samples, **asked), trainer


# --- pass@k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 2, 1 - 3 / 6),  # C(3, 2) / C(4, 2)
        (5, 2, 3, 1 - 1 / 10),  # C(3, 3) / C(5, 3)
        (10, 3, 1, 3 / 10),
        (6, 0, 3, 0.0),
        (6, 6, 1, 1.0),
        (4, 2, 3, 1.0),  # two failures cannot fill three places: C(2, 3) = 0
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
    assert pass_at_k(n, c, k) == expected


def test_pass_at_k_is_the_share_of_the_subsets_that_hold_a_pass():
    for n in range(1, 7):
        for c in range(n + 1):
            samples = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                hit = [any(subset) for subset in itertools.combinations(samples, k)]
                assert pass_at_k(n, c, k) == float(Fraction(sum(hit), len(hit)))


def test_pass_at_k_is_unbiased():
    """With passes of probability 0.3 in 5 samples, its expectation is 1 - 0.7^k; that of the best of k is not."""
    for k in range(1, 6):
        expected = sum(math.comb(5, c) * 0.3**c * 0.7 ** (5 - c) * pass_at_k(5, c, k) for c in range(6))
        assert expected == pytest.approx(1 - 0.7**k, abs=1e-12)


def test_pass_at_k_stays_exact_where_the_numbers_overflow_a_float():
    # C(1999, 1000) / C(2000, 1000) = 1000 / 2000, each of 600 digits.
    assert pass_at_k(2000, 1, 1000) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_pass_at_k_refuses_numbers_that_mean_nothing(n, c, k):
    with pytest.raises(ValueError, match=f"got n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_a_rule_compares_a_component_or_the_reward():
    reward = Reward(3.5, {"tests": 1.0, "style": 0.25})
    assert DEFAULT_RULE.holds(reward)
    assert not DEFAULT_RULE.holds(Reward(9.0, {"tests": 0.99}))
    assert PassRule("style", 0.25).holds(reward)
    assert PassRule("reward", 3.5).holds(reward)
    assert not PassRule("reward", 3.6).holds(reward)
    assert not PassRule("other", -9.0).holds(reward)
    assert not PassRule("reward", -9.0).holds(Reward(None))
    assert (str(DEFAULT_RULE), str(PassRule("style", 0.25))) == ("tests>=1", "style>=0.25")


# --- intervals


def test_the_interval_of_two_tasks_is_their_range():
    # Resampled means of {0, 1}: 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4, each beyond 2.5 %.
    assert bootstrap_interval([0.0, 1.0], 10_000) == (0.0, 1.0)


def test_the_interval_of_one_pass_in_eight_tasks_has_the_quantiles_of_a_binomial():
    # The mean of 8 resampled tasks is B / 8, B of Binomial(8, 1/8): P(B = 0) = (7/8)^8 = 0.344 > 0.025, so low is 0;
    # P(B <= 2) = 0.933 < 0.975 <= P(B <= 3) = 0.989, so high is 3/8.
    probability = [math.comb(8, b) * (1 / 8) ** b * (7 / 8) ** (8 - b) for b in range(4)]
    assert sum(probability[:3]) < 0.975 < sum(probability)
    assert bootstrap_interval([0.0] * 7 + [1.0], 10_000) == (0.0, 3 / 8)


def test_the_interval_is_the_same_every_time_and_needs_two_tasks_that_differ(recwarn):
    values = [0.1, 0.7, 0.3, 0.9]
    assert bootstrap_interval(values, 500) == bootstrap_interval(values, 500)
    assert bootstrap_interval([0.4], 500) is None
    assert bootstrap_interval([0.1] * 3, 500) == (0.1, 0.1)
    assert not recwarn.list


def test_many_tasks_are_resampled_in_parts(monkeypatch):
    values = [float(i % 7) for i in range(300)]
    whole = bootstrap_interval(values, 1000)
    monkeypatch.setattr("marl_runner.team_evaluation.interval.BATCH_NUMBERS", 300)
    assert bootstrap_interval(values, 1000) == whole


# --- estimates


def test_rewards_of_each_turn_and_their_returns_by_hand():
    # Turn 1: task x has b, d (1, 3), task y has a, e (0, 4). Turn 2: task x has c, c (2, 2), task y has i, a (8, 0).
    result, _ = evaluated(
        [script("b", "d", "a", "e", "c", "c", "i", "a")],
        by_letter,
        num_samples=2,
        settings=config(num_turns=2, discount=0.5),
        options={"external_transition": again},
    )
    assert {name: estimate.mean for name, estimate in result.metrics.items()} == {
        "eval/turn_1/reward_mean": (2 + 2) / 2,
        "eval/turn_2/reward_mean": (2 + 4) / 2,
        # task x: (1 + 1, 3 + 1) / 2 = 3; task y: (0 + 4, 4 + 0) / 2 = 4
        "eval/turn_1/expected_return": (3 + 4) / 2,
        "eval/turn_2/expected_return": (2 + 4) / 2,
    }
    # The samples of a task belong together: the tasks' means 2 and 2, then 2 and 4.
    assert result.metrics["eval/turn_1/reward_mean"].interval == (2.0, 2.0)
    assert result.metrics["eval/turn_2/reward_mean"].interval == (2.0, 4.0)
    assert result.rule is None
    path = result.tasks[1].paths_S[0]
    assert result.tasks[1].uid == "eval-2"
    assert [(turn.texts.prompts_N, turn.texts.actions_N, turn.reward.value) for turn in path] == [
        (("y",), ("a",), 0.0),
        (("again",), ("i",), 8.0),
    ]


def test_one_sample_of_each_task_is_what_training_itself_reports():
    letters = [*"bdaejgch"]
    settings = config(num_turns=2, discount=0.9, eval_num_samples=4, eval_batch_size=4)
    asked = {"settings": settings, "options": {"external_transition": again}, "tasks": "wxyz"}
    result, _ = evaluated([script(*letters)], by_tests, **asked)
    rows = [{"prompt": letter} for letter in "wxyz"]
    trainer, _ = trainer_of([script(*letters)], by_tests, settings, eval_dataset=rows, external_transition=again)
    assert {name: of.mean for name, of in result.metrics.items() if "pass@" not in name} == trainer.evaluate()
    # Of the second turn's j, g, c, h one passes.
    assert result.metrics["eval/pass@1"].mean == 1 / 4


def test_passes_are_counted_at_each_turn_and_at_the_last():
    # Task x: j then a, a then j, a then a. Task y: a then j, j then j, a then j.
    result, _ = evaluated(
        [script(*"jaaaja", *"ajajjj")],
        by_tests,
        num_samples=3,
        settings=config(num_turns=2),
        options={"external_transition": again},
        ks=(1, 2),
    )
    means = {name: estimate.mean for name, estimate in result.metrics.items() if "pass@" in name}
    one_of_two = 2 / 3  # n = 3, c = 1, k = 2: 1 - C(2, 2) / C(3, 2) = (3 - 1) / 3
    assert means == {
        "eval/turn_1/pass@1": mean([1 / 3, 1 / 3]),
        "eval/turn_1/pass@2": mean([one_of_two, one_of_two]),
        "eval/turn_2/pass@1": mean([1 / 3, 1.0]),
        "eval/turn_2/pass@2": mean([one_of_two, 1.0]),
        "eval/pass@1": mean([1 / 3, 1.0]),
        "eval/pass@2": mean([one_of_two, 1.0]),
    }
    assert result.rule == DEFAULT_RULE
    assert result.metrics["eval/pass@1"].interval == (1 / 3, 1.0)


def test_a_path_that_ends_early_passes_by_its_last_turn_and_one_that_never_began_does_not():
    def long_after_j(agent_completions):
        return ["long prompt" if agent_completions[0] == "j" else "go"]

    result, trainer = evaluated(
        [script("j", "a", "b")],
        by_tests,
        tasks=["x", "y", "too long"],
        settings=config(num_turns=2, max_prompt_tokens=4, overlong_prompt="drop"),
        options={"external_transition": long_after_j},
    )
    assert [len(task.paths_S[0]) for task in result.tasks] == [1, 2, 0]
    assert result.metrics["eval/pass@1"].mean == 1 / 3
    assert result.metrics["eval/turn_1/pass@1"].mean == 1 / 3
    assert result.metrics["eval/turn_2/pass@1"].mean == 0.0
    # Rewards are of those that were played.
    assert result.metrics["eval/turn_1/reward_mean"].num_tasks == 2
    assert result.metrics["eval/turn_2/reward_mean"].num_tasks == 1
    assert result.metrics["eval/turn_2/reward_mean"].interval is None
    assert trainer.engine.num_dropped_prompts == 2


def test_abstained_rewards_are_left_out_of_the_mean_and_do_not_pass():
    def sometimes(texts):
        return [None] if texts[0] == "a" else [{"tests": 1.0}]

    result, _ = evaluated([script(*"aabb", *"abab")], sometimes, num_samples=2, tasks="wxyz")
    assert result.metrics["eval/turn_1/reward_mean"].mean == 1.0
    # Both samples of task w abstain.
    assert result.metrics["eval/turn_1/reward_mean"].num_tasks == 3
    assert result.metrics["eval/pass@1"].mean == mean([0.0, 1.0, 0.5, 0.5])


def test_early_termination_plays_no_part():
    settings = config(num_turns=2, early_termination_threshold=-1.0)
    result, _ = evaluated([script(*"bcde")], by_letter, settings=settings, options={"external_transition": again})
    assert result.metrics["eval/turn_2/reward_mean"].mean == mean([3.0, 4.0])


# --- what passes must be there


def test_without_a_part_that_says_so_nothing_passes_or_fails():
    result, _ = evaluated([endless("b")], by_letter)
    assert result.rule is None
    assert not [name for name in result.metrics if "pass@" in name]


@pytest.mark.parametrize(
    ("reward", "asked", "sentence"),
    [
        (
            by_letter,
            {"ks": (1,)},
            "pass@k by tests>=1 needs a reward with the component 'tests', and it has none: "
            "choose what passes with --pass 'reward>=VALUE'",
        ),
        (
            by_tests,
            {"rule": PassRule("test", 1.0)},
            "pass@k by test>=1 needs a reward with the component 'test', and it has style, tests: "
            "choose what passes with --pass 'style>=VALUE'",
        ),
    ],
)
def test_a_component_that_no_reward_has_ends_the_evaluation_after_the_first_batch(reward, asked, sentence):
    with pytest.raises(ConfigError) as caught:
        evaluated([script("b")], reward, batch_size=1, **asked)  # the script has no second completion
    assert str(caught.value) == sentence


def test_the_reward_itself_can_be_what_passes():
    result, _ = evaluated([script(*"bdae")], by_letter, num_samples=2, rule=PassRule("reward", 3.0), ks=(1, 2))
    assert result.metrics["eval/pass@1"].mean == 0.5
    assert result.metrics["eval/pass@2"].mean == 1.0


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"num_samples": 0}, "num_samples must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"resamples": 99}, "resamples must be >= 100, got 99"),
        ({"ks": (1, 3), "num_samples": 2}, "pass@3 needs at least 3 samples of each task, got 2: set --samples 3"),
        ({"ks": (0,)}, "pass@k needs k >= 1, got 0"),
        ({"tasks": ""}, "there are no tasks to evaluate"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_is_played(asked, sentence):
    with pytest.raises(ConfigError) as caught:
        evaluated([script()], by_letter, **asked)
    assert str(caught.value) == sentence


# --- what is drawn, and how


class Watched(ScriptedPolicy):
    """Remembers the seeds and the sampling of every request."""

    def generate(self, prompts, num_completions, sampling, seeds):
        self.drawn = [*vars(self).get("drawn", []), *seeds]
        self.sampling = sampling
        return super().generate(prompts, num_completions, sampling, seeds)


def watched_trainer():
    policies = [Watched(endless("b")), Watched(endless("c"))]
    trainer = MAGRPOTrainer(
        agents=policies,
        reward_func=lambda first, second: [1.0],
        external_transition=again,
        eval_dataset=[{"prompt": "x"}, {"prompt": "y"}, {"prompt": "z"}],
        args=config(num_agents=2, num_turns=2, seed=7, max_rollout_rows=5),
        tracker=Recorder(),
    )
    return trainer, policies


def test_streams_are_named_by_agent_task_sample_and_turn_whatever_the_batches():
    expected = [
        {derive_seed(7, "eval", agent, 0, i, s, turn) for i in range(3) for s in range(2) for turn in range(2)}
        for agent in range(2)
    ]
    for batch_size in (None, 1, 4):
        trainer, policies = watched_trainer()
        evaluate_team(trainer, trainer.eval_tasks, 2, batch_size=batch_size)
        assert [len(policy.drawn) for policy in policies] == [12, 12]
        assert [set(policy.drawn) for policy in policies] == expected


def test_trainings_own_evaluations_draw_from_other_streams():
    trainer, policies = watched_trainer()
    for _ in range(3):
        trainer.evaluate()
    own = {seed for policy in policies for seed in policy.drawn}
    assert len(own) == 3 * 3 * 2 * 2  # evaluations, tasks, turns, agents
    for policy in policies:
        policy.drawn = []
    evaluate_team(trainer, trainer.eval_tasks, 3)
    assert not own & {seed for policy in policies for seed in policy.drawn}


def test_paths_are_played_in_batches_that_max_rollout_rows_bounds():
    played = []
    trainer, policies = watched_trainer()
    evaluate_team(trainer, trainer.eval_tasks, 2, batch_size=64, on_played=played.append)
    assert played == [5, 1]
    assert [len(request) for request in policies[0].requests] == [5, 5, 1, 1]


def test_sampling_is_trainings_or_what_is_asked_for():
    trainer, policies = watched_trainer()
    evaluate_team(trainer, trainer.eval_tasks, 1)
    assert policies[0].sampling == trainer.engine.sampling
    evaluate_team(trainer, trainer.eval_tasks, 1, sampling=greedy(SAMPLING))
    assert policies[0].sampling == Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=1)


def test_messages_name_task_sample_and_turn():
    def failing(texts):
        raise KeyError(texts[0])

    with pytest.raises(Exception, match=r"\(evaluation task eval-1, sample 1, turn 1; completions \['b'\]\)"):
        evaluated([endless("b")], failing, num_samples=2)


def test_an_evaluation_leaves_the_trainer_as_it_was():
    trainer, policies = watched_trainer()
    before = json.dumps([policy.logits_V.tolist() for policy in policies])
    evaluate_team(trainer, trainer.eval_tasks, 2)
    assert json.dumps([policy.logits_V.tolist() for policy in policies]) == before
    assert trainer.counters.tasks == 0
