"""What every estimator is in expectation, against the exact gradient: all outcomes enumerated, none sampled.

Behaviours protected here:
1. The enumeration is right: it equals whole trees of the engine, outcome by outcome, over turns too.
2. raw and rloo are the objective's gradient, mean is (K-1)/K of it, cross has a factor K^(N-1).
3. Uniform node averaging over-weighs turn t by J^t; node_weighting=objective does not.
4. max is off by -1/K of the gradient of the expected best; normalised advantages are signs at K = 2.
5. A discount makes it the objective's gradient, which is not that of the discounted return.
6. Early termination biases raw, and rloo in another way.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from enumerated_outcomes import Case, expected_gradients
from enumerated_trees import brute_gradients
from exact_gradients import (
    DEFAULT_THRESHOLD,
    TOLERANCE,
    added,
    cases,
    deviation,
    discount_facts,
    main,
    measured_gradients,
    mode_factor,
    ratios,
    scaled,
    similarity,
    stated_gradients,
    stopped_gradients,
)
from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.policies.base import Policy
from marl_runner.settings import MAGRPOConfig
from marl_runner.types import Prompt
from models import rows_under
from tabular_team import expected_return, gradient, make_team, stopped_tree, turn_gradients

PAGE = Path(__file__).parent.parent / "docs" / "algorithms.md"
JOINT_MODES = ("aligned", "cross")


def marked(case: Case):
    """Three completions of either agent, in all combinations or with sampled children, take seconds to enumerate."""
    slow = case.K == 3 and (case.joint_mode == "cross" or not case.linear) and not (case.linear and case.num_turns == 1)
    name = "-".join(str(value) for value in dataclasses.astuple(case))
    return pytest.param(case, id=name, marks=pytest.mark.slow if slow else [])


@pytest.fixture(scope="module")
def team():
    return make_team()


def test_the_tabular_policy_is_a_policy_whose_completions_are_all_there_are(team):
    for policy, probabilities in zip(team.policies, team.probabilities(1), strict=True):
        assert isinstance(policy, Policy)
        assert [completion.text for completion in policy.completions] == ["", "a", "b", "aa", "ab", "ba", "bb"]
        assert float(probabilities.detach().sum()) == pytest.approx(1, abs=1e-14)
        scored = policy.token_log_probs(rows_under(Prompt("1", (49,)), policy.completions)).sum(dim=1).exp()
        assert scored.tolist() == pytest.approx(probabilities.tolist(), abs=1e-14)


def test_the_turns_of_the_exact_gradient_add_up_to_the_gradient_of_the_expected_return(team):
    whole = [gradient(expected_return(team, 2), policy) for policy in team.policies]
    assert deviation([added(turn_gradients(team, 2))], [whole]) < 1e-14


@pytest.mark.parametrize("joint_mode", JOINT_MODES)
def test_grouped_outcomes_equal_every_ordered_outcome_rolled_out_by_the_engine(team, joint_mode):
    case = Case(2, 1, joint_mode, "max")  # not linear, so that no error can cancel
    assert deviation(brute_gradients(team, case), expected_gradients(team, case)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 2, "aligned", "rloo", node_weighting="uniform", discount=0.5),
        Case(2, 2, "aligned", "max"),
        Case(2, 2, "aligned", "mean", normalize=True),
    ],
    ids=["linear", "max", "normalised"],
)
def test_expectations_over_children_equal_every_tree_of_two_turns(case):
    small = make_team("a", 1)
    assert deviation(brute_gradients(small, case), expected_gradients(small, case)) < 1e-12


@pytest.mark.parametrize("case", [marked(case) for case in cases()])
def test_every_row_of_the_table_is_what_the_documentation_states(team, case):
    measured = measured_gradients(team, case)
    assert deviation(measured, stated_gradients(team, case)) < TOLERANCE
    if not case.linear:
        seen = similarity(measured, turn_gradients(team, case.num_turns))
        assert "; ".join(f"{cosine:.3f} × {norm:.3f}" for cosine, norm in seen) in PAGE.read_text()


@pytest.mark.parametrize(
    ("K", "joint_mode", "mode", "expected"),
    [
        (2, "aligned", "raw", 1),
        (2, "aligned", "rloo", 1),
        (2, "aligned", "mean", 1 / 2),
        (3, "aligned", "mean", 2 / 3),
        (2, "cross", "raw", 2),  # 2^(2-1)
        (2, "cross", "mean", 1),  # 1/2 * 2
        (3, "cross", "rloo", 3),  # 3^(2-1)
        (3, "cross", "mean", 2),  # 2/3 * 3
    ],
)
def test_the_stated_factors_are_these(K, joint_mode, mode, expected):
    assert mode_factor(Case(K, 1, joint_mode, mode)) == pytest.approx(expected)


def test_a_minibatch_of_one_tree_divides_by_its_nodes(team):
    case = Case(2, 2, "aligned", "rloo")  # 1 node of turn 1 and J = 2 of turn 2
    assert deviation(expected_gradients(team, case), scaled(turn_gradients(team, 2), [1 / 3, 1 / 3])) < TOLERANCE


@pytest.mark.parametrize(("joint_mode", "factors"), [("aligned", [1, 2]), ("cross", [2, 2 * 4])])
def test_uniform_averaging_weighs_turn_2_by_j_and_is_not_the_objective(team, joint_mode, factors):
    case = Case(2, 2, joint_mode, "raw", node_weighting="uniform")
    measured, exact = measured_gradients(team, case), turn_gradients(team, 2)
    for turn, agents in enumerate(ratios(measured, exact)):
        assert agents == pytest.approx([factors[turn]] * 2, rel=TOLERANCE)
    assert all(cosine < 0.995 for cosine, _ in similarity(measured, exact))
    weighed = measured_gradients(team, dataclasses.replace(case, node_weighting="objective"))
    assert all(cosine == pytest.approx(1, abs=1e-12) for cosine, _ in similarity(weighed, exact))


@pytest.mark.parametrize("joint_mode", JOINT_MODES)
@pytest.mark.parametrize(("mode", "normalize"), [("max", False), ("mean", True)])
def test_max_and_normalised_advantages_are_not_proportional_to_the_objective(team, joint_mode, mode, normalize):
    measured = measured_gradients(team, Case(2, 1, joint_mode, mode, normalize))
    assert min(cosine for cosine, _ in similarity(measured, turn_gradients(team, 1))) < 0.95


@pytest.mark.parametrize("K", [2, 3])
def test_normalised_advantages_do_not_know_the_size_of_the_reward(team, K):
    normalised, plain = Case(K, 1, "aligned", "mean", normalize=True), Case(K, 1, "aligned", "mean")
    tenfold = make_team(scale=10.0)
    assert deviation(measured_gradients(tenfold, normalised), measured_gradients(team, normalised)) < TOLERANCE
    assert deviation(measured_gradients(tenfold, plain), scaled(measured_gradients(team, plain), [10.0])) < TOLERANCE


@pytest.mark.parametrize("joint_mode", JOINT_MODES)
def test_all_modes_have_one_expectation_when_normalised(team, joint_mode):
    mean = measured_gradients(team, Case(2, 1, joint_mode, "mean", normalize=True))
    for mode in ADVANTAGE_MODES:
        assert deviation(measured_gradients(team, Case(2, 1, joint_mode, mode, normalize=True)), mean) < TOLERANCE


def test_a_discount_gives_the_objective_s_gradient_and_not_that_of_the_discounted_return(team):
    from_objective, from_discounted_return = discount_facts(team)
    assert from_objective < TOLERANCE
    assert from_discounted_return > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raw", "rloo"])
def test_early_termination_leaves_the_siblings_out_in_the_stated_way(mode):
    small = make_team("a", 1)
    case = Case(2, 2, "aligned", mode)
    measured = [added(scaled(brute_gradients(small, case, threshold=0.5), [case.num_nodes] * 2))]
    assert deviation(measured, [stopped_gradients(small, mode, 0.5)]) < TOLERANCE
    full = [gradient(stopped_tree(small, 2, 0.5, others_held=False), policy) for policy in small.policies]
    assert deviation(measured, [full]) > 0.1


def test_the_documentation_has_the_size_of_the_bias_of_early_termination(team):
    full = [gradient(stopped_tree(team, 2, DEFAULT_THRESHOLD, others_held=False), policy) for policy in team.policies]
    for mode in ("raw", "rloo"):
        first, second = similarity([stopped_gradients(team, mode, DEFAULT_THRESHOLD)], [full])
        for at in range(2):  # cosines, ratios
            assert f"{first[at]:.3f}; {second[at]:.3f}" in PAGE.read_text()


@pytest.mark.slow
def test_the_script_prints_its_table_and_finds_every_statement_true(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["exact_gradients.py"])
    assert main() == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) == 1 + len(
        list(cases())
    )


def test_early_termination_that_never_comes_changes_nothing(team):
    for mode in ("raw", "rloo"):
        unstopped = stopped_gradients(team, mode, threshold=100.0)
        assert deviation([unstopped], [added(turn_gradients(team, 2))]) < TOLERANCE
    assert MAGRPOConfig().early_termination_threshold == DEFAULT_THRESHOLD
