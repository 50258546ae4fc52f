"""Tiny real language models and tokenizers for tests: random weights from a seed, no download.

The tokenizer has one token per character, so that ids, texts and lengths can be written down by hand:

    id      0      1    2     3      4 … 13   14  15
    token   <pad>  <s>  </s>  <unk>  a … j    .   (space)
"""

from __future__ import annotations

import copy
import json
import weakref
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedTokenizerFast,
)

from marl_runner.policies.hf import HFPolicy
from marl_runner.types import Completion, Prompt, Row, Sampling

PAD, BOS, EOS, UNKNOWN, A, J, DOT, SPACE = 0, 1, 2, 3, 4, 13, 14, 15
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghij", ".", " "]
VOCABULARY = len(TOKENS)
CONTEXT = 64
CPU = torch.device("cpu")
GREEDY = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=1)
PLAIN = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=None)


def tiny_tokenizer(*, padding_side="right", adds_bos=False, pad_token="<pad>", chat_template=None):
    """A character tokenizer; `adds_bos` puts `<s>` before every text, as Llama's does."""
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(TOKENS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token=pad_token,
        unk_token="<unk>",
        padding_side=padding_side,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_llama(*, seed=0, vocab_size=VOCABULARY, hidden_size=16, cls=LlamaForCausalLM):
    """Two layers with rotary positions; weights wide enough that the next token depends on the whole prompt."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return _seeded(cls, config, seed)


def tiny_gpt2(*, seed=0, vocab_size=VOCABULARY, dropout=0.0):
    """Two layers with learned absolute positions, which a wrong padding shifts."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=CONTEXT,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        initializer_range=0.4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return _seeded(GPT2LMHeadModel, config, seed)


def tiny_bloom(*, seed=0):
    """Two layers with ALiBi: no position ids at all, and no limit of the context."""
    config = BloomConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        n_layer=2,
        n_head=2,
        tie_word_embeddings=False,
        initializer_range=0.4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return _seeded(BloomForCausalLM, config, seed)


def tiny_openai_gpt(*, seed=0):
    """Two layers with learned absolute positions, and no cache of any kind."""
    config = OpenAIGPTConfig(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=CONTEXT,
        initializer_range=0.4,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return _seeded(OpenAIGPTLMHeadModel, config, seed)


ARCHITECTURES = {"llama": tiny_llama, "gpt2": tiny_gpt2, "bloom": tiny_bloom}


def _seeded(cls, config, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cls(config)


def tiny_policy(model=None, tokenizer=None, mixed_precision="none"):
    """A policy on the CPU; the default model is the Llama."""
    return HFPolicy(model or tiny_llama(), tokenizer or tiny_tokenizer(), CPU, mixed_precision)


def saved(folder: Path, model=None, tokenizer=None, generation_config=None) -> str:
    """Writes a checkpoint folder; `generation_config` replaces generation_config.json, valid or not."""
    (model or tiny_llama()).save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return str(folder)


def prompt_of(text: str, tokenizer=None) -> Prompt:
    """A prompt with its ids, one per character."""
    return Prompt(text, tuple((tokenizer or tiny_tokenizer())(text, add_special_tokens=False)["input_ids"]))


def rows_under(prompt: Prompt, completions) -> list[Row]:
    """Completions to be scored under one prompt."""
    return [(prompt, completion) for completion in completions]


def completion_of(token_ids) -> Completion:
    """A completion of given ids, ended if its last is `</s>`."""
    text = "".join(TOKENS[token] for token in token_ids if A <= token < len(TOKENS))
    return Completion(text, tuple(token_ids), finished=token_ids[-1] == EOS)


def in_float64(model):
    """A copy for the naive forms below, whose rounding is beyond what any test compares."""
    return copy.deepcopy(model).double().eval()


def naive_log_probs(double, prompt: Prompt, completion: Completion) -> torch.Tensor:
    """[T] of a model `in_float64`: one plain pass without padding or cache, log softmax over the vocabulary."""
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    start = len(prompt.token_ids)
    log_probs = torch.log_softmax(double(input_ids=ids, use_cache=False).logits[0, start - 1 : -1], dim=-1)
    return log_probs[torch.arange(len(completion.token_ids)), ids[0, start:]]


@torch.no_grad()
def naive_greedy(double, prompt: Prompt, num_tokens: int, end_ids=(EOS,)) -> tuple[int, ...]:
    """The most likely token again and again, of a model `in_float64`: one plain pass for each token."""
    ids = list(prompt.token_ids)
    for _ in range(num_tokens):
        ids.append(int(double(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in end_ids:
            break
    return tuple(ids[len(prompt.token_ids) :])


class Held:
    """A tensor that autograd keeps for the backward pass."""

    def __init__(self, tensor):
        self.tensor = tensor


class SavedBytes:
    """Bytes kept for backward, now and at most; storages that are shared, and the weights, count once and never."""

    def __init__(self, policy):
        self.now = self.peak = 0
        self._counts = {parameter.untyped_storage().data_ptr(): 1 for parameter in policy.parameters()}

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if not self._counts.get(key):
            self.now += size
            self.peak = max(self.peak, self.now)
        self._counts[key] = self._counts.get(key, 0) + 1
        held = Held(tensor)
        weakref.finalize(held, self._release, key, size)
        return held

    def _release(self, key, size):
        self._counts[key] -= 1
        if not self._counts[key]:
            self.now -= size

    def measured(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held.tensor)
