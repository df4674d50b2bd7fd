"""Shared by the benchmarks beside other libraries: their virtual environments, and training from the shell prompt."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "peers"
NEEDS = {
    "sb3": ["stable-baselines3", "gymnasium[mujoco]"],
    "sb3contrib": ["sb3-contrib", "gymnasium[mujoco]"],
    "rllib": ["ray[rllib]"],
    "sf": ["sample-factory"],
    "sbx": ["sbx-rl", "gymnasium[mujoco]"],
    "d3rlpy": ["d3rlpy==2.8.1"],
    "sb3-images": ["stable-baselines3", "gymnasium[box2d]", "ale-py", "opencv-python-headless"],
}
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
CONSTRAINED = ("sb3-images",)  # the peers that can have the versions that Raceway is tested with
TORCH = "torch==2.13.0"


def python_of(peers: Path, name: str) -> str:
    """Return the interpreter of a peer's virtual environment, creating it if needed."""
    python = peers / name / "bin" / "python"
    if not python.exists():
        print(f"installing {name} into {peers / name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(peers / name)], check=True)
        constraints = ["-c", str(CONSTRAINTS)] if name in CONSTRAINED else []
        for packages in ([TORCH], [TORCH, *NEEDS[name]]):
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *constraints, *packages], check=True)
    return str(python)


def run(*command: str) -> tuple[dict[str, Any], float]:
    """Run a program; return the JSON on its last line, and the seconds from the prompt to its end."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=1800)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1]), seconds


def train_raceway(algorithm: str, *options: str) -> tuple[dict[str, Any], float]:
    """Train with Raceway, from the shell prompt."""
    return run(sys.executable, "-m", "raceway", "train", algorithm, "--json", *options)


def steady_rate(path: Path, warm_up: int = 100_000, steps: str = "time/total_timesteps") -> float:
    """Return the environment steps per second of a run after its warm-up, or the rate of another count."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = "time/time_elapsed"
    first = next(row for row in rows if row[steps] >= warm_up)
    return (rows[-1][steps] - first[steps]) / (rows[-1][seconds] - first[seconds])


def medians_of_ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Return the median ratio of runs side by side, the smallest one, and the medians of both sides."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    both = {"raceway": statistics.median(ours), "other": statistics.median(theirs)}
    return {"ratio": statistics.median(ratios), "smallest_ratio": min(ratios), **both}


def matrix_multiply_flops(size: int = 256, times: int = 3000) -> float:
    """Return the floating-point operations per second of CPU time of products of square matrices, on all cores.

    The products are those of oneDNN, which are faster than `torch.mm`.
    """
    import torch

    torch.set_num_threads(1)
    matrix, multiply = torch.rand(size, size), torch.ops.mkldnn._linear_pointwise
    start = time.process_time()
    for _ in range(times):
        multiply(matrix, matrix, None, "none", [], "")
    seconds = time.process_time() - start
    return len(os.sched_getaffinity(0)) * 2 * size**3 * times / seconds
