"""Random plans for the fuzz test of flows, with the items that each must produce.

An item is a tuple: number of the source, of the shard and of the item, then what operators add to it: a name is the
branch of a split or the shard of a repartition that it came through, and a number the part of an item that was divided.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from raceway.engine.base import Actor
from raceway.flow import Iter, ParIter, Shard, StreamEnd, create, injected, send_msg, union, union_async
from tests.flow.actors import HoldBack, fail_on

Item = tuple[Any, ...]
LENGTHS = {"empty": 0, "short": 3, "long": 20}
FAILURES = ["raise"] * 6 + ["kill"] * 6 + ["hang"]
NEW_SHARD = "shard "
DEADLINE = 0.5
"""Seconds before an actor that hangs is killed."""


class Numbered:
    """Produces (shard, number). Each method ends after another number of items."""

    def ping(self) -> None:
        pass

    def empty(self) -> Item:
        raise StreamEnd

    def short(self, *, shard: Shard = injected, number: int = injected) -> Item:
        return _item_before(LENGTHS["short"], shard, number)

    def long(self, *, shard: Shard = injected, number: int = injected) -> Item:
        return _item_before(LENGTHS["long"], shard, number)


def _item_before(end: int, shard: Shard, number: int) -> Item:
    if number >= end:
        raise StreamEnd
    return shard.number, number


def as_item(value: Any, *, source: int, num_shards: int) -> Item:
    shard_and_number = (value % num_shards, value // num_shards) if isinstance(value, int) else value
    return (source, *shard_and_number)


def mark_new_shard(item: Item, *, shard: Shard = injected) -> Item:
    return (*item, f"{NEW_SHARD}{shard.number}")


def without_new_shard(item: Item) -> Item:
    """Return an item as it is expected: which shard of a repartition it came through may depend on failures."""
    return tuple(part for part in item if not str(part).startswith(NEW_SHARD))


def ping(actor: Actor) -> Any:
    return send_msg(actor, "ping")


def add_branch(item: Item, *, branch: str) -> Item:
    return (*item, branch)


def divide(item: Item) -> list[Item]:
    return [(*item, 0), (*item, 1)]


def keep_two_thirds(item: Item) -> bool:
    return bool(item[2] % 3)


def identity(item: Any) -> Any:
    return item


@dataclass
class Actors:
    """The actors that the sources of a plan share, and one for operators."""

    process: list[Actor]
    inline: list[Actor]
    operator: Actor


@dataclass
class SourcePlan:
    """What the laws depend on, for one source of a plan."""

    node: Any
    policy: str
    holds: bool = False
    """Whether operators on its shards hold items, which are lost when a shard is restarted."""


@dataclass
class Part:
    """A stream of a plan, and the items that it must produce in any order."""

    stream: Any
    expected: list[Item]
    text: str

    def then(self, stream: Any, text: str, change: Callable[[Item], list[Item]] = lambda item: [item]) -> "Part":
        return Part(stream, [result for item in self.expected for result in change(item)], f"{self.text}.{text}")


class Planner:
    """Makes the random choices of one plan: the same seed, actors and directory give the same plan again.

    Args:
        seed: of the choices.
        actors: that the plan may use.
        directory: for the marks of failures that happen once.
        policies: the failure policies to choose from.
    """

    def __init__(self, seed: int, actors: Actors, directory: str, policies: tuple[str, ...]) -> None:
        self.random = random.Random(seed)
        self.actors, self.directory, self.policies = actors, directory, policies
        self.sources: list[SourcePlan] = []
        self.uses_operator_actor = False

    def plan(self, depth: int) -> Part:
        """Return a flow with up to `depth` joins, splits and operators in the driver."""
        if depth <= 0:
            return self._gathered() if self.random.random() < 0.9 else self._driver_source()
        kind = self.random.choice(["union", "union", "split", "split", "operator", "operator", "operator", "operator"])
        if kind == "union":
            return self._union([self.plan(depth - 2), self.plan(depth - 1)])
        part = self.plan(depth - 1)
        return self._split(part) if kind == "split" else self._driver_operator(part)

    # Sources and what runs on their shards.

    def _driver_source(self) -> Part:
        source, count = len(self.sources), self.random.randint(0, 20)
        items = [(source, 0, number) for number in range(count)]
        stream = Iter.from_items(items)
        self.sources.append(SourcePlan(stream._node, "raise"))
        return Part(stream, items, f"items({count})")

    def _gathered(self) -> Part:
        part = self._shards()
        if self.random.random() < 0.15 and self.sources[-1].policy == "restart":
            part = self._repartitioned(part, self.sources[-1])
        if self.random.random() < 0.2:
            other = self._shards()
            part = Part(part.stream.union(other.stream), part.expected + other.expected, f"{part.text} + {other.text}")
        if self.random.random() < 0.4:
            return part.then(part.stream.gather_sync().flatten(), "sync")
        num_async = self.random.randint(1, 4)
        return part.then(part.stream.gather_async(num_async), f"async{num_async}")

    def _shards(self) -> Part:
        """A source with a failure policy, operators on its shards, and perhaps one failure."""
        choose, number = self.random.choice, len(self.sources)
        pools = {"process": self.actors.process, "inline": self.actors.inline}
        pools["mixed"] = pools["process"] + pools["inline"]
        where = choose(["process", "process", "process", "process", "inline", "mixed"])
        actors = self.random.sample(pools[where], self.random.randint(1, len(pools[where])))
        num_shards, kind = self.random.randint(1, 5), choose(["items", "range", "create", "moves", "moves"])
        length = choose(["empty", "short", "long", "long", "long"])
        items = [(shard, index) for index in range(LENGTHS[length]) for shard in range(num_shards)]
        if kind == "range":
            stream: Any = ParIter.from_range(len(items), actors, num_shards=num_shards)
        elif kind == "items":
            stream = ParIter.from_items(items, actors, num_shards=num_shards)
        else:
            stream = create(actors, length, num_shards=num_shards, moves=kind == "moves")
        source = SourcePlan(stream._node, choose(self.policies))
        self.sources.append(source)
        text = f"{kind}({length}, {num_shards} shards on {[actor.name for actor in actors]}, {source.policy})"
        stream = stream.for_each(partial(as_item, source=number, num_shards=num_shards))
        part = self._selected(Part(stream, [(number, *item) for item in items], text), num_shards)
        part = self._failure(part, number, FAILURES if where == "process" else ["raise"])
        for _ in range(choose([0, 0, 1, 2])):
            part = self._shard_operator(part, source)
        on_restart = ping if self.random.random() < 0.3 else None
        deadline = DEADLINE if "hangs_at" in part.text else None
        part.stream = part.stream.on_failure(source.policy, budget=10**6, deadline=deadline, on_restart=on_restart)
        return part

    def _selected(self, part: Part, num_shards: int) -> Part:
        if self.random.random() < 0.15:
            count = self.random.randint(0, 9)
            part = part.then(part.stream.take(count), f"take{count}", lambda item: [item] * (item[2] < count))
        if self.random.random() < 0.15:
            kept = self.random.sample(range(num_shards), self.random.randint(1, num_shards))
            part = part.then(part.stream.select_shards(*kept), f"shards{kept}", lambda item: [item] * (item[1] in kept))
        return part

    def _failure(self, part: Part, number: int, ways: list[str]) -> Part:
        if not part.expected or self.random.random() < 0.6:
            return part
        item, how = self.random.choice(part.expected), self.random.choice(ways)
        function = partial(fail_on, bad=item, marker=os.path.join(self.directory, f"failed-{number}"), how=how)
        return part.then(part.stream.for_each(function), f"{how}s_at{item}")

    def _repartitioned(self, part: Part, source: SourcePlan) -> Part:
        num_shards, actors = self.random.randint(1, 4), self.random.choice([None, self.actors.process])
        stream = part.stream.repartition(num_shards, actors).for_each(mark_new_shard)
        part = part.then(stream, f"repartition({num_shards} shards on {'all' if actors else 'its'} actors)")
        if self.random.random() < 0.3:
            part = self._shard_operator(part, source)
        part.stream = part.stream.on_failure("restart", budget=10**6)
        return part

    def _shard_operator(self, part: Part, source: SourcePlan) -> Part:
        kind, size = self.random.choice(["filter", "divide", "batch", "hold"]), self.random.randint(1, 4)
        source.holds |= kind != "filter"
        return self._operator(part, kind, size)

    def _operator(self, part: Part, kind: str, size: int) -> Part:
        stream = part.stream
        if kind == "filter":
            return part.then(stream.filter(keep_two_thirds), kind, lambda item: [item] * keep_two_thirds(item))
        if kind == "divide":
            return part.then(stream.flat_map(divide), kind, divide)
        if kind == "hold":
            return part.then(stream.combine(HoldBack(size)), f"hold{size}")
        return part.then(stream.batch(size).flat_map(list), f"batch{size}")

    # What runs in the driver.

    def _driver_operator(self, part: Part) -> Part:
        kind = self.random.choice(["filter", "divide", "batch", "hold", "queue", "thread", "actor"])
        size = self.random.randint(1, 4)
        if kind == "queue":
            return part.then(part.stream.queue(size), f"queue{size}")
        if kind == "thread":
            return part.then(part.stream.for_each(identity, on="thread", queue=size), f"thread{size}")
        if kind == "actor":
            self.uses_operator_actor = True
            return part.then(part.stream.for_each(identity, on=self.actors.operator, queue=size), f"actor{size}")
        return self._operator(part, kind, size)

    def _union(self, parts: list[Part]) -> Part:
        streams, expected = [part.stream for part in parts], [item for part in parts for item in part.expected]
        text = ", ".join(part.text for part in parts)
        if self.random.random() < 0.5:
            return Part(union_async(*streams), expected, f"union_async({text})")
        weights = [self.random.choice([1, 2, 0.5]) for _ in parts]
        return Part(union(*streams, weights=weights), expected, f"union({text}, weights={weights})")

    def _split(self, part: Part) -> Part:
        names = "abc"[: self.random.randint(2, 3)]
        branches = part.stream.split(*names, buffer=10**6)
        marked = [
            part.then(branch.for_each(partial(add_branch, branch=name)), name, lambda item, name=name: [(*item, name)])
            for name, branch in zip(names, branches, strict=True)
        ]
        joined = self._union([self._driver_operator(branch) for branch in marked])
        return Part(joined.stream, joined.expected, f"split({joined.text})")
