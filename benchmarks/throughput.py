"""Training compared with other libraries, each in its own virtual environment, one after the other.

python benchmarks/throughput.py --peers DIR [--only solve impala cheetah recurrent ray] [--runs 3]

The virtual environments are created in DIR the first time. Only settings that pass the learning gate count: Raceway
trains with its presets.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from _harness import Report
from _peers import PROGRAMS, python_of, run, steady_rate, train_raceway


def solve(report: Report, peers: Path, runs: int) -> None:
    """Compare the seconds from the shell prompt to a solved CartPole."""
    python = python_of(peers, "sb3")
    ours, theirs = [], []
    for seed in range(runs):
        summary, seconds = train_raceway(
            "ppo", "--env", "cartpole", "--local", "--seed", str(seed), "--stop-return", "475"
        )
        assert summary["mean_return"] >= 475, summary
        ours.append(seconds)
        script = str(PROGRAMS / "sb3_ppo.py")
        _, seconds = run(python, script, "--seed", str(seed), "--stop-return", "475", "--steps", "100000")
        theirs.append(seconds)
    ratio = statistics.median(theirs) / statistics.median(ours)
    report.row(
        "PPO, from the prompt to a solved CartPole-v1: Stable-Baselines3 / Raceway, seconds",
        "at least 4",
        ratio >= 4,
        ratio=ratio,
        raceway_s=statistics.median(ours),
        sb3_s=statistics.median(theirs),
    )


def impala(report: Report, peers: Path, runs: int) -> None:
    """Compare environment steps per second of training on CartPole, after start-up on all sides."""
    others = {"RLlib's IMPALA": ("rllib_impala.py", "--seconds", "30"), "Sample Factory's APPO": ("sf_appo.py",)}
    rates: dict[str, list[float]] = {name: [] for name in ("Raceway", *others)}
    returns = []
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--env", "cartpole", "--engine", "process", "--num-workers", "1", "--run-dir", f"{folder}/run")
            summary, _ = train_raceway("impala", *options, "--seed", str(seed))
            rates["Raceway"].append(steady_rate(Path(folder, "run", "metrics.jsonl")))
        returns.append(summary["mean_return"])
        for name, (script, *more) in others.items():
            python = python_of(peers, script.partition("_")[0])
            result, _ = run(python, str(PROGRAMS / script), *more, "--seed", str(seed))
            rates[name].append(result["steps"] / result["seconds"])
    assert statistics.mean(returns) >= 475, f"the gate is not passed: {returns}"
    for name, bar in (("RLlib's IMPALA", 60), ("Sample Factory's APPO", 30)):
        ratio = statistics.median(rates["Raceway"]) / statistics.median(rates[name])
        report.row(
            f"IMPALA on CartPole-v1: Raceway / {name}, steps/s",
            f"at least {bar}",
            ratio >= bar,
            ratio=ratio,
            raceway_per_s=statistics.median(rates["Raceway"]),
            other_per_s=statistics.median(rates[name]),
            mean_return=statistics.mean(returns),
        )


def cheetah(report: Report, peers: Path, runs: int) -> None:
    """Compare environment steps per second of PPO on HalfCheetah, with the same epochs and minibatches."""
    python = python_of(peers, "sb3")
    ours, theirs = [], []
    for seed in range(runs):
        summary, _ = train_raceway("ppo", "--env", "halfcheetah", "--total-timesteps", "60000", "--seed", str(seed))
        ours.append(summary["fps"])
        script = str(PROGRAMS / "sb3_ppo.py")
        result, _ = run(python, script, "--env", "HalfCheetah-v5", "--steps", "40000", "--seed", str(seed))
        theirs.append(result["steps"] / result["seconds"])
    ratio = statistics.median(ours) / statistics.median(theirs)
    report.row(
        "PPO on HalfCheetah-v5: Raceway / Stable-Baselines3, steps/s",
        "at least 2.5",
        ratio >= 2.5,
        ratio=ratio,
        raceway_per_s=statistics.median(ours),
        sb3_per_s=statistics.median(theirs),
    )


def recurrent(report: Report, peers: Path, runs: int) -> None:
    """Compare environment steps per second of PPO with an LSTM, with the same settings, one process and thread each."""
    python, ours, theirs = python_of(peers, "sb3contrib"), [], []
    settings = {
        "env": "cartpole-positions", "network": "lstm", "hidden": 64, "num-envs": 16, "num-shards": 1,
        "fragment-steps": 64, "num-epochs": 10, "num-minibatches": 4, "gamma": 0.98, "lam": 0.9, "lr": 1e-3,
        "total-timesteps": 60_000, "learner-threads": 1,
    }  # fmt: skip
    options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    options += ["--no-normalise-obs", "--no-scale-rewards"]  # which RecurrentPPO does not do by itself
    for seed in range(runs):
        summary, _ = train_raceway("ppo", "--local", *options, "--seed", str(seed))
        ours.append(summary["fps"])
        script = str(PROGRAMS / "sb3contrib_ppo.py")
        result, _ = run(python, script, "--steps", "20000", "--seed", str(seed))
        theirs.append(result["steps"] / result["seconds"])
    ratio = statistics.median(ours) / statistics.median(theirs)
    report.row(
        "PPO with an LSTM on CartPole without velocities: Raceway / sb3-contrib's RecurrentPPO, steps/s",
        "at least 2",
        ratio >= 2,
        ratio=ratio,
        raceway_per_s=statistics.median(ours),
        sb3contrib_per_s=statistics.median(theirs),
    )


def on_ray(report: Report, peers: Path, runs: int) -> None:
    """Compare the ray engine with the process engine on HalfCheetah, with two workers, after start-up."""
    for algorithm, steps in (("a2c", 60_000), ("a3c", 60_000), ("ppo", 40_000)):
        rates: dict[str, list[float]] = {"ray": [], "process": []}
        for seed in range(runs):
            for engine, engine_rates in rates.items():
                with tempfile.TemporaryDirectory() as folder:
                    options = ("--engine", engine, "--num-workers", "2", "--run-dir", f"{folder}/run")
                    length = ("--total-timesteps", str(steps), "--seed", str(seed))
                    train_raceway(algorithm, "--env", "halfcheetah", *options, *length)
                    engine_rates.append(steady_rate(Path(folder, "run", "metrics.jsonl"), steps // 4))
        ratio = statistics.median(ray / process for ray, process in zip(rates["ray"], rates["process"], strict=True))
        report.row(
            f"{algorithm} on HalfCheetah-v5: the ray engine / the process engine, steps/s",
            "at least 0.8",
            ratio >= 0.8,
            ratio=ratio,
            ray_per_s=statistics.median(rates["ray"]),
            process_per_s=statistics.median(rates["process"]),
        )


PARTS = {
    "solve": solve, "impala": impala, "cheetah": cheetah, "recurrent": recurrent, "ray": on_ray,
}  # fmt: skip


def main() -> None:
    """Run the selected comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=Path, help="directory for the virtual environments of the peers", default=Path("peers")
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    report = Report("throughput")
    for name in options.only:
        PARTS[name](report, options.peers.resolve(), options.runs)
    report.write(keep=True)


if __name__ == "__main__":
    main()
