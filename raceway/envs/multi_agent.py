"""Multi-agent environments: PettingZoo's parallel API, and its turn-based one (AEC)."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gymnasium import spaces

from raceway.checks import unknown_name
from raceway.envs.names import PETTINGZOO
from raceway.errors import ConfigError

_KNOWN_PACKAGES = ("pettingzoo", "mpe2")
_PARALLEL = ("possible_agents", "reset", "step")
_TURN_BASED = (*_PARALLEL, "agent_iter", "last", "observe")


@dataclass(frozen=True)
class MultiAgentSettings:
    """A multi-agent environment, and the policy of each agent."""

    env: str | Callable[..., Any]
    """A module with a `parallel_env` or an `env`, such as `pettingzoo:mpe2.simple_spread_v3` (the prefix may be left
    out), `module:function`, or a function. Of a module with both, the parallel environment is used."""
    policies: Mapping[str, str] | Callable[[str], str]
    """The policy of every agent: a mapping, or a function, from the agent's name to the policy's name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    global_state: bool = False
    """Whether fragments have the environment's `state()` too; of parallel environments only."""

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
        """Make the environment, parallel or turn-based."""
        make = self._factory()
        try:
            env = make(**self.kwargs)
        except TypeError as error:
            raise ConfigError(f"{self.name} cannot be created with {dict(self.kwargs)}: {error}") from error
        missing = [part for part in (_TURN_BASED if is_turn_based(env) else _PARALLEL) if not hasattr(env, part)]
        if missing:
            raise ConfigError(
                f"{self.name} returned {env!r}, which is not a parallel environment of PettingZoo, nor a turn-based "
                f"one: it has no {missing[0]}. Return a ParallelEnv or an AECEnv."
            )
        if self.global_state and is_turn_based(env):
            raise ConfigError(
                f"{self.name} is turn-based, and global_state is for parallel environments: set it to False."
            )
        return env

    def _factory(self) -> Callable[..., Any]:
        if not isinstance(self.env, str):
            return self.env
        module_name, _, function = self.env.removeprefix(PETTINGZOO).partition(":")
        if not module_name:
            raise ConfigError(
                f"{self.env!r} names no module. Use pettingzoo:module, such as pettingzoo:mpe2.simple_spread_v3."
            )
        try:
            module = _import(module_name)
        except ImportError as error:
            raise ConfigError(
                f"environment {self.env!r}: {error}. Give a module with a parallel_env or an env, such as "
                "mpe2.simple_spread_v3 (pip install 'raceway[pettingzoo]')."
            ) from error
        for name in [function] if function else ["parallel_env", "env"]:
            if hasattr(module, name):
                return getattr(module, name)
        expected = f"no {function}" if function else "neither a parallel_env nor an env"
        raise ConfigError(f"environment {self.env!r}: module {module_name} has {expected}. Give module:function.")

    def is_turn_based(self) -> bool:
        """Whether one agent acts at a time, instead of all at once."""
        env = self.make()
        try:
            return is_turn_based(env)
        finally:
            env.close()

    def agents_by_policy(self, env: Any) -> dict[str, list[str]]:
        """Return the agents of each policy. Raise ConfigError if agents with different spaces share one."""
        agents_of: dict[str, list[str]] = {}
        for agent in env.possible_agents:
            agents_of.setdefault(self.policy_of(agent), []).append(agent)
        for policy, agents in agents_of.items():
            first = agent_spaces(env, agents[0])
            for other in agents[1:]:
                if agent_spaces(env, other) != first:
                    raise ConfigError(
                        f"{agents[0]} and {other} have different spaces, so they cannot share policy {policy!r}: "
                        f"{first} and {agent_spaces(env, other)}. Give each its own policy."
                    )
        return agents_of

    def spaces(self) -> dict[str, tuple[spaces.Space, spaces.Space]]:
        """Return the observation and action space of each policy."""
        env = self.make()
        try:
            return {policy: agent_spaces(env, agents[0]) for policy, agents in self.agents_by_policy(env).items()}
        finally:
            env.close()


def is_known_env(name: str) -> bool:
    """Whether a name is that of an environment of PettingZoo's own packages, made by their `parallel_env` or `env`.

    >>> is_known_env("pettingzoo:mpe2.simple_spread_v3"), is_known_env("pettingzoo:mine.game")
    (True, False)
    """
    module = name.removeprefix(PETTINGZOO)
    return name.startswith(PETTINGZOO) and ":" not in module and module.partition(".")[0] in _KNOWN_PACKAGES


def is_turn_based(env: Any) -> bool:
    """Whether an environment has PettingZoo's turn-based API, in which one agent acts at a time."""
    return hasattr(env, "agent_iter")


def agent_spaces(env: Any, agent: str) -> tuple[spaces.Space, spaces.Space]:
    """Return the observation and action space of an agent."""
    return env.observation_space(agent), env.action_space(agent)


def _import(name: str) -> ModuleType:
    with warnings.catch_warnings():
        # PettingZoo's own modules recommend its registry, which the packages that left it have not.
        warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
        return importlib.import_module(name)
