"""One short sentence for each way a command line or a YAML file can be wrong.

Hydra and OmegaConf say what went wrong in several lines, and never which key was meant; this finds the key in
their message and looks for the nearest valid one.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from marl_runner.config import wrong_value
from marl_runner.errors import MarlRunnerError
from marl_runner.schema import OPTION_GROUPS, SET_ELSEWHERE, RunSchema, TrainerSchema, conf_dir


def explain(error: BaseException) -> str:
    """What is wrong, with the value and the fix, in one sentence and without a trace."""
    if isinstance(error, MarlRunnerError):
        return str(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        return missing_option(str(error.missing_cfg_file), list(error.options))
    text = "\n".join(str(part) for part in (error, error.__cause__) if part is not None)
    for pattern, sentence in (
        (r"Could not override '([^']+)'", lambda found: unknown(found[1])),
        (r"Key '[^']*' (?:not in|is not in struct)[\s\S]*full_key: (\S+)", lambda found: unknown(found[1])),
        (r"Ambiguous value for argument '(([^=]+)=(.*))'", lambda found: ambiguous(found[2], found[3])),
        (r"Error merging override ([^=]+)=(.*)\n([\s\S]*)", lambda found: wrong_value(found[1], found[2], found[3])),
        (r"[Pp]arsing override '(.*)'|LexerNoViableAlt|mismatched input|extraneous input", unreadable),
    ):
        found = re.search(pattern, text)
        if found:
            return sentence(found)
    return value_in_file(text) or text.strip().splitlines()[0]


def missing_option(name: str, options: list[str]) -> str:
    """For `reward=lenght_ratio`: the group, the nearest option and all of them."""
    group, _, option = name.rpartition("/")
    near = get_close_matches(option, options, n=1)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"{group} has no option '{option}'{hint} (valid: {', '.join(sorted(options))})"


def unknown(key: str) -> str:
    """For a key that is not in the composed configuration."""
    group, _, name = key.partition(".")
    if group == "trainer" and name in SET_ELSEWHERE:
        return f"trainer.{name} is set as {SET_ELSEWHERE[name]}=…"
    keys = known_keys()
    if keys.get(key):
        options = keys[key]
        return f"{key} belongs to {group}={' or '.join(options)}: add {group}={options[0]}"
    near = get_close_matches(key, list(keys), n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]}" if near else ""
    if group not in OPTION_GROUPS and "." not in key:
        return f"unknown key or group {key}{hint}"
    valid = [other.partition(".")[2] for other in keys if other.startswith(f"{group}.")]
    return f"unknown key {key}{hint}" + (f" (valid in {group}: {', '.join(valid)})" if valid and not near else "")


@cache
def known_keys() -> dict[str, tuple[str, ...]]:
    """Every key of the configuration, with the options of its group that have it; () for keys of no option."""
    keys: dict[str, tuple[str, ...]] = {name: () for name in vars(RunSchema)["__dataclass_fields__"]}
    keys |= {f"trainer.{name}": () for name in vars(TrainerSchema)["__dataclass_fields__"]}
    keys |= {f"reward_processor.{name}": () for name in ("scale", "shift")}
    keys |= dict.fromkeys(("experiment", "debug"), ())
    for group in OPTION_GROUPS:
        for path in sorted((conf_dir() / group).glob("*.yaml")):
            for name in OmegaConf.load(path):
                if str(name) not in ("defaults", "_target_"):
                    key = f"{group}.{name!s}"
                    keys[key] = (*keys.get(key, ()), path.stem)
    return keys


def ambiguous(key: str, value: str) -> str:
    """For `agents.model=a,b` without -m."""
    return f"""{key}={value} is several values: add -m to run each, or quote it as one: '{key}="{value}"'"""


def value_in_file(text: str) -> str | None:
    """For a wrong value or key inside a YAML file, where Hydra names the file and OmegaConf the key."""
    file = re.search(r"In '([^']+)'", text)
    key = re.search(r"full_key: (\S+)", text)
    reason = re.search(r"(Value .*|.*not [Oo]ptional.*)", text)
    if not (file and key and reason):
        return None
    value = re.search(r"Value '(.*)' of type", reason[1])
    return f"{wrong_value(key[1], value[1] if value else '', reason[1])}, in {file[1]}.yaml"


def unreadable(found: re.Match[str]) -> str:
    """For text that is not an override at all."""
    what = f" {found[1]}" if found[1] else ""
    return f"cannot read the override{what}: write key=value, and quote special characters: 'key=\"a value\"'"
