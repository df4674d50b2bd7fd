"""How a network's numbers become actions. Drawing is done in numpy, which is faster for one step; the rest in torch.

A distribution has no parameters of its own: `params` are what the network gave, [..., size].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.autograd.tape import add_gradient, tape_for
from raceway.errors import ConfigError

Array = np.ndarray

_BARRED = -1e9  # instead of -inf, whose gradient is NaN


class Distribution(ABC):
    """Of the actions of one space."""

    size: int
    """How many numbers the network gives for one observation."""

    @abstractmethod
    def draw(self, params: Array, random: np.random.Generator) -> Array:
        """Draw an action for every row, [B, ...]."""

    @abstractmethod
    def mode(self, params: Array) -> Array:
        """Return the most likely action for every row."""

    @abstractmethod
    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), [N]."""

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor:
        """Return H(π(·|s)), [N]."""

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, [N]."""
        return self.log_prob(params, actions), self.entropy(params)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """Return the parameters with what the mask says to leave out made impossible."""
        raise ConfigError(f"a mask goes with actions to choose from, not with a {type(self).__name__}")


class Categorical(Distribution):
    """One choice; `params` are its logits."""

    def __init__(self, num: int, start: int = 0) -> None:
        self.size, self.start = num, start

    def draw(self, params: Array, random: np.random.Generator) -> Array:
        # Gumbel's trick: the largest of logits + Gumbel noise is a sample of their softmax.
        return (params + random.gumbel(size=params.shape)).argmax(-1) + self.start

    def mode(self, params: Array) -> Array:
        return params.argmax(-1) + self.start

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return self._chosen(params.log_softmax(-1), actions)

    def entropy(self, params: Tensor) -> Tensor:
        logs = params.log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        tape = tape_for(params)
        if tape is None:
            logs = params.log_softmax(-1)
            return self._chosen(logs, actions), -(logs.exp() * logs).sum(-1)
        shape, rows = params.shape[:-1], np.arange(actions.numel())
        known: Array = params.detach().numpy().reshape(-1, self.size).T.copy()  # choices first: they are summed over
        known -= known.max(0)
        known -= np.log(np.exp(known).sum(0))
        shares, chosen = np.exp(known), actions.numpy().reshape(-1) - self.start
        entropy = -(shares * known).sum(0)

        def by_log_prob(gradient: Array) -> None:
            found = shares * -gradient.reshape(-1)
            found[chosen, rows] += gradient.reshape(-1)
            add_gradient(params, found.T.reshape(params.shape))

        def by_entropy(gradient: Array) -> None:
            add_gradient(params, (-shares * (known + entropy) * gradient.reshape(-1)).T.reshape(params.shape))

        log_prob = known[chosen, rows].reshape(shape)
        return tape.note(log_prob, by_log_prob), tape.note(entropy.reshape(shape), by_entropy)

    def _chosen(self, logs: Tensor, actions: Tensor) -> Tensor:
        chosen = actions - self.start if self.start else actions
        return logs.gather(-1, chosen.long().unsqueeze(-1)).squeeze(-1)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        return params.masked_fill(mask == 0, _BARRED)


class EpsilonGreedy(Categorical):
    """The choice with the highest value, or with a chance of ε any; `params` are the values of the choices."""

    def __init__(self, num: int, start: int = 0, num_slots: int = 1) -> None:
        super().__init__(num, start)
        self.epsilon = np.ones(num_slots, np.float32)
        """One for every row, [B]."""

    def draw(self, params: Array, random: np.random.Generator) -> Array:
        strays = random.random(len(params)) < self.epsilon
        chosen = params.argmax(-1)
        if strays.any():
            anything = random.integers(self.size, size=len(params))
            # Of choices that are barred none is made by chance either.
            barred = np.take_along_axis(params, anything[:, None], -1).squeeze(-1) <= _BARRED
            chosen = np.where(strays & ~barred, anything, chosen)
        return chosen + self.start


class MultiCategorical(Distribution):
    """Several choices side by side; `params` are their logits, one behind the other."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        counts, starts = space.nvec.ravel(), space.start.ravel()
        self.parts = [Categorical(int(count), int(start)) for count, start in zip(counts, starts, strict=True)]
        self.edges = np.cumsum(counts)[:-1].tolist()
        self.size, self.shape = int(counts.sum()), space.shape

    def draw(self, params: Array, random: np.random.Generator) -> Array:
        return self._joined([part.draw(logits, random) for part, logits in self._split(params)], params)

    def mode(self, params: Array) -> Array:
        return self._joined([part.mode(logits) for part, logits in self._split(params)], params)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        chosen = actions.reshape(*params.shape[:-1], len(self.parts)).unbind(-1)
        pieces = params.tensor_split(self.edges, -1)
        each = [part.log_prob(*both) for part, *both in zip(self.parts, pieces, chosen, strict=True)]
        return torch.stack(each).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        pieces = params.tensor_split(self.edges, -1)
        return torch.stack([part.entropy(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum(0)

    masked = Categorical.masked

    def _split(self, params: Array) -> list[tuple[Categorical, Array]]:
        return list(zip(self.parts, np.split(params, self.edges, -1), strict=True))

    def _joined(self, chosen: list[Array], params: Array) -> Array:
        return np.stack(chosen, -1).reshape(*params.shape[:-1], *self.shape)


class Gaussian(Distribution):
    """A vector of independent normal variables; `params` are the means, and then the logarithms of the deviations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.num = shape, math.prod(shape)
        self.size = 2 * self.num

    def draw(self, params: Array, random: np.random.Generator) -> Array:
        means, deviations = params[..., : self.num], np.exp(params[..., self.num :])
        drawn = means + deviations * random.standard_normal(means.shape, np.float32)
        return drawn.reshape(*params.shape[:-1], *self.shape)

    def mode(self, params: Array) -> Array:
        return params[..., : self.num].reshape(*params.shape[:-1], *self.shape)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        means, logs = params.tensor_split([self.num], -1)
        distance = (actions.reshape(means.shape) - means) * (-logs).exp()
        return -(0.5 * distance.square() + logs).sum(-1) - 0.5 * self.num * math.log(2 * math.pi)

    def entropy(self, params: Tensor) -> Tensor:
        return params[..., self.num :].sum(-1) + 0.5 * self.num * (1 + math.log(2 * math.pi))

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        tape = tape_for(params)
        if tape is None:
            return self.log_prob(params, actions), self.entropy(params)
        numbers, num = params.detach().numpy(), self.num
        means, logs = numbers[..., :num], numbers[..., num:]
        inverse = np.exp(-logs)
        distance = (actions.numpy().reshape(means.shape) - means) * inverse
        common = logs.sum(-1)
        log_prob = -0.5 * (distance * distance).sum(-1) - common
        log_prob -= np.float32(0.5 * num * math.log(2 * math.pi))

        def by_log_prob(gradient: Array) -> None:
            found = np.empty_like(numbers)
            each = gradient[..., None] * distance
            np.multiply(each, inverse, out=found[..., :num])
            np.subtract(each * distance, gradient[..., None], out=found[..., num:])
            add_gradient(params, found)

        def by_entropy(gradient: Array) -> None:
            found = np.zeros_like(numbers)
            found[..., num:] = gradient[..., None]
            add_gradient(params, found)

        entropy = common + np.float32(0.5 * num * (1 + math.log(2 * math.pi)))
        return tape.note(log_prob, by_log_prob), tape.note(entropy, by_entropy)


def distribution_for(space: spaces.Space) -> Distribution:
    """Return the distribution of the actions of a space."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space.shape)
    raise ConfigError(f"there is no policy for actions of {space}. There is for Discrete, MultiDiscrete, and Box.")
