"""Distributions of returns: on fixed atoms (C51), and as quantiles (QR-DQN, IQN, TQC).

`reward` and `discount` are the columns of transitions, [N], or of sequences, [N, L]: the shape is written as [...]. The
discount is γ, γⁿ after n steps, and 0 after termination.
"""

from __future__ import annotations

import torch
from torch import Tensor


def project_distribution(support: Tensor, reward: Tensor, discount: Tensor, next_probabilities: Tensor) -> Tensor:
    """Return the distribution of r + γ Z(s', a') on the atoms of the support, [..., num_atoms].

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, eq. 7: atom i gets Σⱼ max(0, 1 - |bⱼ - i|) pⱼ, where
    bⱼ = (r + γ zⱼ - z₀) / Δz is clipped to the support. The paper's algorithm 1 divides pⱼ between the atoms ⌊bⱼ⌋ and
    ⌈bⱼ⌉ in the ratio ⌈bⱼ⌉ - bⱼ to bⱼ - ⌊bⱼ⌋, and loses it where bⱼ is whole and both are 0. Here the atoms are ⌊bⱼ⌋ and
    the next one, so that the shares always add up to 1.

    Args:
        support: the atoms z, in equal steps Δz upwards, [num_atoms].
        reward: r, [...].
        discount: γ, or 0 after termination, [...].
        next_probabilities: p, the distribution of the target network for the next action, [..., num_atoms].

    >>> support, probabilities = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0, 0.0, 1.0]])
    >>> project_distribution(support, torch.tensor([0.25]), torch.tensor([0.5]), probabilities).tolist()
    [[0.0, 0.75, 0.25]]
    """
    last = len(support) - 1
    spacing = (support[-1] - support[0]) / last
    returns = reward[..., None] + discount[..., None] * support
    positions = ((returns - support[0]) / spacing).clamp(0, last)
    lower = positions.floor().clamp(max=last - 1)
    upper_share = positions - lower
    index = lower.long()
    below, above = next_probabilities * (1 - upper_share), next_probabilities * upper_share
    return torch.zeros_like(below).scatter_add(-1, index, below).scatter_add(-1, index + 1, above)


def expected_values(support: Tensor, probabilities: Tensor) -> Tensor:
    """Return Σᵢ zᵢ pᵢ: the Q-values, [..., num_actions], of distributions, [..., num_actions, num_atoms].

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887, algorithm 1. The greedy action is that of the greatest.

    >>> expected_values(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.25, 0.75]])).tolist()
    [1.0, 1.75]
    """
    return (probabilities * support).sum(-1)


def quantile_midpoints(num: int) -> Tensor:
    """Return τ̂ᵢ = (2i + 1) / 2K for i from 0 to K - 1: the fractions of K quantiles, [num].

    Dabney et al. 2018, https://arxiv.org/abs/1710.10044, lemma 2: of all sets of K equally probable values, the
    quantiles at these fractions are nearest to the distribution.

    >>> quantile_midpoints(4).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    return (torch.arange(num) + 0.5) / num


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, fractions: Tensor, kappa: float = 1.0) -> Tensor:
    """Return Σᵢ meanⱼ |τᵢ - 1{uᵢⱼ < 0}| Lκ(uᵢⱼ) / κ with uᵢⱼ = targetⱼ - θᵢ, [N].

    Dabney et al. 2018, https://arxiv.org/abs/1710.10044, eq. 9 and 10, divided by κ as in IQN,
    https://arxiv.org/abs/1806.06923. Lκ(u) is the Huber loss: u²/2 up to |u| = κ, then κ (|u| - κ/2). The sum is over
    the predicted quantiles, the mean over those of the target.

    Args:
        quantiles: predicted quantiles θ, [N, K]; or [num_critics, N, K], for losses [num_critics, N].
        targets: samples or quantiles of the target, [N, M].
        fractions: τ, [K], such as `quantile_midpoints`; or sampled for each row as in IQN, [N, K].
        kappa: where the loss becomes linear, κ.

    >>> quantiles, targets = torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0]])
    >>> quantile_huber_loss(quantiles, targets, quantile_midpoints(2)).tolist()  # 0.25 · 2.5 + 0.75 · 2.5
    [2.5]
    """
    errors = quantiles[..., :, None] - targets[..., None, :]  # -u, [N, K, M]
    slopes = errors.detach().clamp(-kappa, kappa)  # the derivative of Lκ: Lκ(u) = slope (u - slope / 2)
    # The gradient is that of a product with constants, since most of an update is spent on these arrays.
    fraction = fractions[..., None] / kappa
    weights = torch.where(slopes > 0, 1 / kappa - fraction, fraction) * slopes
    return (weights * (errors - slopes / 2)).mean(-1).sum(-1)


def drop_largest(quantiles: Tensor, num_per_critic: int) -> Tensor:
    """Return the quantiles of all critics in one sorted list, without the largest, [N, num_critics · (K - n)].

    Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269: n times the number of critics are dropped from the pooled
    list, and more than n of them may be of one critic.

    Args:
        quantiles: quantiles of the target critics, [num_critics, N, K].
        num_per_critic: n.

    >>> drop_largest(torch.tensor([[[1.0, 2.0]], [[8.0, 9.0]]]), num_per_critic=1).tolist()
    [[1.0, 2.0]]
    """
    num_critics, num_quantiles = len(quantiles), quantiles.shape[-1]
    pooled = quantiles.movedim(0, -2).flatten(-2)
    return pooled.sort(-1).values[..., : num_critics * (num_quantiles - num_per_critic)]
