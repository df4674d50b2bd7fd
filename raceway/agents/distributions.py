"""Distributions of actions. Sampling is done in numpy, which is faster for a single step; the rest in torch.

A distribution has no parameters itself: `params` are the outputs of the network, [..., size].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.autograd.tape import Tape, add_gradient, can_use_numpy, tape_for
from raceway.errors import ConfigError

Array = np.ndarray

MASKED_LOGIT = -1e9
"""The logit of a masked action, instead of -inf, whose gradient is NaN."""


class Distribution(ABC):
    """A distribution over the actions of a space."""

    size: int
    """The number of network outputs for one observation."""

    @abstractmethod
    def sample(self, params: Array, random: np.random.Generator) -> Array:
        """Sample an action for every row, [B, ...]."""

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
        """Return both log π(a|s) and H(π(·|s)), [N] each."""
        return self.log_prob(params, actions), self.entropy(params)

    def sample_with_log_prob(self, params: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return reparametrised actions, [N, ...], through which gradients flow, and their log-probabilities, [N]."""
        raise ConfigError(f"actions of a {type(self).__name__} distribution cannot be differentiated")

    def actions(self, params: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the actions of a deterministic policy, [N, ...], through which gradients flow.

        Args:
            params: the outputs of the network, [N, num].
            noise: what is added before scaling, [N, num]. The sum is clipped to the bounds.
        """
        raise ConfigError(f"a {type(self).__name__} distribution has no actions without sampling")

    def best_actions(self, params: Tensor) -> Tensor:
        """Return the most likely action for every row, as `mode` does, in torch: for exported policies."""
        raise ConfigError(f"a policy with a {type(self).__name__} distribution cannot be exported")

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        """Return the parameters with masked actions (0 in the mask) made impossible."""
        raise ConfigError(f"an action mask needs discrete actions, not a {type(self).__name__} distribution")


class Categorical(Distribution):
    """A discrete action; `params` are the logits."""

    def __init__(self, num: int, start: int = 0) -> None:
        self.size, self.start = num, start

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        # The Gumbel-max trick: the argmax of logits + Gumbel noise is a sample of their softmax.
        return (params + random.gumbel(size=params.shape)).argmax(-1) + self.start

    def mode(self, params: Array) -> Array:
        return params.argmax(-1) + self.start

    def best_actions(self, params: Tensor) -> Tensor:
        return params.argmax(-1) + self.start

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        return self._of_actions(params.log_softmax(-1), actions)

    def entropy(self, params: Tensor) -> Tensor:
        log_probs = params.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        tape = tape_for(params)
        if tape is None:
            log_probs = params.log_softmax(-1)
            return self._of_actions(log_probs, actions), -(log_probs.exp() * log_probs).sum(-1)
        shape, rows = params.shape[:-1], np.arange(actions.numel())
        logs: Array = params.detach().numpy().reshape(-1, self.size).T.copy()  # [size, N]: sums run over the first axis
        logs -= logs.max(0)
        logs -= np.log(np.exp(logs).sum(0))
        probs, index = np.exp(logs), actions.numpy().reshape(-1) - self.start
        entropy = -(probs * logs).sum(0)

        def log_prob_backward(gradient: Array) -> None:
            result = probs * -gradient.reshape(-1)
            result[index, rows] += gradient.reshape(-1)
            add_gradient(params, result.T.reshape(params.shape))

        def entropy_backward(gradient: Array) -> None:
            add_gradient(params, (-probs * (logs + entropy) * gradient.reshape(-1)).T.reshape(params.shape))

        log_prob = logs[index, rows].reshape(shape)
        return tape.record(log_prob, log_prob_backward), tape.record(entropy.reshape(shape), entropy_backward)

    def _of_actions(self, log_probs: Tensor, actions: Tensor) -> Tensor:
        index = actions - self.start if self.start else actions
        return log_probs.gather(-1, index.long().unsqueeze(-1)).squeeze(-1)

    def apply_mask(self, params: Tensor, mask: Tensor) -> Tensor:
        return params.masked_fill(mask == 0, MASKED_LOGIT)


class MultiCategorical(Distribution):
    """Several discrete actions at once; `params` are their concatenated logits."""

    def __init__(self, space: spaces.MultiDiscrete) -> None:
        counts, starts = space.nvec.ravel(), space.start.ravel()
        self.parts = [Categorical(int(count), int(start)) for count, start in zip(counts, starts, strict=True)]
        self.edges = np.cumsum(counts)[:-1].tolist()
        self.size, self.shape = int(counts.sum()), space.shape

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        return self._joined([part.sample(logits, random) for part, logits in self._split(params)], params)

    def mode(self, params: Array) -> Array:
        return self._joined([part.mode(logits) for part, logits in self._split(params)], params)

    def best_actions(self, params: Tensor) -> Tensor:
        pieces = params.tensor_split(self.edges, -1)
        columns = [part.best_actions(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return torch.stack(columns, -1).reshape(-1, *self.shape)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        columns = actions.reshape(*params.shape[:-1], len(self.parts)).unbind(-1)
        pieces = params.tensor_split(self.edges, -1)
        parts = zip(self.parts, pieces, columns, strict=True)
        return torch.stack([part.log_prob(logits, column) for part, logits, column in parts]).sum(0)

    def entropy(self, params: Tensor) -> Tensor:
        pieces = params.tensor_split(self.edges, -1)
        return torch.stack([part.entropy(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum(0)

    apply_mask = Categorical.apply_mask

    def _split(self, params: Array) -> list[tuple[Categorical, Array]]:
        return list(zip(self.parts, np.split(params, self.edges, -1), strict=True))

    def _joined(self, columns: list[Array], params: Array) -> Array:
        return np.stack(columns, -1).reshape(*params.shape[:-1], *self.shape)


class Gaussian(Distribution):
    """Independent normal variables; `params` are the means, then the logarithms of the standard deviations."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.num = shape, math.prod(shape)
        self.size = 2 * self.num

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        means, deviations = params[..., : self.num], np.exp(params[..., self.num :])
        actions = means + deviations * random.standard_normal(means.shape, np.float32)
        return actions.reshape(*params.shape[:-1], *self.shape)

    def mode(self, params: Array) -> Array:
        return params[..., : self.num].reshape(*params.shape[:-1], *self.shape)

    def best_actions(self, params: Tensor) -> Tensor:
        return params[..., : self.num].reshape(-1, *self.shape)

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
        values, num = params.detach().numpy(), self.num
        means, logs = values[..., :num], values[..., num:]
        inverse = np.exp(-logs)
        distance = (actions.numpy().reshape(means.shape) - means) * inverse
        log_det = logs.sum(-1)
        log_prob = -0.5 * (distance * distance).sum(-1) - log_det
        log_prob -= np.float32(0.5 * num * math.log(2 * math.pi))

        def log_prob_backward(gradient: Array) -> None:
            result = np.empty_like(values)
            scaled = gradient[..., None] * distance
            np.multiply(scaled, inverse, out=result[..., :num])
            np.subtract(scaled * distance, gradient[..., None], out=result[..., num:])
            add_gradient(params, result)

        def entropy_backward(gradient: Array) -> None:
            result = np.zeros_like(values)
            result[..., num:] = gradient[..., None]
            add_gradient(params, result)

        entropy = log_det + np.float32(0.5 * num * (1 + math.log(2 * math.pi)))
        return tape.record(log_prob, log_prob_backward), tape.record(entropy, entropy_backward)


class Bounded(Distribution):
    """A distribution of numbers between -1 and 1, scaled to the bounds of a Box."""

    def __init__(self, space: spaces.Space) -> None:
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ConfigError(f"{self._name} needs a Box with finite bounds, not {space}. Bound it by a wrapper.")
        self.shape, self.num = space.shape, math.prod(space.shape)
        self.centre = ((space.high + space.low) / 2).astype(np.float32)
        self.scale = ((space.high - space.low) / 2).astype(np.float32)

    _name: ClassVar[str]

    @property
    def head_size(self) -> int:
        """The number of outputs of a built-in network: all but those that are parameters of the policy."""
        return self.size

    def scaled(self, squashed: Array) -> Array:
        """Return actions, [..., *shape], from numbers between -1 and 1, [..., num]."""
        return squashed.reshape(*squashed.shape[:-1], *self.shape) * self.scale + self.centre

    def scaled_tensor(self, squashed: Tensor) -> Tensor:
        """Do the same in torch."""
        scale, centre = self._bounds(squashed.device)
        return squashed.reshape(*squashed.shape[:-1], *self.shape) * scale + centre

    def unscaled_tensor(self, actions: Tensor) -> Tensor:
        """Return numbers between -1 and 1, [N, num], from actions, [N, *shape]."""
        scale, centre = self._bounds(actions.device)
        return ((actions - centre) / scale).reshape(-1, self.num)

    def _bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the scale and the centre as tensors: copies, since arrays from another process are read-only."""
        return torch.tensor(self.scale, device=device), torch.tensor(self.centre, device=device)


class Deterministic(Bounded):
    """One action for each observation: tanh of the network's outputs, scaled to the bounds of a Box."""

    _name = "a deterministic policy"

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space)
        self.size = self.num

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        return self.mode(params)

    def mode(self, params: Array) -> Array:
        return self.scaled(np.tanh(params))

    def best_actions(self, params: Tensor) -> Tensor:
        return self.actions(params)

    def actions(self, params: Tensor, noise: Tensor | None = None) -> Tensor:
        squashed = params.tanh()
        return self.scaled_tensor(squashed if noise is None else (squashed + noise).clamp(-1, 1))

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        raise ConfigError("a deterministic policy has no log-probabilities")

    def entropy(self, params: Tensor) -> Tensor:
        raise ConfigError("a deterministic policy has no entropy")


class Direct(Distribution):
    """One action for each observation: the network's outputs as they are."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.size = shape, math.prod(shape)

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        return self.mode(params).copy()  # which may be memory that the next outputs overwrite

    def mode(self, params: Array) -> Array:
        return params.reshape(*params.shape[:-1], *self.shape)

    def best_actions(self, params: Tensor) -> Tensor:
        return params.reshape(-1, *self.shape)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        raise ConfigError("a deterministic policy has no log-probabilities")

    def entropy(self, params: Tensor) -> Tensor:
        raise ConfigError("a deterministic policy has no entropy")


class SquashedGaussian(Bounded):
    """tanh of independent normal variables u, scaled to the bounds of a Box.

    `params` are the means of u, then the logarithms of its standard deviations, which are limited to `LOG_STD_RANGE`.
    Log-probabilities are those of tanh(u), without the constant factor of the scale, and computed from u: the inverse
    of tanh would lose all digits where it saturates. Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290, app. C.
    """

    LOG_STD_RANGE = (-20.0, 2.0)
    _name = "a squashed Gaussian"

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space)
        self.size = 2 * self.num

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        deviations = np.exp(np.clip(params[..., self.num :], *self.LOG_STD_RANGE))
        values = params[..., : self.num] + deviations * random.standard_normal(deviations.shape, np.float32)
        return self.scaled(np.tanh(values))

    def mode(self, params: Array) -> Array:
        return self.scaled(np.tanh(params[..., : self.num]))

    def best_actions(self, params: Tensor) -> Tensor:
        return self.scaled_tensor(params[..., : self.num].tanh())

    def sample_with_log_prob(self, params: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn((*params.shape[:-1], self.num), generator=random)
        tape = tape_for(params)
        if tape is not None or can_use_numpy(params):
            return self._sample_in_numpy(params, noise.numpy(), tape)
        means, logs = params.tensor_split([self.num], -1)
        logs, noise = logs.clamp(*self.LOG_STD_RANGE), noise.to(params.device)
        values = means + logs.exp() * noise
        log_prob = (-0.5 * noise.square() - logs - _log_tanh_derivative(values)).sum(-1)
        actions = self.scaled_tensor(values.tanh())
        return actions, log_prob - 0.5 * self.num * math.log(2 * math.pi)

    def _sample_in_numpy(self, params: Tensor, noise: Array, tape: Tape | None) -> tuple[Tensor, Tensor]:
        """Do the same in numpy, with gradients on the tape if there is one."""
        outputs, num = params.detach().numpy(), self.num
        logs = np.clip(outputs[..., num:], *self.LOG_STD_RANGE)
        spread = np.exp(logs) * noise
        values = outputs[..., :num] + spread
        squashed = np.tanh(values)
        size = np.abs(values)  # log(1 - tanh(u)²) is even in u, and np.logaddexp takes three times as long
        log_slope = 2 * (np.float32(math.log(2)) - size - np.log1p(np.exp(-2 * size)))
        log_prob = (-0.5 * noise * noise - logs - log_slope).sum(-1)
        log_prob -= np.float32(0.5 * num * math.log(2 * math.pi))
        actions = self.scaled(squashed)
        if tape is None:
            return torch.from_numpy(actions), torch.from_numpy(log_prob)
        inside = outputs[..., num:] == logs  # where the deviation is not limited

        def action_backward(gradient: Array) -> None:
            flow = (gradient * self.scale).reshape(squashed.shape) * (1 - squashed * squashed)
            add_gradient(params, np.concatenate([flow, flow * spread * inside], -1))

        def log_prob_backward(gradient: Array) -> None:
            flow = 2 * squashed * gradient[..., None]
            add_gradient(params, np.concatenate([flow, (flow * spread - gradient[..., None]) * inside], -1))

        return tape.record(actions, action_backward), tape.record(log_prob, log_prob_backward)

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        means, logs = params.tensor_split([self.num], -1)
        logs = logs.clamp(*self.LOG_STD_RANGE)
        squashed = self.unscaled_tensor(actions).reshape(means.shape)
        limit = 1 - torch.finfo(squashed.dtype).eps
        values = squashed.clamp(-limit, limit).atanh()
        distance = (values - means) * (-logs).exp()
        log_prob = (-0.5 * distance.square() - logs - _log_tanh_derivative(values)).sum(-1)
        return log_prob - 0.5 * self.num * math.log(2 * math.pi)

    def entropy(self, params: Tensor) -> Tensor:
        raise ConfigError("the entropy of a squashed Gaussian has no closed form. Estimate it from log-probabilities.")


class BoundedGaussian(Bounded):
    """Independent normal variables around tanh of the network's outputs, scaled to the bounds of a Box and clipped.

    `params` are the outputs, then the logarithms of the standard deviations, which are limited to `LOG_STD_RANGE`. They
    are parameters of the policy, the same for all observations. Log-probabilities are those before scaling. Unlike
    those of a squashed Gaussian, they are finite for actions at the bounds, as datasets have them.
    """

    LOG_STD_RANGE = (-5.0, 2.0)
    _name = "a bounded Gaussian"

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(space)
        self.size = 2 * self.num

    @property
    def head_size(self) -> int:
        return self.num

    def sample(self, params: Array, random: np.random.Generator) -> Array:
        deviations = np.exp(np.clip(params[..., self.num :], *self.LOG_STD_RANGE))
        noise = random.standard_normal(deviations.shape, np.float32)
        return self.scaled(np.clip(np.tanh(params[..., : self.num]) + deviations * noise, -1, 1))

    def mode(self, params: Array) -> Array:
        return self.scaled(np.tanh(params[..., : self.num]))

    def best_actions(self, params: Tensor) -> Tensor:
        return self.scaled_tensor(params[..., : self.num].tanh())

    def log_prob(self, params: Tensor, actions: Tensor) -> Tensor:
        outputs, logs = params.tensor_split([self.num], -1)
        logs = logs.clamp(*self.LOG_STD_RANGE)
        distance = (self.unscaled_tensor(actions).reshape(outputs.shape) - outputs.tanh()) * (-logs).exp()
        return -(0.5 * distance.square() + logs).sum(-1) - 0.5 * self.num * math.log(2 * math.pi)

    def entropy(self, params: Tensor) -> Tensor:
        raise ConfigError("the entropy of a Gaussian that is clipped has no closed form.")


def _log_tanh_derivative(values: Tensor) -> Tensor:
    """Return log(1 - tanh(u)²), exact for large |u| too: 2 (log 2 - u - softplus(-2u))."""
    return 2 * (math.log(2) - values - torch.nn.functional.softplus(-2 * values))


def distribution_for(space: spaces.Space) -> Distribution:
    """Return the distribution for an action space."""
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space.shape)
    raise ConfigError(f"actions of {space} are not supported. Use Discrete, MultiDiscrete, or a Box of floats.")
