"""The jobs of the benchmark, and how each trainer is made to do one.

    python scripts/benchmark_jobs.py SIDE JOB MODEL [--device cuda]        (prints one line of JSON)

Every completion is cut at the same number of tokens (no end token exists), so that all sides do the same work.
`scripts/benchmark.py` starts this file once for each measurement.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from marl_runner.allocator import tune_allocator

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Job:
    """One training job, the same for every side.

    Attributes:
        num_agents: N; 1 where a single-agent trainer takes part.
        num_generations: K.
        num_turns: H.
        joint_mode: "aligned" or "cross".
        prompt_tokens: Tokens of the first prompt.
        new_tokens: Tokens of every completion.
        num_tasks: Prompts.
        mixed_precision: Of our side; the others compute in float32.
        target: Least ratio of the reference's seconds to ours; None where none is set.
    """

    num_agents: int = 2
    num_generations: int = 4
    num_turns: int = 1
    joint_mode: str = "aligned"
    prompt_tokens: int = 11
    new_tokens: int = 64
    num_tasks: int = 2
    mixed_precision: str = "none"
    target: float | None = None

    @property
    def branching(self) -> int:
        """Joint actions of a node, each with a child."""
        return self.num_generations ** (self.num_agents if self.joint_mode == "cross" else 1)

    @property
    def num_nodes(self) -> int:
        """Rollout nodes of all tasks."""
        return self.num_tasks * sum(self.branching**turn for turn in range(self.num_turns))

    @property
    def sampled_tokens(self) -> int:
        """Sampled tokens of all agents; each is trained on once."""
        return self.num_nodes * self.num_agents * self.num_generations * self.new_tokens


JOBS = {
    "k4": Job(target=3.0),
    "k4_two_turns": Job(num_turns=2, target=3.5),
    "k3_cross": Job(num_generations=3, num_turns=2, joint_mode="cross", new_tokens=48, num_tasks=1, target=4.0),
    "k8_long_prompt": Job(num_generations=8, prompt_tokens=512, num_tasks=1, target=5.0),
    "k4_two_turns_bf16": Job(num_turns=2, mixed_precision="bf16", target=7.0),
    "k8_long_answer": Job(num_generations=8, new_tokens=256, num_tasks=1, target=3.5),
    "one_agent": Job(num_agents=1),
}
"""The named jobs; `one_agent` is the one that a single-agent trainer can do."""


@dataclass(frozen=True)
class Measured:
    """One run of one job.

    Attributes:
        seconds: Of training, model loading left out.
        sampling_s: Of it, sampling.
        update_s: Of it, updates.
        peak_mib: Highest resident memory of the process (allocated memory of the GPU on CUDA).
        activation_mib: That less the program, weights, gradients and AdamW's two states.
    """

    seconds: float
    sampling_s: float
    update_s: float
    peak_mib: float
    activation_mib: float


class Phases:
    """Seconds spent in functions, by phase; overlapping calls of several threads count once."""

    def __init__(self) -> None:
        self.seconds = {"sampling": 0.0, "update": 0.0}
        self._open = dict.fromkeys(self.seconds, 0)
        self._lock = threading.Lock()

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._open[phase] += 1
                if self._open[phase] == 1:
                    self.seconds[phase] -= time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._open[phase] -= 1
                    if self._open[phase] == 0:
                        self.seconds[phase] += time.perf_counter()

        return call


def prompts(job: Job, tokenizer: Any) -> list[str]:
    """Texts of `prompt_tokens` tokens, of words in random order, so that no answer is like another."""
    words = [
        "lighthouse",
        "keeper",
        "ship",
        "winter",
        "letter",
        "river",
        "garden",
        "clock",
        "mirror",
        "bridge",
        "stone",
        "song",
        "market",
        "cloud",
    ]
    rng = random.Random(0)
    texts = [" ".join(rng.choices(words, k=job.prompt_tokens + 1)) for _ in range(job.num_tasks)]
    return [tokenizer.decode(tokenizer(text)["input_ids"][: job.prompt_tokens]) for text in texts]


def next_prompts(prompt: str, agent_completions: Sequence[str], **_: Any) -> list[str]:
    """The second turn's prompts: as long as the first, and the same whatever was answered."""
    return [f"{prompt} Again:" for _ in agent_completions]


REWARDS = random.Random(0)


def seeded_reward(*completions_N: Sequence[str]) -> list[float]:
    """A random number for each joint action, so that every completion has an advantage and none is skipped."""
    return [REWARDS.random() for _ in completions_N[0]]


def load(folder: Path, count: int) -> tuple[list[Any], Any]:
    """`count` float32 copies of one model, with the tokenizer; none has an end token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(count)]
    for model in models:
        model.config.eos_token_id = model.generation_config.eos_token_id = None
    return models, tokenizer


def settings(job: Job, epochs: int) -> dict[str, Any]:
    """What both team trainers are told."""
    return {
        "num_agents": job.num_agents,
        "num_generations": job.num_generations,
        "num_turns": job.num_turns,
        "joint_mode": job.joint_mode,
        "max_new_tokens": job.new_tokens,
        "num_train_epochs": epochs,
        "eval_interval": 0,
        "early_termination_threshold": None,
    }


@dataclass(frozen=True)
class Trainer:
    """What a side needs to do one job: the call that trains, and its optimisers if they exist before it."""

    train: Callable[[], object]
    optimizers: Sequence[torch.optim.Optimizer] = ()


def ours(job: Job, models: list[Any], tokenizer: Any, epochs: int, phases: Phases) -> Trainer:
    """Training by marl-runner."""
    from marl_runner import MAGRPOConfig, MAGRPOTrainer, loop
    from marl_runner.tracking.options import Trackers

    trainer = MAGRPOTrainer(
        agents=models,
        tokenizer=tokenizer,
        reward_func=seeded_reward,
        external_transition=next_prompts if job.num_turns > 1 else None,
        train_dataset=[{"prompt": prompt} for prompt in prompts(job, tokenizer)],
        args=MAGRPOConfig(**settings(job, epochs), mixed_precision=job.mixed_precision),
        tracker=Trackers([]),
    )
    for agent in trainer.team.agents:
        agent.policy.end_ids = frozenset()
    trainer.engine.rollout = phases.timed("sampling", trainer.engine.rollout)
    loop.update_learner = phases.timed("update", loop.update_learner)
    return Trainer(trainer.train, [learner.optimizer for learner in trainer.team.learners])


def comlrl(job: Job, models: list[Any], tokenizer: Any, epochs: int, phases: Phases) -> Trainer:
    """Training by comlrl."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer

    trainer = MAGRPOTrainer(
        agents=models,
        tokenizer=tokenizer,
        num_agents=job.num_agents,
        reward_func=seeded_reward,
        external_transition=next_prompts if job.num_turns > 1 else None,
        train_dataset=[{"prompt": prompt} for prompt in prompts(job, tokenizer)],
        args=MAGRPOConfig(**settings(job, epochs)),
    )
    trainer.verbose = False
    trainer._generate_completions = phases.timed("sampling", trainer._generate_completions)
    trainer._process_buffer = phases.timed("update", trainer._process_buffer)
    return Trainer(trainer.train, trainer.optimizers)


def trl(job: Job, models: list[Any], tokenizer: Any, epochs: int, phases: Phases) -> Trainer:
    """Training by TRL's GRPO trainer: one agent, one turn, both prompts in one optimiser step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    texts = prompts(job, tokenizer)
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=job.num_generations * len(texts),
        num_generations=job.num_generations,
        max_completion_length=job.new_tokens,
        generation_kwargs={"min_new_tokens": job.new_tokens},
        temperature=0.6,
        top_p=0.6,
        top_k=50,
        learning_rate=5e-6,
        max_steps=epochs,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=models[0].device.type == "cpu",
    )
    trainer = GRPOTrainer(
        model=models[0],
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: seeded_reward(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": texts}),
    )
    trainer._generate_and_score_completions = phases.timed("sampling", trainer._generate_and_score_completions)
    trainer.compute_loss = phases.timed("update", trainer.compute_loss)
    trainer.accelerator.backward = phases.timed("update", trainer.accelerator.backward)
    return Trainer(trainer.train)


SIDES = {"ours": ours, "comlrl": comlrl, "trl": trl}


def measure(side: str, job: Job, folder: Path, device: str, epochs: int) -> Measured:
    """Runs one job once."""
    if side == "ours":
        tune_allocator()  # as marl-train does, before the first tensor
    models, tokenizer = load(folder, job.num_agents)
    for model in models:
        model.to(device)
    weights = sum(parameter.nbytes for model in models for parameter in model.parameters())
    phases = Phases()
    trainer = SIDES[side](job, models, tokenizer, epochs, phases)
    make_states(trainer.optimizers)
    give_back_freed_memory()
    # Without weights and states: the interpreter, the libraries, and what the trainer made.
    program = used_bytes(device) - (3 if trainer.optimizers else 1) * weights
    reset_peak(device)
    started = time.perf_counter()
    trainer.train()
    if device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = peak_bytes(device)
    return Measured(
        seconds,
        phases.seconds["sampling"],
        phases.seconds["update"],
        peak / MEBIBYTE,
        (peak - program - 4 * weights) / MEBIBYTE,
    )


def make_states(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Lets AdamW make its two states by a step of zero gradients, so that the first update is like all others."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def give_back_freed_memory() -> None:
    """What the C library keeps of freed tensors is neither the program's nor the training's."""
    ctypes.CDLL(None).malloc_trim(0)


def used_bytes(device: str) -> int:
    """Memory in use now."""
    return int(torch.cuda.memory_allocated()) if device != "cpu" else proc_status("VmRSS")


def peak_bytes(device: str) -> int:
    """Highest memory in use since `reset_peak`."""
    return int(torch.cuda.max_memory_allocated()) if device != "cpu" else proc_status("VmHWM")


def reset_peak(device: str) -> None:
    """Starts the peak anew."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def proc_status(name: str) -> int:
    """Bytes of one entry of /proc/self/status (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def main() -> None:
    """Measures one job on one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("job", help="a name of JOBS, or a job as JSON")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    job = JOBS[arguments.job] if arguments.job in JOBS else Job(**json.loads(arguments.job))
    measured = measure(arguments.side, job, arguments.model, arguments.device, arguments.epochs)
    assert math.isfinite(measured.seconds)
    print(f"\n{json.dumps(asdict(measured))}")


if __name__ == "__main__":
    main()
