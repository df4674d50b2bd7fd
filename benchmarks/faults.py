"""How long it takes until a fault is reported, and until training has recovered from it.

python benchmarks/faults.py [--times 3] [--ray]

Each fault is caused several times; the worst time counts.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from _harness import Report
from gymnasium.envs.classic_control import CartPoleEnv

from raceway.training.train import train

SMALL: dict[str, Any] = {"num_envs": 4, "num_shards": 2, "fragment_steps": 64, "num_workers": 2}


class FailingCartPole(CartPoleEnv):
    """CartPole that fails once, in one worker, and records when."""

    def __init__(self, folder: str, what: str) -> None:
        super().__init__()
        self.folder, self.what, self.steps = Path(folder), what, 0
        (self.folder / f"created-{os.getpid()}-{time.time():.3f}").touch()

    def step(self, action: Any) -> Any:
        """Step, and fail at the hundredth step."""
        self.steps += 1
        if self.steps == 100:
            try:
                with (self.folder / "done").open("x") as file:
                    file.write(f"{time.time()} {os.getpid()}")
                    file.flush()
                    self._fail()
            except FileExistsError:
                pass
        return super().step(action)

    def _fail(self) -> None:
        if self.what == "raise":
            raise RuntimeError("it broke")
        if self.what == "hang":
            time.sleep(1000)
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)


def train_with_fault(folder: Path, what: str, engine: str = "process", **settings: Any) -> tuple[float, int]:
    """Train with a failing environment; return the time of the failure and the process id."""
    more = {"env_kwargs": {"folder": str(folder), "what": what}, "run_dir": str(folder / "run"), **SMALL, **settings}
    train("a2c", env=FailingCartPole, engine=engine, iterations=60, progress=False, **more)
    failed_at, pid = (folder / "done").read_text().split()
    return float(failed_at), int(pid)


def raising(folder: Path) -> float:
    """Return the seconds from an exception in an environment until the driver has logged it."""
    logged_at: list[float] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged_at.append(time.time()) if "it broke" in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        failed_at, _ = train_with_fault(folder, "raise")
    finally:
        logging.getLogger().removeHandler(handler)
    return logged_at[0] - failed_at


def hanging(folder: Path) -> float:
    """Return the seconds from the deadline of a hanging item until its process has ended."""
    ended_at: list[float] = []

    def watch() -> None:
        while not (folder / "done").exists() or len((folder / "done").read_text().split()) < 2:
            time.sleep(0.01)
        pid = int((folder / "done").read_text().split()[1])
        while _is_running(pid):
            time.sleep(0.005)
        ended_at.append(time.time())

    thread = threading.Thread(target=watch)
    thread.start()
    failed_at, _ = train_with_fault(folder, "hang", item_deadline=2.0)
    thread.join()
    return ended_at[0] - failed_at - 2.0


def dying(folder: Path, engine: str = "process") -> float:
    """Return the seconds from the death of a worker until its environments are rebuilt."""
    failed_at, _ = train_with_fault(folder, "die", engine)
    created_at = sorted(float(path.name.rpartition("-")[2]) for path in folder.glob("created-*"))
    return next(moment for moment in created_at if moment > failed_at) - failed_at


def killing(folder: Path) -> float:
    """Return the seconds from the death of the driver until all its processes have ended."""
    with _start_run(folder) as run:
        children = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        start = time.perf_counter()
        while any(_is_running(child.pid) for child in children):
            time.sleep(0.005)
        return time.perf_counter() - start


def _is_running(pid: int) -> bool:
    """Whether a process is running. A zombie has ended, although it is still listed."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopping(folder: Path) -> float:
    """Return the seconds from SIGTERM until the run is saved and the process has ended."""
    with _start_run(folder) as run:
        start = time.perf_counter()
        run.terminate()
        run.wait()
        return time.perf_counter() - start


def _start_run(folder: Path) -> subprocess.Popen[str]:
    """Start a run and wait for its first iteration."""
    command = [sys.executable, "-m", "raceway", "train", "ppo", "--env", "halfcheetah", "--num-workers", "2"]
    run = subprocess.Popen([*command, "--run-dir", str(folder / "run")], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("Iteration"):
            break
    return run


def worst(measure: Callable[[Path], float], times: int) -> float:
    """Return the longest of several measurements."""
    durations = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            durations.append(measure(Path(folder)))
    return max(durations)


def main() -> None:
    """Measure every fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="repetitions of each fault")
    parser.add_argument("--ray", action="store_true", help="also measure the ray engine")
    options = parser.parse_args()
    report = Report("faults")
    rows: list[tuple[str, float, Callable[[Path], float]]] = [
        ("an environment raises, until the driver reports it", 2.0, raising),
        ("a worker hangs, from its deadline until it has ended", 1.0, hanging),
        ("a worker is killed, until its environments are rebuilt", 2.0, dying),
        ("the driver is killed, until its workers have ended", 1.0, killing),
        ("SIGTERM, until the run is saved and has ended", 10.0, stopping),
    ]
    if options.ray:
        what = "on Ray: a worker is killed, until its environments are rebuilt"
        rows.append((what, 10.0, lambda folder: dying(folder, "ray")))
    for what, bar, measure in rows:
        longest = worst(measure, options.times)
        report.row(what, f"within {bar:g} s", longest <= bar, worst_seconds=longest)
    report.write()


if __name__ == "__main__":
    main()
