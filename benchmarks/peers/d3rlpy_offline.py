"""Learning from a dataset with d3rlpy: timed after a warm-up.

python d3rlpy_offline.py --algorithm cql|iql --rows FILE.npz [--settings JSON] [--warm-up 100] [--updates 400]
    [--seed 0]

FILE.npz has obs, action, reward, terminated and truncated of consecutive episodes; actions are in [-1, 1]. Prints the
updates and seconds after the warm-up.
"""

import argparse
import json
import time

import numpy as np


def make_dataset(path):
    """Return the rows as a dataset."""
    import d3rlpy

    rows = np.load(path)
    return d3rlpy.dataset.MDPDataset(
        rows["obs"], rows["action"], rows["reward"][:, None], rows["terminated"].astype(np.float32),
        timeouts=rows["truncated"].astype(np.float32), action_space=d3rlpy.ActionSpace.CONTINUOUS,
    )  # fmt: skip


def make_algorithm(options):
    """Return the untrained algorithm."""
    import d3rlpy

    settings = json.loads(options.settings)
    encoder = d3rlpy.models.VectorEncoderFactory(settings.pop("hidden"))
    encoders = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    if options.algorithm == "iql":
        return d3rlpy.algos.IQLConfig(**encoders, value_encoder_factory=encoder, **settings).create(device="cpu")
    return d3rlpy.algos.CQLConfig(**encoders, **settings).create(device="cpu")


def main():
    """Train and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=["cql", "iql"], required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import d3rlpy

    d3rlpy.seed(options.seed)
    times = {}
    make_algorithm(options).fit(
        make_dataset(options.rows), n_steps=options.warm_up + options.updates,
        n_steps_per_epoch=options.warm_up + options.updates, show_progress=False, save_interval=10**9,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        callback=lambda algorithm, epoch, updates: times.setdefault(updates, time.perf_counter()),
    )  # fmt: skip
    seconds = times[options.warm_up + options.updates] - times[options.warm_up]
    print(json.dumps({"updates": options.updates, "seconds": seconds}))


if __name__ == "__main__":
    main()
