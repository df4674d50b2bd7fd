"""The knobs of exploration of a run, in the driver: they are sent to workers beside the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from raceway.agents.exploration import Explorer, Knobs
from raceway.checks import unknown_name


class Exploration:
    """The current knobs of a run's explorer, such as the ε of ε-greedy exploration.

    Args:
        explorer: the explorer, with the initial knobs.
    """

    shared_by_runs = True  # of a flow: it belongs to the workers' explorers

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    @property
    def knobs(self) -> Knobs:
        """The current knobs, by name."""
        return self.explorer.knobs

    def check_knobs(self, names: Iterable[str]) -> None:
        """Refuse names of knobs that the explorer does not have."""
        for name in names:
            if name not in self.knobs:
                raise unknown_name(f"knob of {type(self.explorer).__name__}", name, list(self.knobs))

    def set(self, **knobs: Any) -> None:
        """Change knobs. Workers get them with the next weights."""
        shapes = {name: self.knobs[name].shape for name in knobs}
        self.explorer.set_knobs({name: np.broadcast_to(value, shapes[name]) for name, value in knobs.items()})

    def state(self) -> Any:
        """Return the knobs, for a checkpoint."""
        return {name: value.copy() for name, value in self.knobs.items()}

    def restore(self, state: Any) -> None:
        """Restore the knobs."""
        self.explorer.set_knobs(state)
