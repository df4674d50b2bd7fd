"""A run: makes stages of a plan, asks the last one for items, and waits in one place while there are none."""

from __future__ import annotations

import copy
import logging
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from raceway.engine.base import Actor, Engine
from raceway.engine.inline import InlineEngine
from raceway.errors import ConfigError, FlowError, WaitTimeout, unknown
from raceway.flow._gather import Gather
from raceway.flow._graph import Node, walk
from raceway.flow._items import Envelope, Word, detached
from raceway.flow._join import Moved, Queue, Split
from raceway.flow._ops import Op
from raceway.flow._shard import Origin, Reader
from raceway.flow.tracing import TELL_SECONDS, Meter, Observed, newest_version

T_co = TypeVar("T_co", covariant=True)
_LOOK_SECONDS = 0.001  # after which the engine gets to take in what has come, though nobody waits
_log = logging.getLogger(__name__)


class Run(Observed, Iterator[T_co], Generic[T_co]):
    """An iteration of a flow that is under way. It closes what it opened when it ends, fails or is dropped."""

    def __init__(self, root: Node, *, measure: bool = False, state: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.envelope: Envelope | None = None
        """What is known about the last item."""
        self.counts: Counter[str] = Counter()
        """How many shards were `restarted` and `dropped`, and how many items `lost` by it."""
        self.id = uuid.uuid4().hex[:12]
        self.nodes = list(walk(root))
        self.numbers = {node: number for number, node in enumerate(self.nodes)}
        self.measure = measure
        self.news: deque[Any] = deque()
        """Is not empty if something has happened since the stages were last asked."""
        self.blocked: list[Split] = []
        """Splits that would not go on for one branch because another was behind, when the stages were last asked."""
        self.queues: list[Queue] = []
        self.complaints: list[str] = []
        """Why other stages could not go on."""
        self.keeps_in_flight = True
        self.stages: dict[Node, Any] = {}
        self._actors = {actor.name: actor for node in self.nodes for actor in node.actors}
        self.newest_version = partial(newest_version, list(self._actors.values()))
        self._own_engine: InlineEngine | None = None
        self._waiting: list[Meter] = []  # of the stages that wait for something outside
        self._closed = False
        self._left_at = self._looked_at = time.perf_counter()
        self._me: Run[Any] = weakref.proxy(self)  # for the stages, so that a run that is dropped is gone at once
        self._root = self.stage(root)
        if state is not None:
            self._restore(state)

    def __next__(self) -> T_co:
        if self._closed:
            raise StopIteration
        now = time.perf_counter()
        self.outside += now - self._left_at
        if now - self._looked_at > _LOOK_SECONDS:
            self._looked_at = now
            self.engine.glance()
        try:
            answer = self._poll()
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Word):
            self.close()
            raise StopIteration
        self._left_at = time.perf_counter()
        if self.observed:
            self.tick()
        value, self.envelope = answer
        return value  # type: ignore[no-any-return]

    def _poll(self) -> Any:
        """Return the next item of the last stage, or END."""
        while True:
            self.news.clear()
            self.blocked.clear()
            self.complaints.clear()
            self._waiting.clear()
            answer = self._root.poll()
            if answer is not Word.PENDING:
                return answer
            if self.observed:
                self.tick()
            for queue in self.queues:
                queue.fill()
            relaxed = [split.relax() for split in self.blocked]
            if self.news or any(relaxed):
                continue
            if not self._waiting:
                reasons = [*self.complaints, *(split.complaint() for split in self.blocked)]
                raise FlowError(f"the flow cannot go on: {'; '.join(dict.fromkeys(reasons))}.")
            self.block()

    # For the stages.

    def stage(self, node: Node) -> Any:
        """Return the stage that runs a node."""
        part = node.step.part
        if node in self.stages:
            if node.kind != "split":
                raise ConfigError(f"{node} is read twice. Use split() to give every item to both readers.")
        elif isinstance(part, Origin):
            self.stages[node] = Reader(None, node.step, {}, self.measure)
        elif isinstance(part, type) and issubclass(part, Op):
            self.stages[node] = part(self.stage(node.parents[0]), node.step, {}, self.measure)
            self.stages[node].meter.newest = self.newest_version
        else:
            self.stages[node] = part(self._me, node)
        return self.stages[node]

    @property
    def engine(self) -> Engine:
        """Where the driver waits: with the actors, or if there are none by itself."""
        if not self._actors and self._own_engine is None:
            self._own_engine = InlineEngine()
        return self._own_engine or next(iter(self._actors.values())).engine

    def waker(self, actor: Actor | None) -> Callable[[Any], None] | None:
        """Return what to call when an actor or a thread has done something, if the driver would not notice itself."""
        news, engine = self.news, self.engine
        if actor is not None and actor.engine is engine:
            return None

        def wake(_: Any) -> None:
            news.append(None)
            engine.keep(engine.promise(), None)

        return wake

    def waiting(self, meter: Meter) -> Word:
        """Note that a stage waits for something outside."""
        self._waiting.append(meter)
        return Word.PENDING

    def block(self) -> None:
        """Wait until something has happened."""
        begin = time.perf_counter()
        try:
            self.engine.block(self.news.__len__, TELL_SECONDS if self.observed else None)
        except WaitTimeout:
            self.tick()
        for meter in self._waiting:
            meter.waiting += time.perf_counter() - begin
        self.news.clear()

    def happened(self, kind: str, told: dict[str, Any]) -> None:
        """Count and tell what happened to a shard."""
        self.counts.update({kind: 1, "lost": told["lost"]})
        _log.warning("shard %s on %s %s: %s", told["shard"], told["actor"], kind, told["error"].partition("\n")[0])
        self.tell(kind, **told)

    # The middle and the end.

    def state(self, *, in_flight: str = "drain") -> dict[str, Any]:
        """Return everything needed to go on from here, for `Iter.restore`.

        Items that were asked for and have not been read are waited for and kept (`in_flight="drain"`) or left out
        (`"drop"`).
        """
        if in_flight not in ("drain", "drop"):
            raise unknown("policy for items in flight", in_flight, ("drain", "drop"))
        self.keeps_in_flight = in_flight == "drain"
        for stage in self.stages.values():
            if isinstance(stage, (Gather, Moved)):
                stage.settle()
        stages = {self.numbers[node]: stage.state() for node, stage in self.stages.items()}
        return {"plan": [node.label for node in self.nodes], "stages": copy.deepcopy(detached(stages))}

    def _restore(self, state: dict[str, Any]) -> None:
        plan = [node.label for node in self.nodes]
        if state["plan"] != plan:
            saved, here = "\n  ".join(state["plan"]), "\n  ".join(plan)
            raise ConfigError(f"the state is of another flow. It has\n  {saved}\nand this one\n  {here}")
        stages = detached(copy.deepcopy(state["stages"]), self._actors)
        for node, stage in self.stages.items():
            stage.restore(stages[self.numbers[node]])

    def close(self) -> None:
        """End the iteration: its shards, threads and queues. The actors stay."""
        if not self._closed:
            self._closed = True
            for stage in self.stages.values():
                stage.close()
            if self._own_engine is not None:
                self._own_engine.close()
            self.tick(now=True)
            self.tell("stop", **self.counts)

    def __enter__(self) -> Run[T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not if the garbage collector came by in the middle of the engine's work: its messages would be mixed up.
        if not getattr(self, "_closed", True) and not self.engine.lock._is_owned():
            self.close()
