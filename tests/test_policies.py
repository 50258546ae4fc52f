"""Behaviours of the policies that these tests protect.

1. Which tokens are scored: everything sampled through the first end token, nothing after it, never padding.
2. Padding is ours: a batch gives what each prompt gives alone, whatever the tokenizer's padding side and token.
3. The numbers: log-probabilities and gradients are those of one plain float64 pass over the whole sequence.
4. Sampling: our fields are applied exactly, and nothing of the checkpoint's generation_config but its end tokens.
5. Randomness: a prompt's answers depend on its seed alone; the global stream is left as it was.
6. The model: evaluation mode, untouched flags, float32 weights under bf16, a folder that loads again.
7. Memory of an update grows neither with K, nor with the vocabulary, nor with the number of steps.
"""

import dataclasses
import gc
import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from marl_runner.errors import RolloutError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.loading import load_model, load_tokenizer
from marl_runner.loss import policy_gradient_loss, token_log_probs
from marl_runner.policies.base import Policy
from marl_runner.policies.model_config import context_length, model_size
from marl_runner.policies.scoring import CHUNK_LOGITS
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import make_agent, make_learners, weights_sha256
from marl_runner.types import Completion, Prompt, Sample, Sampling
from marl_runner.update import backward_batch, update_step
from models import (
    ARCHITECTURES,
    BOS,
    CONTEXT,
    CPU,
    DOT,
    EOS,
    GREEDY,
    PAD,
    PLAIN,
    TOKENS,
    A,
    J,
    SavedBytes,
    completion_of,
    in_float64,
    naive_greedy,
    naive_log_probs,
    prompt_of,
    rows_under,
    saved,
    tiny_gpt2,
    tiny_llama,
    tiny_openai_gpt,
    tiny_policy,
    tiny_tokenizer,
)

WARM = Sampling(max_new_tokens=8, temperature=2.0, top_p=1.0, top_k=None)
ONE_TOKEN = Sampling(max_new_tokens=1, temperature=1.0, top_p=1.0, top_k=None)
PROMPTS = ("a", "ij abcdef.", "abcd", "jihgfedcba jihg.")


def ids_of(completions_P_K):
    return [[completion.token_ids for completion in completions_K] for completions_K in completions_P_K]


def many(policy, text="abc", num_completions=256, sampling=WARM):
    """A fixed large draw, in which every kind of completion occurs."""
    (completions,) = policy.generate([prompt_of(text)], num_completions, sampling, [0])
    return completions


def gradient_of(policy, total):
    policy.model.zero_grad()
    total.backward()
    return {name: parameter.grad.clone() for name, parameter in policy.model.named_parameters()}


# --- which tokens are scored ----------------------------------------------------------------------------------


def test_a_completion_keeps_its_tokens_through_the_first_end_token_and_none_after_it():
    completions = many(tiny_policy())
    for completion in completions:
        assert EOS not in completion.token_ids[:-1]
        assert completion.finished == (completion.token_ids[-1] == EOS)
        assert completion.finished or len(completion.token_ids) == WARM.max_new_tokens
    assert {completion.finished for completion in completions} == {True, False}
    assert len({len(completion.token_ids) for completion in completions}) == WARM.max_new_tokens


def test_a_completion_that_ends_with_the_last_token_allowed_is_finished():
    last = [c for c in many(tiny_policy()) if len(c.token_ids) == WARM.max_new_tokens and c.token_ids[-1] == EOS]
    assert last
    assert all(completion.finished for completion in last)


def test_the_text_is_the_completion_s_ordinary_tokens_without_special_ones():
    completions = many(tiny_policy())
    for completion in completions:
        assert completion.text == "".join(TOKENS[token] for token in completion.token_ids if token >= A)
    assert any(PAD in completion.token_ids and len(completion.text) > 1 for completion in completions)


def test_a_lone_end_token_is_one_scored_token_with_an_empty_text():
    policy = tiny_policy()
    prompt = prompt_of("abcd")
    (completions,) = policy.generate([prompt], 2, GREEDY, [0])
    assert completions[0] == Completion("", (EOS,), finished=True)
    scored = policy.token_log_probs(rows_under(prompt, completions))
    assert scored.shape == (2, 1)
    expected = naive_log_probs(in_float64(policy.model), prompt, completions[0])
    assert scored[0, 0].item() == pytest.approx(expected.item(), abs=1e-5)
    assert scored[0, 0] < -1e-4


def test_the_end_token_is_scored_and_what_lies_beyond_a_shorter_completion_is_zero():
    policy = tiny_policy()
    prompt = prompt_of("abc")
    completions = [completion_of((A, EOS)), completion_of((J, A, DOT, A, EOS)), completion_of((EOS,))]
    scored = policy.token_log_probs(rows_under(prompt, completions))
    assert scored.shape == (3, 5)
    assert (scored != 0).tolist() == [[True] * 2 + [False] * 3, [True] * 5, [True] + [False] * 4]


def test_padding_adds_nothing_to_the_gradient_of_a_mixed_batch():
    policy = tiny_policy()
    prompt = prompt_of("abc")
    completions = [completion_of((A, EOS)), completion_of((J, A, DOT, A, EOS)), completion_of((EOS,))]
    together = gradient_of(policy, policy.token_log_probs(rows_under(prompt, completions)).sum())
    alone = gradient_of(policy, sum(policy.token_log_probs([(prompt, one)]).sum() for one in completions))
    for name, gradient in together.items():
        assert torch.allclose(gradient, alone[name], atol=1e-5), name


def test_every_declared_end_token_ends_a_completion(tmp_path):
    """The tokenizer says 2, the configuration 5, the generation configuration 7 and 9."""
    model = tiny_llama()
    model.config.eos_token_id = 5
    folder = saved(tmp_path, model, generation_config={"eos_token_id": [7, 9]})
    policy = tiny_policy(load_model(folder, None, None), load_tokenizer(folder))
    assert policy.end_ids == {2, 5, 7, 9}
    completions = many(policy)
    assert {completion.token_ids[-1] for completion in completions if completion.finished} == {2, 5, 7, 9}
    assert not any(policy.end_ids & set(completion.token_ids[:-1]) for completion in completions)


@pytest.mark.parametrize("declared", [None, 5, [5], [5, 7]])
def test_end_tokens_may_be_declared_as_nothing_one_or_a_list(declared):
    model = tiny_llama()
    model.config.eos_token_id = declared
    model.generation_config.eos_token_id = declared
    expected = {EOS} | (set() if declared is None else {5} if declared == 5 else set(declared))
    assert tiny_policy(model).end_ids == expected


def test_an_end_token_that_is_an_ordinary_token_is_kept_in_the_ids_and_not_in_the_text():
    model = tiny_llama()
    model.generation_config.eos_token_id = [EOS, DOT]
    ended = [completion for completion in many(tiny_policy(model)) if completion.token_ids[-1] == DOT]
    assert len(ended) > 10
    for completion in ended:
        assert completion.finished
        assert completion.text == "".join(TOKENS[token] for token in completion.token_ids[:-1] if token >= A)


def test_sampling_stops_with_the_last_row_that_ends():
    """As many forward passes as the longest completion has tokens, though the others ended at other steps."""
    policy = tiny_policy()
    passes = []
    policy.model.register_forward_hook(lambda *ignored: passes.append(1))
    drawn = many(policy, num_completions=4, sampling=Sampling(40, 2.0, 1.0, None))
    lengths = {len(completion.token_ids) for completion in drawn}
    assert len(lengths) > 1
    assert len(passes) == max(lengths) < 40


def test_no_end_token_at_all_means_that_every_completion_is_cut_by_length():
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    completions = many(tiny_policy(model, tokenizer), num_completions=16)
    assert all(len(c.token_ids) == WARM.max_new_tokens and not c.finished for c in completions)


# --- prompts that hold padding or end tokens ------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_prompt_with_the_end_and_padding_tokens_in_it_is_answered_and_scored_like_any_other(architecture):
    """A chat template writes pad = eos between its messages: ids 2 and 0 inside the prompt."""
    tokenizer = tiny_tokenizer(pad_token="</s>")
    policy = tiny_policy(ARCHITECTURES[architecture](), tokenizer)
    double = in_float64(policy.model)
    prompts = [prompt_of(text, tokenizer) for text in ("abc</s>def</s>", "</s>", "j")]
    prompts += [Prompt("", ids) for ids in ((EOS, A, PAD, J, PAD, PAD), (PAD, J))]
    assert prompts[0].token_ids[-1] == EOS
    answers = policy.generate(prompts, 1, GREEDY, range(len(prompts)))
    for prompt, (completion,) in zip(prompts, answers, strict=True):
        assert completion.token_ids == naive_greedy(double, prompt, 8)
        expected = naive_log_probs(double, prompt, completion)
        assert torch.allclose(policy.token_log_probs([(prompt, completion)])[0].double(), expected, atol=1e-5)
    assert any(completion.text for (completion,) in answers)


# --- a batch gives what each prompt gives alone ---------------------------------------------------------------


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_gives_the_greedy_output_and_log_probs_of_each_prompt_alone(architecture, padding_side, tmp_path):
    folder = saved(tmp_path, ARCHITECTURES[architecture](), tiny_tokenizer(padding_side=padding_side))
    policy = tiny_policy(load_model(folder, None, None), load_tokenizer(folder))
    assert policy.tokenizer.padding_side == padding_side
    double = in_float64(policy.model)
    prompts = [Prompt(text, policy.encode(text)) for text in PROMPTS]
    together = policy.generate(prompts, 2, GREEDY, range(len(prompts)))
    for prompt, completions in zip(prompts, together, strict=True):
        assert policy.generate([prompt], 2, GREEDY, [0]) == [completions]
        assert [c.token_ids for c in completions] == [naive_greedy(double, prompt, 8)] * 2
        expected = naive_log_probs(double, prompt, completions[0])
        assert torch.allclose(policy.token_log_probs(rows_under(prompt, completions))[1].double(), expected, atol=1e-5)
    assert len({completions[0].token_ids for completions in together}) >= 3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_distribution_a_token_is_sampled_from_is_the_one_it_is_scored_under(architecture):
    """Each of 10000 draws in a padded batch: frequencies within 4 standard errors of exp(scored)."""
    policy = tiny_policy(ARCHITECTURES[architecture]())
    prompts = [prompt_of("a"), prompt_of("ij abcdef.")]
    num = 10000
    for prompt, drawn in zip(prompts, policy.generate(prompts, num, ONE_TOKEN, [0, 1]), strict=True):
        every = [completion_of((token,)) for token in range(len(TOKENS))]
        expected = policy.token_log_probs(rows_under(prompt, every))[:, 0].exp().detach()
        assert expected.sum().item() == pytest.approx(1.0, abs=1e-5)
        counts = torch.bincount(torch.tensor([c.token_ids[0] for c in drawn]), minlength=len(TOKENS))
        standard_error = (expected * (1 - expected) / num).sqrt()
        assert ((counts / num - expected).abs() <= 4 * standard_error + 1e-6).all()


def test_a_completion_cut_at_the_end_of_the_context_is_sampled_and_scored_with_absolute_positions():
    """56 + 8 = 64 positions, the last of GPT-2's table included, beside a prompt of one token."""
    policy = tiny_policy(tiny_gpt2())
    prompts = [prompt_of("abcdefgh" * 7), prompt_of("a")]
    assert len(prompts[0].token_ids) + GREEDY.max_new_tokens == policy.context_length == CONTEXT
    double = in_float64(policy.model)
    for prompt, (completion,) in zip(prompts, policy.generate(prompts, 1, GREEDY, range(len(prompts))), strict=True):
        assert completion.token_ids == naive_greedy(double, prompt, 8)


# --- the numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_and_their_gradient_equal_one_plain_float64_pass(architecture):
    policy = tiny_policy(ARCHITECTURES[architecture]())
    double = in_float64(policy.model)
    prompt = prompt_of("jab.")
    completions = [completion_of((A, EOS)), completion_of((J, A, DOT, A, 9, EOS)), completion_of((5, 6, 7))]
    scored = policy.token_log_probs(rows_under(prompt, completions))
    naive = [naive_log_probs(double, prompt, completion) for completion in completions]
    for row, expected in zip(scored, naive, strict=True):
        assert torch.allclose(row[: len(expected)].double(), expected, atol=1e-5)
    gradient = gradient_of(policy, scored.sum())
    sum(expected.sum() for expected in naive).backward()
    for name, parameter in double.named_parameters():
        scale = parameter.grad.abs().max().clamp(min=1)
        assert ((gradient[name].double() - parameter.grad).abs().max() / scale).item() < 1e-5, name
    assert max(value.abs().max() for value in gradient.values()) > 0.1


class OlderForward(LlamaForCausalLM):
    """A model like many on the hub: its forward has no `logits_to_keep`, and calls its cache by the older name."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_a_model_with_an_older_forward_samples_and_scores_the_same():
    usual, older = tiny_policy(), tiny_policy(tiny_llama(cls=OlderForward))
    prompts = [prompt_of("abc"), prompt_of("j")]
    completions = usual.generate(prompts, 4, PLAIN, [0, 1])
    assert older.generate(prompts, 4, PLAIN, [0, 1]) == completions
    scored = usual.token_log_probs(rows_under(prompts[0], completions[0]))
    assert torch.allclose(older.token_log_probs(rows_under(prompts[0], completions[0])), scored, atol=1e-6)


def test_a_model_without_a_cache_is_sampled_and_scored_like_any_other():
    policy = tiny_policy(tiny_openai_gpt())
    double = in_float64(policy.model)
    prompts = [prompt_of(text) for text in PROMPTS]
    together = policy.generate(prompts, 2, GREEDY, range(len(prompts)))
    for prompt, completions in zip(prompts, together, strict=True):
        assert [c.token_ids for c in completions] == [naive_greedy(double, prompt, 8)] * 2
        expected = naive_log_probs(double, prompt, completions[0])
        assert torch.allclose(policy.token_log_probs(rows_under(prompt, completions))[1].double(), expected, atol=1e-5)


def test_a_long_prompt_of_a_model_without_a_cache_is_scored_like_any_other():
    """7 completions of a prompt of 56 tokens: without a cache it cannot be read once for all of them."""
    policy = tiny_policy(tiny_openai_gpt())
    prompt = prompt_of("abcdefgh" * 7)
    completions = [completion_of((token, J, EOS)) for token in range(A, A + 7)]
    scored = policy.token_log_probs(rows_under(prompt, completions))
    double = in_float64(policy.model)
    for row, completion in zip(scored, completions, strict=True):
        assert torch.allclose(row.double(), naive_log_probs(double, prompt, completion), atol=1e-5)


def test_a_model_without_a_cache_that_transformers_cannot_sample_either_is_refused_by_its_name():
    model = tiny_openai_gpt()
    policy = tiny_policy(model)
    model.can_generate = lambda: False
    with pytest.raises(RolloutError, match=r"OpenAIGPTLMHeadModel returns no key-value cache and cannot generate\(\)"):
        policy.generate([prompt_of("a")], 1, PLAIN, [0])


def test_token_log_probs_of_hand_made_logits():
    """softmax of (ln 1, ln 2, ln 5) is (1/8, 2/8, 5/8)."""
    logits = torch.tensor([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]]).log()
    expected = [math.log(5 / 8), math.log(1 / 8)]
    assert token_log_probs(logits, torch.tensor([2, 0])).tolist() == pytest.approx(expected)


def test_token_log_probs_of_half_precision_logits_are_float32():
    """bfloat16 keeps 8 bits: near -20 its values are 0.125 apart, so a result there would be a multiple of that."""
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    logits[0, 0] = -13.0
    (scored,) = token_log_probs(logits, torch.tensor([0]))
    assert scored.dtype == torch.float32
    assert scored.item() == pytest.approx(-13 - math.log(999 + math.exp(-13)), abs=1e-5)


def test_the_loss_of_a_completion_is_minus_its_weight_times_its_log_probability():
    """-(0.5 * -2) = 1 and -(-1.5 * -3) = -4.5; the gradient is minus the weights, and none flows to them."""
    log_probs = torch.tensor([-2.0, -3.0], requires_grad=True)
    weights = torch.tensor([0.5, -1.5], requires_grad=True)
    loss = policy_gradient_loss(log_probs, weights)
    loss.sum().backward()
    assert loss.tolist() == [1.0, -4.5]
    assert log_probs.grad.tolist() == [-0.5, 1.5]
    assert weights.grad is None


def test_the_loss_refuses_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match=r"\(2,\) and weights \(1,\)"):
        policy_gradient_loss(torch.zeros(2), torch.zeros(1))


def test_the_scripted_policy_replays_its_script_and_scores_by_one_softmax():
    """Logits (ln 3, ln 1) over a and end: 3/4 and 1/4. "aa" cut, then "a" ended."""
    policy = ScriptedPolicy([(0, 0), (0, 1)], alphabet="a")
    policy.logits_V.data[0] = math.log(3)
    prompt = Prompt("?", policy.encode("?"))
    (completions,) = policy.generate([prompt], 2, PLAIN, [0])
    assert completions == (Completion("aa", (0, 0), finished=False), Completion("a", (0, 1), finished=True))
    quarter, three = math.log(1 / 4), math.log(3 / 4)
    scored = policy.token_log_probs(rows_under(prompt, (*completions, Completion("", (1,), finished=True))))
    assert scored.flatten().tolist() == pytest.approx([three, three, three, quarter, quarter, 0.0])
    assert isinstance(policy, Policy)
    with pytest.raises(IndexError, match="no more completions"):
        policy.generate([prompt], 1, PLAIN, [0])


# --- sampling -------------------------------------------------------------------------------------------------


def probabilities(policy, text, temperature, top_k, top_p):
    """The distribution of the first token, by the definitions and without transformers.

    Temperature divides the logits; top-k keeps the k most likely; top-p then keeps the fewest most likely whose
    mass reaches p; what is kept is normalised.
    """
    with torch.no_grad():
        ids = torch.tensor([policy.encode(text)])
        logits = in_float64(policy.model)(input_ids=ids, use_cache=False).logits[0, -1] / temperature
    likely = logits.argsort(descending=True).tolist()[:top_k]
    mass = torch.softmax(logits[likely], dim=0).tolist()
    kept = next((n for n in range(1, len(mass) + 1) if sum(mass[:n]) >= top_p), len(mass))
    return {token: p / sum(mass[:kept]) for token, p in zip(likely[:kept], mass, strict=False)}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "num_kept"),
    [
        (1.0, None, 1.0, 16),
        (0.5, None, 1.0, 16),
        (3.0, None, 1.0, 16),
        (1.0, 3, 1.0, 3),
        (1.0, 1, 1.0, 1),
        (1.0, 50, 1.0, 16),
        (1.0, None, 0.6, None),
        (1.0, None, 0.001, 1),
        (0.6, 50, 0.6, None),
        (3.0, 5, 0.7, None),
    ],
)
def test_temperature_top_k_and_top_p_give_exactly_the_defined_distribution(temperature, top_k, top_p, num_kept):
    """10000 draws: the very tokens that should occur, each within 4 standard errors of its probability."""
    policy = tiny_policy()
    expected = probabilities(policy, "abc", temperature, top_k, top_p)
    assert len(expected) == (num_kept or len(expected))
    num = 10000
    (drawn,) = policy.generate([prompt_of("abc")], num, Sampling(1, temperature, top_p, top_k), [0])
    counts = torch.bincount(torch.tensor([c.token_ids[0] for c in drawn]), minlength=len(TOKENS)).tolist()
    assert {token for token, count in enumerate(counts) if count} <= set(expected)
    for token, p in expected.items():
        assert abs(counts[token] / num - p) <= 4 * math.sqrt(p * (1 - p) / num) + 1e-9, token
        assert counts[token] > 0 or p * num < 10


def test_the_second_token_is_sampled_under_the_first_with_the_same_settings():
    policy = tiny_policy()
    settings = Sampling(2, 1.0, 1.0, 2)
    (drawn,) = policy.generate([prompt_of("abc")], 2000, settings, [0])
    by_first = {}
    for completion in drawn:
        by_first.setdefault(completion.token_ids[0], set()).add(completion.token_ids[1:])
    assert len(by_first) == 2
    for first, rests in by_first.items():
        if first == EOS:
            assert rests == {()}
            continue
        expected = probabilities(policy, "abc" + TOKENS[first], 1.0, 2, 1.0)
        assert rests == {(token,) for token in expected}


LEAKS = {
    "do_sample": False,
    "top_k": 1,
    "top_p": 0.001,
    "temperature": 0.01,
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 1,
    "min_new_tokens": 5,
    "min_length": 30,
    "max_length": 3,
    "max_new_tokens": 2,
    "suppress_tokens": [4, 5],
    "begin_suppress_tokens": [EOS],
    "bad_words_ids": [[6]],
    "forced_eos_token_id": 9,
    "num_beams": 3,
    "typical_p": 0.1,
    "min_p": 0.9,
}


@pytest.mark.parametrize("name", ["all", *LEAKS])
def test_nothing_of_the_checkpoint_s_generation_config_but_its_end_tokens_changes_a_sample(name, tmp_path):
    leak = LEAKS if name == "all" else {name: LEAKS[name]}
    plain = saved(tmp_path / "plain", generation_config={"eos_token_id": [EOS, 11]})
    leaking = saved(tmp_path / "leaking", generation_config={"eos_token_id": [EOS, 11], **leak})
    policies = [tiny_policy(load_model(f, None, None), load_tokenizer(f)) for f in (plain, leaking)]
    assert json.loads(policies[1].model.generation_config.to_json_string())["eos_token_id"] == [EOS, 11]
    ours, theirs = (many(policy, num_completions=64) for policy in policies)
    assert ours == theirs
    assert {completion.token_ids[-1] for completion in ours if completion.finished} == {EOS, 11}


def test_infinite_weights_stop_sampling_with_one_sentence():
    policy = tiny_policy()
    policy.model.model.embed_tokens.weight.data[A] = math.inf
    with pytest.raises(RolloutError, match="probabilities are not finite"):
        policy.generate([prompt_of("a")], 1, PLAIN, [0])


# --- randomness -----------------------------------------------------------------------------------------------


def test_the_same_seeds_give_the_same_completions_and_others_give_others():
    policy = tiny_policy()
    prompts = [prompt_of("abc"), prompt_of("j")]
    first = policy.generate(prompts, 8, PLAIN, [5, 6])
    assert policy.generate(prompts, 8, PLAIN, [5, 6]) == first
    second = policy.generate(prompts, 8, PLAIN, [5, 7])
    assert second[0] == first[0]
    assert ids_of(second)[1] != ids_of(first)[1]


def test_the_answers_to_a_prompt_depend_on_its_seed_and_not_on_the_prompts_beside_it():
    policy = tiny_policy()
    prompts = [prompt_of(text) for text in PROMPTS]
    together = policy.generate(prompts, 8, WARM, [5, 6, 7, 8])
    assert policy.generate(prompts[::-1], 8, WARM, [8, 7, 6, 5]) == together[::-1]
    for prompt, seed, completions in zip(prompts, [5, 6, 7, 8], together, strict=True):
        assert policy.generate([prompt], 8, WARM, [seed]) == [completions]


def test_one_prompt_twice_is_answered_alike_under_one_seed_and_differently_under_two():
    same, again, other = ids_of(tiny_policy().generate([prompt_of("abc")] * 3, 8, WARM, [5, 5, 6]))
    assert same == again != other


def test_completions_of_one_prompt_are_drawn_independently():
    assert len({completion.token_ids for completion in many(tiny_policy(), num_completions=32)}) > 16


def test_sampling_neither_reads_nor_changes_the_global_random_stream():
    policy = tiny_policy()
    drawn = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            drawn.append(policy.generate([prompt_of("abc")], 8, PLAIN, [0]))
            policy.token_log_probs(rows_under(prompt_of("abc"), drawn[-1][0]))
            assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0] == drawn[1]


# --- the model ------------------------------------------------------------------------------------------------


def test_dropout_is_never_applied_even_to_a_model_given_in_training_mode():
    model = tiny_gpt2(dropout=0.5).train()
    policy = tiny_policy(model)
    prompt = prompt_of("abc")
    (completions,) = policy.generate([prompt], 4, PLAIN, [0])
    first = policy.token_log_probs(rows_under(prompt, completions))
    assert torch.equal(policy.token_log_probs(rows_under(prompt, completions)), first)
    assert not any(module.training for module in policy.model.modules())
    without = tiny_policy(tiny_gpt2(dropout=0.0))
    assert torch.equal(without.token_log_probs(rows_under(prompt, completions)), first)
    assert without.generate([prompt], 4, PLAIN, [0]) == [completions]


def test_sampling_leaves_gradients_and_their_flags_as_they_were():
    policy = tiny_policy()
    policy.model.lm_head.weight.requires_grad_(False)
    flags = [parameter.requires_grad for parameter in policy.parameters()]
    memory = SavedBytes(policy)
    with memory.measured():
        policy.generate([prompt_of("abc")], 4, PLAIN, [0])
    assert memory.peak == 0
    assert [parameter.requires_grad for parameter in policy.parameters()] == flags
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert torch.is_grad_enabled()
    assert policy.token_log_probs([(prompt_of("abc"), completion_of((A, EOS)))]).requires_grad


def test_a_frozen_copy_scores_the_same_has_no_gradient_and_does_not_follow_the_policy():
    policy = tiny_policy(tiny_gpt2(dropout=0.5))
    copy = policy.frozen_copy(CPU)
    prompt, completions = prompt_of("abc"), [completion_of((A, J, EOS))]
    before = policy.token_log_probs(rows_under(prompt, completions)).detach()
    assert torch.equal(copy.token_log_probs(rows_under(prompt, completions)), before)
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert all(parameter.requires_grad for parameter in policy.parameters())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.5)
    assert torch.equal(copy.token_log_probs(rows_under(prompt, completions)), before)
    assert not torch.equal(policy.token_log_probs(rows_under(prompt, completions)), before)


def test_bf16_products_keep_float32_weights_gradients_and_log_probs():
    plain, mixed = tiny_policy(), tiny_policy(mixed_precision="bf16")
    prompt, completions = prompt_of("abc"), [completion_of((A, J, EOS)), completion_of((J, EOS))]
    exact, rounded = (policy.token_log_probs(rows_under(prompt, completions)) for policy in (plain, mixed))
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert torch.allclose(rounded, exact, atol=0.2)
    learner = learner_of(mixed)
    before = weights_sha256(mixed)
    update_step(learner, [[sample_of(prompt, completions, (1.0, -1.0))]], MAGRPOConfig())
    assert {parameter.dtype for parameter in mixed.parameters()} == {torch.float32}
    assert weights_sha256(mixed) != before
    assert many(mixed, num_completions=8) == many(mixed, num_completions=8)
    assert torch.equal(
        mixed.frozen_copy(CPU).token_log_probs(rows_under(prompt, completions)),
        mixed.token_log_probs(rows_under(prompt, completions)),
    )


def test_bf16_samples_after_an_update_as_a_policy_that_began_with_the_updated_weights():
    policy = tiny_policy(mixed_precision="bf16")
    prompt, completions = prompt_of("abc"), [completion_of((A, J, EOS)), completion_of((J, EOS))]
    before = many(policy, num_completions=16)
    learner = learner_of(policy, agent_learning_rate=0.1)
    update_step(learner, [[sample_of(prompt, completions, (1.0, -1.0))]], MAGRPOConfig())
    assert many(policy, num_completions=16) == many(policy.frozen_copy(CPU), num_completions=16) != before


def test_bf16_samples_with_the_rotary_frequencies_it_scores_with():
    """bfloat16 has 8 bits: 1000 positions on, a frequency rounded by 1/512 of its 0.1 is off by 0.2 radians."""
    policy = tiny_policy(mixed_precision="bf16")
    many(policy, num_completions=1)
    sampler = policy._sampling_model().model
    exact = dict(policy.model.named_buffers())
    assert exact
    for name, buffer in sampler.named_buffers():
        assert torch.equal(buffer, exact[name]), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_policy_loads_with_the_auto_classes_and_gives_equal_logits(architecture, tmp_path):
    policy = tiny_policy(ARCHITECTURES[architecture](), tiny_tokenizer(chat_template="{{ messages }}"))
    update_step(
        learner_of(policy), [[sample_of(prompt_of("abc"), [completion_of((A, EOS))] * 2, (1.0, 0.5))]], MAGRPOConfig()
    )
    policy.save(tmp_path / "deep" / "agent_0")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "deep" / "agent_0").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "deep" / "agent_0")
    ids = torch.tensor([policy.encode("abcdefghij.")])
    assert torch.equal(model(ids).logits, policy.model(ids).logits)
    assert tokenizer("abc.")["input_ids"] == policy.tokenizer("abc.")["input_ids"]
    assert tokenizer.chat_template == "{{ messages }}"


def test_sampling_fields_that_transformers_refuses_to_save_do_not_lose_a_trained_model(tmp_path):
    model = tiny_llama()
    model.generation_config.top_k, model.generation_config.top_p = 1, 0.001
    with pytest.raises(ValueError, match="top_p"):
        model.save_pretrained(tmp_path / "transformers")
    policy = tiny_policy(model)
    policy.save(tmp_path / "ours")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    for settings in (loaded.generation_config, model.generation_config):
        assert (settings.top_k, settings.top_p, settings.eos_token_id) == (1, 0.001, EOS)


def test_the_context_length_is_found_under_whatever_name_the_model_keeps_it():
    assert tiny_gpt2().config.to_dict().get("max_position_embeddings") is None
    assert {name: context_length(make().config) for name, make in ARCHITECTURES.items()} == {
        "llama": CONTEXT,
        "gpt2": CONTEXT,
        "bloom": None,
    }


def test_the_size_of_a_model_is_counted_without_its_weights():
    """Cached numbers per token: keys and values of 2 layers; one head of 8 for Llama, two for GPT-2 and Bloom."""
    for name, cached in {"llama": 2 * 2 * 1 * 8, "gpt2": 2 * 2 * 2 * 8, "bloom": 2 * 2 * 2 * 8}.items():
        model = ARCHITECTURES[name]()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        assert model_size(model.config) == (num_parameters, len(TOKENS), cached), name


# --- memory of an update --------------------------------------------------------------------------------------


def agent_of(policy, **settings):
    return make_agent(0, policy, PromptFormatter(None, 0, False), MAGRPOConfig(**settings), None)


def learner_of(policy, **settings):
    return make_learners([agent_of(policy, **settings)], MAGRPOConfig(**settings), None)[0]


def sample_of(prompt, completions, advantages):
    return Sample(0, 0, 1, prompt, tuple(completions), tuple(advantages), tuple(advantages))


ROW = 3 + 16
"""Tokens of a row in the tests of memory: "abc" and a completion of 16."""


def saved_bytes(policy, num_completions, rows_at_once):
    completions = [completion_of((A,) * 15 + (EOS,))] * num_completions
    sample = sample_of(prompt_of("abc"), completions, [(-1.0) ** k for k in range(num_completions)])
    learner = learner_of(policy, micro_batch_tokens=rows_at_once * ROW)
    memory = SavedBytes(policy)
    with memory.measured():
        update_step(learner, [[sample]], MAGRPOConfig())
    assert memory.now == 0
    return memory.peak


@pytest.mark.parametrize("mixed_precision", ["none", "bf16"])
def test_what_an_update_keeps_for_backward_does_not_grow_with_k(mixed_precision):
    """Vocabulary 50000, micro-batches of 2 completions of 16 tokens: 2 * 16 * 50000 float32 logits are 6.4 MB.

    They are kept once (twice as bfloat16 and float32 would be 1.5 times); a second tensor of vocabulary size,
    as log_softmax makes, or the graph of a second micro-batch would make it two.
    """
    policy = tiny_policy(tiny_llama(vocab_size=50000, hidden_size=8), mixed_precision=mixed_precision)
    peaks = {K: saved_bytes(policy, K, rows_at_once=2) for K in (2, 4, 8)}
    logits = 2 * 16 * 50000 * 4
    assert logits < CHUNK_LOGITS * 4
    assert peaks[4] == peaks[8] == peaks[2]
    assert logits <= peaks[2] < 1.6 * logits
    assert saved_bytes(policy, 8, rows_at_once=8) > 3 * peaks[2]


@pytest.mark.parametrize("mixed_precision", ["none", "bf16"])
def test_where_the_vocabulary_is_looked_at_in_chunks_no_logits_are_kept_for_backward(mixed_precision, monkeypatch):
    """Chunks of 4 of the 32 tokens: not even those of one chunk, 4 * 50000 float32 logits, are kept."""
    peaks = {}
    for vocab_size in (5000, 50000):
        monkeypatch.setattr("marl_runner.policies.scoring.CHUNK_LOGITS", 4 * vocab_size)
        policy = tiny_policy(tiny_llama(vocab_size=vocab_size, hidden_size=8), mixed_precision=mixed_precision)
        peaks[vocab_size] = [saved_bytes(policy, K, rows_at_once=2) for K in (2, 8)]
    assert peaks[5000] == peaks[50000]
    assert peaks[50000][0] == peaks[50000][1] < 4 * 50000 * 4


def test_memory_is_flat_over_fifty_update_steps():
    policy = tiny_policy()
    learner = learner_of(policy, micro_batch_tokens=2 * (3 + WARM.max_new_tokens))
    memory = SavedBytes(policy)
    sizes = {}
    for step in range(1, 51):
        (completions,) = policy.generate([prompt_of("abc")], 4, WARM, [0])
        with memory.measured():
            update_step(learner, [[sample_of(prompt_of("abc"), completions, (1.0, -1.0, 0.5, -0.5))]], MAGRPOConfig())
        assert memory.now == 0
        if step in (2, 25, 50):
            sizes[step] = live_tensors()
    assert sizes[2] == sizes[25] == sizes[50]
    assert all(parameter.grad is None for parameter in policy.parameters())


def live_tensors():
    """How many tensors Python can reach, and the bytes under them."""
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return len(alive), sum(tensor.untyped_storage().nbytes() for tensor in alive)


@pytest.mark.parametrize(("micro_batch_tokens", "num_passes"), [(1, 2), (20, 2), (40, 1)])
def test_the_gradient_of_micro_batches_is_that_of_one_pass(micro_batch_tokens, num_passes):
    """Rows of 4 + (2, 6, 3, 3) tokens take part: two of at most 10 are always allowed, 40 hold all four."""
    policy = tiny_policy()
    prompt = prompt_of("jab.")
    completions = [completion_of(ids) for ids in ((A, EOS), (J, A, DOT, A, 9, EOS), (5, 6, 7), (EOS,), (BOS, A, EOS))]
    policy.token_log_probs(rows_under(prompt, completions))  # tries once how the model is best called
    passes = []
    policy.model.get_decoder().register_forward_hook(lambda *ignored: passes.append(1))
    sample = dataclasses.replace(sample_of(prompt, completions, (0.5, -1.0, 2.0, None, -0.25)), weight=0.5)
    gradients = []
    for tokens, num in ((8192, 1), (micro_batch_tokens, num_passes)):
        policy.model.zero_grad()
        passes.clear()
        loss = backward_batch(agent_of(policy, micro_batch_tokens=tokens), [sample], MAGRPOConfig()).loss
        assert len(passes) == num
        gradients.append(({n: p.grad.clone() for n, p in policy.model.named_parameters()}, loss))
    (whole, whole_loss), (parts, parts_loss) = gradients
    assert parts_loss == pytest.approx(whole_loss, abs=1e-6)
    for name, gradient in whole.items():
        assert torch.allclose(parts[name], gradient, atol=1e-6, rtol=1e-5), name
    naive = sum(
        advantage * naive_log_probs(in_float64(policy.model), prompt, completion).sum().item()
        for completion, advantage in zip(completions, sample.advantages_K, strict=True)
        if advantage is not None
    )
    assert whole_loss == pytest.approx(-0.5 * naive / 4, abs=1e-5)  # 4 of the 5 completions take part
