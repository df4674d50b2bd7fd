"""Environments with several agents: those of PettingZoo's parallel API."""

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
    """Which environment, and which policy plays each agent."""

    env: str | Callable[..., Any]
    """A module with a `parallel_env`, such as `mpe2.simple_spread_v3`, `module:function`, or a function."""
    policies: Mapping[str, str] | Callable[[str], str]
    """The policy of every agent: by its name, or a function of that."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the environment is called."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", repr(self.env))

    def policy_of(self, agent: str) -> str:
        """Return the name of the policy that plays an agent."""
        if callable(self.policies):
            return self.policies(agent)
        if agent not in self.policies:
            raise unknown_name(f"agent of {self.name} among those that have a policy", agent, list(self.policies))
        return self.policies[agent]

    def make(self) -> Any:
        """Make the environment."""
        env = self._maker()(**self.kwargs)
        missing = [part for part in ("possible_agents", "reset", "step") if not hasattr(env, part)]
        if missing or hasattr(env, "agent_iter"):
            raise ConfigError(
                f"{self.name} made {env!r}, which is no parallel environment of PettingZoo. One that takes turns can "
                "be made one by pettingzoo.utils.turn_based_aec_to_parallel."
            )
        return env

    def _maker(self) -> Callable[..., Any]:
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

    def agents(self, env: Any) -> dict[str, list[str]]:
        """Return the agents that each policy plays, and refuse those that cannot be played by one."""
        found: dict[str, list[str]] = {}
        for agent in env.possible_agents:
            found.setdefault(self.policy_of(agent), []).append(agent)
        for policy, agents in found.items():
            first = _spaces(env, agents[0])
            for other in agents[1:]:
                if _spaces(env, other) != first:
                    raise ConfigError(
                        f"{agents[0]} and {other} see or do different things, so policy {policy!r} cannot play both: "
                        f"{first} and {_spaces(env, other)}. Give them policies of their own."
                    )
        return found

    def spaces(self) -> dict[str, tuple[spaces.Space, spaces.Space]]:
        """Return what each policy sees and does."""
        env = self.make()
        try:
            return {policy: _spaces(env, agents[0]) for policy, agents in self.agents(env).items()}
        finally:
            env.close()


def _spaces(env: Any, agent: str) -> tuple[spaces.Space, spaces.Space]:
    return env.observation_space(agent), env.action_space(agent)
