"""Soft Q-learning with prioritised replay in two shards: playing, storing and training as one flow.

Actions are drawn from the softmax of their values, so the policy's logits are the values themselves. The value of a
state is then the soft maximum over its actions: Haarnoja et al. 2017, https://arxiv.org/abs/1702.08165.

python examples/replay/main.py [--engine inline|process|ray] [--steps 30000] [--seed 0]
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import deque
from typing import Any

import numpy as np
import torch

from raceway.agents import as_tensor, make_policy
from raceway.engine import make_engine
from raceway.envs import EnvSettings, make_slots
from raceway.flow import Iter, union
from raceway.machine import worker_compute_settings
from raceway.ops import (
    ConcatBatches,
    Learner,
    ReplaySettings,
    ReplayShard,
    RolloutSettings,
    RolloutWorker,
    StoreToReplay,
    TrainStats,
    Transitions,
    UpdatePriorities,
    UpdateWeights,
    parallel_replay,
    parallel_rollouts,
    replay_limits,
)
from raceway.rl import Batch

NONE = np.empty(0)


class TrainValues:
    """One step towards reward + discount · soft maximum of the values that followed, which an older network gives."""

    def __init__(self, learner: Learner, update_target_every: int = 50) -> None:
        self.learner, self.target = learner, copy.deepcopy(learner.policy)
        self.every, self.steps = update_target_every, 0

    def __call__(self, batch: Batch) -> TrainStats:
        """Train on a batch of replay, and say how far its values were off."""
        if self.steps % self.every == 0:
            self.target.load(self.learner.policy.weights())
        self.steps += 1
        with torch.no_grad():
            later = self.target(as_tensor(batch["next_obs"]), {})[0].logsumexp(-1)
            wanted = as_tensor(batch["reward"]) + as_tensor(batch["discount"]) * later
        values = self.learner.policy(as_tensor(batch["obs"]), {})[0]
        errors = values.gather(-1, as_tensor(batch["action"])[:, None]).squeeze(-1) - wanted
        losses = as_tensor(batch["weight"]) * torch.nn.functional.smooth_l1_loss(
            errors, torch.zeros_like(errors), reduction="none"
        )
        self.learner.step([losses.mean])
        priorities = batch["index"], errors.detach().abs().numpy()
        return TrainStats(num_steps=0, returns=NONE, lengths=NONE, priorities=priorities)


def plan(workers: list[Any], shards: list[Any], rollouts: RolloutSettings, learner: Learner) -> Iter[Any]:
    """Return the flow: batches as they are stored, and figures of training, in turn."""
    store = (
        parallel_rollouts(workers, rollouts)
        .for_each(Transitions(gamma=0.97, n=3))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
    )
    train = (
        parallel_replay(shards, synchronous=True)
        .for_each(TrainValues(learner))
        .for_each(UpdatePriorities())
        .for_each(UpdateWeights(learner, workers))
    )
    limits = replay_limits(samples_per_insert=16, batch_size=256, min_size=1000, ahead=512)
    return union(store=store, replay=train, limits=limits)


def main() -> None:
    """Train on CartPole, and say how the returns grow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--steps", type=int, default=30_000, help="steps of environments (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 1 or options.seed < 0:
        parser.error(f"--steps must be at least 1 and --seed at least 0, not {options.steps} and {options.seed}")
    env = EnvSettings("cartpole").resolved()
    rollouts = RolloutSettings(env=env, num_shards=2, slots_per_shard=8, seed=options.seed, fragment_steps=16)
    replay = ReplaySettings(capacity=20_000, num_shards=2, batch_size=256, alpha=0.6, seed=options.seed)
    slots = make_slots(env, 1)
    policy = make_policy(slots.observation_space, slots.action_space, "mlp", rollouts.hidden, seed=options.seed)
    slots.close()
    learner, returns, steps, shown = Learner(policy, lr=3e-3), deque[float](maxlen=100), 0, 0
    with worker_compute_settings(), make_engine(options.engine) as engine:
        workers = [engine.spawn(RolloutWorker, (rollouts,), name=f"worker-{number}") for number in range(2)]
        shards = [engine.spawn(ReplayShard, (replay, number), name=f"replay-{number}") for number in range(2)]
        UpdateWeights(learner, workers).send(workers)
        for item in plan(workers, shards, rollouts, learner):
            if isinstance(item, TrainStats):
                continue
            steps += len(item["reward"])
            returns.extend(item["episode_return"].tolist())
            if steps >= shown + 5000 or steps >= options.steps:
                shown = steps
                print(f"{steps:6d} steps | mean return of the last {len(returns)} episodes {np.mean(returns):6.1f}")
            if steps >= options.steps:
                break
    print(f"weights {policy.sha256()[:16]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
