"""A team and a game small enough to enumerate, and the exact gradient of its expected return.

Two agents write completions of at most two tokens over {a, b, END}: seven in all, each with a probability that
plain softmaxes give. Nothing in the second half of this file uses marl_runner, so that it can judge it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from marl_runner.loss import token_log_probs
from marl_runner.types import Completion, Prompt, Row, Sampling

NUM_AGENTS = 2
FIRST_STATE = 0
LATER_STATES = (1, 2, 3)
Gradients = list[list[torch.Tensor]]
"""[turn][agent]."""
FEATURES = (0.3, 0.9, -0.7, -0.2)
"""What a policy sees of each state; a prompt's text is the number of its state."""


class TabularPolicy:
    """Logits are W[previous token] + feature(prompt) * U[previous token], in float64.

    Args:
        seed: Of the fixed, far from uniform weights.
        alphabet: One character per token; END is one more.
        max_tokens: Longest completion.
    """

    def __init__(self, seed: int, alphabet: str = "ab", max_tokens: int = 2) -> None:
        size = len(alphabet) + 1
        rng = torch.Generator().manual_seed(seed)
        weights = torch.randn(2, size, size, generator=rng, dtype=torch.float64)
        self.weights = torch.nn.Parameter(weights)
        self.completions = tuple(all_completions(alphabet, max_tokens))
        self.script: Iterator[Completion] = iter(())
        self.context_length: int | None = None

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    def encode(self, text: str) -> tuple[int, ...]:
        """One token per character."""
        return tuple(map(ord, text))

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """The characters again."""
        return "".join(map(chr, token_ids))

    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seeds: Sequence[int]
    ) -> list[tuple[Completion, ...]]:
        """The next entries of `script`: the outcome whose turn it is in an enumeration."""
        return [tuple(next(self.script) for _ in range(num_completions)) for _ in prompts]

    def logits(self, state: int) -> torch.Tensor:
        """[previous token, token]; the last row is that of the first token, which follows END."""
        return self.weights[0] + FEATURES[state] * self.weights[1]

    def token_log_probs(self, rows: Sequence[Row]) -> torch.Tensor:
        """[R, T] log-probabilities by the loss's own function, 0 beyond a completion's end."""
        logits_R = torch.stack([self.logits(int(prompt.text)) for prompt, _ in rows])
        T = max(len(completion.token_ids) for _, completion in rows)
        padded = [(*each.token_ids, *(-1,) * (T - len(each.token_ids))) for _, each in rows]
        ids = torch.tensor(padded)
        previous = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=logits_R.shape[1] - 1)
        row = torch.arange(len(rows)).unsqueeze(1)
        return token_log_probs(logits_R[row, previous], ids.clamp(min=0)).masked_fill(ids < 0, 0.0)

    def num_scored_tokens(self, rows: Sequence[Row]) -> int:
        """The completions' tokens."""
        return sum(len(completion.token_ids) for _, completion in rows)

    def weights_changed(self) -> None:
        """Nothing is derived from the weights."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """W and U, stacked."""
        return [self.weights]

    def frozen_copy(self, device: torch.device) -> TabularPolicy:
        """A copy of the weights."""
        return copy.deepcopy(self)

    def save(self, folder: Path) -> None:
        """Writes the weights."""
        torch.save(self.weights, folder / "tabular.pt")


def all_completions(alphabet: str, max_tokens: int) -> Iterator[Completion]:
    """Every completion there is: END after fewer than `max_tokens` tokens, none at that length."""
    for length in range(max_tokens + 1):
        for ids in itertools.product(range(len(alphabet)), repeat=length):
            finished = length < max_tokens
            text = "".join(alphabet[token] for token in ids)
            yield Completion(text, (*ids, len(alphabet)) if finished else ids, finished)


@dataclass(frozen=True)
class Game:
    """Rewards and next states by the indices of both completions: not symmetric, not a sum over the agents.

    Attributes:
        size: Number of completions of an agent.
        scale: Multiplies every reward.
    """

    size: int
    scale: float = 1.0

    def reward(self, first: int, second: int, state: int) -> float:
        """An integer of -1 … 3, times `scale`."""
        return self.scale * ((first * second + 2 * first + second * second + state * (first + 2)) % 5 - 1)

    def next_state(self, first: int, second: int) -> int:
        """One of LATER_STATES."""
        return LATER_STATES[(first + 2 * second * second) % 3]

    def pairs(self) -> list[tuple[int, int]]:
        """Every joint action."""
        return list(itertools.product(range(self.size), repeat=NUM_AGENTS))


@dataclass(frozen=True)
class TabularTeam:
    """A game and its two players."""

    game: Game
    policies: tuple[TabularPolicy, ...]

    def probabilities(self, state: int) -> list[torch.Tensor]:
        """Of every completion of each agent: products of plain softmaxes, with gradient."""
        result = []
        for policy in self.policies:
            table = torch.softmax(policy.logits(state), dim=-1)
            result.append(torch.stack([chain(table, each.token_ids) for each in policy.completions]))
        return result


def chain(table: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
    """Product of table[previous, token] along a completion."""
    probability, previous = table.new_ones(()), len(table) - 1
    for token in token_ids:
        probability, previous = probability * table[previous, token], token
    return probability


def make_team(alphabet: str = "ab", max_tokens: int = 2, scale: float = 1.0) -> TabularTeam:
    """Seven completions each, or fewer with a smaller alphabet and length."""
    policies = tuple(TabularPolicy(seed, alphabet, max_tokens) for seed in (3, 8))
    return TabularTeam(Game(len(policies[0].completions), scale), policies)


def joint_probabilities(team: TabularTeam, state: int) -> torch.Tensor:
    """[first, second]."""
    first, second = team.probabilities(state)
    return torch.outer(first, second)


def rewards(team: TabularTeam, state: int) -> torch.Tensor:
    """[first, second]."""
    size = range(team.game.size)
    table = [[team.game.reward(first, second, state) for second in size] for first in size]
    return torch.tensor(table, dtype=torch.float64)


def last_values(team: TabularTeam) -> torch.Tensor:
    """[first, second] expected reward of turn 2 after each joint action of turn 1."""
    by_state = {state: (joint_probabilities(team, state) * rewards(team, state)).sum() for state in LATER_STATES}
    nexts = [by_state[team.game.next_state(*pair)] for pair in team.game.pairs()]
    return torch.stack(nexts).reshape(team.game.size, team.game.size)


def expected_return(team: TabularTeam, num_turns: int, discount: float = 1.0) -> torch.Tensor:
    """Σ_a1 π(a1) [r(a1) + discount Σ_a2 π(a2 | a1) r(a2)], over every trajectory."""
    later = discount * last_values(team) if num_turns == 2 else 0.0
    return (joint_probabilities(team, FIRST_STATE) * (rewards(team, FIRST_STATE) + later)).sum()


def gradient(value: torch.Tensor, policy: TabularPolicy) -> torch.Tensor:
    """d value / d parameters of one agent."""
    return torch.autograd.grad(value, policy.weights, retain_graph=True)[0]


def turn_gradients(team: TabularTeam, num_turns: int, discount: float = 1.0) -> Gradients:
    """[turn][agent] gradient of E[R_t log π_i(a_t | h_t)] with R_t, the discounted reward from turn t on, held fixed.

    Turn t is not multiplied by discount^t, as in the objective of docs/algorithms.md. At discount 1 the turns
    add up to the gradient of `expected_return`.
    """
    first = joint_probabilities(team, FIRST_STATE)
    if num_turns == 1:
        surrogates = [(first * rewards(team, FIRST_STATE)).sum()]
    else:
        later = last_values(team)
        surrogates = [
            (first * (rewards(team, FIRST_STATE) + discount * later.detach())).sum(),
            (first.detach() * later).sum(),
        ]
    return [[gradient(value, policy) for policy in team.policies] for value in surrogates]


def stopped_tree(team: TabularTeam, K: int, threshold: float, others_held: bool) -> torch.Tensor:
    """Mean return of an aligned root under early termination: no child where the mean of the K rewards is greater.

    Its gradient is that of the expected return. With `others_held` the other K-1 draws have no gradient: that is
    what a completion is credited with, whose own draw also decides whether its siblings go on.
    """
    now, later = rewards(team, FIRST_STATE).flatten(), last_values(team).flatten()
    drawn = joint_probabilities(team, FIRST_STATE).flatten()
    chosen = torch.cartesian_prod(*[torch.arange(len(now))] * K)
    goes_on = now[chosen].mean(dim=1, keepdim=True) <= threshold
    returns = now[chosen] + goes_on * later[chosen]
    rest = drawn[chosen[:, 1:]].prod(dim=1)
    probability = drawn[chosen[:, 0]] * (rest.detach() if others_held else rest)
    return (probability * (returns[:, 0] if others_held else returns.mean(dim=1))).sum()
