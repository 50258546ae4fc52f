"""Every fast path equals the plain one, over six families of small random models, in float64.

1. Sampling in one batch, with rows that leave it, draws token by token what each row draws alone without any cache.
2. Models whose cache cannot be repeated are sampled by transformers' generate(), with the same draws.
3. A token's candidates have the probabilities that transformers' own warpers give it, ties included.
4. Log-probabilities and gradients: prompts shared or not, vocabulary in chunks or not, checkpointed or not.
5. Completions without advantage are skipped, and nothing but time changes.
6. bfloat16 keeps float32 weights; its sampling copy follows every update.
"""

import dataclasses
import math
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from marl_runner.errors import ConfigError, RolloutError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.micro_batches import micro_batches
from marl_runner.policies import decoding, prefix, scoring
from marl_runner.policies.causal import CausalModel, left_padded
from marl_runner.policies.drawing import candidates, draw, uniforms
from marl_runner.policies.hf import HFPolicy
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Team, make_agent, make_learners
from marl_runner.trainers.assembly import concurrency, warn_slow_bf16
from marl_runner.types import Completion, Prompt, Sample, Sampling
from marl_runner.update import update_step
from models import CPU, EOS, PAD, VOCABULARY, tiny_tokenizer

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
WINDOW = 5
"""Of sliding attention: shorter than most prompts, so that a window that shifts shows."""
FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=4),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
    ),
    "gemma3": Gemma3TextConfig(
        **SIZES, head_dim=4, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
    "mistral": MistralConfig(**SIZES, sliding_window=WINDOW),
    # Its window counts places of the cache, padding included.
    "gpt_neo": GPTNeoConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        attention_types=[[["local", "global"], 1]],
        window_size=WINDOW,
        max_position_embeddings=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=PAD,
    ),
}
WITH_DROPOUT = {
    "opt": OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        word_embed_proj_dim=16,
        init_std=0.4,
        dropout=0.5,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
}
"""Its layers themselves drop out, in training mode."""
CAPPED = {"gemma2": Gemma2Config(**SIZES, head_dim=4, sliding_window=WINDOW, final_logit_softcapping=3.0)}
"""Its logits are not the output layer's."""
RECURRENT = {
    "mamba": MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=EOS, pad_token_id=PAD
    ),
    "falcon_h1": FalconH1Config(**SIZES, mamba_d_ssm=16, mamba_n_heads=4, mamba_d_head=4, mamba_d_state=4),
}
PROMPTS = ((4, 5, 6), (7, 8, 9, 10, 11, 12, 13, 14, 15, 4), (5,), (6, 7, 8, 9, 10, 11, 12))
SEEDS = (11, 12, 13, 14)


def model_of(config):
    # Eager attention of transformers masks with float64's least number, which its float32 softmax turns into NaN.
    dtype = torch.float32 if config.model_type == "gemma2" else torch.float64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def policy_of(config, **options):
    return HFPolicy(model_of(config), tiny_tokenizer(), CPU, **options)


def prompts_of(ids_P):
    return [Prompt("", tuple(ids)) for ids in ids_P]


def plain_logits(model, token_ids):
    """[S, V] of one sequence: no padding, no cache, no positions but those that the model counts itself."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]


def drawn_alone(model, prompt, sampling, uniforms_T, end_ids):
    """One completion, reading the whole sequence anew for every token."""
    completion = []
    for u in uniforms_T:
        logits = plain_logits(model, [*prompt, *completion])[-1:]
        completion.append(int(draw(logits, sampling, u.reshape(1))))
        if completion[-1] in end_ids:
            break
    return tuple(completion)


# --- sampling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*FAMILIES, *CAPPED])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(9, 1.0, 1.0, None), Sampling(9, 0.7, 0.8, 6), Sampling(9, 1.5, 0.9, None), Sampling(9, 1.0, 1.0, 4)],
    ids=["plain", "top_k_top_p", "top_p", "top_k"],
)
@pytest.mark.parametrize("shared_from", [1, 10**9], ids=["prefix", "repeated"])
def test_a_batch_draws_token_by_token_what_each_row_draws_alone(family, sampling, shared_from, monkeypatch):
    monkeypatch.setattr(decoding, "SHARED_FROM", shared_from)
    policy = policy_of((FAMILIES | CAPPED)[family])
    # Many end tokens, so that rows leave the batch at every step.
    policy.end_ids = frozenset({EOS, 5, 9, 13})
    completions_P_K = policy.generate(prompts_of(PROMPTS), 6, sampling, SEEDS)
    numbers = uniforms(SEEDS, 6, 9)
    expected = [
        drawn_alone(policy.model, prompt, sampling, numbers[6 * p + k], policy.end_ids)
        for p, prompt in enumerate(PROMPTS)
        for k in range(6)
    ]
    assert [completion.token_ids for completions_K in completions_P_K for completion in completions_K] == expected
    assert len({len(ids) for ids in expected}) >= 3


def rows_of_every_step(policy, monkeypatch):
    sizes = []
    step = CausalModel.step

    def counted(self, input_ids, mask, cache):
        sizes.append(tuple(input_ids.shape))
        return step(self, input_ids, mask, cache)

    monkeypatch.setattr(CausalModel, "step", counted)
    return sizes


def test_each_prompt_is_read_once_and_ended_rows_leave_the_batch(monkeypatch):
    policy = policy_of(FAMILIES["llama"])
    policy.end_ids = frozenset({EOS, 5, 9, 13})
    sizes = rows_of_every_step(policy, monkeypatch)
    completions_P_K = policy.generate(prompts_of(PROMPTS), 6, Sampling(9, 1.0, 1.0, None), SEEDS)
    lengths = [len(completion.token_ids) for completions_K in completions_P_K for completion in completions_K]
    assert sizes[0] == (4, 10)
    for step, (num_rows, _) in enumerate(sizes[1:], start=1):
        going_on = sum(length > step for length in lengths)
        assert going_on <= num_rows <= going_on / decoding.LEAVES
    assert sizes[1][0] > sizes[-1][0]


def test_sampling_stops_when_every_row_has_ended(monkeypatch):
    policy = policy_of(FAMILIES["llama"])
    policy.end_ids = frozenset(range(VOCABULARY))
    sizes = rows_of_every_step(policy, monkeypatch)
    policy.generate(prompts_of(PROMPTS), 3, Sampling(9, 1.0, 1.0, None), SEEDS)
    assert sizes == [(4, 10)]


@pytest.mark.parametrize("family", RECURRENT)
def test_a_model_with_a_recurrent_state_is_sampled_by_generate_with_the_same_draws(family):
    policy = policy_of(RECURRENT[family])
    policy.end_ids = frozenset({EOS, 5, 9, 13})
    sampling = Sampling(7, 0.9, 0.9, 12)
    completions_P_K = policy.generate(prompts_of(PROMPTS), 3, sampling, SEEDS)
    numbers = uniforms(SEEDS, 3, 7)
    for p, completions_K in enumerate(completions_P_K):
        for k, completion in enumerate(completions_K):
            alone = drawn_alone(policy.model, PROMPTS[p], sampling, numbers[3 * p + k], policy.end_ids)
            assert completion.token_ids == alone


def test_generate_reads_nothing_of_the_checkpoint_s_generation_config():
    """It would repeat nothing, draw the likeliest token and suppress others; it stays as it is."""
    policy = policy_of(RECURRENT["mamba"])
    plain = policy.generate(prompts_of(PROMPTS), 4, Sampling(6, 1.0, 1.0, None), SEEDS)
    settings = policy.model.generation_config
    settings.update(top_k=1, repetition_penalty=5.0, suppress_tokens=[4, 5, 6, 7], min_new_tokens=6, do_sample=True)
    assert policy.generate(prompts_of(PROMPTS), 4, Sampling(6, 1.0, 1.0, None), SEEDS) == plain
    assert policy.model.generation_config is settings


class Forgetful(LlamaForCausalLM):
    """Keeps nothing between tokens, while generate() gives it one token at a time."""

    def forward(self, input_ids=None, attention_mask=None, **ignored):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)


def test_a_model_that_generate_samples_wrongly_is_refused():
    policy = HFPolicy(Forgetful(FAMILIES["llama"]).eval(), tiny_tokenizer(), CPU)
    with pytest.raises(
        RolloutError, match=r"Forgetful cannot be sampled: its generate\(\) gives log-probabilities that"
    ):
        policy.generate(prompts_of(PROMPTS), 4, Sampling(6, 1.0, 1.0, None), SEEDS)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mamba"])
def test_what_a_prompt_draws_depends_on_its_seed_and_not_on_the_batch(family):
    policy = policy_of((FAMILIES | RECURRENT)[family])
    sampling = Sampling(6, 1.0, 0.95, None)
    together = policy.generate(prompts_of(PROMPTS), 3, sampling, SEEDS)
    reverse = policy.generate(prompts_of(PROMPTS[::-1]), 3, sampling, SEEDS[::-1])
    alone = [policy.generate(prompts_of([ids]), 3, sampling, [s])[0] for ids, s in zip(PROMPTS, SEEDS, strict=True)]
    assert together == reverse[::-1] == alone


# --- drawing ----------------------------------------------------------------------------------------------------


def warped(logits, sampling):
    """[R, V] probabilities by all three warpers of transformers over the whole vocabulary."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return torch.softmax(warpers(None, logits), dim=-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [None, 1, 5, 50, 200, 500])
@pytest.mark.parametrize("ties", [False, True])
def test_candidates_have_the_probabilities_that_transformers_gives_them(temperature, top_p, top_k, ties):
    logits = 3 * torch.randn(7, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if ties:
        logits = logits.round()  # about 20 different values
    sampling = Sampling(1, temperature, top_p, top_k)
    probabilities, ids = candidates(logits, sampling)
    spread = probabilities if ids is None else torch.zeros_like(logits).scatter(1, ids, probabilities)
    expected = warped(logits, sampling)
    if ties:
        # Which of the tokens that tie at the top-p cut are kept is left to torch's sort.
        spread, expected = spread.sort().values, expected.sort().values
    assert torch.allclose(spread, expected, atol=1e-12)


def test_only_k_tokens_are_normalised_and_those_that_tie_with_the_last_of_them():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    assert candidates(logits, Sampling(1, 1.0, 1.0, 2))[1].tolist() == [[1, 2]]
    logits[0, 3] = 2.0
    assert candidates(logits, Sampling(1, 1.0, 1.0, 2))[1].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("rows", [slice(1, 2), slice(0, 2)])
@pytest.mark.parametrize("num_wrong", [1, 4])
def test_logits_that_are_not_finite_are_refused_whatever_is_drawn_among(top_k, wrong, rows, num_wrong):
    logits = torch.zeros(2, 4)
    logits[rows, :num_wrong] = wrong
    with pytest.raises(RolloutError, match="probabilities are not finite"):
        draw(logits, Sampling(1, 1.0, 0.9, top_k), torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_a_row_draws_the_same_beside_a_row_whose_logits_tie():
    """Of 2 and 3, in this order, 2 has probability 1 / (1 + e) = 0.27; the other row keeps three tokens."""
    row, ties = [2.0, 3.0, 0.0, -1.0], [1.0, 1.0, 1.0, 0.0]
    numbers = torch.tensor([0.1, 0.1], dtype=torch.float64)
    assert draw(torch.tensor([row]), Sampling(1, 1.0, 1.0, 2), numbers[:1]).tolist() == [0]
    assert draw(torch.tensor([row, ties]), Sampling(1, 1.0, 1.0, 2), numbers).tolist() == [0, 0]


def test_a_token_is_the_first_whose_cumulative_probability_exceeds_the_number():
    """Probabilities 1/2, 0, 1/4, 1/4: cumulative 0.5, 0.5, 0.75, 1."""
    logits = torch.tensor([[0.5, 0.0, 0.25, 0.25]], dtype=torch.float64).log()
    below = math.nextafter
    for number, token in [(0.0, 0), (below(0.5, 0), 0), (0.5, 2), (below(0.75, 0), 2), (0.75, 3), (below(1.0, 0), 3)]:
        assert draw(logits, Sampling(1, 1.0, 1.0, None), torch.tensor([number], dtype=torch.float64)).tolist() == [
            token
        ]


def test_the_numbers_of_a_prompt_are_those_of_its_seed():
    numbers = uniforms([3, 4], 2, 5)
    assert numbers.shape == (4, 5)
    assert torch.equal(numbers[2:], uniforms([4], 2, 5))
    assert 0 <= numbers.min() <= numbers.max() < 1


# --- scoring ----------------------------------------------------------------------------------------------------


def completion_of(ids):
    return Completion("", tuple(ids), finished=ids[-1] == EOS)


COMPLETIONS = ((4, 5, EOS), (9,), (6, 7, 8, 9, 10, 11, 12, 4), (EOS,), (13, 14, EOS))
ROWS = [
    (prompt, completion_of(ids))
    for prompt in prompts_of(PROMPTS)
    for ids in (COMPLETIONS if len(prompt.token_ids) > 1 else COMPLETIONS[:1])
]


def naive_scores(model, rows):
    """[R, T] one row at a time, by log_softmax over the whole vocabulary."""
    T = max(len(completion.token_ids) for _, completion in rows)
    scored = []
    for prompt, completion in rows:
        logits = model(input_ids=torch.tensor([[*prompt.token_ids, *completion.token_ids]]), use_cache=False).logits[0]
        before = len(prompt.token_ids) - 1
        log_probs = torch.log_softmax(logits[before : before + len(completion.token_ids)], dim=-1)
        chosen = log_probs.gather(1, torch.tensor(completion.token_ids).unsqueeze(1)).squeeze(1)
        scored.append(torch.nn.functional.pad(chosen, (0, T - len(chosen))))
    return torch.stack(scored)


def gradient_of(model, log_probs):
    weights = torch.linspace(-1.0, 1.0, log_probs.numel(), dtype=log_probs.dtype).reshape(log_probs.shape)
    model.zero_grad()
    (log_probs * weights).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def relative_difference(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("chunk_logits", [2**24, 3 * VOCABULARY])
@pytest.mark.parametrize("share_from", [1, 10**9])
@pytest.mark.parametrize("family", [*FAMILIES, *CAPPED, *RECURRENT])
def test_log_probs_and_gradients_are_those_of_one_row_at_a_time(family, share_from, chunk_logits, monkeypatch):
    monkeypatch.setattr(scoring, "SHARE_FROM", share_from)
    monkeypatch.setattr(scoring, "CHUNK_LOGITS", chunk_logits)
    policy = policy_of((FAMILIES | CAPPED | RECURRENT)[family])
    scored = policy.token_log_probs(ROWS)
    naive = naive_scores(policy.model, ROWS).to(scored.dtype)
    # Recurrent layers, and softmax and normalisation of some models, compute in float32 whatever the weights are.
    assert torch.allclose(scored, naive, atol=1e-12 if family in FAMILIES else 1e-5)
    assert relative_difference(gradient_of(policy.model, scored), gradient_of(policy.model, naive)) < 1e-5


def test_a_step_of_completions_that_share_their_prompts_is_that_of_a_repeated_cache():
    """Two prompts padded to 7 tokens, three completions each; two of them leave after the second step."""
    model = policy_of(FAMILIES["qwen3"])._causal
    input_ids, mask = left_padded((PROMPTS[0], PROMPTS[3]), CPU)
    with torch.no_grad():
        (_, repeated), (_, shared) = (model.step(input_ids, mask, None) for _ in range(2))
        repeated.batch_repeat_interleave(3)
        rows = prefix.share_prompts(shared, 2, 3)
        mask = mask.repeat_interleave(3, dim=0)
        for step in range(4):
            tokens = torch.arange(4, 4 + len(mask)).unsqueeze(1)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            expected, repeated = model.step(tokens, mask, repeated)
            logits, shared = model.step(tokens, mask, shared)
            assert torch.allclose(logits, expected, atol=1e-12)
            if step == 1:
                kept = torch.tensor([0, 3, 4, 5])
                repeated.batch_select_indices(kept)
                shared.batch_select_indices(kept)
                rows.keep(kept)
                mask = mask[kept]


def test_which_models_read_a_prompt_once_while_sampling():
    shared = {name: prefix.can_share(policy_of(config)._causal, (4, 5)) for name, config in (FAMILIES | CAPPED).items()}
    assert shared == {
        "llama": True,
        "qwen2": True,
        "qwen3": True,
        "gpt2": True,
        "gemma3": False,
        "mistral": False,
        "gpt_neo": False,
        "gemma2": False,
    }


def test_prompts_are_shared_where_every_layer_keeps_all_it_saw():
    shared = {family: policy_of(config)._causal.shares_prompts for family, config in (FAMILIES | RECURRENT).items()}
    assert shared == {
        "llama": True,
        "qwen2": True,
        "qwen3": True,
        "gpt2": True,
        "gemma3": False,
        "mistral": False,
        "gpt_neo": True,
        "mamba": False,
        "falcon_h1": False,
    }


def test_a_shared_prompt_is_read_once(monkeypatch):
    """3 completions of 4 tokens after 100: read once 100 + 3 * 4, else 3 * 104."""
    policy = policy_of(FAMILIES["llama"])
    prompt = Prompt("", (4,) * 100)
    rows = [(prompt, completion_of((5, 6, 7, EOS)))] * 3
    assert policy.num_scored_tokens(rows) == 312  # 200 tokens saved are not enough
    assert policy.num_scored_tokens([*rows, rows[0]]) == 100 + 4 * 4
    read = []
    hidden = CausalModel.hidden
    monkeypatch.setattr(
        CausalModel,
        "hidden",
        lambda self, ids, mask, cache=None: read.append(tuple(ids.shape)) or hidden(self, ids, mask, cache),
    )
    policy.token_log_probs([*rows, rows[0]])
    assert read[-2:] == [(1, 100), (4, 3)]  # the last token of a completion predicts nothing


def test_micro_batches_hold_as_many_rows_as_the_tokens_allow_and_two_always():
    """8 tokens a row."""
    policy = policy_of(FAMILIES["llama"])
    rows = [(Prompt("", (4,) * 5), completion_of((5,) * 3))] * 5
    assert [len(part) for part in micro_batches(policy, rows, 24)] == [3, 2]
    assert [len(part) for part in micro_batches(policy, rows, 40)] == [5]
    assert [len(part) for part in micro_batches(policy, rows, 1)] == [2, 2, 1]
    assert list(micro_batches(policy, [], 1)) == []


def test_completions_of_a_prompt_longer_than_the_budget_share_it():
    """Two rows alone would be 2 * 310; shared, 300 + 8 * 10 = 380."""
    policy = policy_of(FAMILIES["llama"])
    rows = [(Prompt("", (4,) * 300), completion_of((5,) * 10))] * 8
    assert [len(part) for part in micro_batches(policy, rows, 64)] == [8]
    assert policy.num_scored_tokens(rows) == 380


@pytest.mark.parametrize("family", [*FAMILIES, "falcon_h1", "opt"])
def test_gradient_checkpointing_changes_neither_scores_gradients_nor_samples(family):
    config = (FAMILIES | RECURRENT | WITH_DROPOUT)[family]
    plain, checkpointed = policy_of(config), policy_of(config, gradient_checkpointing=True)
    scored = [policy.token_log_probs(ROWS) for policy in (plain, checkpointed)]
    assert torch.allclose(scored[0], scored[1], atol=1e-12)
    gradients = [gradient_of(policy.model, each) for policy, each in zip((plain, checkpointed), scored, strict=True)]
    assert torch.allclose(*gradients, atol=1e-12)
    arguments = (prompts_of(PROMPTS), 3, Sampling(6, 1.0, 1.0, None), SEEDS)
    assert plain.generate(*arguments) == checkpointed.generate(*arguments)
    assert not any(module.training for module in checkpointed.model.modules())


def kept_bytes(policy, rows):
    """Bytes of the tensors that the graph of one scoring keeps, parameters left out."""
    owned = {parameter.data_ptr() for parameter in policy.model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.data_ptr() not in owned:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.token_log_probs(rows)
    return sum(kept.values())


def test_a_model_without_layers_to_compute_again_is_refused():
    model = model_of(FAMILIES["llama"])
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no layers for gradient checkpointing"):
        HFPolicy(model, tiny_tokenizer(), CPU, gradient_checkpointing=True)


def test_gradient_checkpointing_keeps_less():
    rows = [(Prompt("", (4,) * 40), completion_of((5,) * 20))] * 4
    config = FAMILIES["llama"]
    assert kept_bytes(policy_of(config, gradient_checkpointing=True), rows) < 0.5 * kept_bytes(policy_of(config), rows)


# --- skipped completions ----------------------------------------------------------------------------------------


def updated(advantages, **settings):
    """Weights after three AdamW steps on one sample."""
    policy = policy_of(FAMILIES["llama"])
    config = MAGRPOConfig(agent_learning_rate=1e-2, weight_decay=0.1, num_generations=5, **settings)
    agent = make_agent(0, policy, PromptFormatter(None, 0, False), config, None)
    (learner,) = make_learners([agent], config, None)
    prompt = Prompt("", PROMPTS[0])
    completions = tuple(completion_of(ids) for ids in COMPLETIONS)
    sample = Sample(0, 0, 1, prompt, completions, advantages, advantages)
    stats = [update_step(learner, [[sample]], config)[0] for _ in range(3)]
    return policy, torch.cat([p.detach().flatten() for p in policy.model.parameters()]), stats


def test_completions_without_advantage_are_not_scored_and_nothing_else_changes(monkeypatch):
    """The plain way scores them with weight zero."""
    advantages = (0.5, 0.0, -1.0, 0.0, 0.5)
    scored = []
    token_log_probs = HFPolicy.token_log_probs
    monkeypatch.setattr(
        HFPolicy, "token_log_probs", lambda self, rows: scored.append(len(rows)) or token_log_probs(self, rows)
    )
    _, skipped, stats = updated(advantages)
    assert scored == [3, 3, 3]
    monkeypatch.setattr("marl_runner.update.with_signal", lambda terms: terms)
    _, plain, plain_stats = updated(advantages)
    assert scored[3:] == [5, 5, 5]
    assert torch.allclose(skipped, plain, atol=1e-12)
    for ours, theirs in zip(stats, plain_stats, strict=True):
        assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs), abs=1e-12)


def test_where_no_completion_has_an_advantage_the_weights_still_decay():
    """A zero gradient leaves AdamW its decay: each step multiplies every weight by 1 - 1e-2 * 0.1."""
    before = torch.cat([p.detach().flatten() for p in policy_of(FAMILIES["llama"]).model.parameters()])
    _, after, stats = updated((0.0,) * 5)
    assert torch.allclose(after, before * (1 - 1e-3) ** 3, atol=1e-14)
    assert [(each.loss, each.grad_norm) for each in stats] == [(0.0, 0.0)] * 3


# --- agents on one CPU ------------------------------------------------------------------------------------------


def team_of(num_agents, concurrency_of_team=1, share_cores=False):
    config = MAGRPOConfig(num_agents=num_agents)
    agents = [
        make_agent(n, policy_of(FAMILIES["llama"]), PromptFormatter(None, n, False), config, None)
        for n in range(num_agents)
    ]
    return Team(agents, make_learners(agents, config, None), concurrency_of_team, share_cores)


def test_the_cores_are_divided_among_the_agents_while_they_run():
    """4 cores, 2 agents at a time: 2 each; before and after, all 4."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        team = team_of(3, 2, share_cores=True)
        assert team.map_agents(lambda agent: torch.get_num_threads()) == [2, 2, 2]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_agents_on_one_cpu_update_one_after_the_other_on_all_cores_and_those_on_their_own_devices_together():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for share_cores, names in ((True, {threading.current_thread().name}), (False, {"learner_0", "learner_1"})):
            team, barrier = team_of(2, 2, share_cores), threading.Barrier(1 if share_cores else 2, timeout=20)

            def seen(learner, barrier=barrier):
                barrier.wait()
                return threading.current_thread().name, torch.get_num_threads()

            told = team.map_learners(seen, team.learners)
            assert {name for name, _ in told} == names
            assert {threads for _, threads in told} == {2}
    finally:
        torch.set_num_threads(before)


def test_an_agent_s_error_is_raised_after_the_others_have_ended_and_the_cores_are_given_back():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        team, ended = team_of(2, 2, share_cores=True), []
        with pytest.raises(ValueError, match="first"):
            team.map_agents(lambda agent: fail() if agent.index == 0 else ended.append(agent.index))
        assert (ended, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def fail():
    raise ValueError("first")


@pytest.mark.parametrize(
    ("settings", "cores", "expected"),
    [
        ({}, 2, (2, True)),
        ({}, 1, (1, True)),
        ({}, 8, (3, True)),
        ({"parallel_training": "mp", "agent_devices": "cpu"}, 2, (3, False)),
    ],
)
def test_how_many_of_three_agents_run_at_the_same_time(settings, cores, expected, monkeypatch):
    learners = team_of(3).learners
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    assert concurrency(learners, MAGRPOConfig(**settings)) == expected


def test_policies_of_the_user_s_own_run_one_after_the_other():
    config = MAGRPOConfig()
    agents = [make_agent(n, ScriptedPolicy([]), PromptFormatter(None, n, False), config, None) for n in range(2)]
    assert concurrency(make_learners(agents, config, None), config) == (1, False)


FREED = """
import resource, torch
from marl_runner.allocator import tune_allocator
tune_allocator()
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_a_freed_tensor_s_memory_is_kept_for_the_next():
    """64 MiB are 16384 pages of 4 KiB, which would be asked for anew each time."""
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1000


HUGE = """
from pathlib import Path
import torch
from marl_runner.allocator import tune_allocator
tune_allocator()
kept = torch.ones(2**24)
mappings = Path("/proc/self/smaps").read_text().split("VmFlags:")
asked = [before for before, after in zip(mappings, mappings[1:]) if "hg" in after.splitlines()[0].split()]
print(sum(int(before.split("\\nSize:")[-1].split()[0]) for before in asked))
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="no huge pages here")
def test_huge_pages_are_asked_for():
    """64 MiB, whatever the kernel then has; its flag `hg` is that of madvise."""
    done = subprocess.run([sys.executable, "-c", HUGE], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 60 * 1024


# --- bfloat16 ---------------------------------------------------------------------------------------------------


def test_bf16_trains_float32_weights_and_samples_from_a_copy_that_follows_them():
    policy = HFPolicy(model_of(FAMILIES["llama"]).to(torch.bfloat16), tiny_tokenizer(), CPU, mixed_precision="bf16")
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
    arguments = (prompts_of(PROMPTS), 2, Sampling(4, 1.0, 1.0, None), SEEDS)
    policy.generate(*arguments)
    copy = policy._sampler.model
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, fused=True)
    gradient_of(policy.model, policy.token_log_probs(ROWS))
    optimizer.step()
    policy.weights_changed()
    policy.generate(*arguments)
    assert policy._sampler.model is copy
    for rounded, exact in zip(copy.parameters(), policy.parameters(), strict=True):
        assert torch.equal(rounded, exact.to(torch.bfloat16))


@pytest.mark.parametrize(("capability", "warned"), [("AVX2", True), ("AVX512", False)])
def test_bf16_on_a_processor_without_it_is_warned_about(capability, warned, monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for mixed_precision in ("none", "bf16"):
        warn_slow_bf16(MAGRPOConfig(mixed_precision=mixed_precision))
    assert ("this processor (AVX2) has no bfloat16 products" in caplog.text) == warned
    assert len(caplog.records) == int(warned)


@pytest.mark.parametrize("family", ["mamba", "gemma2", "gpt2"])
def test_bf16_scores_models_that_widen_or_cap_their_logits(family):
    policy = HFPolicy(model_of((FAMILIES | CAPPED | RECURRENT)[family]), tiny_tokenizer(), CPU, mixed_precision="bf16")
    scored = policy.token_log_probs(ROWS)
    assert scored.isfinite().all()
    assert gradient_of(policy.model, scored).isfinite().all()


def test_bf16_scores_and_gradients_are_near_those_of_float32():
    plain = HFPolicy(model_of(FAMILIES["llama"]).float(), tiny_tokenizer(), CPU)
    mixed = HFPolicy(model_of(FAMILIES["llama"]).float(), tiny_tokenizer(), CPU, mixed_precision="bf16")
    scored = [policy.token_log_probs(ROWS) for policy in (plain, mixed)]
    assert scored[1].dtype == torch.float32
    assert 1e-5 < (scored[0] - scored[1]).abs().max() < 0.3
    exact, rounded = (gradient_of(policy.model, each) for policy, each in zip((plain, mixed), scored, strict=True))
    assert rounded.dtype == torch.float32
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.99


def test_the_log_probability_when_sampled_is_that_of_the_sampling_copy():
    policy = HFPolicy(model_of(FAMILIES["llama"]).float(), tiny_tokenizer(), CPU, mixed_precision="bf16")
    prompts = prompts_of(PROMPTS)
    completions_P_K = policy.generate(prompts, 3, Sampling(6, 0.7, 0.9, 10), SEEDS)
    rows = [(prompt, each) for prompt, K in zip(prompts, completions_P_K, strict=True) for each in K]
    by_copy = naive_scores(policy._sampler.model, rows).double().sum(dim=1)
    for (_, completion), expected in zip(rows, by_copy.tolist(), strict=True):
        assert completion.log_prob == pytest.approx(expected, abs=0.2)
    plain = HFPolicy(model_of(FAMILIES["llama"]).float(), tiny_tokenizer(), CPU)
    assert {c.log_prob for K in plain.generate(prompts, 3, Sampling(6, 0.7, 0.9, 10), SEEDS) for c in K} == {None}


def test_generate_reports_the_same_log_probabilities():
    """It hands on its logits in float32."""
    policy = policy_of(RECURRENT["mamba"])
    numbers = uniforms(SEEDS, 2, 5)
    request = decoding.Request(PROMPTS, 2, Sampling(5, 0.8, 0.9, 8), numbers, policy.end_ids, log_probs=True)
    sampled = decoding.decode(policy._causal, request)
    rows = [(Prompt("", PROMPTS[r // 2]), completion_of(ids)) for r, ids in enumerate(sampled.token_ids)]
    assert sampled.log_probs == pytest.approx(naive_scores(policy.model, rows).sum(dim=1).tolist(), abs=1e-5)
