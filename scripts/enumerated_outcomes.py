"""The expectation of marl_runner's gradient over every outcome of a tabular team, nothing sampled.

The loss is linear in the advantages, so it is enough to know, at each prompt and for each agent, the expected
advantage that falls to each completion, C(a) = E[1/K Σ_k A_k 1{a_k = a}]; one call of the loss then makes the
gradient. `enumerated_trees.py` does without that, and without every other shortcut taken here.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.credit import CreditRules, credit_node
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.returns import with_returns
from marl_runner.settings import MAGRPOConfig
from marl_runner.tracking.options import Trackers
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import JointAction, Node, Prompt, Sample
from marl_runner.update import backward_batch
from tabular_team import FIRST_STATE, LATER_STATES, NUM_AGENTS, Gradients, TabularTeam

Law = dict[tuple[int, int], dict[float, float]]
"""Joint action → {its return: probability}; more than one return where a sampled child follows."""


@dataclass(frozen=True)
class Case:
    """One setting of the estimator: our options, by name."""

    K: int
    num_turns: int
    joint_mode: str
    advantage_mode: str
    normalize: bool = False
    node_weighting: str = "objective"
    discount: float = 1.0

    @property
    def linear(self) -> bool:
        """Whether the advantages are linear in the returns."""
        return self.advantage_mode != "max" and not self.normalize

    @property
    def num_joint_actions(self) -> int:
        """J."""
        return JOINT_MODES[self.joint_mode]().size(NUM_AGENTS, self.K)

    @property
    def num_nodes(self) -> int:
        """Of a full tree."""
        return sum(self.num_joint_actions**turn for turn in range(self.num_turns))

    @property
    def rules(self) -> CreditRules:
        """Our credit, under these options."""
        joint_mode, advantage_mode = JOINT_MODES[self.joint_mode](), ADVANTAGE_MODES[self.advantage_mode]()
        return CreditRules(joint_mode, advantage_mode, self.normalize, 0.0, self.node_weighting == "objective")


@dataclass(frozen=True)
class Outcome:
    """Outcomes of one node that have the same joint returns, and so the same advantages.

    Attributes:
        returns_J: Those returns.
        share_N_K: Per agent and generation, {completion: probability that it has it in this outcome}.
    """

    returns_J: tuple[float, ...]
    share_N_K: tuple[tuple[dict[int, float], ...], ...]


def multisets(values: Sequence[int], K: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every multiset of K values, with the number of orders it stands for; generations are exchangeable."""
    for chosen in itertools.combinations_with_replacement(values, K):
        repeats = math.prod(math.factorial(count) for count in Counter(chosen).values())
        yield chosen, math.factorial(K) // repeats


def aligned_outcomes(team: TabularTeam, state: int, law: Law, K: int) -> Iterator[Outcome]:
    """K independent joint draws, grouped by their returns."""
    first, second = [probabilities.tolist() for probabilities in team.probabilities(state)]
    shares: dict[float, tuple[dict[int, float], ...]] = defaultdict(lambda: (defaultdict(float), defaultdict(float)))
    for pair, returns in law.items():
        for value, probability in returns.items():
            for agent, completion in enumerate(pair):
                shares[value][agent][completion] += first[pair[0]] * second[pair[1]] * probability
    total = {value: sum(share_N[0].values()) for value, share_N in shares.items()}
    for returns_K, orders in multisets(sorted(shares), K):
        others_K = [orders * math.prod(total[v] for i, v in enumerate(returns_K) if i != k) for k in range(K)]
        share_N_K = tuple(
            tuple(
                {a: others * p for a, p in shares[value][n].items()}
                for value, others in zip(returns_K, others_K, strict=True)
            )
            for n in range(NUM_AGENTS)
        )
        yield Outcome(returns_K, share_N_K)


def cross_outcomes(team: TabularTeam, state: int, law: Law, K: int) -> Iterator[Outcome]:
    """K independent draws of each agent, and the return of every combination."""
    probabilities = [values.tolist() for values in team.probabilities(state)]
    index_J = JOINT_MODES["cross"]().index(NUM_AGENTS, K)
    for groups in itertools.product(multisets(range(team.game.size), K), repeat=NUM_AGENTS):
        drawn = math.prod(
            orders * math.prod(probabilities[agent][a] for a in chosen) for agent, (chosen, orders) in enumerate(groups)
        )
        pairs = [(groups[0][0][first], groups[1][0][second]) for first, second in index_J]
        for returns in itertools.product(*(law[pair].items() for pair in pairs)):
            probability = drawn * math.prod(chance for _, chance in returns)
            share_N_K = tuple(tuple({a: probability} for a in chosen) for chosen, _ in groups)
            yield Outcome(tuple(value for value, _ in returns), share_N_K)


OUTCOMES = {"aligned": aligned_outcomes, "cross": cross_outcomes}


def scored_node(team: TabularTeam, case: Case, turn: int, rewards_J: Sequence[float]) -> Node:
    """A leaf with these rewards; credit looks at how many completions there are, not at what they say."""
    index_J = case.rules.joint_mode.index(NUM_AGENTS, case.K)
    completions_N_K = ((team.policies[0].completions[0],) * case.K,) * NUM_AGENTS
    actions_J = tuple(JointAction(index_N, reward) for index_N, reward in zip(index_J, rewards_J, strict=True))
    return Node(turn, (Prompt("", ()),) * NUM_AGENTS, completions_N_K, actions_J, (), 0)


def reward_law(team: TabularTeam, state: int) -> Law:
    """Without a child, the reward is the return."""
    return {pair: {team.game.reward(*pair, state): 1.0} for pair in team.game.pairs()}


def return_law(team: TabularTeam, case: Case) -> Law:
    """The returns of the root's joint actions, by our `with_returns` over every outcome of the child.

    The expectation of a linear advantage needs a return's mean only, given the joint action: each child is
    sampled independently of its siblings and of all that the root sampled, so its mean can be put in its place.
    """
    children = {state: child_rewards(team, case, state) for state in LATER_STATES}
    law: Law = {}
    for pair in team.game.pairs():
        law[pair] = defaultdict(float)
        root = JointAction((0, 0), team.game.reward(*pair, FIRST_STATE))
        for rewards_J, probability in children[team.game.next_state(*pair)].items():
            child = scored_node(team, case, 1, rewards_J)
            node = dataclasses.replace(child, turn=0, joint_actions_J=(root,), children_J=(child,))
            value = with_returns(node, case.discount).returns_J[0]
            assert value is not None
            law[pair][value] += probability
    return law


def child_rewards(team: TabularTeam, case: Case, state: int) -> dict[tuple[float, ...], float]:
    """{rewards of a child's joint actions, sorted: probability}, or their expectation alone in a linear case."""
    law = reward_law(team, state)
    if case.linear:
        first, second = [probabilities.tolist() for probabilities in team.probabilities(state)]
        expected = sum(first[a] * second[b] * value for (a, b), returns in law.items() for value in returns)
        return {(expected,) * case.num_joint_actions: 1.0}
    probability: dict[tuple[float, ...], float] = defaultdict(float)
    for outcome in OUTCOMES[case.joint_mode](team, state, law, case.K):
        probability[tuple(sorted(outcome.returns_J))] += sum(outcome.share_N_K[0][0].values())
    return probability


def expected_samples(team: TabularTeam, case: Case, turn: int, state: int, law: Law) -> tuple[Sample, ...]:
    """Per agent one Sample of all its completions, whose loss is the expected loss of a node at `state`."""
    size = team.game.size
    credited = [[0.0] * size for _ in range(NUM_AGENTS)]
    samples: tuple[Sample, ...] = ()
    for outcome in OUTCOMES[case.joint_mode](team, state, law, case.K):
        node = dataclasses.replace(scored_node(team, case, turn, outcome.returns_J), returns_J=outcome.returns_J)
        samples = credit_node(node, case.rules)
        for sample, share_K in zip(samples, outcome.share_N_K, strict=True):
            for advantage, share in zip(sample.advantages_K, share_K, strict=True):
                assert advantage is not None
                for completion, probability in share.items():
                    credited[sample.agent][completion] += probability * advantage / case.K
    return tuple(
        dataclasses.replace(
            sample,
            prompt=Prompt(str(state), (ord(str(state)),)),
            completions_K=policy.completions,
            # the loss takes the mean over the completions it is given
            advantages_K=tuple(size * value for value in expected),
        )
        for sample, policy, expected in zip(samples, team.policies, credited, strict=True)
    )


def make_trainer(team: TabularTeam, case: Case, threshold: float | None = None) -> MAGRPOTrainer:
    """The two policies and their game in marl_runner, under the options of a case."""
    place = {completion.text: index for index, completion in enumerate(team.policies[0].completions)}

    def reward(first: list[str], second: list[str], *, prompts: list[str]) -> list[float]:
        return [team.game.reward(place[first[0]], place[second[0]], int(prompts[0]))]

    def transition(agent_completions: list[str]) -> list[str]:
        return [str(team.game.next_state(*(place[text] for text in agent_completions)))] * NUM_AGENTS

    config = MAGRPOConfig(
        num_agents=NUM_AGENTS,
        num_turns=case.num_turns,
        num_generations=case.K,
        joint_mode=case.joint_mode,
        advantage_mode=case.advantage_mode,
        advantage_normalization=case.normalize,
        node_weighting=case.node_weighting,
        discount=case.discount,
        early_termination_threshold=threshold,
    )
    return MAGRPOTrainer(
        agents=list(team.policies),
        reward_func=reward,
        external_transition=transition,
        args=config,
        tracker=Trackers([]),
    )


def descent(trainer: MAGRPOTrainer, sample: Sample, scale: float) -> torch.Tensor:
    """Minus the gradient that our loss gives for one sample: the direction in which a step goes."""
    agent = trainer.team.agents[sample.agent]
    (parameter,) = agent.policy.parameters()
    parameter.grad = None
    backward_batch(agent, [dataclasses.replace(sample, weight=scale)], trainer.args)
    assert parameter.grad is not None
    return -parameter.grad


def expected_gradients(team: TabularTeam, case: Case) -> Gradients:
    """[turn][agent] expected step direction of one minibatch that holds the nodes of one full tree."""
    trainer = make_trainer(team, case)
    laws = [return_law(team, case)] if case.num_turns == 2 else []
    result = []
    for turn in range(case.num_turns):
        total = [torch.zeros_like(policy.weights) for policy in team.policies]
        for state, probability in visits(team, turn).items():
            law = laws[turn] if turn < len(laws) else reward_law(team, state)
            nodes = case.num_joint_actions**turn * probability
            for sample in expected_samples(team, case, turn, state, law):
                scale = sample.weight * nodes / case.num_nodes
                total[sample.agent] += descent(trainer, sample, scale)
        result.append(total)
    return result


def visits(team: TabularTeam, turn: int) -> dict[int, float]:
    """{state: probability that a node of this turn is there}."""
    if turn == 0:
        return {FIRST_STATE: 1.0}
    first, second = [probabilities.tolist() for probabilities in team.probabilities(FIRST_STATE)]
    chances: dict[int, float] = defaultdict(float)
    for a, b in team.game.pairs():
        chances[team.game.next_state(a, b)] += first[a] * second[b]
    return chances
