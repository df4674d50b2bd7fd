"""sb3-contrib's RecurrentPPO on CartPole without velocities, with one LSTM for policy and critic, as in Raceway.

python sb3contrib_ppo.py [--steps N] [--seed 0] [--threads 1]
"""

import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TransformObservation
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

SETTINGS = {
    "n_steps": 64, "batch_size": 256, "n_epochs": 10, "gamma": 0.98, "gae_lambda": 0.9, "clip_range": 0.2,
    "learning_rate": lambda left: 1e-3 * left, "max_grad_norm": 0.5, "vf_coef": 0.5,
    "policy_kwargs": {"lstm_hidden_size": 64, "n_lstm_layers": 1, "shared_lstm": True, "enable_critic_lstm": False,
                      "net_arch": {"pi": [], "vf": []}},
}  # fmt: skip


def positions() -> gym.Env:
    """Return CartPole without the two velocities."""
    env = gym.make("CartPole-v1")
    space = env.observation_space
    seen = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)
    return TransformObservation(env, lambda obs: obs[[0, 2]], seen)


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = RecurrentPPO("MlpLstmPolicy", make_vec_env(positions, 16, seed=options.seed), seed=options.seed,
                         device="cpu", **SETTINGS)  # fmt: skip
    begin = time.perf_counter()
    model.learn(options.steps)
    seconds = time.perf_counter() - begin
    returns = [episode["r"] for episode in model.ep_info_buffer]
    print(json.dumps({"steps": model.num_timesteps, "seconds": seconds, "mean_return": float(np.mean(returns))}))


if __name__ == "__main__":
    main()
