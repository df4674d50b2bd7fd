"""States that were saved before a change of the plans. `tests/runs/test_older_versions.py` resumes whole runs."""

from collections import deque
from typing import Any

from raceway.checkpoints.migrations import migrate_decoded_state


def test_samples_of_an_empty_replay_are_removed_with_their_filter() -> None:
    ready: deque[Any] = deque([(0, (None, "first")), (1, ({"reward": 1.0}, "second"))])
    gather = {"shards": [], "progress": [], "ready": ready}
    plan = ["create(sample, shards=2)", "gather_async(num_async=2)", "filter(has_rows)", "for_each(TrainOneStep)"]
    stages = {1: gather, 2: {"function": None}, 3: {"function": "trained"}}
    learner = {"policy": {}, "target": None, "optimiser": {"steps": 3}, "steps": 0, "random": None}
    state = migrate_decoded_state({"learner": learner, "flow": {"plan": plan, "stages": stages}}, schema=2)
    assert state["flow"]["plan"] == [plan[0], plan[1], plan[3]]
    assert state["flow"]["stages"].keys() == {1, 2}
    assert list(state["flow"]["stages"][1]["ready"]) == [(1, ({"reward": 1.0}, "second"))]
    assert state["flow"]["stages"][2] == {"function": "trained"}


def test_a_state_of_this_version_is_unchanged() -> None:
    state = {"learner": {}, "flow": {"plan": ["filter(has_rows)"], "stages": {}}}
    assert migrate_decoded_state(state, schema=3) is state
