"""Two trainers in one environment, as one flow: PPO trains two of its three agents, DQN the third.

python examples/two_trainers/main.py [--steps 300000] [--engine inline|process|ray] [--seed 0] [--run-dir DIR] [--plan]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import raceway
from raceway.algorithms import find_algorithm
from raceway.runs.statistics import bootstrap_interval
from raceway.training.train import make_training

POLICIES: dict[str, dict[str, Any]] = {
    "ppo": {
        "agents": ["agent_0", "agent_1"], "algorithm": "ppo", "batch_steps": 4096, "num_epochs": 6,
        "num_minibatches": 8, "lr": 1e-3, "lr_end": None, "gamma": 0.95, "entropy_coef": 0.01,
    },
    "dqn": {
        "agents": ["agent_2"], "algorithm": "dqn", "lr": 5e-4, "batch_size": 128, "buffer_size": 50_000,
        "learning_starts": 2000, "steps_per_update": 8, "target_every": 200, "epsilon_steps": 60_000, "gamma": 0.95,
    },
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "env": "pettingzoo:mpe2.simple_spread_v3", "env_kwargs": {"max_cycles": 25}, "num_envs": 16, "num_shards": 1,
    "fragment_steps": 25,
}  # fmt: skip


class PolicyReturns(raceway.Callback):
    """Collects the mean return of every iteration's episodes, by policy."""

    def __init__(self) -> None:
        self.means: dict[str, list[float]] = {name: [] for name in POLICIES}

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
        """Collect the means of the iteration."""
        for name, means in self.means.items():
            if (mean := metrics.get(f"rollout/{name}/iteration_rew_mean")) is not None:
                means.append(mean)


def train(steps: int, **settings: Any) -> dict[str, np.ndarray]:
    """Train for some steps of all agents, and return the mean returns of iterations by policy."""
    returns = PolicyReturns()
    options = {**SETTINGS, "callbacks": [returns], "policies": POLICIES, "total_timesteps": steps, "progress": False}
    raceway.train("ppo", **options, **settings)
    return {name: np.array(means) for name, means in returns.means.items()}


def main() -> None:
    """Train both policies, and print their mean returns over the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300_000, help="steps of all agents (%(default)s)")
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="inline")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run-dir", help="run directory (below runs/)")
    parser.add_argument("--plan", action="store_true", help="print the plan without training")
    options = parser.parse_args()
    if options.steps < 1 or options.seed < 0:
        parser.error(f"--steps must be at least 1 and --seed at least 0, not {options.steps} and {options.seed}")
    if options.plan:
        algorithm = find_algorithm("ppo")
        with make_training(algorithm, algorithm.settings(**SETTINGS), policies=POLICIES).open_flow(run=False) as flow:
            print(flow.explain())
        return
    returns = train(options.steps, engine=options.engine, seed=options.seed, run_dir=options.run_dir)
    for name, means in returns.items():
        parts = np.array_split(means, min(8, len(means)))
        print(f"{name}: mean return " + " ".join(f"{part.mean():.1f}" for part in parts))
        first, last = (bootstrap_interval(part, lambda x: float(x.mean())) for part in (parts[0], parts[-1]))
        print(f"  the first eighth {first[0]:.2f} to {first[1]:.2f}, the last {last[0]:.2f} to {last[1]:.2f} (95 %)")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
