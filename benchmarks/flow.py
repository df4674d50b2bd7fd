"""What a flow costs beside the same program written by hand on the engine's verbs, and beside bare Ray actors.

python benchmarks/flow.py [--only rate ray driver waiting events memory lines] [--quick]
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _harness import Report

from raceway.engine import make_engine
from raceway.engine._core import EngineCore
from raceway.engine.base import Actor
from raceway.flow import Event, Iter, ParIter, create, union_async
from raceway.flow.trace import TraceWriter

Program = Callable[[list[Actor], int], None]


def busy(seconds: float) -> int:
    """Return how many rounds of arithmetic take so long here."""
    rounds = 1000
    while True:
        begin = time.thread_time()
        churn(rounds)
        spent = time.thread_time() - begin
        if spent > 0.02:
            return max(1, int(rounds * seconds / spent))
        rounds *= 2


def churn(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number & 3
    return total


class Worker:
    """Makes items of four small arrays, each with so much work."""

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds
        self.item = {name: np.zeros(8, np.float32) for name in ("obs", "action", "reward", "done")}

    def work(self) -> dict[str, np.ndarray]:
        churn(self.rounds)
        return self.item

    def nothing(self) -> None:
        pass


# The same three programs, by hand and as flows.


def sync_by_hand(actors: list[Actor], num_items: int) -> None:
    for _ in range(num_items // len(actors)):
        for future in [actor.call("work") for actor in actors]:
            future.result()


def sync_flow(actors: list[Actor], num_items: int) -> None:
    for _ in create(actors, "work").gather_sync().take(num_items // len(actors)):
        pass


def async_by_hand(actors: list[Actor], num_items: int) -> None:
    engine = actors[0].engine
    futures = [actor.call("work") for _ in range(2) for actor in actors]
    num_done = 0
    while num_done < num_items:
        done, futures = engine.wait(futures, count=1)
        for future in done:
            future.result()
            futures.append(future.actor.call("work"))
        num_done += len(done)
    engine.wait(futures)


def async_flow(actors: list[Actor], num_items: int) -> None:
    for _ in create(actors, "work").gather_async(num_async=2).take(num_items):
        pass


def union_by_hand(actors: list[Actor], num_items: int) -> None:
    engine = actors[0].engine
    half = len(actors) // 2
    futures = [actor.call("work") for actor in actors]
    of = dict.fromkeys(actors[:half], "left") | dict.fromkeys(actors[half:], "right")
    counts = {"left": 0, "right": 0}
    while sum(counts.values()) < num_items:
        done, futures = engine.wait(futures, count=1)
        for future in done:
            future.result()
            counts[of[future.actor]] += 1
            futures.append(future.actor.call("work"))
    engine.wait(futures)


def union_flow(actors: list[Actor], num_items: int) -> None:
    half = len(actors) // 2
    left, right = create(actors[:half], "work").gather_async(), create(actors[half:], "work").gather_async()
    for _ in union_async(left=left, right=right).take(num_items):
        pass


PROGRAMS: dict[str, tuple[Program, Program]] = {
    "synchronous": (sync_by_hand, sync_flow),
    "asynchronous, two outstanding": (async_by_hand, async_flow),
    "union of two": (union_by_hand, union_flow),
}


def started(engine: EngineCore, count: int, *args: Any) -> list[Actor]:
    actors = [engine.spawn(Worker, args) for _ in range(count)]
    for actor in actors:
        actor.ready.result()
    return actors


def settled(program: Program, actors: list[Actor], num_items: int) -> Callable[[], None]:
    """Return a run of a program that ends when its actors have done all that was asked of them."""

    def run() -> None:
        program(actors, num_items)
        for future in [actor.call("nothing") for actor in actors]:
            future.result()

    return run


def ratios(reference: Callable[[], None], other: Callable[[], None], runs: int, slices: int = 6) -> tuple[float, float]:
    """Return the median over the runs of reference / other, and the median seconds of the other for one slice.

    A run is several slices of both in turn: the machine's mood changes within a second, and both must see it.
    """
    reference(), other()
    found, seconds = [], []
    for _ in range(runs):
        taken = {reference: 0.0, other: 0.0}
        for place in range(slices):
            for side in (reference, other) if place % 2 == 0 else (other, reference):
                gc.collect()
                begin = time.perf_counter()
                side()
                taken[side] += time.perf_counter() - begin
        found.append(taken[reference] / taken[other])
        seconds.append(taken[other] / slices)
    return statistics.median(found), statistics.median(seconds)


def rate(report: Report, runs: int) -> None:
    """Compare items a second of a flow and of the same program by hand, on the process engine."""
    for seconds, num_items, bar in ((0.01, 64, 0.98), (0.0001, 2000, 0.9)):
        rounds = busy(seconds)
        for num_shards in (2, 16):
            with make_engine("process") as engine:
                actors = started(engine, num_shards, rounds)
                for name, (by_hand, flow) in PROGRAMS.items():
                    ratio, taken = ratios(settled(by_hand, actors, num_items), settled(flow, actors, num_items), runs)
                    report.row(
                        f"{name}, {num_shards} shards, {seconds * 1000:g} ms items: flow / by hand",
                        f"at least {bar}",
                        ratio >= bar,
                        ratio=ratio,
                        flow_per_s=num_items / taken,
                    )


def on_ray(report: Report, runs: int) -> None:
    """Compare a flow on the ray engine with bare Ray actors and `ray.wait`."""
    import ray

    with make_engine("ray") as engine:
        bare_class = ray.remote(num_cpus=0)(Worker)
        for seconds, num_items in ((0.0001, 400), (0.01, 80)):
            rounds = busy(seconds)
            actors = started(engine, 2, rounds)
            bare = [bare_class.remote(rounds) for _ in range(2)]
            ray.get([one.work.remote() for one in bare])
            programs = {
                "synchronous": (bare_sync, sync_flow),
                "asynchronous, two outstanding": (bare_async, async_flow),
            }
            for name, (theirs, ours) in programs.items():
                ratio, taken = ratios(partial(theirs, bare, num_items), settled(ours, actors, num_items), runs)
                report.row(
                    f"{name}, 2 shards, {seconds * 1000:g} ms items: flow on the ray engine / bare Ray",
                    "at least 1",
                    ratio >= 1.0,
                    ratio=ratio,
                    flow_per_s=num_items / taken,
                )


def bare_sync(actors: list[Any], num_items: int) -> None:
    import ray

    for _ in range(num_items // len(actors)):
        ray.get([actor.work.remote() for actor in actors])


def bare_async(actors: list[Any], num_items: int) -> None:
    import ray

    out = {actor.work.remote(): actor for _ in range(2) for actor in actors}
    for _ in range(num_items):
        (done,), _ = ray.wait(list(out), num_returns=1)
        actor = out.pop(done)
        ray.get(done)
        out[actor.work.remote()] = actor
    ray.get(list(out))


def driver(report: Report, runs: int) -> None:
    """Measure the driver's own CPU time an item, with the shards saturated."""
    costs = {}
    for num_shards in (2, 64):
        with make_engine("process") as engine:
            actors = started(engine, num_shards)
            async_flow(actors, 2000)
            found = []
            for _ in range(runs):
                before = time.process_time()
                async_flow(actors, 20_000)
                found.append((time.process_time() - before) / 20_000 * 1e6)
            costs[num_shards] = statistics.median(found)
    report.row("driver's CPU an item, 2 shards", "under 80 µs", costs[2] < 80, us=costs[2])
    growth = costs[64] / costs[2]
    report.row("driver's CPU an item, 64 shards / 2", "at most 1.5", growth <= 1.5, ratio=growth, us=costs[64])


def waiting(report: Report, runs: int) -> None:
    """Measure the driver's CPU while every branch waits."""
    with make_engine("process") as engine:
        actors = started(engine, 4)
        left, right = (
            ParIter.from_items([3.0] * 2, pair).for_each(time.sleep).gather_async() for pair in (actors[:2], actors[2:])
        )
        flow = union_async(left, right, Iter.from_items([0]).for_each(lambda _: time.sleep(0), on="thread"))
        next(flow)
        before, begin = time.process_time(), time.perf_counter()
        next(flow)
        share = (time.process_time() - before) / (time.perf_counter() - begin)
        flow._own.close()
    report.row("driver's CPU with all branches waiting", "under 1 %", share < 0.01, percent=100 * share)


def events(report: Report, runs: int) -> None:
    """Measure what a subscriber costs that writes every event to disk."""
    with make_engine("process") as engine, tempfile.TemporaryDirectory() as folder:
        actors = started(engine, 2, busy(0.001))
        plan = create(actors, "work").for_each(lambda item: item).gather_async(num_async=2).for_each(len).take(400)

        def plain() -> None:
            for _ in plan:
                pass

        def watched() -> None:
            with TraceWriter(Path(folder) / "trace.json") as writer, plan.start() as run:
                run.subscribe(writer)
                for _ in run:
                    pass

        def as_lines() -> None:
            with (Path(folder) / "events.jsonl").open("w") as file, plan.start() as run:

                def write(event: Event) -> None:
                    file.write(json.dumps(event) + "\n")

                run.subscribe(write)
                for _ in run:
                    pass

        for name, side in (("JSON lines", as_lines), ("a Perfetto trace", watched)):
            ratio, _ = ratios(plain, side, runs)
            cost = 1 / ratio - 1
            report.row(f"events written as {name}, 1 ms items", "under 2 %", cost < 0.02, percent=100 * cost)


def memory(report: Report, runs: int) -> None:
    """Watch the driver's memory over a million items."""
    with make_engine("process") as engine:
        actors = started(engine, 2)
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


def lines(report: Report, runs: int) -> None:
    """Count the lines of the flow layer without explain and tracing."""
    folder = Path(__file__).parents[1] / "raceway" / "flow"
    core = [
        file
        for file in sorted(folder.glob("*.py"))
        if file.name not in ("explain.py", "draw.py", "tracing.py", "trace.py")
    ]
    texts = [line for file in core for line in file.read_text().splitlines()]
    written = sum(bool(line.strip()) for line in texts)
    report.row(
        "lines of the core, comments included", "at most 1241", written <= 1241, lines=written, with_blank=len(texts)
    )


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
    if arguments.only == list(PARTS):
        report.write()


if __name__ == "__main__":
    main()
