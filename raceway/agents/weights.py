"""A module whose parameters and buffers are read and loaded as arrays by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.checks import unknown_name

Array = np.ndarray
Weights = dict[str, Array]
"""The parameters and buffers of a module by name, as arrays."""


_OWNERS, _PARTS = "_tensor_owners", "_parts_of_owners"


class WeightsModule(nn.Module):
    """A module that can be sent, saved and hashed as arrays."""

    def weights(self, parts: Sequence[str] | None = None) -> Weights:
        """Return the parameters and buffers as arrays, which share the module's memory.

        Args:
            parts: the names of submodules; by default everything.
        """
        prefixes = None if parts is None else tuple(f"{part}." for part in parts)
        return {
            name: value.detach().cpu().numpy()
            for name, value in self._named_tensors()
            if prefixes is None or name.startswith(prefixes)
        }

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of `state_dict`, in a tenth of its time: their owners are looked up once."""
        owners: list[tuple[str, nn.Module, str, str]] | None = self.__dict__.get(_OWNERS)
        modules = tuple(self._modules.values())
        if owners is None or self.__dict__[_PARTS] != modules:
            owners = self.__dict__[_OWNERS] = list(_owners(self))
            self.__dict__[_PARTS] = modules
        for name, owner, kind, key in owners:
            yield name, owner.__dict__[kind][key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in (_OWNERS, _PARTS)}

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


def _owners(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, str]]:
    """Yield the name of every tensor, its submodule, and the dictionary and key under which that keeps it."""
    for kind, names in (("_parameters", module.named_parameters()), ("_buffers", module.named_buffers())):
        for name, _ in names:
            path, _, key = name.rpartition(".")
            yield name, module.get_submodule(path), kind, key


def weights_of_parts(weights: Weights, parts: Sequence[str]) -> Weights:
    """Return the weights of some submodules."""
    prefixes = tuple(f"{part}." for part in parts)
    return {name: array for name, array in weights.items() if name.startswith(prefixes)}


def copy_weights(weights: Weights) -> Weights:
    """Return a copy of the weights, which later training does not change."""
    return {name: np.array(array) for name, array in weights.items()}
