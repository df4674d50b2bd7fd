"""The environments and policies, shared by the learner and its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Distribution, Normal

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """An environment and the sizes that its policy needs."""

    name: str
    """Gymnasium's id."""
    obs_dim: int
    """Length of an observation."""
    action_dim: int
    """Number of discrete actions, or length of a continuous action."""
    continuous: bool
    """Whether actions are continuous."""

    @property
    def lr(self) -> float:
        """Adam's learning rate."""
        return 3e-4 if self.continuous else 1e-2


ENV_CONFIGS = {
    "cartpole": EnvConfig(name="CartPole-v1", obs_dim=4, action_dim=2, continuous=False),
    "halfcheetah": EnvConfig(name="HalfCheetah-v5", obs_dim=17, action_dim=6, continuous=True),
    "hopper": EnvConfig(name="Hopper-v5", obs_dim=11, action_dim=3, continuous=True),
    "walker2d": EnvConfig(name="Walker2d-v5", obs_dim=17, action_dim=6, continuous=True),
    "ant": EnvConfig(name="Ant-v5", obs_dim=105, action_dim=8, continuous=True),
}


class DiscretePolicy(nn.Module):
    """A categorical policy over discrete actions."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, action_dim))

    def forward(self, states: torch.Tensor) -> Distribution:
        """Return the distribution of actions for states [N, obs_dim]."""
        return Categorical(logits=self.net(states), validate_args=False)

    def log_prob(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return log π(a|s), [N]."""
        return self(states).log_prob(actions)

    def sample_noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Sample the noise with which `actor` samples the actions of an episode, [steps, action_dim]."""
        return rng.gumbel(size=(steps, self.net[-1].out_features)).astype(np.float32)

    def actor(self) -> Callable[[np.ndarray, np.ndarray], int]:
        """Return a function (state, noise) -> action in numpy, which for one state is many times faster than torch."""
        net = to_numpy(self.net)
        # Gumbel-max trick: the argmax of logits + Gumbel noise is a sample from their softmax.
        return lambda state, noise: int((net(state) + noise).argmax())


class ContinuousPolicy(nn.Module):
    """A Gaussian policy with a learned standard deviation that does not depend on the state."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: int = 256) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(obs_dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, action_dim),
        )
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def forward(self, states: torch.Tensor) -> Distribution:
        """Return the distribution of actions for states [N, obs_dim]."""
        return Normal(self.net(states), self.log_std.exp(), validate_args=False)

    def log_prob(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return log π(a|s), [N]."""
        return self(states).log_prob(actions).sum(-1)

    def sample_noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Sample the noise with which `actor` samples the actions of an episode, [steps, action_dim]."""
        return rng.standard_normal((steps, len(self.log_std)), dtype=np.float32)

    def actor(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return a function (state, noise) -> action in numpy, which for one state is many times faster than torch."""
        net, std = to_numpy(self.net), self.log_std.detach().exp().numpy()
        return lambda state, noise: net(state) + std * noise


def create_policy(config: EnvConfig) -> DiscretePolicy | ContinuousPolicy:
    """Create an untrained policy for an environment."""
    kind = ContinuousPolicy if config.continuous else DiscretePolicy
    return kind(config.obs_dim, config.action_dim)


def create_env(config: EnvConfig) -> gym.Env:
    """Create an environment, without Gymnasium's checks of every step."""
    return gym.make(config.name, disable_env_checker=True)


@lru_cache
def create_once(create: Callable[[EnvConfig], T], config: EnvConfig) -> T:
    """Return `create(config)`, called once per process, so that the episodes of a worker share the result."""
    return create(config)


def to_numpy(net: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """Return a network of ReLU layers as a numpy function of one state, which shares memory with the parameters."""
    *hidden, (last_weight, last_bias) = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in net if isinstance(layer, nn.Linear)
    )

    def forward(x: np.ndarray) -> np.ndarray:
        for weight, bias in hidden:
            x = weight @ x
            x += bias
            np.maximum(x, 0, out=x)
        return last_weight @ x + last_bias

    return forward
