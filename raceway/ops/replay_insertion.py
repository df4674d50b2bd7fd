"""Distributing rows over the shards of replay, and counting them: inserted = alive + evicted + lost."""

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
    """Numbers of rows: inserted = alive + evicted + lost."""

    inserted: int
    alive: int
    evicted: int
    lost: int = 0


class _ShardAccount:
    """The rows sent to one shard, and the evictions it has reported."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.sent = self.evicted = 0  # in this incarnation of the actor
        self.pending: deque[tuple[int, Future[ReplayCounts]]] = deque()


class ReplayInserter:
    """Inserts rows into shards, in turn, and counts them.

    It does not wait for a shard: calls that follow are executed after the insertion. Rows of a shard whose actor died
    are counted as lost, and the shard is skipped until it is restarted.
    """

    shared_by_runs = True  # of a flow: it counts the rows that the shards have
    max_waiting = 4
    """Batches that may be on their way to a shard."""

    def __init__(self, shards: Sequence[Actor]) -> None:
        if not shards:
            raise ConfigError("replay needs at least one shard")
        self.shards = shards
        self.turn = 0
        self._accounts = [_ShardAccount() for _ in shards]
        self._inserted, self._evicted, self._lost = 0, 0, 0  # evicted and lost in past incarnations

    def insert(self, rows: Batch, num: int) -> None:
        """Insert rows into the next shard; `num` is their number."""
        shard = self._next_shard()
        account = self._accounts[shard]
        if len(account.pending) >= self.max_waiting:
            account.pending[0][1].exception()  # waits
            self._update_account(shard)
        account.pending.append((account.incarnation, send_msg(self.shards[shard], "insert", rows)))
        account.sent += num
        self._inserted += num

    def _next_shard(self) -> int:
        """Return the next shard whose actor is alive."""
        for _ in self.shards:
            shard, self.turn = self.turn, (self.turn + 1) % len(self.shards)
            self._update_account(shard)
            if self.shards[shard].alive:
                return shard
        raise FlowError(f"all {len(self.shards)} shards of replay are dead: {self.shards[0].error}")

    def _update_account(self, shard: int) -> None:
        """Process the answers of a shard, and close its account if its actor died."""
        account, actor = self._accounts[shard], self.shards[shard]
        while account.pending and account.pending[0][1].done():
            incarnation, future = account.pending.popleft()
            error = future.exception()
            if error is None:
                account.evicted = future.result().evicted if incarnation == account.incarnation else account.evicted
            elif not isinstance(error, ActorError):
                raise error
        if not actor.alive or actor.incarnation != account.incarnation:
            self._evicted += account.evicted
            self._lost += account.sent - account.evicted
            account.sent = account.evicted = 0
            account.incarnation = actor.incarnation

    @property
    def counts(self) -> ReplayCounts:
        """Counts of all rows, as far as the shards have reported."""
        for shard in range(len(self.shards)):
            self._update_account(shard)
        evicted = self._evicted + sum(account.evicted for account in self._accounts)
        alive = sum(account.sent - account.evicted for account in self._accounts)
        return ReplayCounts(self._inserted, alive, evicted, self._lost)

    def state(self) -> Any:
        """Return the state to resume from, after waiting for pending insertions."""
        for account in self._accounts:
            for _, future in account.pending:
                future.exception()
        counts = self.counts
        accounts = [(account.sent, account.evicted) for account in self._accounts]
        return {
            "turn": self.turn,
            "counts": tuple(counts),
            "accounts": accounts,
            "discarded_accounts": (self._evicted, self._lost),
        }

    def restore(self, state: Any) -> None:
        """Resume from a state, with shards that were restored too."""
        self.turn, self._inserted = state["turn"], state["counts"][0]
        self._evicted, self._lost = state["discarded_accounts"]
        for account, actor, counts in zip(self._accounts, self.shards, state["accounts"], strict=True):
            account.incarnation, (account.sent, account.evicted) = actor.incarnation, counts
