"""`dry_run=true`: how much a run will do at most, by hand, and that no weight is loaded for it."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from commands import TINY, marl_train, model_folder, summary
from marl_runner.advice import advice
from marl_runner.agents.source import AgentSize
from marl_runner.counts import TreeCounts, max_updates, num_evaluations, tree_counts
from marl_runner.plan import agents_table, memory_bytes
from marl_runner.settings import MAGRPOConfig

TWO_TURNS = ("transition=revise", "trainer.num_turns=2", "trainer.early_termination_threshold=null")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def planned(*arguments: str) -> dict[str, list[str]]:
    """The rows of the plan's tables, by their first cell."""
    ended = marl_train(*arguments, "dry_run=true")
    assert (ended.code, ended.err) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in ended.out.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows} | {"text": [ended.out]}


def config(**settings: object) -> MAGRPOConfig:
    return MAGRPOConfig(**{"num_agents": 2, "num_generations": 3, "num_turns": 2, **settings})


# --- counts


def test_an_aligned_tree_by_hand():
    # J = K = 3: 1 node, then 3. 3 rewards and 2 * 3 completions at each of 4 nodes, 10 tokens a completion.
    # Two prompts fit into 6 rows of K=3: 1 call for 1 node, 2 for 3 nodes, for each of 2 agents.
    counts = tree_counts(config(max_new_tokens=10, max_rollout_rows=6), num_joint_actions=3)
    assert counts == TreeCounts(nodes=4, joint_actions=12, completions=24, tokens=240, model_calls=6)


def test_a_crossed_tree_by_hand():
    # J = 3 ** 2 = 9: 1 node, then 9. 9 rewards and 6 completions at each of 10 nodes.
    # 64 rows hold 21 prompts of K=3, so each turn is one call for each agent.
    counts = tree_counts(config(max_new_tokens=10), num_joint_actions=9)
    assert counts == TreeCounts(nodes=10, joint_actions=90, completions=60, tokens=600, model_calls=4)


def test_three_turns_of_three_agents_by_hand():
    # J = 2: 1 + 2 + 4 nodes; one prompt of K=2 in each call of at most 3 rows.
    counts = tree_counts(
        config(num_agents=3, num_generations=2, num_turns=3, max_new_tokens=1, max_rollout_rows=3), num_joint_actions=2
    )
    assert counts == TreeCounts(nodes=7, joint_actions=14, completions=42, tokens=42, model_calls=21)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        # 5 tasks of 4 nodes are 20 samples: 10 buffers of 2, each one step, in each of 3 epochs.
        ({}, 30),
        # 3 buffers of 6 with 2 steps each (4 + 2), and the flush of 2 samples: 7 an epoch.
        ({"rollout_buffer_size": 6, "train_batch_size": 4}, 21),
        # One buffer that never fills is flushed once an epoch, in 3 steps of at most 8.
        ({"rollout_buffer_size": 100, "train_batch_size": 8}, 9),
        # A minibatch larger than the buffer.
        ({"rollout_buffer_size": 5, "train_batch_size": 50}, 12),
        # compat cuts a buffer by turn as well; the tasks' turns are 0111 0111 0111 0111 0111. Buffers of 6:
        # 011101 is 2 + 4 samples, 2 steps; 110111 is 1 + 5, 3 steps; 011101 again 2; 11 is flushed in 1: 8 an epoch.
        ({"rollout_buffer_size": 6, "train_batch_size": 4, "compat": "comlrl-1.4"}, 24),
        # A single sample is one step, however it is cut.
        ({"rollout_buffer_size": 1, "compat": "comlrl-1.4"}, 60),
    ],
)
def test_optimiser_steps_by_hand(settings, steps):
    assert max_updates(config(num_train_epochs=3, **settings), num_joint_actions=3, num_tasks=5) == steps


@pytest.mark.parametrize(
    ("settings", "evaluations"),
    [
        ({"eval_interval": 2}, 3 * 3 + 1),  # before tasks 0, 2 and 4 of each epoch, and at the end
        ({"eval_interval": 16}, 3 * 1 + 1),
        ({"eval_interval": 1}, 3 * 5 + 1),
        ({"eval_interval": 0}, 0),
        ({"eval_num_samples": 0}, 0),
    ],
)
def test_evaluations_by_hand(settings, evaluations):
    assert num_evaluations(config(num_train_epochs=3, **settings), num_tasks=5) == evaluations


# --- memory


def test_memory_by_hand():
    size = AgentSize("a", num_parameters=1000, vocabulary=50, cache_values_per_token=8, bytes_per_weight=4)
    small = config(max_new_tokens=10, max_rollout_rows=6)
    # Weights 1000 * 4; a gradient and two moments; no reference; logits, gradient and softmax of a chunk of 2**24.
    assert memory_bytes(size, small) == (4000, 12000, 0, 3 * 4 * 2**24)
    # Under bf16 float32 weights with a copy of half their size.
    mixed = config(max_new_tokens=10, max_rollout_rows=6, mixed_precision="bf16")
    assert memory_bytes(size, mixed) == (4000 + 2000, 12000, 0, 3 * 4 * 2**24)
    # The cache of a million rows is more: 10**6 * 10 * 8 * 4.
    large = config(max_new_tokens=10, max_rollout_rows=10**6, reference_kl_enabled=True)
    assert memory_bytes(size, large) == (4000, 12000, 4000, 320_000_000)


def test_the_table_of_agents_adds_up_what_a_team_holds():
    # 2 ** 28 parameters of 4 bytes are 1 GiB; 2 ** 20 cached numbers of 4 bytes for 64 rows of 8 tokens are 2 GiB.
    size = AgentSize("hub/name", 2**28, vocabulary=1, cache_values_per_token=2**20, bytes_per_weight=4)
    out = StringIO()
    Console(file=out, width=160).print(agents_table([size, size], config(max_new_tokens=8, reference_kl_enabled=True)))
    rows = [line.strip("│").split("│") for line in out.getvalue().splitlines() if "│" in line]
    cells = ["name", "268,435,456", "1.000 GiB", "3.000 GiB", "1.000 GiB", "2.000 GiB"]
    assert [[cell.strip() for cell in row] for row in rows] == [["0", *cells], ["1", *cells]]
    assert "memory estimate 14.000 GiB, prompts not counted" in out.getvalue()


def test_the_parameters_of_tiny_by_hand():
    # 39 tokens. Embedding and head 2 * 39 * 16; attention 4 * 16 * 16; MLP 3 * 16 * 32; norms 3 * 16.
    assert planned(*TINY)["0"][:2] == ["tiny", f"{2 * 39 * 16 + 4 * 256 + 3 * 512 + 48:,}"]


# --- the printed plan


def test_the_plan_of_an_aligned_run_by_hand():
    plan = planned(*TINY, *TWO_TURNS, "trainer.num_generations=3", "trainer.num_train_epochs=5", "dataset.max_tasks=7")
    # 2 new tokens, 1 row to evaluate; 7 tasks, 5 epochs; buffers of 2 samples.
    assert plan["nodes"] == ["4", "28", "140"]
    assert plan["joint actions"] == ["12", "84", "420"]
    assert plan["completions"] == ["24", "168", "840"]
    assert plan["tokens"] == ["48", "336", "1,680"]
    assert plan["model calls"] == ["4", "28", "140"]
    assert plan["reward calls"] == ["12", "84", "420"]
    assert plan["optimiser steps of an agent"] == ["", "14", "70"]
    assert plan["evaluations"] == ["", "", "6"]  # before task 0 of each epoch, and at the end
    assert plan["evaluation reward calls"] == ["", "", "12"]  # 6 evaluations of 1 row over 2 turns
    assert (
        "MAGRPO: 2 agents, 2 turns, joint_mode aligned, K=3, J=3; 7 training tasks, 4 to evaluate, 5 epochs\n"
    ) in plan["text"][0]


def test_the_plan_of_a_crossed_run_by_hand():
    plan = planned(*TINY, *TWO_TURNS, "trainer.num_generations=3", "joint_mode=cross", "advantage_mode=max")
    assert (plan["nodes"][0], plan["joint actions"][0], plan["completions"][0]) == ("10", "90", "60")
    assert "MAReMax: 2 agents, 2 turns, joint_mode cross, K=3, J=9; 2 training tasks" in plan["text"][0]


def test_a_run_of_full_trees_does_exactly_what_its_plan_says():
    run = [*TINY, *TWO_TURNS, "trainer.num_generations=3", "trainer.rollout_buffer_size=5"]
    plan = planned(*run)
    assert marl_train(*run, "hydra.run.dir=run").code == 0
    counts = summary("run")["counts"]
    # 2 tasks of 4 nodes: a full buffer of 5 and a flush of 3, for each of 2 agents.
    assert (plan["joint actions"][2], counts["env_steps"]) == ("24", 24)
    assert (plan["optimiser steps of an agent"][2], counts["updates"]) == ("2", 4)
    assert (plan["reward calls"][2], plan["evaluation reward calls"][2]) == ("24", "4")
    assert counts["reward_calls"] == 24 + 4


def test_the_plan_says_every_warning_in_one_line():
    plan = planned(*TINY, "transition=revise", "trainer.num_turns=2", "advantage_mode=rloo")["text"][0]
    warnings = [line for line in plan.splitlines() if line.startswith("WARNING")]
    assert [re.match(r"WARNING  (.*?):", warning)[1] for warning in warnings] == [
        "advantage_mode=rloo makes NO DIFFERENCE here",
        "no branch will ever reach turn 2",
    ]


def test_the_range_that_a_users_function_declares_is_warned_of_too():
    Path("mine.py").write_text("def score(first, second):\n    return [1.0]\nscore.reward_range = (1, 2)\n")
    python = ["reward=python", "reward.function=mine.py:score", "transition=revise", "trainer.num_turns=2"]
    assert "the reward is at least 1, above early_termination_threshold=-0.2" in planned(*TINY, *python)["text"][0]
    assert "WARNING" not in planned(*TINY, *python, "reward_processor.shift=-4")["text"][0]


def test_the_plan_needs_no_weights_and_no_tokenizer():
    folder = Path(model_folder(Path("[bold]model")))
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    plan = planned("agents=pretrained", f'agents.model="{folder}"', "agents.dtype=bfloat16", "debug=step")
    assert plan["0"][:2] == ["[bold]model", "3,856"]


def test_the_plan_refuses_what_would_stop_the_run():
    Path("one.py").write_text("def score(only):\n    return [0.0]\n")
    ended = marl_train(*TINY, "reward=python", "reward.function=one.py:score", "dry_run=true")
    assert ended.code == 2
    assert ended.err.endswith("score takes 1 completion arguments, but the team has 2 agents\n")
    ended = marl_train(*TINY, "dataset=files", "dataset.path=nowhere.jsonl", "dry_run=true")
    assert (ended.code, ended.err.count("\n")) == (2, 1)


# --- advice


@pytest.mark.parametrize(
    ("settings", "bounds", "num_warnings"),
    [
        ({"advantage_mode": "mean"}, (0, 1), 0),
        ({"advantage_mode": "raw"}, None, 1),
        ({"advantage_mode": "raw", "advantage_normalization": False}, None, 0),
        ({"num_turns": 2}, (0, 1), 1),
        ({"num_turns": 2}, (-0.2, 1), 0),  # a mean of exactly the threshold is not greater than it
        ({"num_turns": 2}, None, 0),
        ({"num_turns": 2, "early_termination_threshold": None}, (0, 1), 0),
        ({"num_turns": 2, "early_termination_threshold": 0.0}, (0.1, 1), 1),
        ({"num_turns": 2, "advantage_mode": "max"}, (0, 1), 2),
    ],
)
def test_advice_is_given_only_where_it_is_due(settings, bounds, num_warnings):
    assert len(advice(config(**{"num_turns": 1, **settings}), bounds, None)) == num_warnings


def test_the_range_is_taken_after_scale_and_shift():
    turns = config(num_turns=2)
    assert len(advice(turns, (0, 1), lambda reward: reward * 4 + 1)) == 1
    assert advice(turns, (0, 1), lambda reward: reward - 4) == []
    assert advice(turns, (0, 1), lambda reward: -reward) == []  # the greatest becomes the least
