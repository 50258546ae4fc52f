"""Baselines and normalisation, with the arithmetic shown."""

from __future__ import annotations

import dataclasses
import math

import pytest

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.compat import float32_advantages
from marl_runner.credit import CreditRules, advantages, credit_node, normalize, penalized
from marl_runner.errors import NumericalError
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.settings import MAGRPOConfig
from marl_runner.trainers.assembly import credit_rules
from marl_runner.types import Completion
from scripted_team import leaf

RETURNS = [1.0, 2.0, 3.0, 6.0]  # mean 12/4 = 3, max 6


def rules(mode: str, normalized: bool) -> CreditRules:
    return CreditRules(JOINT_MODES["aligned"](), ADVANTAGE_MODES[mode](), normalized, 0.0, False)


def test_raw_keeps_the_returns():
    assert ADVANTAGE_MODES["raw"]()(RETURNS) == [1.0, 2.0, 3.0, 6.0]


def test_mean_subtracts_the_mean_of_the_whole_group():
    assert ADVANTAGE_MODES["mean"]()(RETURNS) == [1 - 3, 2 - 3, 3 - 3, 6 - 3]


def test_max_subtracts_the_best_so_none_is_positive():
    assert ADVANTAGE_MODES["max"]()(RETURNS) == [1 - 6, 2 - 6, 3 - 6, 0.0]


def test_rloo_subtracts_the_mean_of_the_others():
    # others of 1: (2+3+6)/3 = 11/3; of 2: 10/3; of 3: 9/3; of 6: 6/3
    expected = [1 - 11 / 3, 2 - 10 / 3, 3 - 9 / 3, 6 - 6 / 3]
    assert ADVANTAGE_MODES["rloo"]()(RETURNS) == pytest.approx(expected, abs=1e-12)


def test_rloo_is_k_over_k_minus_one_times_the_mean_advantage():
    mean = ADVANTAGE_MODES["mean"]()(RETURNS)
    assert ADVANTAGE_MODES["rloo"]()(RETURNS) == pytest.approx([4 / 3 * value for value in mean])


@pytest.mark.parametrize(("mode", "expected"), [("raw", 5.0), ("mean", 0.0), ("rloo", 0.0), ("max", 0.0)])
def test_a_group_of_one_has_nothing_to_compare_with(mode, expected):
    assert ADVANTAGE_MODES[mode]()([5.0]) == [expected]


@pytest.mark.parametrize("mode", ADVANTAGE_MODES)
def test_every_mode_depends_on_the_group_only_and_keeps_its_order(mode):
    made = ADVANTAGE_MODES[mode]()
    reordered = made([RETURNS[k] for k in (2, 0, 3, 1)])
    assert reordered == pytest.approx([made(RETURNS)[k] for k in (2, 0, 3, 1)])


@pytest.mark.parametrize("mode", ADVANTAGE_MODES)
def test_the_name_of_a_mode_is_its_row_in_the_table(mode):
    assert ADVANTAGE_MODES[mode]().name == mode


def test_normalisation_uses_the_population_standard_deviation():
    # deviations -2 -1 0 3, squares 4 1 0 9, variance 14/4 = 3.5
    std = math.sqrt(3.5)
    assert normalize(RETURNS) == pytest.approx([-2 / std, -1 / std, 0.0, 3 / std])


def test_normalisation_makes_all_modes_equal():
    expected = advantages(RETURNS, rules("mean", True))
    for mode in ADVANTAGE_MODES:
        assert advantages(RETURNS, rules(mode, True)) == pytest.approx(expected), mode


def test_without_normalisation_the_modes_differ():
    made = {tuple(advantages(RETURNS, rules(mode, False))) for mode in ADVANTAGE_MODES}
    assert len(made) == 4


def test_equal_returns_carry_no_signal_and_no_nan():
    for mode in ("mean", "rloo", "max"):
        assert advantages([2.5] * 4, rules(mode, False)) == [0.0] * 4
    for mode in ADVANTAGE_MODES:
        assert advantages([2.5] * 4, rules(mode, True)) == [0.0] * 4


@pytest.mark.parametrize("K", [2, 3, 5, 6, 7, 10, 12])
@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e300])
def test_equal_returns_that_floats_cannot_hold_are_exactly_zero_too(K, value):
    for mode in ADVANTAGE_MODES:
        assert advantages([value] * K, rules(mode, True)) == [0.0] * K, mode
    for mode in ("mean", "rloo", "max"):
        assert advantages([value] * K, rules(mode, False)) == [0.0] * K, mode


def test_the_standard_deviation_is_floored_at_one_millionth():
    # deviations -1e-9, 1e-9: std 1e-9 < 1e-6, so the quotient is 1e-9 / 1e-6
    assert normalize([0.0, 2e-9]) == pytest.approx([-1e-3, 1e-3])


def test_returns_of_1e38_and_beyond_do_not_overflow_the_variance():
    assert normalize([1e38, -1e38]) == pytest.approx([1.0, -1.0])
    assert normalize([1e300, -1e300]) == pytest.approx([1.0, -1.0])


def test_an_abstained_return_is_left_out_of_mean_and_deviation():
    # present 1 and 3: mean 2, deviations -1 and 1, population std 1
    assert advantages([1.0, None, 3.0], rules("mean", False)) == [-1.0, None, 1.0]
    assert advantages([1.0, None, 3.0], rules("mean", True)) == [-1.0, None, 1.0]


def test_a_group_that_abstains_as_a_whole_has_no_advantages():
    assert advantages([None, None], rules("raw", True)) == [None, None]


def test_the_reference_penalty_is_subtracted_before_the_baseline():
    completions = [Completion("", (1,), True, kl) for kl in (0.5, 0.0, 2.0)]
    # 1 - 0.1*0.5 = 0.95; 2; 3 - 0.1*2 = 2.8
    returns = penalized([1.0, 2.0, 3.0], completions, 0.1)
    assert returns == pytest.approx([0.95, 2.0, 2.8])
    # mean (0.95 + 2 + 2.8)/3 = 5.75/3
    assert advantages(returns, rules("mean", False)) == pytest.approx([0.95 - 5.75 / 3, 2 - 5.75 / 3, 2.8 - 5.75 / 3])


def test_a_penalty_that_is_not_finite_is_an_error_naming_agent_turn_and_step():
    bad = dataclasses.replace(leaf(1, [0.0, 1.0], env_step=6), returns_J=(0.0, 1.0))
    measured = tuple(Completion("a", (0,), True, kl) for kl in (math.nan, 0.0))
    bad = dataclasses.replace(bad, completions_N_K=(measured,))
    with pytest.raises(NumericalError, match=r"agent 0, turn 2, env_step 6\) is nan"):
        credit_node(bad, CreditRules(JOINT_MODES["aligned"](), ADVANTAGE_MODES["mean"](), True, 0.1, False))


def test_the_penalty_leaves_abstained_returns_alone():
    assert penalized([None, 1.0], [Completion("", (1,), True, 3.0)] * 2, 0.5) == [None, -0.5]


def test_under_compat_a_group_is_computed_in_float32_with_its_rounding_errors():
    """Eight times 0.7, in float32 0.69999999: their sum is rounded to 5.5999994, an eighth of which is 2^-24 less."""
    completions = (Completion("a", (0,), True),) * 8
    exact = credit_rules(MAGRPOConfig(advantage_normalization=False), JOINT_MODES["aligned"]())
    compat = credit_rules(MAGRPOConfig(advantage_normalization=False, compat="comlrl-1.4"), JOINT_MODES["aligned"]())
    assert exact.estimate([0.7] * 8, completions, exact) == [0.0] * 8
    assert compat.estimate([0.7] * 8, completions, compat) == [2**-24] * 8


@pytest.mark.parametrize("mode", ADVANTAGE_MODES)
@pytest.mark.parametrize("normalized", [False, True])
def test_float32_advantages_are_the_exact_ones_rounded(mode, normalized):
    completions = tuple(Completion("a", (0,), True, reference_kl=kl) for kl in (0.5, 0.0, 0.25, 1.0))
    rule = dataclasses.replace(rules(mode, normalized), reference_kl_coef=0.5)
    for returns in (RETURNS, [1.0, None, 3.5, 2.0], [None] * 4):
        expected = rule.estimate(returns, completions, rule)
        found = float32_advantages(returns, completions, rule)
        assert [value is None for value in found] == [value is None for value in returns]
        assert [value for value in found if value is not None] == pytest.approx(
            [value for value in expected if value is not None], rel=1e-5, abs=1e-6
        )
