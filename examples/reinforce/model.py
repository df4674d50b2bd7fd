"""What the learner and its workers share: the environments and a policy for each of them."""

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
    """An environment and the settings REINFORCE uses on it."""

    name: str
    """Gymnasium's id."""
    obs_dim: int
    """Length of an observation."""
    action_dim: int
    """Number of actions to choose from, or length of a continuous action."""
    continuous: bool
    """Whether an action is a vector rather than a choice."""
    lr: float
    """Adam step size."""
    gamma: float = 0.99
    """Discount factor."""
    hidden: int = 64
    """Width of the hidden layers."""


ENV_CONFIGS = {
    "cartpole": EnvConfig(name="CartPole-v1", obs_dim=4, action_dim=2, continuous=False, lr=2e-2),
    "halfcheetah": EnvConfig(name="HalfCheetah-v5", obs_dim=17, action_dim=6, continuous=True, lr=3e-3),
    "hopper": EnvConfig(name="Hopper-v5", obs_dim=11, action_dim=3, continuous=True, lr=3e-3),
    "walker2d": EnvConfig(name="Walker2d-v5", obs_dim=17, action_dim=6, continuous=True, lr=3e-3),
    "ant": EnvConfig(name="Ant-v5", obs_dim=105, action_dim=8, continuous=True, lr=3e-3),
}


class DiscretePolicy(nn.Module):
    """A categorical distribution over actions."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__()
        self.net = mlp(config.obs_dim, config.hidden, config.action_dim)

    def forward(self, states: torch.Tensor) -> Distribution:
        """Return the distribution of actions for states [N, obs_dim]."""
        return Categorical(logits=self.net(states), validate_args=False)

    def log_prob(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return log π(a|s), [N]."""
        return self(states).log_prob(actions)

    def draw_noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Draw what `actor` needs for an episode of that many steps, one row a step."""
        return rng.gumbel(size=(steps, self.net[-1].out_features)).astype(np.float32)

    def actor(self) -> Callable[[np.ndarray, np.ndarray], int]:
        """Return (state, noise) -> action in numpy, which for one state is many times faster than torch."""
        net = numpy_mlp(self.net)
        # Gumbel's trick: the largest of logits + Gumbel noise is a sample of their softmax.
        return lambda state, noise: int((net(state) + noise).argmax())


class ContinuousPolicy(nn.Module):
    """A Gaussian over actions whose standard deviation is learned, the same for every state."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__()
        self.net = mlp(config.obs_dim, config.hidden, config.action_dim)
        self.log_std = nn.Parameter(torch.full((config.action_dim,), -0.5))

    def forward(self, states: torch.Tensor) -> Distribution:
        """Return the distribution of actions for states [N, obs_dim]."""
        return Normal(self.net(states), self.log_std.exp(), validate_args=False)

    def log_prob(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return log π(a|s), [N]."""
        return self(states).log_prob(actions).sum(-1)

    def draw_noise(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        """Draw what `actor` needs for an episode of that many steps, one row a step."""
        return rng.standard_normal((steps, len(self.log_std)), dtype=np.float32)

    def actor(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return (state, noise) -> action in numpy, which for one state is many times faster than torch."""
        net, std = numpy_mlp(self.net), self.log_std.detach().exp().numpy()
        return lambda state, noise: net(state) + std * noise


def create_policy(config: EnvConfig) -> DiscretePolicy | ContinuousPolicy:
    """Create an untrained policy for an environment."""
    return ContinuousPolicy(config) if config.continuous else DiscretePolicy(config)


def create_env(config: EnvConfig) -> gym.Env:
    """Create an environment; continuous actions outside its bounds are clipped."""
    env = gym.make(config.name, disable_env_checker=True)
    return gym.wrappers.ClipAction(env) if config.continuous else env


@lru_cache
def once(create: Callable[[EnvConfig], T], config: EnvConfig) -> T:
    """Create something the first time this process asks for it, so that a worker's episodes share it."""
    return create(config)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two tanh layers and a linear one, whose small start makes the first policy nearly uniform."""
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
    )
    with torch.no_grad():
        net[-1].weight.mul_(0.01)
        net[-1].bias.zero_()
    return net


def numpy_mlp(net: nn.Sequential) -> Callable[[np.ndarray], np.ndarray]:
    """Return the network as a numpy function of one state; its arrays share memory with the parameters."""
    (w1, b1), (w2, b2), (w3, b3) = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in net if isinstance(layer, nn.Linear)
    )
    return lambda x: w3 @ np.tanh(w2 @ np.tanh(w1 @ x + b1) + b2) + b3
