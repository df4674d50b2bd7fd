"""The state of loss objects: what a callable class keeps from batch to batch, tensors and generators included."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.state import attributes_of, has_state_methods, is_plain_data, restore, set_attributes, state_of

_TENSOR, _GENERATOR, _MODULE = "torch.Tensor", "torch.Generator", "torch.nn.Module"


def state_of_loss(loss: Any) -> Any:
    """Return a copy of the state of a loss as plain data: that of `state()`, or its attributes; None for a function."""
    target = _loss_object(loss)
    if has_state_methods(target) or not hasattr(target, "__dict__") or state_of(loss) is None:
        return copy.deepcopy(state_of(loss))
    attributes = {name: _encode(value) for name, value in _own_attributes(target).items()}
    state = {name: copy.deepcopy(value) for name, value in attributes.items() if is_plain_data(value)}
    if isinstance(target, nn.Module):
        state[_MODULE] = {name: _encode(value) for name, value in target.state_dict().items()}
    return state


def restore_loss(loss: Any, state: Any) -> None:
    """Restore what `state_of_loss` returned."""
    target = _loss_object(loss)
    if state is None or has_state_methods(target):
        restore(loss, state)
        return
    current, state = attributes_of(target), dict(state)
    if isinstance(target, nn.Module):
        target.load_state_dict({name: _decode(value, None) for name, value in state.pop(_MODULE, {}).items()})
    set_attributes(target, current | {name: _decode(value, current.get(name)) for name, value in state.items()})


def _loss_object(loss: Any) -> Any:
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, "__self__", loss)


def _own_attributes(target: Any) -> dict[str, Any]:
    """Return the attributes of an object, without those that every torch module has."""
    internal = vars(nn.Module()).keys() - {"training"} if isinstance(target, nn.Module) else ()
    return {name: value for name, value in attributes_of(target).items() if name not in internal}


def _encode(value: Any) -> Any:
    """Return a value with arrays in place of its tensors and of the states of its generators."""
    if isinstance(value, Tensor):
        return {_TENSOR: value.detach().cpu().numpy().copy()}
    if isinstance(value, torch.Generator):
        return {_GENERATOR: value.get_state().numpy().copy()}
    if type(value) is dict:
        return {key: _encode(entry) for key, entry in value.items()}
    return type(value)(map(_encode, value)) if type(value) in (list, tuple) else value


def _decode(value: Any, current: Any) -> Any:
    """Return what `_encode` was called with; tensors on the device of the current value, if it is one."""
    if type(value) is dict and value.keys() == {_TENSOR}:
        tensor = torch.from_numpy(np.array(value[_TENSOR]))
        return tensor.to(current.device) if isinstance(current, Tensor) else tensor
    if type(value) is dict and value.keys() == {_GENERATOR}:
        generator = current if isinstance(current, torch.Generator) else torch.Generator()
        generator.set_state(torch.from_numpy(np.array(value[_GENERATOR])))
        return generator
    if type(value) is dict:
        inner = current if isinstance(current, dict) else {}
        return {key: _decode(entry, inner.get(key)) for key, entry in value.items()}
    return type(value)(_decode(entry, None) for entry in value) if type(value) in (list, tuple) else value
