"""Evaluation during training: every n environment steps, in separate environments."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from raceway.agents import Policy
from raceway.envs import EnvSettings
from raceway.errors import EnvironmentFailed
from raceway.learner.learner import Learner
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rollouts.evaluation import EvaluationStopped, evaluate
from raceway.state import Stateful

_log = logging.getLogger(__name__)


class PeriodicEvaluator(Stateful):
    """Evaluates the policy during training, and remembers the best mean return.

    Args:
        learner: its policy is evaluated; a copy if the learner is remote.
        env: the environment to evaluate in.
        every: environment steps between two evaluations; None disables them.
        num_episodes: episodes per evaluation.
        seed: the seed of the run.
        clip_actions: whether actions are clipped to the bounds of the action space.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("last", "best")

    def __init__(
        self, learner: Learner, env: EnvSettings, every: int | None, num_episodes: int, *, seed: int, clip_actions: bool
    ) -> None:
        self.learner, self.env, self.every, self.num_episodes = learner, env, every, num_episodes
        self.seed, self.clip_actions = derive_seed(seed, Purpose.EVALUATION), clip_actions
        self.last: tuple[int, float | None] = (0, None)
        """Environment steps at the last evaluation, and its mean return, or None if it failed."""
        self.best: float | None = None

    def due(self, steps: int) -> bool:
        """Whether an evaluation is due after this many environment steps."""
        return self.every is not None and steps // self.every > self.last[0] // self.every

    def __call__(self, steps: int, row: dict[str, Any], stop: Callable[[], object] | None = None) -> bool:
        """Evaluate if due, add the metrics to `row`, and return whether the result is the best so far.

        If `stop()` becomes true, the evaluation is abandoned and remains due.
        """
        if not self.due(steps):
            return False
        try:
            options: Any = {"seed": self.seed, "clip_actions": self.clip_actions, "stop": stop}
            evaluation = evaluate(self._policy(), self.env, self.num_episodes, **options)
        except EvaluationStopped:
            return False
        except EnvironmentFailed as error:
            _log.warning("the evaluation after %d steps was abandoned: %s", steps, error)
            self.last = steps, None
            return False
        row["eval/mean_reward"], row["eval/std_reward"] = evaluation.mean_return, evaluation.std_return
        row["eval/mean_ep_length"] = evaluation.mean_length
        self.last, previous_best = (steps, evaluation.mean_return), self.best
        self.best = evaluation.mean_return if previous_best is None else max(previous_best, evaluation.mean_return)
        return previous_best is None or evaluation.mean_return > previous_best

    def _policy(self) -> Policy:
        if not self.learner.remote:
            return self.learner.policy
        policy = copy.deepcopy(self.learner.policy)
        policy.load(self.learner.published_weights[1])
        return policy

    def score(self, steps: int, default: float | None) -> float | None:
        """Return the score of a checkpoint: the evaluation at these steps if any, or `default` without evaluations."""
        if self.every is None:
            return default
        return self.last[1] if self.last[0] == steps else None
