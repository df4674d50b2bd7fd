"""The cost of a flow compared with the same program written by hand on the engine's verbs, and with bare Ray actors.

python benchmarks/flow.py [--only rate ray driver waiting events memory lines] [--quick]

An item is a fixed amount of CPU time of its thread. On a shared machine the duration of the same arithmetic varies
by half from one tenth of a second to the next, and ratios of rates would measure that. `pace` beside every ratio is
the arithmetic done in that CPU time, flow / by hand: it would show if a flow made the work itself slower.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from _harness import Report

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.flow import Iter, ParIter, create, union_async
from raceway.flow.perfetto import TraceWriter

Program = Callable[[list[Actor]], Iterator[Any]]


def burn_cpu(seconds: float) -> int:
    """Compute for some CPU time and return the number of rounds of arithmetic."""
    total, rounds, until = 0, 0, time.thread_time() + seconds
    while time.thread_time() < until:
        for number in range(20):  # about a microsecond
            total += number & 3
        rounds += 1
    return rounds


class Worker:
    """Returns items of four small arrays and the amount of work that each took."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.item: dict[str, Any] = {name: np.zeros(8, np.float32) for name in ("obs", "action", "reward", "done")}

    def work(self) -> dict[str, Any]:
        self.item["work"] = burn_cpu(self.seconds)
        return self.item

    def nothing(self) -> None:
        pass


# The same three programs, by hand and as flows: each is an endless iterator of items.


def sync_by_hand(actors: list[Actor]) -> Iterator[Any]:
    while True:
        futures = [actor.call("work") for actor in actors]
        yield [future.result() for future in futures]


def sync_flow(actors: list[Actor]) -> Iterator[Any]:
    return iter(create(actors, "work").gather_sync())


def async_by_hand(actors: list[Actor]) -> Iterator[Any]:
    engine = actors[0].engine
    futures = [actor.call("work") for _ in range(2) for actor in actors]
    while True:
        done, futures = engine.wait(futures, count=1)
        for future in done:
            yield future.result()
            futures.append(future.actor.call("work"))


def async_flow(actors: list[Actor]) -> Iterator[Any]:
    return iter(create(actors, "work").gather_async(num_async=2))


def union_by_hand(actors: list[Actor]) -> Iterator[Any]:
    engine, half = actors[0].engine, len(actors) // 2
    branch = dict.fromkeys(actors[:half], "left") | dict.fromkeys(actors[half:], "right")
    futures = [actor.call("work") for actor in actors]
    while True:
        done, futures = engine.wait(futures, count=1)
        for future in done:
            yield branch[future.actor], future.result()
            futures.append(future.actor.call("work"))


def union_flow(actors: list[Actor]) -> Iterator[Any]:
    half = len(actors) // 2
    left, right = create(actors[:half], "work").gather_async(), create(actors[half:], "work").gather_async()
    return iter(union_async(left=left.for_each(mark_left), right=right.for_each(mark_right)))


def mark_left(item: Any) -> Any:
    return "left", item


def mark_right(item: Any) -> Any:
    return "right", item


PROGRAMS: dict[str, tuple[Program, Program, bool]] = {
    "synchronous": (sync_by_hand, sync_flow, True),
    "asynchronous, two outstanding": (async_by_hand, async_flow, False),
    "union of two": (union_by_hand, union_flow, False),
}


def spawn_workers(engine: Engine, count: int, *args: Any) -> list[Actor]:
    actors = [engine.spawn(Worker, args) for _ in range(count)]
    for actor in actors:
        actor.ready.result()
    return actors


class Slice(NamedTuple):
    """A timed part of a program: its duration, and the rounds of arithmetic in its items."""

    seconds: float
    work: int


def timed_slices(program: Iterator[Any], num_items: int, num_out: int, idle: Callable[[], Any]) -> Callable[[], Slice]:
    """Return a function that times `num_items` items of a program, then waits until its actors are idle.

    Items that were requested during the previous slice, and computed since, are read first and not timed.
    """

    def run() -> Slice:
        for _ in range(num_out):
            next(program)
        items = []
        start = time.perf_counter()
        for _ in range(num_items):
            items.append(next(program))
        duration = time.perf_counter() - start
        idle()
        return Slice(duration, sum(map(work_in, items)))

    return run


def work_in(item: Any) -> int:
    """Return the rounds of arithmetic in an item, a round of items, or a marked item."""
    if isinstance(item, dict):
        return item["work"]
    return sum(work_in(part) for part in item if not isinstance(part, str))


def ratios(reference: Callable[[], Slice], other: Callable[[], Slice], runs: int, slices: int) -> dict[str, float]:
    """Return other / reference as ratios of items per second and of pace, and the duration of a slice.

    Each is the median over the runs. A run is the median of many pairs of short slices, so that both sides see the same
    machine load.
    """
    reference(), other()
    measured: dict[str, list[float]] = {"ratio": [], "pace": [], "seconds": []}
    for _ in range(runs):
        pairs = []
        gc.collect()
        for index in range(slices):
            sides = (reference, other) if index % 2 == 0 else (other, reference)
            pairs.append({side: side() for side in sides})
        measured["ratio"].append(statistics.median(pair[reference].seconds / pair[other].seconds for pair in pairs))
        measured["pace"].append(statistics.median(pair[other].work / pair[reference].work for pair in pairs))
        measured["seconds"].append(statistics.median(pair[other].seconds for pair in pairs))
    return {name: statistics.median(values) for name, values in measured.items()}


def compare(report: Report, what: str, bar: float, num_items: int, measured: dict[str, float]) -> None:
    report.row(
        what, f"at least {bar:g}", measured["ratio"] >= bar,
        ratio=measured["ratio"], pace=measured["pace"], flow_per_s=num_items / measured["seconds"],
    )  # fmt: skip


def rate(report: Report, runs: int) -> None:
    """Compare items per second of a flow and of the same program by hand, on the process engine."""
    for seconds, num_items, slices, bar in ((0.01, 32, 21, 0.98), (0.0001, 400, 61, 0.9)):
        for num_shards in (2, 16):
            for name, (by_hand, flow, in_rounds) in PROGRAMS.items():
                with make_engine("process") as engine:
                    actors = spawn_workers(engine, num_shards, seconds)
                    idle = partial(wait_for, actors)
                    pulls = num_items // (num_shards if in_rounds else 1)
                    num_out = 1 if in_rounds else 2 * num_shards
                    sides = [timed_slices(program(actors), pulls, num_out, idle) for program in (by_hand, flow)]
                    measured = ratios(*sides, runs, slices)
                what = f"{name}, {num_shards} shards, {seconds * 1000:g} ms items: flow / by hand"
                compare(report, what, bar, num_items, measured)


def wait_for(actors: list[Actor]) -> None:
    for future in [actor.call("nothing") for actor in actors]:
        future.result()


def on_ray(report: Report, runs: int) -> None:
    """Compare a flow on the ray engine with bare Ray actors and `ray.wait`."""
    import ray

    with make_engine("ray") as engine:
        bare_class = ray.remote(num_cpus=0)(Worker)
        for seconds, num_items in ((0.0001, 200), (0.01, 60)):
            for name, theirs, ours, in_rounds in (
                ("synchronous", bare_sync, sync_flow, True),
                ("asynchronous, two outstanding", bare_async, async_flow, False),
            ):
                actors = spawn_workers(engine, 2, seconds)
                bare = [bare_class.remote(seconds) for _ in range(2)]
                ray.get([actor.nothing.remote() for actor in bare])
                pulls = num_items // (2 if in_rounds else 1)
                num_out = 1 if in_rounds else 4
                reference = timed_slices(
                    theirs(bare), pulls, num_out, lambda b=bare: ray.get([actor.nothing.remote() for actor in b])
                )
                other = timed_slices(ours(actors), pulls, num_out, partial(wait_for, actors))
                measured = ratios(reference, other, runs, 21)
                what = f"{name}, 2 shards, {seconds * 1000:g} ms items: flow on the ray engine / bare Ray"
                compare(report, what, 1.0, num_items, measured)
                for actor, bare_actor in zip(actors, bare, strict=True):
                    engine.kill(actor)
                    ray.kill(bare_actor)


def bare_sync(actors: list[Any]) -> Iterator[Any]:
    import ray

    while True:
        yield ray.get([actor.work.remote() for actor in actors])


def bare_async(actors: list[Any]) -> Iterator[Any]:
    import ray

    out = {actor.work.remote(): actor for _ in range(2) for actor in actors}
    while True:
        (done,), _ = ray.wait(list(out), num_returns=1)
        actor = out.pop(done)
        yield ray.get(done)
        out[actor.work.remote()] = actor


def driver(report: Report, runs: int) -> None:
    """Measure the driver's CPU time per item, with saturated shards."""
    costs = {}
    for num_shards in (2, 64):
        with make_engine("process") as engine:
            actors = spawn_workers(engine, num_shards)
            run = async_flow(actors)
            deque(islice(run, 2000), 0)
            times = []
            for _ in range(runs):
                before = time.process_time()
                deque(islice(run, 20_000), 0)
                times.append((time.process_time() - before) / 20_000 * 1e6)
            costs[num_shards] = statistics.median(times)
    report.row("driver's CPU per item, 2 shards", "under 80 µs", costs[2] < 80, us=costs[2])
    growth = costs[64] / costs[2]
    report.row("driver's CPU per item, 64 shards / 2", "at most 1.5", growth <= 1.5, ratio=growth, us=costs[64])


def waiting(report: Report, runs: int) -> None:
    """Measure the driver's CPU use while every branch waits."""
    with make_engine("process") as engine:
        actors = spawn_workers(engine, 4)
        left, right = (
            ParIter.from_items([3.0] * 2, pair).for_each(time.sleep).gather_async() for pair in (actors[:2], actors[2:])
        )
        flow = union_async(left, right, Iter.from_items([0]).for_each(lambda _: time.sleep(0), on="thread"))
        next(flow)
        before, start = time.process_time(), time.perf_counter()
        next(flow)
        share = (time.process_time() - before) / (time.perf_counter() - start)
        flow._own_run.close()
    report.row("driver's CPU with all branches waiting", "under 1 %", share < 0.01, percent=100 * share)


def events(report: Report, runs: int) -> None:
    """Measure the cost of a subscriber that writes every event to disk."""
    with make_engine("process") as engine, tempfile.TemporaryDirectory() as folder:
        actors = spawn_workers(engine, 2, 0.001)
        plan = create(actors, "work").for_each(lambda item: item).gather_async(num_async=2).for_each(dict)

        plain, lines, traced = plan.start(), plan.start(), plan.start()
        with (Path(folder) / "events.jsonl").open("w") as file, TraceWriter(Path(folder) / "trace.json") as writer:
            lines.subscribe(lambda event: file.write(json.dumps(event) + "\n"))
            traced.subscribe(writer)
            idle = partial(wait_for, actors)
            for name, run in (("JSON lines", lines), ("a Perfetto trace", traced)):
                measured = ratios(timed_slices(plain, 200, 4, idle), timed_slices(run, 200, 4, idle), runs, 15)
                cost = 1 / measured["ratio"] - 1
                report.row(f"events written as {name}, 1 ms items", "under 2 %", cost < 0.02, percent=100 * cost)
            for run in (plain, lines, traced):
                run.close()


def memory(report: Report, runs: int) -> None:
    """Measure the driver's memory over a million items."""
    with make_engine("process") as engine:
        actors = spawn_workers(engine, 2)
        left, right = ParIter.from_range(2_000_000, actors).gather_async(num_async=16).split("left", "right")
        flow = union_async(left.batch(100), right.filter(lambda x: x % 100 == 0))
        sizes, process = [], psutil.Process()
        for number, _ in enumerate(flow):
            if number % 1000 == 0:
                sizes.append(process.memory_info().rss)
            if number == 20_000:
                break
        grown = (max(sizes[len(sizes) // 2 :]) - max(sizes[: len(sizes) // 2])) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.row(
        "memory of the driver, second half of a million items",
        "no more than the first",
        grown < 2,
        grown_mb=grown,
        peak_mb=peak,
    )


DISPLAY = ("explain.py", "analyze.py", "render.py", "diagram_layout.py", "node_text.py", "monitoring.py", "perfetto.py")
"""Modules that show a flow; they are not part of the core."""


def lines(report: Report, runs: int) -> None:
    """Count the lines of the flow layer without the modules that show it."""
    directory = Path(__file__).parents[1] / "raceway" / "flow"
    core = [file for file in sorted(directory.glob("*.py")) if file.name not in DISPLAY]
    texts = [line for file in core for line in file.read_text().splitlines()]
    not_blank = sum(bool(line.strip()) for line in texts)
    report.row("lines of the core, comments included", "reported", True, lines=not_blank, with_blank=len(texts))


PARTS = {
    "rate": rate,
    "ray": on_ray,
    "driver": driver,
    "waiting": waiting,
    "events": events,
    "memory": memory,
    "lines": lines,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    report = Report("flow")
    for name in arguments.only:
        PARTS[name](report, 2 if arguments.quick else 5)
    if not arguments.quick:
        report.write(keep=True)


if __name__ == "__main__":
    main()
