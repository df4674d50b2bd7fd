"""Adapting: weights after steps down a loss, as a function of the weights before, which can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from raceway.agents.policy import Policy
from raceway.autograd.tape import taping
from raceway.rl import Batch

Parameters = dict[str, Tensor]
PlainLoss = Callable[[Policy, Batch], Tensor]


def loss_with(policy: Policy, params: Parameters, loss: PlainLoss, batch: Batch) -> Tensor:
    """Return a loss of the policy as if it had these parameters."""
    with taping(None):
        named = {f"policy.{name}": value for name, value in params.items()}
        return functional_call(_Loss(policy, loss), named, (batch,))


def adapted(
    policy: Policy, loss: PlainLoss, lr: float, batches: Iterable[Batch], first_order: bool = False
) -> Parameters:
    """Return the parameters after one step of θ' = θ - α ∇ loss(θ) for every batch. The policy stays as it is.

    Finn et al. 2017, https://arxiv.org/abs/1703.03400, eq. 1. A gradient by θ goes through the steps, which takes the
    second derivatives of the loss; with `first_order` these count as zero.
    """
    params: Parameters = dict(policy.named_parameters())
    for batch in batches:
        value = loss_with(policy, params, loss, batch)
        some: Any = {"create_graph": not first_order, "allow_unused": True, "materialize_grads": True}
        gradients = torch.autograd.grad(value, list(params.values()), **some)
        steps = zip(params.items(), gradients, strict=True)
        params = {name: before - lr * gradient for (name, before), gradient in steps}
    return params


class _Loss(nn.Module):
    """A loss as a network, for whose parameters others can be put."""

    def __init__(self, policy: Policy, loss: PlainLoss) -> None:
        super().__init__()
        self.policy, self.loss = policy, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.policy, batch)
