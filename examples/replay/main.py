"""Soft Q-learning with prioritised replay in two shards: collecting, storing and training as one flow.

Actions are sampled from the softmax of the Q-values, so the policy's logits are the Q-values. The value of a state is
then the log-sum-exp over its actions: Haarnoja et al. 2017, https://arxiv.org/abs/1702.08165.

python examples/replay/main.py [--engine inline|process|ray] [--steps 30000] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from typing import Any

import numpy as np
import torch
from torch.nn.functional import smooth_l1_loss

from raceway.agents import Agent, Spaces, make_policy
from raceway.engine import make_engine
from raceway.envs import EnvSettings, make_slots
from raceway.flow import Iter, union
from raceway.machine import worker_compute_settings
from raceway.ops import (
    ConcatBatches,
    Learner,
    LossOutput,
    ReplaySettings,
    ReplayShard,
    RolloutSettings,
    RolloutWorker,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
    UpdateWeights,
    parallel_replay,
    parallel_rollouts,
    replay_limits,
)
from raceway.rl import Batch

HIDDEN = (128,)
"""Widths of the hidden layers."""


def make_agent(spaces: Spaces) -> Agent:
    """Return an agent whose policy has the Q-values as its logits."""
    return Agent(make_policy(*spaces, "mlp", HIDDEN))


def loss(agent: Agent, batch: Batch) -> LossOutput:
    """Return the Huber loss of the TD error to reward + discount · log-sum-exp of the target network's Q-values."""
    with torch.no_grad():
        next_value = agent.target.actor(batch["next_obs"], {})[0].logsumexp(-1)
        target = batch["reward"] + batch["discount"] * next_value
    q_values = agent.actor(batch["obs"], {})[0].gather(-1, batch["action"][:, None]).squeeze(-1)
    losses = batch["weight"] * smooth_l1_loss(q_values, target, reduction="none")
    return LossOutput(losses.mean(), priorities=(q_values - target).abs())


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
        .for_each(TrainOneStep(learner, loss, targets=Target(every=50)))
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
    rollouts = RolloutSettings(
        env=env, agent=make_agent, num_shards=2, slots_per_shard=8, seed=options.seed, fragment_steps=16
    )
    replay = ReplaySettings(capacity=20_000, num_shards=2, batch_size=256, alpha=0.6, seed=options.seed)
    slots = make_slots(env, 1)
    agent = rollouts.make_agent(Spaces(slots.observation_space, slots.action_space), options.seed)
    slots.close()
    learner, returns, num_steps, last_printed = Learner(agent, lr=3e-3), deque[float](maxlen=100), 0, 0
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
    print(f"weights {agent.sha256()[:16]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
