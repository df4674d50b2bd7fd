"""Learning from a dataset: what keeps a policy and its critics near the actions of the dataset.

Rows are [N], or [E, N] of E critics: the shape is written as [...]. Gradients pass through all functions, except where
they say otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Return |τ - 1(u < 0)| u², [...].

    Kostrikov et al. 2021 (IQL), https://arxiv.org/abs/2110.06169, eq. 4. Where the mean of this is smallest, V is the
    expectile τ of its targets: their mean if τ is 1/2, and nearer to the largest, the nearer τ is to 1.

    Args:
        errors: u, targets minus V, [...].
        expectile: τ.

    >>> expectile_loss(torch.tensor([2.0, -2.0]), 0.75).tolist()
    [3.0, 1.0]
    """
    return torch.where(errors < 0, 1 - expectile, expectile) * errors.square()


def exponential_weights(advantages: Tensor, beta: float, limit: float = math.inf) -> Tensor:
    """Return min(exp(β A), limit), [...]: the weights of the dataset's actions in cloning them. They have no gradient.

    Wang et al. 2018 (MARWIL), https://papers.nips.cc/paper/2018/hash/4aec1b3435c52abbdf8334ea0e7141e0-Abstract.html,
    algorithm 1; with a limit, Kostrikov et al. 2021 (IQL), https://arxiv.org/abs/2110.06169, eq. 7. With β = 0 all
    weights are 1.

    Args:
        advantages: A, [...].
        beta: β.
        limit: the largest weight.

    >>> exponential_weights(torch.tensor([0.0, 1.0, 9.0]), beta=math.log(2), limit=100.0).tolist()
    [1.0, 2.0, 100.0]
    """
    return (beta * advantages.detach()).exp().clamp(max=limit)


def scaled_advantages(advantages: Tensor) -> Tensor:
    """Return A / √(mean A²), [N], without a gradient.

    Wang et al. 2018 (MARWIL) divide by a moving average, which has to forget its first value before β has its effect.
    This is the average of the batch.

    Args:
        advantages: A, [N].

    >>> scaled_advantages(torch.tensor([3.0, -3.0])).tolist()
    [1.0, -1.0]
    """
    advantages = advantages.detach()
    return advantages / (advantages.square().mean().sqrt() + 1e-8)


def q_scale(q_values: Tensor, alpha: float) -> Tensor:
    """Return λ = α / mean |Q(s, a)|, a single number without a gradient.

    Fujimoto and Gu 2021 (TD3+BC), https://arxiv.org/abs/2106.06860, eq. 5: times λ, Q-values of any scale weigh α
    against a squared distance of actions.

    Args:
        q_values: Q(s, a), [N].
        alpha: α.

    >>> q_scale(torch.tensor([4.0, -6.0]), alpha=2.5).item()
    0.5
    """
    return alpha / q_values.detach().abs().mean()


def conservative_penalty(q_values: Tensor, data_q: Tensor) -> Tensor:
    """Return log Σₐ exp Q(s, a) - Q(s, a_D), [...], with the action a_D of the dataset.

    Kumar et al. 2020 (CQL), https://arxiv.org/abs/2006.04779, eq. 4. It lowers the highest of the Q-values, and raises
    that of the action whose outcome is known. For continuous actions pass `importance_weighted` values.

    Args:
        q_values: Q(s, ·), [..., num_actions].
        data_q: Q(s, a_D), [...].

    >>> penalty = conservative_penalty(torch.tensor([[1.0, 1.0]]), torch.tensor([1.0])).exp()
    >>> round(penalty.item(), 4)
    2.0
    """
    return q_values.logsumexp(-1) - data_q


def importance_weighted(q_values: Tensor, log_density: Tensor) -> Tensor:
    """Return Q(s, aᵢ) - log μᵢ(aᵢ) - log K, [..., K].

    Kumar et al. 2020 (CQL), https://arxiv.org/abs/2006.04779, appendix F: the log-sum-exp of these numbers estimates
    log ∫ exp Q(s, a) da from K actions that were sampled with the densities μᵢ. The authors leave out log K.

    Args:
        q_values: Q(s, aᵢ), [..., K].
        log_density: log μᵢ(aᵢ), [..., K]; of uniform actions in [-1, 1]^d it is d log 1/2.

    >>> importance_weighted(torch.zeros(1, 4), torch.full((1, 4), math.log(0.5))).logsumexp(-1).exp().tolist()
    [2.0]
    """
    return q_values - log_density - math.log(log_density.shape[-1])
