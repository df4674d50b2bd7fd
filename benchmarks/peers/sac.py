"""SAC of Stable-Baselines3, or of SBX (JAX), with one gradient step per environment step, timed after its warm-up.

python sac.py --library sb3|sbx [--env HalfCheetah-v5] [--warm-up 500] [--steps 1500] [--seed 0]
"""

import argparse
import importlib
import json
import time

MODULES = {"sb3": "stable_baselines3", "sbx": "sbx"}


def main() -> None:
    """Train and print the result. SBX compiles during the warm-up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=list(MODULES), required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    library = importlib.import_module(MODULES[options.library])
    settings = {
        "learning_rate": 3e-4, "batch_size": 256, "tau": 0.005, "gamma": 0.99, "train_freq": 1, "gradient_steps": 1,
        "learning_starts": 100, "policy_kwargs": {"net_arch": [256, 256]},
    }  # fmt: skip
    model = library.SAC("MlpPolicy", options.env, seed=options.seed, device="cpu", **settings)
    model.learn(options.warm_up)
    begin = time.perf_counter()
    model.learn(options.steps, reset_num_timesteps=False)
    print(json.dumps({"steps": options.steps, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
