"""Migrations of saved states: states that older versions wrote, turned into today's form.

A state is migrated as JSON, before it is decoded. Which object a mapping belongs to is recognised by its keys: nothing
else in a state has all of them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class _Renamed(NamedTuple):
    """Keys that have new names, in mappings that have all keys of `marks` and none of `without`."""

    marks: frozenset[str]
    names: Mapping[str, str]
    without: frozenset[str] = frozenset()


_STEPS = frozenset({"action", "reward", "terminated", "truncated"})
_EVALUATED_FRAGMENT = frozenset({"reward", "log_prob", "ended", "last_obs"})
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


_FILTER = "filter(has_rows)"


def migrate_weights(weights: Mapping[str, Any], schema: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights of an agent by their current names, and the knobs of exploration that were among them.

    Up to schema 2 an agent was a policy with a critic, and the exploration rate was one of its buffers.

    >>> migrate_weights({"network.0.bias": 1, "critic.0.bias": 2, "epsilon": 3}, schema=2)
    ({'actor.network.0.bias': 1, 'critic.0.bias': 2}, {'epsilon': 3})
    """
    if schema >= 3:
        return dict(weights), {}
    knobs = {name: value for name, value in weights.items() if name == "epsilon"}
    kept = {name: value for name, value in weights.items() if name not in knobs}
    return {_agent_weight(name): value for name, value in kept.items()}, knobs


def _agent_weight(name: str) -> str:
    """Return the name of a weight in an agent, from its name in a policy of schema 2."""
    return f"actor.{name}" if name.startswith(("network.", "log_std")) else name


def migrate_decoded_state(state: Any, schema: int) -> Any:
    """Return a state in today's form, after it was decoded. Up to schema 2, target networks were updated by a node."""
    if schema >= 3 or not isinstance(state, dict) or not isinstance(state.get("learner"), dict):
        return state
    _, knobs = migrate_weights(state["learner"]["policy"], schema)
    flow = _migrate_flow(state["flow"], schema) if state.get("flow") else state.get("flow")
    learner = _migrate_learner(state["learner"], schema)
    if flow and any("AddProgress" in label for label in flow["plan"]):
        # A learner that samples from replay counted the rows that it sampled, and counts environment steps now.
        learner["steps"] = flow["stages"][len(flow["plan"]) - 1]["function"]["timesteps"]
    return {**state, "learner": learner, "exploration": knobs, "flow": flow}


def _migrate_learner(learner: dict[str, Any], schema: int) -> dict[str, Any]:
    optimiser, target = learner["optimiser"], learner["target"]
    return {
        "policy": migrate_weights(learner["policy"], schema)[0],
        "target": None if target is None else migrate_weights(target, schema)[0],
        "objectives": {"agent": {"optimiser": optimiser, "loss": None}},
        "steps": learner["steps"],
        "version": optimiser["steps"],
        "random": learner["random"],
    }


def _migrate_flow(flow: dict[str, Any], schema: int) -> dict[str, Any]:
    """Return the state of a flow with today's nodes, and with the workers' weights by their new names.

    Target networks are updated by the learner, and samples from replay are given the progress of the run.
    """
    labels, stages = list(flow["plan"]), [flow["stages"].get(index) for index in range(len(flow["plan"]))]
    for index in [index for index, label in enumerate(labels) if "UpdateTarget" in label]:
        label, stage = labels.pop(index), stages.pop(index)
        sampled = next(number for number, other in enumerate(labels) if "has_rows" in other) + 1
        labels.insert(sampled, label.replace("UpdateTarget", "AddProgress"))
        stages.insert(sampled, {**stage, "function": {}})
    for index in [index for index, label in enumerate(labels) if label == "for_each(ConcatFragments)"]:
        batch = index - 1  # a node that collected a number of fragments, which were concatenated by the next one
        if stages[batch]["held"]:
            continue  # half a batch cannot be carried over: resuming says that the flow is another one
        labels[batch : index + 1] = ["combine(ConcatFragments)"]
        stages[batch : index + 1] = [{**stages[index], "function": {"held": []}}]
    migrated = {index: _migrate_stage(stage, schema) for index, stage in enumerate(stages) if stage is not None}
    return _without_empty_samples({**flow, "plan": labels, "stages": migrated})


def _without_empty_samples(flow: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a flow without the nodes that filtered samples of empty replay, and without such samples."""
    if _FILTER not in flow["plan"]:
        return flow
    kept = [index for index, label in enumerate(flow["plan"]) if label != _FILTER]
    stages = {number: flow["stages"][index] for number, index in enumerate(kept) if index in flow["stages"]}
    for stage in stages.values():
        if isinstance(stage, dict) and "shards" in stage:
            stage["ready"] = deque(entry for entry in stage["ready"] if entry[1][0] is not None)
    return {**flow, "plan": [flow["plan"][index] for index in kept], "stages": stages}


def _migrate_stage(state: Any, schema: int) -> Any:
    """Return the state of a stage with all weights by their new names.

    A stage may hold the weights that workers were sent, a remote learner, and items: fragments, gradients, weights.
    """
    if isinstance(state, dict):
        if state.keys() == {"age", "sent"} and state["sent"] is not None:
            weights, knobs = migrate_weights(state["sent"], schema)
            return {**state, "sent": {"weights": weights, "knobs": knobs}}
        if state.keys() >= {"policy", "target", "optimiser", "random"}:
            return _migrate_learner(state, schema)
        if any(isinstance(name, str) and name.startswith("network.") for name in state):
            return migrate_weights(state, schema)[0]
        if state.keys() >= _EVALUATED_FRAGMENT:
            state.setdefault("bootstrap", np.zeros_like(state["reward"]))  # it was a part of the rewards
        for name, part in state.items():
            state[name] = _migrate_stage(part, schema)
    elif type(state) in (list, tuple, deque):
        parts = [_migrate_stage(part, schema) for part in state]
        return deque(parts, state.maxlen) if isinstance(state, deque) else type(state)(parts)
    elif dataclasses.is_dataclass(state) and not isinstance(state, type):
        for field in dataclasses.fields(state):
            setattr(state, field.name, _migrate_stage(getattr(state, field.name), schema))
    return state
