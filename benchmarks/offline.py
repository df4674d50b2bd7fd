"""Learning from a dataset compared with d3rlpy, in a virtual environment of its own.

python benchmarks/offline.py --peers DIR [--runs 3] [--only cql iql]

The virtual environment is created in DIR the first time. Both sides learn from the same rows, random actions on
HalfCheetah, with the same networks, minibatches, learning rates and, for CQL, penalised actions: updates per second
after a warm-up, one run after the other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
from _harness import Report
from _peers import PROGRAMS, medians_of_ratios, python_of, run, steady_rate, train_raceway

from raceway.datasets import DatasetWriter, open_dataset
from raceway.datasets.episodes import make_episode

ENV = "HalfCheetah-v5"
EPISODES, STEPS = 20, 500  # of an episode
WARM_UP = 100
UPDATES = {"cql": 300, "iql": 1500}
BAR = 1.5
SETTINGS = {
    "cql": {
        "batch_size": 256, "hidden": [256, 256], "actor_learning_rate": 1e-4, "critic_learning_rate": 3e-4,
        "temp_learning_rate": 1e-4, "alpha_learning_rate": 0.0, "conservative_weight": 5.0, "n_action_samples": 10,
        "soft_q_backup": True,
    },
    "iql": {"batch_size": 256, "hidden": [256, 256], "actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4},
}  # fmt: skip
"""Settings of d3rlpy; they are the defaults of Raceway."""


def write_rows(folder: Path) -> None:
    """Write random episodes, as a dataset and as arrays."""
    env = gym.make(ENV, max_episode_steps=STEPS)
    env.action_space.seed(0)
    with DatasetWriter(folder / "dataset", env.observation_space, env.action_space, {"env": ENV}) as writer:
        for seed in range(EPISODES):
            obs, actions, rewards, ended = [env.reset(seed=seed)[0]], [], [], False
            while not ended:
                actions.append(env.action_space.sample())
                following, reward, terminated, truncated, _ = env.step(actions[-1])
                obs.append(following)
                rewards.append(reward)
                ended = terminated or truncated
            columns = {"obs": np.stack(obs), "action": np.stack(actions), "reward": rewards}
            spaces = env.observation_space, env.action_space
            writer.add(make_episode(*spaces, **columns, terminated=terminated, truncated=truncated))
    env.close()
    dataset = open_dataset(folder / "dataset")
    np.savez(folder / "rows.npz", **dataset.rows(np.arange(dataset.num_steps)))


def raceway_rate(algorithm: str, folder: Path, seed: str) -> float:
    """Train with Raceway, and return the updates per second after the warm-up."""
    with tempfile.TemporaryDirectory() as run_dir:
        length = ("--total-updates", str(WARM_UP + UPDATES[algorithm]), "--metrics-interval", "0", "--seed", seed)
        source = ("--dataset", str(folder / "dataset"), "--run-dir", f"{run_dir}/run", "--local")
        train_raceway(algorithm, *source, *length)
        return steady_rate(Path(run_dir, "run", "metrics.jsonl"), WARM_UP, "time/total_updates")


def d3rlpy_rate(algorithm: str, folder: Path, seed: str, peers: Path) -> float:
    """Train with d3rlpy, and return the updates per second after the warm-up."""
    program = (python_of(peers, "d3rlpy"), str(PROGRAMS / "d3rlpy_offline.py"), "--algorithm", algorithm)
    length = ("--warm-up", str(WARM_UP), "--updates", str(UPDATES[algorithm]), "--seed", seed)
    rows = ("--rows", str(folder / "rows.npz"), "--settings", json.dumps(SETTINGS[algorithm]))
    result, _ = run(*program, *rows, *length)
    return float(result["updates"] / result["seconds"])


def main() -> None:
    """Compare the selected algorithms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "directory for the virtual environments of the peers"
    parser.add_argument("--peers", type=Path, help=text, default=Path("peers"))
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    report, peers = Report("offline"), options.peers.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder)
        for algorithm in options.only:
            ours, theirs = [], []
            for seed in map(str, range(options.runs)):
                ours.append(raceway_rate(algorithm, folder, seed))
                theirs.append(d3rlpy_rate(algorithm, folder, seed, peers))
            ratios = medians_of_ratios(ours, theirs)
            what = f"{algorithm.upper()} on rows of {ENV}: Raceway / d3rlpy, updates/s"
            report.row(what, f"at least {BAR:g}", ratios["ratio"] >= BAR, **ratios)
            report.write(keep=True)


if __name__ == "__main__":
    main()
