"""Random flows with random kills, checked against the laws of flows.

    python -m tests.flow.fuzz --seconds 120              random seeds for two minutes
    python -m tests.flow.fuzz --seconds 0 --seed 17      one seed

Whatever happens to its actors, a flow ends, fails with a FlowError or is closed; no item comes twice, and the items of
a shard come in order. Under `restart` no item is missing, except those that operators on the shards held, which are
counted. Under `drop`, only items of dropped shards are missing. The same holds for a run that continues from a state.
"""

import argparse
import contextlib
import faulthandler
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.errors import ActorError, FlowError
from raceway.flow import Run
from tests.flow.actors import num_guests
from tests.flow.fuzz_plans import Actors, Item, Numbered, Part, Planner, without_new_shard

CEILING = 120.0
"""Seconds after which a flow counts as hung."""


class Pool:
    """Actors for one case after the other. Those that died or were restarted are replaced."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {name: make_engine(name) for name in ("process", "inline")}
        self._actors: dict[str, Actor] = {}

    def actors(self) -> Actors:
        """Return living actors that never were restarted, so that their first restart comes without a pause."""
        process, operator = [self._actor(f"process-{number}") for number in range(3)], self._actor("process-operator")
        self._engines["process"].wait([actor.ready for actor in (*process, operator)])
        return Actors(process, [self._actor(f"inline-{number}") for number in range(2)], operator)

    def _actor(self, name: str) -> Actor:
        actor = self._actors.get(name)
        if actor is None or actor.incarnation or not actor.alive:
            engine = self._engines[name.partition("-")[0]]
            if actor is not None:
                engine.kill(actor)
            self._actors[name] = engine.spawn(Numbered, name=name, resources={"cpus": 0.1})
        return self._actors[name]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


@dataclass
class Reading:
    """What one run of a flow produced."""

    items: list[Item]
    states: list[tuple[int, str, Any]] = field(default_factory=list)
    """States saved on the way: number of items before it, what became of items in flight, and the state."""
    error: FlowError | None = None
    stopped: bool = False
    num_lost: int = 0
    dropped: set[tuple[int, int]] = field(default_factory=set)
    """Source and shard of what was dropped."""


class Case:
    """One random plan, and what is done to it while it runs."""

    def __init__(self, seed: int, actors: Actors, directory: str) -> None:
        self.seed, self.actors, self.directory = seed, actors, directory
        self.random = random.Random(f"case {seed}")
        every = ("restart", "drop", "raise")
        self.policies = self.random.choice([("restart",), ("restart",), ("restart", "drop"), ("drop",), every])
        self.depth = self.random.randint(0, 4)
        self.victims = [actors.operator] if self.random.random() < 0.05 else actors.process
        self.num_kills = 0
        self.planner, self.plan = self._new_plan()

    def __repr__(self) -> str:
        return f"seed {self.seed}: {self.plan.text}"

    def _new_plan(self) -> tuple[Planner, Part]:
        planner = Planner(self.seed, self.actors, self.directory, self.policies)
        return planner, planner.plan(self.depth)

    def run(self) -> None:
        """Read the flow while actors are killed, then continue from its states, and check what was read."""
        total = len(self.plan.expected)
        kills = [self.random.randint(0, total) for _ in range(self.random.choice([0, 1, 2, 4]))]
        saves = [self.random.randint(0, total) for _ in range(self.random.choice([0, 0, 1, 2]))]
        stop = self.random.randint(0, total) if self.random.random() < 0.1 else None
        with self._kill_at_random_times():
            first = self._read(Reading([]), None, kills, saves, stop)
        self._check(first, complete=not first.stopped)
        for count, in_flight, state in first.states:
            kills = [self.random.randint(count, total)] if self.random.random() < 0.3 else []
            start = Reading(first.items[:count], num_lost=first.num_lost, dropped=set(first.dropped))
            self._check(self._read(start, state, kills, [], None), complete=in_flight == "drain")

    def _read(self, reading: Reading, state: Any, kills: list[int], saves: list[int], stop: int | None) -> Reading:
        planner, plan = self._new_plan()
        with plan.stream.start(state=state) as run:
            try:
                while len(reading.items) != stop:
                    self._disturb(run, reading, kills, saves)
                    reading.items.append(next(run))
                reading.stopped = True
            except StopIteration:
                pass
            except FlowError as error:
                reading.error = error
        reading.num_lost += run.counts["lost"]
        numbers = {source.node: number for number, source in enumerate(planner.sources)}
        shards = [shard for stage in run.stages.values() for shard in getattr(stage, "shards", ())]
        reading.dropped |= {(numbers[s.spec.nodes[0]], s.spec.shard.number) for s in shards if s.dropped}
        return reading

    def _disturb(self, run: Run[Any], reading: Reading, kills: list[int], saves: list[int]) -> None:
        count = len(reading.items)
        for _ in range(kills.count(count)):
            self._kill(self.random.choice(self.victims))
        for _ in range(saves.count(count)):
            in_flight = self.random.choice(["drain", "drain", "drain", "drop"])
            reading.states.append((count, in_flight, run.state(in_flight=in_flight)))

    def _kill(self, actor: Actor) -> None:
        with contextlib.suppress(ProcessLookupError):
            if actor.pid is not None and actor.alive:
                os.kill(actor.pid, signal.SIGKILL)
                self.num_kills += 1

    @contextlib.contextmanager
    def _kill_at_random_times(self) -> Iterator[None]:
        """In some cases, kill actors while others are started, restarted, or asked for their state."""
        pauses = [self.random.uniform(0, 0.05) for _ in range(self.random.choice([0, 0, 0, 2, 4]))]
        plan = [(pause, self.random.choice(self.victims)) for pause in pauses]
        over = threading.Event()

        def kill() -> None:
            for pause, actor in plan:
                if not over.wait(pause):
                    self._kill(actor)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    # The laws.

    def _check(self, reading: Reading, complete: bool) -> None:
        extra = Counter(map(without_new_shard, reading.items)) - Counter(self.plan.expected)
        assert not extra, f"items came twice, or from nowhere: {dict(extra)}"
        streams: dict[Any, list[Any]] = {}
        for source, shard, *rest in reading.items:
            branches = tuple(part for part in rest if isinstance(part, str))
            streams.setdefault((source, shard, branches), []).append([n for n in rest if not isinstance(n, str)])
        unordered = [key for key, numbers in streams.items() if numbers != sorted(numbers)]
        assert not unordered, f"items of these sources, shards and branches are out of order: {unordered}"
        if reading.error is not None:
            policies = {source.policy for source in self.planner.sources}
            may_fail = policies != {"restart"} or self.planner.uses_operator_actor
            assert may_fail, f"the failure policies {policies} tolerate what it failed with"
        elif complete:
            self._check_missing(reading)

    def _check_missing(self, reading: Reading) -> None:
        missing = Counter(self.plan.expected) - Counter(map(without_new_shard, reading.items))
        held = set()
        for item in missing:
            source = self.planner.sources[item[0]]
            if source.policy == "restart" and source.holds:
                held.add(item[:3])
            elif item[:2] not in reading.dropped:
                raise AssertionError(f"items are missing under {source.policy!r}: {sorted(missing, key=str)[:9]}")
        assert len(held) <= reading.num_lost, f"{len(held)} items were lost, and only {reading.num_lost} counted"


def check_seed(seed: int, pool: Pool) -> Case:
    """Run the case of a seed. Raise an AssertionError that names it if it breaks a law or hangs."""
    actors = pool.actors()
    with tempfile.TemporaryDirectory() as directory:
        case = Case(seed, actors, directory)
        failures: list[BaseException] = []
        thread = threading.Thread(target=_run_and_record, args=(case, failures), daemon=True)
        thread.start()
        thread.join(CEILING)
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
            raise AssertionError(f"it hangs. {_how_to_repeat(case)}")
        if failures:
            raise AssertionError(f"{failures[0]}. {_how_to_repeat(case)}") from failures[0]
    for actor in (*actors.process, *actors.inline, actors.operator):
        if actor.alive:
            with contextlib.suppress(ActorError):
                assert num_guests(actor) == 0, f"{actor.name} still has guests. {_how_to_repeat(case)}"
    return case


def _run_and_record(case: Case, failures: list[BaseException]) -> None:
    try:
        case.run()
    except BaseException as error:
        failures.append(error)


def _how_to_repeat(case: Case) -> str:
    return f"Repeat it with `python -m tests.flow.fuzz --seconds 0 --seed {case.seed}`. {case!r}"


def main() -> None:
    """Check seeds until the time is up or one breaks a law."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to run; one seed is checked in any case")
    parser.add_argument("--seed", type=int, help="the first seed; random by default")
    options = parser.parse_args()
    logging.getLogger("raceway").setLevel(logging.CRITICAL)  # it warns of every restart
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"flows from seed {seed}", flush=True)
    end, num_flows, num_kills = time.monotonic() + options.seconds, 0, 0
    pool = Pool()
    try:
        while not num_flows or time.monotonic() < end:
            num_kills += check_seed(seed + num_flows, pool).num_kills
            num_flows += 1
    finally:
        pool.close()
    print(f"{num_flows} flows, {num_kills} kills: every law held")


if __name__ == "__main__":
    main()
