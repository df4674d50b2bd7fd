"""The part of a flow that runs in an actor: a source and the operators behind it, pulled one item at a time."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter as _clock
from typing import Any

from raceway import state as states
from raceway.engine.base import ActorContext
from raceway.flow._graph import NoItem, OperatorSpec, Shard, Source, resolve_envelope
from raceway.flow._operators import ForEach, Operator, Stage, Take
from raceway.flow._sources import SourceReader
from raceway.flow.monitoring import CounterValues

_REPORT_SECONDS = 0.2  # how often a shard sends its counters along with an item


class RunningShard:
    """A shard in its actor.

    Args:
        context: of the actor.
        specs: the source and the operators, in order.
        shard: its number and seed.
        source: the source in the envelopes of its items.
        measure: whether to measure the size of items.
        positions: of the source and of `take` operators, after a restart.
        state: to restore, or None.
    """

    def __init__(
        self,
        context: ActorContext,
        specs: Sequence[OperatorSpec],
        shard: Shard,
        source: Source,
        measure: bool,
        positions: Sequence[int],
        state: Any,
    ) -> None:
        self._context = context
        reader = specs[0].implementation.make_reader(specs[0], {"actor": context.object, "shard": shard}, measure)
        reader.actor_context, reader.sources = context, (source,)
        self._operators: list[Operator] = [reader]
        for spec in specs[1:]:
            self._operators.append(spec.implementation(self._operators[-1], spec, reader.context, measure))
        self._positioned: list[Any] = [op for op in self._operators if isinstance(op, (SourceReader, Take))]
        for op, position in zip(self._positioned, positions, strict=False):
            op.position, op.ended = position, isinstance(op, Take) and position >= op.count
        self._idle_since = self._next_report = _clock()
        if state is not None:
            for op, op_state in zip(self._operators, state["operators"], strict=True):
                op.restore(op_state)
            context.guests["version"] = state["version"]
            states.restore_actor(context.object, state["actor"], shard)

    def pull(self) -> tuple[Any, ...]:
        """Return the next item: value, envelope fields, positions, number of items held, counters (or None).

        At the end of the stream, return a tuple of the counters alone; if it needs to be fed, return the positions and
        the number of items held.
        """
        self._operators[0].meter.waiting += _clock() - self._idle_since
        answer = self._operators[-1].poll()
        self._idle_since = now = _clock()
        if answer is NoItem.END:
            return (self.report(),)
        num_held = sum([op.num_held for op in self._operators[1:]]) if len(self._operators) > 1 else 0
        if isinstance(answer, NoItem):
            return [op.position for op in self._positioned], num_held
        report = None
        if now >= self._next_report:
            self._next_report, report = now + _REPORT_SECONDS, self.report()
        return answer[0], resolve_envelope(answer[1])[1:6], [op.position for op in self._positioned], num_held, report

    def feed(self, value: Any, envelope_fields: tuple[Any, ...]) -> None:
        """Add an item for the source of a repartition to read."""
        self._operators[0].inbox.append((value, envelope_fields))  # type: ignore[attr-defined]

    def finish(self) -> None:
        """End the source of a repartition, after the items that it was fed."""
        self._operators[0].finished = True  # type: ignore[attr-defined]

    def report(self) -> list[CounterValues]:
        """Return the counters of the source and of every operator."""
        return [op.meter.values() for op in self._operators]

    def state(self) -> Any:
        """Return the state of the operators and of the actor's object."""
        actor = states.state_of_actor(self._context.object, self._operators[0].context["shard"])
        version = self._context.guests.get("version")
        return {"operators": [op.state() for op in self._operators], "actor": actor, "version": version}

    def close(self) -> None:
        """Close the operators and the source."""
        self._operators[-1].close()


def make_operator(context: ActorContext, spec: OperatorSpec, measure: bool, state: Any, use: Any = None) -> Operator:
    """Create an operator to which the driver sends items; on a thread of the driver, with its `OperatorUse`."""
    operator = ForEach(Stage(), spec, {"actor": context.object, "shard": None, "use": use}, measure)
    if state is not None:
        operator.restore(state)
    return operator


def deliver(context: ActorContext, method: str, version: int | None, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the actor's object, and store the version that the message carries."""
    result = getattr(context.object, method)(*args, **kwargs)
    if version is not None:
        context.guests["version"] = version
    return result
