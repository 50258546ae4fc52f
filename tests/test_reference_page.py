"""Every sentence of the reference page is a row of docs/reference_page.md, and every row names tests that prove it.

Protected here:
    1. the page: each row has a verdict and names tests that exist, each parameter has its row, in the order of the page
    2. `MAGRPOConfig`: every default and range, once, in one table
    3. the variants: they inherit everything and change `advantage_mode` only
    4. the sentences on samples, advantages, updates and evaluation that no other file of tests proves

The policies are scripted: eleven tokens, a to j and the end, all equally likely at first. There the gradient of a
completion's log-probability with respect to the logits is its count of each token minus (its number of tokens) / 11.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import math
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import marl_runner
from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.errors import ConfigError
from marl_runner.loss import policy_gradient_loss
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.policies.tiny import character_tokenizer, tiny_model
from marl_runner.rewards.processors import RewardProcessors
from marl_runner.settings import MAGRPOConfig
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Sampling
from scripted_team import END, Recorder, endless, script, trainer_of

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reference_page.md"

# field: (default, values accepted, values refused), in the order of the page
FIELDS = {
    "num_agents": (2, [1, 8], [0, 1.5]),
    "num_turns": (2, [1, 9], [0, None]),
    "num_train_epochs": (20, [1], [0]),
    "agent_learning_rate": (5e-6, [1e-12, 1.0], [0.0, -1e-6, math.inf]),
    "logging_steps": (50, [1], [0]),
    "num_generations": (4, [2, 64], [1, 0]),
    "max_new_tokens": (256, [1], [0]),
    "temperature": (0.6, [0.01, 2.0], [0.0, -1.0]),
    "top_p": (0.6, [0.01, 1.0], [0.0, 1.01]),
    "top_k": (50, [1, None], [0]),
    "discount": (1.0, [0.0, 0.5, 1], [-0.01, 1.01]),
    "joint_mode": ("aligned", ["aligned", "cross"], ["product", "aligned,cross"]),
    "early_termination_threshold": (-0.2, [None, -9.0, 0, 9.0], [math.nan, "off"]),
    "rollout_buffer_size": (2, [1, 100], [0]),
    "train_batch_size": (2, [1, 100], [0]),  # None, the default, becomes rollout_buffer_size
    "advantage_normalization": (True, [True, False], [None, "yes"]),
    "eval_interval": (16, [0, 1], [-1]),
    "eval_num_samples": (4, [0, 1], [-1]),
    "eval_batch_size": (1, [1, 8], [0]),
    "external_prompt_passthrough": (False, [True, False], [None]),
    "advantage_mode": ("mean", ["mean", "max", "rloo", "raw"], ["median", "MARLOO"]),
    "parallel_training": ("none", ["none"], ["mp", "dp"]),  # mp by itself: it needs agent_devices
    "agent_devices": (None, [None, "cpu", ["cpu"], ["cpu", "cpu"], "auto"], [["cpu", 0], 0]),
    "reference_kl_enabled": (False, [True, False], [None]),
    "reference_kl_coef": (0.1, [0.0, 5.0], [-0.1]),
    "reference_devices": (None, [None, "cpu", ["cpu", "cpu"]], [["cpu", 0], 0]),
}
PARAMETERS = [
    "agent_model",
    "agents",
    "num_agents",
    "tokenizer",
    "reward_func",
    "reward_processor",
    "formatters",
    "args",
    "train_dataset",
    "eval_dataset",
    "model_config",
    "wandb_config",
    "external_transition",
    "eval_logger",
    "eval_aggregator",
]
VARIANTS = {"MAREINFORCE": "raw", "MARLOO": "rloo", "MAReMax": "max"}


def config(cls=MAGRPOConfig, **changes) -> MAGRPOConfig:
    """One agent, one turn, two generations, one epoch; nothing moves the weights but the policy gradient."""
    small = {"num_agents": 1, "num_turns": 1, "num_generations": 2, "num_train_epochs": 1, "eval_interval": 0}
    plain = {"weight_decay": 0.0, "early_termination_threshold": None, "advantage_normalization": False}
    return cls(**(small | plain | changes))


def by_letter(*texts_N):
    """The place in the alphabet of the first agent's letter: a is 0, b is 1."""
    return [float("abcdefghij".index(texts_N[0][0]))]


def for_a(*texts_N):
    """1 if the first agent says "a", else -1."""
    return [1.0 if texts_N[0] == ["a"] else -1.0]


def nothing(*texts_N):
    return [0.0]


def again(prompt, num_agents):
    return [f"{prompt}+"] * num_agents


def advantages_of(recorder, tree=0):
    return [sample.advantages_K for sample in recorder.trees[tree][2]]


def losses(recorder, agent=0):
    updates = [event.metrics for event in recorder.events if event.kind == "update"]
    return [metrics[f"agent_{agent}/loss"] for metrics in updates if f"agent_{agent}/loss" in metrics]


@contextmanager
def gradients(trainer, agent=0):
    """The gradient of an agent's logits at each of its optimiser steps inside the block."""
    seen = []
    logits_V = trainer.team.agents[agent].policy.logits_V

    def note(optimizer, args, kwargs):
        if any(parameter is logits_V for group in optimizer.param_groups for parameter in group["params"]):
            seen.append(logits_V.grad.tolist())

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def vector(**letters: float) -> list[float]:
    """Eleven zeros but for the named tokens."""
    values = [0.0] * 11
    for letter, value in letters.items():
        values[END if letter == "end" else "abcdefghij".index(letter)] = value
    return values


# --- the page -------------------------------------------------------------------------------------------------


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Heading → the rows (sentence, verdict, tests) of the table below it."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line.removeprefix("## "), [])
        elif line.startswith("| ") and not line.startswith("| the page says"):
            sentence, verdict, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            rows.append((sentence, verdict, tests))
    return found


def existing_tests() -> set[str]:
    """Every `tests/file.py::function`, as pytest would collect it, read without running anything."""
    return {
        f"tests/{path.name}::{statement.name}"
        for path in TESTS.glob("test_*.py")
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_")
    }


def test_every_row_has_a_verdict_and_names_tests_that_exist():
    existing = existing_tests()
    differences = PAGE.with_name("differences.md").read_text()
    rows = [row for rows in sections().values() for row in rows]
    assert len(rows) >= 60
    assert len({sentence for sentence, _, _ in rows}) == len(rows)
    for sentence, verdict, tests in rows:
        assert re.match(r"same\b|\[departs\]\(differences\.md#|\[departs\]\(migrating\.md\)", verdict), sentence
        assert all(f"(#{section})" in differences for section in re.findall(r"differences\.md#([^)]+)", verdict)), (
            verdict
        )
        named = re.findall(r"`([^`]+)`", tests)
        assert named, f"no test proves: {sentence}"
        assert tests == "<br>".join(f"`{name}`" for name in named), sentence
        assert set(named) <= existing, (sentence, set(named) - existing)


@pytest.mark.parametrize(
    ("heading", "names"), [("`MAGRPOConfig`", list(FIELDS)), ("`MAGRPOTrainer`", PARAMETERS)], ids=["config", "trainer"]
)
def test_every_parameter_has_a_row_of_its_own_in_the_order_of_the_page(heading, names):
    first_words = [re.match(r"`(\w+)`", sentence) for sentence, _, _ in sections()[heading]]
    assert list(dict.fromkeys(word[1] for word in first_words if word)) == names


def test_every_test_of_this_file_is_named_on_the_page_but_those_of_the_page_itself():
    own = {name for name in existing_tests() if name.startswith(f"tests/{Path(__file__).name}::")}
    unnamed = {name.partition("::")[2] for name in own if f"`{name}`" not in PAGE.read_text()}
    assert unnamed == {
        test_every_row_has_a_verdict_and_names_tests_that_exist.__name__,
        test_every_test_of_this_file_is_named_on_the_page_but_those_of_the_page_itself.__name__,
        test_every_parameter_has_a_row_of_its_own_in_the_order_of_the_page.__name__,
    }


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "row"), FIELDS.items(), ids=FIELDS)
def test_a_field_has_the_default_and_the_range_of_the_table(field, row):
    default, accepted, refused = row
    assert vars(MAGRPOConfig())[field] == default
    assert isinstance(vars(MAGRPOConfig())[field], type(default))
    for value in accepted:
        assert vars(MAGRPOConfig(**{field: value}))[field] == value
    for value in refused:
        with pytest.raises(ConfigError, match=field):
            MAGRPOConfig(**{field: value})


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_batch_of_one_optimiser_step_is_the_buffer_unless_said_otherwise(size):
    assert MAGRPOConfig(rollout_buffer_size=size).train_batch_size == size
    assert MAGRPOConfig(rollout_buffer_size=size, train_batch_size=3).train_batch_size == 3


def test_there_is_no_critic_and_so_no_clip_range_of_its_values():
    with pytest.raises(TypeError, match="value_clip_range"):
        MAGRPOConfig(value_clip_range=0.2)
    trainer, _ = trainer_of([endless("a", "b")] * 2, for_a, config(num_agents=2, rollout_buffer_size=1))
    trained = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *rest: trained.append(optimizer.param_groups))
    trainer.train()
    handle.remove()
    weights = [[[id(weight) for weight in group["params"]] for group in groups] for groups in trained]
    assert weights == [[[id(agent.policy.logits_V)]] for agent in trainer.team.agents]
    fields = {field.name for field in dataclasses.fields(MAGRPOConfig)}
    names = fields | inspect.signature(MAGRPOTrainer).parameters.keys()
    assert not [name for name in names if "critic" in name or "value" in name]


# --- the variants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mode"), VARIANTS.items())
def test_the_config_of_a_variant_inherits_every_field_and_changes_one_default(name, mode):
    variant = getattr(marl_runner, f"{name}Config")
    assert issubclass(variant, MAGRPOConfig)
    pairs = zip(dataclasses.fields(MAGRPOConfig), dataclasses.fields(variant), strict=True)
    changed = [(own.name, own.default) for base, own in pairs if (base.name, base.default) != (own.name, own.default)]
    assert changed == [("advantage_mode", mode)]
    assert variant().advantage_normalization is True


@pytest.mark.parametrize("name", VARIANTS)
def test_the_trainer_of_a_variant_derives_from_magrpo_s_and_shares_interface_and_loop(name):
    variant = getattr(marl_runner, f"{name}Trainer")
    assert variant.__bases__ == (MAGRPOTrainer,)
    assert inspect.signature(variant) == inspect.signature(MAGRPOTrainer)
    assert dir(variant) == dir(MAGRPOTrainer)
    differing = {key for key in dir(variant) if getattr(variant, key) is not getattr(MAGRPOTrainer, key)}
    assert {key for key in differing if not key.startswith("__")} == {"config_class", "algorithm"}
    assert {"__init__", "__getattribute__", "__setattr__"}.isdisjoint(vars(variant))


# One node with K = 4 and returns 1, 2, 3, 6: mean 12/4 = 3, maximum 6; the means of the others are 11/3, 10/3, 9/3,
# 6/3, so that MARLOO's are 4/3 of MAGRPO's -2, -1, 0, 3.
OF_FOUR = {
    "MAREINFORCE": (1.0, 2.0, 3.0, 6.0),
    "MAGRPO": (1 - 3, 2 - 3, 3 - 3, 6 - 3),
    "MARLOO": (1 - 11 / 3, 2 - 10 / 3, 3 - 9 / 3, 6 - 6 / 3),
    "MAReMax": (1 - 6, 2 - 6, 3 - 6, 6 - 6),
}


def one_node_of_four(name, reward=by_letter, **changes):
    """Returns and advantages of one node whose four answers are b, c, d and g."""
    cfg = config(getattr(marl_runner, f"{name}Config"), num_generations=4, **changes)
    trainer, recorder = trainer_of(
        [script("b", "c", "d", "g")], reward, cfg, trainer=getattr(marl_runner, f"{name}Trainer")
    )
    trainer.train()
    ((_, _, (sample,)),) = recorder.trees
    return sample.returns_K, sample.advantages_K


@pytest.mark.parametrize(("name", "expected"), OF_FOUR.items())
def test_the_four_trainers_give_one_node_of_four_answers_the_same_returns_and_advantages_of_their_own(name, expected):
    returns_K, advantages_K = one_node_of_four(name)
    assert returns_K == (1.0, 2.0, 3.0, 6.0)
    assert advantages_K == pytest.approx(expected, abs=1e-12)
    assert max(advantages_K) <= 0 or name != "MAReMax"


@pytest.mark.parametrize("name", OF_FOUR)
def test_normalised_the_four_trainers_give_one_node_the_same_advantages(name):
    """Squares of -2, -1, 0, 3: 4 + 1 + 0 + 9 = 14, so the population variance is 14/4 = 3.5."""
    _, advantages_K = one_node_of_four(name, advantage_normalization=True)
    assert advantages_K == pytest.approx([value / math.sqrt(3.5) for value in (-2, -1, 0, 3)], abs=1e-12)


@pytest.mark.parametrize(("name", "factor"), [("MAREINFORCE", 1), ("MAGRPO", 1), ("MARLOO", 4 / 3), ("MAReMax", 1)])
def test_below_the_floor_of_the_standard_deviation_marloo_stays_four_thirds_of_the_others(name, factor):
    """Returns 1e-9 times 1, 2, 3, 6: their deviation 1.9e-9 is below 1e-6, so -2e-9 becomes -2e-9 / 1e-6."""
    _, advantages_K = one_node_of_four(name, lambda texts: [1e-9 * by_letter(texts)[0]], advantage_normalization=True)
    assert advantages_K == pytest.approx([factor * value * 1e-3 for value in (-2, -1, 0, 3)], rel=1e-6)


def test_leaving_one_out_is_over_generations_and_never_over_agents():
    """Aligned returns 1 and 4 are those of all three agents: the other generation differs, the other agents do not."""
    trainer, recorder = trainer_of(
        [endless("a", "b")] * 3,
        lambda first, second, third: [1.0 if first == ["a"] else 4.0],
        config(num_agents=3, advantage_mode="rloo"),
    )
    trainer.train()
    assert advantages_of(recorder) == [(1.0 - 4.0, 4.0 - 1.0)] * 3


def test_the_maximum_is_of_the_sampled_answers_and_no_greedy_one_is_generated():
    """The script holds the K = 2 answers and no third, which asking for would raise."""
    cfg = config(marl_runner.MAReMaxConfig)
    trainer, recorder = trainer_of([script("c", "f")], by_letter, cfg, trainer=marl_runner.MAReMaxTrainer)
    trainer.train()
    assert trainer.team.agents[0].policy.requests == [("p",)]
    assert advantages_of(recorder) == [(2.0 - 5.0, 0.0)]


@pytest.mark.parametrize(
    ("mode", "before", "after"), [("raw", 0.0, 0.0), ("mean", 3.0, 5.0), ("rloo", 11 / 3, 11 / 3), ("max", 6.0, 9.0)]
)
def test_the_group_mean_depends_on_the_sample_it_is_subtracted_from_and_the_mean_of_the_others_does_not(
    mode, before, after
):
    """The baseline of the first answer is its return minus its advantage; its return rises from 1 to 9.

    Mean (1 + 2 + 3 + 6)/4 = 3 becomes (9 + 11)/4 = 5; the others' mean (2 + 3 + 6)/3 stays; the maximum 6 becomes 9.
    """
    baseline = ADVANTAGE_MODES[mode]()
    assert 1.0 - baseline([1.0, 2.0, 3.0, 6.0])[0] == pytest.approx(before)
    assert 9.0 - baseline([9.0, 2.0, 3.0, 6.0])[0] == pytest.approx(after)


def estimates(mode: str, K: int) -> list[float]:
    """The gradient estimate from each of the 2^K equally likely groups: answer 0 earns 10, answer 1 earns 12."""
    values = []
    for answers_K in itertools.product((0, 1), repeat=K):
        logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        advantages_K = torch.tensor(ADVANTAGE_MODES[mode]()([10.0 + 2 * answer for answer in answers_K])).double()
        log_probs_K = torch.log_softmax(logits, 0)[list(answers_K)]
        (gradient,) = torch.autograd.grad(policy_gradient_loss(log_probs_K, advantages_K / K).sum(), logits)
        values.append(-float(gradient[0]))
    return values


@pytest.mark.parametrize(("mode", "K", "variance"), [("raw", 2, 15.125), ("raw", 4, 15.125 / 2), ("rloo", 2, 0.25)])
def test_an_independent_baseline_or_more_samples_keep_the_mean_and_lower_the_variance(mode, K, variance):
    """The score of answer 0 is 1/2, of answer 1 -1/2; the true gradient is 1/4 * (10 - 12) = -1/2.

    raw, K = 2:  groups 00, 01, 10, 11 give 5, -1/2, -1/2, -6: mean -1/2, variance 61.5/4 - 1/4 = 15.125
    raw, K = 4:  the mean of four independent terms instead of two, so half that variance
    rloo, K = 2: advantages 0, or -2 for the 0 and 2 for the 1: 0, -1, -1, 0: mean -1/2, variance 2/4 - 1/4
    """
    values = estimates(mode, K)
    mean = sum(values) / len(values)
    assert mean == pytest.approx(-0.5)
    assert sum((value - mean) ** 2 for value in values) / len(values) == pytest.approx(variance)


# --- samples and advantages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("K", "H"), [(2, 1), (3, 3)])
def test_every_agent_samples_k_answers_at_every_node_of_as_many_turns_as_the_horizon(K, H):
    """Aligned, so a full tree has K^t nodes at turn t: 1, or 1 + 3 + 9 = 13."""
    cfg = config(num_agents=2, num_generations=K, num_turns=H)
    trainer, recorder = trainer_of([endless("a", "b"), endless("c")], nothing, cfg, external_transition=again)
    trainer.train()
    ((_, root, samples),) = recorder.trees
    nodes = list(root.walk())
    assert sorted(node.turn for node in nodes) == [turn for turn in range(H) for _ in range(K**turn)]
    assert {tuple(len(completions_K) for completions_K in node.completions_N_K) for node in nodes} == {(K, K)}
    assert [(sample.agent, sample.env_step) for sample in samples] == [(n, x.env_step) for x in nodes for n in (0, 1)]


def test_advantages_are_normalised_within_the_group_of_one_node():
    """Two returns of a group become -1 and 1 whatever the other groups hold.

    Turn 2: b, j earn 1, 9 and a, c earn 0, 2. Turn 1: d earns 3 + (1 + 9)/2 = 8, e earns 4 + (0 + 2)/2 = 5.
    """
    trainer, recorder = trainer_of(
        [script("d", "e", "b", "j", "a", "c")],
        by_letter,
        config(num_turns=2, advantage_normalization=True),
        external_transition=again,
    )
    trainer.train()
    assert [sample.returns_K for sample in recorder.trees[0][2]] == [(8.0, 5.0), (1.0, 9.0), (0.0, 2.0)]
    assert advantages_of(recorder) == [(1.0, -1.0), (-1.0, 1.0), (-1.0, 1.0)]


@pytest.mark.parametrize("joint_mode", ["cross", "crossed"])
def test_cross_and_its_alias_credit_a_completion_with_the_sum_over_its_combinations(joint_mode):
    """Rewards of (a, c), (a, d), (b, c), (b, d): 1, 2, 10, 20. Agent 0: 1 + 2, 10 + 20. Agent 1: 1 + 10, 2 + 20."""
    rewards = {"ac": 1.0, "ad": 2.0, "bc": 10.0, "bd": 20.0}
    trainer, recorder = trainer_of(
        [script("a", "b"), script("c", "d")],
        lambda first, second: [rewards[first[0] + second[0]]],
        config(num_agents=2, joint_mode=joint_mode, advantage_mode="raw"),
    )
    trainer.train()
    assert advantages_of(recorder) == [(3.0, 30.0), (11.0, 22.0)]


def penalised(**changes):
    """Equal rewards, and a policy that has moved from its reference: only the penalty tells "a" from "b"."""
    trainer, recorder = trainer_of([script("a", "b")], nothing, config(reference_kl_enabled=True, **changes))
    trainer.team.agents[0].policy.logits_V.data[0] = 1.0
    trainer.train()
    ((_, _, (sample,)),) = recorder.trees
    return sample


def test_the_penalty_is_weighted_by_a_tenth_unless_said_otherwise():
    for changes, coef in (({}, 0.1), ({"reference_kl_coef": 2.0}, 2.0), ({"reference_kl_coef": 0.0}, 0.0)):
        sample = penalised(advantage_mode="raw", **changes)
        penalties = [completion.reference_kl for completion in sample.completions_K]
        assert min(penalties) > 0
        assert sample.advantages_K == pytest.approx([-coef * penalty for penalty in penalties])


def test_the_penalty_is_subtracted_before_the_baseline_and_before_normalisation():
    """Without it the advantages of equal rewards are 0, 0.

    Subtracted after normalisation it would leave 0 - 0.1 * KL; before it, two different returns become -1 and 1:
    "a", likelier than under the reference (Δ = log((e + 10) / (11 e)) = -0.85), has the larger penalty of the two.
    """
    sample = penalised(advantage_normalization=True)
    first, second = (completion.reference_kl for completion in sample.completions_K)
    assert first > second
    assert sample.advantages_K == pytest.approx((-1.0, 1.0))


def test_only_training_branches_end_early_and_evaluation_plays_every_turn():
    trainer, recorder = trainer_of(
        [endless("b")],
        by_letter,
        config(num_turns=3, early_termination_threshold=0.9),
        eval_dataset=[{"prompt": "e"}],
        external_transition=again,
    )
    trainer.train()
    ((_, root, _),) = recorder.trees
    assert (root.ended, root.children_J) == ("early_termination", ())
    metrics = trainer.evaluate()
    assert [metrics[f"eval/turn_{turn}/reward_mean"] for turn in (1, 2, 3)] == [1.0, 1.0, 1.0]


# --- updates --------------------------------------------------------------------------------------------------


def test_each_agent_weights_its_own_log_probabilities_by_the_shared_advantage():
    """Advantages 1, -1 for both agents. Gradient of -1/2 (log p(first answer) - log p(second answer)): the end
    tokens and the softmax cancel, leaving -1/2 at the letter of the first and 1/2 at that of the second."""
    trainer, recorder = trainer_of([script("a", "b"), script("c", "d")], for_a, config(num_agents=2))
    with gradients(trainer, 0) as first, gradients(trainer, 1) as second:
        trainer.train()
    assert advantages_of(recorder) == [(1.0, -1.0), (1.0, -1.0)]
    assert first == [pytest.approx(vector(a=-0.5, b=0.5), abs=1e-12)]
    assert second == [pytest.approx(vector(c=-0.5, d=0.5), abs=1e-12)]


def test_without_a_baseline_one_step_follows_the_returns_of_all_turns():
    """Turn 2: c, d earn 2, 3 and e, f earn 4, 5. Turn 1: a earns 0 + 5/2, b earns 1 + 9/2.

    Loss: mean over 3 nodes of mean over 2 answers of -R log p, so the gradient is -1/6 Σ R (counts - 2/11). The returns
    add up to 2.5 + 5.5 + 2 + 3 + 4 + 5 = 22: 22 * 2/11 = 4 at every token, minus R at each letter and 22 at the end.
    """
    trainer, _ = trainer_of(
        [script("a", "b", "c", "d", "e", "f")],
        by_letter,
        config(marl_runner.MAREINFORCEConfig, num_turns=2, rollout_buffer_size=3),
        trainer=marl_runner.MAREINFORCETrainer,
        external_transition=again,
    )
    with gradients(trainer) as seen:
        trainer.train()
    expected = [(4 - value) / 6 for value in (2.5, 5.5, 2, 3, 4, 5, 0, 0, 0, 0, 22)]
    assert seen == [pytest.approx(expected, abs=1e-12)]


# In the next three every sample holds "a" and "b" with advantages 1 and -1. Its loss is -1/2 (log p(a) - log p(b)), in
# which softmax and end token cancel: -1/2 (logit a - logit b). The gradient is -1/2 and 1/2 at any weights, so AdamW
# moves logit a by the rate and logit b by minus the rate at every step, and the loss falls by the rate.


def test_log_probabilities_are_recomputed_under_the_weights_of_the_step_before():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        for_a,
        config(rollout_buffer_size=2, train_batch_size=1, agent_learning_rate=0.5),
        rows=[{"prompt": "p"}] * 2,
    )
    trainer.train()
    # scored as they were sampled, both would have the loss 0
    assert losses(recorder) == pytest.approx([0.0, -0.5], abs=1e-6)


def test_samples_of_one_tree_may_be_older_than_the_weights_they_train():
    policies, sampled_under = [], []

    def watched():
        for tokens in endless("a", "b"):
            sampled_under.append(float(policies[0].logits_V.detach()[0]))
            yield tokens

    trainer, recorder = trainer_of(
        [watched()],
        for_a,
        config(num_turns=2, rollout_buffer_size=1, agent_learning_rate=0.5),
        external_transition=again,
    )
    policies.append(trainer.team.agents[0].policy)
    trainer.train()
    # 3 nodes of 2 answers, all sampled before the first of the three steps; turn 2's mean return is (1 - 1)/2 = 0
    assert sampled_under == [0.0] * 6
    assert advantages_of(recorder) == [(1.0, -1.0)] * 3
    assert losses(recorder) == pytest.approx([0.0, -0.5, -1.0], abs=1e-6)


def test_no_importance_ratio_scales_a_step_and_no_clipping_stops_it():
    """After two steps at rate 2 the logits of a and b are 4 and -4: p(a) is e^4 / (e^4 + e^-4 + 9), 9.4 times the 1/11
    it was sampled with. A ratio would multiply the third gradient by that, and clipping at 1.2 would make it 0."""
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        for_a,
        config(rollout_buffer_size=3, train_batch_size=1, agent_learning_rate=2.0),
        rows=[{"prompt": "p"}] * 3,
    )
    with gradients(trainer) as seen:
        trainer.train()
    assert losses(recorder) == pytest.approx([0.0, -2.0, -4.0], abs=1e-6)
    assert 11 * math.exp(4) / (math.exp(4) + math.exp(-4) + 9) > 9
    assert seen == [pytest.approx(vector(a=-0.5, b=0.5), abs=1e-12)] * 3


def test_one_optimiser_step_averages_over_the_buffered_samples():
    """Advantages 1, -1 of the first sample and 3, -3 of the second: each logit gets (1 + 3)/2 of ∓1/2."""
    rewards = iter([1.0, -1.0, 3.0, -3.0])
    trainer, recorder = trainer_of(
        [script("a", "b", "a", "b")],
        lambda texts: [next(rewards)],
        config(rollout_buffer_size=2),
        rows=[{"prompt": "p"}] * 2,
    )
    with gradients(trainer) as seen:
        trainer.train()
    assert advantages_of(recorder, 0) + advantages_of(recorder, 1) == [(1.0, -1.0), (3.0, -3.0)]
    assert seen == [pytest.approx(vector(a=-1.0, b=1.0), abs=1e-12)]


def test_training_takes_one_row_at_a_time_in_the_order_of_the_dataset():
    """With a buffer of one sample the second row is sampled after the step on the first."""
    batches, order = [], []

    def reward(texts, prompts, batch_items):
        batches.append((prompts, batch_items))
        return for_a(texts)

    trainer, _ = trainer_of(
        [endless("a", "b")], reward, config(rollout_buffer_size=1), rows=[{"prompt": name} for name in "zxy"]
    )
    policy = trainer.team.agents[0].policy
    policy.logits_V.register_post_accumulate_grad_hook(lambda logits: order.append(len(policy.requests)))
    trainer.train()
    assert policy.requests == [("z",), ("x",), ("y",)]
    assert batches == [([name], [{"prompt": name}]) for name in "zzxxyy"]
    assert order == [1, 2, 3]


# --- the trainer's arguments ----------------------------------------------------------------------------------


def test_every_argument_is_a_keyword_that_may_be_left_out_of_the_call():
    parameters = inspect.signature(MAGRPOTrainer).parameters
    assert {name: parameters[name].default for name in PARAMETERS} == dict.fromkeys(PARAMETERS)
    assert all(parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in PARAMETERS)


NEEDED = {
    "reward_func": "reward_func is required",
    "external_transition": "num_turns=2 needs an external_transition",
    "train_dataset": r"train\(\) needs a train_dataset",
}


def with_nothing_but_what_is_needed(left_out=None):
    arguments = {"reward_func": nothing, "external_transition": again, "train_dataset": [{"prompt": "p"}]}
    arguments.pop(left_out, None)
    agents = [ScriptedPolicy(endless("a", "b")) for _ in range(2)]
    return MAGRPOTrainer(agents=agents, tracker=Recorder(), **arguments)


def test_reward_transition_and_rows_are_all_that_a_team_needs_to_train_with_the_defaults():
    trainer = with_nothing_but_what_is_needed()
    assert trainer.args == MAGRPOConfig()
    assert trainer.train().tasks == 20
    assert trainer.tracker.kinds().count("eval") == 0


@pytest.mark.parametrize(("left_out", "message"), NEEDED.items())
def test_a_team_does_not_train_without_reward_transition_and_rows(left_out, message):
    with pytest.raises(ConfigError, match=message):
        with_nothing_but_what_is_needed(left_out).train()


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ({"model_config": {"dtipe": "float32"}}, r"model_config has no key 'dtipe'.*nearest: dtype"),
        ({"wandb_config": {"projct": "mine"}}, r"got 'projct'; nearest: project"),
    ],
    ids=["model", "wandb"],
)
def test_what_a_trainer_is_told_of_models_and_weights_and_biases_is_read(argument, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        MAGRPOTrainer(
            agents=[ScriptedPolicy([])], reward_func=nothing, args=config(), output_dir=tmp_path / "run", **argument
        )


@pytest.mark.parametrize(("num_agents", "size"), [(None, 2), (3, 3)])
def test_one_identifier_makes_as_many_equal_agents_as_asked_for_and_two_unasked(num_agents, size, tmp_path):
    tiny_model(0, 16, 1, 2, 512).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    trainer = MAGRPOTrainer(
        agent_model=str(tmp_path),
        num_agents=num_agents,
        reward_func=nothing,
        external_transition=again,
        tracker=Recorder(),
    )
    assert trainer.num_agents == trainer.args.num_agents == size
    embeddings = [next(iter(agent.policy.parameters())) for agent in trainer.team.agents]
    assert all(torch.equal(embedding, embeddings[0]) for embedding in embeddings)


def test_a_list_of_formatters_gives_each_agent_its_own_text_and_one_serves_all():
    def shout(row):
        return row["prompt"].upper()

    def ask(row):
        return f"{row['prompt']}?"

    for formatters, sent in (([shout, ask], ["P", "p?"]), (ask, ["p?", "p?"])):
        trainer, recorder = trainer_of(
            [endless("a"), endless("b")], nothing, config(num_agents=2), formatters=formatters
        )
        trainer.train()
        assert [prompt.text for prompt in recorder.trees[0][1].prompts_N] == sent


def test_the_reward_processor_is_applied_to_each_shared_reward():
    trainer, recorder = trainer_of([script("b", "d")], by_letter, config(), reward_processor=RewardProcessors.scale(10))
    trainer.train()
    ((_, root, (sample,)),) = recorder.trees
    assert [action.reward for action in root.joint_actions_J] == [10.0, 30.0]
    assert sample.advantages_K == (10.0 - 20.0, 30.0 - 20.0)


class Meeting(ScriptedPolicy):
    """Samples only while the other agents of its team sample too."""

    def __init__(self, barrier):
        super().__init__(endless("a", "b"))
        self.barrier = barrier

    def generate(self, prompts, num_completions, sampling, seeds):
        self.barrier.wait()
        return super().generate(prompts, num_completions, sampling, seeds)


@pytest.mark.parametrize(("parallel_training", "timeout_s"), [("mp", 20.0), ("none", 0.1)])
def test_agents_run_at_the_same_time_under_mp_and_one_after_the_other_under_none(parallel_training, timeout_s):
    """Two agents wait for each other: one after the other, the first waits in vain."""
    barrier = threading.Barrier(2, timeout=timeout_s)
    trainer = MAGRPOTrainer(
        agents=[Meeting(barrier), Meeting(barrier)],
        reward_func=nothing,
        train_dataset=[{"prompt": "p"}],
        args=config(num_agents=2, parallel_training=parallel_training, agent_devices=["cpu", "cpu"]),
        tracker=Recorder(),
    )
    if parallel_training == "mp":
        assert trainer.train().tasks == 1
    else:
        with pytest.raises(threading.BrokenBarrierError):
            trainer.train()


class Noting(ScriptedPolicy):
    """Remembers how it was asked to sample, and for how many answers."""

    def __init__(self, entries):
        super().__init__(entries)
        self.asked = []

    def generate(self, prompts, num_completions, sampling, seeds):
        self.asked.append((num_completions, sampling))
        return super().generate(prompts, num_completions, sampling, seeds)


def test_length_temperature_top_p_and_top_k_of_the_settings_are_those_of_every_sample():
    """One training call of K = 3, then the last evaluation, of one answer."""
    policy = Noting(endless("a", "b"))
    MAGRPOTrainer(
        agents=[policy],
        reward_func=nothing,
        train_dataset=[{"prompt": "p"}],
        eval_dataset=[{"prompt": "e"}],
        args=config(
            num_generations=3, max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=3, eval_interval=5, num_agents=1
        ),
        tracker=Recorder(),
    ).train()
    sampling = Sampling(max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=3)
    # before the first row, its training, and after the last update
    assert policy.asked == [(1, sampling), (3, sampling), (1, sampling)]


def test_evaluation_callbacks_are_called_as_documented_and_their_metrics_are_logged_under_eval():
    """Three rows are evaluated two at a time; the logger sees all three at once, before the one training row."""
    calls = []

    def eval_logger(**arguments):
        calls.append(arguments)
        return [{"length": float(len(prompt))} for prompt in arguments["prompts"]]

    def eval_aggregator(metrics, /, *, num_turns):
        calls.append((metrics, num_turns))
        return {"turn_1/length": max(row["length"] for row in metrics), "turn_2/length": 9.0}

    rows = [{"prompt": "x"}, {"prompt": "xy"}, {"prompt": "xyz"}]
    trainer, recorder = trainer_of(
        [script("a", "b", "c", "d", "e", "f")],
        by_letter,
        config(num_turns=2, eval_interval=1, eval_batch_size=2),
        rows=[],
        eval_dataset=rows,
        eval_logger=eval_logger,
        eval_aggregator=eval_aggregator,
        external_transition=again,
    )
    metrics = trainer.evaluate()
    # the first two rows answer a, b at turn 1 and c, d at turn 2; then the third answers e, f
    turns = [[["a", "c"], ["b", "d"], ["e", "f"]]]
    assert calls == [
        {"agent_completions_turns": turns, "batch_items": rows, "prompts": ["x", "xy", "xyz"]},
        ([{"length": 1.0}, {"length": 2.0}, {"length": 3.0}], 2),
    ]
    assert (metrics["eval/turn_1/length"], metrics["eval/turn_2/length"]) == (3.0, 9.0)
    assert recorder.events == []


def test_metrics_of_the_callbacks_are_in_every_evaluation_event_of_a_run():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter,
        config(eval_interval=1),
        eval_dataset=[{"prompt": "e"}],
        eval_logger=lambda agent_completions_turns, batch_items, prompts: [{"seen": 1.0}],
        eval_aggregator=lambda metrics, num_turns: {"turn_1/seen": metrics[0]["seen"]},
    )
    trainer.train()
    evaluations = [event.metrics for event in recorder.events if event.kind == "eval"]
    assert [metrics["eval/turn_1/seen"] for metrics in evaluations] == [1.0, 1.0]
