"""Values of slates: of a few items that a user chooses one from, or none.

Items are numbered from 0 to n-1, and n is the null item: nothing was chosen. The user chooses item i of a slate A with
probability P(i|s, A) = v(s, i) / (v(s, n) + Σ v(s, j) over j in A): a conditional logit model with scores v.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def all_slates(num_items: int, size: int) -> np.ndarray:
    """Return all slates of different items, whose order has no meaning, [S, size]. An action is the number of a row.

    >>> all_slates(3, 2).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    return np.array(list(itertools.combinations(range(num_items), size)), np.int64).reshape(-1, size)


def slate_values(item_values: Tensor, scores: Tensor, slates: Tensor) -> Tensor:
    """Return Q(s, A) = Σ P(i|s, A) Q̄(s, i) over the items of every slate and the null item, [..., S].

    Ie et al. 2019, https://arxiv.org/abs/1905.12767, eq. 4, where a slate always includes the null item.

    Args:
        item_values: Q̄(s, i), the value after item i is chosen, [..., n + 1], the null item last.
        scores: v(s, i) of the choice model, [..., n + 1].
        slates: the items of every slate, [S, k].

    >>> import torch
    >>> values, scores = torch.tensor([4.0, 0.0, 2.0]), torch.tensor([3.0, 1.0, 1.0])
    >>> slate_values(values, scores, torch.tensor([[0], [1]])).tolist()
    [3.5, 1.0]
    """
    weighted = item_values * scores
    totals = weighted[..., slates].sum(-1) + weighted[..., -1:]
    # Without any score there is no choice. Networks are tried with such observations.
    return totals / (scores[..., slates].sum(-1) + scores[..., -1:]).clamp(min=1e-12)
