"""Migrations of saved states: states that older versions wrote, turned into today's form.

A state is migrated as JSON, before it is decoded. Which object a mapping belongs to is recognised by its keys: nothing
else in a state has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class _Renamed(NamedTuple):
    """Keys that have new names, in mappings that have all keys of `marks` and none of `without`."""

    marks: frozenset[str]
    names: Mapping[str, str]
    without: frozenset[str] = frozenset()


_STEPS = frozenset({"action", "reward", "terminated", "truncated"})
_SCHEMA_1 = (
    # a collector of rollouts, and the log from which it restores environments
    _Renamed(
        frozenset({"episode", "playing", "carried"}),
        {
            "playing": "active", "carried": "open_episodes", "in_a_row": "consecutive_failures", "broken": "discarded",
            "history": "episode_log", "remembered": "recurrent_state", "seen": "obs",
        },
    ),
    _Renamed(frozenset({"now", "first", "resets"}), {"now": "num_steps", "first": "first_step", "counted": "valid"}),
    # fragments, and the steps that n-step transitions hold back
    _Renamed(_STEPS | {"given", "next_obs"}, {"given": "emitted"}),
    _Renamed(_STEPS | {"given"}, {"given": "network_outputs"}, without=frozenset({"next_obs"})),
    _Renamed(_STEPS | {"anew"}, {"anew": "restarted"}),
    # replay: the ledger of the shards, a shard, its buffer
    _Renamed(frozenset({"turn", "counts", "books", "over"}), {"books": "accounts", "over": "discarded_accounts"}),
    _Renamed(frozenset({"buffer", "from"}), {"from": "first_index"}),
    _Renamed(frozenset({"capacity", "columns", "drawing"}), {"columns": "storage", "drawing": "sampler"}),
    # a gathering of shards
    _Renamed(frozenset({"shards", "lanes", "ready"}), {"lanes": "progress"}),
)  # fmt: skip


def migrate_state(doc: Any, schema: int) -> Any:
    """Return the JSON of a state in today's form.

    Args:
        doc: the JSON of the state.
        schema: the schema number of the checkpoint's manifest.

    >>> migrate_state({"buffer": {}, "from": 3}, schema=1)
    {'buffer': {}, 'first_index': 3}
    """
    return _rename(doc) if schema < 2 else doc


def _rename(doc: Any) -> Any:
    if isinstance(doc, list):
        return [_rename(part) for part in doc]
    if not isinstance(doc, dict):
        return doc
    keys, names = doc.keys(), dict[str, str]()
    for rule in _SCHEMA_1:
        if rule.marks <= keys and not rule.without & keys:
            names |= rule.names
    return {names.get(key, key): _rename(part) for key, part in doc.items()}
