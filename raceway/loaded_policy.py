"""`load`: a trained policy from its run directory, ready for inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raceway.agents import Spaces, Weights, build_agent
from raceway.agents.network_choice import NETWORKS, import_network
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.envs import EnvSettings
from raceway.errors import CheckpointError, ConfigError
from raceway.rl.space_json import space_from_json
from raceway.runs.config_file import has_checkpoints, read_config
from raceway.runs.load_policies import load_policies
from raceway.runs.resume import (
    check_layer_sizes,
    check_same_run,
    check_trusted,
    check_weights_fit,
    saved_config,
)
from raceway.runs.trained_policy import TrainedPolicy

_log = logging.getLogger(__name__)


def load(run: str | Path, which: str | int = "best", *, network: Any = None, trust: bool = False) -> Any:
    """Load a trained policy, a `TrainedPolicy`; of a run with several agents, `TrainedPolicies` by agent.

    No module that the run names is imported unless the caller passes it again or trusts the run.

    Args:
        run: the run directory.
        which: the `best` checkpoint (the latest if none has a score), the `latest`, or a number of environment steps.
        network: the network of the run if it is not one of Raceway's: a function, or `module:function`.
        trust: whether modules of a network, environment or algorithm that the run names may be imported.
    """
    path = Path(run)
    config = read_config(path)
    if not has_checkpoints(config):
        raise ConfigError(f"the run in {path} has no checkpoints: an older version wrote it. Train it again.")
    checkpoint, weights = _read_checkpoint(Checkpoints(path / "checkpoints"), _check_which(which))
    check_same_run(checkpoint, config)
    if "policies" in config:
        return load_policies(path, config, checkpoint, weights, network, trust=trust)
    algorithm, cfg = saved_config(config, trust=trust, network=_network(config, network, trust=trust))
    check_layer_sizes(config, getattr(cfg, "hidden", None) or (), weights)
    spaces = Spaces(*(space_from_json(config["spaces"][side]) for side in ("observation", "action")))
    agent = build_agent(algorithm.agent, spaces, cfg)
    check_weights_fit(agent, weights, checkpoint.path)
    agent.load(weights)
    explorer = algorithm.make_explorer(spaces, cfg)
    explorer.set_knobs(checkpoint.knobs())
    env = config["env"]
    saved_env = EnvSettings(env["name"], env["kwargs"], env["vector"], cfg.last_action_and_reward)
    about = {
        "run": str(path),
        "algorithm": config["algorithm"],
        "env": config["env"]["name"],
        "checkpoint": str(checkpoint.path),
        "steps": checkpoint.about["steps"],
        "unit": cfg.progress.noun,
        "mean_return": checkpoint.about.get("mean_return"),
    }
    return TrainedPolicy(
        agent.eval(), spaces, saved_env, about, clip_actions=cfg.clip_actions, explorer=explorer,
        importable=bool(config["importable"]["env"]), trust=trust,
    )  # fmt: skip


def _check_which(which: str | int) -> str | int:
    if which in ("best", "latest") or (isinstance(which, int) and not isinstance(which, bool)):
        return which
    if isinstance(which, str) and which.isascii() and which.isdecimal():
        return which.lstrip("0") or "0"
    raise ConfigError(f"which must be best, latest, or a number of steps, not {which!r}")


def _network(config: Mapping[str, Any], network: Any, *, trust: bool) -> Any:
    """Return the network of a run: the caller's, a built-in one, or one imported from a trusted run."""
    saved = config["config"]["network"]
    if network is not None:
        return import_network(network)
    if saved in NETWORKS:
        return saved
    importable = ":" in saved and config["importable"]["network"]
    return import_network(check_trusted("network", saved, importable=importable, trust=trust))


def _read_checkpoint(checkpoints: Checkpoints, which: str | int) -> tuple[Checkpoint, Weights]:
    """Return a checkpoint and its weights. If the best cannot be read, fall back to the latest that can."""
    try:
        checkpoint = checkpoints.find(which)
        return checkpoint, checkpoint.weights()
    except CheckpointError as error:
        if which != "best" or not checkpoints.all():
            raise
        checkpoint, weights = checkpoints.newest_readable(Checkpoint.weights)
        _log.warning("the best checkpoint cannot be read: %s. Loading %s instead", error, checkpoint.path)
        return checkpoint, weights
