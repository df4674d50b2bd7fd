"""Adaptation, the inner loop of MAML: gradient steps that can be differentiated by the parameters before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raceway.agents.agent import Agent
from raceway.autograd.tape import use_tape
from raceway.rl import Batch

Parameters = dict[str, Tensor]
PlainLoss = Callable[[Agent, Batch], Tensor]


def loss_with(agent: Agent, params: Parameters, loss: PlainLoss, batch: Batch) -> Tensor:
    """Return the loss of the agent with these parameters instead of its own."""
    with use_tape(None):
        named = {f"agent.{name}": value for name, value in params.items()}
        return functional_call(_LossModule(agent, loss), named, (batch,))


def adapt_parameters(
    agent: Agent, loss: PlainLoss, lr: float, batches: Iterable[Batch], first_order: bool = False
) -> Parameters:
    """Return the parameters after one step θ' = θ - α ∇ loss(θ) for every batch. The agent is not changed.

    Finn et al. 2017, https://arxiv.org/abs/1703.03400, eq. 1. The gradient with respect to θ passes through the steps,
    which needs the second derivatives of the loss; with `first_order` these are taken as zero.
    """
    params: Parameters = dict(agent.named_parameters())
    for batch in batches:
        value = loss_with(agent, params, loss, batch)
        options: Any = {"create_graph": not first_order, "allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(value, list(params.values()), **options)
        steps = zip(params.items(), gradients, strict=True)
        params = {name: before - lr * gradient for (name, before), gradient in steps}
    return params


class _LossModule(nn.Module):
    """A loss as a module, for `functional_call` to replace the parameters of its agent."""

    def __init__(self, agent: Agent, loss: PlainLoss) -> None:
        super().__init__()
        self.agent, self.loss = agent, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.agent, batch)
