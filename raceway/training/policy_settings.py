"""The policies of a run with several agents: which agents have one, and which algorithm trains it, with which settings.

A mapping, or a file (TOML, YAML or JSON), has a table for every policy:

    [pair]
    agents = ["agent_0", "agent_1"]     # names, or patterns such as "agent_*"
    algorithm = "ppo"                   # by default the algorithm of the run
    lr = 1e-3                           # and its settings

    [single]
    agents = ["agent_2"]
    algorithm = "dqn"

Without tables, `shared` gives one policy to all agents with equal spaces, and `per-agent` one to every agent. Settings
of the run, its environment, workers and output belong to no policy, and fragments of rollouts have one length for all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

from raceway.agents import Spaces
from raceway.algorithms import Algorithm, find_algorithm
from raceway.checks import nearest_name, unknown_name
from raceway.envs.multi_agent import MultiAgentSettings, agent_spaces
from raceway.errors import ConfigError
from raceway.settings.documents import read_document
from raceway.settings.field_types import check_setting, from_file, setting_types
from raceway.settings.groups import EnvironmentConfig, OutputConfig, RunConfig, WorkerConfig

SHARED, PER_AGENT = "shared", "per-agent"
"""Ways to assign policies: one to all agents with equal spaces, or one to every agent."""
PolicyChoice = str | PathLike[str] | Mapping[str, Mapping[str, Any]] | None
"""Policies as a user gives them: `shared`, `per-agent`, a file, or a mapping."""

_RUN_SETTINGS = frozenset(
    field.name
    for group in (RunConfig, EnvironmentConfig, WorkerConfig, OutputConfig)
    for field in dataclasses.fields(group)
) - {"init_from"} | {"fragment_steps"}
_AGENTS, _ALGORITHM = "agents", "algorithm"
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


@dataclass(frozen=True)
class PolicySettings:
    """One policy of a run: its agents, its algorithm, and settings of it that differ from those of the run."""

    agents: tuple[str, ...]
    algorithm: Algorithm
    settings: Mapping[str, Any]


Complain = Callable[[str, str | None, object], ConfigError]
"""Returns the error for what is wrong about a policy, or about one of its settings."""


def own_settings(config: type[Any]) -> list[str]:
    """Return the settings of an algorithm that a policy has for itself."""
    return [field.name for field in dataclasses.fields(config) if field.name not in _RUN_SETTINGS]


def run_settings(cfg: Any) -> dict[str, Any]:
    """Return the settings of a config that all policies of a run share."""
    return {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg) if field.name in _RUN_SETTINGS}


def read_policies(choice: PolicyChoice, algorithm: Algorithm, env: MultiAgentSettings) -> dict[str, PolicySettings]:
    """Return the policies of a run by name, after checking them.

    Args:
        choice: the policies, as the user gave them; by default shared ones.
        algorithm: the algorithm of policies that name none.
        env: the environment. Its own policies are not used.
    """
    made = env.make()
    try:
        spaces = {agent: Spaces(*agent_spaces(made, agent)) for agent in made.possible_agents}
    finally:
        made.close()
    if choice is None or choice in (SHARED, PER_AGENT):
        groups = {agent: [agent] for agent in spaces} if choice == PER_AGENT else _shared(spaces)
        policies = {name: PolicySettings(tuple(agents), algorithm, {}) for name, agents in groups.items()}
        _check_complete(policies, spaces, env, _complain_about("policies", None))
        return policies
    if isinstance(choice, Mapping):
        tables, complain, is_file = choice, _complain_about("policies", None), False
    else:
        tables, complain = _read_tables(choice)
        is_file = True
    if not tables:
        raise ConfigError("policies has none. Name at least one, with its agents.")
    policies = {
        str(name): _policy(str(name), table, algorithm, list(spaces), complain, is_file)
        for name, table in tables.items()
    }
    _check_complete(policies, spaces, env, complain)
    return policies


def is_policy_file(name: str | PathLike[str]) -> bool:
    """Whether this is the name of a file of policies."""
    return Path(name).suffix.lower() in _SUFFIXES


def _shared(spaces: Mapping[str, Spaces]) -> dict[str, list[str]]:
    """Return groups of agents with equal spaces, each under the name that its agents have in common."""
    groups: list[list[str]] = []
    for agent, own in spaces.items():
        group = next((group for group in groups if spaces[group[0]] == own), None)
        if group is None:
            groups.append([agent])
        else:
            group.append(agent)
    names = [_common_name(group) for group in groups]
    numbered = [name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names, 1)]
    return dict(zip(numbered, groups, strict=True))


def _common_name(agents: Sequence[str]) -> str:
    """Return what the names of agents have in common, without their numbers.

    >>> _common_name(["agent_0", "agent_1"]), _common_name(["red", "blue"])
    ('agent', 'shared')
    """
    stems = {re.sub(r"[_-]*\d*$", "", agent) for agent in agents}
    stem = stems.pop() if len(stems) == 1 else ""
    return stem if _NAME.fullmatch(stem) else SHARED


def _read_tables(choice: str | PathLike[str]) -> tuple[Mapping[str, Any], Complain]:
    """Return the tables of a file, and how its errors are reported."""
    path = Path(choice)
    if not is_policy_file(path):
        near = nearest_name(str(choice), (SHARED, PER_AGENT))
        guess = f" Did you mean {near!r}?" if near else ""
        raise ConfigError(
            f"policies is {str(choice)!r}.{guess} Use {SHARED}, {PER_AGENT}, or a file that ends in "
            f"{', '.join(_SUFFIXES)}."
        )
    document = read_document(path)
    return document.values, _complain_about(str(path), path.read_text(encoding="utf-8-sig"), document.find_line)


def _complain_about(
    place: str, text: str | None, find_line: Callable[[str], int | None] = lambda key: None
) -> Complain:
    """Return a function that makes errors which name the file and the line, or the policy."""

    def complain(policy: str, key: str | None, problem: object) -> ConfigError:
        line = find_line(policy)
        if line is not None and key is not None and text is not None:
            line = _line_of_key(text, line, key)
        where = f"{place}, line {line}" if line is not None else place
        return ConfigError(f"{where}: policy {policy!r}: {problem}")

    return complain


def _line_of_key(text: str, first: int, key: str) -> int:
    r"""Return the line of a key in the table that begins in line `first`; that line itself if it is not found.

    >>> _line_of_key("[pair]\nlr = 1\n[single]\nlr = 2", 3, "lr")
    4
    """
    begins = re.compile(rf"(^|[\s{{,\"'])[\"']?{re.escape(key)}[\"']?\s*[=:]")
    lines = text.splitlines()
    return next((number for number in range(first, len(lines) + 1) if begins.search(lines[number - 1])), first)


def _policy(
    name: str, table: Any, default: Algorithm, known_agents: Sequence[str], complain: Complain, is_file: bool
) -> PolicySettings:
    """Return a policy from its table, after checking the table."""
    if not _NAME.fullmatch(name):
        raise complain(name, None, "its name has characters other than letters, digits, _ and -. Rename it.")
    if not isinstance(table, Mapping):
        raise complain(name, None, f"it is {table!r}, not a table. Give it `agents`, and `algorithm` if you like.")
    try:
        algorithm = find_algorithm(table[_ALGORITHM]) if _ALGORITHM in table else default
    except ConfigError as error:
        raise complain(name, _ALGORITHM, error) from error
    agents = _agents(name, table.get(_AGENTS, ()), known_agents, complain)
    hints, names, settings = setting_types(algorithm.config), own_settings(algorithm.config), dict[str, Any]()
    for key, value in table.items():
        if key in (_AGENTS, _ALGORITHM):
            continue
        if key in _RUN_SETTINGS:
            option = f"--{key.replace('_', '-')}"
            raise complain(name, key, f"{key} is the same for all policies. Set it for the run: {option}, or {key}=...")
        if key not in names:
            raise complain(name, key, unknown_name(f"setting of {algorithm.name}", key, [*names, _AGENTS, _ALGORITHM]))
        settings[key] = from_file(value, hints[key]) if is_file else value
        try:
            check_setting(key, settings[key], hints[key])
        except ConfigError as error:
            raise complain(name, key, error) from error
    return PolicySettings(agents, algorithm, settings)


def _agents(name: str, given: Any, known: Sequence[str], complain: Complain) -> tuple[str, ...]:
    """Return the agents of a policy, in the order of the environment."""
    patterns = [given] if isinstance(given, str) else given
    if not isinstance(patterns, (list, tuple)) or not all(isinstance(pattern, str) for pattern in patterns):
        raise complain(name, _AGENTS, f"agents is {given!r}. Give a list of names.")
    for pattern in patterns:
        if not any(fnmatchcase(agent, pattern) for agent in known):
            raise complain(name, _AGENTS, unknown_name("agent", pattern, known))
    agents = tuple(agent for agent in known if any(fnmatchcase(agent, pattern) for pattern in patterns))
    if not agents:
        raise complain(
            name, None, f"it has no agents. Add agents = [...]; the agents of the environment are {', '.join(known)}."
        )
    return agents


def _check_complete(
    policies: Mapping[str, PolicySettings], spaces: Mapping[str, Spaces], env: MultiAgentSettings, complain: Complain
) -> None:
    """Check that every agent has one policy, whose agents have equal spaces, and that names are unambiguous."""
    policy_of: dict[str, str] = {}
    for name, policy in policies.items():
        for agent in policy.agents:
            if agent in policy_of:
                raise complain(name, _AGENTS, f"{agent} has the policy {policy_of[agent]!r} already. Name it once.")
            policy_of[agent] = name
        first = policy.agents[0]
        for agent in policy.agents[1:]:
            if spaces[agent] != spaces[first]:
                raise complain(
                    name, _AGENTS, f"{first} and {agent} have different spaces, so they cannot share a policy: "
                    f"{tuple(spaces[first])} and {tuple(spaces[agent])}. Give each its own policy."
                )  # fmt: skip
        if name in spaces and name not in policy.agents:
            raise complain(name, None, "it has the name of an agent with another policy. Rename it.")
        if not policy.algorithm.source.joint:
            problem = (
                f"{policy.algorithm.name} does not learn from rollouts, which all policies share. Use another one."
            )
            raise complain(name, _ALGORITHM, problem)
        try:
            policy.algorithm.check_actions(spaces[first].action, f"{first} of {env.name}")
        except ConfigError as error:
            raise complain(name, _ALGORITHM, error) from error
    missing = [agent for agent in spaces if agent not in policy_of]
    if missing:
        names = ", ".join(map(repr, policies))
        raise ConfigError(
            f"{', '.join(missing)} of {env.name} {'has' if len(missing) == 1 else 'have'} no policy. Add "
            f"{'it' if len(missing) == 1 else 'them'} to the agents of one: {names}."
        )
