"""What a transformers configuration tells of a model before its weights are loaded."""

from __future__ import annotations

from typing import Any

import torch


def text_setting(model_config: Any, name: str) -> Any:
    """A setting of the language part under its standard name, whatever the model calls it; None if it has none.

    GPT-2, for one, keeps `max_position_embeddings` as `n_positions`.
    """
    text_config = model_config.get_text_config()
    return text_config.to_dict().get(text_config.attribute_map.get(name, name))


def context_length(model_config: Any) -> int | None:
    """Most tokens of prompt and completion together; None where the configuration sets no limit."""
    length = text_setting(model_config, "max_position_embeddings")
    return None if length is None else int(length)


def model_size(model_config: Any) -> tuple[int, int, int]:
    """Parameters, vocabulary and cached numbers per token of a model, from its configuration alone."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    query_heads = text_setting(model_config, "num_attention_heads")
    heads = text_setting(model_config, "num_key_value_heads") or query_heads
    head_size = text_setting(model_config, "head_dim") or text_setting(model_config, "hidden_size") // query_heads
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    cached = 2 * text_setting(model_config, "num_hidden_layers") * heads * head_size
    return num_parameters, text_setting(model_config, "vocab_size"), cached
