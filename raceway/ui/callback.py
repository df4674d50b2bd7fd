"""The base class of callbacks, which are notified of the progress of a training."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


class Callback(AbstractContextManager["Callback"]):
    """Base class of callbacks of a training. Every method does nothing unless it is overridden.

    >>> class PrintReturns(Callback):
    ...     def on_iteration(self, row):
    ...         print(row["time/total_timesteps"], row["rollout/ep_rew_mean"])
    """

    def on_start(self, training: Any, path: Path) -> None:
        """Handle the start of a training (`raceway.training.train.Training`) with this run directory."""

    def on_iteration(self, row: dict[str, Any]) -> None:
        """Handle the metrics of an iteration; docs/metrics.md explains them.

        A resumed run first catches up on an evaluation that was due when it stopped: the last row of the earlier part,
        which several iterations may share, is then passed again, with the metrics of the evaluation.
        """

    def on_checkpoint(self, steps: int) -> None:
        """Handle a checkpoint that was saved after this many environment steps."""

    def on_end(self, result: Any) -> None:
        """Handle the end of the training; its result is what `train` returns."""

    def __exit__(self, *_: object) -> None:
        """Release resources."""


class Display(Callback):
    """Base class of callbacks that show the progress of a training, in place of the display that it has by default."""
