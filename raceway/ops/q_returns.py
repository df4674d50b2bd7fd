"""The targets of Q-learning without replay, from fragments."""

from __future__ import annotations

from typing import Any

import torch

from raceway.agents import QAgent, as_tensor
from raceway.agents.modes import acting_mode
from raceway.flow import injected
from raceway.rl import Batch, Fragment, Rows, q_lambda_returns, tree_map
from raceway.rollouts.fragment_values import flatten_steps
from raceway.state import Stateful

_ROW_COLUMNS = ("obs", "action", "q_target")


class AddQLambdaReturns(Stateful):
    """Add `q_target`, the Q(λ) return of every step, to fragments, and flatten them to rows of steps. Runs on shards.

    The Q-values are those of the network that collected the fragment; there is no target network.

    Args:
        gamma: the discount γ.
        lam: the weight λ of later steps.
        reward_scale: the factor of rewards.
    """

    def __init__(self, gamma: float, lam: float, reward_scale: float = 1.0) -> None:
        self.gamma, self.lam, self.reward_scale = gamma, lam, reward_scale

    def __call__(self, batch: Fragment, *, actor: Any = injected) -> Rows:
        """Return the rows, [N]."""
        targets = self.targets(actor.agent, batch)
        return flatten_steps(actor.agent, Fragment({**batch, "q_target": targets.numpy()}), _ROW_COLUMNS)

    def targets(self, agent: QAgent, batch: Batch) -> torch.Tensor:
        """Return the Q(λ) return of every step, [T, B]."""
        truncated = batch["truncated"] & batch.get("valid", True)
        with torch.inference_mode(), acting_mode(agent):
            bootstrap = torch.zeros(batch["reward"].shape)
            if truncated.any():
                # A step can be both terminated and truncated; then there is nothing to bootstrap.
                continues = as_tensor(~batch["terminated"][truncated])
                bootstrap[as_tensor(truncated)] = self.gamma * _max_q(agent, batch["final_obs"]) * continues
            return q_lambda_returns(
                as_tensor(batch["reward"]) * self.reward_scale,
                _max_q(agent, batch["obs"]),
                _max_q(agent, batch["last_obs"]),
                as_tensor(batch["terminated"] | truncated),
                self.gamma,
                self.lam,
                bootstrap,
            )


def _max_q(agent: QAgent, obs: Any) -> torch.Tensor:
    """Return max Q(s, ·) of observations, [...]."""
    return agent.q_values({"obs": tree_map(as_tensor, obs)}).amax(-1)
