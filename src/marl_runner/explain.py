"""One short sentence for each way a command line or a YAML file can be wrong.

Hydra and OmegaConf say what went wrong in several lines, and never which key was meant; this finds the key in
their message and looks for the nearest valid one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from marl_runner.errors import MarlRunnerError
from marl_runner.schema import conf_dir, option_keys, run_types, unknown_key, wrong_value

WHOLE_RUNS = ("experiment", "debug")


def explain(error: BaseException, arguments: Sequence[str] = ()) -> str:
    """What is wrong, with the value and the fix, in one line and without a trace.

    Args:
        error: What Hydra, OmegaConf, the YAML reader or marl-runner raised.
        arguments: The command line, for errors that do not say which argument they mean.
    """
    line = " ".join(sentence(error, arguments).split())
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)


def sentence(error: BaseException, arguments: Sequence[str]) -> str:
    """`explain`, as it comes."""
    if isinstance(error, MarlRunnerError):
        return str(error)
    if isinstance(error, MissingConfigException):
        return missing_option(str(error.missing_cfg_file), list(error.options or [])) + in_which_file(str(error))
    if isinstance(error, UnicodeDecodeError):
        return f"a configuration file is not UTF-8 text: {error}"
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    text = "\n".join(str(part) for part in (error, error.__cause__) if part is not None)
    beside = sibling_keys(error.__cause__)
    rules: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
        (r"Error merging override [+~]*([^=\s]+)=(.*)\n([\s\S]*)", lambda found: wrong_override(*found.groups())),
        (r"Error merging override ~(\S+)", lambda found: f"{found[1]} cannot be taken away: give it a value"),
        (r"Missing mandatory value: (\S+)", lambda found: f"{found[1]} has no value: give {found[1]}=…"),
        (
            r"Key '[^']*' (?:not in|is not in struct).*\n +full_key: (\S+)",
            lambda found: unknown(found[1], text, beside),
        ),
        (r"Interpolation key '(\w+\.\w+)' not found\n +full_key: (\S+)", lambda found: taken_from(found[2], found[1])),
        (r"Could not (?:override|delete from config\.) '([^']+)'", lambda found: unknown(found[1], text, beside)),
        (r"Ambiguous value for argument '(([^=]+)=(.*))'", lambda found: ambiguous(found[2], found[3])),
        (r"Sweep parameters '(.*)' requires", lambda found: f"{found[1]} is a sweep: add -m to run each of its values"),
        (r"item is already at '(.*)'", lambda found: f"{found[1]} is there already: write {found[1]}=… without +"),
        (r"Config group override must be|resolving interpolation '\$\{\w+\}'", lambda _: group_value(arguments)),
        (r"[Pp]arsing override|LexerNoViableAlt|mismatched|extraneous|no viable", lambda _: unreadable(arguments)),
    )
    for pattern, make in rules:
        found = re.search(pattern, text)
        if found:
            return make(found)
    return in_a_file(text) or with_key(text)


def missing_option(name: str, options: list[str]) -> str:
    """For `reward=lenght_ratio`: the group, the nearest option and all of them."""
    group, _, option = name.rpartition("/")
    if not options:
        return f"there is no {group or 'configuration'} '{option}'"
    near = get_close_matches(option, options, n=1)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"{group} has no option '{option}'{hint} (valid: {', '.join(sorted(options))})"


def wrong_override(key: str, value: str, reason: str) -> str:
    """For a value that the schema refuses."""
    kinds = run_types()
    if key in kinds:
        return wrong_value(key, value or "nothing", kinds[key])
    return f"{key}={value}: {reason.strip().splitlines()[0]}"


def in_which_file(text: str) -> str:
    """The end of a sentence, such as ", in experiment/mine.yaml"; "" where Hydra names no file but the main one."""
    file = re.search(r"In '([^']+)'", text)
    return f", in {file[1]}.yaml" if file and file[1] not in ("config", "hydra/config") else ""


def sibling_keys(cause: BaseException | None) -> list[str]:
    """The keys of the option in which OmegaConf did not find one; [] where it does not say."""
    node = cause.parent_node if isinstance(cause, OmegaConfBaseException) else None
    return [str(name) for name in node if name != "_target_"] if isinstance(node, DictConfig) else []


def unknown(key: str, text: str, beside: Sequence[str]) -> str:
    """For a key that is not in the composed configuration.

    Args:
        key: With its group.
        text: The error; it may say in which file the key is.
        beside: The keys of the chosen option, a user's own included.
    """
    where = in_which_file(text)
    if where and key in WHOLE_RUNS:
        return f"add the line '# @package _global_' at the top of the file{where}"
    group, *names = key.split(".")
    run_keys = list(run_types())
    if not names:
        near = get_close_matches(key, [*run_keys, *WHOLE_RUNS], n=1, cutoff=0.5)
        return f"unknown key or group {key}" + (f"; nearest: {near[0]}" if near else "") + where
    parent = f"{group}.{names[0]}"
    if len(names) > 1 and parent in option_keys():
        return f"{parent} has no entry {'.'.join(names[1:])}: add it with +{key}=…{where}"
    if group == "hydra":
        return f"unknown key {key}{where}"
    own = [f"{group}.{name}" for name in beside if len(names) == 1]
    own = own or [other for other in [*option_keys(), *run_keys] if other.startswith(f"{group}.")]
    return unknown_key(key, own or run_keys) + where


def taken_from(key: str, source: str) -> str:
    """For a key whose YAML takes its value from an option of another group, which is not chosen."""
    owners = option_keys().get(source)
    if owners is None:
        return f"{key}: Interpolation key '{source}' not found"
    group = source.partition(".")[0]
    owner = f"{group}={' or '.join(owners)}"
    return f"{key} is taken from {source}, which {owner} has: add {group}={owners[0]}, or give {key}=…"


def ambiguous(key: str, value: str) -> str:
    """For `agents.model=a,b` without -m; what it prints can be pasted back."""
    return f"{key}={value} is several values: add -m to run each, or quote it as one: {pasteable(key, value)}"


def pasteable(key: str, value: str) -> str:
    """An override of plain text as it must be typed, quoted for Hydra and for the shell."""
    return shlex.quote(f"{key}={QuotedString(value, Quote.double).with_quotes()}")


def group_value(arguments: Sequence[str]) -> str:
    """For `agents=null` and `~agents`: Hydra does not say which group it was."""
    for argument in arguments:
        group, _, value = argument.lstrip("+~").partition("=")
        folder = conf_dir() / group
        if group and folder.is_dir() and not (folder / f"{value}.yaml").is_file():
            options = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
            away = f", or leave it out: ~{group}" if group in WHOLE_RUNS else ""
            return f"{argument}: {group} takes the name of one option (valid: {options}){away}"
    return "a config group takes the name of one of its options, as in agents=tiny"


def in_a_file(text: str) -> str | None:
    """For a wrong value inside a YAML file, where Hydra names the file and OmegaConf the key."""
    file = re.search(r"In '([^']+)': .*\n(.*)", text)
    if not file:
        return None
    key = re.search(r"full_key: (\S+)", text)
    kinds = run_types()
    if key is None or key[1] not in kinds:
        return f"{file[1]}.yaml: {file[2]}"
    value = re.search(r"[Vv]alue '(.*?)' (?:of type|is not|for field)", file[2])
    found = value[1] if value and value[1] != "None" else "null"
    return f"{wrong_value(key[1], found, kinds[key[1]])}, in {file[1]}.yaml"


def with_key(text: str) -> str:
    """For a broken `${interpolation}` and the like: the first line, after the key where there is one."""
    key = re.search(r"full_key: (\S+)", text)
    return (f"{key[1]}: " if key else "") + text.strip().partition("\n")[0]


def unreadable(arguments: Sequence[str]) -> str:
    """For text that is not an override at all; Hydra does not always say which argument it was."""
    parser = OverridesParser.create()
    for argument in (argument for argument in arguments if not argument.startswith("-")):
        try:
            parser.parse_override(argument)
        except HydraException:
            key, _, value = argument.partition("=")
            hint = f"quote its text: {pasteable(key, value)}" if value else "write key=value"
            return f"cannot read the override {argument}: {hint}"
    return "cannot read the overrides: write key=value"
