"""Two trainers in one environment, as one flow: PPO trains two of its three agents, DQN the third.

python examples/two_trainers/main.py [--steps 200000] [--engine inline|process|ray] [--seed 0] [--plan]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from raceway.runs.statistics import bootstrap_interval
from raceway.training.train_multi import MultiTraining

POLICIES = {"agent_0": "ppo", "agent_1": "ppo", "agent_2": "dqn"}
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": (
        "ppo",
        {"batch_steps": 4096, "num_epochs": 6, "num_minibatches": 8, "lr": 1e-3, "gamma": 0.95, "entropy_coef": 0.01},
    ),
    "dqn": (
        "dqn",
        {
            "lr": 5e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 2000, "steps_per_update": 8,
            "target_every": 200, "epsilon_steps": 60_000, "gamma": 0.95,
        },
    ),
}  # fmt: skip


def make_training(seed: int = 0, engine: str = "inline") -> MultiTraining:
    """Return the training, on sixteen environments of three agents each."""
    settings: dict[str, Any] = {"env_kwargs": {"max_cycles": 25}, "num_envs": 16, "fragment_steps": 25, "seed": seed}
    return MultiTraining("mpe2.simple_spread_v3", POLICIES, TRAINERS, engine=engine, **settings)


def main() -> None:
    """Train both policies, and print their mean returns over the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of PPO's agents (%(default)s)")
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="inline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan", action="store_true", help="print the plan without training")
    options = parser.parse_args()
    if options.steps < 1 or options.seed < 0:
        parser.error(f"--steps must be at least 1 and --seed at least 0, not {options.steps} and {options.seed}")
    training = make_training(options.seed, options.engine)
    if options.plan:
        with training.open_flow() as (flow, _):
            print(flow.explain())
        return
    result = training.run(total_timesteps=options.steps)
    for name, returns in result.returns.items():
        parts = np.array_split(np.array(returns), 8)
        print(f"{name}: mean return " + " ".join(f"{part.mean():.1f}" for part in parts))
        first, last = (bootstrap_interval(part, lambda x: float(x.mean())) for part in (parts[0], parts[-1]))
        print(f"  the first eighth {first[0]:.2f} to {first[1]:.2f}, the last {last[0]:.2f} to {last[1]:.2f} (95 %)")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
