"""What displays show of the policies of a run with several agents."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium import spaces

from raceway.algorithms.setting_sources import format_setting

_NO_BREAK = "\N{NO-BREAK SPACE}"


def describe_policies(training: Any) -> list[str]:
    """Return the policies of a training as lines of text: agents, algorithm, spaces and settings of their own."""
    lines: list[str] = []
    for name, trainer in training.policies.items():
        lines.append(f"Policy {name}: {trainer.algorithm.name}, for {', '.join(trainer.agents)}")
        lines.append(f"  {describe_spaces(*trainer.spaces)}")
        is_base = trainer.algorithm.name == training.algorithm.name
        otherwise = training.requested_cfg if is_base else trainer.algorithm.config()
        own = {key: value for key, value in trainer.settings.settings.items() if getattr(otherwise, key) != value}
        if own:
            texts = [f"{key} {format_setting(value)}".replace(" ", _NO_BREAK) for key, value in own.items()]
            text = textwrap.fill(f"Set for this policy: {', '.join(texts)}", 106, break_long_words=False)
            lines += [f"  {line}".replace(_NO_BREAK, " ") for line in text.splitlines()]
    return lines


def describe_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> str:
    """Return spaces as text.

    >>> describe_spaces(spaces.Box(-1, 1, (18,)), spaces.Discrete(5))
    'observation dim 18, 5 discrete actions'
    """
    shape = observation_space.shape
    observation = f"observation dim {math.prod(shape)}" if shape else f"observations {observation_space}"
    if isinstance(action_space, spaces.Discrete):
        return f"{observation}, {action_space.n} discrete actions"
    return f"{observation}, {'continuous ' if isinstance(action_space, spaces.Box) else ''}actions {action_space}"


class PolicyMetrics:
    """The latest metrics of every policy, from rows that have those of some."""

    def __init__(self, policies: Iterable[str]) -> None:
        self._values: dict[str, dict[str, float]] = {name: {} for name in policies}

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics."""
        for name, values in self._values.items():
            for key, metric in (("return", "rollout/{}/ep_rew_mean"), ("loss", "train/{}/loss")):
                value = row.get(metric.format(name))
                if value is not None:
                    values[key] = value

    def texts(self) -> dict[str, str]:
        """Return the mean return and the loss of every policy, as text."""
        return {
            name: f"{_format(values.get('return'), '.1f')}, loss {_format(values.get('loss'), '.4f')}"
            for name, values in self._values.items()
        }


def evaluation_of_policies(row: Mapping[str, Any]) -> str:
    """Return the mean returns of policies at an evaluation as text; empty if there is one agent.

    >>> evaluation_of_policies({"eval/mean_reward": 3.0, "eval/pair/mean_reward": 1.0, "eval/single/mean_reward": 1.0})
    ' (pair 1.0, single 1.0)'
    """
    parts = [name.split("/") for name in row if name.startswith("eval/") and name.endswith("/mean_reward")]
    texts = [f"{part[1]} {row['/'.join(part)]:.1f}" for part in parts if len(part) == 3]
    return f" ({', '.join(texts)})" if texts else ""


def _format(value: float | None, form: str) -> str:
    return "none" if value is None else format(value, form)


def summary_of_policies(summary: Mapping[str, Any]) -> list[str]:
    """Return the policies of a summary as lines of text; none if there is one agent."""
    return [
        f"  Policy {name} ({policy['algorithm']}): mean reward {_format(policy['mean_return'], '.1f')} per agent, "
        f"{policy['timesteps']:,} steps, {policy['iterations']:,} iterations"
        for name, policy in summary.get("policies", {}).items()
    ]
