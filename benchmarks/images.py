"""PPO with image observations beside Stable-Baselines3, and beside the limit of the machine.

python benchmarks/images.py --peers DIR [--only pong car_racing] [--runs 3] [--iterations 6]

Both have 8 environments, 128 steps, and 4 epochs of 4 minibatches with the convolutions of Mnih et al. 2015, and train
in turns, in the same minutes. Raceway trains with its presets; of Stable-Baselines3's two vector environments, the
faster counts. The limit is what the machine could do at most: the arithmetic of the network at the measured speed of
large matrix products, and the steps of Raceway's environments, with all cores busy all the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Report
from _peers import PROGRAMS, matrix_multiply_flops, python_of, run, steady_rate, train_raceway
from torch import nn

from raceway.agents import Spaces, build_agent
from raceway.algorithms import find_algorithm
from raceway.engine.malloc import keep_freed_memory
from raceway.envs import EnvSettings, Slots, make_slots
from raceway.rl import empty

ENVS = {"pong": "ALE/Pong-v5", "car_racing": "CarRacing-v3"}
VECTORS = ("dummy", "subproc")
NUM_ENVS, FRAGMENT_STEPS, EPOCHS = 8, 128, 4
BATCH_STEPS = NUM_ENVS * FRAGMENT_STEPS
BAR = 1.8


def compare(report: Report, peers: Path, env: str, runs: int, iterations: int) -> None:
    """Train with both in turns, and report the medians of their rates and the limit."""
    rates: dict[str, list[float]] = {name: [] for name in ("raceway", *VECTORS)}
    python = python_of(peers, "sb3-images")
    for seed in range(runs):
        rates["raceway"].append(raceway_rate(env, seed, iterations))
        for vector in VECTORS:
            options = ("--env", env, "--vector", vector, "--iterations", str(iterations), "--seed", str(seed))
            result, _ = run(python, str(PROGRAMS / "sb3_ppo_images.py"), *options)
            rates[vector].append(result["steps"] / result["seconds"])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    vector = max(VECTORS, key=medians.__getitem__)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["raceway"], rates[vector], strict=True))
    report.row(
        f"PPO on {env}: Raceway / Stable-Baselines3, steps/s",
        f"at least {BAR}",
        ratio >= BAR,
        ratio=ratio,
        lowest=min(ours / theirs for ours, theirs in zip(rates["raceway"], rates[vector], strict=True)),
        raceway_per_s=medians["raceway"],
        sb3_per_s=medians[vector],
        sb3_vector=vector,
        **limit(env),
    )


def raceway_rate(env: str, seed: int, iterations: int) -> float:
    """Return the environment steps per second of a run with the preset, after the first iteration."""
    with tempfile.TemporaryDirectory() as folder:
        length = ("--iterations", str(iterations + 1), "--metrics-interval", "0", "--seed", str(seed))
        train_raceway("ppo", "--env", env, *length, "--save-seconds", "0", "--run-dir", f"{folder}/run")
        return steady_rate(Path(folder, "run", "metrics.jsonl"), BATCH_STEPS)


def limit(env: str) -> dict[str, Any]:
    """Return the most environment steps per second that this machine could do, and what that follows from."""
    slots = make_slots(EnvSettings(env), NUM_ENVS)
    try:
        operations = operations_per_step(env, slots)
        env_seconds = step_seconds(slots)
    finally:
        slots.close()
    cores, speed = len(os.sched_getaffinity(0)), matrix_multiply_flops(size=1024, times=50)
    return {
        "limit_per_s": 1 / (operations / speed + env_seconds / cores),
        "mflop_per_step": operations / 1e6,
        "gflops": speed / 1e9,
        "env_ms_per_step": env_seconds * 1e3,
    }


def operations_per_step(env: str, slots: Slots) -> float:
    """Return the floating-point operations of an environment step: acting once, then learning in every epoch."""
    algorithm = find_algorithm("ppo")
    cfg = algorithm.settings(env=env)
    agent: Any = build_agent(algorithm.agent, Spaces(slots.observation_space, slots.action_space), cfg)
    counts: list[int] = []

    def count(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        counts.append(2 * output[0].numel() * layer.weight[0].numel())

    for layer in agent.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    agent.evaluate({"obs": torch.from_numpy(empty(slots.observation_space, (1,)))})  # with gradients: torch alone
    forward = sum(counts)
    # Backward: the gradients of weights and of inputs; those of the images are not needed.
    return forward + EPOCHS * (3 * forward - counts[0])


def step_seconds(slots: Slots, num_steps: int = 100) -> float:
    """Return the seconds of CPU time of one environment step, with random actions."""
    active = list(range(slots.num))
    obs, reward = empty(slots.observation_space, (slots.num,)), np.zeros(slots.num, np.float32)
    ended = np.zeros((2, slots.num), bool)
    slots.action_space.seed(0)
    slots.reset(active, active, obs)
    actions = [np.stack([slots.action_space.sample() for _ in active]) for _ in range(num_steps)]
    begin = time.process_time()
    for row in actions:
        slots.step(row, active, obs, reward, ended)
        over = np.flatnonzero(ended.any(0)).tolist()
        slots.reset(over, over, obs)
    return (time.process_time() - begin) / (num_steps * slots.num)


def main() -> None:
    """Run the selected comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=Path, help="directory for the virtual environments of the peers", default=Path("peers")
    )
    parser.add_argument("--only", nargs="+", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6, help="iterations that are timed, after the first")
    options = parser.parse_args()
    keep_freed_memory()
    report = Report("images")
    for name in options.only:
        compare(report, options.peers.resolve(), ENVS[name], options.runs, options.iterations)
    report.write(keep=True)


if __name__ == "__main__":
    main()
