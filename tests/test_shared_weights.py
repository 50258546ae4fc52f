"""Agents that are one model object: one optimiser, their gradients added, everything else of their own.

1. The step is on the sum of the agents' losses, worked out by hand.
2. One optimiser step is one update and one event, which names every agent.
3. Prompts, completions, random streams and saved folders stay each agent's own; a reference is copied once.
4. Weights that are shared in part, on two devices, or not trainable are refused.
"""

from __future__ import annotations

import pytest
import torch

from marl_runner.errors import ConfigError
from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import make_scheduler, weights_sha256
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Completion, Prompt, Sample
from marl_runner.update import update_learner
from models import tiny_llama, tiny_policy, tiny_tokenizer
from scripted_team import END, Recorder, endless


def settings(**changes):
    values = {"num_turns": 1, "num_train_epochs": 1, "num_generations": 2, "max_new_tokens": 4, "eval_interval": 0}
    return MAGRPOConfig(**(values | {"agent_learning_rate": 1e-3, "temperature": 1.0, "weight_decay": 0.0} | changes))


def length_ratio(first, second):
    return [float(len(second[0]) - len(first[0]))]


def shared_trainer(models, recorder=None, **changes):
    return MAGRPOTrainer(
        agents=models,
        tokenizer=tiny_tokenizer(),
        reward_func=length_ratio,
        train_dataset=[{"prompt": "abc"}, {"prompt": "de"}],
        formatters=[lambda row: row["prompt"] + ".", lambda row: row["prompt"] + ".."],
        args=settings(**changes),
        tracker=Recorder() if recorder is None else recorder,
    )


def scripted_trainer(policies):
    return MAGRPOTrainer(agents=policies, reward_func=lambda *texts: [0.0], args=settings(), tracker=Recorder())


def pair(agent, first, second, advantage):
    """A sample of two completions of one letter and the end token, with advantages A and -A."""
    completions = tuple(Completion("", (letter, END), True) for letter in (first, second))
    return Sample(agent, 0, 2, Prompt("p", (1,)), completions, (0.0, 0.0), (advantage, -advantage))


def test_the_step_adds_the_gradients_of_both_agents():
    """Uniform logits; both completions have two tokens, so the softmax terms of A and -A cancel.

    Agent 0, A = 1 on letters 0 and 1: gradient -1/2 (e0 - e1). Agent 1, A = 2 on letters 2 and 3: -(e2 - e3).
    One plain step of rate 1 on the sum leaves logits (1/2, -1/2, 1, -1, 0, …).
    """
    policy = ScriptedPolicy(endless("a"))
    (learner,) = scripted_trainer([policy, policy]).team.learners
    learner.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    learner.scheduler = make_scheduler(learner.optimizer, settings(), None)
    steps = update_learner(learner, [[pair(0, 0, 1, 1.0)], [pair(1, 2, 3, 2.0)]], settings())
    assert policy.logits_V.tolist() == pytest.approx([0.5, -0.5, 1.0, -1.0, *[0.0] * 7])
    ((first, second),) = steps
    assert (first.agent, second.agent, first.tokens, second.tokens) == (0, 1, 4, 4)
    # sqrt(1/4 + 1/4 + 1 + 1)
    assert first.grad_norm == second.grad_norm == pytest.approx(2.5**0.5)


def test_an_agent_with_fewer_minibatches_leaves_the_later_steps_to_the_other():
    policy = ScriptedPolicy(endless("a"))
    (learner,) = scripted_trainer([policy, policy]).team.learners
    cut = settings(train_batch_size=1)
    steps = update_learner(learner, [[pair(0, 0, 1, 1.0)] * 2, [pair(1, 2, 3, 2.0)]], cut)
    assert [[stats.agent for stats in stats_N] for stats_N in steps] == [[0, 1], [0]]


def test_one_step_is_one_update_and_one_event_that_names_both_agents():
    recorder = Recorder()
    model = tiny_llama()
    trainer = shared_trainer([model, model], recorder)
    trainer.train()
    # two tasks of one node, buffers of two samples: one step
    assert trainer.counters.updates == 1
    (event,) = [event for event in recorder.events if event.kind == "update"]
    assert {name.split("/")[0] for name in event.metrics} == {"agent_0", "agent_1"}
    assert event.metrics["agent_0/grad_norm"] == event.metrics["agent_1/grad_norm"]
    assert event.metrics["agent_0/loss"] != event.metrics["agent_1/loss"]


def test_agents_that_share_weights_keep_prompts_completions_and_folders_of_their_own(tmp_path):
    recorder = Recorder()
    model = tiny_llama()
    trainer = shared_trainer([model, model], recorder)
    trainer.train()
    _, root, _ = recorder.trees[0]
    assert [prompt.text for prompt in root.prompts_N] == ["abc.", "abc.."]
    assert root.completions_N_K[0] != root.completions_N_K[1]
    trainer.save_model(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent_0", "agent_1"]
    first, second = trainer.team.agents
    assert weights_sha256(first.policy) == weights_sha256(second.policy)


def test_two_agents_of_three_may_share_and_all_learn():
    shared, alone = tiny_llama(seed=1), tiny_llama(seed=2)
    trainer = MAGRPOTrainer(
        agents=[shared, alone, shared],
        tokenizer=tiny_tokenizer(),
        reward_func=lambda first, second, third: [float(len(first[0]) - len(second[0]) + len(third[0]))],
        train_dataset=[{"prompt": "abc"}],
        args=settings(),
        tracker=Recorder(),
    )
    before = [weights_sha256(agent.policy) for agent in trainer.team.agents]
    assert [[agent.index for agent in learner.agents] for learner in trainer.team.learners] == [[0, 2], [1]]
    trainer.train()
    after = [weights_sha256(agent.policy) for agent in trainer.team.agents]
    assert before[0] == before[2] != after[0] == after[2]
    assert before[1] != after[1]


def test_mp_with_a_shared_model_gives_the_numbers_of_one_after_the_other():
    digests = [weights_sha256(tiny_policy(tiny_llama()))]
    for placed in ({}, {"parallel_training": "mp", "agent_devices": ["cpu", "cpu"]}):
        model = tiny_llama()
        trainer = shared_trainer([model, model], joint_mode="cross", **placed)
        trainer.train()
        digests.append(weights_sha256(trainer.team.agents[0].policy))
    assert digests[0] != digests[1] == digests[2]


def test_the_reference_of_shared_weights_is_one_copy():
    model = tiny_llama()
    first, second = shared_trainer([model, model], reference_kl_enabled=True).team.agents
    assert first.reference is second.reference is not None
    first, second = shared_trainer([model, tiny_llama()], reference_kl_enabled=True).team.agents
    assert first.reference is not second.reference


def test_the_reference_of_shared_weights_is_copied_when_every_tokenizer_has_its_rows():
    """Agent 1's tokenizer has three tokens more than agent 0's: 16 rows, 17 with the added token, 20 with them all."""
    model, larger = tiny_llama(), tiny_tokenizer()
    larger.add_special_tokens({"additional_special_tokens": ["<x>", "<y>", "<z>"]})
    trainer = MAGRPOTrainer(
        agents=[model, model],
        tokenizer=[tiny_tokenizer(), larger],
        model_config={"special_tokens": {"additional_special_tokens": ["<w>"]}},
        reward_func=length_ratio,
        args=settings(reference_kl_enabled=True),
        tracker=Recorder(),
    )
    for agent in trainer.team.agents:
        assert agent.reference.model.get_input_embeddings().num_embeddings == 20
    assert model.get_input_embeddings().num_embeddings == 20


def test_one_model_object_cannot_be_on_two_devices():
    model = tiny_llama()
    message = "agents 0 and 1 are one model object, which cannot be on cpu and on meta"
    with pytest.raises(ConfigError, match=message):
        shared_trainer([model, model], parallel_training="mp", agent_devices=["cpu", "meta"])


def test_weights_shared_in_part_are_refused():
    first, second = tiny_llama(seed=1), tiny_llama(seed=2)
    second.model.embed_tokens.weight = first.model.embed_tokens.weight
    with pytest.raises(ConfigError, match="agents 0 and 1 share some of their trainable weights and not all"):
        shared_trainer([first, second])


def test_a_shared_part_that_is_frozen_is_no_matter():
    first, second = tiny_llama(seed=1), tiny_llama(seed=2)
    second.model.embed_tokens.weight = first.model.embed_tokens.weight
    first.model.embed_tokens.weight.requires_grad_(False)
    assert len(shared_trainer([first, second]).team.learners) == 2


def test_an_agent_without_trainable_weights_is_refused():
    frozen = tiny_llama().requires_grad_(False)
    with pytest.raises(ConfigError, match="agent 1 has no trainable weights"):
        shared_trainer([tiny_llama(), frozen])
