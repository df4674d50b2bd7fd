"""Learning from replay with Stable-Baselines3, its contributions, or SBX (JAX): timed after a warm-up, or until solved.

python offpolicy.py --library sb3|sb3contrib|sbx --algorithm SAC [--env HalfCheetah-v5] [--num-envs 1] [--settings JSON]
    [--warm-up 500] [--steps 1500] [--seed 0] [--stop-eval-return X --eval-every N --eval-episodes N] [--evaluate N]

Settings are arguments of the algorithm; `net_arch` among them is that of its policy, and `noise` the standard deviation
of the action noise. Prints the environment steps and seconds of training after the warm-up, in which SBX compiles, and
with --evaluate the mean return of so many deterministic episodes.
"""

import argparse
import importlib
import json
import time

MODULES = {"sb3": "stable_baselines3", "sb3contrib": "sb3_contrib", "sbx": "sbx"}


def make_model(options):
    """Return the untrained model."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    settings = json.loads(options.settings)
    if "net_arch" in settings:
        settings["policy_kwargs"] = {"net_arch": settings.pop("net_arch")}
    if "noise" in settings:
        num = gymnasium.make(options.env).action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(num), np.full(num, settings.pop("noise")))
    algorithm = getattr(importlib.import_module(MODULES[options.library]), options.algorithm)
    env = make_vec_env(options.env, options.num_envs)
    return algorithm("MlpPolicy", env, seed=options.seed, device="cpu", **settings)


def stop_when_solved(options):
    """Return a callback that stops when an evaluation has the mean return; it has environments of its own."""
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env

    stop = StopTrainingOnRewardThreshold(options.stop_eval_return, verbose=0)
    return EvalCallback(
        make_vec_env(options.env, seed=options.seed + 1000), callback_on_new_best=stop, verbose=0,
        n_eval_episodes=options.eval_episodes, eval_freq=options.eval_every,
    )  # fmt: skip


def main():
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=list(MODULES), required=True)
    parser.add_argument("--algorithm", required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=1)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-eval-return", type=float)
    parser.add_argument("--eval-every", type=int, default=1000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--evaluate", type=int)
    options = parser.parse_args()
    model = make_model(options)
    if options.warm_up:
        model.learn(options.warm_up)
    callback = None if options.stop_eval_return is None else stop_when_solved(options)
    begin, before = time.perf_counter(), model.num_timesteps
    model.learn(options.steps, callback=callback, reset_num_timesteps=False)
    result = {"steps": model.num_timesteps - before, "seconds": time.perf_counter() - begin}
    if callback is not None:
        result["mean_return"] = callback.best_mean_reward
    if options.evaluate:
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy

        env = make_vec_env(options.env, seed=options.seed + 2000)
        result["mean_return"] = evaluate_policy(model, env, options.evaluate)[0]
    print(json.dumps({name: float(value) for name, value in result.items()}))


if __name__ == "__main__":
    main()
