"""The default run of marl-train as a script for comlrl 1.4.3: `python scripts/benchmark_tiny.py FOLDER`.

The same tiny models, tokenizers, data, reward, settings and evaluations; the models are saved at the end.
"""

from __future__ import annotations

import sys

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from transformers.utils.logging import disable_progress_bar

from marl_runner.agents.tiny import Tiny
from marl_runner.datasets.stories import Stories
from marl_runner.rewards.length_ratio import LengthRatio

EVALUATED = {"eval_interval": 16, "eval_num_samples": 4}


def main(folder: str) -> None:
    """Trains and saves."""
    disable_progress_bar()
    torch.manual_seed(0)
    team = Tiny(num_agents=2, hidden_size=64, num_layers=2, num_heads=4, context_length=512)(seed=0)
    rows = Stories(max_tasks=None, eval_fraction=0.1)()
    trainer = MAGRPOTrainer(
        agents=team.agents,
        tokenizer=team.tokenizer,
        num_agents=2,
        reward_func=LengthRatio(2.0, 3.0),
        train_dataset=Dataset.from_list(rows.train),
        eval_dataset=Dataset.from_list(rows.eval),
        eval_logger=lambda agent_completions_turns, **_: [{} for _ in agent_completions_turns[0]],
        eval_aggregator=lambda metrics, **_: {},
        args=MAGRPOConfig(
            num_turns=1,
            num_train_epochs=8,
            agent_learning_rate=5e-3,
            num_generations=16,
            max_new_tokens=24,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            logging_steps=128,
            **EVALUATED,
        ),
    )
    trainer.verbose = False
    trainer.train()
    trainer.save_model(folder)


if __name__ == "__main__":
    main(sys.argv[1])
