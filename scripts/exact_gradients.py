"""Compares what our estimators are in expectation with the exact gradient of the objective, on an enumerable team.

    python scripts/exact_gradients.py

Prints one row per setting: the factor (or the formula) that docs/algorithms.md states, and what the enumeration
over every sample outcome gives. Exits with 1 if a statement misses by more than 1e-9, relative, in float64.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from enumerated_outcomes import Case, Law, expected_gradients, return_law, reward_law, visits
from tabular_team import (
    NUM_AGENTS,
    Gradients,
    TabularTeam,
    expected_return,
    gradient,
    make_team,
    stopped_tree,
    turn_gradients,
)

TOLERANCE = 1e-9
DEFAULT_THRESHOLD = -0.2
"""Of early termination, in MAGRPOConfig."""
Function = Callable[[torch.Tensor], torch.Tensor]


def mode_factor(case: Case) -> float:
    """Of an unbiased or proportional estimator, times the number of nodes: baseline, then joint mode."""
    baseline = (case.K - 1) / case.K if case.advantage_mode == "mean" else 1.0
    return baseline * joint_factor(case)


def joint_factor(case: Case) -> float:
    """Cross sums K**(N-1) returns."""
    return float(case.K ** (NUM_AGENTS - 1)) if case.joint_mode == "cross" else 1.0


def turn_factor(case: Case, turn: int) -> float:
    """Uniform averaging counts the J**t nodes of turn t each in full."""
    return 1.0 if case.node_weighting == "objective" else float(case.num_joint_actions**turn)


def stated_gradients(team: TabularTeam, case: Case) -> Gradients:
    """What docs/algorithms.md says the expectation is, times the number of nodes; none of it by our loss."""
    exact = turn_gradients(team, case.num_turns, case.discount)
    if case.linear:
        return scaled(exact, [mode_factor(case) * turn_factor(case, turn) for turn in range(case.num_turns)])
    result = []
    for turn in range(case.num_turns):
        total = [torch.zeros_like(policy.weights) for policy in team.policies]
        for state, probability in visits(team, turn).items():
            has_child = turn + 1 < case.num_turns
            law = return_law(team, case) if has_child else reward_law(team, state)
            for agent in range(NUM_AGENTS):
                total[agent] += probability * nonlinear_part(team, case, state, law, agent)
        if not case.normalize:
            total = [joint_factor(case) * e + part for e, part in zip(exact[turn], total, strict=True)]
        result.append(total)
    return scaled(result, [turn_factor(case, turn) for turn in range(case.num_turns)])


def nonlinear_part(team: TabularTeam, case: Case, state: int, law: Law, agent: int) -> torch.Tensor:
    """Normalised: ∇E[A_1] by the first draw alone; `max`: the bias -1/K ∇E[max_k R_k]."""
    draws = own_draws(team, case, state, law, agent)
    if case.normalize:
        return gradient(expectation(draws, case.K, signs if case.K == 2 else z_scores, True), team.policies[agent])
    best = expectation(draws, case.K, lambda credits: credits.amax(dim=1), False)
    return -gradient(best, team.policies[agent]) / case.K


@dataclass(frozen=True)
class Draws:
    """One agent's draws at a node, as it sees them.

    Attributes:
        p_D: Probability of each draw, with gradient to this agent alone.
        credits_D_B: The return credited to it, for each of B outcomes of all else.
        p_B: Probability of those.
    """

    p_D: torch.Tensor
    credits_D_B: torch.Tensor
    p_B: torch.Tensor


def own_draws(team: TabularTeam, case: Case, state: int, law: Law, agent: int) -> Draws:
    """Aligned: independent draws of a return. Cross: draws of a completion, beside K shared ones of the other agent."""
    probabilities = team.probabilities(state)
    own, other = probabilities[agent], probabilities[1 - agent].detach()
    if case.joint_mode == "aligned":
        values = sorted({value for returns in law.values() for value in returns})
        shape = (team.game.size, team.game.size, len(values))
        table = torch.tensor([[returns.get(v, 0.0) for v in values] for returns in law.values()], dtype=own.dtype)
        by_own = table.reshape(shape).movedim(agent, 0)
        p_D = torch.einsum("a,b,abv->v", own, other, by_own)
        return Draws(p_D, torch.tensor(values, dtype=own.dtype).unsqueeze(1), own.new_ones(1))
    table = torch.tensor([next(iter(returns)) for returns in law.values()], dtype=own.dtype)
    by_own = table.reshape(team.game.size, -1).movedim(agent, 0)
    others = grid(team.game.size, case.K)
    return Draws(own, by_own[:, others].sum(dim=-1), other[others].prod(dim=-1))


def grid(size: int, K: int) -> torch.Tensor:
    """[size**K, K] every ordered choice of K of `size`."""
    return torch.cartesian_prod(*[torch.arange(size)] * K)


def expectation(draws: Draws, K: int, function: Function, others_held: bool) -> torch.Tensor:
    """E[function(credits of K draws)]; `others_held` keeps the gradient of the first draw alone."""
    chosen = grid(len(draws.p_D), K)
    rest = (draws.p_D.detach() if others_held else draws.p_D)[chosen[:, 1:]]
    weight = draws.p_D[chosen[:, 0]] * rest.prod(dim=-1)
    return (weight.unsqueeze(1) * function(draws.credits_D_B[chosen]) * draws.p_B).sum()


def signs(credits: torch.Tensor) -> torch.Tensor:
    """Whether the first of two draws was the better one."""
    return torch.sign(credits[:, 0] - credits[:, 1])


def z_scores(credits: torch.Tensor) -> torch.Tensor:
    """The first draw's distance from the group's mean in population standard deviations, 0 where all are equal."""
    std = credits.std(dim=1, unbiased=False)
    return torch.where(std > 1e-9, (credits[:, 0] - credits.mean(dim=1)) / std.clamp(min=1e-9), 0.0)


def scaled(gradients: Gradients, factors: list[float]) -> Gradients:
    """Each turn by its factor."""
    return [[factor * each for each in agents] for agents, factor in zip(gradients, factors, strict=True)]


def deviation(measured: Gradients, stated: Gradients) -> float:
    """Greatest difference of an entry, relative to the greatest entry of the same turn and agent."""
    return max(
        float((ours - theirs).abs().max() / theirs.abs().max())
        for ours_N, theirs_N in zip(measured, stated, strict=True)
        for ours, theirs in zip(ours_N, theirs_N, strict=True)
    )


def measured_gradients(team: TabularTeam, case: Case) -> Gradients:
    """The expected step direction of our code, times the number of nodes that a minibatch averages over."""
    return scaled(expected_gradients(team, case), [float(case.num_nodes)] * case.num_turns)


def ratios(measured: Gradients, exact: Gradients) -> list[list[float]]:
    """[turn][agent] least-squares factor between the two."""
    return [
        [float((m * e).sum() / (e * e).sum()) for m, e in zip(ms, es, strict=True)]
        for ms, es in zip(measured, exact, strict=True)
    ]


def similarity(measured: Gradients, exact: Gradients) -> list[tuple[float, float]]:
    """Per agent, over all turns: cosine of the angle between the two, and the ratio of their norms."""
    result = []
    for ours, theirs in zip(added(measured), added(exact), strict=True):
        cosine = torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)
        result.append((float(cosine), float(ours.norm() / theirs.norm())))
    return result


def cases() -> Iterator[Case]:
    """The rows of the table."""
    for joint_mode, K, num_turns in itertools.product(("aligned", "cross"), (2, 3), (1, 2)):
        for mode in ("raw", "rloo", "mean"):
            yield Case(K, num_turns, joint_mode, mode)
        if num_turns == 2:
            yield Case(K, num_turns, joint_mode, "rloo", node_weighting="uniform")
        if num_turns == 1 or joint_mode == "aligned":
            yield Case(K, num_turns, joint_mode, "max")
            yield Case(K, num_turns, joint_mode, "mean", normalize=True)


def row(team: TabularTeam, case: Case) -> tuple[str, float]:
    """One line of the table, and how far the statement is off."""
    exact = turn_gradients(team, case.num_turns, case.discount)
    measured = measured_gradients(team, case)
    off = deviation(measured, stated_gradients(team, case))
    if case.linear:
        stated = ", ".join(f"{mode_factor(case) * turn_factor(case, turn):.6g}" for turn in range(case.num_turns))
        seen = ", ".join(" ".join(f"{ratio:.9f}" for ratio in agents) for agents in ratios(measured, exact))
    else:
        formula = "sign" if case.K == 2 else "z-score"
        stated = f"E[{formula} ∇log π]" if case.normalize else f"{joint_factor(case):.6g} − ∇E[max]/{case.K}"
        seen = " ".join(f"cos {cosine:+.3f} × {norm:.3f}" for cosine, norm in similarity(measured, exact))
    options = (case.joint_mode, case.K, case.num_turns, case.advantage_mode, "yes" if case.normalize else "no")
    return " | ".join(map(str, (*options, case.node_weighting, stated, seen, f"{off:.0e}"))), off


HEADER = "joint_mode | K | turns | advantage_mode | normalised | node_weighting | stated | measured | deviation"


def discount_facts(team: TabularTeam) -> tuple[float, float]:
    """At discount 0.5: how far we are off the objective's gradient, and off that of the discounted return."""
    measured = measured_gradients(team, Case(2, 2, "aligned", "rloo", discount=0.5))
    exact = turn_gradients(team, 2, 0.5)
    discounted = [gradient(expected_return(team, 2, 0.5), policy) for policy in team.policies]
    # the difference is the factor discount^t before turn t, nothing else
    assert deviation([added(scaled(exact, [1.0, 0.5]))], [discounted]) < TOLERANCE
    return deviation(measured, exact), deviation([added(measured)], [discounted])


def added(gradients: Gradients) -> list[torch.Tensor]:
    """[agent] sum over turns."""
    return [sum(turns[1:], start=turns[0]) for turns in zip(*gradients, strict=True)]


def stopped_gradients(team: TabularTeam, mode: str, threshold: float) -> list[torch.Tensor]:
    """[agent] what `raw` and `rloo` are at K = 2 under early termination.

    The others of a completion get their future from its draw too, which `raw` leaves out, and which `rloo`
    subtracts once more with the baseline.
    """
    held, full = (
        [gradient(stopped_tree(team, 2, threshold, others_held), policy) for policy in team.policies]
        for others_held in (True, False)
    )
    return held if mode == "raw" else [2 * own - whole for own, whole in zip(held, full, strict=True)]


def early_termination_facts(team: TabularTeam) -> Iterator[str]:
    """How `raw` and `rloo` relate to the gradient of the expected return of the tree, at the default threshold."""
    full = [gradient(stopped_tree(team, 2, DEFAULT_THRESHOLD, False), policy) for policy in team.policies]
    for mode in ("raw", "rloo"):
        seen = similarity([stopped_gradients(team, mode, DEFAULT_THRESHOLD)], [full])
        yield f"early termination, {mode}: " + ", ".join(f"cos {cosine:+.3f} × {norm:.3f}" for cosine, norm in seen)


def main() -> int:
    """Prints the table; 1 if a statement misses."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    team = make_team()
    print(f"| {HEADER} |\n|{'---|' * (HEADER.count('|') + 1)}", flush=True)
    worst = 0.0
    for case in cases():
        line, off = row(team, case)
        print(f"| {line} |", flush=True)
        worst = max(worst, off)
    objective, discounted = discount_facts(team)
    print(f"\nworst deviation {max(worst, objective):.1e}")
    print(f"discount 0.5: {objective:.0e} off the objective's gradient, {discounted:.2f} off the discounted return's")
    print("\n".join(early_termination_facts(team)))
    return 0 if max(worst, objective) <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
