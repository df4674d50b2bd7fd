"""How long it takes until a fault is known, and mended.

python benchmarks/faults.py [--times 3] [--ray]

Each is tried several times, and the worst counts.
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


class Odd(CartPoleEnv):
    """CartPole that once, in one worker, does something odd, and writes down when."""

    def __init__(self, folder: str, what: str) -> None:
        super().__init__()
        self.folder, self.what, self.steps = Path(folder), what, 0
        (self.folder / f"made-{os.getpid()}-{time.time():.3f}").touch()

    def step(self, action: Any) -> Any:
        """Step, or do it."""
        self.steps += 1
        if self.steps == 100:
            try:
                with (self.folder / "done").open("x") as file:
                    file.write(f"{time.time()} {os.getpid()}")
                    file.flush()
                    self._do()
            except FileExistsError:
                pass
        return super().step(action)

    def _do(self) -> None:
        if self.what == "raise":
            raise RuntimeError("it broke")
        if self.what == "hang":
            time.sleep(1000)
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)


def played(folder: Path, what: str, engine: str = "process", **settings: Any) -> tuple[float, int]:
    """Train with such an environment for a while, and return when it was odd, and in which process."""
    more = {"env_kwargs": {"folder": str(folder), "what": what}, "run_dir": str(folder / "run"), **SMALL, **settings}
    train("a2c", env=Odd, engine=engine, iterations=60, **more)
    moment, pid = (folder / "done").read_text().split()
    return float(moment), int(pid)


def raising(folder: Path) -> float:
    """Return the seconds from an exception in an environment until the driver has logged it."""
    heard: list[float] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(time.time()) if "it broke" in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        moment, _ = played(folder, "raise")
    finally:
        logging.getLogger().removeHandler(handler)
    return heard[0] - moment


def hanging(folder: Path) -> float:
    """Return the seconds from the deadline of an item that hangs until its process is gone."""
    gone: list[float] = []

    def watch() -> None:
        while not (folder / "done").exists() or len((folder / "done").read_text().split()) < 2:
            time.sleep(0.01)
        pid = int((folder / "done").read_text().split()[1])
        while _lives(pid):
            time.sleep(0.005)
        gone.append(time.time())

    thread = threading.Thread(target=watch)
    thread.start()
    moment, _ = played(folder, "hang", item_deadline=2.0)
    thread.join()
    return gone[0] - moment - 2.0


def dying(folder: Path, engine: str = "process") -> float:
    """Return the seconds from the death of a worker until another has made its environments."""
    moment, _ = played(folder, "die", engine)
    made = sorted(float(path.name.rpartition("-")[2]) for path in folder.glob("made-*"))
    return next(when for when in made if when > moment) - moment


def killing(folder: Path) -> float:
    """Return the seconds from the death of the driver until no process of its is left."""
    with _started(folder) as run:
        children = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        begin = time.perf_counter()
        while any(_lives(child.pid) for child in children):
            time.sleep(0.005)
        return time.perf_counter() - begin


def _lives(pid: int) -> bool:
    """Whether a process runs. One that nobody has asked how it ended is listed, but is over."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stopping(folder: Path) -> float:
    """Return the seconds from SIGTERM until a run has saved itself and is over."""
    with _started(folder) as run:
        begin = time.perf_counter()
        run.terminate()
        run.wait()
        return time.perf_counter() - begin


def _started(folder: Path) -> subprocess.Popen[str]:
    """Return a run that has begun to train."""
    command = [sys.executable, "-m", "raceway", "train", "ppo", "--env", "halfcheetah", "--num-workers", "2"]
    run = subprocess.Popen([*command, "--run-dir", str(folder / "run")], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("Iteration"):
            break
    return run


def worst(measure: Callable[[Path], float], times: int) -> float:
    """Return the longest of several tries."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(Path(folder)))
    return max(found)


def main() -> None:
    """Measure each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="tries of each")
    parser.add_argument("--ray", action="store_true", help="the ray engine too")
    options = parser.parse_args()
    report = Report("faults")
    rows: list[tuple[str, float, Callable[[Path], float]]] = [
        ("an environment raises, until the driver says so", 2.0, raising),
        ("a worker hangs, from its deadline until it is gone", 1.0, hanging),
        ("a worker is killed, until its environments are made again", 2.0, dying),
        ("the driver is killed, until its workers are gone", 1.0, killing),
        ("SIGTERM, until the run is saved and over", 10.0, stopping),
    ]
    if options.ray:
        what = "on Ray: a worker is killed, until its environments are made again"
        rows.append((what, 10.0, lambda folder: dying(folder, "ray")))
    for what, bar, measure in rows:
        taken = worst(measure, options.times)
        report.row(what, f"within {bar:g} s", taken <= bar, worst_seconds=taken)
    report.write()


if __name__ == "__main__":
    main()
