"""Ape-X: DQN with distributed prioritised replay.

Paper: Horgan et al. 2018, https://arxiv.org/abs/1803.00933

    store:    rollouts -> n-step transitions          on every worker
                 ~> prioritised replay                on its shards
                 -> weights                           to the worker that sent them
    replay:   batches sampled from the shards
                 ~> one Adam step                     on the learner
                 -> new priorities                    to the shard
                 -> target network
    both at the same time, with a rate limit between them

Differs from the paper: Adam instead of RMSProp; no dueling heads; new transitions get the maximum priority so far
instead of one computed by the worker.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import smooth_l1_loss

from raceway.agents import Agent, EpsilonGreedy, Spaces
from raceway.agents.builders import q_network
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ReplayConfig
from raceway.flow import Iter, ParIter, union_async
from raceway.ops import (
    CountSteps,
    LossOutput,
    MergeStats,
    ReplaySettings,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
)
from raceway.rl import Batch, Fragment, double_q_target
from raceway.settings.field_types import Fraction, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ReplayConfig):
    """Settings of Ape-X."""

    prioritised: ClassVar[bool] = True
    num_envs: PositiveInt = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 50
    """Steps per environment in one rollout fragment."""
    batch_size: PositiveInt = 512
    """Transitions per gradient step."""
    n_step: PositiveInt = 3
    """Steps n of the n-step return."""
    replay_shards: PositiveInt = 2
    """Number of actors that the replay buffer is sharded over."""
    alpha: Fraction = 0.6
    """Prioritisation exponent α."""
    beta: Fraction = 0.4
    """Importance-sampling exponent β."""
    beta_end: Fraction | None = None
    """Final β, after a linear change over total_timesteps. Without either, β is constant."""
    epsilon: Fraction = 0.4
    """Base ε of the ε-greedy policies: the environments use εⁱ, with i from 1 to 8."""
    weights_every: PositiveInt = 1
    """Fragments that a worker collects before it gets new weights."""

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the prioritised replay buffer."""
        settings: dict[str, Any] = {"num_shards": self.replay_shards, "alpha": self.alpha, "beta": self.beta}
        settings |= {"beta_end": self.beta_end, "beta_rows": self.total_timesteps}
        min_size = max(1, self.learning_starts // (2 * self.replay_shards))
        return dataclasses.replace(super().replay_settings, **settings, min_size=min_size)


def explorer(spaces: Spaces, cfg: Config) -> EpsilonGreedy:
    """Return an ε-greedy explorer with another ε for each environment, over all shards."""
    return EpsilonGreedy((cfg.epsilon ** torch.linspace(1, 8, cfg.num_envs)).numpy())


def loss(agent: Agent, batch: Batch) -> LossOutput:
    """Return the mean of w Huber(Q(s, a) - (Σ γᵏ rₖ + γⁿ Q'(s', argmax Q(s', ·)))); the batch is [N].

    Double Q-learning over n steps: the Q-network chooses the next action, the target network Q' evaluates it. w is the
    importance-sampling weight of the transition.
    """
    with torch.no_grad():
        next_q_online = agent.actor(batch["next_obs"], {})[0]
        next_q_target = agent.target.actor(batch["next_obs"], {})[0]
        td_target = double_q_target(batch["reward"], batch["discount"], next_q_online, next_q_target)
    q_values = agent.actor(batch["obs"], {})[0].gather(-1, agent.action_index(batch)[:, None]).squeeze(-1)
    losses = smooth_l1_loss(q_values, td_target, reduction="none") * batch["weight"]
    return LossOutput(losses.mean(), {"q_values": q_values.mean()}, priorities=(q_values - td_target).abs())


@algorithm("apex", Config, agent=q_network, explorer=explorer, actions=("discrete",))
def apex(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    shards = ctx.replay(cfg.replay_settings)
    store = (
        rollouts.for_each(Transitions(cfg.gamma, cfg.n_step))
        .gather_async()
        .for_each(StoreToReplay(shards))
        .for_each(ctx.weights(to="senders", every=cfg.weights_every))
        .for_each(CountSteps(ctx.learner))
    )
    replay = (
        ctx.samples(shards)
        .for_each(
            TrainOneStep(ctx.learner, loss, targets=Target(every=cfg.target_every)),
            **ctx.place(cfg.learner_on, cfg.learner_queue),
        )
        .for_each(UpdatePriorities())
    )
    return union_async(store=store, replay=replay, limits=cfg.limits).combine(MergeStats())
