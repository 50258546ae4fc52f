"""What a trainer was given as its agents, made uniform before any weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from os import PathLike, fspath
from typing import Any

import torch

from marl_runner.errors import ConfigError
from marl_runner.loading import check_vocabulary, load_model_config, load_tokenizer
from marl_runner.policies.base import Policy
from marl_runner.policies.hf import encode_prompt
from marl_runner.policies.model_config import context_length, text_setting
from marl_runner.setting_rules import check_choice
from marl_runner.settings import UNSTATED_TEAM_SIZE

DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
MODEL_CONFIG_KEYS = ("dtype", "torch_dtype", "attn_implementation", "special_tokens")


@dataclass(frozen=True)
class Source:
    """One agent before it is loaded.

    Attributes:
        model: Hub id, folder, transformers model, or Policy.
        tokenizer: Its tokenizer; None for a Policy.
        context_length: Most tokens of prompt and completion together, or None.
    """

    model: Any
    tokenizer: Any
    context_length: int | None

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, as the loaded policy will encode it."""
        if isinstance(self.model, Policy):
            return self.model.encode(text)
        return encode_prompt(self.tokenizer, text)

    @property
    def name(self) -> str:
        """For messages: the identifier, or the class of a preloaded model."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__


def team_size(agents: Sequence[Any] | None, num_agents: int | None, configured: int | None) -> int:
    """Agrees on the number of agents.

    Args:
        agents: The list of agents, if one was given.
        num_agents: The trainer's `num_agents`, if given.
        configured: `args.num_agents`, where they state it.

    Raises:
        ConfigError: Two of them contradict each other, `agents` is not a list, or `num_agents` no whole number.
    """
    if num_agents is not None and (isinstance(num_agents, bool) or not isinstance(num_agents, Integral)):
        raise ConfigError(f"num_agents must be an integer >= 1, got {num_agents!r}")
    if isinstance(agents, str) or not isinstance(agents, Sequence | None):
        raise ConfigError(f"agents must be a list with one entry per agent, got {type(agents).__name__}")
    claims = {
        "len(agents)": None if agents is None else len(agents),
        "num_agents": num_agents,
        "args.num_agents": configured,
    }
    stated = {name: value for name, value in claims.items() if value is not None}
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{name}={value}" for name, value in stated.items())
        raise ConfigError(f"the number of agents is contradictory: {listed}; make them agree")
    return next(iter(stated.values()), int(UNSTATED_TEAM_SIZE))


def resolve_models(agent_model: Any, agents: Sequence[Any] | None, num_agents: int) -> list[Any]:
    """One model, policy or identifier per agent.

    Raises:
        ConfigError: None or contradictory ones were given.
    """
    agent_model = _identifier(agent_model)
    if agent_model is not None and not isinstance(agent_model, str):
        raise ConfigError("agent_model must be a model identifier; pass preloaded models as agents=[…]")
    if agents is None:
        if agent_model is None:
            raise ConfigError("no agents: pass agent_model='…' or agents=[…]")
        return [agent_model] * num_agents
    agents = [_identifier(agent) for agent in agents]
    if agent_model is not None and any(agent != agent_model for agent in agents if isinstance(agent, str)):
        raise ConfigError(f"agent_model={agent_model} contradicts agents={agents}; pass one of them")
    return agents


def _identifier(model: Any) -> Any:
    """A folder given as a path, as text; anything else as it is."""
    return fspath(model) if isinstance(model, PathLike) else model


def resolve_sources(models: Sequence[Any], tokenizer: Any, special_tokens: Mapping[str, str] | None) -> list[Source]:
    """Pairs each model with its tokenizer and context length; loads tokenizers and configurations only.

    Args:
        models: One per agent.
        tokenizer: One shared, one per agent, or None to load those of identifiers.
        special_tokens: Added to every tokenizer.

    Raises:
        ConfigError: A preloaded model without tokenizer, another number of tokenizers than agents, a role of
            `special_tokens` that does not exist, or a tokenizer larger than its model.
    """
    shared = tokenizer is None or not isinstance(tokenizer, (list, tuple))
    tokenizers = [tokenizer] * len(models) if shared else list(tokenizer)
    if len(tokenizers) != len(models):
        raise ConfigError(f"tokenizer has {len(tokenizers)} entries, but the team has {len(models)} agents")
    return [_source(model, tok, special_tokens) for model, tok in zip(models, tokenizers, strict=True)]


def _source(model: Any, tokenizer: Any, special_tokens: Mapping[str, str] | None) -> Source:
    if isinstance(model, Policy):
        return Source(model, None, model.context_length)
    if not isinstance(model, str):
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"an agent must be a model identifier, a model or a Policy, got {model!r}")
        if tokenizer is None:
            raise ConfigError(f"a preloaded model ({type(model).__name__}) needs its tokenizer: pass tokenizer=")
        add_special_tokens(tokenizer, special_tokens)
        return Source(model, tokenizer, context_length(model.config))
    tokenizer = load_tokenizer(model) if tokenizer is None else tokenizer
    model_config = load_model_config(model)
    rows = text_setting(model_config, "vocab_size")
    if rows is not None and not special_tokens:
        check_vocabulary(tokenizer, rows, model)
    add_special_tokens(tokenizer, special_tokens)
    return Source(model, tokenizer, context_length(model_config))


def add_special_tokens(tokenizer: Any, special_tokens: Mapping[str, str] | None) -> None:
    """Adds tokens by role (`pad_token: "<pad>"`) to a tokenizer.

    Raises:
        ConfigError: There is no such role.
    """
    if not special_tokens:
        return
    try:
        tokenizer.add_special_tokens(dict(special_tokens))
    except ValueError as error:
        raise ConfigError(f"special_tokens={dict(special_tokens)}: {error}") from error


def check_model_config(model_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The model configuration as a dict with known keys only, those inside `model_kwargs` among the others.

    Raises:
        ConfigError: An unknown key, naming the nearest, a key given twice, or an unknown dtype.
    """
    outer = dict(model_config or {})
    inner = outer.pop("model_kwargs", None) or {}
    if not isinstance(inner, Mapping):
        raise ConfigError(f"model_config model_kwargs must be a mapping, got {inner!r}")
    for key in outer.keys() & inner.keys():
        raise ConfigError(f"model_config has {key}={outer[key]} and model_kwargs has {key}={inner[key]}: keep one")
    known = outer | dict(inner)
    for key in known:
        if key not in MODEL_CONFIG_KEYS:
            near = get_close_matches(key, MODEL_CONFIG_KEYS, n=1)
            hint = f"nearest: {near[0]}" if near else "remove it"
            raise ConfigError(f"model_config has no key '{key}' (known: {', '.join(MODEL_CONFIG_KEYS)}); {hint}")
    for key in ("dtype", "torch_dtype"):
        if known.get(key) is not None:
            check_choice(f"model_config {key}", str(known[key]).removeprefix("torch."), DTYPES)
    return known
