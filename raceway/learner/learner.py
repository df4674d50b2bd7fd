"""The learner: a policy, its optimiser, and how a batch becomes steps."""

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
from raceway.autograd.tape import Tape, taping
from raceway.errors import ConfigError
from raceway.learner.adam import Adam
from raceway.rl import Batch, Linear, num_steps, parts_of, rows_of, tree_map

Figures = dict[str, Any]
Loss = Callable[[Policy, Batch], Tensor | tuple[Tensor, Figures]]
"""Of a policy and a batch of tensors: what is to become small, and maybe figures by name. A figure `td_error` is of
every row, and becomes its priority."""

News = tuple[int, Weights]
"""A version of the weights, and what they are."""
Schedule = Callable[[int], float]
"""A number after so many steps of environments."""

_PART_NUMBERS = 1 << 19  # numbers that a network works out at once: 2 MB


class Learner:
    """The policy that is trained, its optimiser, where that is done, and how many threads it may use.

    The number of threads is a setting and not the machine's: it changes the last bits of gradients.

    Args:
        policy: it is moved to the device.
        lr: step size of Adam, or what gives it for so many steps of environments.
        threads: that it computes with.
        max_grad_norm: norm that gradients are clipped to.
        epsilon: what Adam adds to what it divides by.
        seed: of the order of minibatches.
        device: of torch, such as `cpu` or `cuda`.
        away: whether training happens on another thread or in another process than sending weights does. Then these go
            with the figures of every training step.
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
        away: bool = False,
    ) -> None:
        self.policy, self.threads, self.max_grad_norm = policy.to(device), threads, max_grad_norm
        self.device, self.away = device, away
        self.lr: Schedule = lr if callable(lr) else Linear(lr, lr, 1)
        self.steps = 0
        """Of environments, that were trained on."""
        self.optimiser = Adam(policy.parameters(), self.lr(0), epsilon=epsilon)
        self.part_steps = max(_PART_NUMBERS // numbers_a_step(policy), 1)
        self._random = torch.Generator().manual_seed(seed)
        self._target: Policy | None = None
        self._latest: News | None = None

    @property
    def version(self) -> int:
        """How many steps were taken."""
        return self.optimiser.steps

    @property
    def target(self) -> Policy:
        """A copy of the policy that follows it only when it is told to."""
        if self._target is None:
            self._target = copy.deepcopy(self.policy).requires_grad_(False)
        return self._target

    def train(self, loss: Loss, batch: Batch, num_epochs: int = 1, num_minibatches: int = 1) -> Figures:
        """Take a step on every minibatch of every epoch, and return the means of the figures.

        The loss of whole episodes must be a mean over them: it is worked out in parts that fit into the caches, which
        takes two thirds of the time and much less memory.
        """
        found = []
        self.optimiser.lr = self.lr(self.steps)
        self.steps += num_steps(batch)
        with self._own_threads():
            if "length" in batch:
                parts, total = parts_of(rows_of(batch), self.part_steps), len(batch["length"])
                found.append(self.step(partial(self._share, loss, part, total) for part in parts))
            else:
                rows = tensors_of(batch, self.device)
                for _ in range(num_epochs):
                    for part in self._minibatches(rows, num_minibatches):
                        found.append(self.step([partial(loss, self.policy, part)]))
                self.policy.observe(rows)
        return mean_figures(found)

    def step(self, losses: Iterable[Callable[[], Tensor | tuple[Tensor, Figures]]]) -> Figures:
        """Take one step down the sum of some losses, which are worked out one after the other."""
        self.optimiser.zero_grad()
        with self._own_threads():
            figures = backward(losses)
            figures |= self._descend()
        return figures

    def apply(self, gradients: Weights, num_steps: int = 0) -> Figures:
        """Take one step against gradients that were worked out elsewhere, from so many steps of environments."""
        self.optimiser.zero_grad()
        self.optimiser.lr = self.lr(self.steps)
        self.steps += num_steps
        for name, parameter in self.policy.named_parameters():
            if name in gradients:
                parameter.grad.copy_(as_tensor(gradients[name]))  # type: ignore[union-attr]
        return self._descend()

    def news(self) -> News | None:
        """Return the weights as they are now, if they are wanted elsewhere."""
        if self.away:
            self._latest = self.version, copies(self.policy.weights())
        return self._latest

    @property
    def published(self) -> News:
        """The weights that others may have now."""
        return self._latest or (self.version, self.policy.weights())

    def follow(self, news: News) -> None:
        """Take over weights of one that was trained elsewhere, if this is another object."""
        version, weights = self._latest = news
        if version > self.version:
            self.policy.load(weights)
            self.optimiser.steps = version

    def state(self) -> Any:
        """Return what is needed to go on from here, which stays as it is when training goes on."""
        return {
            "policy": copies(self.policy.weights()),
            "target": None if self._target is None else copies(self._target.weights()),
            "optimiser": self.optimiser.state(),
            "steps": self.steps,
            "random": self._random.get_state().numpy().copy(),
        }

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.policy.load(state["policy"])
        if state["target"] is not None:
            self.target.load(state["target"])
        self.optimiser.restore(state["optimiser"])
        self.steps, self._latest = state["steps"], None
        self._random.set_state(torch.from_numpy(np.array(state["random"])))

    def _share(self, loss: Loss, part: Batch, num_episodes: int) -> Tensor:
        value = loss(self.policy, tensors_of(part, self.device))
        assert isinstance(value, Tensor)
        return value * (len(part["length"]) / num_episodes)

    def behind(self, version: int | None) -> Figures:
        """Return by how many steps weights of a version are older than these, as a figure."""
        return {} if version is None else {"policy_lag": self.version - version}

    def _descend(self) -> Figures:
        figures = {} if self.max_grad_norm is None else {"grad_norm": self.optimiser.clip(self.max_grad_norm)}
        self.optimiser.step()
        return figures

    def _minibatches(self, rows: Batch, num: int) -> Iterator[Batch]:
        if num == 1:
            yield rows
            return
        total = len(rows["action"])
        if num > total:
            raise ConfigError(
                f"{num} minibatches cannot be made of a batch of {total} steps. Have fewer, or more steps."
            )
        order = torch.randperm(total, generator=self._random).to(self.device)
        shuffled = tree_map(lambda column: column[order], rows)  # once, so that a minibatch is a view
        edges = [place * (total // num) + min(place, total % num) for place in range(num + 1)]
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
                torch.set_num_threads(before)  # environments beside it are played with one


class Trains:
    """Something that has a learner, which may be elsewhere: then it is saved with it."""

    learner: Learner

    def state(self) -> Any:
        """Return the learner's, if it is elsewhere; here it is saved by itself."""
        return self.learner.state() if self.learner.away else None

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.learner.restore(state)


def device_named(name: str) -> str:
    """Return a device by its setting, having said if it is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name} cannot be used here: {error}. Use cpu, or auto.") from error
    return name


def gradients_of(policy: Policy, loss: Loss, batch: Batch) -> tuple[Weights, Figures]:
    """Return the gradient of a loss by the names of parameters, and the figures. Nothing is changed."""
    policy.zero_grad(set_to_none=True)
    figures = backward([partial(loss, policy, tensors_of(batch))])
    found = {name: one.grad.numpy() for name, one in policy.named_parameters() if one.grad is not None}
    policy.zero_grad(set_to_none=True)
    return found, mean_figures([figures])


def backward(losses: Iterable[Callable[[], Tensor | tuple[Tensor, Figures]]]) -> Figures:
    """Add the gradients of some losses to those of the parameters, and return their sum and the last one's figures."""
    total, figures, tape = 0.0, Figures(), Tape()
    for loss in losses:
        with taping(tape):
            value = loss()
        if isinstance(value, tuple):
            value, figures = value
        tape.backward(value)
        total += float(value.detach())
    return {"loss": total, **figures}


def tensors_of(batch: Batch, device: str = "cpu") -> Batch:
    """Return the rows of a batch as tensors on a device."""
    return tree_map(as_tensor if device == "cpu" else lambda array: as_tensor(array).to(device), rows_of(batch))


def copies(weights: Weights) -> Weights:
    """Return weights that stay as they are when training goes on."""
    return {name: np.array(array) for name, array in weights.items()}


def mean_figures(found: list[Figures]) -> Figures:
    """Return the mean of every figure; of one that is of every row, the last."""
    many: dict[str, list[Any]] = {}
    for figures in found:
        for name, value in figures.items():
            many.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)
    return {name: _mean(values) for name, values in many.items()}


def _mean(values: list[Any]) -> Any:
    last = values[-1]
    if isinstance(last, Tensor) and last.ndim:
        return last.cpu().numpy()
    return last if np.ndim(last) else float(np.mean([float(value) for value in values]))


def numbers_a_step(network: nn.Module) -> int:
    """Return about how many numbers a network works out for one step: its outputs, layer by layer.

    >>> numbers_a_step(nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)))
    130
    """
    return sum(len(weight) for weight in network.parameters() if weight.ndim > 1) or 1
