"""From the returns of a tree to the weight of each completion.

For one agent at one node: joint-mode credit → minus the reference penalty → minus the baseline → normalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

from marl_runner.errors import NumericalError
from marl_runner.types import AdvantageMode, Completion, JointMode, Node, Sample

STD_FLOOR = 1e-6
Estimate = Callable[[Sequence[float | None], Sequence[Completion], "CreditRules"], list[float | None]]


def exact_advantages(
    returns_K: Sequence[float | None], completions_K: Sequence[Completion], rules: CreditRules
) -> list[float | None]:
    """The penalty, the baseline and the normalisation of one group, in float64."""
    return advantages(penalized(returns_K, completions_K, rules.reference_kl_coef), rules)


@dataclass(frozen=True)
class CreditRules:
    """How returns become advantages.

    Attributes:
        joint_mode: Credits joint returns to completions.
        advantage_mode: The baseline.
        normalize: Centre and divide by the population standard deviation after the baseline.
        reference_kl_coef: Weight of the reference penalty, where one was measured.
        objective_weighting: Weigh each node by 1 / (nodes a full tree has at its turn).
        estimate: From one group's credited returns and completions to its advantages.
    """

    joint_mode: JointMode
    advantage_mode: AdvantageMode
    normalize: bool
    reference_kl_coef: float
    objective_weighting: bool
    estimate: Estimate = exact_advantages


def normalize(advantages_K: Sequence[float]) -> list[float]:
    """(A_k - mean(A)) / max(std(A), 1e-6), with the POPULATION standard deviation.

    Re-centring makes all four advantage modes equal up to the floor. Both moments are computed in exact
    arithmetic, so that equal values give exactly 0 and values of 1e300 do not overflow.

    The gradient is then not the objective's, nor in its direction: every group gets the same scale. With K = 2 the
    advantages are 1 and -1, or 0 at a tie, and the expected gradient E[sign(R - R') * grad log pi(a)] knows which
    return is greater and not by how much. docs/algorithms.md has the angles on an enumerated team.
    """
    centre = mean(advantages_K)
    std = max(pstdev(advantages_K), STD_FLOOR)
    return [(value - centre) / std for value in advantages_K]


def penalized(
    returns_K: Sequence[float | None], completions_K: Sequence[Completion], coef: float
) -> list[float | None]:
    """return_k - coef * KL_k, where a reference measured KL_k; None stays None."""
    return [
        value if value is None or completion.reference_kl is None else value - coef * completion.reference_kl
        for value, completion in zip(returns_K, completions_K, strict=True)
    ]


def advantages(returns_K: Sequence[float | None], rules: CreditRules) -> list[float | None]:
    """Baseline, then normalisation, over the completions that have a return; the others stay None."""
    present = [value for value in returns_K if value is not None]
    if not present:
        return [None] * len(returns_K)
    weights = rules.advantage_mode(present)
    if rules.normalize:
        require_finite(weights, "an advantage before normalisation")
        weights = normalize(weights)
    queue = iter(weights)
    return [None if value is None else next(queue) for value in returns_K]


def require_finite(values: Sequence[float | None], what: str) -> None:
    """Raises NumericalError if a value that is there is NaN or infinite."""
    for value in values:
        if value is not None and not math.isfinite(value):
            raise NumericalError(f"{what} is {value}: check the reward's scale and the reference")


def credit_node(node: Node, rules: CreditRules) -> tuple[Sample, ...]:
    """One Sample per agent of one node whose returns are filled.

    Raises:
        NumericalError: A credited return, with its penalty, or an advantage is not finite.
    """
    index_J = [action.index_N for action in node.joint_actions_J]
    samples = []
    for agent, completions_K in enumerate(node.completions_N_K):
        returns_K = rules.joint_mode.credit(index_J, node.returns_J, agent, len(completions_K))
        where = f"agent {agent}, turn {node.turn + 1}, env_step {node.env_step}"
        penalized_K = penalized(returns_K, completions_K, rules.reference_kl_coef)
        require_finite(penalized_K, f"a return with its reference penalty ({where})")
        advantages_K = rules.estimate(returns_K, completions_K, rules)
        require_finite(advantages_K, f"an advantage ({where})")
        siblings = len(index_J) ** node.turn if rules.objective_weighting else 1
        samples.append(
            Sample(
                agent=agent,
                turn=node.turn,
                env_step=node.env_step,
                prompt=node.prompts_N[agent],
                completions_K=completions_K,
                returns_K=tuple(returns_K),
                advantages_K=tuple(advantages_K),
                weight=1.0 / siblings,
            )
        )
    return tuple(samples)
