"""Objectives in training: each with its optimiser, and with gradients that reach its own parts only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from raceway.agents.agent import Agent
from raceway.errors import ConfigError
from raceway.injection import injected_parameters
from raceway.learner.loss_state import restore_loss, state_of_loss
from raceway.learner.objectives import Loss, Metrics, Objective, Schedule
from raceway.learner.optimisers import make_optimiser
from raceway.rl import Batch, LinearSchedule

_WHOLE = "agent"


class ActiveObjective:
    """An objective, its parameters and their optimiser.

    Args:
        name: the name of the objective: the part that it trains, unless it names others, or `agent` for all.
        objective: the objective.
        agent: the agent that is trained.
        lr: the learning rate, if the objective has none of its own.
        max_grad_norm: the norm to which gradients are clipped, likewise.
        epsilon: Adam's epsilon.
    """

    def __init__(
        self,
        name: str,
        objective: Objective,
        agent: Agent,
        *,
        lr: Schedule,
        max_grad_norm: float | None,
        epsilon: float,
    ) -> None:
        self.name, self.loss, self.every = name, objective.loss, objective.every
        self.whole_batch = objective.whole_batch
        self._asks_random = asks_random(objective.loss)
        parts = objective.parts if objective.parts is not None else None if name == _WHOLE else (name,)
        self.parameters = list(dict.fromkeys(agent.parameters_of(parts)))
        if not self.parameters:
            raise ConfigError(f"the objective {name!r} has no parameters to train")
        own = set(map(id, self.parameters))
        self.others = [value for value in agent.parameters() if id(value) not in own and value.requires_grad]
        """The parameters that it must not change."""
        self.lr: Schedule = lr
        if objective.lr is not None:
            self.lr = objective.lr if callable(objective.lr) else LinearSchedule(objective.lr, objective.lr, 1)
        self.max_grad_norm = max_grad_norm if objective.max_grad_norm is None else objective.max_grad_norm
        kind, options = objective.optimiser or "adam", {"epsilon": epsilon, **(objective.options or {})}
        if kind != "adam" and "epsilon" not in (objective.options or {}):
            options.pop("epsilon")
        self.optimiser: Any = make_optimiser(kind, self.parameters, self.lr(0), **options)

    def call(self, loss: Loss, agent: Agent, batch: Batch, random: torch.Generator) -> Any:
        """Compute the loss, with the generator if it asks for one."""
        if loss is not self.loss:
            self.loss, self._asks_random = loss, asks_random(loss)
        return loss(agent, batch, random=random) if self._asks_random else loss(agent, batch)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Let gradients reach its own parameters only, and start from zero."""
        self.optimiser.zero_grad()
        for parameter in self.others:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in self.others:
                parameter.requires_grad_(True)

    def set_lr(self, steps: float) -> None:
        """Set the learning rate for the progress of the run."""
        self.optimiser.lr = self.lr(steps)

    def clip_and_step(self) -> Metrics:
        """Clip the gradients, take a step, and return the norm of the gradients if they are clipped."""
        norm = None if self.max_grad_norm is None else self.optimiser.clip_grad_norm(self.max_grad_norm)
        self.optimiser.step()
        return {} if norm is None else {self.metric("grad_norm"): norm}

    def metric(self, name: str) -> str:
        """Return the full name of one of its metrics."""
        return name if self.name == _WHOLE else f"{self.name}_{name}"

    def state(self) -> Any:
        """Return the state of the optimiser and, if it has one, of the loss."""
        return {"optimiser": self.optimiser.state(), "loss": state_of_loss(self.loss)}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.optimiser.restore(state["optimiser"])
        restore_loss(self.loss, state["loss"])


def asks_random(loss: Loss) -> bool:
    """Whether a loss declares a parameter `random=injected`."""
    return "random" in injected_parameters(loss, ("random",), "in a loss")


def check_disjoint(objectives: Sequence[ActiveObjective]) -> None:
    """Refuse objectives that train the same parameters: each would undo the steps of the others."""
    owner: dict[int, str] = {}
    for objective in objectives:
        for parameter in objective.parameters:
            other = owner.setdefault(id(parameter), objective.name)
            if other != objective.name:
                raise ConfigError(
                    f"the objectives {other!r} and {objective.name!r} train the same parameters, of shape "
                    f"{tuple(parameter.shape)}. Name disjoint parts, or use one loss for both."
                )
