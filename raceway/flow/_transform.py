"""`transform`: an operator that is a generator function over the whole stream."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from raceway.errors import ConfigError
from raceway.flow._driver_stages import OffloadedForEach, Queue
from raceway.flow._graph import Item, LazyEnvelope, NoItem, empty_envelope
from raceway.flow._operator_states import operator_object
from raceway.flow._operators import NOT_SHARED, FunctionOperator, Operator, Stage
from raceway.flow._repartition import FedReader


class Signal(enum.Enum):
    """Returned by a generator that has no value."""

    NEEDS_INPUT = "resume it after giving it an item"
    END = "it has ended"


class Transform(FunctionOperator):
    """Passes on what a generator makes of the stream.

    A generator cannot be left while it waits for its next input. Where it never waits, on shards and behind a source
    in the driver, it pulls its inputs itself. Elsewhere it runs on a thread, in turn with the driver, which polls.
    """

    binds_shard = True

    def setup(self) -> None:
        super().setup()
        self._generator: PullingGenerator | ThreadGenerator | None = None
        self._needs_input = False
        self._envelope: LazyEnvelope = empty_envelope()  # of the last result, for several of the same items
        self._upstream_error: BaseException | None = None  # that was raised inside the generator, which may catch it
        self._upstream_seconds = 0.0

    def poll(self) -> Item | NoItem:
        while not self.ended:
            if self._needs_input:
                answer = self._read()
                if answer is NoItem.PENDING:
                    return answer
                assert isinstance(self._generator, ThreadGenerator)
                self._generator.give(answer)
            value = self._resume()
            self._needs_input = value is Signal.NEEDS_INPUT
            if value is Signal.END:
                self.close()
            elif not self._needs_input:
                self._envelope, self.held = tuple(self.held) or self._envelope, []
                return value, self._envelope
        return NoItem.END

    def _read(self) -> Item | NoItem:
        """Poll the stream for the next input."""
        start = time.perf_counter()
        answer = self.parent.poll()
        self._upstream_seconds += time.perf_counter() - start
        if not isinstance(answer, NoItem):
            self.held.append(answer[1])
            self.meter.count(answer, 0.0)
        return answer

    def _pull(self) -> Item | NoItem:
        """Read the next input for a generator that pulls it."""
        try:
            return self._read()
        except BaseException as error:
            self._upstream_error = error
            raise

    def _resume(self) -> Any:
        """Return the generator's next value, or a signal."""
        start, upstream = time.perf_counter(), self._upstream_seconds
        try:
            with self.use or NOT_SHARED:
                if self._generator is None:
                    kind = ThreadGenerator if may_wait(self.parent) else PullingGenerator
                    self._generator = kind(self.function, self.kwargs, self._pull)
                value = self._generator.resume()
        except Exception as error:
            if self._upstream_error is None:
                raise self.operator_error(error, None) from error
        if self._upstream_error is not None:  # whatever the generator made of it
            raise self._upstream_error
        self.meter.busy += time.perf_counter() - start - (self._upstream_seconds - upstream)
        return value

    def state(self) -> Any:
        if self._generator is not None and not self.ended and operator_object(self.function) is None:
            raise ConfigError(
                f"{self.spec.label} (added at {self.spec.where}) has no state that could be saved, because it keeps it "
                "in local variables. Pass an object that keeps in its attributes what it has read and not passed on, "
                "or use combine()."
            )
        return super().state()

    def close(self) -> None:
        self.ended = True
        try:
            if self._generator is not None:
                self._generator.close()
        except Exception as error:
            raise self.operator_error(error, None) from error
        finally:
            self.parent.close()


def may_wait(stage: Stage) -> bool:
    """Whether a stage may be pending: it is not just a source with operators behind it."""
    while isinstance(stage, Operator):
        if isinstance(stage, (Queue, OffloadedForEach, FedReader)):
            return True
        stage = stage.parent
    return type(stage) is not Stage


class PullingGenerator:
    """A generator that pulls its inputs itself, from a stream that never has to be waited for."""

    def __init__(
        self, function: Callable[..., Iterable[Any]], kwargs: dict[str, Any], read: Callable[[], Item | NoItem]
    ) -> None:
        self._read = read
        self._values = iter(function(self._inputs(), **kwargs))

    def _inputs(self) -> Iterator[Any]:
        while not isinstance(answer := self._read(), NoItem):
            yield answer[0]

    def resume(self) -> Any:
        """Return its next value, or END."""
        return next(self._values, Signal.END)

    def close(self) -> None:
        """Close it."""
        if isinstance(self._values, Generator) and not getattr(self._values, "gi_running", False):
            self._values.close()


class ThreadGenerator:
    """A generator on a thread that runs only while `resume` waits for it: a coroutine that can be left anywhere."""

    def __init__(
        self, function: Callable[..., Iterable[Any]], kwargs: dict[str, Any], read: Callable[[], Item | NoItem]
    ) -> None:
        self._function, self._kwargs = function, kwargs
        self._resumed, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._input: Item | NoItem = NoItem.PENDING
        self._result: Any = None
        self._error: BaseException | None = None
        self._closed = False
        self._running = False
        self._thread: threading.Thread | None = None

    def give(self, answer: Item | NoItem) -> None:
        """Set the input that it needs: an item, or END."""
        self._input = answer

    def resume(self) -> Any:
        """Run it until it has a value, needs an input, or ends; return the value, or a signal."""
        self._running = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="raceway-transform", daemon=True)
            self._thread.start()
        else:
            self._resumed.release()
        self._paused.acquire()
        self._running = False
        self._raise_error()
        return self._result

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            values = self._function(self._inputs(), **self._kwargs)
            for value in values:
                if not self._pause(value):
                    break
            if isinstance(values, Generator):
                values.close()
        except BaseException as error:
            self._error = None if self._closed and isinstance(error, GeneratorExit) else error
        self._result = Signal.END
        self._paused.release()

    def _inputs(self) -> Iterator[Any]:
        while self._pause(Signal.NEEDS_INPUT):
            answer = self._input
            if isinstance(answer, NoItem):
                return
            yield answer[0]
        raise GeneratorExit

    def _pause(self, result: Any) -> bool:
        """Return to the driver until the next `resume`. Return False if it was closed instead."""
        if not self._closed:
            self._result = result
            self._paused.release()
            self._resumed.acquire()
        return not self._closed

    def close(self) -> None:
        """Close it. If it is not paused, because the driver was interrupted, it ends when it next pauses."""
        if not self._closed:
            self._closed = True
            self._resumed.release()
            if self._thread is not None and not self._running:
                self._thread.join()
                self._raise_error()
