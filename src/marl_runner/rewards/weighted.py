"""Several rewards, each with its weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_runner.errors import ConfigError
from marl_runner.hooks import accepted_context, signature_of
from marl_runner.rewards.call import CONTEXT, checked_rewards, completion_keywords
from marl_runner.rewards.registry import register_reward
from marl_runner.types import ChecksRows, DeclaresFields, DeclaresRange, DeclaresTeam, Reward, Starts


@register_reward("weighted")
@dataclass(frozen=True)
class Weighted:
    """The weighted sum of named rewards; each is a component of it, by its own components where it has some.

    It abstains where one of them does.

    Attributes:
        rewards: Name → reward, as for `MAGRPOTrainer`.
        weights: Name → its weight, finite.

    Raises:
        ConfigError: There is none, or the names of the two differ.
    """

    rewards: dict[str, Any]
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if not self.rewards or set(self.rewards) != set(self.weights):
            raise ConfigError(
                f"reward.rewards ({', '.join(self.rewards) or 'none'}) and reward.weights "
                f"({', '.join(self.weights) or 'none'}) need the same names, at least one"
            )
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ConfigError(f"reward.weights.{name} must be a finite number, got {weight}")

    @property
    def reward_range(self) -> tuple[float, float] | None:
        """Least and greatest sum, where every reward declares its range."""
        ends_R = []
        for name, reward in self.rewards.items():
            if not isinstance(reward, DeclaresRange) or reward.reward_range is None:
                return None
            ends_R.append(sorted(self.weights[name] * end for end in reward.reward_range))
        return sum(least for least, _ in ends_R), sum(greatest for _, greatest in ends_R)

    @property
    def required_fields(self) -> tuple[str, ...]:
        """Columns that any of the rewards reads."""
        rewards = [reward for reward in self.rewards.values() if isinstance(reward, DeclaresFields)]
        return tuple(dict.fromkeys(name for reward in rewards for name in reward.required_fields))

    @property
    def min_agents(self) -> int:
        """The smallest team that all of them can score."""
        declared = [reward.min_agents for reward in self.rewards.values() if isinstance(reward, DeclaresTeam)]
        return max(declared, default=1)

    def start(self) -> None:
        """Starts what the rewards need to run."""
        for reward in self.rewards.values():
            if isinstance(reward, Starts):
                reward.start()

    def check_row(self, row: Mapping[str, Any]) -> str:
        """What makes a row unusable for one of the rewards; "" if nothing does."""
        checking = [reward for reward in self.rewards.values() if isinstance(reward, ChecksRows)]
        return next((problem for reward in checking if (problem := reward.check_row(row))), "")

    def __call__(
        self,
        *completions_N_J: list[str],
        prompts: list[str],
        batch_items: list[dict[str, Any]],
        batch_item: dict[str, Any],
    ) -> list[dict[str, float] | None]:
        """The weighted components of each joint action, or None where one of the rewards abstains.

        Args:
            *completions_N_J: Per agent, its text in each joint action.
            prompts: What agent 0 was sent.
            batch_items: The task's row.
            batch_item: The same.
        """
        offered = {"prompts": prompts, "batch_items": batch_items, "batch_item": batch_item}
        answers_R_J = {name: called(name, reward, completions_N_J, offered) for name, reward in self.rewards.items()}
        return [
            self._sum(dict(zip(answers_R_J, rewards_R, strict=True)))
            for rewards_R in zip(*answers_R_J.values(), strict=True)
        ]

    def _sum(self, rewards_R: Mapping[str, Reward]) -> dict[str, float] | None:
        parts: dict[str, float] = {}
        for name, reward in rewards_R.items():
            if reward.value is None:
                return None
            own = {f"{name}/{component}": number for component, number in reward.components.items()}
            for component, number in (own or {name: reward.value}).items():
                parts[component] = self.weights[name] * number
        return parts


def called(
    name: str, reward: Callable[..., Any], completions_N_J: tuple[list[str], ...], offered: Mapping[str, Any]
) -> list[Reward]:
    """What one reward says of each joint action; it gets the context that it names."""
    signature = signature_of(reward, f"reward {name}")
    context = accepted_context(signature, {key: offered[key] for key in CONTEXT})
    keywords = completion_keywords(signature, len(completions_N_J), name)
    if keywords is None:
        answer = reward(*completions_N_J, **context)
    else:
        answer = reward(**dict(zip(keywords, completions_N_J, strict=True)), **context)
    return checked_rewards(answer, len(completions_N_J[0]), name, "in reward weighted")
