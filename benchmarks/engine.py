"""The cost of calls, stored values and start-up on the engines, each beside a reference measured in the same minute.

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
from _harness import Report, interleave, seconds

from raceway.engine import make_engine
from raceway.engine.base import Restarts
from raceway.engine.process.engine import ProcessEngine
from raceway.runner import Runner

VALUES = {"an int": 1, "4 KB of floats": np.zeros(512), "1 MB of floats": np.zeros(131_072)}


class Echo:
    """Returns its argument."""

    def echo(self, value: Any) -> Any:
        return value

    def first(self, array: np.ndarray) -> float:
        return float(array[0])

    def sleep(self, duration: float) -> None:
        time.sleep(duration)


def no_op() -> None:
    """Do nothing."""


def _echo_server(pipe: Connection) -> None:
    while (value := pipe.recv()) is not None:
        pipe.send(value)


def call(report: Report, blocks: int) -> None:
    """Call and return on the process engine, beside multiprocessing.Pipe."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_echo_server, args=(theirs,), daemon=True)
    server.start()
    bars = {"an int": 1.5, "4 KB of floats": 1.0, "1 MB of floats": 0.2}
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo)
        for what, value in VALUES.items():

            def over_pipe(value: Any = value) -> None:
                ours.send(value)
                ours.recv()

            sides = {"raceway": lambda value=value: actor.call("echo", value).result(), "pipe": over_pipe}
            interleave(sides, 2, 50)
            before = int(engine._control.bytes_used.sum())
            durations = interleave(sides, blocks, 50 if what != "1 MB of floats" else 20)
            grown = int(engine._control.bytes_used.sum()) - before
            ratio = durations["raceway"] / durations["pipe"]
            report.row(
                f"call and return, {what}, raceway / Pipe",
                f"at most {bars[what]}, no new memory",
                ratio <= bars[what] and grown == 0,
                ratio=ratio,
                raceway_us=durations["raceway"] * 1e6,
                pipe_us=durations["pipe"] * 1e6,
                new_bytes=grown,
            )
    ours.send(None)
    server.join()


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
            durations = interleave(sides, blocks, 20)
            ratio = durations["raceway"] / durations["ray"]
            report.row(
                f"call and return, {what}, ray engine / bare Ray",
                "at most 1.15",
                ratio <= 1.15,
                ratio=ratio,
                raceway_us=durations["raceway"] * 1e6,
                ray_us=durations["ray"] * 1e6,
            )
    ray_library.shutdown()


def fan_out(report: Report, blocks: int) -> None:
    """Ten thousand no-op tasks on a service of two workers, beside two bare Ray actors."""
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
        raceway_us_per_task=statistics.median(ours) / number * 1e6,
        ray_us_per_task=statistics.median(theirs) / number * 1e6,
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
    """Time from nothing to a result of every worker, the driver's imports included."""
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
        median = statistics.median(times)
        report.row(
            f"first result of {number} workers",
            f"under {bar} s",
            median < bar,
            seconds=median,
            ratio_to_python_importing_numpy=median / bare,
        )


def broadcast(report: Report, blocks: int) -> None:
    """Store 10 MB once; one worker reads it, or eight do."""
    with ProcessEngine() as engine:
        actors = [engine.spawn(Echo) for _ in range(8)]
        for actor in actors:
            actor.call("echo", 1).result()
        value = np.zeros(10 * (1 << 20) // 8)

        def share(readers: list[Any]) -> None:
            ref = engine.put(value)
            engine.wait([actor.call("first", ref) for actor in readers])

        durations = interleave({"one": lambda: share(actors[:1]), "eight": lambda: share(actors)}, blocks, 5)
    ratio = durations["eight"] / durations["one"]
    report.row(
        "10 MB put once, read by 8 workers / by 1",
        "at most 2",
        ratio <= 2,
        ratio=ratio,
        eight_ms=durations["eight"] * 1e3,
        one_ms=durations["one"] * 1e3,
    )


def idle(report: Report, blocks: int) -> None:
    """Measure the driver's CPU use while it waits for five seconds."""
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo)
        actor.call("echo", 1).result()
        begin = time.process_time()
        wall = seconds(lambda: actor.call("sleep", 5.0).result())
        share = (time.process_time() - begin) / wall
    report.row("driver's CPU while a task sleeps 5 s", "under 1 %", share < 0.01, percent=100 * share)


def death(report: Report, blocks: int) -> None:
    """Kill a worker during a call: how soon it is noticed, and how soon the worker is back."""
    noticed, back = [], []
    with ProcessEngine() as engine:
        actor = engine.spawn(Echo, restarts=Restarts(budget=1000, backoff=0.0))
        actor.ready.result()
        for _ in range(20):
            call = actor.call("sleep", 60.0)
            assert actor.pid is not None
            os.kill(actor.pid, signal.SIGKILL)
            noticed.append(seconds(call.exception))
            back.append(seconds(lambda: engine.restart(actor).result()))
    report.row("a killed worker is noticed", "within 0.1 s", max(noticed) < 0.1, worst_ms=max(noticed) * 1e3)
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
    """Run the selected parts and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--quick", action="store_true", help="fewer blocks: for a quick look, not for publication")
    options = parser.parse_args()
    report = Report("engine")
    for name in options.only:
        PARTS[name](report, 8 if options.quick else 40)
    report.write()


if __name__ == "__main__":
    main()
