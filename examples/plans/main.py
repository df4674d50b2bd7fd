"""Five algorithms as flows, with stand-ins for the actors: A3C, A2C, Ape-X, two trainers in one environment, MAML.

python examples/plans/main.py            # run each briefly and print its last result
python examples/plans/main.py --print    # print the plans
python examples/plans/main.py --svg DIR  # draw them
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.flow import Envelope, Iter, create, injected, send_msg, union, union_async

Rollout = dict[str, Any]
Stats = dict[str, float]


class RolloutWorker:
    """A stand-in for a rollout worker: its rollouts have a length and a return, and no data."""

    def __init__(self) -> None:
        self.weights = 0.0
        self.adapted = 0

    def sample(self) -> Rollout:
        return {"steps": 100, "policies": ("ppo", "dqn"), "return": self.weights + self.adapted}

    def set_weights(self, weights: float) -> None:
        self.weights, self.adapted = weights, 0

    def adapt(self) -> None:
        self.adapted += 1


class ReplayBuffer:
    """A stand-in for a replay buffer: it only counts."""

    def __init__(self) -> None:
        self.size = 0
        self.num_updates = 0

    def add(self, rollout: Rollout) -> None:
        self.size += rollout["steps"]

    def sample(self) -> Rollout:
        return {"steps": min(self.size, 32), "policies": ("dqn",)}

    def update_priorities(self, batch: Rollout) -> None:
        self.num_updates += 1


# Operators, each of which processes one item. Those that send messages hold the handles of the receivers.


def compute_gradients(rollout: Rollout, *, actor: RolloutWorker = injected) -> float:
    """Compute a gradient on the worker, which has the rollout and the weights."""
    return 0.1 * rollout["steps"] / (1 + actor.weights)


class ApplyGradients:
    """Apply a gradient, and send the new weights to the worker that computed it."""

    def __init__(self, workers: list[Actor]) -> None:
        self.workers = workers  # possible receivers, so that `explain` draws the messages
        self.weights, self.version = 0.0, 0

    def __call__(self, gradient: float, *, envelope: Envelope = injected) -> Stats:
        self.weights += gradient
        self.version += 1
        for source in envelope.sources:
            send_msg(source, "set_weights", self.weights, version=self.version)
        return {"steps": 100, "weights": self.weights}


class ConcatBatches:
    """Hold rollouts back until they have `num_steps` steps together."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.held: list[Rollout] = []

    def __call__(self, rollout: Rollout) -> list[Rollout]:
        self.held.append(rollout)
        steps = sum(rollout["steps"] for rollout in self.held)
        if steps < self.num_steps:
            return []
        self.held = []
        return [{"steps": steps}]


class TrainOneStep:
    """Train on a batch, and send the new weights to all workers."""

    def __init__(self, workers: list[Actor]) -> None:
        self.workers = workers
        self.weights, self.version = 0.0, 0

    def __call__(self, batch: Rollout) -> Rollout:
        self.weights += 0.01 * batch["steps"]
        self.version += 1
        for worker in self.workers:
            send_msg(worker, "set_weights", self.weights, version=self.version)
        return {"steps": batch["steps"], "weights": self.weights}


class StoreToReplay:
    """Send every rollout to the next replay buffer in turn."""

    def __init__(self, buffers: list[Actor]) -> None:
        self.buffers = buffers
        self.count = 0

    def __call__(self, rollout: Rollout) -> Rollout:
        send_msg(self.buffers[self.count % len(self.buffers)], "add", rollout)
        self.count += 1
        return rollout


class UpdateWeights:
    """Send the learner's weights to the worker whose rollout was stored."""

    def __init__(self, learner: TrainOneStep) -> None:
        self.learner = learner

    def __call__(self, rollout: Rollout, *, envelope: Envelope = injected) -> Rollout:
        for source in envelope.sources:
            send_msg(source, "set_weights", self.learner.weights, version=self.learner.version)
        return rollout


class UpdatePriorities:
    """Send new priorities to the replay buffers."""

    def __init__(self, buffers: list[Actor]) -> None:
        self.buffers = buffers

    def __call__(self, batch: Rollout) -> Rollout:
        for buffer in self.buffers:
            send_msg(buffer, "update_priorities", {"steps": batch["steps"]})
        return batch


class Select:
    """Keep the rollouts of one policy."""

    def __init__(self, policy: str) -> None:
        self.policy = policy

    def __call__(self, rollout: Rollout) -> bool:
        return self.policy in rollout["policies"]


class InnerAdapt:
    """Adapt the workers after every round of rollouts; return all rounds together after the last."""

    def __init__(self, workers: list[Actor], steps: int) -> None:
        self.workers = workers
        self.steps = steps
        self.rounds: list[list[Rollout]] = []

    def __call__(self, rollouts: list[Rollout]) -> list[Rollout]:
        self.rounds.append(rollouts)
        if len(self.rounds) <= self.steps:
            for worker in self.workers:
                send_msg(worker, "adapt")
            return []
        steps = sum(rollout["steps"] for rollouts in self.rounds for rollout in rollouts)
        self.rounds = []
        return [{"steps": steps}]


class MetaUpdate(TrainOneStep):
    """Update the meta-policy, which adaptation starts from."""


class ReportMetrics:
    """Sum the steps trained on."""

    def __init__(self) -> None:
        self.steps = 0.0

    def __call__(self, result: Any) -> Stats:
        self.steps += result.get("steps", 0)
        return {"steps": self.steps, "weights": result.get("weights", 0.0)}


# The plans.


def a3c(workers: list[Actor]) -> Iter[Stats]:
    """Compute gradients on the workers, apply them as they arrive, and send new weights to the worker."""
    gradients = create(workers, "sample").for_each(compute_gradients).gather_async()
    return gradients.for_each(ApplyGradients(workers)).for_each(ReportMetrics())


def a2c(workers: list[Actor]) -> Iter[Stats]:
    """Gather rollouts synchronously, and make one update on all of them."""
    rollouts = create(workers, "sample").gather_sync().flatten()
    return rollouts.combine(ConcatBatches(800)).for_each(TrainOneStep(workers)).for_each(ReportMetrics())


def apex(workers: list[Actor], buffers: list[Actor]) -> Iter[Stats]:
    """Store and replay side by side, with the learner on a dedicated thread."""
    learner = TrainOneStep(workers)
    rollouts = create(workers, "sample").gather_async(num_async=2)
    store = rollouts.for_each(StoreToReplay(buffers)).for_each(UpdateWeights(learner))
    replayed = create(buffers, "sample").gather_async(num_async=4)
    replay = replayed.for_each(learner, on="thread").for_each(UpdatePriorities(buffers))
    return union_async(store=store, replay=replay, emit=["replay"]).for_each(ReportMetrics())


def two_trainers(workers: list[Actor], buffers: list[Actor]) -> Iter[Stats]:
    """Train PPO for some policies and DQN for others, on the same rollouts."""
    for_ppo, for_dqn = create(workers, "sample").gather_sync().flatten().split("ppo", "dqn")
    ppo = for_ppo.filter(Select("ppo")).combine(ConcatBatches(800)).for_each(TrainOneStep(workers))
    store = for_dqn.filter(Select("dqn")).for_each(StoreToReplay(buffers))
    replay = create(buffers, "sample").gather_async().for_each(TrainOneStep(workers))
    dqn = union(store=store, replay=replay.for_each(UpdatePriorities(buffers)), emit=["replay"])
    return union_async(ppo=ppo, dqn=dqn).for_each(ReportMetrics())


def maml(workers: list[Actor]) -> Iter[Stats]:
    """Alternate rollouts and inner adaptation, then update the meta-policy."""
    rollouts = create(workers, "sample").gather_sync()
    return rollouts.combine(InnerAdapt(workers, steps=5)).for_each(MetaUpdate(workers)).for_each(ReportMetrics())


def plans(workers: list[Actor], buffers: list[Actor]) -> dict[str, Iter[Stats]]:
    """Return all plans by name."""
    return {
        "a3c": a3c(workers),
        "a2c": a2c(workers),
        "apex": apex(workers, buffers),
        "two_trainers": two_trainers(workers, buffers),
        "maml": maml(workers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Five algorithms as flows.")
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--items", type=int, default=50, help="number of results of each plan to wait for")
    parser.add_argument("--print", action="store_true", help="print the plans without running them")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw the plans without running them")
    arguments = parser.parse_args()
    with make_engine(arguments.engine) as engine:
        workers = [engine.spawn(RolloutWorker, name=f"worker-{number}") for number in range(4)]
        buffers = [engine.spawn(ReplayBuffer, name=f"replay-{number}") for number in range(2)]
        for name, flow in plans(workers, buffers).items():
            if arguments.print:
                print(f"{name}\n{flow}\n")
            elif arguments.svg:
                arguments.svg.mkdir(parents=True, exist_ok=True)
                flow.explain("svg", path=arguments.svg / f"{name}.svg")
            else:
                print(f"{name:<13}{list(flow.take(arguments.items))[-1]}")


if __name__ == "__main__":
    main()
