"""`--init-from RUN`: a training that starts from the weights of another run, such as fine-tuning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raceway.agents import Agent
from raceway.checkpoints.store import Checkpoints
from raceway.errors import ConfigError
from raceway.runs.config_file import has_checkpoints, read_config

_log = logging.getLogger(__name__)


def load_initial_weights(agent: Agent, run: str | Path) -> dict[str, Any]:
    """Load the parts of an agent that another run has too, from its best checkpoint. Other parts are not changed.

    Optimisers, replay and the progress of that run are not used.

    Args:
        agent: the agent.
        run: the directory of the other run.

    Returns:
        The checkpoint, its number of environment steps, and the names of the parts.
    """
    about = read_config(run)
    if not has_checkpoints(about):
        raise ConfigError(f"--init-from {run}: an older version wrote this run, without checkpoints. Train it again.")
    if "policies" in about:
        raise ConfigError(
            f"--init-from {run}: that run has several agents, with the policies {', '.join(about['policies'])}. Use a "
            "run with one agent."
        )
    checkpoint = Checkpoints(Path(run) / "checkpoints").find("best")
    own, other = _by_part(agent.weights()), _by_part(checkpoint.weights())
    parts = [part for part in own if part in other]
    if not parts:
        raise ConfigError(
            f"--init-from {run}: that run has the parts {', '.join(other)}, and this agent {', '.join(own)}: none is "
            "the same. Use a run of an algorithm with the same parts."
        )
    problems = [problem for part in parts for problem in _misfits(own[part], other[part])]
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ConfigError(
            f"--init-from {run}: its weights do not fit: {'; '.join(problems[:4])}{more}. Use its network, its hidden "
            "layers, and an environment with the same observations and actions."
        )
    agent.load({name: array for part in parts for name, array in other[part].items()})
    left_out = [part for part in own if part not in parts]
    _log.info(
        "initial weights of %s from %s%s", ", ".join(parts), checkpoint.path,
        f"; {', '.join(left_out)}: new, as that run has none" if left_out else "",
    )  # fmt: skip
    return {"checkpoint": str(checkpoint.path), "steps": checkpoint.about["steps"], "parts": parts}


def _by_part(weights: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    for name, array in weights.items():
        parts.setdefault(name.partition(".")[0], {})[name] = array
    return parts


def _misfits(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between the weights of a part here and in the other run."""
    missing = [f"it has no {name}" for name in own if name not in other]
    unknown = [f"this agent has no {name}" for name in other if name not in own]
    return [*missing, *unknown] + [
        f"{name} has shape {np.shape(other[name])} there and {np.shape(array)} here"
        for name, array in own.items()
        if name in other and np.shape(other[name]) != np.shape(array)
    ]
