"""The trained policies of several agents, as a training returns them and as `load` reads them from a run directory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raceway.agents import Agent
from raceway.agents.weights import WeightsModule
from raceway.checks import unknown_name
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.machine import worker_compute_settings
from raceway.rollouts.multi_evaluation import MultiEvaluation, evaluate_agents
from raceway.runs.resume import check_trusted
from raceway.runs.trained_policy import TrainedPolicy


class AgentGroup(WeightsModule):
    """The agents of several policies as one module, whose parts have the names of the policies."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        super().__init__()
        for name, agent in agents.items():
            self.add_module(name, agent)

    def items(self) -> Iterator[tuple[str, Agent]]:
        """Yield the agents, by the names of the policies."""
        for name, agent in self.named_children():
            assert isinstance(agent, Agent)
            yield name, agent


def weights_of(weights: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Return the weights of one policy, from those of all.

    >>> weights_of({"pair.bias": 1, "single.bias": 2}, "single")
    {'bias': 2}
    """
    prefix = f"{policy}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


class TrainedPolicies(Mapping[str, TrainedPolicy]):
    """The policy of every agent, by the agent's name: `policies["agent_0"].act(obs)`.

    The name of a policy works too. Each agent has a recurrent state of its own.

    Args:
        policies: the trained policies, by the names of the policies.
        env: the environment, and the policy of every agent.
        agents_of: the agents of each policy.
        about: see `about`.
        importable: whether the name of `env` can be imported; false for a function of a saved run.
        trust: whether the module that the name of `env` names may be imported.
    """

    about: dict[str, Any]
    """Their run and checkpoint: `run`, `algorithm`, `env`, `checkpoint`, `steps` and `mean_return`."""

    def __init__(
        self,
        policies: Mapping[str, TrainedPolicy],
        env: MultiAgentSettings,
        agents_of: Mapping[str, list[str]],
        about: dict[str, Any],
        *,
        importable: bool = True,
        trust: bool = True,
    ) -> None:
        self.policies, self.about, self.agents_of = dict(policies), about, dict(agents_of)
        self._env, self._importable, self._trust = env, importable, trust
        self._by_agent = {agent: copy.copy(policies[name]) for name, agents in agents_of.items() for agent in agents}

    def __getitem__(self, name: str) -> TrainedPolicy:
        if name in self._by_agent:
            return self._by_agent[name]
        if name not in self.policies:
            raise unknown_name("agent or policy", name, {*self._by_agent, *self.policies})
        return self.policies[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_agent or name in self.policies

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_agent)

    def __len__(self) -> int:
        return len(self._by_agent)

    def __repr__(self) -> str:
        names = ", ".join(f"{name} ({policy.about['algorithm']})" for name, policy in self.policies.items())
        return f"<policies {names} on {self.about['env']}, after {self.about['steps']:,} steps>"

    def reset(self) -> None:
        """Reset the recurrent states of all agents for a new episode."""
        for policy in self._by_agent.values():
            policy.reset()

    def sha256(self) -> str:
        """Return a hash of all parameters and buffers, with their names and shapes."""
        return AgentGroup({name: policy.agent for name, policy in self.policies.items()}).sha256()

    def with_agents(self, agents: AgentGroup, about: Mapping[str, Any]) -> TrainedPolicies:
        """Return the same policies with copies of other agents, on the CPU, and more in `about`."""
        copies = {name: copy.deepcopy(agent).to("cpu").eval() for name, agent in agents.items()}
        policies = {name: policy.with_agent(copies[name], about) for name, policy in self.policies.items()}
        return TrainedPolicies(policies, self._env, self.agents_of, {**self.about, **about})

    def env_settings(self, env: Any = None) -> MultiAgentSettings:
        """Return the settings of the environment that they were trained in, or of another one with the same agents."""
        if isinstance(env, MultiAgentSettings):
            return env
        if env is not None:
            return MultiAgentSettings(env, self._env.policies, self._env.kwargs)
        check_trusted("env", self._env.name, importable=self._importable, trust=self._trust)
        return self._env

    def check_spaces(self, env: MultiAgentSettings) -> None:
        """Check that an environment has the agents and spaces of these policies. Bounds may differ."""
        for name, (observation_space, action_space) in env.spaces().items():
            self.policies[name].check_spaces(observation_space, action_space)

    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        env: Any = None,
        seed: int = 0,
        deterministic: bool = True,
        on_progress: Callable[[int], None] | None = None,
    ) -> MultiEvaluation:
        """Run complete episodes with all agents. The same arguments give the same results every time.

        Args:
            num_episodes: number of episodes.
            env: another environment than that of the run; see `env_settings`.
            seed: seed of the episodes and of sampled actions.
            deterministic: take the most likely action, or the one with the highest Q-value; else sample.
            on_progress: called with the number of finished episodes.
        """
        settings = self.env_settings(env)
        self.check_spaces(settings)
        with worker_compute_settings():
            return evaluate_agents(
                self._by_agent, settings, num_episodes, seed=seed, deterministic=deterministic, on_progress=on_progress
            )
