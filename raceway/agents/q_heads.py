"""The last layers of networks for the values of discrete actions: dueling streams, and distributions of the return.

A `Dueling` layer stands on any features, those of a recurrent network too. The others are the last module of the acting
network, whose output are the Q-values: expected values of the distributions that a loss asks an agent for.

`numpy_layers` and `numpy_readout` are for acting in numpy; see `numpy_inference`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raceway.agents.numpy_inference import NumpyLayer, with_bias
from raceway.errors import ConfigError
from raceway.rl import expected_values, quantile_midpoints

Array = np.ndarray
MakeLinear = Callable[[int, int], nn.Module]
"""Makes a linear layer from the number of its inputs and outputs."""


class Dueling(nn.Module):
    """V(s) + A(s, a) - mean A(s, ·) from features, [..., inputs], by two streams of layers.

    Wang et al. 2016, https://arxiv.org/abs/1511.06581, eq. 9. For distributions, a value and an advantage are
    `num_each` numbers each, and the output is [..., num_actions · num_each], those of the first action first.

    Args:
        inputs: the number of features.
        num_actions: the number of actions.
        width: the width of a hidden layer in each stream; None for streams without one.
        num_each: the numbers that are estimated of each action.
        linear: makes the layers.
    """

    def __init__(
        self, inputs: int, num_actions: int, width: int | None, num_each: int = 1, linear: MakeLinear = nn.Linear
    ) -> None:
        super().__init__()
        self.num_actions, self.num_each = num_actions, num_each
        self.value = stream(inputs, width, num_each, linear)
        self.advantages = stream(inputs, width, num_actions * num_each, linear)

    def forward(self, features: Tensor) -> Tensor:
        value = self.value(features).unsqueeze(-2)
        advantages = self.advantages(features).unflatten(-1, (self.num_actions, self.num_each))
        return (value + advantages - advantages.mean(-2, keepdim=True)).flatten(-2)

    def numpy_layers(self) -> list[NumpyLayer]:
        """Return both streams as one: hidden layers side by side, then the sum as one linear layer."""
        value, advantages = with_bias(self.value[-1]), with_bias(self.advantages[-1])
        if len(self.value) == 1:  # both streams have the same inputs
            return [(self.numpy_sum(value, advantages), None)]
        hidden = np.concatenate([with_bias(self.value[0]), with_bias(self.advantages[0])])
        # A stream's weights for the hidden layer of the other are 0.
        value_columns = np.concatenate([value[:, :-1], np.zeros_like(value[:, :-1]), value[:, -1:]], 1)
        advantage_columns = np.concatenate([np.zeros_like(advantages[:, :-1]), advantages], 1)
        return [(hidden, nn.ReLU), (self.numpy_sum(value_columns, advantage_columns), None)]

    def numpy_sum(self, value: Array, advantages: Array) -> Array:
        """Return V + A - mean A, [num_actions · num_each, B], of the outputs of the streams, or of their weights."""
        advantages = advantages.reshape(self.num_actions, self.num_each, -1)
        total: Array = value + advantages - advantages.mean(0)
        return total.reshape(self.num_actions * self.num_each, -1)


def stream(inputs: int, width: int | None, outputs: int, linear: MakeLinear = nn.Linear) -> nn.Sequential:
    """Return a linear layer, or two with a hidden layer of `width` between them."""
    if width is None:
        return nn.Sequential(linear(inputs, outputs))
    return nn.Sequential(linear(inputs, width), nn.ReLU(), linear(width, outputs))


class Readout(nn.Module, ABC):
    """The Q-values of distributions of the return, each of `num_each` numbers, for every action.

    Its inputs are the network's outputs, [..., num_actions · num_each], the numbers of the first action first.
    """

    def __init__(self, num_actions: int, num_each: int) -> None:
        super().__init__()
        self.num_actions, self.num_each = num_actions, num_each

    def by_action(self, outputs: Tensor) -> Tensor:
        """Return the network's outputs as [..., num_actions, num_each]."""
        return outputs.unflatten(-1, (self.num_actions, self.num_each))

    def forward(self, outputs: Tensor) -> Tensor:
        return self.expected(self.by_action(outputs))

    @abstractmethod
    def expected(self, distributions: Tensor) -> Tensor:
        """Return the Q-values, [..., num_actions], of distributions, [..., num_actions, num_each]."""

    @abstractmethod
    def numpy_readout(self, outputs: Array) -> Array:
        """Return the Q-values, [num_actions, B], of the network's outputs, [num_actions · num_each, B]."""


class Atoms(Readout):
    """Expected values of distributions on fixed atoms, of which the network's outputs are the logits.

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887.

    Args:
        num_actions: the number of actions.
        num_atoms: the number of atoms.
        v_min: the return of the first atom.
        v_max: the return of the last.
    """

    constants: ClassVar[tuple[str, ...]] = ("support",)
    """Buffers that follow from settings; the weights of another run fit only if they are the same there."""

    def __init__(self, num_actions: int, num_atoms: int, v_min: float, v_max: float) -> None:
        super().__init__(num_actions, num_atoms)
        if num_atoms < 2:
            raise ConfigError(f"a distribution needs at least 2 atoms (num_atoms), not {num_atoms}")
        if not v_min < v_max:
            raise ConfigError(f"v_min {v_min:g} must be below v_max {v_max:g}: the atoms are between them.")
        self.support: Tensor
        self.register_buffer("support", torch.linspace(v_min, v_max, num_atoms))

    def expected(self, distributions: Tensor) -> Tensor:
        return expected_values(self.support, distributions.softmax(-1))

    def numpy_readout(self, outputs: Array) -> Array:
        logits = outputs.reshape(self.num_actions, self.num_each, -1)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        values: Array = self.support.numpy() @ shares
        values /= shares.sum(1)
        return values


class Quantiles(Readout):
    """Means of quantiles, which are the network's outputs.

    Dabney et al. 2018, https://arxiv.org/abs/1710.10044.
    """

    def expected(self, distributions: Tensor) -> Tensor:
        return distributions.mean(-1)

    def numpy_readout(self, outputs: Array) -> Array:
        means: Array = outputs.reshape(self.num_actions, self.num_each, -1).mean(1)
        return means


class ImplicitQuantiles(nn.Module):
    """Quantiles of the return at any fractions τ: a linear layer on ψ(s) ⊙ φ(τ).

    Dabney et al. 2018, https://arxiv.org/abs/1806.06923: φ(τ) = ReLU(W cos(π i τ) + b), with i from 0 to
    num_cosines - 1, and ψ(s) are the features. Without hidden layers after the product, the mean over some fractions is
    the linear layer of ψ(s) times the mean of φ(τ). The Q-values, its output, are the mean over `num_fractions` equally
    spaced fractions.

    Args:
        inputs: the number of features.
        num_actions: the number of actions.
        num_cosines: the length of the embedding of τ.
        num_fractions: the number of quantiles whose mean is the Q-value.
    """

    def __init__(self, inputs: int, num_actions: int, num_cosines: int, num_fractions: int) -> None:
        super().__init__()
        self.num_fractions = num_fractions
        self.embedding = nn.Linear(num_cosines, inputs)
        self.layer = nn.Linear(inputs, num_actions)

    def embed(self, fractions: Tensor) -> Tensor:
        """Return φ(τ), [..., inputs], of fractions, [...]."""
        steps = math.pi * torch.arange(self.embedding.in_features, device=fractions.device)
        return self.embedding((fractions.unsqueeze(-1) * steps).cos()).relu()

    def quantiles(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return the quantiles at fractions, [N, M], of features, [N, inputs]: [N, num_actions, M]."""
        return self.layer(features.unsqueeze(-2) * self.embed(fractions)).transpose(-1, -2)

    def expected(self, features: Tensor, fractions: Tensor) -> Tensor:
        """Return the mean of the quantiles at fractions, [..., M], for every action, [..., num_actions]."""
        return self.layer(features * self.embed(fractions).mean(-2))

    def forward(self, features: Tensor) -> Tensor:
        return self.expected(features, self._midpoints())

    def _midpoints(self) -> Tensor:
        return quantile_midpoints(self.num_fractions).to(self.layer.weight.device)

    def numpy_layers(self) -> list[NumpyLayer]:
        """Return one linear layer, with weights times the mean of φ(τ)."""
        fractions = (np.arange(self.num_fractions, dtype=np.float32) + np.float32(0.5)) / self.num_fractions
        cosines = np.cos(
            np.float32(math.pi) * np.arange(self.embedding.in_features, dtype=np.float32)[:, None] * fractions
        )
        embedding = with_bias(self.embedding) @ np.vstack([cosines, np.ones_like(fractions)])
        weight = with_bias(self.layer)
        weight[:, :-1] *= np.maximum(embedding, 0).mean(1)
        return [(weight, None)]


def of_action(distributions: Tensor, action: Tensor) -> Tensor:
    """Return the distribution of one action in every row, [N, K], of those of all actions, [N, num_actions, K].

    >>> of_action(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([1])).tolist()
    [[3.0, 4.0]]
    """
    index = action[:, None, None].expand(-1, 1, distributions.shape[-1])
    return distributions.gather(1, index).squeeze(1)
