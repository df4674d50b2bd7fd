"""A run: makes stages of a plan, asks the last one for items, and waits in one place while there are none."""

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
from raceway.errors import ConfigError, FlowError
from raceway.flow._gather import Gather, GatherAsync
from raceway.flow._graph import Envelope, Node, Seal, Word, detached, unsealed, walk
from raceway.flow._joins import Moved, Queue, Split, Union
from raceway.flow._operators import ForEach, Op, Stage
from raceway.flow._requests import Again
from raceway.flow._shard import Origin, Reader
from raceway.flow._wakeups import News
from raceway.flow.counters import TELL_SECONDS, Meter, Observed, newest_version
from raceway.flow.explain import why_stuck

T_co = TypeVar("T_co", covariant=True)


class Run(Observed, AbstractContextManager["Run[T_co]"], Iterator[T_co], Generic[T_co]):
    """An iteration of a flow that is under way. It closes what it opened when it ends, fails or is dropped."""

    def __init__(self, root: Node, *, measure: bool = False, state: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._seal: Seal | None = None
        self.id = uuid.uuid4().hex[:12]
        self.nodes = list(walk(root))
        self.numbers = {node: number for number, node in enumerate(self.nodes)}
        self.measure, self.keeps_in_flight = measure, True
        self.blocked: list[Split | Union] = []  # stages that did not go on, not for want of items
        self.queues: list[Queue] = []
        self.given = Again()
        self.stages: dict[Node, Any] = {}
        self._actors = {actor.name: actor for node in self.nodes for actor in node.actors}
        actors = [actor for node in self.nodes for actor in node.actors]
        self.news = News(actors)  # what has happened since the stages were last asked
        self.newest_version = partial(newest_version, actors)
        self.waiting: list[Meter] = []  # of the stages that wait for something outside
        self._closed, self._left_at = False, time.perf_counter()
        self._me: Run[Any] = weakref.proxy(self)  # for the stages, so that a run that is dropped is gone at once
        self._root = self.stage(root)
        plain = {type(stage) for stage in self.stages.values()} <= {ForEach, Union, GatherAsync}
        self._straight = [stage for stage in self.stages.values() if plain and isinstance(stage, Gather)]
        if state is not None:
            self._restore(state)

    def __next__(self) -> T_co:
        if self._closed:
            raise StopIteration
        self.outside += time.perf_counter() - self._left_at
        try:
            answer = self._poll()
        except BaseException as error:
            if self._closed:
                raise StopIteration from error  # by another thread
            self.close(error)
            raise
        if isinstance(answer, Word):
            self.close()
            raise StopIteration
        self._left_at = time.perf_counter()
        self.tick()
        value, self._seal = answer
        return value  # type: ignore[no-any-return]

    @property
    def envelope(self) -> Envelope | None:
        """What is known about the last item."""
        return None if self._seal is None else unsealed(self._seal)

    def _poll(self) -> Any:
        """Return the next item of the last stage, or END."""
        if self._straight and self.given:  # nothing is held on the way here: what has not come is to be waited for
            self.given.ask()
            self.waiting[:] = [one.meter for one in self._straight if one.pulls]
            if not [one for one in self._straight if one.ready or one.pulls.arrivals or not one.begun] and self.waiting:
                self.block()
        while not self._closed:
            self.news.clear()
            self.blocked.clear()
            self.waiting.clear()
            answer = self._root.poll()
            if answer is not Word.PENDING:
                return answer
            for queue in self.queues:
                queue.fill()
            if self.news or any(stage.relax() for stage in self.blocked if isinstance(stage, Split)):
                continue
            if not self.waiting:
                raise FlowError(why_stuck(self.nodes, self.blocked))
            self.block()
        return Word.END

    def stage(self, node: Node) -> Any:
        """Return the stage that runs a node."""
        part = node.step.part
        if node in self.stages:
            if node.kind != "split":
                raise ConfigError(f"{node} is read twice. Use split() to give every item to both readers.")
        elif isinstance(part, Origin):
            self.stages[node] = Reader(Stage(), node.step, {}, self.measure)
        elif isinstance(part, type) and issubclass(part, Op):
            gifts = {"run": self._me, "number": self.numbers[node]}
            self.stages[node] = part(self.stage(node.parents[0]), node.step, gifts, self.measure)
            self.stages[node].meter.newest = self.newest_version
        else:
            self.stages[node] = part(self._me, node)
        return self.stages[node]

    def block(self) -> None:
        """Wait until something has happened."""
        begin = time.perf_counter()
        self.news.wait(TELL_SECONDS if self.observed else None)
        self.tick()
        for meter in self.waiting:
            meter.waiting += time.perf_counter() - begin

    def state(self, *, in_flight: str = "drain", shared: bool = False) -> dict[str, Any]:
        """Return everything needed to go on from here, for `Iter.restore`; `shared` only until the next item is read.

        Items that were asked for and not read yet are waited for and kept (`drain`), or left out (`drop`).
        """
        check_choice("policy for items in flight", in_flight, ("drain", "drop"))
        if self._closed:
            raise FlowError("the run is over: there is no state to go on from")
        self.keeps_in_flight = in_flight == "drain"
        for stage in (stage for stage in self.stages.values() if isinstance(stage, (Gather, Moved))):
            stage.take_in()
            while stage.busy:
                self.block()
                stage.take_in()
        stages = detached({self.numbers[node]: stage.state() for node, stage in self.stages.items()})
        return {"plan": [node.label for node in self.nodes], "stages": stages if shared else copy.deepcopy(stages)}

    def _restore(self, state: dict[str, Any]) -> None:
        plan = [node.label for node in self.nodes]
        if state["plan"] != plan:
            raise ConfigError(f"the state is of another flow: {state['plan']}, and this one is {plan}")
        if len(self._actors) < len({actor for node in self.nodes for actor in node.actors}):
            raise ConfigError("two actors of the flow have one name, so what came from which cannot be told")
        stages = detached(copy.deepcopy(state["stages"]), self._actors)
        for node, stage in self.stages.items():
            stage.restore(stages[self.numbers[node]])

    def close(self, error: BaseException | None = None) -> None:
        """End the iteration: its shards, threads and queues. The actors stay."""
        if not self._closed:
            self._closed = True
            self.news.wake()
            close_all([*self.stages.values(), self.news], error)
            self.tick(now=True)
            self.tell("stop", **self.counts)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not if the garbage collector came by in the middle of the engine's work: its messages would be mixed up.
        if not (getattr(self, "_closed", True) or sys.is_finalizing() or self.news.engine.lock._is_owned()):
            self.close()
