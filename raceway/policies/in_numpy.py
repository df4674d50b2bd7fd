"""Plain networks in numpy, for playing.

Between two steps of an environment torch's dispatch is out of the caches: measured there, a 64-64 network takes 114 µs
for ten observations in torch and 36 µs in numpy. The arrays share the parameters' memory, so they are never stale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from raceway.policies.networks import Encoder, Head

Array = np.ndarray
Layer = Callable[[Array], Array]

_ACTIVATIONS: dict[type[nn.Module], Callable[..., Array]] = {
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
    nn.Tanh: lambda x: np.tanh(x, out=x),
}


def numpy_layers(network: nn.Module) -> list[Layer] | None:
    """Return the network as functions of arrays, or None if it has a layer that is not known here.

    >>> numpy_layers(nn.Sequential(nn.Linear(2, 3), nn.Softplus()))
    """
    if type(network) is not nn.Sequential or not isinstance(network[0], Encoder) or network[0].kind != "flat":
        return None
    first: Any
    first, *rest = network
    layers: list[Layer] = [] if first.num_dims == 1 else [partial(_flat, first.size)]
    for layer in rest:
        if type(layer) in _ACTIVATIONS:
            layers.append(_ACTIVATIONS[type(layer)])
        elif type(layer) in (nn.Linear, Head) and layer.bias is not None:
            layers.append(_linear(layer))
        else:
            return None
    return layers


def run_in_numpy(layers: Sequence[Layer], obs: Any) -> Array:
    """Return what the network gives for observations, [B, size]."""
    x = obs if obs.dtype == np.float32 else obs.astype(np.float32)
    for layer in layers:
        x = layer(x)
    return x


def _flat(size: int, x: Array) -> Array:
    return x.reshape(-1, size)


def _linear(layer: Any) -> Layer:
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
    log_std = getattr(layer, "log_std", None)

    def run(x: Array) -> Array:
        y = x @ weight
        y += bias
        return y

    if log_std is None:
        return run
    logs = log_std.detach().numpy()
    return lambda x: np.concatenate([run(x), np.broadcast_to(logs, (len(x), len(logs)))], 1)
