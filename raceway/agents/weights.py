"""A module whose parameters and buffers are read and loaded as arrays by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from raceway.checks import unknown_name

Array = np.ndarray
Weights = dict[str, Array]
"""The parameters and buffers of a module by name, as arrays."""


class WeightsModule(nn.Module):
    """A module that can be sent, saved and hashed as arrays."""

    def weights(self, parts: Sequence[str] | None = None) -> Weights:
        """Return the parameters and buffers as arrays, which share the module's memory.

        Args:
            parts: the names of submodules; by default everything.
        """
        arrays = {name: value.detach().cpu().numpy() for name, value in self._named_tensors()}
        if parts is None:
            return arrays
        prefixes = tuple(f"{part}." for part in parts)
        return {name: array for name, array in arrays.items() if name.startswith(prefixes)}

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of `state_dict`, in a third of its time."""
        yield from self.named_parameters()
        yield from self.named_buffers()

    def load(self, weights: Mapping[str, Array]) -> None:
        """Load parameters and buffers. Those that `weights` lacks are not changed."""
        tensors = dict(self._named_tensors())
        with torch.no_grad():
            for name, array in weights.items():
                if name not in tensors:
                    raise unknown_name("weight", name, list(tensors))
                value = tensors[name]
                if value.device.type == "cpu":
                    np.copyto(value.detach().numpy(), array)
                else:
                    value.copy_(torch.from_numpy(np.array(array)))

    def sha256(self) -> str:
        """Return a hash of all parameters and buffers, with their names and shapes."""
        digest = hashlib.sha256()
        for name, value in sorted(self.weights().items()):
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()


def copy_weights(weights: Weights) -> Weights:
    """Return a copy of the weights, which later training does not change."""
    return {name: np.array(array) for name, array in weights.items()}
