"""`--init-from RUN`: a training that starts from the weights of another run, such as fine-tuning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raceway.agents import Agent
from raceway.checkpoints.store import Checkpoints
from raceway.errors import ConfigError
from raceway.runs.config_file import has_checkpoints, read_config
from raceway.runs.trained_policies import weights_of

_log = logging.getLogger(__name__)


def load_initial_weights(agent: Agent, run: str | Path, policy: str | None = None) -> dict[str, Any]:
    """Load the parts of an agent that another run has too, from its best checkpoint. Other parts are not changed.

    Optimisers, replay and the progress of that run are not used.

    Args:
        agent: the agent.
        run: the directory of the other run. Of several policies in it, the one with the same name is used.
        policy: the name of the agent's policy, if there are several agents.

    Returns:
        The checkpoint, its number of environment steps, the names of the parts and, if that run has several agents,
        the name of its policy.
    """
    about = read_config(run)
    if not has_checkpoints(about):
        raise ConfigError(f"--init-from {run}: an older version wrote this run, without checkpoints. Train it again.")
    source = _policy_to_use(run, about["policies"], policy) if "policies" in about else None
    checkpoint = Checkpoints(Path(run) / "checkpoints").find("best")
    weights = checkpoint.weights() if source is None else weights_of(checkpoint.weights(), source)
    own, other = _by_part(agent.weights()), _by_part(weights)
    parts = [part for part in own if part in other]
    if not parts:
        raise ConfigError(
            f"--init-from {run}: that run has the parts {', '.join(other)}, and this agent {', '.join(own)}: none is "
            "the same. Use a run of an algorithm with the same parts."
        )
    problems = [problem for part in parts for problem in _misfits(own[part], other[part])]
    for name in () if problems else _constants(agent, parts):
        part = name.partition(".")[0]
        if not np.array_equal(other[part][name], own[part][name]):
            problems.append(f"{name} has other values there than the settings here give")
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
    loaded = {"checkpoint": str(checkpoint.path), "steps": checkpoint.about["steps"], "parts": parts}
    return loaded if source is None else {**loaded, "policy": source}


def _policy_to_use(run: str | Path, policies: Collection[str], name: str | None) -> str:
    """Return the policy of a run with several agents that has this name, or the only one that it has."""
    if name is not None and name in policies:
        return name
    if len(policies) == 1:
        return next(iter(policies))
    wanted = "this run has one agent" if name is None else f"none is named {name!r}"
    raise ConfigError(
        f"--init-from {run}: that run has the policies {', '.join(policies)}, and {wanted}. Train policies with these "
        "names, or use a run with one policy."
    )


def _by_part(weights: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    for name, array in weights.items():
        parts.setdefault(name.partition(".")[0], {})[name] = array
    return parts


def _constants(agent: Agent, parts: Collection[str]) -> list[str]:
    """Return the names of the buffers of some parts that follow from settings."""
    return [
        f"{path}.{name}"
        for path, module in agent.named_modules()
        for name in getattr(module, "constants", ())
        if path.partition(".")[0] in parts
    ]


def _misfits(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what differs between the weights of a part here and in the other run."""
    missing = [f"it has no {name}" for name in own if name not in other]
    unknown = [f"this agent has no {name}" for name in other if name not in own]
    return [*missing, *unknown] + [
        f"{name} has shape {np.shape(other[name])} there and {np.shape(array)} here"
        for name, array in own.items()
        if name in other and np.shape(other[name]) != np.shape(array)
    ]
