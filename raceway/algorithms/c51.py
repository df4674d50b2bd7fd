"""C51: the distribution of the return on fixed atoms, learnt by classification.

Paper: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887

    store:    rollouts -> transitions        on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step            on the learner
                 -> target network
                 -> weights                  to all workers
    in turn, with a fixed number of environment steps per gradient step

The network has a softmax over the atoms for every action. Actions are chosen by its expected value.

Differs from the paper: parallel environments, and optionally n-step returns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raceway.agents import EpsilonGreedy, Spaces
from raceway.agents.q_agents import DistributionalAgent, distributional_policy, num_actions
from raceway.agents.q_heads import Atoms, of_action
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    Explore,
    MergeStats,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
)
from raceway.rl import Batch, Fragment, LinearSchedule, project_distribution
from raceway.settings.field_types import Fraction, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of C51."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    num_atoms: PositiveInt = 51
    """Number of atoms of the distribution of the return."""
    v_min: float = -10.0
    """Return of the first atom. Discounted returns below it count as it."""
    v_max: float = 10.0
    """Return of the last atom. Discounted returns above it count as it."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    epsilon: Fraction = 0.05
    """Final ε of the ε-greedy policy."""
    epsilon_steps: PositiveInt = 100_000
    """Environment steps over which ε decays linearly from 1."""


def agent(spaces: Spaces, cfg: Config) -> DistributionalAgent:
    """Return an agent whose network has the logits of the atoms for every action."""
    atoms = Atoms(num_actions(spaces), cfg.num_atoms, cfg.v_min, cfg.v_max)
    return DistributionalAgent(distributional_policy(spaces, cfg, atoms))


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer, whose ε decays from 1."""
    return EpsilonGreedy(1.0)


def loss(agent: DistributionalAgent, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of -Σᵢ mᵢ log pᵢ(s, a), where m is r + γ Z'(s', a') projected to the atoms; the batch is [N].

    Z' is the distribution of the target network, and a' the action with the greatest expected value of it.
    """
    with torch.no_grad():
        next_logits = agent.target.distributions(batch["next_obs"])
        next_action = agent.target.expected(next_logits, batch["next_obs"]).argmax(-1)
        next_probabilities = of_action(next_logits, next_action).softmax(-1)
        support = agent.readout.support
        target = project_distribution(support, batch["reward"], batch["discount"], next_probabilities)
    log_probabilities = of_action(agent.distributions(batch["obs"]), agent.action_index(batch)).log_softmax(-1)
    q_values = (log_probabilities.detach().exp() * support).sum(-1)
    return -(target * log_probabilities).sum(-1).mean(), {"q_values": q_values.mean()}


@algorithm("c51", Config, agent=agent, explorer=explorer, actions=("discrete",))
def c51(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(Explore(ctx.exploration, epsilon=LinearSchedule(1.0, cfg.epsilon, cfg.epsilon_steps)))
        .for_each(StoreToReplay(shards))
        .for_each(CountSteps(ctx.learner))
    )
    train = TrainOneStep(ctx.learner, loss, targets=Target(every=cfg.target_every))
    replay = (
        ctx.samples(shards, synchronous=True)
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(ctx.weights(every=cfg.samples_per_round))
    )
    return union(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
