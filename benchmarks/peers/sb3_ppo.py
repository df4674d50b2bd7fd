"""Stable-Baselines3's PPO, with the Zoo's settings for CartPole, or CleanRL's for MuJoCo.

python sb3_ppo.py --env CartPole-v1 [--steps N] [--stop-return R] [--seed 0]
"""

import argparse
import json
import time

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


class StopAt(BaseCallback):
    """Ends training when the mean return of the last hundred episodes is high enough."""

    def __init__(self, mean: float | None) -> None:
        super().__init__()
        self.mean = mean

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return self.mean is None or len(returns) < 100 or float(np.mean(returns)) < self.mean


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--stop-return", type=float)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.env.startswith("CartPole"):
        env = make_vec_env(options.env, 8, seed=options.seed)
        settings = {
            "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
            "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
        }  # fmt: skip
    else:
        env = VecNormalize(make_vec_env(options.env, 1, seed=options.seed))
        settings = {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": lambda left: 3e-4 * left}
    model = PPO("MlpPolicy", env, seed=options.seed, device="cpu", **settings)
    begin = time.perf_counter()
    model.learn(options.steps, callback=StopAt(options.stop_return))
    seconds = time.perf_counter() - begin
    returns = [episode["r"] for episode in model.ep_info_buffer]
    print(json.dumps({"steps": model.num_timesteps, "seconds": seconds, "mean_return": float(np.mean(returns))}))


if __name__ == "__main__":
    main()
