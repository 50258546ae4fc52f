"""Which joint actions are scored, and who is credited with what."""

from __future__ import annotations

import itertools

import pytest

from marl_runner.errors import ConfigError
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.settings import MAGRPOConfig


def test_aligned_pairs_by_index():
    assert JOINT_MODES["aligned"]().index(3, 2) == [(0, 0, 0), (1, 1, 1)]


def test_aligned_credits_return_k_to_completion_k_of_every_agent():
    mode = JOINT_MODES["aligned"]()
    index_J = mode.index(2, 3)
    for agent in (0, 1):
        assert mode.credit(index_J, [1.0, None, 3.0], agent, 3) == [1.0, None, 3.0]


def test_cross_runs_the_last_agent_fastest():
    assert JOINT_MODES["cross"]().index(2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_cross_sums_for_two_agents():
    mode = JOINT_MODES["cross"]()
    returns_J = [1.0, 2.0, 10.0, 20.0]  # (0,0) (0,1) (1,0) (1,1)
    assert mode.credit(mode.index(2, 2), returns_J, 0, 2) == [1 + 2, 10 + 20]
    assert mode.credit(mode.index(2, 2), returns_J, 1, 2) == [1 + 10, 2 + 20]


def test_cross_sums_for_three_agents():
    mode = JOINT_MODES["cross"]()
    returns_J = [float(2**j) for j in range(8)]  # (0,0,0)=1 (0,0,1)=2 (0,1,0)=4 … (1,1,1)=128
    index_J = mode.index(3, 2)
    assert mode.credit(index_J, returns_J, 0, 2) == [1 + 2 + 4 + 8, 16 + 32 + 64 + 128]
    assert mode.credit(index_J, returns_J, 1, 2) == [1 + 2 + 16 + 32, 4 + 8 + 64 + 128]
    assert mode.credit(index_J, returns_J, 2, 2) == [1 + 4 + 16 + 64, 2 + 8 + 32 + 128]


def test_cross_scales_the_sum_up_where_a_joint_action_abstained():
    mode = JOINT_MODES["cross"]()
    # agent 0, completion 0: 1 alone of two terms → 1 * 2/1; completion 1: nothing left
    assert mode.credit(mode.index(2, 2), [1.0, None, None, None], 0, 2) == [2.0, None]


def test_with_one_agent_both_modes_are_the_same():
    aligned, cross = JOINT_MODES["aligned"](), JOINT_MODES["cross"]()
    assert aligned.index(1, 3) == cross.index(1, 3)
    assert aligned.credit(aligned.index(1, 3), [1.0, 2.0, 3.0], 0, 3) == cross.credit(
        cross.index(1, 3), [1.0, 2.0, 3.0], 0, 3
    )


@pytest.mark.parametrize("mode", JOINT_MODES)
@pytest.mark.parametrize(("num_agents", "num_generations"), [(1, 2), (2, 3), (3, 2)])
def test_every_joint_mode_credits_each_completion_and_covers_each_index(mode, num_agents, num_generations):
    made = JOINT_MODES[mode]()
    assert made.name == mode
    index_J = made.index(num_agents, num_generations)
    assert len(set(index_J)) == len(index_J) == made.size(num_agents, num_generations)
    for agent, k in itertools.product(range(num_agents), range(num_generations)):
        assert any(index_N[agent] == k for index_N in index_J)
        credited = made.credit(index_J, [1.0] * len(index_J), agent, num_generations)
        assert len(credited) == num_generations
        assert credited[k] == len(index_J) / num_generations


@pytest.mark.parametrize(("alias", "name"), [("align", "aligned"), ("crossed", "cross"), ("cross", "cross")])
def test_aliases_are_resolved_once_at_the_boundary(alias, name):
    assert MAGRPOConfig(joint_mode=alias).joint_mode == name


def test_another_joint_mode_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="joint_mode must be one of aligned, cross, got 'alined'; nearest: aligned"):
        MAGRPOConfig(joint_mode="alined")
