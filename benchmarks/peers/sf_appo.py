"""Sample Factory's APPO on CartPole, with two workers, from its first training step on.

python sf_appo.py [--steps 200000] [--seed 0]
"""

import argparse
import json
import sys
import tempfile
import time

import gymnasium as gym
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


def make(name, cfg, env_config, render_mode=None):
    """Make the environment."""
    return gym.make(name, render_mode=render_mode)


class Clock(AlgoObserver):
    """Records the time and the environment steps of every training step."""

    def __init__(self):
        self.marks = []

    def on_training_step(self, runner, training_iteration_since_resume):
        """Record one training step."""
        self.marks.append((time.perf_counter(), sum(runner.env_steps.values())))


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    register_env("CartPole-v1", make)
    arguments = [
        "--algo=APPO", "--env=CartPole-v1", "--experiment=cartpole", f"--train_dir={tempfile.mkdtemp()}",
        "--device=cpu", "--num_workers=2", "--num_envs_per_worker=16", "--rollout=32", "--batch_size=1024",
        "--use_rnn=False", "--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh", "--learning_rate=1e-3",
        f"--train_for_env_steps={options.steps}", f"--seed={options.seed}", "--save_every_sec=100000",
        "--reward_scale=0.1", "--gamma=0.98",
    ]  # fmt: skip
    sf_parser, _ = parse_sf_args(arguments)
    _, runner = make_runner(parse_full_cfg(sf_parser, arguments))
    clock = Clock()
    runner.register_observer(clock)
    runner.init()
    runner.run()
    started = [mark for mark in clock.marks if mark[1] > 0]
    (begin, first), (end, last) = started[0], started[-1]
    returns = [float(np.mean(values)) for values in runner.policy_avg_stats.get("reward", []) if len(values)]
    print(json.dumps({"steps": last - first, "seconds": end - begin, "mean_return": returns[-1] if returns else None}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
