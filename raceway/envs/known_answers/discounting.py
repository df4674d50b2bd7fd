"""The sum of discounted rewards that are all 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.checks import check_fraction


def discounted_sum(num_rewards: Any, gamma: float) -> Any:
    """Return 1 + γ + γ² + …, (1-γⁿ)/(1-γ), for numbers of rewards n, which may be infinite.

    >>> discounted_sum(3, 0.5), discounted_sum(3, 1.0), discounted_sum(np.inf, 0.5)
    (1.75, 3.0, 2.0)
    """
    num = np.asarray(num_rewards, float)
    if check_fraction("discount factor", gamma) == 1:
        total = num
    else:
        total = (1 - float(gamma) ** num) / (1 - gamma)
    return total if total.ndim else float(total)
