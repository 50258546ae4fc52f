"""Tokenizers, configurations and models from the hub or from folders, with one short message when one is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from marl_runner.errors import ConfigError

MESSAGE_LENGTH = 300


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
    model, loaded = from_pretrained(
        AutoModelForCausalLM.from_pretrained, source, dtype=dtype or "float32", output_loading_info=True, **chosen
    )
    for kind in ("missing_keys", "mismatched_keys"):
        if loaded[kind]:
            names = ", ".join(str(key) for key in sorted(loaded[kind], key=str)[:3])
            raise ConfigError(
                f"the checkpoint of {source} does not hold all weights of its configuration ({kind}: {names}); "
                "they would be random"
            )
    return model


def from_pretrained(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Calls a transformers loader, with one short message when the source is not there or cannot be read."""
    try:
        return load(source, **options)
    except (OSError, ValueError, ImportError, SafetensorError, UnpicklingError) as error:
        if isinstance(error, OSError) and not Path(source).exists():
            raise ConfigError(
                f"model {source} is neither a local folder nor to be had from the hub "
                f"({type(error).__name__}); check agents.model and the network"
            ) from error
        reason = " ".join(str(error).split())[:MESSAGE_LENGTH] or type(error).__name__
        raise ConfigError(f"cannot load {source}: {reason}") from error


def fit_embeddings(model: Any, tokenizer: Any, special_tokens: dict[str, str] | None, seed: int, name: str) -> None:
    """Makes sure that every token of the tokenizer has a row in the embedding table.

    Adding special tokens grows the table by our request; a tokenizer that is too large without one is refused.

    Raises:
        ConfigError: With both numbers.
    """
    rows = model.get_input_embeddings().num_embeddings
    if not special_tokens:
        check_vocabulary(tokenizer, rows, name)
    if rows_needed(tokenizer) > rows:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            # On the CPU, so that the new rows are the same on every machine and no CUDA stream is touched.
            model.cpu().resize_token_embeddings(rows_needed(tokenizer))


def check_vocabulary(tokenizer: Any, rows: int, name: str) -> None:
    """Refuses a tokenizer with a token beyond the `rows` of the embedding table.

    Raises:
        ConfigError: With both numbers.
    """
    if rows_needed(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens up to id {rows_needed(tokenizer) - 1}, but the "
            f"model's embedding table has {rows} rows; name the added tokens in agents.special_tokens to grow the "
            "table, or use the matching tokenizer"
        )


def rows_needed(tokenizer: Any) -> int:
    """One more than the greatest token id, which is not the number of tokens where ids are left out."""
    greatest: int = max(tokenizer.get_vocab().values())
    return greatest + 1
