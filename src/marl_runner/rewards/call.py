"""Calls a user's reward function: once per joint action, by name, with every answer checked."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from marl_runner.errors import ConfigError, RewardError
from marl_runner.hooks import POSITIONAL, accepted_context, hook_name, raised, signature_of
from marl_runner.stopping import REQUEST
from marl_runner.types import Reward, Task

GIVEN_BY_COMLRL = ("prompts", "batch_items")
CONTEXT = (*GIVEN_BY_COMLRL, "batch_item")


@runtime_checkable
class ArrayLike(Protocol):
    """A tensor, array or scalar of torch, numpy or the like."""

    def tolist(self) -> Any: ...


class RewardCaller:
    """A reward function bound to a team.

    Args:
        function: `reward(*completions_per_agent, prompts=…, batch_items=…, batch_item=…) -> list of numbers`, or of
            mappings from a component's name to its number, whose sum is the reward; the keywords are passed only if
            it names them (lists of one, and the row itself), the lists to `**kwargs` too.
        num_agents: Completion arguments it must take.
        processor: Applied to every reward that is not None.
        nonfinite: "error" raises at NaN and infinity; "abstain" turns them into None and counts them.

    Raises:
        ConfigError: The signature does not fit the team.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        num_agents: int,
        processor: Callable[[float], float] | None = None,
        nonfinite: str = "error",
    ) -> None:
        signature = signature_of(function, "reward_func")
        self.name = hook_name(function)
        self.function = function
        self._processor = processor
        self._nonfinite = nonfinite
        # `**kwargs` gets what comlrl gives it, which may be handed on to a function that takes no more.
        offered = CONTEXT if "batch_item" in signature.parameters else GIVEN_BY_COMLRL
        self._context = set(accepted_context(signature, dict.fromkeys(offered)))
        self._keywords = completion_keywords(signature, num_agents, self.name)
        self._lock = threading.Lock()  # reward workers count together
        self.num_calls = 0
        self.num_nonfinite = 0

    def __call__(self, actions_N: Sequence[str], prompt: str, task: Task, where: str) -> Reward:
        """The reward of one joint action, its value processed, its components as they are.

        Args:
            actions_N: Each agent's text.
            prompt: What agent 0 was sent.
            task: The dataset row.
            where: Location for messages ("task 3, turn 1, joint action 2").

        Raises:
            RewardError: The function raised, or did not return one finite number.
        """
        with self._lock:
            self.num_calls += 1
        row = task.row()
        offered: Mapping[str, Any] = {"prompts": [prompt], "batch_items": [row], "batch_item": row}
        context = {name: offered[name] for name in self._context}
        completions = [[text] for text in actions_N]
        try:
            if self._keywords is None:
                answer = self.function(*completions, **context)
            else:
                answer = self.function(**dict(zip(self._keywords, completions, strict=True)), **context)
        except Exception as error:
            said = raised(error)
            place = f"{where}; completions {_short(list(actions_N))}"
            raise RewardError(f"reward {self.name} raised {said} ({place})") from error
        REQUEST.check()
        return self._checked(checked_rewards(answer, 1, self.name, where)[0], where)

    def _checked(self, reward: Reward, where: str) -> Reward:
        value = reward.value
        if value is not None and self._processor is not None and math.isfinite(value):
            value = self._processed(value, self._processor, where)
        if value is None or math.isfinite(value):
            return Reward(value, reward.components)
        if self._nonfinite == "error":
            raise RewardError(
                f"reward {self.name} returned {value} ({where}); fix it, return None to abstain, "
                "or set trainer.nonfinite_reward=abstain"
            )
        with self._lock:
            self.num_nonfinite += 1
        return Reward(None)

    def _processed(self, reward: float, processor: Callable[[float], float], where: str) -> float | None:
        name = f"processor {hook_name(processor)}"
        try:
            answer = processor(reward)
        except Exception as error:
            raise RewardError(f"{name} raised {raised(error)} ({where}, reward {reward})") from error
        return _number(answer, f"{name} returned", "a number", where)


def completion_keywords(signature: inspect.Signature, num_agents: int, name: str) -> list[str] | None:
    """Names of the parameters that take the agents' completions; None to pass them by position.

    Positional parameters called `prompts`, `batch_items` or `batch_item` are context, wherever they stand.

    Raises:
        ConfigError: The function takes more or fewer completion arguments than the team has agents.
    """
    parameters = list(signature.parameters.values())
    completions = [p for p in parameters if p.kind in POSITIONAL and p.name not in CONTEXT]
    context = [p for p in parameters if p.kind in POSITIONAL and p.name in CONTEXT]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    required = [p for p in completions if p.default is inspect.Parameter.empty]
    keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in CONTEXT]
    stray = [p.name for p in keyword_only if p.default is inspect.Parameter.empty]
    if stray:
        raise ConfigError(f"reward {name} needs the keyword {', '.join(stray)}, which is not offered: bind it first")
    if context and (variadic or context[0].kind is inspect.Parameter.POSITIONAL_ONLY):
        raise ConfigError(f"reward {name} must take {context[0].name} by keyword: put it after the completions and a *")
    if len(required) > num_agents or (not variadic and len(required) < num_agents):
        raise ConfigError(
            f"reward {name} takes {len(required)} completion arguments, but the team has {num_agents} agents"
        )
    return [p.name for p in required] if context else None


def checked_rewards(answer: Any, num_joint_actions: int, name: str, where: str) -> list[Reward]:
    """Turns what a reward function returned into one reward per joint action.

    Lists, tuples, tensors and numpy arrays of the right length are accepted, with ints, bools, scalars of those
    libraries, None and mappings of named components as entries; tensors are detached. NaN and infinity pass; the
    caller decides about them.

    Raises:
        RewardError: Anything else, naming the function, what it returned and what was expected.
    """
    expected = f"a list of {num_joint_actions} number{'s' if num_joint_actions > 1 else ''}"
    if inspect.iscoroutine(answer):
        answer.close()
        raise RewardError(f"reward {name} is async and returned a coroutine, expected {expected} ({where})")
    values = answer.tolist() if isinstance(answer, ArrayLike) else answer
    if not isinstance(values, (list, tuple)):
        raise RewardError(
            f"reward {name} returned {type(answer).__name__} {_short(answer)}, expected {expected} ({where})"
        )
    if len(values) != num_joint_actions:
        raise RewardError(f"reward {name} returned {len(values)} values, expected {expected} ({where})")
    return [_reward(value, name, expected, where) for value in values]


def _reward(value: Any, name: str, expected: str, where: str) -> Reward:
    """One entry of a reward function's answer: a number, None, or the named components of a number."""
    if not isinstance(value, Mapping):
        return Reward(_number(value, f"reward {name} returned a list holding", expected, where))
    components: dict[str, float] = {}
    for component, part in value.items():
        number = _number(part, f"reward {name} returned the component {component!r} as", "a number", where)
        if not isinstance(component, str) or number is None:
            raise RewardError(
                f"reward {name} returned the component {component!r}: {_short(part)} ({where}); a component has a name "
                "and a number; to abstain, return None in place of the mapping"
            )
        components[component] = number
    if not components:
        raise RewardError(f"reward {name} returned a mapping without components, expected {expected} ({where})")
    return Reward(math.fsum(components.values()), components)


def _number(value: Any, returned: str, expected: str, where: str) -> float | None:
    scalar = value.tolist() if isinstance(value, ArrayLike) else value
    if scalar is None:
        return None
    if isinstance(scalar, int) and abs(scalar) > sys.float_info.max:
        raise RewardError(f"{returned} an integer beyond the float range ({where})")
    if not isinstance(scalar, (int, float)):
        raise RewardError(f"{returned} {type(value).__name__} {_short(value)}, expected {expected} ({where})")
    return float(scalar)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
