"""Buffers, minibatches and the optimiser step, with gradients worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from marl_runner.buffer import RolloutBuffer
from marl_runner.errors import NumericalError
from marl_runner.loss import policy_gradient_loss, token_log_probs
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import make_scheduler
from marl_runner.trainers.magrpo import MAREINFORCETrainer
from marl_runner.types import Completion, Prompt, Sample
from marl_runner.update import minibatches, update_learner
from scripted_team import END, endless, script, trainer_of


def config(**changes) -> MAGRPOConfig:
    defaults = {"num_agents": 1, "num_generations": 2, "num_turns": 1, "num_train_epochs": 1, "eval_interval": 0}
    return MAGRPOConfig(**{**defaults, **changes})


def by_letter(values: dict[str, float]):
    return lambda texts: [values.get(texts[0], 0.0)]


def sample(env_step: int, advantages=(1.0, -1.0), turn: int = 0, tokens=((0, END), (1, END))) -> Sample:
    completions = tuple(Completion("", ids, True) for ids in tokens)
    return Sample(0, turn, env_step, Prompt("p", (1,)), completions, advantages, advantages)


def agent_of(cfg: MAGRPOConfig):
    return learner_of(cfg).agents[0]


def learner_of(cfg: MAGRPOConfig):
    return trainer_of([endless("a")], by_letter({}), cfg)[0].team.learners[0]


def step(learner, samples, cfg: MAGRPOConfig):
    """What one agent did in the first optimiser step."""
    return update_learner(learner, [samples], cfg)[0][0]


def test_a_buffer_is_ready_at_its_size_and_drains_in_order():
    buffer = RolloutBuffer(2)
    buffer.add(sample(1))
    assert not buffer.ready
    buffer.add(sample(2))
    assert buffer.ready
    assert [drained.env_step for drained in buffer.drain()] == [1, 2]
    assert len(buffer) == 0


def test_an_agent_updates_when_its_buffer_is_full_and_flushes_at_the_end_of_each_epoch():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(rollout_buffer_size=2, num_train_epochs=2, logging_steps=1000),
        rows=[{"prompt": "p"}] * 3,
    )
    trainer.train()
    # per epoch: tasks 1+2 fill the buffer (K=2 → env_step 4), task 3 is flushed at the end (env_step 6)
    assert [event.env_step for event in recorder.events if event.kind == "update"] == [4, 6, 10, 12]


def test_samples_enter_the_buffers_in_env_step_order_across_a_tree():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(rollout_buffer_size=2, num_turns=2, logging_steps=1000, early_termination_threshold=None),
        external_transition=lambda prompt: ["next"],
    )
    trainer.train()
    # nodes at 2, 4, 6: the first two fill the buffer at 4, the last is flushed
    assert [event.env_step for event in recorder.events if event.kind == "update"] == [4, 6]


def test_every_agent_has_its_own_buffer_and_updates_at_the_same_node():
    trainer, recorder = trainer_of(
        [endless("a", "b"), endless("c", "d")],
        lambda first, second: [float(first == ["a"])],
        config(num_agents=2, rollout_buffer_size=1, logging_steps=1000),
    )
    trainer.train()
    updates = [event for event in recorder.events if event.kind == "update"]
    assert [next(iter(event.metrics)).split("/")[0] for event in updates] == ["agent_0", "agent_1"]


@pytest.mark.parametrize(
    ("train_batch_size", "sizes"), [(None, [5]), (5, [5]), (2, [2, 2, 1]), (1, [1, 1, 1, 1, 1]), (9, [5])]
)
def test_minibatches_cut_the_drained_buffer(train_batch_size, sizes):
    cfg = config(rollout_buffer_size=5, train_batch_size=train_batch_size)
    batches = list(minibatches(agent_of(cfg), [sample(step) for step in range(5)], cfg))
    assert [len(batch) for batch in batches] == sizes
    assert sorted(s.env_step for batch in batches for s in batch) == [0, 1, 2, 3, 4]


def test_minibatches_are_shuffled_by_the_agent_s_own_stream():
    cfg = config(rollout_buffer_size=20)
    orders = []
    for seed in (0, 0, 1):
        agent = agent_of(config(rollout_buffer_size=20, seed=seed))
        (batch,) = minibatches(agent, [sample(step) for step in range(20)], cfg)
        orders.append([s.env_step for s in batch])
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != list(range(20))


def test_compat_takes_one_step_per_turn():
    samples = [sample(1, turn=0), sample(2, turn=1), sample(3, turn=1)]
    ours, theirs = config(rollout_buffer_size=3), config(rollout_buffer_size=3, compat="comlrl-1.4")
    assert len(list(minibatches(agent_of(ours), samples, ours))) == 1
    batches = list(minibatches(agent_of(theirs), samples, theirs))
    assert [{s.turn for s in batch} for batch in batches] == [{0}, {1}]


def test_compat_gives_a_group_of_one_token_completions_no_gradient_at_all_not_even_weight_decay():
    """The last token is not scored, so nothing is left; AdamW steps over weights without a gradient, decay included."""
    cfg = config(compat="comlrl-1.4", weight_decay=0.5)
    learner = learner_of(cfg)
    learner.agents[0].policy.logits_V.data.fill_(1.0)
    stats = step(learner, [sample(1, (2.0, -1.0), tokens=((0,), (END,)))], cfg)
    assert learner.agents[0].policy.logits_V.tolist() == [1.0] * 11
    assert (stats.loss, stats.grad_norm) == (0.0, 0.0)
    step(learner, [sample(1, (2.0, -1.0), tokens=((0,), (1, END)))], cfg)
    assert learner.agents[0].policy.logits_V.tolist() != [1.0] * 11


def test_the_loss_is_the_mean_over_k_of_minus_advantage_times_sequence_log_probability():
    learner = learner_of(config())
    # uniform over 11 tokens: a completion of 2 tokens has log-probability -2 log 11, one of 3 tokens -3 log 11
    stats = step(learner, [sample(1, (2.0, 0.5), tokens=((0, END), (1, 2, END)))], config())
    log11 = math.log(11)
    assert stats.loss == pytest.approx((2.0 * 2 * log11 + 0.5 * 3 * log11) / 2)
    assert stats.tokens == 5


def test_the_gradient_is_that_of_the_formula():
    learner = learner_of(config())
    seen = []
    learner.agents[0].policy.logits_V.register_post_accumulate_grad_hook(
        lambda logits: seen.append(logits.grad.clone())
    )
    step(learner, [sample(1, (2.0, -1.0))], config())
    # d(-A log p)/dlogits = A (tokens * softmax - counts), softmax = 1/11, two tokens each, mean over K = 2
    expected = torch.full((11,), (2.0 * 2 / 11 - 1.0 * 2 / 11) / 2, dtype=torch.float64)
    expected[0] -= 2.0 / 2
    expected[1] -= -1.0 / 2
    expected[END] -= (2.0 - 1.0) / 2
    assert torch.allclose(seen[0], expected, atol=1e-12)


def test_the_end_token_is_trained_and_compat_drops_it():
    log11 = math.log(11)
    for compat, tokens in ((None, 2), ("comlrl-1.4", 1)):
        cfg = config(compat=compat)
        stats = step(learner_of(cfg), [sample(1, (1.0, 1.0))], cfg)
        assert stats.loss == pytest.approx(tokens * log11)


def test_a_lone_end_token_is_one_scored_token():
    stats = step(learner_of(config()), [sample(1, (1.0, 1.0), tokens=((END,), (END,)))], config())
    assert stats.loss == pytest.approx(math.log(11))


def test_abstained_completions_are_left_out_of_the_mean_over_k():
    stats = step(learner_of(config()), [sample(1, (1.0, None))], config())
    assert stats.loss == pytest.approx(2 * math.log(11))
    assert stats.tokens == 2


def test_the_batch_loss_is_the_weighted_mean_over_samples():
    cfg = config(rollout_buffer_size=2)
    halved = Sample(**{**vars(sample(2, (1.0, 1.0))), "weight": 0.5})
    stats = step(learner_of(cfg), [sample(1, (1.0, 1.0)), halved], cfg)
    assert stats.loss == pytest.approx((2 * math.log(11) + 0.5 * 2 * math.log(11)) / 2)


def test_the_mismatch_is_the_mean_difference_per_token_from_the_log_probability_when_sampled():
    """Scored: -2 log 11 for each. Sampled 0.4 above and 0.2 below it: (0.4 / 2 + 0.2 / 2) / 2 = 0.15 per token."""
    scored = -2 * math.log(11)
    measured = sample(1, (1.0, -1.0))
    completions = tuple(
        replace(completion, log_prob=scored + off)
        for completion, off in zip(measured.completions_K, (0.4, -0.2), strict=True)
    )
    stats = step(learner_of(config()), [replace(measured, completions_K=completions)], config())
    assert stats.log_prob_mismatch == pytest.approx(0.15)
    assert step(learner_of(config()), [measured], config()).log_prob_mismatch is None


def test_micro_batches_add_up_to_the_same_step():
    weights = []
    for micro_batch_tokens in (1, 4, None):  # 1, 2 or all of the four completions of 2 tokens that did not abstain
        cfg = config(num_generations=5, max_rollout_rows=8, micro_batch_tokens=micro_batch_tokens)
        learner = learner_of(cfg)
        tokens = tuple((k, END) for k in range(5))
        step(learner, [sample(1, (1.0, -2.0, None, 0.5, 3.0), tokens=tokens)], cfg)
        weights.append(learner.agents[0].policy.logits_V.detach().clone())
    assert torch.allclose(weights[0], weights[1], atol=1e-12)
    assert torch.allclose(weights[0], weights[2], atol=1e-12)


def test_the_first_step_of_adamw_moves_each_weight_by_the_rate_against_its_gradient():
    cfg = config(agent_learning_rate=0.01, weight_decay=0.0)
    learner = learner_of(cfg)
    step(learner, [sample(1, (1.0, -1.0))], cfg)
    # gradient: token 0 gets -1/2, token 1 gets +1/2, the others (2/11 - 2/11)/2 = 0
    expected = torch.zeros(11, dtype=torch.float64)
    expected[0], expected[1] = 0.01, -0.01
    assert torch.allclose(learner.agents[0].policy.logits_V.detach(), expected, atol=1e-6)


def test_gradients_are_clipped_to_max_grad_norm_and_the_norm_before_is_logged():
    cfg = config(max_grad_norm=0.1, agent_learning_rate=1.0, weight_decay=0.0)
    learner = learner_of(cfg)
    learner.optimizer = torch.optim.SGD(learner.agents[0].policy.parameters(), lr=1.0)
    learner.scheduler = make_scheduler(learner.optimizer, cfg, None)
    stats = step(learner, [sample(1, (1.0, -1.0))], cfg)
    # gradient (-1/2, 1/2, 0 …) has norm sqrt(1/2); after clipping the step has length 0.1
    assert stats.grad_norm == pytest.approx(math.sqrt(0.5))
    assert float(learner.agents[0].policy.logits_V.detach().norm()) == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize(("name", "rates"), [("constant", [1.0, 1.0, 1.0]), ("linear", [1.0, 2 / 3, 1 / 3])])
def test_the_learning_rate_follows_its_schedule(name, rates):
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(rollout_buffer_size=1, lr_scheduler=name, agent_learning_rate=1.0),
        rows=[{"prompt": "p"}] * 3,
    )
    trainer.train()
    used = [e.metrics["agent_0/learning_rate"] for e in recorder.events if e.kind == "update"]
    assert used == pytest.approx(rates)


def test_warmup_rises_from_zero():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(rollout_buffer_size=1, warmup_steps=2, agent_learning_rate=1.0),
        rows=[{"prompt": "p"}] * 3,
    )
    trainer.train()
    used = [e.metrics["agent_0/learning_rate"] for e in recorder.events if e.kind == "update"]
    assert used == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize("advantage", [math.inf, math.nan, 1e308])
def test_a_loss_that_is_not_finite_is_an_error_and_leaves_the_weights(advantage):
    learner = learner_of(config())
    with pytest.raises(NumericalError, match=r"loss of agent 0 is .* at turn 3, env_step 7"):
        step(learner, [sample(7, (advantage, advantage), turn=2)], config())
    assert learner.agents[0].policy.logits_V.detach().tolist() == [0.0] * 11
    assert learner.agents[0].policy.logits_V.grad is None


def test_a_gradient_that_is_not_finite_is_an_error_and_leaves_the_weights():
    learner = learner_of(config())
    learner.agents[0].policy.logits_V.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(NumericalError, match=r"gradient of agent 0 has norm .* at turns \[1\], env_step 7"):
        step(learner, [sample(7)], config())
    assert learner.agents[0].policy.logits_V.detach().tolist() == [0.0] * 11


def test_equal_rewards_move_nothing_but_the_weight_decay():
    trainer, recorder = trainer_of([endless("a", "b")], lambda texts: [1.0], config(weight_decay=0.0))
    trainer.train()
    assert trainer.team.agents[0].policy.logits_V.detach().tolist() == [0.0] * 11
    assert [e.metrics["agent_0/loss"] for e in recorder.events if e.kind == "update"] == [0.0]


def test_an_abstaining_group_trains_nothing_and_warns(caplog):
    trainer, _ = trainer_of([endless("a", "b")], lambda texts: [None], config())
    counters = trainer.train()
    assert (counters.updates, counters.abstained_groups) == (0, 1)
    assert "the reward abstained (None) for a whole group: task 1, turn 1 trains nothing" in caplog.text


def test_raw_returns_push_up_what_was_rewarded():
    trainer, _ = trainer_of(
        [script("a", "b")],
        by_letter({"a": 1.0}),
        MAREINFORCETrainer.config_class(
            num_agents=1,
            num_generations=2,
            num_turns=1,
            num_train_epochs=1,
            eval_interval=0,
            advantage_normalization=False,
        ),
        trainer=MAREINFORCETrainer,
    )
    trainer.train()
    logits = trainer.team.agents[0].policy.logits_V
    assert logits[0] > logits[1]


def test_token_log_probs_are_those_of_log_softmax_for_any_magnitude():
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4], [0.0, math.log(3.0), 0.0]])
    scored = token_log_probs(logits, torch.tensor([1, 1]))
    # row 1: -1 - log(1 + e^-1); row 2: log(3/5)
    assert scored.tolist() == pytest.approx([-1 - math.log(1 + math.exp(-1)), math.log(3 / 5)], abs=1e-3)


def test_the_loss_refuses_shapes_that_do_not_match():
    with pytest.raises(ValueError, match="differ"):
        policy_gradient_loss(torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize(("num_tasks", "said_after"), [(2, 2), (6, 4)])
def test_a_run_of_several_turns_that_never_gets_beyond_the_first_is_warned_about_once(num_tasks, said_after, caplog):
    trainer, _ = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(num_turns=2),
        rows=[{"prompt": "p"}] * num_tasks,
        external_transition=lambda prompt: ["next"],
    )
    trainer.train()
    warned = [record.message for record in caplog.records if "turn 2" in record.message]
    assert warned == [
        f"turn 2 was never reached in {said_after} tasks: every first node's mean reward is above "
        "early_termination_threshold=-0.2; set trainer.early_termination_threshold=null, or shift the reward"
    ]


@pytest.mark.parametrize("settings", [{"num_turns": 1}, {"num_turns": 2, "early_termination_threshold": None}])
def test_a_run_that_gets_as_far_as_asked_is_not(settings, caplog):
    trainer, _ = trainer_of(
        [endless("a", "b")],
        by_letter({"a": 1.0}),
        config(**settings),
        rows=[{"prompt": "p"}] * 5,
        external_transition=lambda prompt: ["next"],
    )
    trainer.train()
    assert not [record for record in caplog.records if "turn 2" in record.message]
