"""What a run counts: environment steps or, where it collects none, gradient steps.

Budgets, periods (`save_every`, `eval_every`), schedules and the x axis of plots follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """A unit of progress, and its names."""

    setting: str
    """The setting that limits it."""
    metric: str
    """The metric that has it."""
    label: str
    """Its name on the axis of a plot."""
    noun: str
    """Its plural in a sentence: "after 500 steps"."""

    def of(self, row: Mapping[str, Any]) -> int:
        """Return the progress in a row of metrics; 0 if there is none."""
        value = row.get(self.metric)
        return int(value) if isinstance(value, (int, float)) else 0


TIMESTEPS = Progress("total_timesteps", "time/total_timesteps", "environment steps", "steps")
UPDATES = Progress("total_updates", "time/total_updates", "updates (gradient steps)", "updates")


def budget_hint(name: str, progress: Progress) -> str:
    """Return which setting limits a run that counts `progress`, if the name is the limit of another kind of run.

    >>> budget_hint("--total-timesteps", UPDATES)
    'This algorithm counts updates (gradient steps): use total_updates.'
    """
    limits = {other.setting for other in (TIMESTEPS, UPDATES) if other is not progress}
    if name.strip("-").replace("-", "_") not in limits:
        return ""
    return f"This algorithm counts {progress.label}: use {progress.setting}."


def progress_in(row: Mapping[str, Any]) -> Progress:
    """Return what the run of a row of metrics counts.

    >>> progress_in({"time/total_updates": 3}).of({"time/total_updates": 3}), progress_in({}).noun
    (3, 'steps')
    """
    return UPDATES if UPDATES.metric in row and TIMESTEPS.metric not in row else TIMESTEPS
