"""Evaluation: what it measures, when it runs, and that it leaves training as it was."""

from __future__ import annotations

import pytest

from marl_runner.errors import ConfigError
from marl_runner.metrics import evaluation_metrics
from marl_runner.policies.tiny import character_tokenizer, tiny_model
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import weights_sha256
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Reward
from scripted_team import endless, script, trainer_of


def of_values(values_S_H, discount):
    return evaluation_metrics([[Reward(value) for value in values_H] for values_H in values_S_H], discount)


def config(**changes) -> MAGRPOConfig:
    defaults = {"num_agents": 1, "num_generations": 2, "num_turns": 1, "num_train_epochs": 1, "logging_steps": 1}
    return MAGRPOConfig(**{**defaults, "early_termination_threshold": None, **changes})


def by_letter(texts):
    return [float("abcdefghij".index(texts[0]))]


def eval_steps(recorder):
    return [event.env_step for event in recorder.events if event.kind == "eval"]


def test_reward_and_reward_to_go_of_each_turn():
    # task 1: rewards 1, 2, 4; task 2: 10, 20, 40
    metrics = of_values([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]], discount=1.0)
    assert metrics == {
        "eval/turn_1/reward_mean": 5.5,
        "eval/turn_2/reward_mean": 11.0,
        "eval/turn_3/reward_mean": 22.0,
        "eval/turn_1/expected_return": (7 + 70) / 2,
        "eval/turn_2/expected_return": (6 + 60) / 2,
        "eval/turn_3/expected_return": (4 + 40) / 2,
    }


def test_reward_to_go_is_discounted():
    metrics = of_values([[1.0, 2.0, 4.0]], discount=0.5)
    assert metrics["eval/turn_1/expected_return"] == 1 + 0.5 * (2 + 0.5 * 4)


def test_abstained_rewards_never_poison_a_mean():
    metrics = of_values([[None, 2.0], [10.0, None], [4.0, 6.0]], discount=1.0)
    assert metrics["eval/turn_1/reward_mean"] == (10 + 4) / 2
    assert metrics["eval/turn_2/reward_mean"] == (2 + 6) / 2
    # only the third task has both rewards; turn 2 alone is known of the first too
    assert metrics["eval/turn_1/expected_return"] == 10.0
    assert metrics["eval/turn_2/expected_return"] == (2 + 6) / 2
    assert of_values([[None]], discount=1.0) == {}


def test_it_runs_before_each_multiple_of_the_interval_in_every_epoch_and_once_at_the_end():
    trainer, recorder = trainer_of(
        [endless("a", "b")],
        by_letter,
        config(eval_interval=2, num_train_epochs=2),
        rows=[{"prompt": "p"}] * 3,
        eval_dataset=[{"prompt": "e"}],
    )
    trainer.train()
    # K=2 per task; tasks 0 and 2 of each epoch, then the end
    assert eval_steps(recorder) == [0, 4, 6, 10, 12]


@pytest.mark.parametrize("changes", [{"eval_interval": 0}, {"eval_num_samples": 0}])
def test_zero_disables_it(changes):
    trainer, recorder = trainer_of([endless("a")], by_letter, config(**changes), eval_dataset=[{"prompt": "e"}])
    trainer.train()
    assert eval_steps(recorder) == []


def test_one_completion_per_agent_per_turn_along_one_path():
    seen = []

    def transition(prompt, agent_completions, prompt_history_per_agent, response_history_per_agent):
        seen.append((agent_completions, prompt_history_per_agent, response_history_per_agent))
        return ["next"]

    trainer, _ = trainer_of(
        [script("b", "c", "d")],
        by_letter,
        config(num_turns=3),
        eval_dataset=[{"prompt": "e"}],
        external_transition=transition,
    )
    metrics = trainer.evaluate()
    assert [metrics[f"eval/turn_{turn}/reward_mean"] for turn in (1, 2, 3)] == [1.0, 2.0, 3.0]
    assert metrics["eval/turn_1/expected_return"] == 6.0
    assert seen == [(["b"], [["e"]], [["b"]]), (["c"], [["e", "next"]], [["b", "c"]])]


def test_it_looks_at_the_first_tasks_only_in_batches():
    trainer, _ = trainer_of(
        [endless("b")],
        by_letter,
        config(eval_num_samples=3, eval_batch_size=2),
        eval_dataset=[{"prompt": name} for name in "vwxyz"],
    )
    trainer.evaluate()
    assert trainer.team.agents[0].policy.requests == [("v", "w"), ("x",)]
    trainer.team.agents[0].policy.requests.clear()
    trainer.evaluate(num_eval_samples=1)
    assert trainer.team.agents[0].policy.requests == [("v",)]


def test_logger_and_aggregator_make_metrics_of_their_own():
    calls = {}

    def eval_logger(agent_completions_turns, batch_items, prompts):
        calls["logger"] = (agent_completions_turns, batch_items, prompts)
        return [{"length": 1.0}, {"length": 3.0}]

    def eval_aggregator(metrics, num_turns):
        calls["num_turns"] = num_turns
        return {"turn_1/length": sum(m["length"] for m in metrics) / len(metrics)}

    trainer, _ = trainer_of(
        [script("a", "b"), script("c", "d")],
        lambda first, second: [0.0],
        config(num_agents=2),
        eval_dataset=[{"prompt": "x"}, {"prompt": "y"}],
        eval_logger=eval_logger,
        eval_aggregator=eval_aggregator,
    )
    metrics = trainer.evaluate()
    assert metrics["eval/turn_1/length"] == 2.0
    # [agent][task][turn]; the tasks are played one after the other
    assert calls["logger"] == ([[["a"], ["b"]], [["c"], ["d"]]], [{"prompt": "x"}, {"prompt": "y"}], ["x", "y"])
    assert calls["num_turns"] == 1


@pytest.mark.parametrize(("given", "missing"), [("eval_logger", "eval_aggregator"), ("eval_aggregator", "eval_logger")])
def test_logger_and_aggregator_work_only_together(given, missing):
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        trainer_of([endless("a")], by_letter, config(), **{given: lambda **kwargs: []})


def tiny_run(eval_interval: int, seed: int = 0, **changes):
    """A real tiny team over two tasks and two turns; returns its weights and sampled ids."""
    tokenizer = character_tokenizer()
    trees = []

    class Trees:
        def log(self, event): ...
        def progress(self, progress): ...
        def close(self, status): ...
        def rollout(self, task, root, samples):
            trees.append([c.token_ids for node in root.walk() for K in node.completions_N_K for c in K])

    cfg = config(
        num_agents=2,
        num_turns=2,
        max_new_tokens=6,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        agent_learning_rate=1e-2,
        eval_interval=eval_interval,
        num_train_epochs=2,
        seed=seed,
        **changes,
    )
    trainer = MAGRPOTrainer(
        agents=[tiny_model(agent, 16, 1, 2, 128) for agent in range(2)],
        tokenizer=tokenizer,
        reward_func=lambda first, second: [float(len(first[0]) - len(second[0]))],
        external_transition=lambda agent_completions: [f"again {text}" for text in agent_completions],
        train_dataset=[{"prompt": "tell"}, {"prompt": "a longer prompt"}],
        eval_dataset=[{"prompt": "try"}, {"prompt": "another"}],
        args=cfg,
        tracker=Trees(),
    )
    trainer.train()
    return [weights_sha256(agent.policy) for agent in trainer.team.agents], trees


def test_evaluation_leaves_training_unchanged_bit_for_bit():
    assert tiny_run(eval_interval=0) == tiny_run(eval_interval=1)


def test_the_same_seed_gives_the_same_run_bit_for_bit_and_another_seed_another():
    assert tiny_run(1, seed=3) == tiny_run(1, seed=3)
    assert tiny_run(1, seed=3)[1] != tiny_run(1, seed=4)[1]


def test_concurrent_agents_give_the_same_run_as_one_after_the_other():
    alone = tiny_run(1)
    assert tiny_run(1, parallel_training="mp", agent_devices=["cpu", "cpu"]) == alone


def test_chunks_and_micro_batches_do_not_change_what_is_sampled_first():
    _, whole = tiny_run(0)
    _, parts = tiny_run(0, micro_batch_tokens=1, max_rollout_rows=2)
    assert whole[0] == parts[0]


def test_how_many_tasks_are_sampled_together_changes_nothing_of_a_run():
    """Both tasks of an epoch fit before the update at 12 nodes; 2 rows hold not even the second turn of one."""
    together = tiny_run(0, rollout_buffer_size=12)
    assert tiny_run(0, rollout_buffer_size=12, max_rollout_rows=2) == together
    assert len(together[1]) == 4
