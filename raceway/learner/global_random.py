"""torch's global generator as one of a learner's own: for losses and layers that sample from it, such as dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from raceway.agents.modes import is_plain
from raceway.rl.seeding import GLOBAL_GENERATORS_LOCK


class GlobalRandom:
    """The state of torch's global generator on the CPU while a learner trains, seeded and saved with it.

    Raceway's own networks and losses do not use that generator, and do not wait for other threads that do.

    Args:
        seed: the seed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.state: np.ndarray | None = None
        """The state after the last use, for a checkpoint; None before the first."""

    def used_by(self, agent: nn.Module, losses: Iterable[Callable[..., Any]]) -> AbstractContextManager[None]:
        """Use the state for a while, if the agent or a loss may sample from torch's global generator."""
        return self._swapped() if may_sample_globally(agent, losses) else nullcontext()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        with GLOBAL_GENERATORS_LOCK:
            before = torch.get_rng_state()
            if self.state is None:
                torch.default_generator.manual_seed(self.seed)
            else:
                torch.set_rng_state(torch.from_numpy(np.array(self.state)))
            try:
                yield
            finally:
                self.state = torch.get_rng_state().numpy().copy()
                torch.set_rng_state(before)


def may_sample_globally(agent: nn.Module, losses: Iterable[Callable[..., Any]]) -> bool:
    """Whether an agent or a loss may sample from torch's global generator."""
    return not (is_plain(agent) and all(map(_is_own, losses)))


def _is_own(loss: Any) -> bool:
    """Whether a loss is one of Raceway's."""
    while isinstance(loss, partial):
        loss = loss.func
    module = getattr(loss, "__module__", None) or type(loss).__module__
    return module.startswith("raceway.")
