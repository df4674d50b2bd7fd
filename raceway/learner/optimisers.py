"""Optimisers by name: the built-in Adam and RAdam, or any class of `torch.optim`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raceway.autograd.fast_paths import fast_paths_enabled
from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.learner.adam import Adam, RAdam
from raceway.learner.gradient_descent import GradientDescent

_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names them


def make_optimiser(
    name: str, parameters: Iterable[Tensor], lr: float, **options: Any
) -> Adam | GradientDescent | TorchOptimiser:
    """Return an optimiser.

    Args:
        name: `adam`, `radam` or, without options, `sgd`, which are built in on the CPU, or a class of `torch.optim` in
            any case, such as `rmsprop`.
        parameters: the parameters that it changes.
        lr: the learning rate.
        options: `betas`, `epsilon` (eps), `weight_decay`, and others that the class has.
    """
    parameters = list(parameters)
    if name.lower() in _BUILT_IN and options.keys() <= {"betas", "epsilon"}:
        on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
        built_in, in_torch = _BUILT_IN[name.lower()]
        return (built_in if on_cpu and fast_paths_enabled() else in_torch)(parameters, lr, **options)
    if name.lower() == "sgd" and not options and fast_paths_enabled():
        return GradientDescent(parameters, lr)
    classes: dict[str, Any] = {key.lower(): value for key, value in vars(torch.optim).items() if inspect.isclass(value)}
    if name.lower() not in classes or name.lower() == "optimizer":
        raise unknown_name("optimiser", name, sorted(set(classes) - {"optimizer"}))
    if "epsilon" in options:
        options["eps"] = options.pop("epsilon")
    cls = classes[name.lower()]
    accepted = inspect.signature(cls).parameters
    for option in options:
        if option not in accepted:
            raise ConfigError(
                f"the optimiser {name} has no option {option!r}. It has: {', '.join(list(accepted)[1:])}."
            )
    return TorchOptimiser(cls(parameters, lr=lr, **options))


class TorchOptimiser:
    """An optimiser of torch with the interface of `Adam`. Its state is saved as arrays by parameter."""

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        self.steps = 0
        self.parameters: list[Tensor] = optimiser.param_groups[0]["params"]

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self.optimiser.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimiser.param_groups[0]["lr"] = value

    def zero_grad(self) -> None:
        """Set the gradients to zero, to be accumulated."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def gradient(self) -> Tensor:
        """Return a copy of the gradients as one vector."""
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters]
        return torch.cat([gradient.reshape(-1) for gradient in gradients])

    def set_gradient(self, gradient: Tensor) -> None:
        """Set the gradients to those of a vector that `gradient` returned."""
        parts = gradient.split([each.numel() for each in self.parameters])
        for each, part in zip(self.parameters, parts, strict=True):
            each.grad = part.view_as(each).to(each, copy=True)

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm`, and return the norm before."""
        return float(nn.utils.clip_grad_norm_(self.parameters, max_norm))

    def step(self) -> None:
        """Take one gradient step."""
        self.steps += 1
        self.optimiser.step()

    def state(self) -> Any:
        """Return the step count and torch's state of every parameter, for a checkpoint."""
        entries = self.optimiser.state_dict()["state"]
        return {"steps": self.steps, "parameters": {str(key): _as_data(entry) for key, entry in entries.items()}}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.steps = state["steps"]
        saved = {int(key): _as_tensors(entry) for key, entry in state["parameters"].items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": saved, "param_groups": groups})


class TorchAdam(TorchOptimiser):
    """torch's Adam, where the built-in one is not used: it gives the same, and its state has the same form."""

    kind: ClassVar[str] = "Adam"
    """The name of torch's class."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(getattr(torch.optim, self.kind)(list(parameters), lr=lr, betas=betas, eps=epsilon))
        self.epsilon = epsilon
        self.zero_grad()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients to a norm of at most `max_norm`, and return the norm before."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in gradients))
        if norm > max_norm:
            for gradient in gradients:
                gradient *= max_norm / norm
        return norm

    def state(self) -> Any:
        """Return the step count and the moments, one vector for each dtype, for a checkpoint."""
        return {"steps": self.steps, "moments": [self._moments(group) for group in self._groups()]}

    def _groups(self) -> list[list[Tensor]]:
        """Return the parameters by dtype."""
        groups: dict[torch.dtype, list[Tensor]] = {}
        for parameter in self.parameters:
            groups.setdefault(parameter.dtype, []).append(parameter)
        return list(groups.values())

    def _moments(self, group: list[Tensor]) -> tuple[np.ndarray, ...]:
        state = self.optimiser.state
        columns = ([state[each].get(name, torch.zeros_like(each)) for each in group] for name in _MOMENTS)
        return tuple(torch.cat([part.detach().reshape(-1).cpu() for part in column]).numpy() for column in columns)

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.steps = state["steps"]
        for group, moments in zip(self._groups(), state["moments"], strict=True):
            sizes = [each.numel() for each in group]
            for name, vector in zip(_MOMENTS, moments, strict=True):
                parts = torch.from_numpy(np.array(vector)).split(sizes)
                for each, part in zip(group, parts, strict=True):
                    entry = self.optimiser.state[each]
                    entry["step"] = torch.tensor(float(self.steps))
                    entry[name] = part.clone().view_as(each).to(each.device)


class TorchRAdam(TorchAdam):
    """torch's RAdam, likewise."""

    kind = "RAdam"


_BUILT_IN: dict[str, tuple[type[Adam], type[TorchAdam]]] = {"adam": (Adam, TorchAdam), "radam": (RAdam, TorchRAdam)}


def _as_data(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu().numpy().copy() if isinstance(value, Tensor) else value for name, value in entry.items()}


def _as_tensors(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
        for name, value in entry.items()
    }
