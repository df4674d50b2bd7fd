"""Soft Q-learning with prioritised replay in two shards: collecting, storing and training as one flow.

Actions are sampled from the softmax of the Q-values, so the policy's logits are the Q-values. The value of a state is
then the log-sum-exp over its actions: Haarnoja et al. 2017, https://arxiv.org/abs/1702.08165.

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

NO_EPISODES = np.empty(0)


class TrainSoftQ:
    """One gradient step on the TD error to reward + discount · log-sum-exp of the target network's Q-values."""

    def __init__(self, learner: Learner, target_update_every: int = 50) -> None:
        self.learner, self.target = learner, copy.deepcopy(learner.policy)
        self.target_update_every, self.num_updates = target_update_every, 0

    def __call__(self, batch: Batch) -> TrainStats:
        """Train on a sampled batch, and return the absolute TD errors as its new priorities."""
        if self.num_updates % self.target_update_every == 0:
            self.target.load(self.learner.policy.weights())
        self.num_updates += 1
        with torch.no_grad():
            next_value = self.target(as_tensor(batch["next_obs"]), {})[0].logsumexp(-1)
            target = as_tensor(batch["reward"]) + as_tensor(batch["discount"]) * next_value
        q_values = self.learner.policy(as_tensor(batch["obs"]), {})[0]
        td_errors = q_values.gather(-1, as_tensor(batch["action"])[:, None]).squeeze(-1) - target
        losses = as_tensor(batch["weight"]) * torch.nn.functional.smooth_l1_loss(
            td_errors, torch.zeros_like(td_errors), reduction="none"
        )
        self.learner.step([losses.mean])
        priorities = batch["index"], td_errors.detach().abs().numpy()
        return TrainStats(num_steps=0, returns=NO_EPISODES, lengths=NO_EPISODES, priorities=priorities)


def plan(workers: list[Any], shards: list[Any], rollouts: RolloutSettings, learner: Learner) -> Iter[Any]:
    """Return the flow: it yields stored batches and the metrics of gradient steps."""
    store = (
        parallel_rollouts(workers, rollouts)
        .for_each(Transitions(gamma=0.97, n=3))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
    )
    train = (
        parallel_replay(shards, synchronous=True)
        .for_each(TrainSoftQ(learner))
        .for_each(UpdatePriorities())
        .for_each(UpdateWeights(learner, workers))
    )
    limits = replay_limits(samples_per_insert=16, batch_size=256, min_size=1000, ahead=512)
    return union(store=store, replay=train, limits=limits)


def main() -> None:
    """Train on CartPole, and print the mean return."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps (%(default)s)")
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
    learner, returns, num_steps, last_printed = Learner(policy, lr=3e-3), deque[float](maxlen=100), 0, 0
    with worker_compute_settings(), make_engine(options.engine) as engine:
        workers = [engine.spawn(RolloutWorker, (rollouts,), name=f"worker-{number}") for number in range(2)]
        shards = [engine.spawn(ReplayShard, (replay, number), name=f"replay-{number}") for number in range(2)]
        UpdateWeights(learner, workers).send(workers)
        for item in plan(workers, shards, rollouts, learner):
            if isinstance(item, TrainStats):
                continue
            num_steps += len(item["reward"])
            returns.extend(item["episode_return"].tolist())
            if num_steps >= last_printed + 5000 or num_steps >= options.steps:
                last_printed = num_steps
                print(f"{num_steps:6d} steps | mean return of the last {len(returns)} episodes {np.mean(returns):6.1f}")
            if num_steps >= options.steps:
                break
    print(f"weights {policy.sha256()[:16]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
