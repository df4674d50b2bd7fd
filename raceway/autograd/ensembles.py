"""Several networks of the same shape on one input, forward and backward in numpy; see `tape`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd import matrix_products as products
from raceway.autograd.tape import Tape, add_gradient, can_use_numpy, gradient_array, tape_for

Array = np.ndarray
_SPARSE = 0.75  # share of rows with a gradient, below which the others are left out


class EnsembleLinear(nn.Module):
    """Linear layers of several networks with the same shape: [E, N, inputs] to [E, N, outputs]."""

    def __init__(self, num: int, inputs: int, outputs: int) -> None:
        super().__init__()
        layers = [nn.Linear(inputs, outputs) for _ in range(num)]  # for their initial weights
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the outputs of the networks with these numbers; by default of the first ones, as many as `x` has."""
        if members is not None:
            return torch.baddbmm(self.bias.index_select(0, members), x, self.weight.index_select(0, members))
        if len(x) == len(self.weight):
            return torch.baddbmm(self.bias, x, self.weight)
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation of several networks, each with its own scale and shift, [E, N, size].

    Ba et al. 2016, https://arxiv.org/abs/1607.06450
    """

    def __init__(self, num: int, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num, 1, size))
        self.shift = nn.Parameter(torch.zeros(num, 1, size))

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Return the normalised input of the networks with these numbers; by default of the first ones."""
        scale, shift = (
            parameter[: len(x)] if members is None else parameter.index_select(0, members)
            for parameter in (self.scale, self.shift)
        )
        return nn.functional.layer_norm(x, x.shape[-1:]) * scale + shift


class Ensemble(nn.Module):
    """Feed-forward networks of the same shape: from one input [N, size] to outputs, [E, N] or [E, N, K].

    Args:
        num: the number E of networks.
        sizes: the size of the input, and the widths of the hidden layers, between which there are ReLUs.
        num_outputs: the number K of outputs of each network; None for one, without a dimension of its own.
        layer_norm: whether the inputs of the ReLUs are normalised.
        dropout: the probability with which a unit is dropped before that, in passes with a generator.
    """

    def __init__(
        self,
        num: int,
        sizes: Sequence[int],
        num_outputs: int | None = None,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num, self.num_outputs, self.dropout = num, num_outputs, dropout
        self.hidden = tuple(sizes[1:])
        self.layers = nn.ModuleList(EnsembleLinear(num, *pair) for pair in pairwise([*sizes, num_outputs or 1]))
        self.norms = nn.ModuleList(EnsembleLayerNorm(num, width) for width in sizes[1:] if layer_norm)

    def forward(
        self,
        parts: Sequence[Tensor],
        num: int | None = None,
        *,
        members: Tensor | None = None,
        random: torch.Generator | None = None,
    ) -> Tensor:
        """Return the outputs, [E, N] or [E, N, K], for an input that is given in parts, [N, ...] each.

        Args:
            parts: the parts of the input.
            num: the number of networks that are computed, the first ones; by default all.
            members: instead of `num`, the numbers of the networks that are computed.
            random: the generator of dropout; without it, no unit is dropped.
        """
        drops = self.dropout > 0 and random is not None and len(self.hidden) > 0
        if self.num_outputs is None and members is None and not self.norms and not drops:
            tapes = [tape_for(part) for part in parts]
            if all(tapes) or all(map(can_use_numpy, parts)):
                return self._run_in_numpy(parts, tapes[0], num or self.num)
        x = torch.cat(list(parts), -1)
        x = x.expand((num or self.num) if members is None else len(members), *x.shape)
        masks = self._dropout_masks(x, random) if drops else []
        for index, layer in enumerate(self.layers[:-1]):
            x = layer(x, members)
            if masks:
                x = x * masks[index]
            if self.norms:
                x = self.norms[index](x, members)
            x = x.relu()
        outputs = self.layers[-1](x, members)
        return outputs.squeeze(-1) if self.num_outputs is None else outputs

    def _dropout_masks(self, x: Tensor, random: Any) -> list[Tensor]:
        """Return a mask for every hidden layer, [E, N, width] each, for an input [E, N, size]."""
        num, num_rows = x.shape[:2]
        sizes = [num * width for width in self.hidden]
        masks = dropout_mask(num_rows, sum(sizes), self.dropout, random).to(x.device).split(sizes, -1)
        return [mask.reshape(num_rows, num, -1).transpose(0, 1) for mask in masks]

    def _run_in_numpy(self, parts: Sequence[Tensor], tape: Tape | None, num: int) -> Tensor:
        x = np.concatenate([part.detach().numpy() for part in parts], -1)
        weights: list[Array] = [layer.weight.detach().numpy() for layer in self.layers]  # type: ignore[operator]
        biases: list[Array] = [layer.bias.detach().numpy() for layer in self.layers]  # type: ignore[operator]
        large = products.is_large(len(x), [weight[0] for weight in weights])
        passes = [_Member([w[e] for w in weights], [b[e, 0] for b in biases], x, large) for e in range(num)]
        outputs = np.stack([member.outputs[-1][:, 0] for member in passes])
        if tape is None:
            return torch.from_numpy(outputs)
        columns = np.cumsum([0, *(part.shape[-1] for part in parts)])
        wanted = [slice(*pair) for part, pair in zip(parts, pairwise(columns), strict=True) if part.requires_grad]
        inputs = slice(wanted[0].start, wanted[-1].stop) if wanted else None

        def backward(gradient: Array) -> None:
            trained = self.layers if self.layers[0].weight.requires_grad else ()
            gradients = [(gradient_array(layer.weight), gradient_array(layer.bias)) for layer in trained]  # type: ignore[arg-type]
            flow: Any = 0
            for index, member in enumerate(passes):
                flow = flow + member.backward(gradient[index], [(w[index], b[index]) for w, b in gradients], inputs)
            for part, place in zip((part for part in parts if part.requires_grad), wanted, strict=True):
                add_gradient(part, flow[:, place.start - wanted[0].start : place.stop - wanted[0].start])

        return tape.record(outputs, backward)


class _Member:
    """A forward pass through one network, with ReLUs between its layers."""

    def __init__(self, weights: list[Array], biases: list[Array], x: Array, large: bool) -> None:
        self.weights, self.large, self.outputs = weights, large, [x]
        for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            activation = "relu" if index < len(weights) - 1 else "none"
            self.outputs.append(products.linear(self.outputs[-1], weight.T, bias, activation, large))

    def backward(self, gradient: Array, gradients: list[tuple[Array, Array]], inputs: slice | None) -> Array | int:
        """Add to the gradients of the weights and biases, and return the gradient of the input.

        Args:
            gradient: the gradient of the output, [N].
            gradients: those of the weights and biases, to be added to; empty if the network is not trained.
            inputs: the columns of the input whose gradient is needed, if any.
        """
        rows = np.flatnonzero(gradient)
        few = not gradients and len(rows) < _SPARSE * len(gradient)  # as in the minimum of several networks
        if few:
            rows = np.argsort(gradient == 0, kind="stable")[: _rounded_up(len(rows))]
        flow = (gradient[rows] if few else np.ascontiguousarray(gradient))[:, None]
        for index in reversed(range(len(self.weights))):
            if index < len(self.weights) - 1:
                output = self.outputs[index + 1]
                flow = products.activation_gradient(flow, output[rows] if few else output, "relu")
            if gradients:
                weight_gradient, bias_gradient = gradients[index]
                weight_gradient += products.weight_gradient(flow, self.outputs[index], self.large).T
                bias_gradient += products.bias_gradient(flow)
            if index or inputs is not None:
                weight = self.weights[index] if index or inputs is None else self.weights[0][inputs]
                flow = products.input_gradient(flow, weight.T, self.large)
        if inputs is None or not few:
            return 0 if inputs is None else flow
        result = np.zeros((len(gradient), flow.shape[1]), np.float32)
        result[rows] = flow
        return result


def _rounded_up(num_rows: int) -> int:
    """Return the next multiple of 32: the first product of every new shape takes longer."""
    return -(-num_rows // 32) * 32


def dropout_mask(num_rows: int, num_units: int, rate: float, random: torch.Generator) -> Tensor:
    """Return what multiplies the units of every row, [N, num_units]: 0 with probability `rate`, else 1 / (1 - rate).

    The distances between dropped units, which are geometric, are sampled, and not a number for every unit: of 1 % that
    takes a tenth of the time. There are six standard deviations more of them than dropped units on average.
    """
    num_dropped = rate * num_units
    num_distances = min(math.ceil(num_dropped + 6 * math.sqrt(num_dropped)) + 1, num_units)
    distances = torch.empty(num_rows, num_distances).geometric_(rate, generator=random)
    dropped = distances.cumsum(-1).sub(1).clamp(max=num_units).long()  # those beyond the last unit have a column
    return torch.full((num_rows, num_units + 1), 1 / (1 - rate)).scatter(1, dropped, 0.0)[:, :num_units]
