"""Requests from actors to the driver, and noticing dead actors.

Requests go through a mailbox, an asynchronous Ray actor, because Ray lets an actor call actors but not the driver. The
mailbox also watches the actors: it sends each a call that can never start, and that fails at the moment the actor
dies. A method that blocks would work too, but then Ray would not run the actor's calls on the main thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raceway.engine import _codec
from raceway.engine._calls import encode_error
from raceway.engine._codec import Payload
from raceway.engine.ray import ray
from raceway.engine.ray.completions import Completions, Deliver
from raceway.engine.ray.wire import FAILURE, PUT, RESULT, WAITING_REQUEST, pack
from raceway.errors import RacewayError

if TYPE_CHECKING:
    from raceway.engine.ray.actor import RayActor
    from raceway.engine.ray.engine import RayEngine


class Mailbox:
    """The driver's side of the mailbox: answers requests. Everything is called with the engine's lock held.

    Args:
        engine: stores values and answers requests.
        node: the driver's node, on which the mailbox runs.
        completions: delivers what the mailbox receives.
    """

    def __init__(self, engine: RayEngine, node: str, completions: Completions) -> None:
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        cls: Any = ray.remote(mailbox_class())
        self.actor = cls.options(num_cpus=0, max_concurrency=1_000_000, scheduling_strategy=strategy).remote()
        """The Ray actor, for the actors that send requests."""
        self._engine = engine
        self._completions = completions
        self._lost = False
        completions.notify(self.actor.take.remote(), self._receive)

    def watch(self, handle: Any, deliver: Deliver) -> None:
        """Deliver (reason, whether its process is gone) when an actor dies."""
        self._completions.notify(self.actor.watch.remote([handle]), deliver)

    def _receive(self, result: Any) -> None:
        if self._engine.closed:
            return
        if isinstance(result, BaseException):
            self._lost = True
            self._engine.lose_mailbox()
            return
        self._completions.notify(self.actor.take.remote(), self._receive)
        for id, wire in result:
            kind, (key,), payload = self._engine.open_wire(wire)
            actor = self._engine.living.get(key)
            if actor is None:
                self.actor.deliver.remote(id, b"")  # the actor has died since
            else:
                self._handle(actor, kind, payload, partial(self._reply, actor, key, id, kind == WAITING_REQUEST))

    def _handle(self, actor: RayActor, kind: int, payload: Payload, reply: Callable[[Payload, bool], None]) -> None:
        engine = self._engine
        try:
            if kind == PUT:
                reply(_codec.encode(engine.store(payload)), False)
                return
            request = engine.decode(payload)
            if request[0] == "fetch":
                stored = engine.stored_payload(request[1])
                reply(Payload(b"", [stored.keep.wire()], stored.handles), False)
                return
        except RacewayError as error:
            reply(encode_error(error, actor.name, "request"), True)
            return
        if kind == WAITING_REQUEST:
            actor.num_waiting_requests += 1
            engine.return_queued(actor.key)
        engine.answer(actor, request, reply)

    def _reply(self, actor: RayActor, key: int, id: int, was_waiting: bool, answer: Payload, failed: bool) -> None:
        if self._engine.closed or self._lost:
            return
        if self._engine.living.get(key) is actor:
            actor.num_waiting_requests -= was_waiting
            self._engine.count_sent(actor, answer.handles)
        self.actor.deliver.remote(id, pack(answer, FAILURE if failed else RESULT))


def mailbox_class() -> type:
    """Return the class of the Ray actor.

    It is a local class, which Ray sends by value, so that it works in a process that cannot import raceway. So it uses
    nothing of raceway.
    """

    class RacewayMailbox:
        def __init__(self) -> None:
            self._requests: list[tuple[int, Any]] = []
            self._answers: dict[int, asyncio.Future[Any]] = {}
            self._ids = itertools.count()
            self._has_requests = asyncio.Event()
            self._never_done: Any = None

        async def ask(self, wire: Any) -> Any:
            """Pass a request on to the driver; return its answer."""
            id = next(self._ids)
            self._requests.append((id, wire))
            self._has_requests.set()
            self._answers[id] = asyncio.get_running_loop().create_future()
            return await self._answers[id]

        async def take(self) -> list[tuple[int, Any]]:
            """Return the requests that have arrived, once there are any."""
            await self._has_requests.wait()
            self._has_requests.clear()
            requests, self._requests = self._requests, []
            return requests

        async def deliver(self, id: int, wire: Any) -> None:
            self._answers.pop(id).set_result(wire)

        async def watch(self, handles: list[Any]) -> Any:
            """Return why an actor died, when it does: a call that waits for an argument for ever fails only then."""
            if self._never_done is None:
                self._never_done = ray.get_runtime_context().current_actor.never.remote()
            try:
                await handles[0].never_called.remote(self._never_done)
            except ray.exceptions.RayError as error:
                return str(error), isinstance(error, ray.exceptions.ActorDiedError)
            raise AssertionError("the argument can never be ready")

        async def never(self) -> None:
            await asyncio.Event().wait()

    return RacewayMailbox
