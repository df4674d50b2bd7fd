"""The settings of a training as text, as displays show them at the start."""

from __future__ import annotations

import math
from typing import Any

from gymnasium.spaces import Box

from raceway.algorithms.setting_sources import describe_sources
from raceway.formatting import format_count
from raceway.ui.policy_lines import describe_policies


def describe_training(training: Any) -> list[str]:
    """Return the settings of a training as lines of text."""
    cfg = training.cfg
    num_iterations, num_episodes = cfg.num_iterations, getattr(cfg, "episodes_per_iter", None)
    where = format_count(training.num_workers, "worker") if training.num_workers else "in this process"
    lines = [
        f"Environment: {training.env.name}",
        *(describe_policies(training) if training.policies else _describe_spaces(*training.spaces)),
        f"Engine: {cfg.engine}, {where}" if training.num_workers else f"Engine: {where}",
    ]
    chosen_by = "auto chose" if cfg.num_workers == "auto" else "using"
    lines += [f"  {chosen_by} {training.num_workers_reason}"] if training.num_workers_reason else []
    lines += [f"Training iterations: {num_iterations}"] if num_iterations else []
    of_all = ", of all agents" if training.policies else ""
    limit = cfg.progress.setting.replace("_", " ").capitalize()
    lines += [f"{limit}: {cfg.total_steps:,}{of_all}"] if cfg.total_steps else []
    if num_episodes:
        lines.append(f"Episodes per iteration: {num_episodes}")
        lines += [f"Total episodes: {num_iterations * num_episodes}"] if num_iterations else []
    lines += [f"Resumed from: {training.resume_point.checkpoint.path}"] if training.resume_point else []
    return [
        *lines,
        f"Seed: {cfg.seed}",
        *describe_sources(cfg, training.setting_sources, training.env.name),
    ]


def _describe_spaces(observation_space: Any, action_space: Any) -> list[str]:
    shape = observation_space.shape
    return [
        f"Observation dim: {math.prod(shape)}" if shape else f"Observations: {observation_space}",
        f"Action dim: {getattr(action_space, 'n', None) or math.prod(action_space.shape)}",
        f"Continuous actions: {isinstance(action_space, Box)}",
    ]
