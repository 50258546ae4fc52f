"""Options and configurations: the table and the YAML files say the same, and every wrong key or value is named.

1. Every option of the table has its YAML file, and every YAML file is in the table.
2. Every option, experiment and debug file composes, and passes the rules.
3. A key that is not there is named with the nearest that is, or with the option or place it belongs to.
4. A value of another type is named with what it must be, also inside lists, mappings and YAML files.
5. A user's own class or function is an option like ours.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import typing
from pathlib import Path
from pydoc import locate

import pytest
import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from commands import ROOT, TINY, composed, marl_train, refused, summary
from marl_runner.build import option
from marl_runner.config import algorithm_name, check, settings
from marl_runner.errors import ConfigError
from marl_runner.explain import explain
from marl_runner.options import OPTIONS
from marl_runner.schema import OPTION_GROUPS, SET_ELSEWHERE, TrainerSchema, described
from marl_runner.settings import MAGRPOConfig
from marl_runner.typed_options import SETTINGS, check_option

CONF = ROOT / "conf"
ROWS = [(group, name) for group, options in OPTIONS.items() for name in options]
NEEDED = {
    ("agents", "pretrained"): ["agents.model=somewhere"],
    ("dataset", "files"): ["dataset.path=rows.jsonl"],
    ("dataset", "hub"): ["dataset.name=someone/rows"],
    ("reward", "python"): ["reward.function=math:fsum"],
    ("transition", "python"): ["transition.function=math:fsum", "trainer.num_turns=2"],
    ("reward", "weighted"): [
        "reward.rewards={a: {_target_: marl_runner.rewards.length_ratio.LengthRatio, target_min: 2, target_max: 3}}",
        "reward.weights={a: 0.5}",
    ],
    ("transition", "revise"): ["trainer.num_turns=2"],
    ("transition", "plain"): ["trainer.num_turns=2"],
    ("transition", "expert_edits"): ["trainer.num_turns=2", "transition.base_url=http://a/v1", "transition.model=m"],
    ("transition", "level_feedback"): [
        "trainer.num_turns=2",
        "transition.sandbox=auto",  # which the YAML takes from reward=code_pair
        "transition.limits={wall_s: 9, test_s: 1, cpu_s: 9, memory_mib: 256, disk_mib: 1, output_kib: 1}",
        "transition.sandbox_workers=1",
    ],
}
"""What an option cannot do without."""
WRONG = {int: 2.5, float: "two", bool: "maybe", str: [1, 2]}
"""For each type a value of another."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def configs():
    """Every option in the whole configuration of a run; tests change copies.

    Composed together, the first of all groups, then the second, and so on, because composing takes its time.
    """
    found = {("the", "default"): composed()}
    for place in range(max(len(options) for options in OPTIONS.values())):
        chosen = [(group, list(options)[min(place, len(options) - 1)]) for group, options in OPTIONS.items()]
        needed = [override for option in chosen for override in NEEDED.get(option, [])]
        cfg = composed(*(f"{group}={name}" for group, name in chosen), *dict.fromkeys(needed))
        found |= {option: found.get(option, cfg) for option in chosen}
    return found


def one_line(error: Exception, overrides: tuple[str, ...]) -> str:
    sentence = explain(error, overrides)
    assert "\n" not in sentence
    assert len(sentence) < 250
    return sentence


def not_composed(*overrides: str) -> str:
    """The sentence for overrides that cannot be composed."""
    with pytest.raises((ValueError, HydraException, OmegaConfBaseException)) as caught:
        OmegaConf.to_container(composed(*overrides), resolve=True, throw_on_missing=True)
    return one_line(caught.value, overrides)


def rule_broken(configs, *overrides: str) -> str:
    """The sentence for overrides that compose and break a rule; made without Hydra, which takes its time."""
    cfg = copy.deepcopy(configs["the", "default"])
    for override in overrides:
        key, _, value = override.partition("=")
        if (key, value) in configs:
            cfg[key] = configs[key, value][key]
        else:
            OmegaConf.update(cfg, key, yaml.safe_load(value), merge=False, force_add=True)
    with pytest.raises(ConfigError) as caught:
        check(cfg)
    return one_line(caught.value, overrides)


# --- the table and the YAML files


def test_the_table_has_every_group_and_every_group_its_table():
    assert set(OPTIONS) == set(OPTION_GROUPS)


@pytest.mark.parametrize("group", OPTIONS)
def test_every_yaml_file_of_a_group_is_in_the_table_and_the_other_way_round(group):
    assert {path.stem for path in (CONF / group).glob("*.yaml")} == set(OPTIONS[group])


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_the_target_of_an_option_is_the_object_of_its_row(group, name, configs):
    assert locate(configs[group, name][group]._target_) is OPTIONS[group][name]


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_every_option_composes_and_keeps_the_rules(group, name, configs):
    check(configs[group, name])


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_a_yaml_file_gives_every_key_that_its_option_takes(group, name, configs):
    taken = set(inspect.signature(OPTIONS[group][name]).parameters)
    assert {str(key) for key in configs[group, name][group]} == {"_target_", *taken, *SETTINGS.get(group, ())}


def test_one_thing_has_one_name_everywhere():
    for group in ("advantage_mode", "joint_mode"):
        for name, mode in OPTIONS[group].items():
            assert mode().name == name
            assert mode.__name__.lower() == name


def test_an_advantage_mode_chooses_its_algorithm(configs):
    named = {name: algorithm_name(configs["advantage_mode", name]) for name in OPTIONS["advantage_mode"]}
    assert named == {"raw": "MAREINFORCE", "mean": "MAGRPO", "rloo": "MARLOO", "max": "MAReMax"}


def test_settings_get_the_run_keys_of_their_groups():
    config = settings(composed("seed=7", "agents.num_agents=3", "advantage_mode=max", "joint_mode=cross"))
    assert (config.seed, config.num_agents) == (7, 3)
    assert (config.advantage_mode.name, config.joint_mode.name) == ("max", "cross")


def test_the_trainer_group_has_the_fields_of_the_config_class_under_their_own_names(configs):
    fields = {field.name for field in dataclasses.fields(MAGRPOConfig)}
    assert {str(key) for key in configs["the", "default"].trainer} == fields - set(SET_ELSEWHERE)


def test_tiny_agents_bring_their_own_rates_and_others_keep_the_defaults(configs):
    assert configs["the", "default"].trainer.agent_learning_rate == 5e-3
    assert configs["agents", "pretrained"].trainer.agent_learning_rate == 5e-6
    assert composed("trainer.agent_learning_rate=1").trainer.agent_learning_rate == 1.0


def test_the_debug_run_is_planned():
    plan = marl_train("debug=step", "dry_run=true")
    assert (plan.code, plan.err) == (0, "")


def test_smollm2_is_the_local_folder_where_there_is_one_and_else_the_hub_id(monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    cfg = composed("agents=smollm2")
    assert cfg.agents.model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    Path(".cache/marl-runner/SmolLM2-135M-Instruct").mkdir(parents=True)
    assert cfg.agents.model == "~/.cache/marl-runner/SmolLM2-135M-Instruct"
    assert option("agents", cfg).sources() == [f"{Path.cwd()}/.cache/marl-runner/SmolLM2-135M-Instruct"] * 2


# --- keys that are not there


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_a_misspelt_key_of_any_option_is_named_with_the_nearest(group, name, configs):
    node = dict(configs[group, name][group])
    with pytest.raises(ConfigError, match=rf"^unknown key {group}\.zzz"):
        check_option(group, OmegaConf.create({**node, "zzz": 1}))
    for key in node.keys() - {"_target_"}:
        misspelt = key[:-2] + key[-1]
        with pytest.raises(ConfigError, match=rf"^unknown key {group}\.{misspelt}; nearest: {group}\.{key}\b"):
            check_option(group, OmegaConf.create({**node, misspelt: node[key]}))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.num_generatons=4", "unknown key trainer.num_generatons; nearest: trainer.num_generations"),
        ("~trainer.num_turns", "trainer.num_turns cannot be taken away: give it a value"),
        ("~agents", "~agents: agents takes the name of one option (valid: pretrained, smollm2, tiny)"),
        ("~reward", "reward has no value: give reward=…"),
        ("sed=1", "unknown key or group sed; nearest: seed"),
        ("zzzz=1", "unknown key or group zzzz"),
        ("hydra.rn.dir=a", "unknown key hydra.rn"),
        ("agents.model=a", "agents.model belongs to agents=pretrained or smollm2: add agents=pretrained"),
        ("dataset.columns.prompt=a", "dataset.columns belongs to dataset=arxiv or files or hub or mbpp: add "),
        ("trainer.advantage_mode=rloo", "trainer.advantage_mode is set as advantage_mode=…"),
        ("+seed=1", "seed is there already: write seed=… without +"),
        (
            "reward=lenght_ratio",
            "reward has no option 'lenght_ratio'; nearest: length_ratio (valid: code_pair, length_ratio, python, ",
        ),
        ("advantage_mode=loo", "advantage_mode has no option 'loo'; nearest: rloo (valid: max, mean, raw, rloo)"),
        ("trainer=", "trainer has no option '' (valid: default)"),
        ("agents=null", "agents=null: agents takes the name of one option (valid: pretrained, smollm2, tiny)"),
        ("agents=[tiny]", "agents=[tiny]: agents takes the name of one option (valid: pretrained, smollm2, tiny)"),
        ("seed=range(3)", "seed=range(3) is a sweep: add -m to run each of its values"),
        ("seed=${nothing}", "seed: Interpolation key 'nothing' not found"),
        ("seed=${a.b}", "seed: Interpolation key 'a.b' not found"),
        (
            "transition=level_feedback",
            "transition.sandbox is taken from reward.sandbox, which reward=code_pair has: add reward=code_pair, or ",
        ),
        ("seed", "cannot read the override seed: write key=value"),
        ("seed=[", "cannot read the override seed=[: quote its text: 'seed=\"[\"'"),
        ("./agents=a", "cannot read the override ./agents=a: "),
    ],
)
def test_an_override_that_names_nothing_is_explained_in_one_sentence(override, sentence):
    assert not_composed(override).startswith(sentence)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.num_generatons=4", "unknown key trainer.num_generatons; nearest: trainer.num_generations"),
        ("trainer.joint_mode=cross", "trainer.joint_mode is set as joint_mode=…"),
        ("trainer.seed=1", "trainer.seed is set as seed=…"),
        ("agents.model=a", "agents.model belongs to agents=pretrained or smollm2: add agents=pretrained"),
        ("reward.function=a", "reward.function belongs to reward=python: add reward=python"),
        (
            "transition.template=a",
            "transition.template belongs to transition=level_feedback or revise: add ",
        ),
        ("foo=1", "unknown key foo (valid: seed, dry_run, save_models, reward_processor, trainer, agents, "),
        ("reward_processor.scal=1", "unknown key reward_processor.scal; nearest: reward_processor.scale"),
    ],
)
def test_a_key_that_a_plus_adds_beside_the_schema_is_refused_all_the_same(override, sentence, configs):
    assert rule_broken(configs, override).startswith(sentence)


def test_a_new_entry_of_a_mapping_is_told_how_to_be_added():
    files = ["dataset=files", "dataset.path=a"]
    assert not_composed(*files, "dataset.columns.tests=t") == (
        "dataset.columns has no entry tests: add it with +dataset.columns.tests=…"
    )
    cfg = composed(*files, "dataset.columns.prompt=question", "+dataset.columns.tests=t")
    assert option("dataset", cfg).columns == {"prompt": "question", "tests": "t"}


# --- values of another type


def test_every_trainer_key_refuses_a_value_of_another_type():
    kinds = typing.get_type_hints(MAGRPOConfig)
    schema = OmegaConf.structured(TrainerSchema)
    refused_keys = set()
    for key in (field.name for field in dataclasses.fields(TrainerSchema)):
        if kinds[key] is bool:
            for wrong in ("two", 1, 2, -1, 2.5, None):
                with pytest.raises(ConfigError, match=rf"^{key} must be true or false, got "):
                    MAGRPOConfig(**{key: wrong})
            refused_keys.add(key)
        for kind in (int, float):
            if kinds[key] in (kind, kind | None):
                for wrong in ["two", True, [1], {"a": 1}] + [2.5] * (kind is int) + [None] * (kinds[key] is kind):
                    with pytest.raises(OmegaConfBaseException):
                        schema[key] = wrong
                refused_keys.add(key)
    assert {"num_turns", "top_k", "discount", "max_grad_norm", "shuffle"} <= refused_keys
    assert len(refused_keys) == 15 + 8 + 5  # integers, numbers, bools


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.num_turns=two", "trainer.num_turns must be an integer, got two"),
        ("trainer.num_turns=null", "trainer.num_turns must be an integer, got null"),
        ("trainer.num_turns=true", "trainer.num_turns must be an integer, got true"),
        ("trainer.top_k=two", "trainer.top_k must be an integer or null, got two"),
        ("trainer.compat=[a]", "trainer.compat must be text or null, got [a]"),
        ("seed=", "seed must be an integer, got nothing"),
        ("reward_processor.scale=big", "reward_processor.scale must be a number, got big"),
    ],
)
def test_a_value_that_the_schema_refuses_is_explained_in_one_sentence(override, sentence):
    assert not_composed(override) == sentence


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.num_turns=-1", "trainer.num_turns must be an integer >= 1, got -1"),
        ("trainer.num_generations=1", "trainer.num_generations must be an integer >= 2 (the group's baseline compares"),
        ("trainer.discount=2", "trainer.discount must be a number >= 0 and <= 1, got 2.0"),
        ("trainer.discount=.nan", "trainer.discount must be a number >= 0 and <= 1, got nan"),
        ("trainer.shuffle=maybe", "trainer.shuffle must be true or false, got 'maybe'"),
        ("trainer.shuffle=2", "trainer.shuffle must be true or false, got 2"),
        ("trainer.compat=comlrl", "trainer.compat must be one of comlrl-1.4, got 'comlrl'; nearest: comlrl-1.4"),
        (
            "trainer.lr_scheduler=cosin",
            "trainer.lr_scheduler must be one of constant, linear, cosine, got 'cosin'; nearest: cosine",
        ),
        ("seed=-1", "seed must be an integer >= 0, got -1"),
        ("dry_run=2", "dry_run must be true or false, got 2"),
        ("save_models=null", "save_models must be true or false, got null"),
        ("agents.hidden_size=64.5", "agents.hidden_size must be an integer, got 64.5"),
        ("agents.num_agents=null", "agents.num_agents must be an integer, got null"),
        ("agents.num_heads=0", "agents.num_heads must be >= 1, got 0"),
        ("tracking.console=2", "tracking.console must be true or false, got 2"),
        ("tracking.wandb_tags=a", "tracking.wandb_tags must be a list [a, b], got a"),
        ("tracking.wandb_tags=[a, [b]]", "tracking.wandb_tags[1] must be text, got ['b']"),
        ("trainer.micro_batch_tokens=0", "trainer.micro_batch_tokens must be an integer >= 1 or null, got 0"),
        ("reward.num_workers=0", "reward.num_workers must be an integer >= 1, got 0"),
        ("reward.num_workers=two", "reward.num_workers must be an integer >= 1, got two"),
        ("reward.target_min=-1", "reward.target_min=-1.0 and reward.target_max=3.0: need 0 <= target_min <= "),
        ("dataset.max_tasks=0", "dataset.max_tasks must be >= 1, or null for all rows, got 0"),
    ],
)
def test_a_value_that_cannot_be_is_explained_in_one_sentence(override, sentence, configs):
    assert rule_broken(configs, override).startswith(sentence)


@pytest.mark.parametrize(("group", "name"), ROWS)
def test_every_key_of_every_option_refuses_a_value_of_another_type(group, name, configs):
    parameters = inspect.signature(OPTIONS[group][name], eval_str=True).parameters
    node = dict(configs[group, name][group])
    for key in node.keys() - {"_target_", *SETTINGS.get(group, ())}:
        kind = parameters[key].annotation
        simple = next((part for part in (kind, *typing.get_args(kind)) if part in WRONG), None)
        wrong = 3 if simple is None or typing.get_origin(kind) in (list, dict) else WRONG[simple]
        with pytest.raises(ConfigError, match=rf"^{group}\.{key} must be "):
            check_option(group, OmegaConf.create({**node, key: wrong}))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["dataset=files", "dataset.columns={prompt: [1]}"], "dataset.columns.prompt must be text, got [1]"),
        (["dataset=files", "dataset.columns={prompt: null}"], "dataset.columns.prompt must be text, got null"),
        (["reward=python", "reward.reward_range=[0, one]"], "reward.reward_range[1] must be a number, got one"),
        (["reward=python", "reward.reward_range=[0]"], "reward.reward_range must be [least, greatest], got [0]"),
        (["reward=python", "reward.reward_range=[1, 0]"], "reward.reward_range must be [least, greatest], got [1, 0]"),
        (["agents=pretrained", "agents.special_tokens={pad_token: [a]}"], "agents.special_tokens.pad_token must be te"),
    ],
)
def test_lists_and_mappings_are_checked_entry_by_entry(overrides, sentence, configs):
    assert rule_broken(configs, *overrides).startswith(sentence)


def test_an_option_is_made_of_converted_values():
    agents = option("agents", composed("agents=pretrained", "agents.models=[1,2]", "agents.chat_template=yes"))
    assert (agents.models, agents.chat_template) == (["1", "2"], True)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "an integer"),
        (int | None, "an integer or null"),
        (list[str] | None, "a list [a, b] or null"),
        (dict[str, str], "a mapping {key: value}"),
        (bool, "true or false"),
    ],
)
def test_a_type_is_described_in_words(kind, words):
    assert described(kind) == words


# --- relations between groups


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["trainer.num_turns=2"],
            "trainer.num_turns=2 needs a transition: add transition=revise or transition=python",
        ),
        (
            ["transition=revise"],
            "a transition is chosen, but trainer.num_turns=1 never uses it: set trainer.num_turns=2",
        ),
        (["agents.num_agents=1"], "reward LengthRatio needs agents.num_agents >= 2, got 1"),
        (
            ["agents=pretrained", "agents.model=null"],
            "name the team by agents.model (one for all) or agents.models=[…] (one for each)",
        ),
        (
            ["agents=pretrained", "agents.models=[a, b]"],
            "name the team by agents.model (one for all) or agents.models=[…] (one for each)",
        ),
        (
            ["agents=pretrained", "agents.model=null", "agents.models=[a]"],
            "agents.models has 1 entries, but agents.num_agents=2",
        ),
        (
            ["agents=pretrained", "agents.role_prompts=['{prompt}']"],
            "agents.role_prompts has 1 entries, but agents.num_agents=2",
        ),
        (
            [
                "agents=pretrained",
                "agents.model=x",
                "agents.role_prompts=['{prompt}','{title}']",
                "transition=revise",
                "trainer.num_turns=2",
            ],
            "agents.role_prompts: '{title}' has no {prompt}, so its agent would not see what the transition says; "
            "put {prompt} in it, or set trainer.external_prompt_passthrough=true",
        ),
        (
            ["agents=pretrained", "agents.dtype=float8"],
            "agents.dtype must be one of float32, bfloat16, float16, got 'float8'; nearest: float32",
        ),
        (["agents=pretrained", "agents.system_prompt=Hi"], "agents.system_prompt needs agents.chat_template=true"),
        (["agents.hidden_size=60"], "agents.hidden_size=60 must be a multiple of 2 * agents.num_heads=8"),
        (
            ["trainer.parallel_training=mp", "trainer.agent_devices=[cpu, cpu, cpu]"],
            "trainer.agent_devices has 3 entries, needs 1 or num_agents=2: ['cpu', 'cpu', 'cpu']",
        ),
        (
            ["trainer.parallel_training=mp"],
            "trainer.parallel_training=mp needs agent_devices: one device, one per agent, or auto",
        ),
        (
            ["trainer.max_rollout_rows=8"],
            "trainer.max_rollout_rows=8 must be at least num_generations=16: the completions of one prompt are",
        ),
        (
            ["transition=revise", "trainer.num_turns=2", "transition.template=again"],
            "transition.template has no {prompt} and no {answer}",
        ),
        (["dataset=files", "dataset.path=???"], "dataset.path has no value: give dataset.path=…"),
        (["reward=python", "reward.function=???"], "reward.function has no value: give reward.function=…"),
        (
            ["reward=python", "reward.function=nowhere.py:f"],
            "reward.function=nowhere.py:f: no file nowhere.py (looked in /",
        ),
        (
            ["reward=python", "reward.function=nowhere.py"],
            "reward.function=nowhere.py: write path/to/file.py:function or package.module:function",
        ),
        (
            ["transition=python", "trainer.num_turns=2", "transition.function=nowhere.py:f"],
            "transition.function=nowhere.py:f: no file nowhere.py (looked in /",
        ),
    ],
)
def test_relations_are_checked_before_anything_is_loaded(overrides, sentence, configs):
    assert rule_broken(configs, *overrides).startswith(sentence)


# --- YAML files of the user's

GLOBAL = "# @package _global_\n"


def own(path: str, text: str | bytes) -> str:
    """Writes a file of a configuration folder of the user's; returns the flag that adds the folder."""
    file = Path("my_conf", path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return "--config-dir=my_conf"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            GLOBAL + "trainer:\n  num_generatons: 4\n",
            "unknown key trainer.num_generatons; nearest: trainer.num_generations, in experiment/mine.yaml",
        ),
        (
            GLOBAL + "trainer:\n  num_turns: two\n",
            "trainer.num_turns must be an integer, got two, in experiment/mine.yaml",
        ),
        (
            GLOBAL + "trainer:\n  num_turns:\n",
            "trainer.num_turns must be an integer, got null, in experiment/mine.yaml",
        ),
        (
            GLOBAL + "trainr:\n  num_turns: 2\n",
            "unknown key or group trainr; nearest: trainer, in experiment/mine.yaml",
        ),
        (GLOBAL + "agents:\n  num_agentz: 3\n", "unknown key agents.num_agentz; nearest: agents.num_agents"),
        (GLOBAL + "tracking:\n  wandb_tags: [good, {bad: 1}]\n", "tracking.wandb_tags[1] must be text, got {'bad': 1}"),
        (
            GLOBAL + "defaults:\n  - override /agent: smollm2\n",
            "unknown key or group agent; nearest: agents, in experiment/mine.yaml",
        ),
        (
            GLOBAL + "defaults:\n  - override /agents: smolm2\n",
            "agents has no option 'smolm2'; nearest: smollm2 (valid: pretrained, smollm2, tiny)",
        ),
        (GLOBAL + "seed: 1\nseed: 2\n", "found duplicate key seed"),
        ("seed: 1\n", "add the line '# @package _global_' at the top of the file, in experiment/mine.yaml"),
        (b"seed: \xff\n", "a configuration file is not UTF-8 text"),
    ],
)
def test_a_wrong_yaml_file_is_explained_in_one_line(text, sentence):
    own("experiment/mine.yaml", text)
    overrides = (f"hydra.searchpath=[file://{Path.cwd()}/my_conf]", "experiment=mine")
    with pytest.raises((ConfigError, HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeError)) as caught:
        check(composed(*overrides))
    assert sentence in one_line(caught.value, overrides)


def test_a_yaml_file_that_cannot_be_read_ends_the_command_with_2_and_one_line():
    flag = own("experiment/mine.yaml", GLOBAL + "seed: [1\n")
    assert refused(flag, "experiment=mine").endswith(
        "my_conf/experiment/mine.yaml, line 3: expected ',' or ']', but got '<stream end>'"
    )


MINE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Literal

if TYPE_CHECKING:
    from nowhere import Unknown


@dataclass(frozen=True)
class Mine:
    bonus: float
    kind: Literal["a", "b"] = "a"
    post: Callable[[float], float] | None = None

    def __post_init__(self):
        if self.bonus < 0:
            raise ValueError("bonus is below zero")

    def __call__(self, *completions_per_agent):
        return [self.bonus for _ in completions_per_agent[0]]


class Plain:
    def __init__(self, *, bonus: float, **rest: object):
        self.bonus = bonus

    def __call__(self, *completions_per_agent: list):
        return [self.bonus]


class Bare:
    def __call__(self, first, second):
        return [0.25]


class ForTheChecker:
    def __init__(self, bonus: "Unknown"):
        self.bonus = bonus

    def __call__(self, first, second):
        return [self.bonus]


def constant(first, second, *, bonus):
    return [bonus]


class Mode:
    name = "mine"

    def __call__(self, returns_K):
        return list(returns_K)


class Nameless(Mode):
    name = property()


NOT_A_CLASS = 3
"""


@pytest.fixture
def package(monkeypatch):
    """A module of the user's on sys.path."""
    Path("lib").mkdir()
    Path("lib/my_rewards.py").write_text(MINE)
    Path("lib/my_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend("lib")
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)


def test_a_class_of_the_users_is_a_reward_without_touching_the_package(package):
    flag = own("reward/mine.yaml", "_target_: my_rewards.Mine\nbonus: 0.5\n")
    ended = marl_train(flag, "reward=mine", "reward.bonus=0.25", *TINY, "hydra.run.dir=run")
    assert (ended.code, ended.err) == (0, "")
    assert summary("run")["objective"] == 0.25


def test_a_misspelt_key_of_a_class_of_the_users_is_answered_with_its_own_keys(package):
    flag = own("reward/mine.yaml", "_target_: my_rewards.Mine\nbonus: 0.5\n")
    said = "unknown key reward.bonuss; nearest: reward.bonus (valid: reward.bonus)"
    assert refused(flag, "reward=mine", "reward.bonuss=5") == said


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "my_rewards.Mine", "bonus": "0.25", "kind": "b"},
        {"_target_": "my_rewards.Plain", "bonus": 0.25, "anything": "else"},
        {"_target_": "my_rewards.ForTheChecker", "bonus": 0.25},
        {"_target_": "my_rewards.constant", "_partial_": True, "bonus": 0.25},
    ],
)
def test_a_class_or_function_of_any_make_is_an_option(node, package, configs):
    cfg = copy.deepcopy(configs["the", "default"])
    cfg.reward = node
    check(cfg)
    assert option("reward", cfg)(["a"], ["b"]) == [0.25]


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"_target_": "my_rewards.Mine", "bonuss": 1}, "unknown key reward.bonuss; nearest: reward.bonus"),
        ({"_target_": "my_rewards.Mine", "bonus": "big"}, "reward.bonus must be a number, got big"),
        ({"_target_": "my_rewards.Mine"}, "reward.bonus has no value: give reward.bonus=…"),
        ({"_target_": "my_rewards.Mine", "bonus": -1}, "reward: Mine refuses these values: bonus is below zero"),
        ({"_target_": "my_rewards.Plain", "bonus": "big"}, "reward.bonus must be a number, got big"),
        ({"_target_": "my_rewards.Nothing"}, "reward._target_=my_rewards.Nothing: there is no such class or function"),
        ({"_target_": "my_rewards.NOT_A_CLASS"}, "reward._target_=my_rewards.NOT_A_CLASS is neither a class nor a fun"),
        ({"_target_": "nowhere.Mine"}, "reward._target_=nowhere.Mine: there is no such class or function"),
        ({"bonus": 1}, "reward names no class: choose an option (reward=…) or give reward._target_"),
        ([1], "reward names no class: choose an option (reward=…) or give reward._target_"),
    ],
)
def test_a_wrong_option_of_the_users_is_explained(node, sentence, package, configs):
    assert rule_broken(configs, f"reward={node}").startswith(sentence)


def test_a_users_module_that_cannot_be_imported_is_named_in_one_line(package):
    flag = own("reward/mine.yaml", "_target_: my_broken.Mine\n")
    assert refused(flag, "reward=mine") == (
        "reward._target_=my_broken.Mine: problem in my_broken - ZeroDivisionError: division by zero"
    )


def test_a_module_in_the_working_folder_is_told_how_to_be_found():
    Path("my_module.py").write_text("class Mine: pass\n")
    sentence = refused(own("reward/mine.yaml", "_target_: my_module.Mine\n"), "reward=mine")
    assert sentence.endswith("; my_module is in the working folder: set PYTHONPATH=.")


def test_an_advantage_mode_of_the_users_needs_a_name(package, configs):
    cfg = copy.deepcopy(configs["the", "default"])
    cfg.advantage_mode = {"_target_": "my_rewards.Mode"}
    check(cfg)
    assert algorithm_name(cfg) == "mine"
    sentence = "advantage_mode._target_=my_rewards.Nameless needs a `name`, as every mode has"
    assert rule_broken(configs, "advantage_mode={_target_: my_rewards.Nameless}") == sentence


def own_pool(*completions_N, num_workers=4):
    return [0.0]


def test_a_reward_whose_parameter_is_called_like_the_run_s_own_setting_is_refused():
    node = OmegaConf.create({"_target_": "test_configuration.own_pool", "num_workers": 2})
    with pytest.raises(
        ConfigError, match=r"reward.num_workers is a setting of the run: give the parameter of test_con"
    ):
        check_option("reward", node)
