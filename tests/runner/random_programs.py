"""Random programs of nested calls: what workers run, and what it should return. See `fuzz` for what is done with them.

It imports little, as every worker imports it.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.errors import ActorDied, Cancelled, DeadlineExceeded, DeadlockError
from raceway.runner import ObjectRef, Runner, patch_object
from tests.runner.services import concatenate


@dataclass(frozen=True)
class Node:
    """A call: what it does, and the calls that it makes."""

    kind: str
    label: int
    service: int
    """The service that runs it: an index of `Box.services`."""
    children: tuple["Node", ...] = ()

    def all(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            yield from child.all()


@dataclass
class Box:
    """What every call needs to make others."""

    rr: Runner
    services: list[Any]
    instance: Any
    hasty: Any
    """A service with a short deadline."""

    def call(self, node: Node) -> Any:
        service = self.services[node.service]
        return service.run(self, node) if node.service % 2 else service(self, node)


# The kinds of calls with others below them: how they make and combine them.


def get_all(box: Box, node: Node) -> list[Any]:
    return box.rr.get([box.call(child) for child in node.children])


def select(box: Box, node: Node) -> list[Any]:
    futures = [box.call(child) for child in node.children]
    results = {id(future): future.get() for future in box.rr.select(futures)}
    return [results[id(future)] for future in futures]


def wait_for_some(box: Box, node: Node) -> list[Any]:
    futures = [box.call(child) for child in node.children]
    pending = futures
    while pending:
        _, pending = box.rr.wait(pending, count=1)
    return [future.get() for future in futures]


def poll(box: Box, node: Node) -> list[Any]:
    results = []
    for child in node.children:
        future = box.call(child)
        while not (future.done() or future.wait(0.001)):
            pass
        results.append(future.get())
    return results


def use_threads(box: Box, node: Node) -> list[Any]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda child: box.call(child).get(), node.children))


def pass_futures(box: Box, node: Node) -> list[Any]:
    """Pass each future to another call, directly and in a container."""
    futures = [box.call(child) for child in node.children]
    identities = [box.services[0](box, "identity", future) for future in futures]
    opened = box.services[0](box, "open", futures)
    results: list[Any] = box.rr.get(identities)
    assert same(box.rr.get(opened), results)
    return results


def refer_to_results(box: Box, node: Node) -> list[Any]:
    return [box.rr.get_object(box.call(child).ref()) for child in node.children]


def try_again(box: Box, node: Node) -> list[Any]:
    """Repeat calls whose worker was killed."""
    results = []
    for child in node.children:
        for attempt in range(3):
            try:
                results.append(box.call(child).get())
                break
            except ActorDied:
                if attempt == 2:
                    raise
    return results


COMBINING = {
    function.__name__: function
    for function in (get_all, select, wait_for_some, poll, use_threads, pass_futures, refer_to_results, try_again)
}


# The kinds whose result does not depend on the calls that they make.


def abandon(box: Box, node: Node) -> None:
    for child in node.children:
        box.call(child)


def take_first(box: Box, node: Node) -> None:
    futures = [box.call(child) for child in node.children]
    if futures:
        next(box.rr.select(futures))


def cancel(box: Box, node: Node) -> None:
    futures = [box.call(child) for child in node.children]
    for future in futures:
        if future.cancel():
            try:
                future.get()
            except Cancelled:
                continue
            raise AssertionError("a cancelled call has a result")


def append_to_object(box: Box, node: Node) -> None:
    ref = box.rr.put_object([node.label])
    calls = [box.services[0](box, "append", [ref], number) for number in range(4)]
    calls += [box.services[0](box, "append", [str(ref)], number) for number in range(4, 6)]
    box.rr.get(calls)
    assert sorted(box.rr.get_object(ref, concatenate)[1:]) == list(range(6))
    box.rr.compact_object(ref, concatenate)
    box.rr.update_object(ref, [*box.rr.get_object(ref), "updated"])
    assert box.rr.get(box.services[0](box, "identity", ref))[0] == node.label


def use_instance(box: Box, node: Node) -> None:
    assert box.instance.touch(node.label).get() == node.label
    try:
        box.instance.call_itself(box.instance).get()
    except DeadlockError:
        return
    raise AssertionError("an instance waited for itself")


def exceed_deadline(box: Box, node: Node) -> None:
    try:
        box.hasty(600).get()
    except DeadlineExceeded:
        return
    raise AssertionError("a call outlived its deadline")


INDEPENDENT = {
    function.__name__: function
    for function in (abandon, take_first, cancel, append_to_object, use_instance, exceed_deadline)
}


def run(box: Box, node: Any, *args: Any) -> Any:
    """Run a call in a worker."""
    if isinstance(node, str):
        return _help(node, *args)
    if node.kind == "value":
        return node.label
    if node.kind == "array":
        return np.full(20_000, node.label)
    if node.kind == "fail":
        raise LookupError(node.label)
    if node.kind in INDEPENDENT:
        INDEPENDENT[node.kind](box, node)
        return node.label
    return [node.label, *COMBINING[node.kind](box, node)]


def _help(verb: str, value: Any, number: int = 0) -> Any:
    """Run one of the small calls that the others make."""
    if verb == "append":
        patch_object(ObjectRef.from_text(value[0]) if isinstance(value[0], str) else value[0], number)
        return None
    return [future.get() for future in value] if verb == "open" else value


class Class:
    """The same as a class."""

    def run(self, box: Box, node: Any) -> Any:
        return run(box, node)


class Instance:
    """A stateful object."""

    def touch(self, label: int) -> int:
        return label

    def call_itself(self, service: Any) -> Any:
        return service.touch(0).get()


# What a tree of calls should return.


def result(node: Node) -> Any:
    """Evaluate a tree by hand."""
    if node.kind in COMBINING:
        return [node.label, *(result(child) for child in node.children)]
    return np.full(20_000, node.label) if node.kind == "array" else node.label


def failures(node: Node) -> set[int]:
    """Return the labels of the failures that reach the caller."""
    if node.kind == "fail":
        return {node.label}
    return set().union(*(failures(child) for child in node.children)) if node.kind in COMBINING else set()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(np.all(a == b))


def random_tree(rng: random.Random, labels: Iterator[int], depth: int) -> Node:
    kinds = ["value"] * 3 + ["array"] + ["fail"] * (rng.random() < 0.2)
    if depth:
        kinds = [*COMBINING] * 2 + [*INDEPENDENT, *kinds]
    kind, label, service = rng.choice(kinds), next(labels), rng.randrange(4)
    num_children = 0 if kind in ("value", "array", "fail") else rng.randint(0, 3)
    return Node(kind, label, service, tuple(random_tree(rng, labels, depth - 1) for _ in range(num_children)))
