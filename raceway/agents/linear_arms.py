"""Agents for linear bandits: a ridge regression of the reward for every arm, which is updated in closed form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn

from raceway.agents.agent import Agent, Spaces
from raceway.agents.distributions import MASKED_LOGIT, Distribution
from raceway.agents.exploration import Explorer
from raceway.agents.network_choice import RECURRENT, network_for
from raceway.agents.networks import Encoder
from raceway.agents.policy import Policy, as_tensor
from raceway.errors import ConfigError
from raceway.rl import Batch, network_obs_space, tree_map
from raceway.rl.linear_bandits import random_argmax, thompson_samples, updated_inverse, upper_bounds

Array = np.ndarray
_NOT_USED = ("hidden", "lr", "lr_end", "max_grad_norm", "adam_epsilon", "device", "learner_threads", "compile_losses",
             "gamma")  # fmt: skip


class LinearArms(nn.Module):
    """The mean reward xᵀθ of every arm, for the features x of an observation. Nothing of it is trained by gradients.

    Args:
        encoder: from observations to features.
        num_arms: the number K of arms.
        ridge: the regularisation λ.
    """

    def __init__(self, encoder: Encoder, num_arms: int, ridge: float) -> None:
        super().__init__()
        self.encoder, size = encoder, encoder.size
        self.theta: Tensor
        self.inverse: Tensor
        self.register_buffer("theta", torch.zeros(num_arms, size, dtype=torch.float64))
        self.register_buffer("inverse", (torch.eye(size, dtype=torch.float64) / ridge).repeat(num_arms, 1, 1))

    def features(self, obs: Any) -> Tensor:
        """Return the features of observations, [N, D], in float64."""
        with torch.no_grad():
            return self.encoder(obs).double()

    def forward(self, obs: Any) -> Tensor:
        """Return the mean reward of every arm, [N, K]."""
        return self.features(obs) @ self.theta.T


class ArmStatistics(nn.Module):
    """A and b of every arm, and how often it was pulled. Acting needs none of them."""

    def __init__(self, num_arms: int, size: int, ridge: float) -> None:
        super().__init__()
        self.precision: Tensor
        self.moment: Tensor
        self.pulls: Tensor
        self.register_buffer("precision", (torch.eye(size, dtype=torch.float64) * ridge).repeat(num_arms, 1, 1))
        self.register_buffer("moment", torch.zeros(num_arms, size, dtype=torch.float64))
        self.register_buffer("pulls", torch.zeros(num_arms, dtype=torch.int64))


class LinearBandit(Agent):
    """A policy with a linear model of every arm's reward.

    Args:
        actor: the policy, whose network is `LinearArms`.
        statistics: what the models are computed from.
        recompute_every: pulls of an arm after which its A⁻¹ is computed from A again, against rounding errors.
    """

    def __init__(self, actor: Policy, statistics: ArmStatistics, recompute_every: int) -> None:
        super().__init__(actor, statistics=statistics)
        self.statistics: ArmStatistics
        self.recompute_every = recompute_every

    def fit(self, batch: Batch) -> dict[str, float]:
        """Update the model of the arm that was pulled in each row, one row after the other, and return metrics."""
        arms, statistics = self.actor.network, self.statistics
        assert isinstance(arms, LinearArms)
        features = arms.features(self.actor.network_obs(tree_map(as_tensor, batch["obs"]))).numpy()
        pulled = np.asarray(batch["action"]) - getattr(self.actor.distribution, "start", 0)
        theta, inverse = arms.theta.numpy(), arms.inverse.numpy()
        precision, moment, pulls = (
            part.numpy() for part in (statistics.precision, statistics.moment, statistics.pulls)
        )
        errors = []
        for x, arm, reward in zip(features, pulled.tolist(), np.asarray(batch["reward"], float), strict=True):
            errors.append(float(x @ theta[arm] - reward))
            precision[arm] += np.outer(x, x)
            moment[arm] += reward * x
            pulls[arm] += 1
            due = pulls[arm] % self.recompute_every == 0
            inverse[arm] = np.linalg.inv(precision[arm]) if due else updated_inverse(inverse[arm], x)
            theta[arm] = inverse[arm] @ moment[arm]
        return {"loss": float(np.square(errors).mean())}


def linear_bandit(spaces: Spaces, cfg: Any) -> Agent:
    """Return a linear model for each of some discrete actions, with the settings `ridge` and `recompute_every`."""
    obs_space, _ = network_obs_space(spaces.observation)
    if cfg.network in RECURRENT:  # which is refused later, with advice
        return Agent(Policy(*spaces, network_for(obs_space, spaces.action, cfg.network, ())))
    if not isinstance(cfg.network, str):
        raise ConfigError("a linear bandit has a linear model of its own, and trains no other network. Leave it out.")
    assert isinstance(spaces.action, Discrete)
    encoder, num_arms = Encoder(obs_space), int(spaces.action.n)
    policy = Policy(*spaces, LinearArms(encoder, num_arms, cfg.ridge))
    reason = "the models of a linear bandit are computed in closed form"
    policy.unused_settings = dict.fromkeys(_NOT_USED, reason)
    return LinearBandit(policy, ArmStatistics(num_arms, encoder.size, cfg.ridge), cfg.recompute_every)


class ArmScores(Explorer):
    """Pull the arm with the highest score; a random one of those that are equal.

    Args:
        alpha: how much exploration counts.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    @abstractmethod
    def scores(self, arms: LinearArms, means: Array, features: Array, random: np.random.Generator) -> Array:
        """Return the score of every arm, [N, K], for mean rewards [N, K] and features [N, D]."""

    def outputs_of(self, policy: Policy, random: np.random.Generator) -> Callable[[Any], Array]:
        return partial(self._outputs, policy, random)

    def _outputs(self, policy: Policy, random: np.random.Generator, obs: Any) -> Array:
        arms = policy.network
        assert isinstance(arms, LinearArms)
        features = arms.features(policy.network_obs(tree_map(torch.from_numpy, obs))).numpy()
        scores = self.scores(arms, features @ arms.theta.numpy().T, features, random)
        return np.where(obs["action_mask"] == 0, MASKED_LOGIT, scores) if policy.has_mask else scores

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        return random_argmax(outputs, random) + getattr(distribution, "start", 0)


class UpperConfidence(ArmScores):
    """Pull the arm with the highest upper confidence bound, xᵀθ + α √(xᵀ A⁻¹ x)."""

    def scores(self, arms: LinearArms, means: Array, features: Array, random: np.random.Generator) -> Array:
        return upper_bounds(means, arms.inverse.numpy(), features, self.alpha)


class ThompsonSampling(ArmScores):
    """Pull the arm that is the best one by a sample of the models: θ̃ from N(θ, α² A⁻¹)."""

    def scores(self, arms: LinearArms, means: Array, features: Array, random: np.random.Generator) -> Array:
        return thompson_samples(means, arms.inverse.numpy(), features, self.alpha, random)
