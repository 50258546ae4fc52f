"""Training under `compat="comlrl-1.4"` leaves the weights that comlrl 1.4.3 leaves.

What is protected:
1. Every setting alone and every pair of settings: the same weights within 1e-6, the same shuffles, the same steps.
2. Completions of one token, which the reference does not train on: no bit changes.
3. Rewards that are equal, or that float32 cannot hold: the reference's rounding errors too.
4. The comparison itself: a setting changed on our side alone is seen.
5. `discount` acts without compat, and not under it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import parity_comlrl
import parity_training
from parity_comlrl import AXES, CONTROL, CONTROLS, ONE_TOKEN, TOLERANCE, missed, reduced_grid
from parity_training import Case, Comparison, compare, distance, initial_models, train_ours

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results() -> Sequence[Comparison]:
    return parity_comlrl.measure([*reduced_grid(), *ONE_TOKEN])


def test_every_case_of_the_reduced_grid_agrees_with_the_reference(results: Sequence[Comparison]) -> None:
    assert [result for result in results if missed(result)] == []


def test_training_moves_the_weights_far_more_than_the_tolerance(results: Sequence[Comparison]) -> None:
    trained = [result for result in results if result.case.max_new_tokens > 1]
    assert min(result.movement for result in trained) > 1000 * TOLERANCE


def test_the_reduced_grid_has_every_pair_of_settings() -> None:
    for first, second in itertools.combinations(AXES, 2):
        found = {(vars(case)[first], vars(case)[second]) for case in reduced_grid()}
        assert found == set(itertools.product(AXES[first], AXES[second])), (first, second)


@pytest.mark.parametrize(
    ("joint_mode", "num_turns", "least", "full"),
    [  # two epochs of 2 tasks of 1 + 3 or 1 + 9 nodes; two epochs of 1 task of 1 + 2 + 4 or 1 + 4 + 16 nodes
        ("aligned", 2, 4, 16),
        ("cross", 2, 4, 40),
        ("aligned", 3, 2, 14),
        ("cross", 3, 2, 42),
    ],
)
def test_early_termination_ends_some_branches_and_not_others(
    joint_mode: str, num_turns: int, least: int, full: int
) -> None:
    num_nodes = [
        compare(
            initial_models(),
            Case(joint_mode=joint_mode, num_turns=num_turns, early_termination_threshold=threshold),
        ).num_nodes
        for threshold in AXES["early_termination_threshold"]
    ]
    assert num_nodes[0] == full
    assert least < num_nodes[1] < full


def drawn(text: str, values: Sequence[float]) -> float:
    return random.Random(text).choice(values)


@pytest.mark.parametrize("joint_mode", ["aligned", "cross"])
@pytest.mark.parametrize("advantage_mode", AXES["advantage_mode"])
@pytest.mark.parametrize(
    "values", [(0.7,), (0.3, 0.7), [n / 10 for n in range(-20, 20)], [1000.1 + n / 7 for n in range(30)]], ids=len
)
def test_rewards_that_float32_cannot_hold_agree_too(
    monkeypatch: pytest.MonkeyPatch, values: Sequence[float], advantage_mode: str, joint_mode: str
) -> None:
    """Groups of equal returns among them, of which the reference trains the rounding errors."""
    monkeypatch.setattr(parity_training, "reward", lambda a, b: [drawn(f"{a[0]}|{b[0]}", values)])
    for normalization in (True, False):
        case = Case(advantage_mode, normalization, joint_mode)
        assert compare(initial_models(), case).difference <= TOLERANCE


@pytest.mark.parametrize("changes", CONTROLS, ids=str)
def test_a_setting_changed_on_our_side_alone_misses(changes: dict[str, object]) -> None:
    assert compare(initial_models(), CONTROL, changes).difference > TOLERANCE


def test_discount_acts_without_compat_and_not_under_it() -> None:
    case = Case(num_turns=2, advantage_normalization=False)
    models = initial_models()
    with_it, without_it = (
        [train_ours(models, case, {"compat": compat, "discount": discount}).weights_N for discount in (1.0, 0.9)]
        for compat in (None, "comlrl-1.4")
    )
    assert distance(*with_it) > 1000 * TOLERANCE
    assert distance(*without_it) == 0


@pytest.mark.parametrize("joint_mode", ["aligned", "cross"])
@pytest.mark.parametrize("advantage_mode", AXES["advantage_mode"])
def test_in_float64_the_sides_agree_to_1e_12(joint_mode: str, advantage_mode: str) -> None:
    # The reference rounds returns and advantages to float32; of multiples of 1/8 with K = 2 nothing is lost.
    case = Case(joint_mode=joint_mode, num_turns=3, advantage_mode=advantage_mode, advantage_normalization=False)
    assert compare(initial_models(torch.float64), case).difference < 1e-12


def test_the_script_fails_on_a_miss_and_writes_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "parity.md"
    monkeypatch.setattr(parity_comlrl, "reduced_grid", lambda: [Case(num_turns=1)])
    monkeypatch.setattr(parity_comlrl, "CONTROLS", CONTROLS[:1])
    monkeypatch.setattr("sys.argv", ["parity_comlrl.py", "--output", str(page)])
    assert parity_comlrl.main() == 0
    assert "**3 of 3 cases agree within 1e-06" in page.read_text()
    monkeypatch.setattr(parity_comlrl, "TOLERANCE", 0.0)
    assert parity_comlrl.main() == 1
    assert "MISS Comparison(case=Case(advantage_mode='mean'" in capsys.readouterr().err


def test_the_script_fails_when_a_control_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parity_comlrl, "reduced_grid", lambda: [Case(num_turns=1)])
    monkeypatch.setattr(parity_comlrl, "CONTROLS", ({"discount": 0.9},))  # which compat ignores
    monkeypatch.setattr("sys.argv", ["parity_comlrl.py"])
    assert parity_comlrl.main() == 1
    assert "NO DIFFERENCE from discount=0.9" in capsys.readouterr().err
