"""Sample Factory's APPO on CartPole, with two workers.

python sf_appo.py [--seconds 60] [--seed 0]
"""

import argparse
import json
import sys
import tempfile
import time

import gymnasium as gym
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


def make(name, cfg, env_config, render_mode=None):
    """Make the environment."""
    return gym.make(name, render_mode=render_mode)


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    register_env("CartPole-v1", make)
    arguments = [
        "--algo=APPO", "--env=CartPole-v1", "--experiment=cartpole", f"--train_dir={tempfile.mkdtemp()}",
        "--device=cpu", "--num_workers=2", "--num_envs_per_worker=16", "--rollout=32", "--batch_size=1024",
        "--use_rnn=False", "--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh", "--learning_rate=1e-3",
        f"--train_for_seconds={options.seconds:.0f}", f"--seed={options.seed}", "--save_every_sec=100000",
        "--reward_scale=0.1", "--gamma=0.98",
    ]  # fmt: skip
    sf_parser, _ = parse_sf_args(arguments)
    _, runner = make_runner(parse_full_cfg(sf_parser, arguments))
    runner.init()
    begin = time.perf_counter()
    runner.run()
    seconds = time.perf_counter() - begin
    steps = sum(runner.env_steps.values())
    print(json.dumps({"steps": steps, "seconds": min(seconds, options.seconds), "mean_return": None}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
