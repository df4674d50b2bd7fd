"""What trains the policies of a run with several agents: for each an algorithm, a config, an agent and a learner."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from raceway.agents import Agent, Spaces
from raceway.agents.network_choice import NETWORKS, import_network
from raceway.algorithms import Algorithm
from raceway.algorithms.setting_sources import FILE, USER, Sources
from raceway.engine.base import Actor
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError
from raceway.learner.exploration import Exploration
from raceway.learner.learner import Learner
from raceway.ops import UpdateWeights
from raceway.rl.space_json import space_to_json
from raceway.runs.directory import survives_json
from raceway.runs.resume import algorithm_of_run, check_trusted
from raceway.runs.trained_policies import AgentGroup, weights_of
from raceway.training.policy_settings import PolicySettings, own_settings, run_settings

FRAGMENT_STEPS = 64
"""Steps per fragment if the algorithm of the run has no such setting."""
_MAX_SHARDS = 4


@dataclass
class PolicyTrainer:
    """One policy of a run, and what trains it."""

    settings: PolicySettings
    spaces: Spaces
    cfg: Any
    """The config of its algorithm, adapted to its spaces, with the settings of the run."""
    requested_network: Any
    agent: Agent
    learner: Learner
    exploration: Exploration

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""
        return self.settings.algorithm

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of its agents."""
        return self.settings.agents

    def describe(self) -> dict[str, Any]:
        """Return the policy as config.json describes it."""
        observation, action = map(space_to_json, self.spaces)
        own = {name: getattr(self.cfg, name) for name in own_settings(type(self.cfg))}
        return {
            "agents": list(self.agents),
            "algorithm": self.algorithm.name,
            "algorithm_import": self.algorithm.import_name,
            "config": {**own, "network": self.requested_network},
            "spaces": {"observation": observation, "action": action},
            "importable": survives_json(self.requested_network),
        }


def with_shards(cfg: Any) -> Any:
    """Return a config with a number of shards: its own, or at most 4.

    A policy acts once for all environments of a shard, which is worth more with several agents than many shards are.
    """
    divisors = (number for number in range(min(_MAX_SHARDS, cfg.num_envs), 0, -1) if cfg.num_envs % number == 0)
    return dataclasses.replace(cfg, num_shards=cfg.num_shards or next(divisors))


def adapt(cfg: Any, spaces: Spaces) -> Any:
    """Return a config with the settings filled in that depend on the spaces."""
    slots: Any = SimpleNamespace(observation_space=spaces.observation, action_space=spaces.action, num=1)
    return cfg.for_env(slots)


def policy_config(policy: PolicySettings, base: Algorithm, requested: Any, run_cfg: Any, share: float) -> Any:
    """Return the config of a policy, not adapted to its spaces.

    Args:
        policy: the policy.
        base: the algorithm of the run.
        requested: the config of the run, as it was passed.
        run_cfg: the same, with the number of shards and the length of fragments filled in.
        share: the share of the policy's agents in all agents. Schedules count the steps of the policy's own agents.
    """
    config = policy.algorithm.config
    fields = {field.name for field in dataclasses.fields(config)}
    shared = {"fragment_steps": FRAGMENT_STEPS, **run_settings(run_cfg)}
    if shared["total_timesteps"] is not None:
        shared["total_timesteps"] = max(1, round(shared["total_timesteps"] * share))
    shared = {name: value for name, value in shared.items() if name in fields}
    if policy.algorithm.name == base.name:
        return dataclasses.replace(requested, **{**shared, **policy.settings})
    return config(**{**shared, **policy.settings})


def with_imported_network(cfg: Any) -> Any:
    """Return a config whose network is imported, if it is the name of a function."""
    return dataclasses.replace(cfg, network=import_network(cfg.network))


class LearnerGroup:
    """The learners of all policies, with the state of all of them."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self.learners = dict(learners)

    def state(self) -> Any:
        """Return the state for a checkpoint. The weights of all agents are together, as those of one agent are."""
        states = {name: learner.state() for name, learner in self.learners.items()}
        weights = {f"{name}.{key}": array for name, state in states.items() for key, array in state["policy"].items()}
        rest = {name: {key: part for key, part in state.items() if key != "policy"} for name, state in states.items()}
        return {"policy": weights, "policies": rest}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        for name, learner in self.learners.items():
            learner.restore({**state["policies"][name], "policy": weights_of(state["policy"], name)})

    def current_agents(self) -> AgentGroup:
        """Return the agents with the weights of the learners; copies if a learner is remote."""
        return AgentGroup({name: current_agent(learner) for name, learner in self.learners.items()})


def current_agent(learner: Learner) -> Agent:
    """Return the agent with the weights of the learner; a copy if the learner is remote."""
    if not learner.remote:
        return learner.agent
    agent = copy.deepcopy(learner.agent)
    agent.load(learner.published_weights[1])
    return agent


class ExplorationGroup:
    """The knobs of exploration of all policies."""

    def __init__(self, explorations: Mapping[str, Exploration]) -> None:
        self.explorations = dict(explorations)

    @property
    def knobs(self) -> dict[str, Any]:
        """The current knobs, by the name of the policy and their own."""
        groups = self.explorations.items()
        return {f"{name}.{knob}": value for name, group in groups for knob, value in group.knobs.items()}

    def state(self) -> Any:
        """Return the knobs, for a checkpoint."""
        return {name: exploration.state() for name, exploration in self.explorations.items()}

    def restore(self, state: Any) -> None:
        """Restore the knobs."""
        for name, exploration in self.explorations.items():
            exploration.restore(state[name])


class WeightSenders:
    """Sends the weights of all policies."""

    def __init__(self, senders: Sequence[UpdateWeights]) -> None:
        self.senders = list(senders)

    @property
    def workers(self) -> Sequence[Actor]:
        """The workers that act."""
        return self.senders[0].workers

    def send(self, workers: Sequence[Actor]) -> None:
        """Send the current weights to workers."""
        for sender in self.senders:
            sender.send(workers)

    def send_to(self, worker: Actor) -> list[Any]:
        """Send the current weights to a worker that was restarted."""
        return [sender.send_to(worker) for sender in self.senders]


def policy_of_agent(policies: Mapping[str, PolicySettings]) -> dict[str, str]:
    """Return the policy's name of every agent."""
    return {agent: name for name, policy in policies.items() for agent in policy.agents}


def env_with_policies(env: MultiAgentSettings, policies: Mapping[str, PolicySettings]) -> MultiAgentSettings:
    """Return an environment with the policies of its agents, and the global state if an algorithm uses it."""
    global_state = any(getattr(policy.algorithm.config, "global_state", False) for policy in policies.values())
    return dataclasses.replace(env, policies=policy_of_agent(policies), global_state=global_state)


def saved_policies(about: Mapping[str, Any], network: Any = None, *, trust: bool = False) -> dict[str, dict[str, Any]]:
    """Return the policies that config.json describes, as a mapping for `read_policies`.

    Args:
        about: the description of the run.
        network: the network of policies that have one of the user's own, if the caller passed it again.
        trust: whether modules that the run names may be imported.
    """
    policies: dict[str, dict[str, Any]] = {}
    for name, table in about["policies"].items():
        config = {key: tuple(value) if isinstance(value, list) else value for key, value in table["config"].items()}
        saved: Any = config["network"]
        if saved not in NETWORKS:
            importable = bool(table.get("importable", True))
            passed = network is not None
            config["network"] = network if passed else check_trusted(
                "network", saved, importable=importable, trust=trust
            )  # fmt: skip
        algorithm = algorithm_of_run(table, trust=trust)
        imported = algorithm.import_name or algorithm.name
        policies[name] = {"agents": list(table["agents"]), "algorithm": imported, **config}
    return policies


def without_policy_network(about: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a run is resumed with, without a network that only some policies of the run have."""
    of_policies = any(table["config"]["network"] not in NETWORKS for table in about["policies"].values())
    is_theirs = of_policies and about["config"]["network"] in NETWORKS
    return {name: value for name, value in settings.items() if name != "network" or not is_theirs}


def check_used(algorithm: Algorithm, cfg: Any, policies: Mapping[str, PolicySettings], sources: Sources) -> None:
    """Refuse settings of an algorithm that trains no policy. A file may repeat what they would be otherwise."""
    if any(policy.algorithm.name == algorithm.name for policy in policies.values()):
        return
    names, otherwise = own_settings(algorithm.config), algorithm.settings(env=cfg.env)
    changed = [name for name in names if getattr(cfg, name) != getattr(otherwise, name)]
    unused = [name for name in names if sources.get(name) == USER or (sources.get(name) == FILE and name in changed)]
    if unused:
        raise ConfigError(
            f"{unused[0]} has no effect: no policy is trained by {algorithm.name}. Set it for a policy that has it."
        )
