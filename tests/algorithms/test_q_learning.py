"""Simple Q, DQN and double DQN: their losses, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raceway.algorithms import double_dqn, dqn, simple_q


def fixed_agent() -> Any:
    """Return an agent whose network prefers the second action in s', and whose target network the first."""

    def rows(*values: float) -> Any:
        return lambda batch: torch.tensor([values, values])

    target = SimpleNamespace(next_q_values=rows(4.0, 2.0))
    online = {"q_values": rows(1.0, 0.5), "next_q_values": rows(1.0, 3.0)}
    return SimpleNamespace(**online, target=target, action_index=lambda batch: batch["action"])


@pytest.mark.parametrize(
    ("module", "next_q"),
    [(simple_q, 4.0), (dqn, 4.0), (double_dqn, 2.0)],  # the largest of Q', or that of the action that Q chooses
)
def test_losses_by_hand(module: Any, next_q: float) -> None:
    batch = {
        "obs": torch.zeros(2, 3), "action": torch.tensor([0, 1]),
        "reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip
    # Of the first row |1 - (1 + 0.5 next_q)| is above 1, where Huber is |u| - 0.5; the second is terminal: 0.5 · 0.5².
    first, second = abs(1 - (1 + 0.5 * next_q)) - 0.5, 0.5 * 0.5**2
    loss, metrics = module.loss(fixed_agent(), batch)
    assert float(loss) == pytest.approx((first + second) / 2)
    assert float(metrics["q_values"]) == 0.75
