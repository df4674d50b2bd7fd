"""Evaluation while a run goes on: every so many steps, in environments of its own."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from raceway.agents import Policy
from raceway.envs import EnvSettings, Purpose, seed_of
from raceway.errors import EnvironmentFailed
from raceway.learner.learner import Learner
from raceway.rollouts.evaluation import GivenUp, evaluate
from raceway.state import Stateful

_log = logging.getLogger(__name__)


class Evaluations(Stateful):
    """Has a policy play for the record, and keeps the best.

    Args:
        learner: whose policy plays; a copy of it if it is trained elsewhere meanwhile.
        env: what it plays in.
        every: steps of environments between two evaluations; None for never.
        num_episodes: of one.
        seed: of the run.
        clip_actions: whether environments get actions within their bounds.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("last", "best")

    def __init__(
        self, learner: Learner, env: EnvSettings, every: int | None, num_episodes: int, *, seed: int, clip_actions: bool
    ) -> None:
        self.learner, self.env, self.every, self.num_episodes = learner, env, every, num_episodes
        self.seed, self.clip_actions = seed_of(seed, Purpose.EVALUATION), clip_actions
        self.last: tuple[int, float | None] = (0, None)
        """After how many steps, and the mean return, if there was one."""
        self.best: float | None = None

    def due(self, steps: int) -> bool:
        """Whether it is time."""
        return self.every is not None and steps // self.every > self.last[0] // self.every

    def __call__(self, steps: int, row: dict[str, Any], stop: Callable[[], object] | None = None) -> bool:
        """Evaluate if it is time, put the figures into a row of metrics, and return whether it was the best so far.

        If `stop()` comes true meanwhile, it is given up, and still due.
        """
        if not self.due(steps):
            return False
        try:
            more: Any = {"seed": self.seed, "clip_actions": self.clip_actions, "stop": stop}
            found = evaluate(self._policy(), self.env, self.num_episodes, **more)
        except GivenUp:
            return False
        except EnvironmentFailed as error:
            _log.warning("the evaluation after %d steps was given up: %s", steps, error)
            self.last = steps, None
            return False
        row["eval/mean_reward"], row["eval/std_reward"] = found.mean_return, found.std_return
        row["eval/mean_ep_length"] = found.mean_length
        self.last, before = (steps, found.mean_return), self.best
        self.best = found.mean_return if before is None else max(before, found.mean_return)
        return before is None or found.mean_return > before

    def _policy(self) -> Policy:
        if not self.learner.away:
            return self.learner.policy
        made = copy.deepcopy(self.learner.policy)
        made.load(self.learner.published[1])
        return made

    def score(self, steps: int, otherwise: float | None) -> float | None:
        """Return by what a checkpoint is compared: the evaluation, if one was now; `otherwise` if there are none."""
        if self.every is None:
            return otherwise
        return self.last[1] if self.last[0] == steps else None
