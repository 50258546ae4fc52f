"""A small causal language model with a character tokenizer, made from a seed: no download, no network."""

from __future__ import annotations

import string
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = string.ascii_lowercase + " \n.,;:!?'\"-"
END, UNKNOWN = "<end>", "<unknown>"


def character_tokenizer() -> Any:
    """One token per lower-case letter or mark, plus `<end>` (id 0) and `<unknown>` (id 1); capitals are lowered."""
    vocabulary = {token: index for index, token in enumerate([END, UNKNOWN, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def tiny_model(seed: int, hidden_size: int, num_layers: int, num_heads: int, context_length: int) -> Any:
    """A Llama of `num_layers` layers with random weights; the global random stream is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return LlamaForCausalLM(tiny_config(hidden_size, num_layers, num_heads, context_length))


def tiny_config(hidden_size: int, num_layers: int, num_heads: int, context_length: int) -> LlamaConfig:
    """The configuration of `tiny_model`, from which its parameters can be counted without making them."""
    return LlamaConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=context_length,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
