"""Actors and operators for the tests of flows."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from raceway.engine import make_engine
from raceway.engine.base import Actor, ActorContext, Engine
from raceway.flow import Shard, StreamEnd, create, injected


class Counter:
    """Produces (its number, count), and logs its calls in order."""

    def __init__(self, number: int = 0, last: int = 10**9) -> None:
        self.number = number
        self.last = last
        self.count = 0
        self.log: list[Any] = []
        self.weights = 0

    def make(self) -> tuple[int, int]:
        if self.count >= self.last:
            raise StreamEnd
        self.count += 1
        self.log.append(("make", self.count))
        return self.number, self.count

    def make_slowly(self) -> tuple[int, int]:
        time.sleep(0.1 if self.number == 0 else 0.001)
        return self.make()

    def of_shard(self, *, shard: Shard = injected) -> tuple[int, float]:
        self.count += 1
        return shard.number, float(shard.generator(self.count).random())

    def stop_iteration(self) -> Any:
        return next(iter(()))

    def set_weights(self, weights: int) -> int:
        self.log.append(("weights", weights))
        self.weights = weights
        return weights

    def get(self, name: str) -> Any:
        return getattr(self, name)

    def pid(self) -> int:
        return os.getpid()


class Countdown:
    """A finite iterator with a state."""

    def __init__(self, start: int) -> None:
        self.left = start

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left

    def state(self) -> int:
        return self.left

    def restore(self, state: int) -> None:
        self.left = state


class Aggregator:
    """An actor that runs a flow over its own actors."""

    def __init__(self, engine: str, num_workers: int) -> None:
        self.engine = make_engine(engine)
        self.workers = [self.engine.spawn(Counter, (number,)) for number in range(num_workers)]
        flow = create(self.workers, "make").for_each(lambda item: item[1]).gather_sync().for_each(sum)
        self.run = iter(flow)

    def total(self) -> int:
        return next(self.run)

    def shut_down(self) -> None:
        self.run.close()
        self.engine.close()


class Fragile:
    """Produces (its number, count, weights). Tests kill it."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.count = 0
        self.weights = 0

    def make(self) -> tuple[int, int, int]:
        self.count += 1
        return self.number, self.count, self.weights

    def set_weights(self, weights: int) -> None:
        self.weights = weights

    def bad_weights(self, weights: int) -> None:
        raise ValueError(f"no weights {weights}")


def _count_guests(context: ActorContext) -> int:
    return len([key for key in context.guests if key != "version"])


def num_guests(actor: Actor) -> int:
    """Return the number of shards and operators that live on an actor."""
    return int(actor.engine.send(actor, actor.engine.message(_count_guests)).result(30))


def fail_on(value: Any, *, bad: Any, marker: str, how: str = "kill") -> Any:
    """Kill or hang the process, or raise, on the item `bad`, if the file `marker` does not exist yet."""
    if value == bad:
        try:
            with open(marker, "x"):  # of several processes, one creates it
                pass
        except FileExistsError:
            return value
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(3600)
        raise RuntimeError(f"bad item {value}")
    return value


class Sum:
    """A running sum: an operator whose state is a plain attribute."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, value: int) -> int:
        self.total += value
        return self.total


class OneBehind:
    """Passes on the item before each one, and the last at the end."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def __call__(self, item: Any) -> list[Any]:
        previous, self.last = self.last, [item]
        return previous

    def finish(self) -> list[Any]:
        return self.last


class Pairs:
    """Holds every first item back until the second arrives."""

    def __init__(self) -> None:
        self.first: Any = None

    def __call__(self, value: Any) -> list[Any]:
        if self.first is None:
            self.first = [value]
            return []
        pair, self.first = (self.first[0], value), None
        return [pair]

    def finish(self) -> list[Any]:
        return [] if self.first is None else [(self.first[0],)]


class HoldBack:
    """Holds `size` items back and returns them together; the rest at the end."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: list[Any] = []

    def __call__(self, item: Any) -> list[Any]:
        self.held.append(item)
        return self.finish() if len(self.held) == self.size else []

    def finish(self) -> list[Any]:
        held, self.held = self.held, []
        return held


def two_counters(engine: Engine) -> list[Actor]:
    """Spawn two Counters."""
    return [engine.spawn(Counter, (number,), name=f"counter-{number}") for number in range(2)]
