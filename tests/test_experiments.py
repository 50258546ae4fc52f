"""Every experiment, as it stands in conf/experiment, with local stand-ins for its models and its data.

1. It composes, keeps the rules and is planned.
2. It trains for one step: its columns fit its role prompts, reward and transition.
3. Those that score code in pairs end a branch above 3.8 of 4, as the public runs do.
"""

import json
from pathlib import Path

import pytest

from commands import CHAT, ROOT, composed, marl_train, summary
from marl_runner.policies.tiny import character_tokenizer, tiny_model

EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
OWN_ROWS = ("stories",)
"""Datasets that are in the package, and need no stand-in."""
ROW = {
    "prompt": "def double(number):\n    '''Return the number twice.'''\n",
    "abstract_text": "We double numbers, and find that the results are even.",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
    "canonical_solution": "    return 2 * number\n",
    "code": "def double(number):\n    return 2 * number\n",
    "test_imports": ["import math"],
    "test_list": ["assert double(2) == 4", "assert double(3) == 6"],
}
"""One row with the columns of every dataset."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """A folder with a tiny model that has a chat template, and one in the hub's format with three rows a split."""
    folder = tmp_path_factory.mktemp("stand_ins")
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder / "model")
    model = tiny_model(seed=0, hidden_size=16, num_layers=1, num_heads=2, context_length=8192)
    model.save_pretrained(folder / "model")
    (folder / "rows").mkdir()
    for split in ("train", "test"):
        (folder / "rows" / f"{split}.jsonl").write_text((json.dumps(ROW) + "\n") * 3)
    return folder


def overrides_of(experiment: str, stand_ins: Path) -> list[str]:
    """What puts the stand-ins in the place of models and data, and nothing else."""
    cfg = composed(f"experiment={experiment}")
    overrides = [f"experiment={experiment}", f"agents.model={stand_ins / 'model'}"]
    if cfg.dataset._target_.rpartition(".")[2].lower() in OWN_ROWS:
        return overrides
    overrides += [f"dataset.name={stand_ins / 'rows'}", "dataset.split=train", "dataset.eval_split=test"]
    overrides += ["dataset.source=hub"] if "source" in cfg.dataset else []
    return overrides + (["dataset.config=null"] if "config" in cfg.dataset else [])


def test_there_are_experiments_of_every_public_task():
    public = {
        "tldr_qwen3",
        "arxiv_qwen3",
        "humaneval_qwen2_5_coder",
        "coophumaneval_qwen2_5_coder",
        "mbpp_qwen2_5_coder",
    }
    assert public | {"smollm2_story", "smollm2_humaneval"} <= set(EXPERIMENTS)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_is_planned(experiment, stand_ins):
    plan = marl_train(*overrides_of(experiment, stand_ins), "dry_run=true")
    assert (plan.code, plan.err) == (0, "")
    assert "2 agents" in plan.out


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_trains_for_one_step(experiment, stand_ins):
    ended = marl_train(*overrides_of(experiment, stand_ins), "debug=step", "hydra.run.dir=run")
    assert (ended.code, ended.err) == (0, "")
    assert summary("run")["counts"]["tasks"] == 2


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_code_pair_ends_a_branch_above_3_8_of_4(experiment):
    cfg = composed(f"experiment={experiment}")
    if cfg.reward._target_.endswith("CodePair"):
        # (3.8 + the shift of -4) * the scale of 1 = -0.2
        assert (cfg.reward_processor.scale, cfg.reward_processor.shift) == (1.0, -4.0)
        assert cfg.trainer.early_termination_threshold == -0.2
        assert cfg.trainer.num_turns == 2
    else:
        assert (cfg.reward_processor.shift, cfg.trainer.num_turns) == (0.0, 1)
