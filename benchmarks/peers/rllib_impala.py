"""RLlib's IMPALA on CartPole, with 16 environments in one runner, timed after start-up.

python rllib_impala.py [--seconds 60] [--seed 0]
"""

import argparse
import json
import time

from ray.rllib.algorithms.impala import IMPALAConfig


def main() -> None:
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = (
        IMPALAConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=16)
        .learners(num_learners=0)
        .training(lr=5e-4, vf_loss_coeff=0.05, entropy_coeff=0.0)
        .debugging(seed=options.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    algorithm.train()
    begin, first, result = time.perf_counter(), None, {}
    while time.perf_counter() - begin < options.seconds:
        result = algorithm.train()
        first = steps(result) if first is None else first
    seconds = time.perf_counter() - begin
    runners = result["env_runners"]
    report = {"steps": steps(result) - first, "seconds": seconds, "mean_return": runners.get("episode_return_mean")}
    algorithm.stop()
    print(json.dumps(report))


def steps(result: dict) -> float:
    """Return the number of environment steps."""
    return result["num_env_steps_sampled_lifetime"]


if __name__ == "__main__":
    main()
