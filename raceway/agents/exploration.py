"""Exploration: how rollouts choose actions from the outputs of the acting network.

An explorer has knobs, such as the ε of ε-greedy exploration, which a plan may change during training. They are arrays
that travel to the workers beside the weights, and are no part of them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium import spaces

from raceway.agents.distributions import MASKED_LOGIT, Deterministic, Distribution
from raceway.agents.noisy_networks import NoisyActor
from raceway.checks import unknown_name
from raceway.errors import ConfigError

if TYPE_CHECKING:
    from raceway.agents.policy import Policy

Array = np.ndarray
LATE = 1 << 62
"""A number of steps after which no exploration of the first steps is under way any more."""
Knobs = dict[str, Array]
"""Settings of exploration by name: one number, or one for each slot."""


class Explorer(ABC):
    """Chooses the actions of rollouts.

    Args:
        knobs: the initial values of its knobs, one number each, or one for each slot, over all shards.
    """

    def __init__(self, **knobs: Any) -> None:
        self.knobs: Knobs = {name: np.array(value, np.float32) for name, value in knobs.items()}

    @abstractmethod
    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        """Return an action for every row of the network's outputs, [B, size]."""

    def choose_without_outputs(self, step: int, num: int, random: np.random.Generator) -> Array | None:
        """Return the actions of a step that needs no network, or None if it needs one.

        Args:
            step: the number of steps that each of the shard's environments has taken.
            num: the number of actions.
            random: the generator of the rollout.
        """
        return None

    def outputs_of(self, policy: Policy, random: np.random.Generator) -> Callable[[Any], Array] | None:
        """Return how the outputs that it chooses from are computed with the policy's current weights.

        Args:
            policy: the policy.
            random: the generator of the rollout.

        Returns:
            A function of observations, [B, ...], that returns [B, size]; None for the policy's own outputs.
        """
        return None

    def set_knobs(self, knobs: Mapping[str, Any]) -> None:
        """Change knobs."""
        for name, value in knobs.items():
            if name not in self.knobs:
                raise unknown_name(f"knob of {type(self).__name__}", name, list(self.knobs))
            self.knobs[name] = np.array(value, np.float32)

    def for_slots(self, num: int, first: int = 0) -> Self:
        """Return a copy for `num` slots from the slot `first` on; with more slots than knobs, these are repeated."""
        return self.at_slots(range(first, first + num))

    def at_slots(self, slots: Sequence[int]) -> Self:
        """Return a copy for some slots, by their numbers."""
        explorer, index = copy.copy(self), np.array(slots, np.int64)
        explorer.knobs = {
            name: value[index % len(value)] if value.ndim else value for name, value in self.knobs.items()
        }
        return explorer


class Sample(Explorer):
    """Sample from the distribution of the policy."""

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        return distribution.sample(outputs, random)


class Greedy(Explorer):
    """Take the most likely action, or the only one that the policy has for an observation."""

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        return distribution.mode(outputs)


class EpsilonGreedy(Explorer):
    """Take the action with the highest Q-value, or with probability ε a random one."""

    def __init__(self, epsilon: Any = 1.0) -> None:
        super().__init__(epsilon=epsilon)

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        explores = random.random(len(outputs)) < self.knobs["epsilon"]
        actions = outputs.argmax(-1)
        if explores.any():
            uniform = random.integers(outputs.shape[-1], size=len(outputs))
            # A random action that is masked is replaced by the greedy one.
            masked = np.take_along_axis(outputs, uniform[:, None], -1).squeeze(-1) <= MASKED_LOGIT
            actions = np.where(explores & ~masked, uniform, actions)
        return actions + getattr(distribution, "start", 0)


class NoisyGreedy(Explorer):
    """Take the action with the highest Q-value of a network with noisy layers, whose noise is sampled in every step."""

    def outputs_of(self, policy: Policy, random: np.random.Generator) -> Callable[[Any], Array]:
        return NoisyActor(policy, random)

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        return distribution.mode(outputs)


class GaussianNoise(Explorer):
    """Add normal noise to the actions of a deterministic policy, and clip them to the bounds.

    Args:
        noise: the standard deviation, as a share of half the range of actions; one number, or one for each slot.
    """

    def __init__(self, noise: Any = 0.1) -> None:
        super().__init__(noise=noise)

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        if not isinstance(distribution, Deterministic):
            raise ConfigError(f"noise is added to the actions of a deterministic policy, not of {distribution!r}")
        deviation = self.knobs["noise"]
        noise = random.standard_normal(outputs.shape, np.float32) * (
            deviation[:, None] if deviation.ndim else deviation
        )
        return distribution.scaled(np.clip(np.tanh(outputs) + noise, -1, 1))


class UniformWarmUp(Explorer):
    """Take uniformly random actions for the first steps of every environment, then explore as another explorer does.

    Args:
        space: the action space: Discrete, or a bounded Box.
        steps: the number of steps of each environment that are random.
        then: the explorer of the steps after that.
    """

    def __init__(self, space: spaces.Space, steps: int, then: Explorer) -> None:
        if not (isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.is_bounded())):
            raise ConfigError(
                f"random actions until training starts need a Box with finite bounds, or Discrete, not {space}"
            )
        super().__init__()
        self.space, self.steps, self.then = space, steps, then
        self.knobs = then.knobs

    def choose(self, distribution: Distribution, outputs: Array, random: np.random.Generator) -> Array:
        return self.then.choose(distribution, outputs, random)

    def outputs_of(self, policy: Policy, random: np.random.Generator) -> Callable[[Any], Array] | None:
        return self.then.outputs_of(policy, random)

    def choose_without_outputs(self, step: int, num: int, random: np.random.Generator) -> Array | None:
        if step >= self.steps:
            return None
        if isinstance(self.space, spaces.Discrete):
            return random.integers(self.space.start, self.space.start + self.space.n, num)
        low, high = self.space.low, self.space.high
        return random.uniform(low, high, (num, *self.space.shape)).astype(np.float32)

    def at_slots(self, slots: Sequence[int]) -> Self:
        explorer = copy.copy(self)
        explorer.then = self.then.at_slots(slots)
        explorer.knobs = explorer.then.knobs
        return explorer
