"""The learner: a policy, its optimiser, and the gradient steps that it takes on a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raceway.agents.policy import Policy, Weights, as_tensor
from raceway.autograd.tape import Tape, use_tape
from raceway.errors import ConfigError
from raceway.learner.adam import Adam
from raceway.rl import Batch, LinearSchedule, num_steps, split_episodes, tree_map, without_episode_columns

Metrics = dict[str, Any]
Loss = Callable[[Policy, Batch], Tensor | tuple[Tensor, Metrics]]
"""Takes a policy and a batch of tensors, and returns the loss, optionally with metrics by name. The metric `td_error`
has one value for each row, its priority."""

VersionedWeights = tuple[int, Weights]
"""A version number, and the weights of that version."""
Schedule = Callable[[int], float]
"""A setting as a function of the number of environment steps so far."""

_MAX_ACTIVATIONS = 1 << 19  # that a network computes at once: 2 MB


class Learner:
    """A policy in training, with its optimiser, target network, device and threads.

    The number of threads is a setting and does not depend on the machine: it changes the last bits of gradients.

    Args:
        policy: the policy to train. It is moved to the device.
        lr: the learning rate, or a schedule of it over environment steps.
        threads: the number of threads for computing.
        max_grad_norm: the norm to which gradients are clipped.
        epsilon: Adam's epsilon.
        seed: the seed for shuffling minibatches.
        device: the torch device, such as `cpu` or `cuda`.
        remote: whether training runs on another thread or process than the one that sends weights. Each training step
            then publishes a copy of the weights.
    """

    def __init__(
        self,
        policy: Policy,
        lr: float | Schedule,
        threads: int = 1,
        *,
        max_grad_norm: float | None = None,
        epsilon: float = 1e-8,
        seed: int = 0,
        device: str = "cpu",
        remote: bool = False,
    ) -> None:
        self.policy, self.threads, self.max_grad_norm = policy.to(device), threads, max_grad_norm
        self.device, self.remote = device, remote
        self.lr: Schedule = lr if callable(lr) else LinearSchedule(lr, lr, 1)
        self.steps = 0
        """Environment steps trained on so far."""
        self.optimiser = Adam(policy.parameters(), self.lr(0), epsilon=epsilon)
        self.chunk_steps = max(_MAX_ACTIVATIONS // activations_per_step(policy), 1)
        self._random = torch.Generator().manual_seed(seed)
        self._target: Policy | None = None
        self._published: VersionedWeights | None = None

    @property
    def version(self) -> int:
        """The number of gradient steps taken so far."""
        return self.optimiser.steps

    @property
    def target(self) -> Policy:
        """The target network: a copy of the policy that is updated separately."""
        if self._target is None:
            self._target = copy.deepcopy(self.policy).requires_grad_(False)
        return self._target

    def train(self, loss: Loss, batch: Batch, num_epochs: int = 1, num_minibatches: int = 1) -> Metrics:
        """Take a gradient step on every minibatch of every epoch, and return the mean metrics.

        A batch of whole episodes is one step, and its loss must be a mean over episodes: it is computed in chunks that
        fit into the caches, which takes two thirds of the time and much less memory.
        """
        metrics = []
        self.optimiser.lr = self.lr(self.steps)
        self.steps += num_steps(batch)
        with self._own_threads():
            if "length" in batch:
                chunks, total = split_episodes(without_episode_columns(batch), self.chunk_steps), len(batch["length"])
                metrics.append(self.step(partial(self._chunk_loss, loss, chunk, total) for chunk in chunks))
            else:
                rows = tensors_of(batch, self.device)
                for _ in range(num_epochs):
                    for minibatch in self._minibatches(rows, num_minibatches):
                        metrics.append(self.step([partial(loss, self.policy, minibatch)]))
                self.policy.observe(rows)
        return mean_metrics(metrics)

    def step(self, losses: Iterable[Callable[[], Tensor | tuple[Tensor, Metrics]]]) -> Metrics:
        """Take one gradient step on the sum of some losses, computed one after the other."""
        self.optimiser.zero_grad()
        with self._own_threads():
            metrics = backward(losses)
            metrics |= self._clip_and_step()
        return metrics

    def apply(self, gradients: Weights, num_steps: int = 0) -> Metrics:
        """Take one gradient step with gradients of another process, computed from `num_steps` environment steps."""
        self.optimiser.zero_grad()
        self.optimiser.lr = self.lr(self.steps)
        self.steps += num_steps
        for name, parameter in self.policy.named_parameters():
            if name in gradients:
                parameter.grad.copy_(as_tensor(gradients[name]))  # type: ignore[union-attr]
        return self._clip_and_step()

    def publish(self) -> VersionedWeights | None:
        """Publish a copy of the current weights if the learner is remote, and return the latest published ones."""
        if self.remote:
            self._published = self.version, copy_weights(self.policy.weights())
        return self._published

    @property
    def published_weights(self) -> VersionedWeights:
        """The weights for workers: the latest published, or the current ones if none were."""
        return self._published or (self.version, self.policy.weights())

    def load_published(self, published: VersionedWeights) -> None:
        """Load weights that a remote learner has published, if they are newer than these."""
        version, weights = self._published = published
        if version > self.version:
            self.policy.load(weights)
            self.optimiser.steps = version

    def state(self) -> Any:
        """Return the state for a checkpoint. Later training does not change it."""
        return {
            "policy": copy_weights(self.policy.weights()),
            "target": None if self._target is None else copy_weights(self._target.weights()),
            "optimiser": self.optimiser.state(),
            "steps": self.steps,
            "random": self._random.get_state().numpy().copy(),
        }

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.policy.load(state["policy"])
        if state["target"] is not None:
            self.target.load(state["target"])
        self.optimiser.restore(state["optimiser"])
        self.steps, self._published = state["steps"], None
        self._random.set_state(torch.from_numpy(np.array(state["random"])))

    def _chunk_loss(self, loss: Loss, chunk: Batch, num_episodes: int) -> Tensor:
        value = loss(self.policy, tensors_of(chunk, self.device))
        assert isinstance(value, Tensor)
        return value * (len(chunk["length"]) / num_episodes)

    def lag_metrics(self, version: int | None) -> Metrics:
        """Return the metric `policy_lag`: the number of gradient steps since a version of the weights."""
        return {} if version is None else {"policy_lag": self.version - version}

    def _clip_and_step(self) -> Metrics:
        norm = None if self.max_grad_norm is None else self.optimiser.clip_grad_norm(self.max_grad_norm)
        self.optimiser.step()
        return {} if norm is None else {"grad_norm": norm}

    def _minibatches(self, rows: Batch, num: int) -> Iterator[Batch]:
        if num == 1:
            yield rows
            return
        total = len(rows["action"])
        if num > total:
            raise ConfigError(
                f"a batch of {total} steps cannot be split into {num} minibatches. Use fewer, or more steps."
            )
        order = torch.randperm(total, generator=self._random).to(self.device)
        shuffled = tree_map(lambda column: column[order], rows)  # once, so that minibatches are views
        edges = [index * (total // num) + min(index, total % num) for index in range(num + 1)]
        for first, end in pairwise(edges):
            yield tree_map(lambda column, first=first, end=end: column[first:end], shuffled)

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        if before != self.threads:
            torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            if before != self.threads:
                torch.set_num_threads(before)  # environments in the same process are stepped with one thread


class HasLearner:
    """Mixin for an operator with a learner: a remote learner is saved with the operator."""

    shared_by_runs = True  # of a flow: they continue with the learner as it is
    learner: Learner

    def state(self) -> Any:
        """Return the learner's state if it is remote; a local learner is saved separately."""
        return self.learner.state() if self.learner.remote else None

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.learner.restore(state)


def resolve_device(name: str) -> str:
    """Return the torch device for a setting. Raise ConfigError if it is not available."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name} cannot be used here: {error}. Use cpu, or auto.") from error
    return name


def gradients_of(policy: Policy, loss: Loss, batch: Batch) -> tuple[Weights, Metrics]:
    """Return the gradients of a loss by parameter name, and the metrics. The policy is not changed."""
    policy.zero_grad(set_to_none=True)
    metrics = backward([partial(loss, policy, tensors_of(batch))])
    gradients = {
        name: parameter.grad.numpy() for name, parameter in policy.named_parameters() if parameter.grad is not None
    }
    policy.zero_grad(set_to_none=True)
    return gradients, mean_metrics([metrics])


def backward(losses: Iterable[Callable[[], Tensor | tuple[Tensor, Metrics]]]) -> Metrics:
    """Accumulate the gradients of some losses, and return the sum of the losses and the metrics of the last."""
    total, metrics, tape = 0.0, Metrics(), Tape()
    for loss in losses:
        with use_tape(tape):
            value = loss()
        if isinstance(value, tuple):
            value, metrics = value
        tape.backward(value)
        total += float(value.detach())
    return {"loss": total, **metrics}


def tensors_of(batch: Batch, device: str = "cpu") -> Batch:
    """Return the rows of a batch as tensors on a device."""
    return tree_map(
        as_tensor if device == "cpu" else lambda array: as_tensor(array).to(device), without_episode_columns(batch)
    )


def copy_weights(weights: Weights) -> Weights:
    """Return a copy of the weights, which later training does not change."""
    return {name: np.array(array) for name, array in weights.items()}


def mean_metrics(steps: list[Metrics]) -> Metrics:
    """Return the mean of every metric over some steps; for metrics with a value for each row, the last."""
    values_of: dict[str, list[Any]] = {}
    for metrics in steps:
        for name, value in metrics.items():
            values_of.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)
    return {name: _mean(values) for name, values in values_of.items()}


def _mean(values: list[Any]) -> Any:
    last = values[-1]
    if isinstance(last, Tensor) and last.ndim:
        return last.cpu().numpy()
    return last if np.ndim(last) else float(np.mean([float(value) for value in values]))


def activations_per_step(network: nn.Module) -> int:
    """Return the approximate number of activations per step: the outputs of all layers of a network.

    >>> activations_per_step(nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)))
    130
    """
    return sum(len(weight) for weight in network.parameters() if weight.ndim > 1) or 1
