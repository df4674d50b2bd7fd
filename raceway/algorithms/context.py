"""The context of a plan: the learner, the workers and their engine."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError
from raceway.flow import Iter
from raceway.learner.exploration import Exploration
from raceway.learner.members import Member, Members
from raceway.ops import (
    AddProgress,
    AllReduce,
    Learner,
    Loss,
    ReplaySettings,
    ReplayShard,
    UpdateWeights,
    parallel_replay,
)
from raceway.rl import Batch


class LearnerHost:
    """An actor whose only purpose is to host a learner."""


@dataclass(frozen=True)
class Context:
    """The learner, the workers and the engine of a plan."""

    learner: Learner
    workers: Sequence[Actor]
    """The workers that act, which are sent weights; none if the plan learns from a dataset."""
    engine: Engine
    exploration: Exploration
    """Knobs of exploration, which workers get beside the weights."""
    policy: str | None = None
    """Name of the policy that the plan trains, if workers have several."""
    failure_policy: Mapping[str, Any] = field(default_factory=dict)
    """Failure policy of the workers, as arguments of `on_failure`."""

    def place(self, on: str, queue: int) -> dict[str, Any]:
        """Return the arguments of `for_each` that run training on the `driver`, a `thread` or a new `actor`."""
        if on == "actor":
            name = "learner" if self.policy is None else f"{self.policy}-learner"
            return {"on": self.engine.spawn(LearnerHost, name=name), "queue": queue}
        return {"on": on, "queue": queue}

    def weights(self, to: str = "all", every: int = 1) -> UpdateWeights:
        """Return the operator that sends weights to the workers; see `UpdateWeights`."""
        return UpdateWeights(self.learner, self.workers, to, every, self.policy, self.exploration)

    def members(self, cfg: Any, loss: Loss) -> Members | None:
        """Start the `cfg.num_learners` actors that compute the gradients of a loss, unless it is 1; see `Members`."""
        if cfg.num_learners == 1:
            return None
        if getattr(cfg, "learner_on", "driver") == "actor":
            raise ConfigError(
                f"num_learners {cfg.num_learners} has the gradients computed by actors, which a learner on an actor "
                "cannot call. Set learner_on to driver or thread."
            )
        arguments = cfg.learner, copy.deepcopy(self.learner.agent).to("cpu"), loss
        resources = {"gpus": 1} if self.learner.device.startswith("cuda") else None
        prefix = "" if self.policy is None else f"{self.policy}-"
        actors = [
            self.engine.spawn(Member, arguments, name=f"{prefix}learner-{index}", resources=resources)
            for index in range(cfg.num_learners)
        ]
        return Members(actors, loss, self.failure_policy.get("deadline"))

    def all_reduce(self) -> AllReduce:
        """Return the operator that reduces the gradients of all shards; see `AllReduce`."""
        if self.policy is not None:
            raise ConfigError(
                f"the policy {self.policy} cannot be trained on the workers, which several policies share. Use ppo, or "
                "an environment with one agent."
            )
        return AllReduce(self.weights())

    def samples(self, shards: Sequence[Actor], *, synchronous: bool = False) -> Iter[Batch]:
        """Return the stream of samples from replay (see `parallel_replay`), with the progress of the run in each."""
        return parallel_replay(shards, synchronous=synchronous).for_each(AddProgress(self.learner))

    def replay(self, settings: ReplaySettings, row_steps: int = 1) -> list[Actor]:
        """Start the replay actors, one per shard. The settings count steps, of which a row has `row_steps`."""
        settings = settings.with_rows_of(row_steps)
        name = "replay" if self.policy is None else f"{self.policy}-replay"
        indices = range(settings.num_shards)
        return [self.engine.spawn(ReplayShard, (settings, index), name=f"{name}-{index}") for index in indices]
