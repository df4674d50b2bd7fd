"""Evaluation during training: every n environment steps or updates, in separate environments."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from raceway.agents import Agent, Policy
from raceway.agents.modes import acting_mode
from raceway.envs import EnvSettings
from raceway.errors import EnvironmentFailed
from raceway.learner.learner import Learner
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rollouts.evaluation import Evaluation, EvaluationStopped, evaluate
from raceway.state import Stateful

_log = logging.getLogger(__name__)


class PeriodicEvaluator(Stateful):
    """Evaluates the policy during training, and remembers the best mean return.

    Args:
        learner: the policy of its agent is evaluated; a copy if the learner is remote.
        env: the environment to evaluate in.
        every: environment steps, or updates, between two evaluations; None disables them.
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
        """Environment steps, or updates, at the last evaluation, and its mean return, or None if it failed."""
        self.best: float | None = None

    def due(self, steps: int) -> bool:
        """Whether an evaluation is due after this many environment steps, or updates."""
        return self.every is not None and steps // self.every > self.last[0] // self.every

    def reaches(self, mean_return: float | None) -> bool:
        """Whether the last evaluation has at least this mean return."""
        return mean_return is not None and self.last[1] is not None and self.last[1] >= mean_return

    def __call__(self, steps: int, row: dict[str, Any], stop: Callable[[], object] | None = None) -> bool:
        """Evaluate if due, add the metrics to `row`, and return whether the result is the best so far.

        If `stop()` becomes true, the evaluation is abandoned and remains due.
        """
        if not self.due(steps):
            return False
        try:
            evaluation = self.run(stop)
        except EvaluationStopped:
            return False
        except EnvironmentFailed as error:
            _log.warning("the evaluation after %d steps was abandoned: %s", steps, error)
            self.last = steps, None
            return False
        row |= self.metrics_of(evaluation)
        self.last, previous_best = (steps, evaluation.mean_return), self.best
        self.best = evaluation.mean_return if previous_best is None else max(previous_best, evaluation.mean_return)
        return previous_best is None or evaluation.mean_return > previous_best

    def run(self, stop: Callable[[], object] | None) -> Evaluation:
        """Run the episodes of an evaluation, unless `stop()` becomes true."""
        options: Any = {"seed": self.seed, "clip_actions": self.clip_actions, "stop": stop}
        policy = self.current_policy()
        with acting_mode(policy):
            return evaluate(policy, self.env, self.num_episodes, **options)

    def metrics_of(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the metrics of an evaluation."""
        metrics = {
            "eval/mean_reward": evaluation.mean_return,
            "eval/std_reward": evaluation.std_return,
            "eval/mean_ep_length": evaluation.mean_length,
        }
        rate = evaluation.success_rate
        return metrics if rate is None else {**metrics, "eval/success_rate": rate}

    def current_policy(self) -> Policy:
        """Return the policy with the weights of the learner; a copy if the learner is remote."""
        return self.current_agent().actor

    def current_agent(self) -> Agent:
        """Return the agent with the weights of the learner; a copy if the learner is remote."""
        if not self.learner.remote:
            return self.learner.agent
        agent = copy.deepcopy(self.learner.agent)
        agent.load(self.learner.published_weights[1])
        return agent

    def score(self, steps: int, default: float | None) -> float | None:
        """Return the score of a checkpoint: the evaluation at these steps if any, or `default` without evaluations."""
        if self.every is None:
            return default
        return self.last[1] if self.last[0] == steps else None
