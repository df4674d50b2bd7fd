"""Operators that turn items into items. They work the same way on a shard and in the driver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from raceway import state as states
from raceway.errors import FlowError, OperatorError
from raceway.flow._graph import (
    Envelope,
    Item,
    LazyEnvelope,
    NoItem,
    OperatorContext,
    OperatorSpec,
    Shard,
    Source,
    empty_envelope,
    requested_parameters,
    resolve_envelope,
)
from raceway.flow._operator_states import FunctionUse, OperatorUse
from raceway.flow.monitoring import CounterValues, Meter
from raceway.injection import injected

NOT_SHARED = nullcontext()  # in place of an OperatorUse, for operators that are no concern of other runs


class Stage(states.Stateful):
    """A node of a running flow."""

    def poll(self) -> Item | NoItem:
        """Return the next item, PENDING or END, without waiting."""
        raise NotImplementedError

    def close(self) -> None:
        """Release its resources. May be called twice."""


class Operator(Stage):
    """A stage that reads one other stage. Subclasses define `process`, which maps an item to items."""

    state_attributes: ClassVar[tuple[str, ...]] = ("ready", "held", "ended")
    binds_shard: ClassVar[bool] = False
    """Whether its function may keep items that nobody counts, so that its shard must stay where it is."""
    use: OperatorUse | FunctionUse | None = None
    """Its run's use of the user's function, if that is in the driver and has a state."""

    def __init__(self, parent: Stage, spec: OperatorSpec, context: OperatorContext, measure: bool) -> None:
        self.parent, self.spec, self.context = parent, spec, context
        self.meter = Meter(measure)
        self.ready: deque[Item] = deque()  # results that were not read yet
        self.held: list[Any] = []  # inputs that have no result yet
        self.ended = False
        vars(self).update(spec.settings)
        self.setup()

    def setup(self) -> None:
        """Create the attributes that change while it runs."""

    def process(self, item: Item) -> Iterable[Item]:
        """Take an item and return the items that result from it."""
        return (item,)

    def finish(self) -> Iterable[Item]:
        """Return the remaining items at the end of the stream."""
        return ()

    def poll(self) -> Item | NoItem:
        while not self.ready:
            if self.ended:
                return NoItem.END
            answer = self.parent.poll()
            if answer is NoItem.PENDING:
                return answer
            self.accept(answer)
        return self.ready.popleft()

    def accept(self, answer: Item | NoItem) -> None:
        """Process an item, or finish at the end of the stream."""
        if self.use is None:
            self._accept(answer)
        else:
            with self.use:
                self._accept(answer)

    def _accept(self, answer: Item | NoItem) -> None:
        start = time.perf_counter()
        try:
            if isinstance(answer, NoItem):
                self.ended = True
                self.ready.extend(self.finish())
            else:
                self.ready.extend(self.process(answer))
                self.meter.count(answer, time.perf_counter() - start)
        except Exception as error:
            raise self.operator_error(error, None if isinstance(answer, NoItem) else answer) from error

    def operator_error(self, error: Exception, item: Item | None) -> OperatorError:
        """Return an error that names this operator, the shard and the item."""
        shard = self.context.get("shard")
        numbered = item and (resolve_envelope(item[1]).sequence, item[0])
        number = None if shard is None else shard.number
        return OperatorError.wrap(error, self.spec.label, self.spec.where, number, numbered)

    @property
    def num_held(self) -> int:
        """Items that it has received and not passed on."""
        return len(self.ready) + len(self.held)

    def close(self) -> None:
        self.ended = True
        self.parent.close()


class FunctionOperator(Operator):
    """An operator around a user's function."""

    function: Callable[..., Any]

    def setup(self) -> None:
        self.requested = requested_parameters(self.function, parallel="actor" in self.context)
        self.kwargs = {name: self.context[name] for name in self.requested if name != "envelope"}
        self.use = self.context.get("use")

    def call(self, item: Item) -> Any:
        """Call the function with an item and the parameters to inject."""
        envelope = {"envelope": resolve_envelope(item[1])} if "envelope" in self.requested else {}
        return self.function(item[0], **envelope, **self.kwargs)

    def state(self) -> Any:
        with self.use or NOT_SHARED:
            return {"function": states.state_of(self.function), **super().state()}

    def restore(self, state: Any) -> None:
        with self.use or NOT_SHARED:
            states.restore(self.function, state["function"])
        super().restore(state)


class ForEach(FunctionOperator):
    """One result for every item. It is the most common operator, so it bypasses the queue of results."""

    def poll(self) -> Item | NoItem:
        answer = NoItem.END if self.ended else self.parent.poll()
        if not isinstance(answer, NoItem):
            return self.apply(answer), answer[1]
        self.ended = answer is NoItem.END
        return answer

    def apply(self, item: Item) -> Any:
        """Return the function's result for an item."""
        start = time.perf_counter()
        try:
            if self.use is None:
                value = self.call(item) if self.requested else self.function(item[0])
            else:
                with self.use:
                    value = self.call(item) if self.requested else self.function(item[0])
        except Exception as error:
            raise self.operator_error(error, item) from error
        self.meter.count(item, time.perf_counter() - start)
        return value

    def apply_and_report(self, item: Item) -> tuple[Any, CounterValues]:
        """Return the result for an item, and the counters so far."""
        return self.apply(item), self.meter.values()


class Filter(FunctionOperator):
    def process(self, item: Item) -> Iterable[Item]:
        return (item,) if self.call(item) else ()


class FlatMap(FunctionOperator):
    def process(self, item: Item) -> Iterable[Item]:
        return [(value, item[1]) for value in self.call(item)]


class Flatten(Operator):
    """The elements of every item, one by one. Those of a batch or round get their own envelopes back."""

    def process(self, item: Item) -> Iterable[Item]:
        values, parts = list(item[0]), resolve_envelope(item[1]).parts
        return zip(values, parts if len(parts) == len(values) else [item[1]] * len(values), strict=True)


class Combine(FunctionOperator):
    """Like FlatMap, for a function that makes a result from several items: it gets their merged envelopes."""

    binds_shard = True

    def process(self, item: Item) -> Iterable[Item]:
        self.held.append(item[1])
        return self._with_envelope(self.call(item))

    def setup(self) -> None:
        super().setup()
        self._envelope: LazyEnvelope = ()  # of the last result, for one at the end that no new item has led to

    def finish(self) -> Iterable[Item]:
        return self._with_envelope(self.function.finish()) if hasattr(self.function, "finish") else ()

    def _with_envelope(self, values: Iterable[Any]) -> list[Item]:
        values = list(values)
        if values:
            self._envelope, self.held = tuple(self.held) or self._envelope or empty_envelope(), []
        return [(value, self._envelope) for value in values]


class BatchItems(Operator):
    size: int

    def process(self, item: Item) -> Iterable[Item]:
        self.held.append(item)
        return self.finish() if len(self.held) == self.size else ()

    def finish(self) -> Iterable[Item]:
        items, self.held = self.held, []
        return [([value for value, _ in items], tuple([envelope for _, envelope in items]))] if items else ()


class Shuffle(BatchItems):
    """Holds `size` items; each further item replaces a randomly chosen one, which is the result."""

    state_attributes: ClassVar[tuple[str, ...]] = (*Operator.state_attributes, "random")
    seed: int

    def setup(self) -> None:
        self.random: np.random.Generator = self.context.get("shard", Shard(0, 1))._replace(seed=self.seed).generator()

    def process(self, item: Item) -> Iterable[Item]:
        if len(self.held) < self.size:
            self.held.append(item)
            return ()
        index = int(self.random.integers(self.size))
        chosen, self.held[index] = self.held[index], item
        return (chosen,)

    def finish(self) -> Iterable[Item]:
        items, self.held = self.held, []
        return [items[index] for index in self.random.permutation(len(items))]


class Take(Operator):
    state_attributes: ClassVar[tuple[str, ...]] = (*Operator.state_attributes, "position")
    count: int

    def setup(self) -> None:
        self.position = 0  # number of items passed on
        self.ended = self.count == 0
        self._close_error: Exception | None = None  # raised upstream when it was closed, after the last item

    def poll(self) -> Item | NoItem:
        if self.ended:
            self._raise_close_error()
            return NoItem.END
        answer = self.parent.poll()
        if isinstance(answer, NoItem):
            self.ended = answer is NoItem.END
            return answer
        self.meter.count(answer, 0.0)
        self.position += 1
        if self.position >= self.count:
            try:
                self.close()
            except Exception as error:  # the last item comes first
                self._close_error = error
        return answer

    def close(self) -> None:
        self._raise_close_error()
        super().close()

    def _raise_close_error(self) -> None:
        error, self._close_error = self._close_error, None
        if error is not None:
            raise error


def with_source(value: Any, *, envelope: Envelope = injected) -> tuple[Source, Any]:
    """Return an item's source and the item."""
    if len(envelope.sources) != 1:
        raise FlowError(
            f"the item comes from {len(envelope.sources)} sources, and zip_with_source needs one. Declare "
            "`envelope=injected` in an operator to get them all."
        )
    return envelope.sources[0], value
