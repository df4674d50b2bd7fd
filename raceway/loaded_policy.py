"""`load`: a trained policy from its run directory, ready for inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.agents import Policy, Weights, make_policy
from raceway.agents.networks import ACTIVATIONS, NETWORKS, import_network
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.checks import check_choice
from raceway.envs import EnvSettings
from raceway.errors import CheckpointError, ConfigError
from raceway.rl.space_json import space_from_json
from raceway.runs.config_file import has_policy, read_config
from raceway.runs.resume import check_layer_sizes, check_same_run, check_trusted, check_weights_fit
from raceway.runs.trained_policy import TrainedPolicy

_log = logging.getLogger(__name__)


def load(
    run: str | Path, which: str | int = "best", *, network: Any = None, trust: bool = False
) -> TrainedPolicy:  # fmt: skip
    """Load a trained policy.

    No module that the run names is imported unless the caller passes it again or trusts the run.

    Args:
        run: the run directory.
        which: the `best` checkpoint (the latest if none has a score), the `latest`, or a number of environment steps.
        network: the network of the run if it is not one of Raceway's: a function, or `module:function`.
        trust: whether modules of a network or environment that the run names may be imported.
    """
    path = Path(run)
    config = read_config(path)
    if not has_policy(config):
        raise ConfigError(
            f"the run in {path} has no description of its policy: an older version wrote it. Train it again."
        )
    checkpoint, weights = _read_checkpoint(Checkpoints(path / "checkpoints"), _check_which(which))
    check_same_run(checkpoint, config)
    check_layer_sizes(config, config["policy"]["hidden"], weights)
    policy = _make_untrained(config, _network(config, network, trust=trust))
    check_weights_fit(policy, weights, checkpoint.path)
    policy.load(weights)
    saved_env = EnvSettings(config["env"]["name"], config["env"]["kwargs"], config["env"]["vector"])
    about = {
        "run": str(path),
        "algorithm": config["algorithm"],
        "env": config["env"]["name"],
        "checkpoint": str(checkpoint.path),
        "steps": checkpoint.about["steps"],
        "mean_return": checkpoint.about.get("mean_return"),
    }
    return TrainedPolicy(
        policy.eval(), _spaces(config), saved_env, about, clip_actions=bool(config["policy"].get("clip_actions")),
        importable=bool(config["importable"]["env"]), trust=trust,
    )  # fmt: skip


def _check_which(which: str | int) -> str | int:
    if which in ("best", "latest") or (isinstance(which, int) and not isinstance(which, bool)):
        return which
    if isinstance(which, str) and which.isascii() and which.isdecimal():
        return which.lstrip("0") or "0"
    raise ConfigError(f"which must be best, latest, or a number of steps, not {which!r}")


def _spaces(config: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    return space_from_json(config["spaces"]["observation"]), space_from_json(config["spaces"]["action"])


def _make_untrained(config: Mapping[str, Any], network: Any) -> Policy:
    """Create the policy of a run, untrained."""
    options = config["policy"]
    if options["activation"] is not None:
        check_choice("activation", options["activation"], ACTIVATIONS)
    return make_policy(
        *_spaces(config), network, tuple(options["hidden"]), 0, kind=options["kind"], normalise=options["normalise"],
        num_slots=options["num_slots"], activation=options["activation"], shared=options["shared"],
    )  # fmt: skip


def _network(config: Mapping[str, Any], network: Any, *, trust: bool) -> Any:
    """Return the network of a run: the caller's, a built-in one, or one imported from a trusted run."""
    saved = config["policy"]["network"]
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
