"""What a call, a value and a start cost on the engines, each beside a reference in the same minute.

python benchmarks/engine.py [--only call ray fan-out start broadcast idle death] [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from _harness import Report, seconds, taking_turns

from raceway.engine import make_engine
from raceway.engine.base import Restarts
from raceway.engine.process.engine import ProcessEngine
from raceway.runner import Runner

VALUES = {"an int": 1, "4 KB of floats": np.zeros(512), "1 MB of floats": np.zeros(131_072)}


class Echo:
    """Gives back what it gets."""

    def echo(self, value: Any) -> Any:
        return value

    def first(self, array: np.ndarray) -> float:
        return float(array[0])

    def sleep(self, duration: float) -> None:
        time.sleep(duration)


def no_op() -> None:
    """Do nothing."""


def _answer(pipe: Connection) -> None:
    while (value := pipe.recv()) is not None:
        pipe.send(value)


def call(report: Report, blocks: int) -> None:
    """Call and return on the process engine, beside multiprocessing.Pipe."""
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=_answer, args=(theirs,), daemon=True)
    other.start()
    bars = {"an int": 1.5, "4 KB of floats": 1.0, "1 MB of floats": 0.2}
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo)
        for what, value in VALUES.items():

            def over_pipe(value: Any = value) -> None:
                ours.send(value)
                ours.recv()

            sides = {"raceway": lambda value=value: actor.call("echo", value).result(), "pipe": over_pipe}
            taking_turns(sides, 2, 50)
            before = int(engine._control.used.sum())
            taken = taking_turns(sides, blocks, 50 if what != "1 MB of floats" else 20)
            grown = int(engine._control.used.sum()) - before
            ratio = taken["raceway"] / taken["pipe"]
            report.row(
                f"call and return, {what}, raceway / Pipe",
                f"at most {bars[what]}, no new memory",
                ratio <= bars[what] and grown == 0,
                ratio=ratio,
                raceway_us=taken["raceway"] * 1e6,
                pipe_us=taken["pipe"] * 1e6,
                new_bytes=grown,
            )
    ours.send(None)
    other.join()


def ray(report: Report, blocks: int) -> None:
    """Call and return on the ray engine, beside bare Ray."""
    import ray as ray_library

    ray_library.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    bare = ray_library.remote(num_cpus=0)(Echo).remote()
    with make_engine("ray") as engine:
        actor = engine.spawn(Echo)
        for what, value in VALUES.items():
            sides = {
                "raceway": lambda value=value: actor.call("echo", value).result(),
                "ray": lambda value=value: ray_library.get(bare.echo.remote(value)),
            }
            taken = taking_turns(sides, blocks, 20)
            ratio = taken["raceway"] / taken["ray"]
            report.row(
                f"call and return, {what}, ray engine / bare Ray",
                "at most 1.15",
                ratio <= 1.15,
                ratio=ratio,
                raceway_us=taken["raceway"] * 1e6,
                ray_us=taken["ray"] * 1e6,
            )
    ray_library.shutdown()


def fan_out(report: Report, blocks: int) -> None:
    """Ten thousand tasks that do nothing: a service of two workers, beside two bare Ray actors."""
    import ray as ray_library

    number = 10_000
    ours, theirs = [], []
    ray_library.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    actors = [ray_library.remote(num_cpus=1)(Echo).remote() for _ in range(2)]
    ray_library.get([actor.echo.remote(None) for actor in actors])
    with Runner("fan-out", engine="process", workers=2) as rr:
        service = rr.service(no_op, warmup=2)
        rr.get([service() for _ in range(1000)])
        for _ in range(max(3, blocks // 8)):
            ours.append(seconds(lambda: rr.get([service() for _ in range(number)])))
            theirs.append(seconds(lambda: ray_library.get([actors[n % 2].echo.remote(None) for n in range(number)])))
    ray_library.shutdown()
    ratio = statistics.median(theirs) / statistics.median(ours)
    report.row(
        "10,000 no-op tasks, rate of a service of 2 / of 2 bare Ray actors",
        "at least 10",
        ratio >= 10,
        ratio=ratio,
        raceway_us_a_task=statistics.median(ours) / number * 1e6,
        ray_us_a_task=statistics.median(theirs) / number * 1e6,
    )


_START = """
import time
begin = time.perf_counter()
from raceway.engine import make_engine
from raceway.engine.base import Restarts
with make_engine("process") as engine:
    actors = [engine.spawn(list) for _ in range({number})]
    for actor in actors:
        actor.call("__len__").result()
    print(time.perf_counter() - begin)
"""


def start(report: Report, blocks: int) -> None:
    """From nothing to a result of every worker, imports of the driver included."""
    bare = statistics.median(
        seconds(lambda: subprocess.run([sys.executable, "-c", "import numpy"], check=True)) for _ in range(5)
    )
    for number, bar in ((2, 0.7), (64, 3.0)):
        times = []
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", _START.format(number=number)], capture_output=True, text=True, check=True
            )
            times.append(float(done.stdout))
        taken = statistics.median(times)
        report.row(
            f"first result of {number} workers",
            f"under {bar} s",
            taken < bar,
            seconds=taken,
            ratio_to_python_importing_numpy=taken / bare,
        )


def broadcast(report: Report, blocks: int) -> None:
    """Put an object of 10 MB once; one worker looks at it, or eight do."""
    with ProcessEngine() as engine:
        actors = [engine.spawn(Echo) for _ in range(8)]
        for actor in actors:
            actor.call("echo", 1).result()
        value = np.zeros(10 * (1 << 20) // 8)

        def share(readers: list[Any]) -> None:
            ref = engine.put(value)
            engine.wait([actor.call("first", ref) for actor in readers])

        taken = taking_turns({"one": lambda: share(actors[:1]), "eight": lambda: share(actors)}, blocks, 5)
    ratio = taken["eight"] / taken["one"]
    report.row(
        "10 MB put once, read by 8 workers / by 1",
        "at most 2",
        ratio <= 2,
        ratio=ratio,
        eight_ms=taken["eight"] * 1e3,
        one_ms=taken["one"] * 1e3,
    )


def idle(report: Report, blocks: int) -> None:
    """Measure what the driver's processor does while it waits five seconds."""
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo)
        actor.call("echo", 1).result()
        begin = time.process_time()
        wall = seconds(lambda: actor.call("sleep", 5.0).result())
        share = (time.process_time() - begin) / wall
    report.row("driver's CPU while a task sleeps 5 s", "under 1 %", share < 0.01, percent=100 * share)


def death(report: Report, blocks: int) -> None:
    """Kill a worker in the middle of a call: how soon that is known, and how soon it is back."""
    known, back = [], []
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo, restarts=Restarts(budget=1000, backoff=0.0))
        actor.ready.result()
        for _ in range(20):
            call = actor.call("sleep", 60.0)
            assert actor.pid is not None
            os.kill(actor.pid, signal.SIGKILL)
            known.append(seconds(call.exception))
            back.append(seconds(lambda: engine.restart(actor).result()))
    report.row("a killed worker is noticed", "within 0.1 s", max(known) < 0.1, worst_ms=max(known) * 1e3)
    report.row("and is back", "within 2 s", max(back) < 2, worst_ms=max(back) * 1e3)


PARTS = {
    "call": call,
    "ray": ray,
    "fan-out": fan_out,
    "start": start,
    "broadcast": broadcast,
    "idle": idle,
    "death": death,
}


def main() -> None:
    """Run the parts that were asked for and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--quick", action="store_true", help="fewer blocks: for a look, not for a figure")
    options = parser.parse_args()
    report = Report("engine")
    for name in options.only:
        PARTS[name](report, 8 if options.quick else 40)
    report.write()


if __name__ == "__main__":
    main()
