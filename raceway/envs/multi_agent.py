"""Multi-agent environments: PettingZoo's parallel API."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from raceway.checks import unknown_name
from raceway.errors import ConfigError


@dataclass(frozen=True)
class MultiAgentSettings:
    """A multi-agent environment, and the policy of each agent."""

    env: str | Callable[..., Any]
    """A module with a `parallel_env`, such as `mpe2.simple_spread_v3`, `module:function`, or a function."""
    policies: Mapping[str, str] | Callable[[str], str]
    """The policy of every agent: a mapping, or a function, from the agent's name to the policy's name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the environment, or of the function that makes it."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", repr(self.env))

    def policy_of(self, agent: str) -> str:
        """Return the name of an agent's policy."""
        if callable(self.policies):
            return self.policies(agent)
        if agent not in self.policies:
            raise unknown_name(f"agent of {self.name} in the policy mapping", agent, list(self.policies))
        return self.policies[agent]

    def make(self) -> Any:
        """Make the environment."""
        env = self._factory()(**self.kwargs)
        missing = [part for part in ("possible_agents", "reset", "step") if not hasattr(env, part)]
        if missing or hasattr(env, "agent_iter"):
            raise ConfigError(
                f"{self.name} returned {env!r}, not a parallel environment of PettingZoo. Convert a turn-based one "
                "with pettingzoo.utils.turn_based_aec_to_parallel."
            )
        return env

    def _factory(self) -> Callable[..., Any]:
        if not isinstance(self.env, str):
            return self.env
        module, _, function = self.env.partition(":")
        try:
            return getattr(importlib.import_module(module), function or "parallel_env")
        except ImportError as error:
            raise ConfigError(
                f"environment {self.env!r}: {error}. Give a module with a parallel_env, such as mpe2.simple_spread_v3 "
                "(pip install 'raceway[pettingzoo]')."
            ) from error
        except AttributeError as error:
            raise ConfigError(f"environment {self.env!r}: {error}. Give module:function.") from error

    def agents_by_policy(self, env: Any) -> dict[str, list[str]]:
        """Return the agents of each policy. Raise ConfigError if agents with different spaces share one."""
        agents_of: dict[str, list[str]] = {}
        for agent in env.possible_agents:
            agents_of.setdefault(self.policy_of(agent), []).append(agent)
        for policy, agents in agents_of.items():
            first = _spaces(env, agents[0])
            for other in agents[1:]:
                if _spaces(env, other) != first:
                    raise ConfigError(
                        f"{agents[0]} and {other} have different spaces, so they cannot share policy {policy!r}: "
                        f"{first} and {_spaces(env, other)}. Give each its own policy."
                    )
        return agents_of

    def spaces(self) -> dict[str, tuple[spaces.Space, spaces.Space]]:
        """Return the observation and action space of each policy."""
        env = self.make()
        try:
            return {policy: _spaces(env, agents[0]) for policy, agents in self.agents_by_policy(env).items()}
        finally:
            env.close()


def _spaces(env: Any, agent: str) -> tuple[spaces.Space, spaces.Space]:
    return env.observation_space(agent), env.action_space(agent)
