"""`ParIter`: a stream sharded over actors. Building one runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from raceway.checks import check_int
from raceway.engine.base import Actor, Future
from raceway.errors import ConfigError
from raceway.flow._gather import GatherAsync, GatherSync, ShardPlan
from raceway.flow._graph import Node, Shard, Source
from raceway.flow._guests import Failures
from raceway.flow._iter import Iter, Stream, T_co, U
from raceway.flow._operators import ForEach
from raceway.flow._shard import Origin, calls, dealt, deliver, itself, one_for_each

Actors = Sequence[Actor]


class ParIter(Stream[T_co]):
    """A stream in shards, each of which runs on an actor. To read it, gather it. (The examples have two `actors`.)"""

    if TYPE_CHECKING:

        def flat_map(self, function: Callable[[T_co], Iterable[U]]) -> ParIter[U]: ...
        def combine(self, function: Callable[[T_co], Iterable[U]]) -> ParIter[U]: ...
        def batch(self, size: int) -> ParIter[list[T_co]]: ...
        def zip_with_source(self) -> ParIter[tuple[Source, T_co]]: ...

    @staticmethod
    def from_range(stop: int, actors: Actors, *, num_shards: int | None = None) -> ParIter[int]:
        """Deal out the numbers from 0 to `stop` to the shards in turn.

        >>> list(ParIter.from_range(5, actors).gather_sync())
        [[0, 1], [2, 3], [4]]
        """
        make = partial(dealt, range(check_int("stop", stop, 0)))
        return _sharded(f"from_range({stop}", actors, Origin(make, parallel=True), num_shards)

    @staticmethod
    def from_items(items: Sequence[U], actors: Actors, *, num_shards: int | None = None) -> ParIter[U]:
        """Deal out the items of a sequence to the shards in turn.

        >>> list(ParIter.from_items("abc", actors).gather_sync())
        [['a', 'b'], ['c']]
        """
        if not isinstance(items, Sequence):
            raise ConfigError(f"from_items deals out a sequence, not {items!r}. Use from_iterators.")
        return _sharded(f"from_items({len(items)} items", actors, Origin(partial(dealt, items), True), num_shards)

    @staticmethod
    def from_iterators(iterators: Sequence[Iterable[U] | Callable[[], Iterable[U]]], actors: Actors) -> ParIter[U]:
        """Make a shard of every collection, and of what every function (a generator, say) returns on its actor.

        >>> list(ParIter.from_iterators([lambda: (x * x for x in range(3)), [7]], actors).gather_sync())
        [[0, 7], [1], [4]]
        """
        if any(isinstance(one, Iterator) for one in iterators):
            raise ConfigError("an iterator that is under way cannot be sent. Give a function that makes it.")
        origin = Origin(partial(one_for_each, list(iterators)), parallel=True)
        return _sharded(f"from_iterators({len(iterators)}", actors, origin, len(iterators))

    def for_each(self, function: Callable[[T_co], U]) -> ParIter[U]:
        """Apply a function to every item, on the actor where it was made.

        >>> list(ParIter.from_range(4, actors).for_each(lambda x: 2 * x).gather_sync())
        [[0, 2], [4, 6]]
        """
        return self._call(ForEach, "for_each", function)  # type: ignore[no-any-return]

    def select_shards(self, *numbers: int) -> ParIter[T_co]:
        """Keep these shards only.

        >>> list(ParIter.from_range(4, actors).select_shards(1).gather_sync())
        [[1], [3]]
        """
        count = len(shards_of(self._node))
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
                raise ConfigError(f"there is no shard {number!r}: there are {count}, from 0")
        return self._changed(f"select_shards({', '.join(map(str, numbers))})", lambda all: [all[i] for i in numbers])

    def union(self: ParIter[U], *others: ParIter[U]) -> ParIter[U]:
        """Put the shards of several ParIters side by side.

        >>> left, right = ParIter.from_range(2, actors), ParIter.from_items("ab", actors)
        >>> list(left.union(right).gather_sync())
        [[0, 1, 'a', 'b']]
        """
        return self._changed("union", lambda shards: shards, *others)

    def on_failure(self, policy: str, **settings: Any) -> ParIter[T_co]:
        """Say what happens when the actor of a shard dies, or something on it raises; `Failures` has the settings.

        `raise` is what happens otherwise. `drop` goes on with the other shards. `restart` restarts the actor and goes
        on, with fresh operators, after the items that were delivered; what was under way is lost, and counted.

        >>> list(ParIter.from_range(2, actors).for_each(lambda x: 1 // x).on_failure("drop").gather_async())
        [1]
        """
        failures = Failures(policy=policy, **settings)
        return self._changed(f"on_failure({policy})", lambda all: [one._replace(failures=failures) for one in all])

    def _changed(self, label: str, change: Callable[[list[ShardPlan]], Any], *others: ParIter[Any]) -> ParIter[Any]:
        return ParIter(Node(label, change, [one._node for one in (self, *others)], parallel=True))

    def gather_sync(self) -> Iter[list[T_co]]:
        """Give rounds: a list of one item of every shard, in shard order. A shard that has ended leaves the rounds.

        No shard begins its next item before the next round is asked for, and messages sent until then come first.

        >>> list(ParIter.from_range(3, actors).gather_sync())
        [[0, 1], [2]]
        """
        return Iter(Node("gather_sync", partial(GatherSync, plans=shards_of(self._node)), [self._node]))

    batch_across_shards = gather_sync

    def gather_async(self, num_async: int = 1) -> Iter[T_co]:
        """Give items in the order in which they are done, with at most `num_async` under way on a shard.

        With 1, a shard begins its next item only when the stream is asked again after its last: by then the driver has
        done with that whatever it does, and messages it sent come first.

        >>> list(ParIter.from_range(4, actors).gather_async())
        [0, 1, 2, 3]
        """
        make = partial(GatherAsync, plans=shards_of(self._node), num_async=check_int("num_async", num_async))
        return Iter(Node(f"gather_async(num_async={num_async})", make, [self._node]))

    def __iter__(self) -> NoReturn:
        raise ConfigError(f"a ParIter is many streams. Make it one, by gather_sync() or gather_async(): {self._node}")


def create(
    actors: Actors, method: str | None = None, *, num_shards: int | None = None, seed: int = 0, moves: bool = False
) -> ParIter[Any]:
    """Make a stream of what actors produce: a method is called for every item, or the actor's own object iterated.

    The method may declare `shard=given`, and `number=given` for the item's; it ends its stream by raising `StreamEnd`.
    Shards are dealt out in turn. If items depend on these two alone, `moves` has shards go to whichever actor is free.

    >>> list(create(actors, "sample").take(2).gather_sync())
    [[0, 0], [1, 1]]
    """
    origin = Origin(itself if method is None else partial(calls, method), parallel=True, goes_on=True)
    return _sharded(f"create({method or 'iter'}", actors, origin, num_shards, seed, moves)


def _sharded(
    label: str, actors: Actors, origin: Origin, num_shards: int | None, seed: int = 0, moves: bool = False
) -> ParIter[Any]:
    if not actors or not all(isinstance(actor, Actor) for actor in actors):
        raise ConfigError(f"a ParIter needs a list of actors of an engine, not {actors!r}")
    count = len(actors) if num_shards is None else check_int("num_shards", num_shards)
    settings: Any = {"parallel": True, "num_shards": count, "seed": check_int("seed", seed, 0), "moves": moves}
    return ParIter(Node(f"{label}, shards={count})", origin, (), actors=actors, **settings))


def shards_of(node: Node) -> list[ShardPlan]:
    """Return the shards that a parallel node stands for."""
    part, about = node.step.part, node.step.settings
    if isinstance(part, Origin):
        shards = [Shard(number, about["num_shards"], about["seed"]) for number in range(about["num_shards"])]
        hosts = [node.actors[shard.number % len(node.actors)] for shard in shards]
        return [ShardPlan(*both, (node,), moves=about["moves"]) for both in zip(hosts, shards, strict=True)]
    plans = [plan for parent in node.parents for plan in shards_of(parent)]
    return [plan._replace(nodes=(*plan.nodes, node)) for plan in plans] if isinstance(part, type) else part(plans)


def send_msg(to: Actor | Source, method: str, *args: Any, version: int | None = None, **kwargs: Any) -> Future[Any]:
    """Call a method of an actor of a flow, without waiting. The reply can be waited for: `.result()`, or `await`.

    Items that the actor begins afterwards carry `version` in their envelopes.

    >>> send_msg(actors[0], "set_weights", [0.5], version=3).result()
    """
    actor = to.actor if isinstance(to, Source) else to
    if not isinstance(actor, Actor):
        raise ConfigError(f"a message goes to an actor, or to a source that knows its actor, not to {to!r}")
    if version is not None:
        actor.notes["version"] = max(version, actor.notes.get("version", version))
    return actor.engine.send(actor, actor.engine.message(deliver, (method, version, *args), kwargs))
