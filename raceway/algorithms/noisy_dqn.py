"""Noisy DQN: DQN whose last layers have learnt noise on their weights, instead of ε-greedy exploration.

Paper: Fortunato et al. 2018, https://arxiv.org/abs/1706.10295

    store:    rollouts with noise -> transitions    on every worker
                 -> replay
    replay:   sampled batches
                 -> one Adam step, with noise       on the learner
                 -> target network
                 -> weights                         to all workers
    in turn, with a fixed number of environment steps per gradient step

The noise is factorised. It is sampled for every batch, for the network and the target network separately; and for every
step of a rollout, in each environment. Evaluation and exported policies are without it.

Differs from the paper: the last hidden layer and the output layer are noisy, as behind the convolutions there, and the
hidden layers before them are not; Adam instead of RMSProp, the Huber loss; parallel environments, and optionally n-step
returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from raceway.agents import NoisyGreedy, QAgent, Spaces
from raceway.agents.noisy_networks import NoisyLinear, with_noise
from raceway.agents.q_agents import feature_layers, headed_policy, num_actions
from raceway.agents.q_heads import stream
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union
from raceway.injection import injected
from raceway.ops import (
    ConcatBatches,
    CountSteps,
    MergeStats,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
)
from raceway.rl import Batch, Fragment, q_target
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of noisy DQN."""

    num_envs: PositiveInt = 4
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers. The last one is noisy."""
    n_step: PositiveInt = 1
    """Steps n of the n-step return."""
    sigma: PositiveFloat = 0.5
    """Initial deviation σ₀ of the noise, which is divided by the root of a layer's inputs."""


def agent(spaces: Spaces, cfg: Config) -> QAgent:
    """Return an agent whose network ends in noisy layers."""
    *hidden, width = cfg.hidden or (None,)
    trunk, size = feature_layers(spaces, cfg, hidden, own_width=width)
    head = stream(size, width, num_actions(spaces), partial(NoisyLinear, sigma=cfg.sigma))
    return QAgent(headed_policy(spaces, cfg, trunk, *head))


def explorer(spaces: Spaces, cfg: Config) -> NoisyGreedy:
    """Return an explorer that takes the best actions of the network with noise."""
    return NoisyGreedy()


def loss(agent: QAgent, batch: Batch, *, random: torch.Generator = injected) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean of Huber(Q(s, a; ε) - (r + γ max Q'(s', ·; ε'))), where Q' is the target network.

    The noise ε of the network and ε' of the target network are sampled once for the batch, [N].
    """
    with torch.no_grad(), with_noise(agent.target, random):
        td_target = q_target(batch["reward"], batch["discount"], agent.target.next_q_values(batch))
    with with_noise(agent, random):
        q_values = agent.q_values(batch).gather(-1, agent.action_index(batch)[:, None]).squeeze(-1)
    return smooth_l1_loss(q_values, td_target), {"q_values": q_values.mean()}


@algorithm("noisy_dqn", Config, agent=agent, explorer=explorer, actions=("discrete",))
def noisy_dqn(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_sync()
        .combine(ConcatBatches())
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
