"""TorchRL's losses in flows: one operator that trains any of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import SoftUpdate
from torchrl.objectives.common import LossModule

from raceway.checks import check_positive
from raceway.errors import ConfigError
from raceway.ops.report import TrainStats
from raceway.rl import Batch
from raceway.torchrl.batches import as_tensordict


class TrainLossModule:
    """One step of Adam on each batch, down the sum of what a TorchRL loss gives.

    What the loss draws, as SAC draws actions, comes from random numbers of its own.

    Args:
        loss: any `LossModule`. All outputs whose names begin with "loss" are added up.
        lr: Adam's step size.
        max_grad_norm: the norm that gradients are clipped to.
        tau: how far target parameters, if the loss has some, follow the others in each step.
        advantage: what is called with the data first, such as `torchrl.objectives.value.GAE`.
        num_actions: how many discrete actions there are, if the loss wants them one-hot and gets batches.
        seed: of what the loss draws.
    """

    def __init__(
        self,
        loss: LossModule,
        *,
        lr: float = 3e-4,
        max_grad_norm: float | None = None,
        tau: float | None = None,
        advantage: Callable[[TensorDictBase], Any] | None = None,
        num_actions: int | None = None,
        seed: int = 0,
    ) -> None:
        self.loss, self.advantage, self.num_actions = loss, advantage, num_actions
        self.max_grad_norm = None if max_grad_norm is None else check_positive("max_grad_norm", max_grad_norm)
        self.optimiser = torch.optim.Adam(loss.parameters(), lr=check_positive("lr", lr))
        self.updater = self._updater(tau)
        self._random = torch.Generator().manual_seed(seed).get_state()

    def _updater(self, tau: float | None) -> SoftUpdate | None:
        followed = all(self.loss._has_update_associated.values())
        name = type(self.loss).__name__
        if tau is None:
            if not followed:
                raise ConfigError(f"{name} has target parameters that nothing updates. Give tau, such as 0.005.")
            return None
        if not 0 < tau <= 1:
            raise ConfigError(f"tau must be a number above 0 and up to 1, not {tau!r}")
        if not any(child.startswith("target_") for child, _ in self.loss.named_children()):
            raise ConfigError(f"{name} has no target parameters for tau={tau} to update. Leave it out.")
        return SoftUpdate(self.loss, tau=tau)

    def __call__(self, batch: Batch | TensorDictBase) -> TrainStats:
        """Train, and say how it went."""
        begin = time.perf_counter()
        data = as_tensordict(batch, self.num_actions)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            if self.advantage is not None:
                self.advantage(data)
            found = self.loss(data)
            metrics = self._step(found)
            self._random = torch.get_rng_state()
        stats = _stats(batch, data)
        stats.metrics.update(metrics)
        stats.seconds["train"] = time.perf_counter() - begin
        return stats

    def _step(self, found: TensorDictBase) -> dict[str, float]:
        """Take a step down the losses, and return all figures that the loss gave."""
        losses = [value for name, value in found.items() if name.startswith("loss")]
        if not losses:
            raise ConfigError(
                f"{type(self.loss).__name__} gave {sorted(found.keys())}, and nothing that begins with 'loss'"
            )
        total: Tensor = sum(losses[1:], losses[0])
        self.optimiser.zero_grad()
        total.backward()
        metrics = {f"train/{name}": value.item() for name, value in found.items() if value.numel() == 1}
        if self.max_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.loss.parameters(), self.max_grad_norm)
            metrics["train/grad_norm"] = norm.item()
        self.optimiser.step()
        if self.updater is not None:
            self.updater.step()
        return metrics | {"train/loss": total.item()}

    def state(self) -> Any:
        """Return what is needed to go on from here: parameters, targets, moments and random numbers, as arrays."""
        return {
            "loss": _arrays(self.loss.state_dict()),
            "optimiser": _arrays(self.optimiser.state_dict()),
            "random": self._random.numpy().copy(),
        }

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.loss.load_state_dict(_tensors(state["loss"]))
        self.optimiser.load_state_dict(_tensors(state["optimiser"]))
        self._random = torch.from_numpy(state["random"].copy())


def _stats(batch: Batch | TensorDictBase, data: TensorDictBase) -> TrainStats:
    none, index = np.empty(0), data.get("index", None)
    stats = TrainStats(
        num_steps=data.numel() if index is None else 0,  # from replay: they were counted when they were played
        returns=none if isinstance(batch, TensorDictBase) else batch.get("episode_return", none),
        lengths=none if isinstance(batch, TensorDictBase) else batch.get("episode_length", none),
    )
    priorities = data.get("td_error", None)
    if index is not None and priorities is not None:
        stats.priorities = index.numpy(), priorities.detach().reshape(len(data), -1).amax(-1).numpy()
    return stats


def _arrays(tree: Any) -> Any:
    """Return copies of all tensors in a state as arrays."""
    if isinstance(tree, dict):
        return {key: _arrays(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_arrays(part) for part in tree]
    return tree.detach().cpu().numpy().copy() if isinstance(tree, Tensor) else tree


def _tensors(tree: Any) -> Any:
    """Return copies of all arrays in a state as tensors."""
    if isinstance(tree, dict):
        return {key: _tensors(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_tensors(part) for part in tree]
    return torch.from_numpy(np.array(tree)) if isinstance(tree, np.ndarray) else tree
