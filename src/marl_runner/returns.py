"""Returns, backward over a rollout tree."""

from __future__ import annotations

import dataclasses
import math
from statistics import mean

from marl_runner.errors import NumericalError
from marl_runner.types import Node


def with_returns(node: Node, discount: float) -> Node:
    """Fills `returns_J` of the node and of all below it.

    return_j = reward_j + discount * mean(returns of child j), or reward_j where joint action j has no child.
    A joint action that abstained has no return; abstained returns are left out of a child's mean, and a child
    whose returns all abstained, or whose prompt was dropped as overlong, gives its parent none: its future is unknown.

    Args:
        node: Root of the tree, rewards filled.
        discount: In [0, 1].

    Raises:
        NumericalError: A return overflows the float range.
    """
    if not node.children_J:
        return dataclasses.replace(node, returns_J=tuple(action.reward for action in node.joint_actions_J))
    children_J = tuple(with_returns(child, discount) for child in node.children_J)
    returns_J: list[float | None] = []
    for action, child in zip(node.joint_actions_J, children_J, strict=True):
        scored = [value for value in child.returns_J if value is not None]
        if action.reward is None or not scored:
            returns_J.append(None)
            continue
        value = action.reward + discount * mean(scored)
        if not math.isfinite(value):
            raise NumericalError(f"return of turn {node.turn + 1} is {value}: rewards are too large to add up")
        returns_J.append(value)
    return dataclasses.replace(node, children_J=children_J, returns_J=tuple(returns_J))
