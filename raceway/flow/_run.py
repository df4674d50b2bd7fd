"""A run: creates the stages of a plan, polls the last one for items, and blocks in one place while there are none."""

from __future__ import annotations

import copy
import sys
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Generic, TypeVar

from raceway.checks import check_choice
from raceway.cleanup import close_all
from raceway.errors import ConfigError, FlowError, WaitTimeout
from raceway.flow._driver_stages import OffloadedForEach, Queue, Split, Union
from raceway.flow._gather import Gather, GatherAsync
from raceway.flow._graph import Envelope, LazyEnvelope, Node, NoItem, replace_actor_handles, resolve_envelope, walk
from raceway.flow._operator_states import FunctionUse, OperatorUse
from raceway.flow._operators import ForEach, Operator, Stage
from raceway.flow._repartition import FedSource, Feeder
from raceway.flow._requests import PendingRequests
from raceway.flow._sources import SourceFunction, SourceReader
from raceway.flow._wakeups import Wakeups
from raceway.flow.explain import describe_deadlock
from raceway.flow.monitoring import EVENT_INTERVAL, Meter, Observable, newest_version

T_co = TypeVar("T_co", covariant=True)


class Run(Observable, AbstractContextManager["Run[T_co]"], Iterator[T_co], Generic[T_co]):
    """One run of a flow. It closes what it opened when it ends, fails or is garbage-collected."""

    def __init__(
        self, root: Node, *, measure: bool = False, state: dict[str, Any] | None = None, wait: bool = False
    ) -> None:
        super().__init__()
        self._waits = wait  # for calls on threads, when it is closed
        self._envelope: LazyEnvelope | None = None
        self.id = uuid.uuid4().hex[:12]
        self.nodes = list(walk(root))
        self.node_indices = {node: index for index, node in enumerate(self.nodes)}
        self.measure, self.keeps_in_flight = measure, True
        self.blocked: list[Split | Union] = []  # stages that are pending for another reason than a lack of items
        self.queues: list[Queue] = []
        self.pending_requests = PendingRequests()
        self.stages: dict[Node, Any] = {}
        self._uses: dict[object, OperatorUse | FunctionUse] = {}  # by operator: it may be in several places of a plan
        self._driver_uses: list[OperatorUse] = []  # of operators that are called from the thread that reads the run
        self._actors = {actor.name: actor for node in self.nodes for actor in node.actors}
        actors = [actor for node in self.nodes for actor in node.actors]
        self.wakeups = Wakeups(actors)
        self.newest_version = partial(newest_version, actors)
        self.num_polls = 0
        self.waiting: list[Meter] = []  # meters of the stages that wait for a shard, thread or actor
        self._closed, self._left_at = False, time.perf_counter()
        self._deadline: float | None = None  # of the current `next`
        self._proxy: Run[Any] = weakref.proxy(self)  # for the stages, so that no cycle delays garbage collection
        self._root = self.stage(root)
        is_direct = {type(stage) for stage in self.stages.values()} <= {ForEach, Union, GatherAsync}
        self._direct_gathers = [stage for stage in self.stages.values() if is_direct and isinstance(stage, Gather)]
        for use in self._driver_uses:
            use.install()
        if state is not None:
            self._restore(state)

    def __next__(self) -> T_co:
        if self._closed:
            raise StopIteration
        self.consumer_seconds += time.perf_counter() - self._left_at
        try:
            answer = self._poll()
        except BaseException as error:
            if isinstance(error, WaitTimeout) and self._deadline is not None:
                self._left_at = time.perf_counter()
                raise
            if self._closed:
                raise StopIteration from error  # closed by another thread
            self.close(error)
            raise
        if isinstance(answer, NoItem):
            self.close()
            raise StopIteration
        self._left_at = time.perf_counter()
        self.emit_counters()
        value, self._envelope = answer
        return value  # type: ignore[no-any-return]

    def next(self, timeout: float | None = None) -> T_co:
        """Return the next item, like `next(run)`; raise WaitTimeout if there is none after `timeout` seconds.

        Nothing is lost by that: the run continues, and a later call returns the item. Only waiting is limited: a
        function that runs in the driver, or in an actor of an inline engine, is not interrupted.

        >>> Iter.from_range(3).start().next(timeout=0)
        0
        """
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
            raise ConfigError(f"timeout must be a number of seconds from 0 on, not {timeout!r}")
        self._deadline = None if timeout is None else time.perf_counter() + timeout
        try:
            return next(self)
        finally:
            self._deadline = None

    @property
    def envelope(self) -> Envelope | None:
        """The envelope of the last item."""
        return None if self._envelope is None else resolve_envelope(self._envelope)

    def _poll(self) -> Any:
        """Return the next item of the last stage, or END."""
        # If no stage holds items back, wait before polling.
        if self._direct_gathers and self.pending_requests and self._deadline is None:
            self.pending_requests.send()
            gathers = self._direct_gathers
            self.waiting[:] = [gather.meter for gather in gathers if gather.requester]
            if self.waiting and not [
                gather for gather in gathers if gather.ready or gather.requester.arrivals or not gather.requested
            ]:
                self.block()
        while not self._closed:
            self.num_polls += 1
            self.wakeups.clear()
            self.blocked.clear()
            self.waiting.clear()
            answer = self._root.poll()
            if answer is not NoItem.PENDING:
                return answer
            for queue in self.queues:
                queue.fill()
            if self.wakeups or any(stage.extend_lead() for stage in self.blocked if isinstance(stage, Split)):
                continue
            if not self.waiting:
                raise FlowError(describe_deadlock(self.nodes, self.blocked))
            self.block()
        return NoItem.END

    def stage(self, node: Node) -> Any:
        """Return the stage of a node, created on the first call."""
        implementation = node.spec.implementation
        if node in self.stages:
            if node.kind != "split":
                raise ConfigError(f"{node} is read twice. Use split() to pass every item to both readers.")
        elif isinstance(implementation, FedSource):
            self.stages[node] = Feeder(self._proxy, node)
        elif isinstance(implementation, SourceFunction):
            self.stages[node] = SourceReader(Stage(), node.spec, {}, self.measure)
        elif isinstance(implementation, type) and issubclass(implementation, Operator):
            context = {"run": self._proxy, "index": self.node_indices[node], "use": self._use(node)}
            self.stages[node] = implementation(self.stage(node.parents[0]), node.spec, context, self.measure)
            self.stages[node].meter.newest = self.newest_version
        else:
            self.stages[node] = implementation(self._proxy, node)
        return self.stages[node]

    def _use(self, node: Node) -> OperatorUse | FunctionUse | None:
        if node.operator_state is None:
            return None
        on_thread = node.spec.implementation is OffloadedForEach
        use = node.operator_state.use([] if on_thread else self._driver_uses)
        use = self._uses.setdefault(node.operator_state.key, use)
        if isinstance(use, OperatorUse) and not (on_thread or use in self._driver_uses):
            self._driver_uses.append(use)
        return use

    def block(self) -> None:
        """Wait for a wake-up, at most until the deadline."""
        start, limit = time.perf_counter(), EVENT_INTERVAL if self.has_subscribers else None
        if self._deadline is not None:
            left = self._deadline - start
            if left <= 0:
                raise WaitTimeout("no item arrived in time. The run continues: call next() again.")
            limit = left if limit is None else min(limit, left)
        self.wakeups.wait(limit)
        self.emit_counters()
        for meter in self.waiting:
            meter.waiting += time.perf_counter() - start

    def state(self, *, in_flight: str = "drain", shared: bool = False) -> dict[str, Any]:
        """Return the state of the run, for `Iter.restore`. The failure policy applies to shards that fail meanwhile.

        Args:
            in_flight: whether to wait for the items that were requested and not read, and keep them (`drain`), or to
                leave them out (`drop`).
            shared: do not copy it. It is valid until the next item is read.
        """
        check_choice("policy for items in flight", in_flight, ("drain", "drop"))
        if self._closed:
            raise FlowError("the run is closed and has no state any more. Call state() before it ends.")
        self.keeps_in_flight = in_flight == "drain"
        try:
            stages = replace_actor_handles(self._states())
        except FlowError as error:  # a shard failed and will send no more items, so that the run could not be complete
            self.close(error)
            raise
        return {"plan": [node.label for node in self.nodes], "stages": stages if shared else copy.deepcopy(stages)}

    def _states(self) -> dict[int, Any]:
        for stage in (stage for stage in self.stages.values() if isinstance(stage, (Gather, OffloadedForEach))):
            stage.receive()
            while stage.in_flight:
                self.block()
                stage.receive()
        return {self.node_indices[node]: stage.state() for node, stage in self.stages.items()}

    def _restore(self, state: dict[str, Any]) -> None:
        plan = [node.label for node in self.nodes]
        if state["plan"] != plan:
            raise ConfigError(f"the state belongs to another flow: {state['plan']}, but this one is {plan}")
        if len(self._actors) < len({actor for node in self.nodes for actor in node.actors}):
            raise ConfigError(
                "two actors of the flow have the same name, so the sources in its state are ambiguous. Give each "
                "actor its own name."
            )
        stages = replace_actor_handles(copy.deepcopy(state["stages"]), self._actors)
        for node, stage in self.stages.items():
            stage.restore(stages[self.node_indices[node]])

    def close(self, error: BaseException | None = None) -> None:
        """End the iteration: its shards, threads and queues. The actors stay alive."""
        if not self._closed:
            self._closed = True
            self.wakeups.wake()
            try:
                close_all([*self.stages.values(), *self._uses.values(), self.wakeups], error)
            finally:
                for stage in self.stages.values() if self._waits else ():
                    if isinstance(stage, OffloadedForEach):
                        stage.join()
                self.emit_counters(now=True)
                self.emit("stop", **self.counts)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not while this thread holds the engine's lock: a garbage collection in the middle of the engine's work must
        # not send messages.
        if not (getattr(self, "_closed", True) or sys.is_finalizing() or self.wakeups.engine.lock._is_owned()):
            self.close()
