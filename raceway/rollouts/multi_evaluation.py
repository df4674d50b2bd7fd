"""Evaluation with several agents: the return of each agent and of all together, in separate environments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raceway.agents.acting_policy import ActingPolicy
from raceway.checks import check_int
from raceway.envs.env_vector import environment_error
from raceway.envs.multi_agent import MultiAgentSettings, is_turn_based
from raceway.errors import INTERRUPTS, EnvironmentFailed, RacewayError
from raceway.rl.episode_info import success_of
from raceway.rl.seeding import Purpose, derive_seed, episode_seed, seeded_globally_shared
from raceway.rollouts.evaluation import Evaluation, EvaluationStopped
from raceway.rollouts.multi_envs import joint_info

Array = np.ndarray
Policies = Mapping[str, ActingPolicy]
"""The policy of every agent, each with a recurrent state of its own."""

_MAX_EPISODE_STEPS = 1 << 20


@dataclass(frozen=True, eq=False)
class MultiEvaluation(Evaluation):
    """Returns of whole episodes: `returns` are those of all agents together, and `by_agent` those of each."""

    by_agent: Mapping[str, Array] = field(default_factory=dict)
    """Undiscounted return of every episode, [E], by the agent's name; NaN for an agent that took no part."""
    agents_of: Mapping[str, list[str]] = field(default_factory=dict)
    """The agents of each policy."""

    def of_policy(self, policy: str) -> Array:
        """Return the returns of all agents with a policy, of those episodes that they took part in."""
        returns = np.concatenate([self.by_agent[agent] for agent in self.agents_of[policy]])
        return returns[~np.isnan(returns)]

    def means_by_policy(self) -> dict[str, float]:
        """Return the mean return of an agent with each policy; without policies whose agents took no part."""
        returns = {policy: self.of_policy(policy) for policy in self.agents_of}
        return {policy: float(part.mean()) for policy, part in returns.items() if len(part)}

    def means_by_agent(self) -> dict[str, float]:
        """Return the mean return of each agent that took part in an episode."""
        returns = {agent: part[~np.isnan(part)] for agent, part in self.by_agent.items()}
        return {agent: float(part.mean()) for agent, part in returns.items() if len(part)}


class JointEpisode:
    """One episode of all agents of an environment, parallel or turn-based.

    Args:
        env: the environment.
        policies: the policy of every agent. Their recurrent states are reset.
        deterministic: take the most likely action, or the one with the highest Q-value; else explore.
        action_seed: the seed of sampled actions.
    """

    def __init__(self, env: Any, policies: Policies, *, deterministic: bool, action_seed: int) -> None:
        self.env, self.policies, self.deterministic = env, policies, deterministic
        self.returns: dict[str, float] = {}
        """The returns so far of the agents that took part."""
        self.length = 0
        self.infos: dict[str, Any] = {}
        """The latest info of every agent. Copies: the environment may use the same object for every step."""
        self._seeds: dict[str, int | None] = {
            agent: derive_seed(action_seed, Purpose.ACTIONS, index) for index, agent in enumerate(sorted(policies))
        }
        for policy in policies.values():
            policy.reset()

    def steps(self, seed: int) -> Iterator[None]:
        """Run the episode with a seed of the environment; yield after the reset and after every step."""
        steps = self._turns(seed) if is_turn_based(self.env) else self._parallel_steps(seed)
        while True:
            try:
                next(steps)
            except StopIteration:
                return
            except (RacewayError, *INTERRUPTS):
                raise
            except (Exception, SystemExit) as error:
                failure = environment_error(0, "step" if self.length else "reset", error)
                place = f"evaluation, step {self.length} of its episode"
                raise EnvironmentFailed(failure.problem, 0, place) from error
            if self.length >= _MAX_EPISODE_STEPS:
                raise EnvironmentFailed(f"the episode does not end: it has {self.length:,} steps", 0, "evaluation")
            yield

    def _parallel_steps(self, seed: int) -> Iterator[None]:
        obs, _ = self.env.reset(seed=seed)
        yield
        while self.env.agents:
            acted = list(self.env.agents)
            actions = {agent: self._act(agent, obs[agent]) for agent in acted}
            obs, rewards, _, _, infos = self.env.step(actions)
            self.infos |= {agent: copy.copy((infos or {}).get(agent, {})) for agent in acted}
            for agent in acted:
                self._add_reward(agent, rewards[agent])
            self.length += 1
            yield

    def _turns(self, seed: int) -> Iterator[None]:
        env = self.env
        env.reset(seed=seed)
        yield
        while env.agents:
            agent = env.agent_selection
            obs, reward, terminated, truncated, info = env.last()
            self.infos[agent] = copy.copy(info)
            self._add_reward(agent, reward)
            if terminated or truncated:
                env.step(None)
                continue
            env.step(self._act(agent, obs))
            self.length += 1
            yield

    def _add_reward(self, agent: str, reward: Any) -> None:
        if not math.isfinite(reward):
            raise EnvironmentFailed(f"environment step gave {agent} a reward of {reward}", 0, "evaluation")
        self.returns[agent] = self.returns.get(agent, 0.0) + float(reward)

    def _act(self, agent: str, obs: Any) -> Any:
        seed, self._seeds[agent] = self._seeds[agent], None
        return self.policies[agent].act(obs, self.deterministic, seed=seed)


def evaluate_agents(
    policies: Policies,
    env: MultiAgentSettings,
    num_episodes: int,
    *,
    seed: int,
    deterministic: bool = True,
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[], object] | None = None,
) -> MultiEvaluation:
    """Evaluate policies on whole episodes in a fresh environment. The same arguments always give the same result.

    Args:
        policies: the policy of every agent. Their recurrent states are reset.
        env: the environment, and the policy's name of every agent.
        num_episodes: the number of episodes.
        seed: the seed of the episodes, and of sampled actions.
        deterministic: take the most likely action, or the one with the highest Q-value; else explore.
        on_progress: called with the number of finished episodes.
        stop: called before every step; if it returns a true value, `EvaluationStopped` is raised.
    """
    check_int("num_episodes", num_episodes)
    seed, episodes = derive_seed(seed, Purpose.EVALUATION), list[JointEpisode]()
    with seeded_globally_shared(seed):
        made = env.make()
        try:
            agents_of = env.agents_by_policy(made)
            for number in range(num_episodes):
                action_seed = derive_seed(seed, Purpose.ACTIONS, number)
                episode = JointEpisode(made, policies, deterministic=deterministic, action_seed=action_seed)
                for _ in episode.steps(episode_seed(seed, 0, 0, number)):
                    if stop is not None and stop():
                        raise EvaluationStopped(f"the evaluation was stopped after {number} of {num_episodes} episodes")
                episodes.append(episode)
                if on_progress is not None:
                    on_progress(number + 1)
        finally:
            made.close()
            for policy in policies.values():
                policy.reset()
    return _summarise(episodes, agents_of)


def _summarise(episodes: list[JointEpisode], agents_of: Mapping[str, list[str]]) -> MultiEvaluation:
    agents = [agent for part in agents_of.values() for agent in part]
    successes = [success_of(joint_info(episode.infos)) for episode in episodes]
    return MultiEvaluation(
        np.array([sum(episode.returns.values()) for episode in episodes]),
        np.array([episode.length for episode in episodes], np.int64),
        np.array([math.nan if success is None else success for success in successes]),
        {agent: np.array([episode.returns.get(agent, math.nan) for episode in episodes]) for agent in agents},
        agents_of,
    )
