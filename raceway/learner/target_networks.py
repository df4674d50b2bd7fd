"""Target networks: copies of parts of an agent that follow the trained ones, on whatever device the learner is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from raceway.agents.agent import Agent
from raceway.agents.weights import copy_weights
from raceway.autograd.row_blocks import run_blocks
from raceway.errors import ConfigError
from raceway.learner.objectives import Target


class TargetNetworks:
    """The target networks of an agent, `agent.target`.

    Parameters are averaged as one list, which takes one call for all of them; buffers, such as the statistics of a
    normaliser, are copied.
    """

    def __init__(self, agent: Agent, targets: Sequence[Target]) -> None:
        self.agent, self.targets = agent, tuple(targets)
        names = [target.names for target in targets]
        if None in names and len(names) > 1:
            raise ConfigError("a Target of the whole agent cannot be combined with others")
        parts = None if None in names else tuple(dict.fromkeys(name for part in names for name in part or ()))
        if not agent.has_target:  # else it came with a learner that was sent to another process
            agent.make_target(parts)
        self._pairs = [self._tensors(target) for target in targets]

    def _tensors(self, target: Target) -> tuple[list[Any], list[Any], list[tuple[Any, Any]]]:
        """Return the target's parameters, the trained ones, and pairs of buffers."""
        names = list(self.agent._modules) if target.names is None else target.names
        own, followed = self.agent.target._modules, self.agent._modules
        pairs = [(own[name], followed[name]) for name in names]
        buffers = [
            both
            for copied, trained in pairs
            for both in zip(copied.buffers(), trained.buffers(), strict=True)  # type: ignore[union-attr]
        ]
        copies = [parameter for copied, _ in pairs for parameter in copied.parameters()]  # type: ignore[union-attr]
        trained_ones = [parameter for _, trained in pairs for parameter in trained.parameters()]  # type: ignore[union-attr]
        return copies, trained_ones, buffers

    def update(self, num_updates: int) -> None:
        """Update the targets that are due after this number of updates."""
        pairs = zip(self.targets, self._pairs, strict=True)
        due = [(target.tau, *tensors) for target, tensors in pairs if num_updates % target.every == 0]
        if due:
            run_blocks(lambda _: _average(due), [slice(None)])  # waiting for torch's threads would take longer

    def state(self) -> Any:
        """Return the weights, for a checkpoint."""
        return copy_weights(self.agent.target.weights())

    def restore(self, state: Any) -> None:
        """Restore the weights."""
        self.agent.target.load(state)


def _average(due: Sequence[tuple[float, list[Any], list[Any], list[tuple[Any, Any]]]]) -> None:
    """Move targets by a share tau towards the trained parameters, and copy buffers."""
    for tau, own, trained, buffers in due:
        if tau == 1.0:
            torch._foreach_copy_(own, trained)
        else:
            torch._foreach_lerp_(own, trained, tau)
        for copied, buffer in buffers:
            copied.copy_(buffer)
