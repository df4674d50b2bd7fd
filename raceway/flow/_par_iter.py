"""`ParIter`: a stream sharded over actors. Building one runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from raceway.checks import check_int
from raceway.engine.base import Actor, Future
from raceway.errors import ConfigError
from raceway.flow._failures import Failures
from raceway.flow._gather import GatherAsync, GatherSync, ShardSpec
from raceway.flow._graph import Node, Shard, Source
from raceway.flow._iter import Iter, U
from raceway.flow._operators import ForEach
from raceway.flow._repartition import FedSource
from raceway.flow._shard import deliver
from raceway.flow._sources import DividedSource, SourceFunction, actor_object, call_method
from raceway.flow._stream import Stream, T_co

Actors = Sequence[Actor]


class ParIter(Stream[T_co]):
    """A stream in shards, each of which runs on an actor. Gather it to read it. (The examples have two `actors`.)"""

    if TYPE_CHECKING:

        def flat_map(self, function: Callable[[T_co], Iterable[U]]) -> ParIter[U]: ...
        def combine(self, function: Callable[[T_co], Iterable[U]]) -> ParIter[U]: ...
        def transform(self, function: Callable[[Iterator[T_co]], Iterable[U]]) -> ParIter[U]: ...
        def flatten(self: ParIter[Iterable[U]]) -> ParIter[U]: ...
        def batch(self, size: int) -> ParIter[list[T_co]]: ...
        def zip_with_source(self) -> ParIter[tuple[Source, T_co]]: ...

    @staticmethod
    def from_range(stop: int, actors: Actors, *, num_shards: int | None = None) -> ParIter[int]:
        """Deal out the numbers of `range(stop)` to the shards in turn.

        >>> list(ParIter.from_range(5, actors).gather_sync())
        [[0, 1], [2, 3], [4]]
        """
        numbers = range(check_int("stop", stop, 0))
        source = DividedSource(lambda shard: numbers[shard.number :: shard.total])
        return _sharded(f"from_range({stop}", actors, source, num_shards)

    @staticmethod
    def from_items(items: Sequence[U], actors: Actors, *, num_shards: int | None = None) -> ParIter[U]:
        """Deal out the items of a sequence to the shards in turn. An actor receives only the items of its shards.

        >>> list(ParIter.from_items("abc", actors).gather_sync())
        [['a', 'b'], ['c']]
        """
        if not isinstance(items, Sequence):
            raise ConfigError(f"from_items needs a sequence, not {items!r}. Use from_iterators for other iterables.")
        source = DividedSource(lambda shard: items[shard.number :: shard.total])
        return _sharded(f"from_items({len(items)} items", actors, source, num_shards)

    @staticmethod
    def from_iterators(iterators: Sequence[Iterable[U] | Callable[[], Iterable[U]]], actors: Actors) -> ParIter[U]:
        """Create one shard per collection, or per function that returns an iterable, such as a generator, on the actor.

        >>> list(ParIter.from_iterators([lambda: (x * x for x in range(3)), [7]], actors).gather_sync())
        [[0, 7], [1], [4]]
        """
        if any(isinstance(iterable, Iterator) for iterable in iterators):
            raise ConfigError("an iterator cannot be sent to an actor. Pass a function that returns it.")
        parts = list(iterators)
        source = DividedSource(lambda shard: parts[shard.number])
        return _sharded(f"from_iterators({len(iterators)}", actors, source, len(iterators))

    def for_each(self, function: Callable[[T_co], U]) -> ParIter[U]:
        """Apply a function to every item, on the actor that produced it.

        >>> list(ParIter.from_range(4, actors).for_each(lambda x: 2 * x).gather_sync())
        [[0, 2], [4, 6]]
        """
        return self._add_function(ForEach, "for_each", function)  # type: ignore[no-any-return]

    def select_shards(self, *numbers: int) -> ParIter[T_co]:
        """Keep only the shards with these numbers, in this order. Each can be kept once.

        >>> list(ParIter.from_range(4, actors).select_shards(1).gather_sync())
        [[1], [3]]
        """
        count = len(shard_specs(self._node))
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
                raise ConfigError(f"there is no shard {number!r}: the shards are numbered from 0 to {count - 1}")
            if numbers.count(number) > 1:
                raise ConfigError(f"shard {number} is selected twice, which would double its items. Name it once.")
        label = f"select_shards({', '.join(map(str, numbers))})"
        return self._change_shards(label, lambda shards: [shards[number] for number in numbers])

    def union(self: ParIter[U], *others: ParIter[U]) -> ParIter[U]:
        """Put the shards of several ParIters side by side.

        >>> left, right = ParIter.from_range(2, actors), ParIter.from_items("ab", actors)
        >>> list(left.union(right).gather_sync())
        [[0, 1, 'a', 'b']]
        """
        return self._change_shards("union", lambda shards: shards, *others)

    def repartition(self, num_shards: int, actors: Actors | None = None) -> ParIter[T_co]:
        """Deal out the items of all shards, in turn, to `num_shards` new shards on the same or other actors.

        The items pass through the driver, which gathers them synchronously: what a new shard gets depends neither on
        the number of actors nor on their speed. The sources of its items are the new shard and its actor.

        >>> list(ParIter.from_range(6, actors).filter(lambda x: x % 2).repartition(3).gather_sync())
        [[1, 3, 5]]
        """
        own_actors = [*dict.fromkeys(spec.actor for spec in shard_specs(self._node))]
        settings: Any = {"num_shards": check_int("num_shards", num_shards), "seed": 0, "movable": False}
        settings |= {"parallel": True, "actors": own_actors if actors is None else _check_actors(actors)}
        items = self.gather_sync().flatten()._node
        return ParIter(Node(f"repartition(shards={num_shards})", FedSource(), [items], **settings))

    def on_failure(self, policy: str, **settings: Any) -> ParIter[T_co]:
        """Set the failure policy: what happens when the actor of a shard dies, or an operator on it raises.

        `raise`, the default, ends the flow with an error. `drop` continues with the other shards. `restart` restarts
        the actor and continues after the last item received, with fresh operators; items in progress are lost, and
        counted. `Failures` documents the settings.

        >>> list(ParIter.from_range(2, actors).for_each(lambda x: 1 // x).on_failure("drop").gather_async())
        [1]
        """
        failures = Failures(policy=policy, **settings)
        return self._change_shards(
            f"on_failure({policy})", lambda shards: [shard._replace(failures=failures) for shard in shards]
        )

    def _change_shards(
        self, label: str, change: Callable[[list[ShardSpec]], Any], *others: ParIter[Any]
    ) -> ParIter[Any]:
        return ParIter(Node(label, change, [stream._node for stream in (self, *others)], parallel=True))

    def gather_sync(self) -> Iter[list[T_co]]:
        """Gather synchronous rounds: lists of one item per shard, in shard order. A shard that has ended is left out.

        No shard starts its next item before the next round is read, and messages sent until then are handled first.

        >>> list(ParIter.from_range(3, actors).gather_sync())
        [[0, 1], [2]]
        """
        return Iter(Node("gather_sync", partial(GatherSync, specs=shard_specs(self._node)), [self._node]))

    batch_across_shards = gather_sync

    def gather_async(self, num_async: int = 1) -> Iter[T_co]:
        """Gather items in order of completion, with at most `num_async` outstanding per shard.

        With 1, a shard starts its next item only when the stream is read again after its last one: the driver has
        processed that item by then, and messages that it sent are handled first.

        >>> list(ParIter.from_range(4, actors).gather_async())
        [0, 1, 2, 3]
        """
        specs = shard_specs(self._node)
        make_gather = partial(GatherAsync, specs=specs, num_async=check_int("num_async", num_async))
        return Iter(Node(f"gather_async(num_async={num_async})", make_gather, [self._node]))

    def __iter__(self) -> NoReturn:
        raise ConfigError(
            f"a ParIter is one stream per shard. Join them with gather_sync() or gather_async(): {self._node}"
        )


def create(
    actors: Actors, method: str | None = None, *, num_shards: int | None = None, seed: int = 0, moves: bool = False
) -> ParIter[Any]:
    """Create a stream over actors: the results of a method, or the items of their iterable objects.

    The method may declare `shard=injected`, and `number=injected` for the number of the item. It ends its stream by
    raising `StreamEnd`.

    Args:
        actors: each runs one or more shards.
        method: called for every item; by default, the actor's object is iterated.
        num_shards: dealt out to the actors in turn; by default, one per actor.
        seed: of the shards' random generators.
        moves: whether a shard may move to any idle actor. Set it only if items depend on nothing but the shard, the
            item's number, and messages that all actors receive. Shards with a `combine` or `transform` stay.

    >>> list(create(actors, "sample").take(2).gather_sync())
    [[0, 0], [1, 1]]
    """
    function = actor_object if method is None else partial(call_method, method)
    source = SourceFunction(function, parallel=True, keeps_position=True)
    return _sharded(f"create({method or 'iter'}", actors, source, num_shards, seed, moves)


def _sharded(
    label: str, actors: Actors, source: SourceFunction, num_shards: int | None, seed: int = 0, moves: bool = False
) -> ParIter[Any]:
    _check_actors(actors)
    count = len(actors) if num_shards is None else check_int("num_shards", num_shards)
    settings: Any = {"parallel": True, "num_shards": count, "seed": check_int("seed", seed, 0), "movable": moves}
    return ParIter(Node(f"{label}, shards={count})", source, (), actors=actors, **settings))


def _check_actors(actors: Actors) -> Actors:
    if not actors or not all(isinstance(actor, Actor) for actor in actors):
        raise ConfigError(f"a ParIter needs a list of actors of an engine, not {actors!r}")
    return actors


def shard_specs(node: Node) -> list[ShardSpec]:
    """Return the shards of a parallel node."""
    implementation, settings = node.spec.implementation, node.spec.settings
    if isinstance(implementation, SourceFunction):
        shards = [Shard(number, settings["num_shards"], settings["seed"]) for number in range(settings["num_shards"])]
        hosts = [node.actors[shard.number % len(node.actors)] for shard in shards]
        return [
            ShardSpec(actor, shard, (node,), movable=settings["movable"])
            for actor, shard in zip(hosts, shards, strict=True)
        ]
    specs = [spec for parent in node.parents for spec in shard_specs(parent)]
    if isinstance(implementation, type):
        return [spec._replace(nodes=(*spec.nodes, node)) for spec in specs]
    return implementation(specs)  # type: ignore[no-any-return]


def send_msg(to: Actor | Source, method: str, *args: Any, version: int | None = None, **kwargs: Any) -> Future[Any]:
    """Call a method of an actor of a flow, without waiting. The reply can be waited for: `.result()`, or `await`.

    Items that the actor starts afterwards carry `version` in their envelopes.

    >>> send_msg(actors[0], "set_weights", [0.5], version=3).result()
    """
    actor = to.actor if isinstance(to, Source) else to
    if not isinstance(actor, Actor):
        raise ConfigError(f"a message goes to an actor, or to a source with an actor handle, not to {to!r}")
    if version is not None:
        actor.notes["version"] = max(version, actor.notes.get("version", version))
    return actor.engine.send(actor, actor.engine.message(deliver, (method, version, *args), kwargs))


def send_msg_to_all(
    actors: Actors, method: str, *args: Any, version: int | None = None, **kwargs: Any
) -> list[Future[Any]]:
    """Call a method of several actors of one engine, like `send_msg`, with arguments that are encoded once.

    >>> [reply.result() for reply in send_msg_to_all(actors, "sample")]
    [0, 0]
    """
    _check_actors(actors)
    if version is not None:
        for actor in actors:
            actor.notes["version"] = max(version, actor.notes.get("version", version))
    engine = actors[0].engine
    message = engine.message(deliver, (method, version, *args), kwargs)
    return [engine.send(actor, message) for actor in actors]
