"""Operators that train: from batches or gradients to new weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from raceway.agents import Weights
from raceway.errors import ConfigError
from raceway.flow import Envelope, Shard, injected
from raceway.learner.active_objectives import asks_random
from raceway.learner.exploration import Exploration
from raceway.learner.global_random import GlobalRandom
from raceway.learner.learner import WHOLE_AGENT, HasLearner, Learner, gradients_of
from raceway.learner.loss_state import restore_loss, state_of_loss
from raceway.learner.members import Members
from raceway.learner.objectives import Loss, Objective, Schedule, Target
from raceway.ops.report import TrainStats
from raceway.rl import Batch, num_steps
from raceway.rl.batch import VERSION
from raceway.rl.seeding import Purpose
from raceway.state import Stateful, record


class TrainOneStep(HasLearner):
    """Train on each batch: one gradient step, or one for every minibatch of every epoch.

    Args:
        learner: the learner.
        loss: the loss, or `Objective`, that trains the whole agent with one optimiser.
        num_epochs: passes over each batch.
        num_minibatches: minibatches of a pass.
        targets: the target networks, `agent.target`, that are updated after each gradient step.
        members: compute the gradients of a loss for the whole agent, if there are any.
        objectives: instead of `loss`: losses, or `Objective`s, each of which trains the part of its name.
    """

    def __init__(
        self,
        learner: Learner,
        loss: Loss | Objective | None = None,
        *,
        num_epochs: int = 1,
        num_minibatches: int = 1,
        targets: Target | Sequence[Target] = (),
        members: Members | None = None,
        **objectives: Loss | Objective,
    ) -> None:
        if (loss is None) == (not objectives):
            raise ConfigError("TrainOneStep needs either a loss for the whole agent, or objectives by name")
        losses = objectives if loss is None else {WHOLE_AGENT: loss}
        self.objectives = {
            name: entry if isinstance(entry, Objective) else Objective(loss=entry) for name, entry in losses.items()
        }
        for name, objective in self.objectives.items() if loss is None else ():
            for part in objective.parts or (name,):
                learner.agent.check_part(part)
        self.learner, self.parts, self.members = learner, (num_epochs, num_minibatches), members
        self.targets = (targets,) if isinstance(targets, Target) else tuple(targets)
        for target in self.targets:
            for part in target.names or ():
                learner.agent.check_part(part)

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Train on a batch, and return the stats."""
        collected_with = int(batch[VERSION]) if VERSION in batch else envelope.version
        begin, lag = time.perf_counter(), self.learner.lag_metrics(collected_with)
        version = self.learner.version
        metrics, priorities = self.learner.train(self.objectives, batch, *self.parts, self.targets, self.members)
        stats = TrainStats.of(batch, metrics | lag, priorities, train=time.perf_counter() - begin)
        stats.num_updates = self.learner.version - version
        stats.published_weights = self.learner.publish()
        return stats


@record(formerly=("Gradients",))
@dataclass
class Gradients:
    """The gradients of a batch, and its stats."""

    arrays: Weights
    stats: TrainStats


class ComputeGradients:
    """Compute the gradients of a loss where the batch was collected, with that worker's weights. Runs on shards.

    Every shard has its own copy of a loss object, and its own generator if the loss asks for `random`.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss, self._asks_random = loss, asks_random(loss)
        self._random: torch.Generator | None = None
        self._global_random: GlobalRandom | None = None

    def __call__(self, batch: Batch, *, actor: Any = injected, shard: Any = injected) -> Gradients:
        """Return the gradients."""
        if self._random is None or self._global_random is None:
            self._seed(shard)
        assert self._random is not None
        assert self._global_random is not None
        loss = partial(self.loss, random=self._random) if self._asks_random else self.loss
        with self._global_random.used_by(actor.agent, [self.loss]):
            arrays, metrics = gradients_of(actor.agent, loss, batch)
        return Gradients(arrays, TrainStats.of(batch, metrics))

    def _seed(self, shard: Any) -> None:
        seed = int(shard.generator(int(Purpose.LEARNER)).integers(2**62)) if isinstance(shard, Shard) else 0
        self._random, self._global_random = torch.Generator().manual_seed(seed), GlobalRandom(seed)

    def state(self) -> Any:
        """Return the state of the loss and of its generators."""
        random = self._random.get_state().numpy().copy() if self._random is not None and self._asks_random else None
        global_random = self._global_random and self._global_random.state
        state = {"loss": state_of_loss(self.loss), "random": random, "global_random": global_random}
        return {name: value for name, value in state.items() if value is not None}

    def restore(self, state: Any) -> None:
        """Restore a state. Generators that were not used yet are seeded when they are."""
        restore_loss(self.loss, state.get("loss"))
        if "random" in state or "global_random" in state:
            self._seed(None)
            if "random" in state:
                self._random.set_state(torch.from_numpy(np.array(state["random"])))  # type: ignore[union-attr]
            self._global_random.state = state.get("global_random")  # type: ignore[union-attr]


class AverageGradients:
    """Average the gradients of a round, weighted by the number of steps."""

    def __call__(self, round: Sequence[Gradients]) -> Gradients:
        """Return the weighted mean."""
        stats = TrainStats.merge([part.stats for part in round])
        parts = [(part.stats.num_steps / stats.num_steps, part.arrays) for part in round]
        mean = {name: sum(weight * arrays[name] for weight, arrays in parts) for name in round[0].arrays}
        return Gradients({name: np.asarray(array, np.float32) for name, array in mean.items()}, stats)


class ApplyGradients(Stateful):
    """Take one gradient step with each item's gradients.

    Args:
        learner: the learner.
        optimiser: the optimiser by its name; by default Adam.
    """

    def __init__(self, learner: Learner, optimiser: str | None = None) -> None:
        self.learner, self.optimiser = learner, optimiser

    def __call__(self, gradients: Gradients, *, envelope: Envelope = injected) -> TrainStats:
        """Take the step, and return the stats."""
        begin, stats, lag = time.perf_counter(), gradients.stats, self.learner.lag_metrics(envelope.version)
        metrics = self.learner.apply(gradients.arrays, stats.num_steps, self.optimiser)
        return stats.add_metrics(metrics | lag, train=time.perf_counter() - begin)


class Explore(Stateful):
    """Set knobs of exploration, such as ε, by schedules over environment steps.

    Args:
        exploration: the knobs of the run.
        schedules: the schedule of each knob.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, exploration: Exploration, **schedules: Schedule) -> None:
        self.exploration, self.schedules, self.steps = exploration, schedules, 0
        exploration.check_knobs(schedules)

    def __call__(self, batch: Batch) -> Batch:
        """Count the steps of a batch, and return it."""
        self.steps += num_steps(batch)
        self.exploration.set(**{name: schedule(self.steps) for name, schedule in self.schedules.items()})
        return batch
