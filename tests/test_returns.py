"""Returns on a drawn tree."""

from __future__ import annotations

import dataclasses

import pytest

from marl_runner.errors import NumericalError
from marl_runner.returns import with_returns
from marl_runner.types import Node
from scripted_team import leaf, node


def tree() -> Node:
    """Three turns, two joint actions each:

    root   rewards 1, 2
    ├─ j=0: rewards 10, 20
    │   ├─ j=0: rewards 100, 300   (mean 200)
    │   └─ j=1: rewards 0, 0       (mean 0)
    └─ j=1: rewards 30, 40
        ├─ j=0: rewards 2, 4       (mean 3)
        └─ j=1: rewards 5, 5       (mean 5)
    """
    left = node(1, [10.0, 20.0], [leaf(2, [100.0, 300.0]), leaf(2, [0.0, 0.0])])
    right = node(1, [30.0, 40.0], [leaf(2, [2.0, 4.0]), leaf(2, [5.0, 5.0])])
    return node(0, [1.0, 2.0], [left, right])


def test_returns_of_three_turns_without_discount():
    root = with_returns(tree(), discount=1.0)
    left, right = root.children_J
    assert left.returns_J == (10 + 200, 20 + 0)
    assert right.returns_J == (30 + 3, 40 + 5)
    # means: left (210 + 20)/2 = 115, right (33 + 45)/2 = 39
    assert root.returns_J == (1 + 115, 2 + 39)
    assert left.children_J[0].returns_J == (100.0, 300.0)


def test_the_discount_is_really_applied():
    root = with_returns(tree(), discount=0.5)
    left, right = root.children_J
    assert left.returns_J == (10 + 0.5 * 200, 20.0)
    assert right.returns_J == (30 + 0.5 * 3, 40 + 0.5 * 5)
    # means: left (110 + 20)/2 = 65, right (31.5 + 42.5)/2 = 37
    assert root.returns_J == (1 + 0.5 * 65, 2 + 0.5 * 37)


def test_discount_zero_leaves_the_immediate_rewards():
    assert with_returns(tree(), discount=0.0).returns_J == (1.0, 2.0)


def test_an_abstained_reward_has_no_return_and_is_left_out_of_the_mean_above_it():
    root = with_returns(node(0, [1.0, None], [leaf(1, [4.0, None]), leaf(1, [7.0, 9.0])]), discount=1.0)
    assert root.returns_J == (1 + 4, None)


def test_a_joint_action_whose_future_abstained_as_a_whole_has_no_return():
    root = with_returns(node(0, [1.0, 2.0], [leaf(1, [None, None]), leaf(1, [3.0, 5.0])]), discount=1.0)
    assert root.returns_J == (None, 2 + 4)


def test_a_joint_action_whose_branch_was_dropped_has_no_return_as_its_future_is_unknown():
    dropped = Node(1, (), (), (), (), env_step=0, ended="overlong_prompt")
    root = with_returns(node(0, [1.0, 2.0], [dropped, leaf(1, [3.0, 5.0])]), discount=1.0)
    assert root.returns_J == (None, 2 + 4)


def test_a_return_that_overflows_is_an_error():
    huge = node(0, [1.5e308, 0.0], [leaf(1, [1.5e308, 1.5e308]), leaf(1, [0.0, 0.0])])
    with pytest.raises((NumericalError, OverflowError)):
        with_returns(huge, discount=1.0)


def test_the_rest_of_the_tree_is_left_as_it_was():
    before = tree()
    after = with_returns(before, discount=1.0)
    assert dataclasses.replace(after, returns_J=(), children_J=()) == dataclasses.replace(before, children_J=())
