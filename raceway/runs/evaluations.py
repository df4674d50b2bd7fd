"""Evaluation while a run goes on: every so many steps, in environments of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from raceway.envs import EnvSettings, Purpose, seed_of
from raceway.play.evaluating import evaluate
from raceway.policies import Policy
from raceway.state import Stateful


class Evaluations(Stateful):
    """Has a policy play for the record, and keeps the best.

    Args:
        policy: what plays.
        env: what it plays in.
        every: steps of environments between two evaluations; None for never.
        num_episodes: of one.
        seed: of the run.
        clip_actions: whether environments get actions within their bounds.
    """

    kept: ClassVar[tuple[str, ...]] = ("last", "best")

    def __init__(
        self, policy: Policy, env: EnvSettings, every: int | None, num_episodes: int, *, seed: int, clip_actions: bool
    ) -> None:
        self.policy, self.env, self.every, self.num_episodes = policy, env, every, num_episodes
        self.seed, self.clip_actions = seed_of(seed, Purpose.EVALUATION), clip_actions
        self.last: tuple[int, float] = (0, 0.0)
        """After how many steps, and the mean return."""
        self.best: float | None = None

    def __call__(self, steps: int, row: dict[str, Any]) -> bool:
        """Evaluate if it is time, put the figures into a row of metrics, and return whether it was the best so far."""
        if self.every is None or steps // self.every <= self.last[0] // self.every:
            return False
        found = evaluate(self.policy, self.env, self.num_episodes, seed=self.seed, clip_actions=self.clip_actions)
        row["eval/mean_reward"], row["eval/std_reward"] = found.mean_return, found.std_return
        row["eval/mean_ep_length"] = found.mean_length
        self.last, before = (steps, found.mean_return), self.best
        self.best = found.mean_return if before is None else max(before, found.mean_return)
        return before is None or found.mean_return > before

    def score(self, steps: int, otherwise: float | None) -> float | None:
        """Return by what a checkpoint is compared: the evaluation, if one was now; `otherwise` if there are none."""
        if self.every is None:
            return otherwise
        return self.last[1] if self.last[0] == steps else None
