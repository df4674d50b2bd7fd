"""The trained policies of several agents from a checkpoint of their run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raceway.agents import Sample, Spaces, Weights, build_agent
from raceway.agents.network_choice import NETWORKS, import_network
from raceway.checkpoints.store import Checkpoint
from raceway.envs import EnvSettings
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.rl.space_json import space_from_json
from raceway.runs.config_file import algorithm_label
from raceway.runs.resume import check_layer_sizes, check_trusted, check_weights_fit, saved_config
from raceway.runs.trained_policies import TrainedPolicies, weights_of
from raceway.runs.trained_policy import TrainedPolicy
from raceway.settings.progress import TIMESTEPS

_OF_POLICY = ("algorithm", "algorithm_import", "config", "spaces")


def load_policies(
    run: Path, config: Mapping[str, Any], checkpoint: Checkpoint, weights: Weights, network: Any, *, trust: bool
) -> TrainedPolicies:
    """Return the policies of a run.

    Args:
        run: the run directory.
        config: its description.
        checkpoint: the checkpoint to read knobs and progress from.
        weights: its weights, of all agents.
        network: the network of policies that have one of the user's own, if the caller passed it.
        trust: whether modules that the run names may be imported.
    """
    env = config["env"]
    about = {
        "run": str(run), "algorithm": algorithm_label(dict(config)), "env": env["name"],
        "checkpoint": str(checkpoint.path), "steps": checkpoint.about["steps"], "unit": TIMESTEPS.noun,
        "mean_return": checkpoint.about.get("mean_return"),
    }  # fmt: skip
    importable = bool(config["importable"]["env"])
    policies = {
        name: _load_policy(name, table, config, checkpoint, weights, network, about, trust=trust)
        for name, table in config["policies"].items()
    }
    agents_of = {name: list(table["agents"]) for name, table in config["policies"].items()}
    policy_of = {agent: name for name, agents in agents_of.items() for agent in agents}
    settings = MultiAgentSettings(env["name"], policy_of, env["kwargs"])
    return TrainedPolicies(policies, settings, agents_of, about, importable=importable, trust=trust)


def _load_policy(
    name: str, table: Mapping[str, Any], config: Mapping[str, Any], checkpoint: Checkpoint, weights: Weights,
    network: Any, about: Mapping[str, Any], *, trust: bool,
) -> TrainedPolicy:  # fmt: skip
    own = weights_of(weights, name)
    saved = table["config"]["network"]
    if saved not in NETWORKS:
        can_import = ":" in saved and bool(table.get("importable", True))
        network = network or check_trusted("network", saved, importable=can_import, trust=trust)
    else:
        network = saved
    described = {**config, **{key: table.get(key) for key in _OF_POLICY}}
    described["importable"] = {**config["importable"], "network": bool(table.get("importable", True))}
    algorithm, cfg = saved_config(described, trust=trust, network=import_network(network))
    check_layer_sizes(described, getattr(cfg, "hidden", None) or (), own)
    spaces = Spaces(*(space_from_json(table["spaces"][side]) for side in ("observation", "action")))
    agent = build_agent(algorithm.agent, spaces, cfg)
    check_weights_fit(agent, own, checkpoint.path)
    agent.load(own)
    explorer = Sample() if algorithm.explorer is None else algorithm.explorer(spaces, cfg)
    explorer.set_knobs(weights_of(checkpoint.knobs(), name))
    returns = checkpoint.about.get("policies", {}).get(name, {})
    more = {"algorithm": algorithm.name, "policy": name, "mean_return": returns.get("mean_return")}
    return TrainedPolicy(
        agent.eval(), spaces, EnvSettings(config["env"]["name"], config["env"]["kwargs"]), {**about, **more},
        clip_actions=cfg.clip_actions, explorer=explorer, importable=False, trust=trust,
    )  # fmt: skip
