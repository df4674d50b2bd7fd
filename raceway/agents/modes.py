"""Training and evaluation mode: users' networks may have dropout or batch statistics, which acting must not use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakKeyDictionary

from torch import nn

_PLAIN = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten, nn.Linear, nn.Conv1d, nn.Conv2d,
    nn.Embedding, nn.LayerNorm, nn.LSTMCell, nn.GRUCell, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softplus,
}  # fmt: skip
_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def is_plain(module: nn.Module) -> bool:
    """Whether a module computes the same in both modes, and samples nothing, as far as its layers are known."""
    plain = _known.get(module)
    if plain is None:
        types = {type(layer) for layer in module.modules()}
        plain = _known[module] = all(each in _PLAIN or each.__module__.startswith("raceway.") for each in types)
    return plain


def acting_mode(module: nn.Module) -> AbstractContextManager[None]:
    """Switch a module to evaluation mode for a while, if that makes a difference."""
    return nullcontext() if is_plain(module) else in_eval_mode(module)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode for a while: dropout and batch statistics are off."""
    training = [layer for layer in module.modules() if layer.training]
    module.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True
