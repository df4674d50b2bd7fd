"""Stable-Baselines3's PPO with image observations: the Zoo's settings for Atari games, timed after the first iteration.

python sb3_ppo_images.py --env ALE/Pong-v5 [--vector dummy|subproc] [--iterations 6] [--seed 0]
"""

import argparse
import json
import time

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

NUM_ENVS, NUM_STEPS = 8, 128


class MakeGame:
    """Makes a game, in another process too, where the games have to be registered first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, **kwargs: object) -> gymnasium.Env:
        import ale_py

        gymnasium.register_envs(ale_py)
        return gymnasium.make(self.name, **kwargs)


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    vector = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[options.vector]
    if options.env.startswith("ALE/"):
        # As in the Zoo: frames are skipped by the wrapper alone, and actions are never repeated at random.
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0}
        env = make_atari_env(MakeGame(options.env), NUM_ENVS, options.seed, env_kwargs=kwargs, vec_env_cls=vector)
        env = VecFrameStack(env, 4)
    else:
        env = make_vec_env(options.env, NUM_ENVS, options.seed, vec_env_cls=vector)
    model = PPO(
        "CnnPolicy", env, n_steps=NUM_STEPS, batch_size=NUM_ENVS * NUM_STEPS // 4, n_epochs=4, learning_rate=2.5e-4,
        clip_range=0.1, ent_coef=0.01, seed=options.seed, device="cpu",
    )  # fmt: skip
    model.learn(NUM_ENVS * NUM_STEPS)
    begin, steps = time.perf_counter(), NUM_ENVS * NUM_STEPS * options.iterations
    model.learn(steps, reset_num_timesteps=False)
    seconds = time.perf_counter() - begin
    env.close()
    print(json.dumps({"steps": steps, "seconds": seconds}))


if __name__ == "__main__":
    main()
