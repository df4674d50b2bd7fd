"""The progress of a run as text: environment steps and episodes, or updates."""

from __future__ import annotations

from typing import Any

from raceway.settings.progress import progress_in

MEAN_REWARD = "Mean Reward (last 100 episodes)"
"""The name of the one number by which training is judged, wherever it is printed."""


def format_steps(row: dict[str, Any]) -> str:
    """Return the progress of the run as text: steps, or updates."""
    progress = progress_in(row)
    return f"{progress.of(row):,} {progress.noun}"


def length_lines(summary: dict[str, Any]) -> list[str]:
    """Return the lines of a summary on what was done: updates, or episodes, steps and their mean reward."""
    if summary["updates"] is not None:
        return [f"  Updates: {summary['updates']:,} ({summary['updates_per_second']:,.0f} updates/sec)"]
    seconds, final = summary["train_seconds"], summary["mean_return"]
    return [
        f"  Episodes: {summary['episodes']} ({summary['episodes'] / seconds:.1f} episodes/sec)",
        f"  Steps: {summary['timesteps']:,} ({summary['fps']:,.0f} steps/sec)",
        f"  {MEAN_REWARD}: {'none' if final is None else format(final, '.1f')}",
    ]
