"""The public Python interface: settings, agreement between arguments, and what a training run reports."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal

import pytest

import marl_runner
from marl_runner.advice import advice
from marl_runner.errors import (
    ConfigError,
    DataError,
    MarlRunnerError,
    NumericalError,
    RolloutError,
    RunFolderError,
)
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.rewards.length_ratio import LengthRatio
from marl_runner.settings import MAGRPOConfig
from marl_runner.stopping import REQUEST, SIGNALS, Stopped
from marl_runner.trainers.magrpo import MAGRPOTrainer
from scripted_team import Recorder, endless, script, trainer_of

VARIANTS = {"MAGRPO": "mean", "MAREINFORCE": "raw", "MARLOO": "rloo", "MAReMax": "max"}


def config(**changes) -> MAGRPOConfig:
    defaults = {"num_agents": 1, "num_generations": 2, "num_turns": 1, "num_train_epochs": 1, "eval_interval": 0}
    return MAGRPOConfig(**{**defaults, **changes})


def by_letter(texts):
    return [float("abcdefghij".index(texts[0]))]


def test_the_defaults_are_those_of_the_reference():
    expected = {
        "num_agents": 2,
        "num_turns": 2,
        "num_train_epochs": 20,
        "agent_learning_rate": 5e-6,
        "logging_steps": 50,
        "num_generations": 4,
        "max_new_tokens": 256,
        "temperature": 0.6,
        "top_p": 0.6,
        "top_k": 50,
        "discount": 1.0,
        "joint_mode": "aligned",
        "early_termination_threshold": -0.2,
        "external_prompt_passthrough": False,
        "advantage_mode": "mean",
        "advantage_normalization": True,
        "rollout_buffer_size": 2,
        "train_batch_size": 2,  # None becomes rollout_buffer_size
        "eval_interval": 16,
        "eval_num_samples": 4,
        "eval_batch_size": 1,
        "parallel_training": "none",
        "agent_devices": None,
        "reference_kl_enabled": False,
        "reference_kl_coef": 0.1,
        "reference_devices": None,
    }
    made = dataclasses.asdict(MAGRPOConfig())
    assert {name: made[name] for name in expected} == expected


@pytest.mark.parametrize(("name", "mode"), VARIANTS.items())
def test_the_variants_differ_in_their_advantage_mode_only(name, mode):
    variant, base = getattr(marl_runner, f"{name}Config")(), MAGRPOConfig()
    assert variant.advantage_mode == mode
    assert dataclasses.replace(variant, advantage_mode="mean") == type(variant)(advantage_mode="mean")
    differing = [n for n in vars(base) if vars(base)[n] != vars(variant)[n]]
    assert differing == ([] if mode == "mean" else ["advantage_mode"])
    trainer = getattr(marl_runner, f"{name}Trainer")
    assert trainer.algorithm == name
    assert trainer.config_class is getattr(marl_runner, f"{name}Config")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_agents", 0),
        ("num_turns", 0),
        ("num_turns", 2.5),
        ("num_turns", "two"),
        ("num_turns", True),
        ("num_turns", None),
        ("num_train_epochs", 0),
        ("agent_learning_rate", 0.0),
        ("agent_learning_rate", math.nan),
        ("agent_learning_rate", "fast"),
        ("logging_steps", 0),
        ("num_generations", 1),
        ("num_generations", 0),
        ("num_generations", -1),
        ("max_new_tokens", 0),
        ("temperature", 0.0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", 0),
        ("discount", -0.1),
        ("discount", 1.1),
        ("joint_mode", "diagonal"),
        ("early_termination_threshold", math.nan),
        ("external_prompt_passthrough", "yes"),
        ("advantage_mode", "median"),
        ("advantage_normalization", 1),
        ("rollout_buffer_size", 0),
        ("train_batch_size", 0),
        ("eval_interval", -1),
        ("eval_num_samples", -1),
        ("eval_batch_size", 0),
        ("parallel_training", "ddp"),
        ("reference_kl_coef", -0.1),
        ("seed", -1),
        ("max_grad_norm", 0.0),
        ("weight_decay", -1.0),
        ("lr_scheduler", "step"),
        ("warmup_steps", -1),
        ("mixed_precision", "fp8"),
        ("node_weighting", "turn"),
        ("compat", "comlrl-1.3"),
        ("micro_batch_tokens", 0),
        ("max_prompt_tokens", 0),
        ("overlong_prompt", "skip"),
        ("nonfinite_reward", "zero"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_and_value(field, value):
    with pytest.raises(ConfigError, match=f"^{field} ") as caught:
        MAGRPOConfig(**{field: value})
    assert str(value) in str(caught.value)


def test_one_generation_is_refused_for_raw_too_with_the_reason():
    with pytest.raises(ConfigError, match=r"num_generations must be an integer >= 2 \(the group's baseline"):
        MAGRPOConfig(advantage_mode="raw", num_generations=1)


def test_null_parallel_training_is_none_and_mp_needs_devices():
    assert MAGRPOConfig(parallel_training="null").parallel_training == "none"
    assert MAGRPOConfig(parallel_training=None).parallel_training == "none"
    with pytest.raises(ConfigError, match="parallel_training=mp needs agent_devices"):
        MAGRPOConfig(parallel_training="mp")


@pytest.mark.parametrize("field", ["joint_mode", "advantage_mode"])
@pytest.mark.parametrize("value", [None, 3, len])
def test_a_mode_is_a_name_or_an_object_of_its_kind(field, value):
    with pytest.raises(ConfigError, match=f"{field} must be one of "):
        MAGRPOConfig(**{field: value})


def test_a_batch_must_hold_the_completions_of_one_prompt():
    with pytest.raises(ConfigError, match="max_rollout_rows=4 must be at least num_generations=8"):
        MAGRPOConfig(num_generations=8, max_rollout_rows=4)


def test_errors_are_of_our_root_and_of_the_builtin_kind():
    with pytest.raises(ValueError, match="discount"):
        MAGRPOConfig(discount=2.0)
    with pytest.raises(MarlRunnerError):
        MAGRPOConfig(discount=2.0)


def test_the_team_size_comes_from_the_agents_if_nothing_else_says_it():
    trainer = MAGRPOTrainer(
        agents=[ScriptedPolicy([])] * 1,
        reward_func=by_letter,
        external_transition=lambda prompt: ["x"],
        tracker=Recorder(),
    )
    assert trainer.num_agents == trainer.args.num_agents == 1


@pytest.mark.parametrize("options", [{"num_agents": 3}, {"args": config(num_agents=2)}])
def test_a_contradiction_about_the_team_size_is_an_error(options):
    with pytest.raises(ConfigError, match="the number of agents is contradictory: len"):
        MAGRPOTrainer(agents=[ScriptedPolicy([])], reward_func=by_letter, **options)


def test_a_variant_s_trainer_refuses_another_variant_s_mode():
    with pytest.raises(ConfigError, match="MARLOOTrainer runs advantage_mode=rloo, but args say mean"):
        trainer_of([endless("a")], by_letter, config(), trainer=marl_runner.MARLOOTrainer)


def test_magrpo_s_trainer_runs_any_mode_and_says_which():
    trainer, _ = trainer_of([endless("a")], by_letter, config(advantage_mode="rloo", advantage_normalization=False))
    assert trainer.algorithm == "MARLOO"


def test_an_iterator_which_could_be_read_only_once_is_refused():
    with pytest.raises(
        ConfigError, match="train_dataset is an iterator, which can be read only once: pass a list of dicts"
    ):
        trainer_of([endless("a")], by_letter, config(), rows=iter([{"prompt": "p"}]))


def test_a_schedule_that_ends_needs_a_dataset_of_known_length():
    class Stream:
        def __iter__(self):
            return iter([{"prompt": "x"}])

    with pytest.raises(ConfigError, match="lr_scheduler=linear needs a train_dataset of known length"):
        trainer_of([endless("a")], by_letter, config(lr_scheduler="linear"), rows=Stream())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("agent_devices", 3, "must be a device, a list of devices or null, got 3"),
        ("agent_devices", ["cpu", 0], "must be a device, a list of devices or null"),
        ("agent_devices", ["cpu"] * 3, "has 3 entries, needs 1 or num_agents=2"),
        ("reference_devices", ["cpu"] * 3, "has 3 entries, needs 1 or num_agents=2"),
    ],
)
def test_devices_are_one_for_all_or_one_for_each(field, value, message):
    with pytest.raises(ConfigError, match=f"{field} {message}"):
        MAGRPOConfig(num_agents=2, **{field: value})


def test_devices_are_counted_against_the_team_where_the_settings_do_not_state_its_size():
    settings = MAGRPOConfig(agent_devices=["cpu"] * 3, num_turns=1)
    policies = [ScriptedPolicy([]) for _ in range(3)]
    trainer = MAGRPOTrainer(agents=policies, reward_func=lambda *texts: [0.0], args=settings, tracker=Recorder())
    assert trainer.args.num_agents == 3
    with pytest.raises(ConfigError, match="agent_devices has 3 entries, needs 1 or num_agents=2"):
        MAGRPOTrainer(agents=policies[:2], reward_func=lambda *texts: [0.0], args=settings, tracker=Recorder())


def test_a_formatter_that_fails_while_training_ends_the_run_naming_agent_row_and_turn():
    def once(row):
        if row["prompt"] != "p":
            raise KeyError("style")
        return "p"

    trainer, _ = trainer_of(
        [endless("a")],
        by_letter,
        config(num_turns=2, early_termination_threshold=None),
        external_transition=lambda prompt: ["next"],
        formatters=once,
    )
    with pytest.raises(RolloutError, match=r"once of agent 0 raised KeyError: 'style' at .*py:\d+ \(task 1\), turn 2"):
        trainer.train()


def test_the_last_evaluation_row_is_named_as_one():
    with pytest.raises(DataError, match="the prompt of row eval-2 is empty for agent 0"):
        trainer_of([endless("a")], by_letter, config(), eval_dataset=[{"prompt": "p"}, {"prompt": ""}])


def test_columns_a_reward_declares_are_checked_before_training():
    class NeedsTests:
        required_fields = ("tests",)

        def __call__(self, texts):
            return [0.0]

    rows = [{"prompt": "a", "tests": []}, {"prompt": "b"}]
    with pytest.raises(DataError, match=r"^row 2 has no 'tests', needed by reward NeedsTests"):
        trainer_of([endless("a")], NeedsTests(), config(), rows=rows)


def test_a_team_smaller_than_the_reward_needs_is_refused():
    with pytest.raises(ConfigError, match=r"LengthRatio needs at least 2 agents, got 1"):
        trainer_of([endless("a")], LengthRatio(2.0, 3.0), config())


@pytest.mark.parametrize("value", [1e308, -1e308])
def test_rewards_at_the_edge_of_the_float_range_overflow_no_mean(value):
    trainer, recorder = trainer_of([endless("a", "b")], lambda texts: [value], config(logging_steps=1))
    trainer.train()
    assert [e.metrics["turn_1/reward_mean"] for e in recorder.events if e.kind == "train"] == [value]


def test_an_advantage_beyond_the_float_range_is_an_error():
    trainer, _ = trainer_of(
        [script("a", "b")],
        lambda texts: [1e308 if texts == ["a"] else -1e308],
        config(advantage_mode="max", advantage_normalization=True),
    )
    with pytest.raises(NumericalError, match="an advantage before normalisation is -inf"):
        trainer.train()


@pytest.mark.parametrize("row", ["text", None, 5, ["prompt"]])
def test_a_row_that_is_no_mapping_is_named(row):
    with pytest.raises(DataError, match=f"row 2 is {type(row).__name__}, expected a mapping"):
        trainer_of([endless("a")], by_letter, config(), rows=[{"prompt": "p"}, row])


def test_a_tree_that_would_never_end_is_refused_before_it_is_listed():
    endless_tree = config(num_agents=8, num_generations=16, joint_mode="cross")
    with pytest.raises(ConfigError, match=r"over 1,000,000 joint actions: 4,294,967,296 at each node"):
        trainer_of([endless("a")] * 8, lambda *texts: [0.0], endless_tree)


@pytest.mark.parametrize("number", [-1, 2.5, "2", True])
def test_evaluate_takes_a_number_of_rows(number):
    trainer, _ = trainer_of([endless("a")], by_letter, config(), eval_dataset=[{"prompt": "e"}])
    with pytest.raises(ConfigError, match="num_eval_samples must be an integer >= 0"):
        trainer.evaluate(number)


def test_a_trainer_trains_once():
    trainer, _ = trainer_of([endless("a")], by_letter, config())
    trainer.train()
    with pytest.raises(ConfigError, match=r"train\(\) was called before"):
        trainer.train()


def test_two_trainers_never_share_an_output_folder(tmp_path):
    def made():
        return MAGRPOTrainer(
            agents=[ScriptedPolicy(endless("a"))],
            reward_func=by_letter,
            train_dataset=[{"prompt": "p"}],
            args=config(),
            output_dir=tmp_path,
        )

    made().train()
    with pytest.raises(RunFolderError, match="holds an earlier run"):
        made()


def test_a_signal_that_a_hook_swallows_still_ends_the_run():
    def swallows(texts):
        try:
            REQUEST.receive(signal.SIGTERM)
        except BaseException:  # noqa: BLE001  what a careless hook does
            return [1.0]

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    trainer, recorder = trainer_of([endless("a")], swallows, config())
    try:
        with pytest.raises(Stopped, match="SIGTERM"):
            trainer.train()
    finally:
        REQUEST.number = None
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert recorder.trees == []


def test_missing_arguments_are_named():
    with pytest.raises(ConfigError, match="reward_func is required"):
        MAGRPOTrainer(agents=[ScriptedPolicy([])], args=config())
    with pytest.raises(ConfigError, match="no agents: pass agent_model"):
        MAGRPOTrainer(reward_func=by_letter, args=config(num_agents=1))
    trainer = MAGRPOTrainer(agents=[ScriptedPolicy([])], reward_func=by_letter, args=config(), tracker=Recorder())
    with pytest.raises(ConfigError, match=r"train\(\) needs a train_dataset"):
        trainer.train()


def test_an_empty_dataset_is_an_error():
    trainer, _ = trainer_of([endless("a")], by_letter, config(), rows=[])
    with pytest.raises(DataError, match="train_dataset has no rows"):
        trainer.train()


def test_an_empty_prompt_is_reported_by_row_and_agent_before_training():
    with pytest.raises(DataError, match="the prompt of row 2 is empty for agent 0"):
        trainer_of([endless("a")], by_letter, config(), rows=[{"prompt": "p"}, {"prompt": ""}])


def test_a_row_without_prompt_needs_a_formatter():
    with pytest.raises(DataError, match=r"^row 1, agent 0: the row has no 'prompt' but question; pass formatters=$"):
        trainer_of([endless("a")], by_letter, config(), rows=[{"question": "q"}])
    trainer, recorder = trainer_of(
        [endless("a")], by_letter, config(), rows=[{"question": "q"}], formatters=[lambda row: row["question"]]
    )
    trainer.train()
    assert recorder.trees[0][1].prompts_N[0].text == "q"


def test_one_formatter_per_agent_or_an_error():
    with pytest.raises(ConfigError, match="formatters has 2 entries, but the team has 1 agents"):
        trainer_of([endless("a")], by_letter, config(), formatters=[str, str])


def test_rows_may_come_from_a_stream_without_a_length():
    class Stream:
        def __iter__(self):
            return iter([{"prompt": "x"}, {"prompt": "y"}])

    trainer, recorder = trainer_of([endless("a", "b")], by_letter, config(num_train_epochs=2), rows=Stream())
    assert trainer.train().tasks == 4
    assert [root.prompts_N[0].text for _, root, _ in recorder.trees] == ["x", "y", "x", "y"]
    assert recorder.progresses[-1].num_tasks is None


def test_tasks_keep_their_order_unless_shuffled_by_the_seed():
    rows = [{"prompt": letter} for letter in "abcdefgh"]

    def order(**changes):
        trainer, recorder = trainer_of([endless("a", "b")], by_letter, config(**changes), rows=rows)
        trainer.train()
        return "".join(root.prompts_N[0].text for _, root, _ in recorder.trees)

    assert order(num_train_epochs=2) == "abcdefgh" * 2
    shuffled = order(shuffle=True, num_train_epochs=2)
    assert sorted(shuffled[:8]) == list("abcdefgh")
    assert shuffled[:8] != shuffled[8:]
    assert shuffled == order(shuffle=True, num_train_epochs=2)
    assert shuffled != order(shuffle=True, num_train_epochs=2, seed=1)


def test_training_events_are_monotone_and_every_turn_is_in_them():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter,
        config(num_turns=2, logging_steps=10, early_termination_threshold=None),
        rows=[{"prompt": "p"}] * 4,
        external_transition=lambda prompt: ["next"],
    )
    trainer.train()
    train = [event for event in recorder.events if event.kind == "train"]
    # a task is 2 + 2 * 2 = 6 env steps; 10 are reached after tasks 2 (12) and 4 (24)
    assert [event.env_step for event in train] == [12, 24]
    for event in train:
        assert event.metrics["turn_1/reward_mean"] == 0.5
        assert event.metrics["turn_2/reward_mean"] == 0.5
        assert event.metrics["turn_1/expected_return"] == 1.0
    steps = [event.env_step for event in recorder.events]
    assert steps == sorted(steps)


def test_what_is_left_at_the_end_is_logged_too():
    trainer, recorder = trainer_of([endless("a", "b")], by_letter, config(logging_steps=1000))
    trainer.train()
    assert [event.env_step for event in recorder.events if event.kind == "train"] == [2]


def test_metrics_of_a_window_by_hand():
    # completions "a" (2 tokens through the end) and one of 3 tokens that was cut: no end token
    trainer, recorder = trainer_of([[[0, 10], [1, 2, 3]]], lambda texts: [float(len(texts[0]))], config())
    trainer.train()
    (train,) = [event for event in recorder.events if event.kind == "train"]
    assert train.metrics["turn_1/reward_mean"] == (1 + 3) / 2
    assert train.metrics["agent_0/completion_tokens_mean"] == (2 + 3) / 2
    assert train.metrics["agent_0/truncated_fraction"] == 1 / 2
    assert train.metrics["agent_0/zero_signal_fraction"] == 0.0
    assert train.metrics["reward/abstained"] == 0.0


def test_no_signal_is_measured_and_warned_about_when_it_stays(caplog):
    trainer, recorder = trainer_of(
        [endless("a")],
        lambda texts: [1.0],
        config(logging_steps=1, rollout_buffer_size=1),
        rows=[{"prompt": "p"}] * 3,
    )
    trainer.train()
    fractions = [e.metrics["agent_0/zero_signal_fraction"] for e in recorder.events if e.kind == "train"]
    assert fractions == [1.0, 1.0, 1.0]
    assert caplog.text.count("carry no signal") == 1


def test_the_reference_penalty_reaches_the_metrics_and_the_advantages():
    trainer, recorder = trainer_of(
        [script("a", "b", "a", "b")],
        lambda texts: [0.0],
        config(reference_kl_enabled=True, reference_kl_coef=1.0, advantage_normalization=False, rollout_buffer_size=1),
        rows=[{"prompt": "p"}] * 2,
    )
    policy = trainer.team.agents[0].policy
    policy.logits_V.data[0] = 1.0
    trainer.train()
    # reference uniform over 11; policy: a with e/(e+10), the others 1/(e+10)
    total = math.e + 10
    log_ref = -math.log(11)

    def k3(log_policy):
        delta = log_ref - log_policy
        return math.exp(delta) - delta - 1

    end = k3(-math.log(total))
    kl_a, kl_b = k3(1 - math.log(total)) + end, 2 * end
    first = recorder.trees[0][2][0]
    assert [c.reference_kl for c in first.completions_K] == pytest.approx([kl_a, kl_b], rel=1e-6)
    assert first.returns_K == (0.0, 0.0)
    mean = -(kl_a + kl_b) / 2
    assert first.advantages_K == pytest.approx((-kl_a - mean, -kl_b - mean), rel=1e-6)
    train = [event for event in recorder.events if event.kind == "train"]
    assert train[0].metrics["agent_0/kl_mean"] > 0


@pytest.mark.parametrize("mode", ["raw", "rloo", "max"])
def test_a_mode_that_normalisation_makes_void_is_said_loudly_once(mode, caplog):
    with caplog.at_level(logging.WARNING):
        trainer_of([endless("a")], by_letter, config(advantage_mode=mode))
    assert caplog.text.count(f"advantage_mode={mode} makes NO DIFFERENCE") == 1
    assert "trainer.advantage_normalization=false" in caplog.text


@pytest.mark.parametrize(
    "changes", [{"advantage_mode": "mean"}, {"advantage_mode": "raw", "advantage_normalization": False}]
)
def test_nothing_is_said_where_the_mode_matters(changes):
    assert advice(config(**changes), None, None) == []


def test_a_reward_that_can_never_reach_turn_two_is_said_at_start():
    several = config(num_turns=2)
    (warning,) = advice(several, (0.0, 1.0), None)
    assert (
        "no branch will ever reach turn 2: the reward is at least 0, above early_termination_threshold=-0.2" in warning
    )
    assert advice(several, (0.0, 1.0), lambda reward: reward - 4.0) == []
    assert advice(several, (0.0, 1.0), lambda reward: -reward) == []
    assert advice(config(num_turns=2, early_termination_threshold=None), (0.0, 1.0), None) == []
    assert advice(config(num_turns=1), (0.0, 1.0), None) == []


def test_an_advantage_mode_of_one_s_own_is_used():
    class Half:
        name = "half"

        def __call__(self, returns_K):
            return [value / 2 for value in returns_K]

    trainer, recorder = trainer_of(
        [script("c", "e")], by_letter, config(advantage_mode=Half(), advantage_normalization=False)
    )
    trainer.train()
    assert recorder.trees[0][2][0].advantages_K == (1.0, 2.0)


def test_save_model_writes_one_folder_per_agent(tmp_path):
    trainer, _ = trainer_of([endless("a"), endless("a")], lambda first, second: [0.0], config(num_agents=2))
    trainer.save_model(tmp_path / "models")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["agent_0", "agent_1"]


def test_the_default_tracker_writes_local_metrics(tmp_path):
    trainer = MAGRPOTrainer(
        agents=[ScriptedPolicy(endless("a", "b"))],
        reward_func=by_letter,
        train_dataset=[{"prompt": "p"}],
        args=config(),
        output_dir=tmp_path / "run",
    )
    trainer.train()
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"metrics.jsonl", "rollouts.jsonl"}
