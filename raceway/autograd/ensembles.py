"""Several networks of the same shape on one input, forward and backward in numpy; see `tape`.

The members are independent, so each can have a core of its own: numpy releases the interpreter's lock in a matrix
product. Their results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd.layers import ACTIVATIONS
from raceway.autograd.tape import Tape, add_gradient, can_use_numpy, tape_for

Array = np.ndarray
T = TypeVar("T")


class EnsembleLinear(nn.Module):
    """Linear layers of several networks with the same shape: [E, N, inputs] to [E, N, outputs]."""

    def __init__(self, num: int, inputs: int, outputs: int) -> None:
        super().__init__()
        layers = [nn.Linear(inputs, outputs) for _ in range(num)]  # for their initial weights
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class MemberThreads:
    """Runs a function for every member of an ensemble: on threads of its own, if torch may use several."""

    def __init__(self, num: int) -> None:
        self.num = num
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"num": self.num, "_pool": None}

    def map(self, function: Callable[[int], T]) -> list[T]:
        """Return the results for the members 0 to num - 1."""
        if torch.get_num_threads() == 1 or self.num == 1:
            return [function(member) for member in range(self.num)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num - 1, thread_name_prefix="ensemble")
        others = [self._pool.submit(function, member) for member in range(1, self.num)]
        return [function(0), *(other.result() for other in others)]


class Ensemble(nn.Module):
    """Feed-forward networks of the same shape with one output each: from one input [N, size] to outputs [E, N].

    Args:
        num: the number E of networks.
        sizes: the size of the input, and the widths of the hidden layers, between which there are ReLUs.
    """

    def __init__(self, num: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.num = num
        self.layers = nn.ModuleList(EnsembleLinear(num, *pair) for pair in pairwise([*sizes, 1]))
        self._threads = MemberThreads(num)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the outputs, [E, N], for an input that is given in parts, [N, ...] each."""
        tapes = [tape_for(part) for part in parts]
        if all(tapes) or all(map(can_use_numpy, parts)):
            return self._run_in_numpy(parts, tapes[0])
        x = torch.cat(list(parts), -1)
        x = x.expand(self.num, *x.shape)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x).squeeze(-1)

    def _run_in_numpy(self, parts: Sequence[Tensor], tape: Tape | None) -> Tensor:
        x = np.concatenate([part.detach().numpy() for part in parts], -1)
        weights: list[tuple[Array, Array]] = [
            (layer.weight.detach().numpy(), layer.bias.detach().numpy())  # type: ignore[operator]
            for layer in self.layers
        ]
        activations = self._threads.map(lambda member: _forward(x, [(w[member], b[member]) for w, b in weights]))
        outputs = np.stack([layers[-1][:, 0] for layers in activations])
        if tape is None:
            return torch.from_numpy(outputs)

        def backward(gradient: Array) -> None:
            trained = bool(self.layers[0].weight.requires_grad)
            wanted = any(part.requires_grad for part in parts)
            results = self._threads.map(
                lambda member: _backward(
                    gradient[member], activations[member], [w[member] for w, _ in weights], trained, wanted
                )
            )
            for index, layer in enumerate(self.layers) if trained else ():
                add_gradient(layer.weight, np.stack([gradients[index][0] for gradients, _ in results]))  # type: ignore[arg-type]
                add_gradient(layer.bias, np.stack([gradients[index][1] for gradients, _ in results]))  # type: ignore[arg-type]
            if wanted:
                total = sum(input_gradient for _, input_gradient in results)
                for part, piece in zip(parts, _split(total, parts), strict=True):
                    add_gradient(part, piece)

        return tape.record(outputs, backward)


def _split(gradient: Any, parts: Sequence[Tensor]) -> list[Array]:
    edges = np.cumsum([part.shape[-1] for part in parts])[:-1]
    return np.split(gradient, edges, -1)


def _forward(x: Array, layers: list[tuple[Array, Array]]) -> list[Array]:
    """Return the input and the output of every layer of one network."""
    relu, outputs = ACTIVATIONS[nn.ReLU][0], [x]
    for index, (weight, bias) in enumerate(layers):
        output = outputs[-1] @ weight
        output += bias
        if index < len(layers) - 1:
            relu(output)
        outputs.append(output)
    return outputs


def _backward(
    gradient: Array, outputs: list[Array], weights: list[Array], trained: bool, wanted: bool
) -> tuple[list[tuple[Array, Array]], Array]:
    """Return the gradients of the weights and biases of one network, if it is trained, and of its input, if wanted."""
    gradients: list[tuple[Array, Array]] = []
    flow = np.ascontiguousarray(gradient)[:, None]
    for index in reversed(range(len(weights))):
        if index < len(weights) - 1:
            flow = flow * (outputs[index + 1] > 0)
        if trained:
            gradients.append((outputs[index].T @ flow, flow.sum(0, keepdims=True)))
        if index or wanted:
            flow = flow @ weights[index].T if flow.shape[1] > 1 else flow * weights[index].T
    return gradients[::-1], flow
