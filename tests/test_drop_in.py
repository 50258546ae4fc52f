"""User scripts written for CoMLRL run with another import line, and nothing else changed.

Each test is one shape of script as people write it, over tiny real models:

1. what is imported, and from where
2. how a team is given: preloaded models, one tokenizer, a name beside them, one model for all, one agent
3. how rewards, processors, formatters, transitions and evaluation callbacks are written
4. how rows are given
5. names of older versions, with one DeprecationWarning each
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import json
import pickle
import warnings

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset, IterableDataset
from omegaconf import OmegaConf

from marl_runner import (
    MAGRPOConfig,
    MAGRPOTrainer,
    MAREINFORCEConfig,
    MAREINFORCETrainer,
    MAReMaxConfig,
    MAReMaxTrainer,
    MARLOOConfig,
    MARLOOTrainer,
    RewardProcessors,
)
from marl_runner.errors import ConfigError, RolloutError
from marl_runner.settings import UNSTATED_TEAM_SIZE
from models import tiny_gpt2, tiny_llama, tiny_tokenizer

ROWS = [{"prompt": "abc", "target": 2}, {"prompt": "de", "target": 3}]
CHAT = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def weights(model) -> torch.Tensor:
    """All weights of a model, one after the other."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def settings(config_class=MAGRPOConfig, **changes):
    """Short settings as a script would write them: the number of agents is left to the trainer."""
    values = {
        "num_train_epochs": 1,
        "agent_learning_rate": 1e-3,
        "num_generations": 2,
        "max_new_tokens": 4,
        "num_turns": 1,
        "temperature": 1.0,
        "weight_decay": 0.0,  # or every weight would move, whatever the reward
    }
    return config_class(**(values | changes))


def length_ratio(first, second, target=2.0):
    return [abs(len(b) - target * len(a)) for a, b in zip(first, second, strict=True)]


def rising():
    """A reward that no two joint actions share, so that every group has a signal, whatever was sampled."""
    numbers = itertools.count()
    return lambda *texts_N: [float(next(numbers))]


def trained(args=None, models=None, reward_func=length_ratio, train_dataset=ROWS, trainer=MAGRPOTrainer, **options):
    """Runs a script to its end; the trainer, and whether any model was trained."""
    models = [tiny_llama(seed=1), tiny_llama(seed=2)] if models is None else models
    before = [weights(model) for model in models]
    made = trainer(
        agents=models,
        tokenizer=tiny_tokenizer(),
        reward_func=reward_func,
        train_dataset=train_dataset,
        args=settings() if args is None else args,
        **options,
    )
    made.train()
    moved = [not torch.equal(old, weights(model)) for old, model in zip(before, models, strict=True)]
    return made, moved


def rewards_of(folder) -> list[float]:
    """Every joint reward of the rollouts that a run wrote."""
    (path,) = folder.glob("outputs/*/rollouts.jsonl")
    first = json.loads(path.read_text().splitlines()[0])
    return [action["reward"] for action in first["tree"]["joint_actions"]]


# --- 1 and 2: imports and teams ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config_class", "trainer"),
    [
        (MAGRPOConfig, MAGRPOTrainer),
        (MAREINFORCEConfig, MAREINFORCETrainer),
        (MARLOOConfig, MARLOOTrainer),
        (MAReMaxConfig, MAReMaxTrainer),
    ],
)
def test_preloaded_models_one_tokenizer_a_partial_reward_and_a_scale(config_class, trainer):
    reward = functools.partial(length_ratio, target=3.0)
    made, moved = trained(
        settings(config_class, advantage_normalization=False),
        reward_func=reward,
        reward_processor=RewardProcessors.scale(100.0),
        trainer=trainer,
    )
    assert (made.num_agents, made.args.num_agents, moved) == (2, 2, [True, True])


def test_a_reward_that_says_nothing_moves_nothing():
    _, moved = trained(reward_func=lambda first, second: [0.5])
    assert moved == [False, False]


def test_the_scale_reaches_the_recorded_rewards(tmp_path):
    trained(reward_func=lambda first, second: [0.25], reward_processor=RewardProcessors.scale(100.0))
    assert rewards_of(tmp_path) == [25.0, 25.0]


@pytest.mark.parametrize("told", [{}, {"num_agents": 1}])
def test_one_agent_is_grpo_without_a_word_in_the_settings(told):
    made, moved = trained(models=[tiny_llama()], reward_func=rising(), **told)
    assert (made.num_agents, made.args.num_agents, moved) == (1, 1, [True])


def test_settings_that_say_nothing_of_the_size_pass_through_yaml_and_copies():
    plain = dataclasses.asdict(MAGRPOConfig())
    assert yaml.safe_load(yaml.safe_dump(plain)) == OmegaConf.to_container(OmegaConf.create(plain)) == plain
    config = MAGRPOConfig()
    for same in (
        copy.copy(config),
        copy.deepcopy(config),
        dataclasses.replace(config, seed=1),
        pickle.loads(pickle.dumps(config)),
    ):
        assert (same.num_agents, same.stated_num_agents) == (2, None)


def test_settings_of_a_class_with_a_constructor_of_its_own():
    class Mine(MAGRPOConfig):
        def __init__(self, **changes):
            super().__init__(**(dict(vars(settings())) | {"num_agents": UNSTATED_TEAM_SIZE} | changes))

    made, moved = trained(Mine(), models=[tiny_llama()], reward_func=rising())
    assert (made.args.num_agents, moved) == (1, [True])


@pytest.mark.parametrize(
    ("args", "got"),
    [({}, "a builtins.dict"), (MAGRPOConfig, "the class marl_runner.settings.MAGRPOConfig"), ("x", "a builtins.str")],
)
def test_settings_that_are_none_are_refused_with_what_to_import(args, got):
    with pytest.raises(ConfigError, match=rf"args must be a MAGRPOConfig\(…\) imported from marl_runner, got {got}"):
        MAGRPOTrainer(agents=[tiny_llama()], args=args)


def test_numbers_of_numpy_and_modes_in_capitals_are_taken():
    config = MAGRPOConfig(
        num_generations=np.int64(3),
        agent_learning_rate=np.float32(0.5),
        joint_mode="Crossed",
        advantage_mode="RLOO",
        parallel_training="NONE",
    )
    kept = (config.num_generations, config.agent_learning_rate, config.joint_mode, config.advantage_mode)
    assert kept == (3, 0.5, "cross", "rloo")
    assert [type(value) for value in kept[:2]] == [int, float]
    assert config.parallel_training == "none"


def test_a_script_that_filters_by_the_signature_keeps_the_old_names():
    candidate = {"learning_rate": 1e-4, "normalize_advantage": False, "unknown": 1}
    known = inspect.signature(MAGRPOConfig.__init__).parameters
    kept = {name: value for name, value in candidate.items() if name in known}
    with pytest.warns(DeprecationWarning, match="is called"):
        config = MAGRPOConfig(**kept)
    assert (config.agent_learning_rate, config.advantage_normalization) == (1e-4, False)


def test_a_size_stated_twice_must_agree():
    for stated in ({"args": settings(num_agents=2)}, {"num_agents": 2}):
        with pytest.raises(ConfigError, match="the number of agents is contradictory"):
            trained(models=[tiny_llama()], reward_func=lambda texts: [0.0], **stated)


def test_a_model_s_name_may_stand_beside_preloaded_agents():
    made, moved = trained(agent_model="HuggingFaceTB/SmolLM2-135M-Instruct")
    assert (made.num_agents, moved) == (2, [True, True])


def test_agents_of_different_architectures_may_have_a_tokenizer_each():
    models = [tiny_llama(), tiny_gpt2()]
    before = [weights(model) for model in models]
    made = MAGRPOTrainer(
        agents=models,
        tokenizer=[tiny_tokenizer(), tiny_tokenizer()],
        reward_func=rising(),
        train_dataset=ROWS,
        args=settings(),
    )
    made.train()
    assert not any(torch.equal(old, weights(model)) for old, model in zip(before, models, strict=True))


def letter_sums(first, second):
    """No two texts of a few letters get the same number easily."""
    return [sum(map(ord, first[0])) % 13 + sum(map(ord, second[0])) % 11 / 16]


def test_cross_with_mp_on_two_cpu_devices_gives_the_numbers_of_one_after_the_other():
    """K = 2, N = 2: 4 joint actions."""
    runs = []
    for placed in ({}, {"parallel_training": "mp", "agent_devices": ["cpu", "cpu"]}):
        models = [tiny_llama(seed=1), tiny_llama(seed=2)]
        made, moved = trained(settings(joint_mode="cross", **placed), models=models, reward_func=letter_sums)
        assert moved == [True, True]
        assert made.counters.env_step == 2 * 4
        runs.append([weights(model) for model in models])
    assert all(torch.equal(alone, beside) for alone, beside in zip(*runs, strict=True))


# --- 3: rewards, processors, formatters, transitions, evaluation ------------------------------------------------


def variadic(*agent_completions, batch_items=None, prompts=None):
    assert prompts == [batch_items[0]["prompt"]]
    return [float(sum(len(texts[0]) for texts in agent_completions) * batch_items[0]["target"])]


def keyword_only(first, second, *, batch_items):
    return [float(len(first[0]) * batch_items[0]["target"])]


def prompts_first(prompts, first, second):
    return [float(len(prompts[0]) + len(first[0]))]


class Scorer:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, first, second):
        return [self.weight * len(second[0])]


def the_row(first, second, batch_item):
    return [float(len(first[0]) * batch_item["target"])]


@pytest.mark.parametrize(
    "reward",
    [
        lambda first, second: [float(len(first[0]) - len(second[0]))],
        variadic,
        keyword_only,
        prompts_first,
        Scorer(0.5),
        the_row,
        lambda first, second, **context: [float(len(first[0]) * context["batch_items"][0]["target"])],
        lambda first, second: torch.tensor([len(first[0]) / 7]),
    ],
)
def test_rewards_of_every_shape(reward):
    _, moved = trained(reward_func=reward)
    assert moved == [True, True]


def test_chat_template_closures_as_formatters(tmp_path):
    """The tokenizer's end of sequence closes every message, and is its padding too: what is sent is unharmed by it."""
    tokenizer = tiny_tokenizer(pad_token="</s>", chat_template=CHAT)

    def formatter_for(role):
        def formatter(row):
            chat = [{"role": "system", "content": role}, {"role": "user", "content": row["prompt"]}]
            return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

        return formatter

    MAGRPOTrainer(
        agents=[tiny_llama(seed=1), tiny_llama(seed=2)],
        tokenizer=tokenizer,
        reward_func=length_ratio,
        formatters=[formatter_for("a"), formatter_for("b")],
        train_dataset=ROWS,
        args=settings(),
    ).train()
    (path,) = tmp_path.glob("outputs/*/rollouts.jsonl")
    tree = json.loads(path.read_text().splitlines()[0])["tree"]
    assert tree["prompts"] == ["a</s>abc</s>", "b</s>abc</s>"]
    assert any(completion["text"] for completions_K in tree["completions"] for completion in completions_K)


def test_a_list_of_formatters_made_by_partial(tmp_path):
    def formatter(row, role):
        return f"{role}{row['prompt']}"

    trained(formatters=[functools.partial(formatter, role="a."), functools.partial(formatter, role="b.")])
    (path,) = tmp_path.glob("outputs/*/rollouts.jsonl")
    assert json.loads(path.read_text().splitlines()[0])["tree"]["prompts"] == ["a.abc", "b.abc"]


def test_an_external_transition_with_parameters_of_its_own_and_without_some_of_ours():
    seen = []

    def transition(prompt, agent_completions, num_agents=2, mode="plain", prompt_history_per_agent=None):
        seen.append((prompt, mode, prompt_history_per_agent))
        return [prompt + "." for _ in range(num_agents)]

    _, moved = trained(settings(num_turns=2, early_termination_threshold=None), external_transition=transition)
    assert moved == [True, True]
    # two tasks, one transition for each of the K = 2 joint actions
    assert seen == [("abc", "plain", [["abc"], ["abc"]])] * 2 + [("de", "plain", [["de"], ["de"]])] * 2


def test_a_transition_gets_the_row_so_that_nobody_needs_a_table_from_prompts_to_rows():
    def transition(prompt, agent_completions, batch_item):
        return [prompt + "." * batch_item["target"]] * 2

    prompts = set()

    def reward(first, second, *, prompts_seen=prompts, prompts, batch_item):
        prompts_seen.add((prompts[0], batch_item["target"]))
        return [0.0]

    trained(settings(num_turns=2, early_termination_threshold=None), reward_func=reward, external_transition=transition)
    assert prompts == {("abc", 2), ("abc..", 2), ("de", 3), ("de...", 3)}


def test_an_eval_logger_and_its_aggregator():
    seen = []

    def eval_logger(agent_completions_turns, batch_items, prompts):
        seen.append((len(agent_completions_turns), len(agent_completions_turns[0]), prompts))
        return [{"target": item["target"]} for item in batch_items]

    def eval_aggregator(metrics, num_turns):
        return {"turn_1/target": sum(entry["target"] for entry in metrics) / len(metrics), "turns": num_turns}

    made, _ = trained(eval_dataset=ROWS, eval_logger=eval_logger, eval_aggregator=eval_aggregator)
    metrics = made.evaluate(num_eval_samples=2)
    # targets 2 and 3
    assert (metrics["eval/turn_1/target"], metrics["eval/turns"]) == (2.5, 1)
    assert seen[-1] == (2, 2, ["abc", "de"])
    assert {"eval/turn_1/reward_mean", "eval/turn_1/expected_return"} <= metrics.keys()


def test_an_evaluation_callback_that_does_not_fit_is_named():
    def old_logger(agent_completions_turns, test_cases):
        return []

    with pytest.raises(ConfigError, match="old_logger needs test_cases, which is not offered"):
        trained(eval_dataset=ROWS, eval_logger=old_logger, eval_aggregator=lambda metrics, num_turns: {})

    def empty(metrics, num_turns):
        return {"turn_1/level": None}

    with pytest.raises(RolloutError, match="empty returned turn_1/level=None, expected a number"):
        trained(eval_dataset=ROWS, eval_logger=lambda **given: [], eval_aggregator=empty)


# --- 4: rows ----------------------------------------------------------------------------------------------------


class Chain(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(ROWS)


class MapStyle(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return ROWS[index % len(ROWS)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        Dataset.from_list(ROWS),
        IterableDataset.from_generator(lambda: iter(ROWS)),
        Dataset.from_list(ROWS).to_iterable_dataset(),
        MapStyle(),
        torch.utils.data.ChainDataset([Chain()]),
    ],
)
def test_rows_of_every_kind_are_read_once_in_each_epoch(rows):
    made, moved = trained(settings(num_train_epochs=2), train_dataset=rows, eval_dataset=rows)
    assert (made.counters.tasks, moved) == (4, [True, True])
    assert "eval/turn_1/reward_mean" in made.evaluate()


def test_a_stream_without_end_can_be_evaluated_on():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield from ROWS

    made, _ = trained(eval_dataset=Endless())
    assert "eval/turn_1/reward_mean" in made.evaluate(num_eval_samples=3)


def test_a_stream_that_claims_a_length_is_read_that_far_before_training():
    class Claims(torch.utils.data.IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            while True:
                yield from ROWS

    made = MAGRPOTrainer(
        agents=[tiny_llama()],
        tokenizer=tiny_tokenizer(),
        reward_func=lambda a: [0.0],
        train_dataset=Claims(),
        args=settings(),
    )
    assert made.train_tasks.length == 2


@pytest.mark.parametrize("rows", [5, lambda: iter(ROWS)])
def test_what_is_no_dataset_is_refused_by_the_argument_s_name(rows):
    for argument in ("train_dataset", "eval_dataset"):
        with pytest.raises(ConfigError, match=rf"{argument} is .*: pass a list of dicts or a dataset"):
            trained(**{"train_dataset": ROWS, argument: rows})


def test_rows_without_a_prompt_column_go_through_a_formatter():
    rows = [{"question": "abc", "level": 1}, {"question": "de", "level": 2}]
    made, moved = trained(train_dataset=rows, formatters=lambda row: row["question"] + "." * row["level"])
    assert (made.counters.tasks, moved) == (2, [True, True])


# --- 5: names of older versions ---------------------------------------------------------------------------------


def deprecations(caught) -> list[str]:
    return [str(warning.message) for warning in caught if issubclass(warning.category, DeprecationWarning)]


@pytest.mark.parametrize("config_class", [MAGRPOConfig, MAREINFORCEConfig, MARLOOConfig, MAReMaxConfig])
@pytest.mark.parametrize(
    ("old", "value", "new", "message"),
    [
        ("learning_rate", 1e-4, "agent_learning_rate", "learning_rate is called agent_learning_rate now"),
        (
            "termination_threshold",
            0.5,
            "early_termination_threshold",
            "termination_threshold is called early_termination_threshold now",
        ),
        (
            "normalize_advantage",
            False,
            "advantage_normalization",
            "normalize_advantage is called advantage_normalization now",
        ),
        ("output_dir", "runs", "output_dir", "output_dir is an argument of the trainer now"),
        ("save_steps", 100, None, "save_steps has no effect any more: remove it"),
        ("per_device_train_batch_size", 1, None, "per_device_train_batch_size has no effect any more: remove it"),
    ],
)
def test_settings_of_older_versions_are_taken_with_one_warning_at_the_caller_s_line(
    config_class, old, value, new, message
):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = config_class(num_turns=1, **{old: value})
    assert deprecations(caught) == [message]
    assert caught[0].filename == __file__
    if new is not None:
        assert vars(config)[new] == value


def test_a_whole_script_of_an_older_version(tmp_path):
    """Names of several older versions together; the final models go where such scripts put them."""
    models = [tiny_llama(seed=1), tiny_llama(seed=2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = MAGRPOConfig(
            output_dir="runs",
            num_train_epochs=1,
            per_device_train_batch_size=1,
            learning_rate=1e-3,
            save_steps=100,
            num_generations=2,
            max_new_tokens=4,
            num_turns=1,
        )
        trainer = MAGRPOTrainer(
            model="some/model",
            agents=models,
            tokenizer=tiny_tokenizer(),
            reward_funcs=[length_ratio],
            train_dataset=ROWS,
            dataset_type="stories",
            args=config,
        )
    assert sorted(deprecations(caught)) == [
        "dataset_type has no effect any more: remove it",
        "learning_rate is called agent_learning_rate now",
        "model is called agent_model now",
        "output_dir is an argument of the trainer now",
        "per_device_train_batch_size has no effect any more: remove it",
        "reward_funcs is called reward_func now",
        "save_steps has no effect any more: remove it",
    ]
    trainer.train()
    trainer.save_model(f"{config.output_dir}/final_model")
    assert (tmp_path / "runs" / "final_model" / "agent_1" / "config.json").is_file()
    assert len(list(tmp_path.glob("runs/MAGRPO-*/metrics.jsonl"))) == 1
    assert not (tmp_path / "outputs").exists()


def test_a_config_in_a_trainer_keeps_the_folder_that_older_versions_had():
    with pytest.warns(DeprecationWarning, match="output_dir"):
        config = settings(output_dir="runs")
    made, _ = trained(config, models=[tiny_llama()], reward_func=lambda texts: [0.0])
    assert made.args.output_dir == "runs"


def test_old_and_new_name_together_are_refused():
    message = "learning_rate is the old name of agent_learning_rate, and both were given: keep agent_learning_rate"
    with pytest.raises(ConfigError, match=message):
        MAGRPOConfig(learning_rate=1e-4, agent_learning_rate=1e-5)


def test_old_names_whose_value_cannot_mean_what_it_did_are_refused():
    with pytest.raises(ConfigError, match="per_device_train_batch_size must be 1, got 8"):
        MAGRPOConfig(per_device_train_batch_size=8)
    with pytest.raises(ConfigError, match="reward_funcs has 2 functions"):
        MAGRPOTrainer(agents=[tiny_llama()], reward_funcs=[length_ratio, length_ratio])


def test_a_name_that_never_was_one_is_answered_with_the_nearest():
    for made, message in (
        (lambda: MAGRPOConfig(num_generation=4), "MAGRPOConfig takes no num_generation; nearest: num_generations"),
        (lambda: MARLOOConfig(eval_strategy="no"), "MARLOOConfig takes no eval_strategy; remove it"),
        (lambda: MAGRPOTrainer(reward_fn=length_ratio), "MAGRPOTrainer takes no reward_fn; nearest: reward_func"),
    ):
        with pytest.raises(TypeError, match=message):
            made()


def test_new_names_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        settings()
