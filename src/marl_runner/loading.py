"""Tokenizers, configurations and models from the hub or from folders, with one short message when one is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from marl_runner.errors import ConfigError


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a hub id or folder.

    Raises:
        ConfigError: It cannot be found or read.
    """
    from transformers import AutoTokenizer

    return from_pretrained(AutoTokenizer.from_pretrained, source)


def load_model_config(source: str) -> Any:
    """The configuration of a hub id or folder, which tells context and size before any weight is loaded.

    Raises:
        ConfigError: It cannot be found or read.
    """
    from transformers import AutoConfig

    return from_pretrained(AutoConfig.from_pretrained, source)


def load_model(source: str, dtype: str | torch.dtype | None, attn_implementation: str | None) -> Any:
    """The causal language model of a hub id or folder.

    Args:
        source: Hub id or folder.
        dtype: "float32", "bfloat16", …; None is float32, in which small updates are not rounded away.
        attn_implementation: "sdpa", "eager", …; None leaves it to transformers.

    Raises:
        ConfigError: It cannot be found or read.
    """
    from transformers import AutoModelForCausalLM

    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    return from_pretrained(AutoModelForCausalLM.from_pretrained, source, dtype=dtype or "float32", **chosen)


def from_pretrained(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Calls a transformers loader, with one short message when the source is not there."""
    try:
        return load(source, **options)
    except (OSError, ValueError) as error:
        if Path(source).is_dir():
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"cannot load {source}: {reason}") from error
        raise ConfigError(
            f"model {source} is neither a local folder nor to be had from the hub "
            f"({type(error).__name__}); check agents.model and the network"
        ) from error


def fit_embeddings(model: Any, tokenizer: Any, special_tokens: dict[str, str] | None, seed: int, name: str) -> None:
    """Makes sure that every token of the tokenizer has a row in the embedding table.

    Adding special tokens grows the table by our request; a tokenizer that is too large without one is refused.

    Raises:
        ConfigError: With both numbers.
    """
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) <= rows:
        return
    if not special_tokens:
        raise ConfigError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, but the model's embedding table has {rows} rows; "
            "name the added tokens in agents.special_tokens to grow the table, or use the matching tokenizer"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(len(tokenizer))


def model_size(model_config: Any) -> tuple[int, int, int]:
    """Parameters, vocabulary and cached numbers per token of a model, from its configuration alone."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    text = model_config.get_text_config().to_dict()
    heads = text.get("num_key_value_heads") or text["num_attention_heads"]
    head_size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return num_parameters, text["vocab_size"], 2 * text["num_hidden_layers"] * heads * head_size
