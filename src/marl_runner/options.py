"""THE table: config group → {option: what implements it}.

The newcomer's table of contents, and what the tests of every option run over. Each row has a YAML file
`conf/<group>/<option>.yaml` whose `_target_` is the object named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.agents.pretrained import Pretrained
from marl_runner.agents.tiny import Tiny
from marl_runner.datasets.files import Files
from marl_runner.datasets.hub import Hub
from marl_runner.datasets.human_eval import HumanEval
from marl_runner.datasets.mbpp import Mbpp
from marl_runner.datasets.stories import Stories
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.rewards.python import python_reward
from marl_runner.rewards.registry import REWARDS
from marl_runner.tracking.options import Tracking
from marl_runner.transitions.expert_edits import ExpertEdits
from marl_runner.transitions.level_feedback import LevelFeedback
from marl_runner.transitions.none import no_transition
from marl_runner.transitions.python import python_transition
from marl_runner.transitions.revise import Revise

OPTIONS: dict[str, Mapping[str, Any]] = {
    "agents": {"tiny": Tiny, "smollm2": Pretrained, "pretrained": Pretrained},
    "advantage_mode": ADVANTAGE_MODES,
    "joint_mode": JOINT_MODES,
    "reward": {**REWARDS, "python": python_reward},
    "dataset": {
        "stories": Stories,
        "files": Files,
        "hub": Hub,
        "humaneval": HumanEval,
        "coophumaneval": Hub,
        "mbpp": Mbpp,
        "tldr": Hub,
        "arxiv": Hub,
    },
    "transition": {
        "none": no_transition,
        "revise": Revise,
        "plain": Revise,
        "level_feedback": LevelFeedback,
        "expert_edits": ExpertEdits,
        "python": python_transition,
    },
    "tracking": {"local": Tracking, "wandb": Tracking, "wandb_offline": Tracking},
}
