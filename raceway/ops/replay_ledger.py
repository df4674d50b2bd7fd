"""Sharing rows out to the shards of replay, and what becomes of them: inserted = alive + evicted + lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from raceway.engine.base import Actor, Future
from raceway.errors import ActorError, ConfigError, FlowError
from raceway.flow import send_msg
from raceway.rl import Batch
from raceway.state import record


@record(formerly=("ReplayCounts",))
class ReplayCounts(NamedTuple):
    """How many rows there were, and what became of them: inserted = alive + evicted + lost."""

    inserted: int
    alive: int
    evicted: int
    lost: int = 0


class _Book:
    """What was put into one shard, and what it said of it."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.sent = self.evicted = 0  # in this life of the actor
        self.out: deque[tuple[int, Future[ReplayCounts]]] = deque()


class Ledger:
    """Puts rows into shards, in turn, and keeps count of them.

    It does not wait: what is asked of a shard afterwards comes after. Rows of a shard whose actor died are counted as
    lost, and it is passed over until it is back.
    """

    max_waiting = 4
    """Batches that may be on their way to a shard."""

    def __init__(self, shards: Sequence[Actor]) -> None:
        if not shards:
            raise ConfigError("replay needs at least one shard")
        self.shards = shards
        self.turn = 0
        self._books = [_Book() for _ in shards]
        self._evicted = self._lost = self._inserted = 0  # of lives that are over; the last of all

    def insert(self, rows: Batch, num: int) -> None:
        """Put so many rows into the shard whose turn it is."""
        shard = self._next()
        book = self._books[shard]
        if len(book.out) >= self.max_waiting:
            book.out[0][1].exception()  # waits
            self._take_in(shard)
        book.out.append((book.incarnation, send_msg(self.shards[shard], "insert", rows)))
        book.sent += num
        self._inserted += num

    def _next(self) -> int:
        """Return the shard whose turn it is, of those that live."""
        for _ in self.shards:
            shard, self.turn = self.turn, (self.turn + 1) % len(self.shards)
            self._take_in(shard)
            if self.shards[shard].alive:
                return shard
        raise FlowError(f"all {len(self.shards)} shards of replay are dead: {self.shards[0].error}")

    def _take_in(self, shard: int) -> None:
        """Look at what a shard has answered, and whether it is still the one that was."""
        book, actor = self._books[shard], self.shards[shard]
        while book.out and book.out[0][1].done():
            incarnation, future = book.out.popleft()
            error = future.exception()
            if error is None:
                book.evicted = future.result().evicted if incarnation == book.incarnation else book.evicted
            elif not isinstance(error, ActorError):
                raise error
        if not actor.alive or actor.incarnation != book.incarnation:
            self._evicted += book.evicted
            self._lost += book.sent - book.evicted
            book.sent = book.evicted = 0
            book.incarnation = actor.incarnation

    @property
    def counts(self) -> ReplayCounts:
        """What became of all rows, as far as the shards have told."""
        for shard in range(len(self.shards)):
            self._take_in(shard)
        evicted = self._evicted + sum(book.evicted for book in self._books)
        alive = sum(book.sent - book.evicted for book in self._books)
        return ReplayCounts(self._inserted, alive, evicted, self._lost)

    def state(self) -> Any:
        """Return what is needed to go on from here, having waited for what is on its way."""
        for book in self._books:
            for _, future in book.out:
                future.exception()
        counts = self.counts
        books = [(book.sent, book.evicted) for book in self._books]
        return {"turn": self.turn, "counts": tuple(counts), "books": books, "over": (self._evicted, self._lost)}

    def restore(self, state: Any) -> None:
        """Go on from there, with shards that were restored too."""
        self.turn, self._inserted = state["turn"], state["counts"][0]
        self._evicted, self._lost = state["over"]
        for book, actor, counted in zip(self._books, self.shards, state["books"], strict=True):
            book.incarnation, (book.sent, book.evicted) = actor.incarnation, counted
