"""Behaviours of prompts and team sampling that these tests protect.

1. One rule for overlong prompts, error, drop or truncate, whose result generation and loss both use.
2. `prompt + max_new_tokens` never exceeds the context; what does is refused with the numbers.
3. What a node draws depends only on seed, agent, stream and place: not on the nodes beside it, nor on what came before.
4. No batch exceeds `max_rollout_rows`, and the answers keep the order.
5. The reference penalty is the k3 estimate: worked out by hand, never negative, without gradient.
"""

import math

import pytest
import torch

from marl_runner.errors import ConfigError, DataError, RolloutError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.sampling import fit_prompt, prompt_limit, sample_team, with_reference_kl
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Team, make_agent, make_learners
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Completion, Prompt
from models import (
    CONTEXT,
    CPU,
    GREEDY,
    PLAIN,
    SavedBytes,
    prompt_of,
    rows_under,
    tiny_gpt2,
    tiny_llama,
    tiny_policy,
    tiny_tokenizer,
)
from scripted_team import Recorder, trainer_of


def agent_of(policy, index=0, reference=False, **settings):
    formatter = PromptFormatter(None, index, False)
    return make_agent(
        index, policy, formatter, MAGRPOConfig(**settings), policy.frozen_copy(CPU) if reference else None
    )


def team_on(agents, concurrency=1):
    return Team(agents, make_learners(agents, MAGRPOConfig(), None), concurrency)


def rows_of(*texts):
    return [{"prompt": text} for text in texts]


def no_reward(*completions_N):
    return [0.0]


def tiny_trainer(rows, model=None, tokenizer=None, **settings):
    """Two agents on models of their own; nothing is trained yet."""
    values = {"num_turns": 1, "num_train_epochs": 1, "num_generations": 2, "agent_devices": "cpu"}
    config = MAGRPOConfig(**(values | settings))
    models = [(model or tiny_llama)(seed=seed) for seed in (0, 1)]
    return MAGRPOTrainer(
        agents=models,
        tokenizer=tokenizer or tiny_tokenizer(),
        reward_func=no_reward,
        train_dataset=rows,
        args=config,
        tracker=Recorder(),
    )


# --- prompts that fit -----------------------------------------------------------------------------------------


def test_a_prompt_may_be_as_long_as_the_context_leaves_beside_the_completion():
    """64 - 16 = 48; max_prompt_tokens counts where it is less, or where the model has no limit."""
    for context, most, expected in ((64, None, 48), (64, 20, 20), (64, 60, 48), (None, 20, 20), (None, None, None)):
        assert prompt_limit(context, MAGRPOConfig(max_new_tokens=16, max_prompt_tokens=most)) == expected


@pytest.mark.parametrize("overlong", ["error", "drop", "truncate"])
def test_a_prompt_that_just_fits_is_sent_whole_under_every_rule(overlong):
    config = MAGRPOConfig(max_new_tokens=60, overlong_prompt=overlong)
    assert fit_prompt(agent_of(tiny_policy()), "abcd", config, "here") == Prompt("abcd", (4, 5, 6, 7))


def test_truncation_keeps_the_tail_of_ids_and_text():
    """64 - 60 = 4 tokens are left for the prompt."""
    config = MAGRPOConfig(max_new_tokens=60, overlong_prompt="truncate")
    assert fit_prompt(agent_of(tiny_policy()), "abcdefg", config, "here") == Prompt("defg", (7, 8, 9, 10))


def test_the_text_of_a_truncated_prompt_has_the_special_tokens_that_the_model_sees():
    """The last 5 of: a b </s> c <s> d."""
    config = MAGRPOConfig(max_new_tokens=8, max_prompt_tokens=5, overlong_prompt="truncate")
    prompt = fit_prompt(agent_of(tiny_policy()), "ab</s>c<s>d", config, "here")
    assert prompt == Prompt("b</s>c<s>d", (5, 2, 6, 1, 7))


def test_a_prompt_one_token_too_long_is_dropped_by_drop():
    config = MAGRPOConfig(max_new_tokens=60, overlong_prompt="drop")
    assert fit_prompt(agent_of(tiny_policy()), "abcde", config, "here") is None


def test_a_prompt_one_token_too_long_is_refused_with_every_number_and_the_ways_out():
    with pytest.raises(RolloutError) as caught:
        fit_prompt(agent_of(tiny_policy(), index=1), "abcde", MAGRPOConfig(max_new_tokens=60), "task 7, turn 2")
    assert str(caught.value) == (
        "prompt of 5 tokens is longer than 4 (max_new_tokens 60, context 64, max_prompt_tokens None) at task 7, "
        "turn 2, agent 1; shorten it, lower trainer.max_new_tokens, or set trainer.overlong_prompt=truncate or drop"
    )


def test_a_later_prompt_that_cannot_be_encoded_is_refused_with_its_place():
    with pytest.raises(RolloutError, match=r"task 7, turn 2, agent 1: the prompt holds the lone surrogate '\\ud83d'"):
        fit_prompt(agent_of(tiny_policy(), index=1), "ab\ud83d", MAGRPOConfig(max_new_tokens=8), "task 7, turn 2")


def test_a_later_prompt_without_tokens_is_refused_with_its_place():
    with pytest.raises(RolloutError, match="the prompt of agent 0 has no tokens at task 7, turn 2: ''"):
        fit_prompt(agent_of(tiny_policy()), "", MAGRPOConfig(max_new_tokens=8), "task 7, turn 2")


def test_a_scripted_policy_truncates_by_characters():
    policy = ScriptedPolicy([], context_length=6)
    config = MAGRPOConfig(max_new_tokens=4, overlong_prompt="truncate")
    assert fit_prompt(agent_of(policy), "why?", config, "here") == Prompt("y?", policy.encode("y?"))


def test_generation_and_loss_use_the_same_truncated_prompt():
    """GPT-2's table has 64 positions: the whole prompt of 100 tokens would fail in either."""
    policy = tiny_policy(tiny_gpt2())
    config = MAGRPOConfig(max_new_tokens=8, overlong_prompt="truncate")
    prompt = fit_prompt(agent_of(policy), "abcdefghij" * 10, config, "here")
    assert len(prompt.token_ids) == CONTEXT - 8 == 56
    (completions,) = policy.generate([prompt], 2, GREEDY, [0])
    assert policy.token_log_probs(rows_under(prompt, completions)).isfinite().all()


# --- prompts known before training ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [tiny_llama, tiny_gpt2])
def test_an_overlong_row_stops_before_training_with_row_agent_and_numbers(model):
    with pytest.raises(DataError) as caught:
        tiny_trainer(rows_of("abc", "abcde"), model=model, max_new_tokens=60)
    assert str(caught.value).startswith(
        "prompt of 5 tokens is longer than 4 (max_new_tokens 60, context 64, max_prompt_tokens None) at row 2, agent 0"
    )


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_an_overlong_row_that_may_be_dropped_or_cut_does_not_stop_the_run(overlong):
    trainer = tiny_trainer(rows_of("abc", "abcde"), max_new_tokens=60, overlong_prompt=overlong)
    counters = trainer.train()
    dropped = int(overlong == "drop")
    assert (counters.tasks, counters.dropped_tasks) == (2, dropped)
    assert trainer.engine.num_dropped_prompts == dropped
    sent = {root.prompts_N[0].text for _, root, _ in trainer.tracker.trees}
    assert sent == ({"abc"} if overlong == "drop" else {"abc", "bcde"})


@pytest.mark.parametrize("max_new_tokens", [CONTEXT, CONTEXT + 1])
def test_a_completion_that_fills_the_context_is_refused_with_both_numbers(max_new_tokens):
    with pytest.raises(ConfigError) as caught:
        tiny_trainer(rows_of("a"), max_new_tokens=max_new_tokens, overlong_prompt="truncate")
    assert str(caught.value) == (
        f"max_new_tokens={max_new_tokens} leaves no room for a prompt in the context of 64 tokens of "
        "LlamaForCausalLM; lower trainer.max_new_tokens"
    )


def test_one_token_of_room_is_enough_for_a_prompt():
    assert tiny_trainer(rows_of("a"), max_new_tokens=CONTEXT - 1).num_agents == 2


def test_a_row_whose_prompt_is_empty_is_named_with_its_agent():
    with pytest.raises(DataError, match="the prompt of row 2 is empty for agent 0"):
        tiny_trainer(rows_of("a", ""), max_new_tokens=8)


def test_a_lone_surrogate_is_reported_with_its_row_and_place():
    with pytest.raises(DataError) as caught:
        tiny_trainer(rows_of("a", "abc\udc80"), max_new_tokens=8)
    assert str(caught.value) == (
        "row 2, agent 0: the prompt holds the lone surrogate '\\udc80' at character 3, which no tokenizer can encode; "
        "remove it from the data"
    )


def test_evaluation_rows_are_measured_before_training_too():
    with pytest.raises(DataError, match="prompt of 5 tokens is longer than 4"):
        MAGRPOTrainer(
            agents=[tiny_llama()],
            tokenizer=tiny_tokenizer(),
            reward_func=no_reward,
            train_dataset=rows_of("a"),
            eval_dataset=rows_of("abcde"),
            args=MAGRPOConfig(num_agents=1, num_turns=1, max_new_tokens=60),
            tracker=Recorder(),
        )


def test_the_rows_of_a_stream_are_checked_as_they_come():
    """An iterator has no length: it is not consumed by the check, and its row is named while training."""

    class Stream:
        def __iter__(self):
            yield from rows_of("abc", "abcde")

    trainer = tiny_trainer(Stream(), max_new_tokens=60)
    with pytest.raises(RolloutError, match=r"prompt of 5 tokens .* at task 2, turn 1, agent 0"):
        trainer.train()


# --- random streams -------------------------------------------------------------------------------------------


def team_of(num_agents=2, seeds=None, reference=False, **settings):
    """Agents on equal weights, unless told otherwise: only their streams differ."""
    seeds = seeds or [0] * num_agents
    agents = [agent_of(tiny_policy(tiny_llama(seed=s)), n, reference, **settings) for n, s in enumerate(seeds)]
    return team_on(agents)


def ids_of(completions_N_P_K):
    return [[[c.token_ids for c in K] for K in P_K] for P_K in completions_N_P_K]


def sampled(team, stream="sample", num_completions=4, places=((0,), (1,)), texts=("abc", "j"), sampling=PLAIN):
    prompts_P_N = [[prompt_of(text)] * len(team.agents) for text in texts]
    return sample_team(team, prompts_P_N, places, num_completions, sampling, stream)


def test_agents_with_equal_weights_and_prompts_sample_from_streams_of_their_own():
    first, second = ids_of(sampled(team_of()))
    assert first != second


def test_the_same_seed_gives_the_same_samples_and_another_seed_others():
    assert sampled(team_of(seed=3)) == sampled(team_of(seed=3))
    assert ids_of(sampled(team_of(seed=3))) != ids_of(sampled(team_of(seed=4)))


def test_another_agent_leaves_the_samples_of_the_first_as_they_were():
    assert sampled(team_of(num_agents=3))[:2] == sampled(team_of(num_agents=2))


def test_every_node_samples_from_a_stream_of_its_own():
    """One prompt at four nodes: tasks 0 and 12, the second child of task 1, and the third of its first child."""
    ((*nodes_P,),) = ids_of(sampled(team_of(1), places=((0,), (12,), (1, 1), (1, 0, 2)), texts=["abc"] * 4))
    assert len({str(completions_K) for completions_K in nodes_P}) == 4


def test_a_node_samples_the_same_beside_others_alone_and_in_another_order():
    team = team_of()
    together = sampled(team)
    turned = sampled(team, places=((1,), (0,)), texts=("j", "abc"))
    assert [answers[::-1] for answers in turned] == together
    alone = [sampled(team, places=(place,), texts=(text,)) for place, text in (((0,), "abc"), ((1,), "j"))]
    assert [[answers[n][0] for answers in alone] for n in range(2)] == together


def test_the_stream_of_evaluation_is_another_and_leaves_that_of_training_as_it_was():
    plain, evaluated = team_of(), team_of()
    evaluation = sampled(evaluated, stream="eval", num_completions=1)
    training = sampled(evaluated, num_completions=1)
    assert training == sampled(plain, num_completions=1)
    assert ids_of(evaluation) != ids_of(training)


def test_training_leaves_the_stream_of_evaluation_as_it_was():
    plain, trained = team_of(), team_of()
    sampled(trained)
    assert sampled(trained, stream="eval") == sampled(plain, stream="eval")


def test_agents_that_sample_concurrently_give_what_they_give_one_after_the_other():
    apart = team_of(num_agents=3)
    together = team_on(team_of(num_agents=3).agents, concurrency=3)
    assert sampled(together) == sampled(apart)


# --- batches --------------------------------------------------------------------------------------------------


TEXTS = ("a", "ij abcdef.", "abcd", "jihgfedcba jihg.", "j")


def rolled_out(texts=TEXTS, in_calls=1, **settings):
    """The roots' completions, [task][agent][k], of tasks rolled out in so many calls; and the shapes of the passes."""
    trainer = tiny_trainer(rows_of(*texts), num_generations=4, max_new_tokens=8, **settings)
    shapes = []
    for agent in trainer.team.agents:
        agent.policy.model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
    tasks = list(trainer.train_tasks)
    size = -(-len(tasks) // in_calls)
    roots = []
    for first in range(0, len(tasks), size):
        roots += trainer.engine.rollout(tasks[first : first + size], first, env_step=0)
    return [root.completions_N_K for root in roots], shapes


def test_no_batch_exceeds_max_rollout_rows_and_the_answers_keep_the_order_of_the_prompts():
    """5 prompts × 4 completions: at most 11 rows are 2 prompts (8 rows) at a time; the cache is repeated K times."""
    chunked, shapes = rolled_out(max_rollout_rows=11, top_k=1)
    assert max(count for count, _ in shapes) == 8
    # each of two agents reads prompts of (1, 10), (4, 16) and (1) tokens, padded to the longer of a batch
    reading = [shape for shape in shapes if shape[1] > 1 or shape[0] == 1]
    assert reading == [(2, 10)] * 2 + [(2, 16)] * 2 + [(1, 1)] * 2
    whole, _ = rolled_out(top_k=1)
    assert chunked == whole
    policies = [tiny_policy(tiny_llama(seed=seed)) for seed in (0, 1)]
    for text, completions_N_K in zip(TEXTS, chunked, strict=True):
        for policy, completions_K in zip(policies, completions_N_K, strict=True):
            (alone,) = policy.generate([prompt_of(text)], 1, GREEDY, [0])
            assert completions_K == alone * 4


@pytest.mark.parametrize(
    "settings", [{"max_rollout_rows": 4}, {"max_rollout_rows": 8}, {"in_calls": 5}, {"in_calls": 2}]
)
def test_how_tasks_are_batched_changes_nothing_that_is_drawn(settings):
    together, _ = rolled_out(temperature=2.0)
    assert rolled_out(temperature=2.0, **settings)[0] == together
    assert len({c.token_ids for completions_N_K in together for K in completions_N_K for c in K}) > 20


# --- the reference penalty ------------------------------------------------------------------------------------


def scripted_pair(logits, completions, **settings):
    """A scripted agent over "a" and the end token: the reference has (0, 0), the policy the given logits."""
    policy = ScriptedPolicy([completion.token_ids for completion in completions], alphabet="a")
    agent = agent_of(policy, reference=True, **settings)
    policy.logits_V.data[:] = torch.tensor(logits, dtype=torch.float64)
    return agent


CUT, ENDED, LONE = Completion("aa", (0, 0), False), Completion("a", (0, 1), True), Completion("", (1,), True)


@pytest.mark.parametrize("micro_batch_tokens", [1, 4, None])
def test_the_reference_penalty_is_the_k3_estimate_summed_over_the_completion(micro_batch_tokens):
    """Policy (3/4, 1/4), reference (1/2, 1/2); Δ = log π_ref - log π.

    token "a":  Δ = log(2/3), exp Δ - Δ - 1 = 2/3 - log(2/3) - 1 = 0.072132
    end token:  Δ = log 2,    exp Δ - Δ - 1 = 2 - log 2 - 1      = 0.306853
    """
    a, end = 2 / 3 - math.log(2 / 3) - 1, 2 - math.log(2) - 1
    assert (round(a, 6), round(end, 6)) == (0.072132, 0.306853)
    agent = scripted_pair((math.log(3), 0.0), (CUT, ENDED, LONE), micro_batch_tokens=micro_batch_tokens)
    measured = with_reference_kl(agent, Prompt("?", (1,)), (CUT, ENDED, LONE))
    assert [c.reference_kl for c in measured] == pytest.approx([2 * a, a + end, end])
    assert [(c.text, c.token_ids, c.finished) for c in measured] == [
        (c.text, c.token_ids, c.finished) for c in (CUT, ENDED, LONE)
    ]


def test_the_k3_estimate_equals_the_divergence_on_average():
    """3/4 * 0.072132 + 1/4 * 0.306853 = 0.130812 = 3/4 log(3/2) + 1/4 log(1/2), the divergence of the policy."""
    agent = scripted_pair((math.log(3), 0.0), ())
    a, end = (c.reference_kl for c in with_reference_kl(agent, Prompt("?", (1,)), (Completion("a", (0,), False), LONE)))
    assert 0.75 * a + 0.25 * end == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_the_penalty_of_a_policy_that_equals_its_reference_is_exactly_zero():
    for team in (team_of(reference=True), team_on([scripted_pair((0.0, 0.0), (ENDED, LONE))])):
        answers = sampled(team, places=((0,),), texts=("abc",), num_completions=2)
        assert {c.reference_kl for P_K in answers for K in P_K for c in K} == {0.0}


def test_the_penalty_is_not_negative_even_where_float32_cannot_tell_policy_and_reference_apart():
    """With Δ about 1e-5, exp Δ - Δ - 1 is about 1e-10, far below float32's spacing of 1.2e-7 around 1."""
    team = team_of(1, reference=True)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = team.agents[0].policy.model.lm_head.weight
        weight += 1e-6 * torch.randn(weight.shape, generator=noise)
    ((completions,),) = sampled(team, places=((0,),), texts=("abc",), num_completions=64)
    penalties = [completion.reference_kl for completion in completions]
    assert min(penalties) >= 0
    assert 0 < max(penalties) < 1e-7


def test_the_penalty_survives_a_token_that_the_reference_finds_e_to_the_100_times_likelier():
    """Policy (1, e^-100), reference (1/2, 1/2): Δ = 100 - log 2 at the end token; float32 ends at e^88."""
    agent = scripted_pair((100.0, 0.0), ())
    (measured,) = with_reference_kl(agent, Prompt("?", (1,)), (LONE,))
    delta = 100 - math.log(2)
    assert measured.reference_kl == pytest.approx(math.exp(delta) - delta - 1)


def test_evaluation_and_a_team_without_references_measure_no_penalty():
    assert {c.reference_kl for P in sampled(team_of(reference=True), stream="eval") for K in P for c in K} == {None}
    assert {c.reference_kl for P in sampled(team_of()) for K in P for c in K} == {None}


def test_measuring_the_penalty_leaves_samples_and_gradients_as_they_are_without_it():
    plain, referenced = team_of(), team_of(reference=True)
    memory = SavedBytes(referenced.agents[0].policy)
    with memory.measured():
        answers = sampled(referenced)
    assert memory.peak == 0
    assert ids_of(answers) == ids_of(sampled(plain))
    for agent in referenced.agents:
        assert all(parameter.grad is None for parameter in agent.policy.parameters())
        assert not any(parameter.requires_grad for parameter in agent.reference.parameters())


def test_the_penalty_is_measured_against_the_weights_at_the_start_not_those_of_today():
    agent = scripted_pair((0.0, 0.0), ())
    prompt = Prompt("?", (1,))
    penalties = []
    for logit in (0.0, 1.0, 2.0):
        agent.policy.logits_V.data[0] = logit
        penalties.append(with_reference_kl(agent, prompt, (LONE,))[0].reference_kl)
    assert penalties[0] == 0.0 < penalties[1] < penalties[2]


def test_a_trainer_puts_the_penalty_on_every_training_completion():
    """11 tokens; the policy's logit of "a" is 1, the reference's 0; the completions are "a" and the end token.

    π = (e, 1, …, 1) / (e + 10), π_ref = 1/11: Δ_a = log((e + 10) / (11 e)), Δ_end = log((e + 10) / 11).
    """
    trainer, recorder = trainer_of(
        [iter(lambda: (0, 10), None), iter(lambda: (0, 10), None)],
        no_reward,
        MAGRPOConfig(num_turns=1, num_train_epochs=1, num_generations=2, reference_kl_enabled=True),
        rows=rows_of("p"),
    )
    for agent in trainer.team.agents:
        agent.policy.logits_V.data[0] = 1.0
    trainer.train()
    deltas = [math.log((math.e + 10) / (11 * math.e)), math.log((math.e + 10) / 11)]
    expected = sum(math.exp(delta) - delta - 1 for delta in deltas)
    ((_, root, _),) = recorder.trees
    penalties = [completion.reference_kl for completions_K in root.completions_N_K for completion in completions_K]
    assert penalties == pytest.approx([expected] * 4)
