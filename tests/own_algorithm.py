"""An algorithm outside of the package: a policy gradient for a squashed Gaussian, with a loss that keeps a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from raceway.agents import Agent, Spaces
from raceway.agents.distributions import SquashedGaussian
from raceway.agents.networks import mlp
from raceway.agents.policy import Policy
from raceway.algorithms import AlgorithmConfig, Context, algorithm
from raceway.flow import Iter, ParIter
from raceway.injection import injected
from raceway.ops import TrainOneStep, TrainStats
from raceway.rl import Batch
from raceway.settings.field_types import PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of the algorithm."""

    env: Any = "Pendulum-v1"
    """Environment."""
    num_envs: PositiveInt = 2
    """Number of parallel environments."""
    fragment_steps: PositiveInt = 8
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (8,)
    """Widths of the hidden layers."""


def agent(spaces: Spaces, cfg: Config) -> Agent:
    """Return a policy with a distribution that is not the usual one of its actions."""
    distribution = SquashedGaussian(spaces.action)
    network = mlp(spaces.observation, Discrete(distribution.size), cfg.hidden or ())
    return Agent(Policy(*spaces, network, distribution))


class BaselineLoss:
    """A policy gradient with a running baseline, and random numbers of every kind."""

    def __init__(self) -> None:
        self.baseline = torch.zeros(())
        self.history: list[Tensor] = []
        self.torch_random, self.numpy_random = torch.Generator().manual_seed(5), np.random.default_rng(6)

    def __call__(self, agent: Agent, batch: Batch, *, random: torch.Generator = injected) -> Tensor:
        """Return the loss."""
        params = agent.actor(batch["obs"], {})[0]
        log_prob = agent.actor.distribution.log_prob(params, batch["action"])
        self.baseline = 0.9 * self.baseline + 0.1 * batch["reward"].mean()
        self.history = [*self.history, self.baseline][-3:]
        numbers = [torch.rand((), generator=generator) for generator in (random, self.torch_random)]
        scale = sum(numbers) + float(self.numpy_random.random()) + torch.stack(self.history).mean().tanh()
        return -(log_prob * (batch["reward"] - self.baseline)).mean() * scale


@algorithm("squashed", Config, agent=agent, actions=("box",))
def squashed_gradient(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    train = TrainOneStep(ctx.learner, BaselineLoss())
    return rollouts.gather_sync().flatten().for_each(train).for_each(ctx.weights())
