"""The rollout engine: tree shape, env steps, histories, early termination, and where the samples come from.

Behaviours protected here:
    1. one batched call per agent and turn, over all open nodes, in chunks of max_rollout_rows
    2. env_step grows by J at every node, depth-first in pre-order
    3. a transition sees the task's prompt, its own branch's completions and histories
    4. children only below the horizon, and not where the mean reward is greater than the threshold
    5. the recorded prompt is the text that was really sent
    6. tasks between which no update and no evaluation falls are sampled together, as many as fill a batch
    7. reward workers change when a joint action is scored, not what is recorded
"""

from __future__ import annotations

import threading
import time

import pytest

from marl_runner.errors import ConfigError, RewardError, TransitionError
from marl_runner.settings import MAGRPOConfig
from scripted_team import endless, script, trainer_of


def config(**changes) -> MAGRPOConfig:
    defaults = {"num_agents": 1, "num_generations": 2, "num_train_epochs": 1, "eval_interval": 0, "logging_steps": 1}
    return MAGRPOConfig(**{**defaults, "early_termination_threshold": None, **changes})


def zero(*completions_N):
    return [0.0]


def echo(prompt, agent_completions, num_agents):
    return [f"{prompt}+{text}" for text in agent_completions]


def rolled(trainer):
    trainer.train()
    return trainer.tracker.trees[0][1]


def test_env_steps_are_numbered_depth_first_whatever_order_generation_ran_in():
    trainer, recorder = trainer_of(
        [endless("a", "b")], zero, config(num_turns=3), external_transition=echo, rows=[{"prompt": "p"}] * 2
    )
    trainer.train()
    # J = 2: root 2; first child 4, its leaves 6, 8; second child 10, its leaves 12, 14
    assert [node.env_step for node in recorder.trees[0][1].walk()] == [2, 4, 6, 8, 10, 12, 14]
    # the next task goes on from 14
    assert [node.env_step for node in recorder.trees[1][1].walk()] == [16, 18, 20, 22, 24, 26, 28]
    assert [sample.env_step for sample in recorder.trees[0][2]] == [2, 4, 6, 8, 10, 12, 14]


def test_all_open_nodes_of_a_turn_are_sampled_in_one_call_per_agent():
    trainer, _ = trainer_of(
        [endless("a", "b"), endless("c", "d")], zero, config(num_agents=2, num_turns=3), external_transition=echo
    )
    trainer.train()
    for agent in trainer.team.agents:
        assert [len(prompts) for prompts in agent.policy.requests] == [1, 2, 4]


def test_a_level_wider_than_max_rollout_rows_is_sampled_in_chunks():
    trainer, _ = trainer_of(
        [endless("a", "b")], zero, config(num_turns=3, max_rollout_rows=5), external_transition=echo
    )
    trainer.train()
    # 5 rows hold 2 prompts of 2 completions: 1 | 2 | 4 = 2 + 2
    assert [len(prompts) for prompts in trainer.team.agents[0].policy.requests] == [1, 2, 2, 2]


def requests_of(num_tasks, **settings):
    """How many prompts each call of a run sampled together; "e" is the prompt of the one evaluation task."""
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        zero,
        config(**{"num_turns": 1, **settings}),
        external_transition=echo,
        rows=[{"prompt": f"{number}"} for number in range(num_tasks)],
        eval_dataset=[{"prompt": "e"}],
    )
    trainer.train()
    assert [task.prompt for task, _, _ in recorder.trees] == [f"{number}" for number in range(num_tasks)]
    requests = trainer.team.agents[0].policy.requests
    return ["e" if prompts == ("e",) else len(prompts) for prompts in requests]


@pytest.mark.parametrize(
    ("settings", "requests"),
    [
        # one node per task: the buffer is full after 4 tasks, and flushed after 2
        ({"rollout_buffer_size": 4}, [4, 2]),
        ({"rollout_buffer_size": 1}, [1] * 6),
        # 7 rows hold 3 tasks of 2 completions; the fourth fills the buffer
        ({"rollout_buffer_size": 4, "max_rollout_rows": 7}, [3, 1, 2]),
        # before each third task, and at the end
        ({"rollout_buffer_size": 10, "eval_interval": 3}, ["e", 3, "e", 3, "e"]),
        ({"rollout_buffer_size": 2, "eval_interval": 3}, ["e", 2, 1, "e", 1, 2, "e"]),
        # 1 + 2 nodes per task at most: two tasks could fill a buffer of 6 with the last node, three before the end
        ({"rollout_buffer_size": 6, "num_turns": 2}, [2, 4, 2, 4, 2, 4]),
        ({"rollout_buffer_size": 9, "num_turns": 2}, [3, 6, 3, 6]),
        # the second turn of a task has 2 nodes of 2 completions: 8 rows hold two tasks
        ({"rollout_buffer_size": 100, "num_turns": 2, "max_rollout_rows": 8}, [2, 4, 2, 4, 2, 4]),
    ],
)
def test_tasks_are_sampled_together_up_to_the_next_update_evaluation_or_full_batch(settings, requests):
    assert requests_of(6, **settings) == requests


def test_each_branch_gets_its_own_completions_and_prompts():
    trainer, _ = trainer_of(
        [script("a", "b", "c", "d", "e", "f"), script("g", "h", "i", "j", "a", "b")],
        zero,
        config(num_agents=2, num_turns=2),
        external_transition=echo,
    )
    root = rolled(trainer)
    assert [[prompt.text for prompt in child.prompts_N] for child in root.children_J] == [
        ["p+a", "p+g"],
        ["p+b", "p+h"],
    ]
    assert [[c.text for c in child.completions_N_K[0]] for child in root.children_J] == [["c", "d"], ["e", "f"]]


def test_cross_mode_gives_every_combination_one_child():
    trainer, _ = trainer_of(
        [endless("a", "b"), endless("c", "d")],
        zero,
        config(num_agents=2, num_turns=2, joint_mode="cross"),
        external_transition=echo,
    )
    root = rolled(trainer)
    assert [action.index_N for action in root.joint_actions_J] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [[p.text for p in child.prompts_N] for child in root.children_J] == [
        ["p+a", "p+c"],
        ["p+a", "p+d"],
        ["p+b", "p+c"],
        ["p+b", "p+d"],
    ]
    # J = 4: root 4, children 8, 12, 16, 20
    assert [node.env_step for node in root.walk()] == [4, 8, 12, 16, 20]


def test_a_transition_sees_the_histories_of_its_own_branch():
    seen = []

    def transition(prompt, agent_completions, num_agents, prompt_history_per_agent, response_history_per_agent):
        seen.append((agent_completions, prompt_history_per_agent, response_history_per_agent))
        return [f"t{len(prompt_history_per_agent[0])}"] * num_agents

    trainer, _ = trainer_of(
        [script("a", "b", "c", "d", "e", "f", *"gggggggg")], zero, config(num_turns=3), external_transition=transition
    )
    trainer.train()
    assert seen == [
        (["a"], [["p"]], [["a"]]),
        (["b"], [["p"]], [["b"]]),
        (["c"], [["p", "t1"]], [["a", "c"]]),
        (["d"], [["p", "t1"]], [["a", "d"]]),
        (["e"], [["p", "t1"]], [["b", "e"]]),
        (["f"], [["p", "t1"]], [["b", "f"]]),
    ]


def test_histories_hold_the_text_that_was_sent_after_the_formatter():
    seen = []

    def transition(agent_completions, prompt_history_per_agent):
        seen.append(prompt_history_per_agent)
        return ["next"]

    trainer, _ = trainer_of(
        [endless("a")],
        zero,
        config(num_turns=3),
        external_transition=transition,
        formatters=lambda row: f"<{row['prompt']}>",
    )
    trainer.train()
    assert seen[0] == [["<p>"]]
    assert seen[-1] == [["<p>", "<next>"]]


def test_passthrough_sends_the_transition_s_prompt_past_the_formatter():
    options = {"external_transition": lambda prompt: ["next"], "formatters": lambda row: f"<{row['prompt']}>"}
    trainer, _ = trainer_of([endless("a")], zero, config(num_turns=2, external_prompt_passthrough=True), **options)
    assert [node.prompts_N[0].text for node in rolled(trainer).walk()] == ["<p>", "next", "next"]


def test_a_formatter_that_names_external_prompts_receives_them():
    def formatter(row, external_prompts=None):
        return f"{row['prompt']}|{external_prompts}"

    trainer, _ = trainer_of(
        [endless("a")], zero, config(num_turns=2), external_transition=lambda prompt: ["next"], formatters=formatter
    )
    assert [node.prompts_N[0].text for node in rolled(trainer).walk()] == ["p|None", "next|next", "next|next"]


def by_letter(values: dict[str, float]):
    return lambda texts: [values[texts[0]]]


def test_a_branch_ends_where_its_mean_reward_is_greater_than_the_threshold():
    # root mean (0+1)/2 = 0.5 > 0.6 is false → expanded; first child mean 1 ends, second mean 0 goes on
    trainer, _ = trainer_of(
        [script("a", "b", "b", "b", "a", "a", "a", "a", "a", "a")],
        by_letter({"a": 0.0, "b": 1.0}),
        config(num_turns=3, early_termination_threshold=0.6),
        external_transition=echo,
    )
    root = rolled(trainer)
    first, second = root.children_J
    assert (first.ended, first.children_J) == ("early_termination", ())
    assert len(second.children_J) == 2
    assert [node.env_step for node in root.walk()] == [2, 4, 6, 8, 10]


def test_a_mean_equal_to_the_threshold_goes_on():
    trainer, _ = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 0.0, "b": 1.0}),
        config(num_turns=2, early_termination_threshold=0.5),
        external_transition=echo,
    )
    assert len(rolled(trainer).children_J) == 2


def test_early_termination_looks_at_the_processed_reward():
    trainer, _ = trainer_of(
        [endless("a")],
        by_letter({"a": 1.0}),
        config(num_turns=2, early_termination_threshold=-0.2),
        external_transition=echo,
        reward_processor=lambda reward: reward - 4.0,
    )
    root = rolled(trainer)
    assert [action.reward for action in root.joint_actions_J] == [-3.0, -3.0]
    assert len(root.children_J) == 2


def test_returns_of_the_tree_reach_the_samples():
    # leaf rewards: first child c=1 d=2 (mean 1.5), second child e=3 f=5 (mean 4); root a=10, b=20
    trainer, recorder = trainer_of(
        [script("a", "b", "c", "d", "e", "f")],
        by_letter(dict(zip("abcdef", (10.0, 20.0, 1.0, 2.0, 3.0, 5.0), strict=True))),
        config(num_turns=2, advantage_normalization=False),
        external_transition=echo,
    )
    trainer.train()
    root, first, second = recorder.trees[0][2]
    assert root.returns_K == (10 + 1.5, 20 + 4)
    assert root.advantages_K == (11.5 - 17.75, 24 - 17.75)
    assert (first.returns_K, second.returns_K) == ((1.0, 2.0), (3.0, 5.0))


def test_node_weighting_objective_weighs_a_node_by_its_siblings_in_a_full_tree():
    trainer, recorder = trainer_of(
        [endless("a", "b")], zero, config(num_turns=3, node_weighting="objective"), external_transition=echo
    )
    trainer.train()
    # J = 2: 1 root, 2 nodes at turn 2, 4 at turn 3; pre-order
    assert [sample.weight for sample in recorder.trees[0][2]] == [1, 1 / 2, 1 / 4, 1 / 4, 1 / 2, 1 / 4, 1 / 4]


def test_the_reward_is_called_once_per_joint_action_with_lists_of_one_text():
    calls = []

    def reward(first, second):
        calls.append((first, second))
        return [0.0]

    trainer, _ = trainer_of([script("a", "b"), script("c", "d")], reward, config(num_agents=2, num_turns=1))
    trainer.train()
    assert calls == [(["a"], ["c"]), (["b"], ["d"])]


def test_reward_workers_score_at_the_same_time_and_every_reward_keeps_its_place():
    """4 joint actions, two at a time: each waits for another; those that come later in the node answer first."""
    barrier = threading.Barrier(2, timeout=20)

    def reward(first, second):
        barrier.wait()
        value = float("abcdefgh".index(first[0]) + 10 * "abcdefgh".index(second[0]))
        time.sleep((33 - value) / 1000)
        return [value]

    trainer, _ = trainer_of(
        [script("a", "b"), script("c", "d")],
        reward,
        config(num_agents=2, num_turns=1, joint_mode="cross", reward_num_workers=2),
    )
    # a, b are 0, 1; c, d are 20, 30
    assert [action.reward for action in rolled(trainer).joint_actions_J] == [20.0, 30.0, 21.0, 31.0]


def test_a_reward_that_fails_in_a_worker_stops_the_run_with_its_place():
    def broken(texts):
        raise ValueError("no judge")

    trainer, _ = trainer_of([script("a", "b")], broken, config(num_turns=1, reward_num_workers=2))
    with pytest.raises(RewardError, match="broken raised ValueError: no judge") as caught:
        trainer.train()
    assert "task 1, turn 1, joint action 0" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["one"], "returned 1 prompts, expected a list of 2 prompts, one per agent"),
        (["one", "two", "three"], "returned 3 prompts"),
        ("ab", "returned str"),
        (None, "returned NoneType"),
        ({"a": 1, "b": 2}, "returned dict"),
        (["one", 2], "returned int for agent 1"),
    ],
)
def test_another_answer_of_a_transition_is_an_error_naming_hook_and_turn(answer, message):
    def two_prompts(prompt):
        return answer

    trainer, _ = trainer_of(
        [endless("a"), endless("a")], zero, config(num_agents=2, num_turns=2), external_transition=two_prompts
    )
    with pytest.raises(TransitionError, match=message) as caught:
        trainer.train()
    assert "two_prompts" in str(caught.value)
    assert "task 1, after turn 1" in str(caught.value)


def test_an_exception_in_a_transition_keeps_its_cause():
    def broken(prompt):
        raise TypeError("mine")

    trainer, _ = trainer_of([endless("a")], zero, config(num_turns=2), external_transition=broken)
    with pytest.raises(TransitionError, match="broken raised TypeError: mine") as caught:
        trainer.train()
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_transition_that_needs_something_unknown_is_refused_when_the_trainer_is_made():
    with pytest.raises(ConfigError, match="needs weather, which is not offered"):
        trainer_of([endless("a")], zero, config(num_turns=2), external_transition=lambda prompt, weather: ["x"])


def test_several_turns_without_a_transition_are_refused():
    with pytest.raises(ConfigError, match="num_turns=2 needs an external_transition"):
        trainer_of([endless("a")], zero, config(num_turns=2))


def test_a_transition_receives_the_row_if_it_names_it():
    seen = []

    def transition(batch_item):
        seen.append(batch_item)
        return ["next"]

    trainer, _ = trainer_of(
        [endless("a")], zero, config(num_turns=2), external_transition=transition, rows=[{"prompt": "p", "answer": 7}]
    )
    trainer.train()
    assert seen == [{"prompt": "p", "answer": 7}] * 2


@pytest.mark.parametrize(("policy", "trees"), [("drop", 0), ("truncate", 1)])
def test_an_overlong_first_prompt_is_dropped_or_cut_to_its_tail(policy, trees):
    rows = [{"prompt": "abcdef"}, {"prompt": "xy"}]
    trainer, recorder = trainer_of(
        [endless("a")], zero, config(num_turns=1, max_prompt_tokens=3, overlong_prompt=policy), rows=rows
    )
    counters = trainer.train()
    assert len(recorder.trees) == 1 + trees
    assert counters.dropped_tasks == 1 - trees
    assert trainer.engine.num_truncated_prompts == trees
    assert recorder.trees[-1][1].prompts_N[0].text == "xy"
    if trees:
        assert recorder.trees[0][1].prompts_N[0].text == "def"


def test_a_branch_whose_prompt_grew_too_long_ends_there_when_dropped():
    def grow(prompt, agent_completions):
        return ["x" * 9] if agent_completions == ["a"] else ["x"]

    trainer, _ = trainer_of(
        [script("a", "b", "c", "d")],
        by_letter({"a": 1.0, "b": 2.0, "c": 4.0, "d": 6.0}),
        config(num_turns=2, max_prompt_tokens=3, overlong_prompt="drop"),
        external_transition=grow,
    )
    root = rolled(trainer)
    dropped, kept = root.children_J
    assert (dropped.ended, dropped.joint_actions_J) == ("overlong_prompt", ())
    assert root.returns_J == (None, 2 + (4 + 6) / 2)
    assert [node.env_step for node in root.walk()] == [2, 2, 4]
    assert trainer.engine.num_dropped_prompts == 1
    assert kept.ended == "horizon"
