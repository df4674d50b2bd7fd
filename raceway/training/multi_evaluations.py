"""Evaluation of several policies during training: every n steps, in a separate environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from raceway.envs.multi_agent import MultiAgentSettings
from raceway.ops.policy_report import policy_metric
from raceway.rollouts.evaluation import Evaluation
from raceway.rollouts.multi_evaluation import MultiEvaluation, evaluate_agents
from raceway.runs.trained_policies import AgentGroup, TrainedPolicies
from raceway.training.evaluations import PeriodicEvaluator
from raceway.training.policy_trainers import LearnerGroup


class PolicyEvaluator(PeriodicEvaluator):
    """Evaluates all policies together, and remembers the best total of their returns.

    Args:
        learners: the learners, whose agents are evaluated.
        policies: the policies; copies of them act.
        env: the environment to evaluate in.
        every: steps between two evaluations; None disables them.
        num_episodes: episodes per evaluation.
        seed: the seed of the run.
    """

    state_attributes: ClassVar[tuple[str, ...]] = (*PeriodicEvaluator.state_attributes, "last_by_policy")

    def __init__(
        self,
        learners: LearnerGroup,
        policies: TrainedPolicies,
        env: MultiAgentSettings,
        every: int | None,
        num_episodes: int,
        *,
        seed: int,
    ) -> None:
        unused: Any = None  # clipping is part of the policies
        super().__init__(unused, unused, every, num_episodes, seed=seed, clip_actions=False)
        self.learners, self.policies, self.multi_env = learners, policies, env
        self.last_by_policy: dict[str, float] = {}
        """Mean return of an agent with each policy, at the last evaluation."""

    def run(self, stop: Callable[[], object] | None) -> Evaluation:
        acting = self.policies.with_agents(self.current_agent(), {})
        return evaluate_agents(dict(acting.items()), self.multi_env, self.num_episodes, seed=self.seed, stop=stop)

    def metrics_of(self, evaluation: Evaluation) -> dict[str, float]:
        assert isinstance(evaluation, MultiEvaluation)
        self.last_by_policy = evaluation.means_by_policy()
        own = {policy_metric("eval/mean_reward", name): mean for name, mean in self.last_by_policy.items()}
        return super().metrics_of(evaluation) | own

    def current_agent(self) -> AgentGroup:  # type: ignore[override]
        """Return the agents with the weights of the learners; copies if a learner is remote."""
        return self.learners.current_agents()
