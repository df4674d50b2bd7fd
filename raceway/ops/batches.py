"""What is done to batches on their way to the learner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from raceway.flow import given
from raceway.policies import Policy, as_tensor
from raceway.rl import (
    Batch,
    concat,
    discounted_returns,
    generalised_advantages,
    num_steps,
    standardise_episodes,
    tree_map,
)
from raceway.state import Stateful

_OF_STEPS = ("obs", "action", "reward", "log_prob", "ended")


class AddReturns:
    """Adds a column `return`: what followed each step, discounted, and standardised within its episode."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with it."""
        returns = discounted_returns(batch["reward"], batch["length"], self.gamma)
        return {**batch, "return": standardise_episodes(returns, batch["length"])}


class ConcatBatches(Stateful):
    """Makes one batch of a round, or of as many rounds as it takes to have so many steps. For `combine`."""

    kept: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self, min_steps: int = 1) -> None:
        self.min_steps = min_steps
        self.held: list[Batch] = []

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        """Put them behind one another, in the order of the shards, if there are enough."""
        self.held = [*self.held, *batches]
        if sum(map(num_steps, self.held)) < self.min_steps:
            return []
        done, self.held = concat(self.held), []
        return [done]


class StandardizeFields:
    """Gives columns a mean of 0 and a deviation of 1 within each batch."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with them."""
        made = {name: (batch[name] - batch[name].mean()) / (batch[name].std() + 1e-8) for name in self.names}
        return {**batch, **made}


class AddLogProbs(Stateful):
    """Adds to fragments what the policy that played them knows: `log_prob` of its actions. On shards.

    What an episode that was cut short would have brought, by the value of its last observation, is put into its last
    reward, so that it is one that `ended`. With `scale_rewards` they are divided by the spread of discounted returns.
    """

    kept: ClassVar[tuple[str, ...]] = ("running",)

    def __init__(self, gamma: float, scale_rewards: bool = False) -> None:
        self.gamma, self.scale_rewards = gamma, scale_rewards
        self.running: Any = 0.0  # the discounted return of every slot so far

    def __call__(self, batch: Batch, *, actor: Any = given) -> Batch:
        """Return the fragment with it."""
        return self.added(batch, actor.policy)[0]

    def added(self, batch: Batch, policy: Policy) -> tuple[Batch, Any]:
        """Return the fragment, and the value of every observation."""
        obs = tree_map(as_tensor, batch["obs"])
        with torch.inference_mode():
            params, values = policy.evaluate(obs)
            log_prob = policy.distribution.log_prob(params, as_tensor(batch["action"])).numpy()
            cut = batch["truncated"] & batch.get("valid", True)
            beyond = policy.values(tree_map(as_tensor, batch["final_obs"])).numpy() if cut.any() else None
        ended = batch["terminated"] | cut
        made = {**batch, "reward": batch["reward"].copy(), "log_prob": log_prob, "ended": ended}
        if self.scale_rewards:
            made["running_return"] = self._returns(batch["reward"], ended)
            scale = float(policy.rewards.deviation)  # type: ignore[union-attr]
            made["reward"] = np.clip(made["reward"] / scale, -10, 10)
        if beyond is not None:
            made["reward"][cut] += self.gamma * beyond
        return made, values.numpy()

    def _returns(self, rewards: Any, ended: Any) -> Any:
        found = np.empty_like(rewards)
        for now, (reward, over) in enumerate(zip(rewards, ended, strict=True)):
            self.running = found[now] = self.running * self.gamma + reward
            self.running = self.running * ~over
        return found


class AddAdvantages(AddLogProbs):
    """Adds `advantage` and `value_target` to fragments, and makes rows of their steps. On shards."""

    columns = ("obs", "action", "log_prob", "advantage", "value_target", "running_return")

    def __init__(self, gamma: float, lam: float = 1.0, scale_rewards: bool = False) -> None:
        super().__init__(gamma, scale_rewards)
        self.lam = lam

    def __call__(self, batch: Batch, *, actor: Any = given) -> Batch:
        """Return the rows, [N]."""
        made, values = self.added(batch, actor.policy)
        with torch.inference_mode():
            last = actor.policy.values(tree_map(as_tensor, batch["last_obs"])).numpy()
        made["advantage"] = generalised_advantages(made["reward"], values, last, made["ended"], self.gamma, self.lam)
        made["value_target"] = made["advantage"] + values
        keep = made["valid"].ravel() if "valid" in made else slice(None)

        def rows(column: Any) -> Any:
            return column.reshape(-1, *column.shape[2:])[keep]

        of_steps = {name: tree_map(rows, made[name]) for name in self.columns if name in made}
        return of_steps | {name: made[name] for name in ("episode_return", "episode_length")}


class ConcatFragments:
    """Makes one fragment of several: environments beside one another, [T, B]."""

    def __call__(self, batches: Sequence[Batch]) -> Batch:
        """Return it, without what only single fragments have."""
        found: Batch = {}
        for name in (*_OF_STEPS, "valid", "last_obs", "episode_return", "episode_length"):
            if name in batches[0]:
                axis = 1 if name in (*_OF_STEPS, "valid") else 0
                columns = [batch[name] for batch in batches]
                found[name] = tree_map(lambda *parts, axis=axis: np.concatenate(parts, axis), *columns)
        return found
