"""TorchRL's losses in flows: one operator that trains any `LossModule`."""

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
from raceway.rl.episode_info import EPISODE_INFO
from raceway.rl.seeding import GLOBAL_GENERATORS_LOCK
from raceway.torchrl.batches import as_tensordict


class TrainLossModule:
    """Take one Adam step on each batch, to minimise the sum of a TorchRL loss module's losses.

    The random numbers of the loss (SAC samples actions) come from the operator's own generator.

    Args:
        loss: any `LossModule`. All outputs whose names begin with "loss" are summed.
        lr: Adam's learning rate.
        max_grad_norm: the norm that gradients are clipped to.
        tau: the soft-update coefficient of the target parameters; required if the loss has some.
        advantage: called with the data before the loss, such as `torchrl.objectives.value.GAE`.
        num_actions: the number of discrete actions, to encode those of batches one-hot.
        seed: seed of the random numbers that the loss uses.
    """

    shared_by_runs = True  # of a flow: they continue with the loss module as it is

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
        self.updater = self._make_updater(tau)
        self._random = torch.Generator().manual_seed(seed).get_state()

    def _make_updater(self, tau: float | None) -> SoftUpdate | None:
        targets_are_updated = all(self.loss._has_update_associated.values())
        name = type(self.loss).__name__
        if tau is None:
            if not targets_are_updated:
                raise ConfigError(f"{name} has target parameters that nothing updates. Pass tau, such as 0.005.")
            return None
        if not 0 < tau <= 1:
            raise ConfigError(f"tau must be a number above 0 and up to 1, not {tau!r}")
        if not any(child.startswith("target_") for child, _ in self.loss.named_children()):
            raise ConfigError(f"{name} has no target parameters for tau={tau} to update. Leave tau out.")
        return SoftUpdate(self.loss, tau=tau)

    def __call__(self, batch: Batch | TensorDictBase) -> TrainStats:
        """Take one gradient step on the batch, and return its metrics."""
        start = time.perf_counter()
        data = as_tensordict(batch, self.num_actions)
        with GLOBAL_GENERATORS_LOCK, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            if self.advantage is not None:
                self.advantage(data)
            metrics = self._step(self.loss(data))
            self._random = torch.get_rng_state()
        stats = _stats(batch, data)
        stats.metrics.update(metrics)
        stats.seconds["train"] = time.perf_counter() - start
        return stats

    def _step(self, outputs: TensorDictBase) -> dict[str, float]:
        """Take a gradient step on the sum of the losses, and return all scalar outputs of the loss as metrics."""
        losses = [value for name, value in outputs.items() if name.startswith("loss")]
        if not losses:
            raise ConfigError(
                f"{type(self.loss).__name__} returned {sorted(outputs.keys())}, none of which begins with 'loss'"
            )
        total: Tensor = sum(losses[1:], losses[0])
        self.optimiser.zero_grad()
        total.backward()
        metrics = {f"train/{name}": value.item() for name, value in outputs.items() if value.numel() == 1}
        if self.max_grad_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.loss.parameters(), self.max_grad_norm)
            metrics["train/grad_norm"] = norm.item()
        self.optimiser.step()
        if self.updater is not None:
            self.updater.step()
        return metrics | {"train/loss": total.item()}

    def state(self) -> Any:
        """Return the state to checkpoint, as arrays: parameters, targets, Adam's moments and the random generator."""
        return {
            "loss": _to_arrays(self.loss.state_dict()),
            "optimiser": _to_arrays(self.optimiser.state_dict()),
            "random": self._random.numpy().copy(),
        }

    def restore(self, state: Any) -> None:
        """Restore a state that `state` returned."""
        self.loss.load_state_dict(_to_tensors(state["loss"]))
        self.optimiser.load_state_dict(_to_tensors(state["optimiser"]))
        self._random = torch.from_numpy(state["random"].copy())


def _stats(batch: Batch | TensorDictBase, data: TensorDictBase) -> TrainStats:
    no_episodes, index = np.empty(0), data.get("index", None)
    stats = TrainStats(
        num_steps=data.numel() if index is None else 0,  # replayed steps were counted when collected
        returns=no_episodes if isinstance(batch, TensorDictBase) else batch.get("episode_return", no_episodes),
        lengths=no_episodes if isinstance(batch, TensorDictBase) else batch.get("episode_length", no_episodes),
        episode_info=None if isinstance(batch, TensorDictBase) else batch.get(EPISODE_INFO),
    )
    priorities = data.get("td_error", None)
    if index is not None and priorities is not None:
        stats.priorities = index.numpy(), priorities.detach().reshape(len(data), -1).amax(-1).numpy()
    return stats


def _to_arrays(tree: Any) -> Any:
    """Return the state with all tensors copied to arrays."""
    if isinstance(tree, dict):
        return {key: _to_arrays(part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_to_arrays(part) for part in tree]
    return tree.detach().cpu().numpy().copy() if isinstance(tree, Tensor) else tree


def _to_tensors(tree: Any) -> Any:
    """Return the state with all arrays copied to tensors."""
    if isinstance(tree, dict):
        return {key: _to_tensors(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_to_tensors(part) for part in tree]
    return torch.from_numpy(np.array(tree)) if isinstance(tree, np.ndarray) else tree
