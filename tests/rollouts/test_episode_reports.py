"""Reports of episodes: from the info of the last step, aligned with the returns, however environments are stepped."""

import threading
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.agents import make_policy
from raceway.envs import SteppedSlots
from raceway.envs.native_vectors import EnvPoolSlots, VectorSlots, info_of_env
from raceway.errors import ConfigError
from raceway.rl import Batch, episode_sums
from raceway.rl.episode_info import EPISODE_INFO, decode_episodes
from raceway.rollouts.collector import Collector
from raceway.rollouts.episode_reports import EpisodeCallbacks, EpisodeReporter
from raceway.rollouts.recovery import Recovery
from raceway.ui.callback import Callback
from tests.info_envs import Goal
from tests.rollouts.test_evaluation import Lives
from tests.rollouts.toy_envs import KINDS, Counting, Fault, slots_of

kinds = pytest.mark.parametrize("kind", KINDS)


class TwiceTheReturn(Callback):
    """Reports twice the return, the length, and keeps what it was called with."""

    def __init__(self) -> None:
        self.infos: list[dict[str, Any]] = []

    def on_episode_end(self, info: dict[str, Any]) -> dict[str, float]:
        self.infos.append(info)
        return {"twice": 2 * info["episode"]["r"], "length": info["episode"]["l"]}


def collector_of(kind: str, envs: Sequence[gym.Env], reporter: EpisodeReporter | None = None) -> Collector:
    policy = make_policy(envs[0].observation_space, envs[0].action_space, "mlp", (8,), seed=0)
    collector = Collector(slots_of(kind, envs), policy, seed=3, shard=5, recovery=Recovery(max_failures=5))
    collector.reporter = reporter or EpisodeReporter()
    return collector


def episode_totals(batch: Batch) -> list[tuple[float, int]]:
    if "length" in batch:
        return list(zip(episode_sums(batch["reward"], batch["length"]).tolist(), batch["length"].tolist(), strict=True))
    return list(zip(batch["episode_return"].tolist(), batch["episode_length"].tolist(), strict=True))


@kinds
@pytest.mark.parametrize("whole", [False, True])
def test_reports_are_of_the_last_step_and_aligned_with_the_returns(kind: str, whole: bool) -> None:
    collector = collector_of(kind, [Goal(quiet=6) for _ in range(3)], EpisodeReporter(["distance", "label"]))
    totals: list[tuple[float, int]] = []
    for number in range(12):
        batch = collector.episodes([3, 1, 2], number) if whole else collector.fragment(9, number)
        totals += episode_totals(batch)
        invalid = {"info['label']": "of type str"}
        assert decode_episodes(batch[EPISODE_INFO]) == [
            {"invalid": invalid}
            if length == 6
            else {"success": length % 2, "env": {"distance": 10 * length}, "invalid": invalid}
            for _, length in episode_totals(batch)
        ]
    assert {length for _, length in totals} == {2, 3, 4, 5, 6, 7}


@kinds
@pytest.mark.parametrize("whole", [False, True])
def test_callbacks_get_the_info_with_return_and_length(kind: str, whole: bool) -> None:
    callback = TwiceTheReturn()
    collector = collector_of(kind, [Goal() for _ in range(3)], EpisodeReporter((), [callback]))
    for number in range(5):
        callback.infos.clear()
        batch = collector.episodes([3, 1, 2], number) if whole else collector.fragment(9, number)
        totals = episode_totals(batch)
        assert [(info["distance"], info["label"], info["episode"]) for info in callback.infos] == [
            (10 * length, "over", {"r": total, "l": length}) for total, length in totals
        ]
        reports = decode_episodes(batch[EPISODE_INFO])
        assert [report["metrics"] for report in reports] == [
            {"twice": 2 * total, "length": length} for total, length in totals
        ]


def test_nothing_to_report_adds_no_column() -> None:
    envs = [Counting(name, [3, -1, 5]) for name in range(2)]
    collector = collector_of("stepped", envs, EpisodeReporter(["distance"]))
    assert EPISODE_INFO not in collector.episodes([2, 2])
    assert EPISODE_INFO not in collector.fragment(20, 1)


@pytest.mark.parametrize("fault", ["raises", "nan"])
def test_dropped_episodes_are_not_reported(fault: str) -> None:
    """After a NaN the whole item is collected again: callbacks see the episodes of the batch, and no others."""
    callback = TwiceTheReturn()
    replacements = iter([Counting(0, [3]), Counting(1, [2, -2], Fault(fault, 2, 0)), *(Counting(2, [4]),) * 2])
    slots = SteppedSlots(lambda: next(replacements), 2)
    policy = make_policy(Counting.observation_space, Counting.action_space, "mlp", (8,), seed=0)
    collector = Collector(slots, policy, seed=3, shard=5, recovery=Recovery(max_failures=5))
    collector.reporter = EpisodeReporter((), [callback])
    totals, lost = list[tuple[float, int]](), 0
    for number in range(4):
        batch = collector.fragment(7, number)
        totals += episode_totals(batch)
        lost += len(batch["episode_lost"])
    assert lost >= 1
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in callback.infos] == totals


def test_whole_games_are_reported_where_an_episode_is_a_life() -> None:
    class LivesWithSuccess(Lives):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {**info, "is_success": self.lives == 0}

    callback = TwiceTheReturn()
    collector = collector_of("stepped", [LivesWithSuccess() for _ in range(2)], EpisodeReporter((), [callback]))
    batch = collector.fragment(14)
    assert batch["episode_return"].tolist() == [60.0] * 4
    metrics = {"twice": 120.0, "length": 6.0}
    assert decode_episodes(batch[EPISODE_INFO]) == [{"success": 1.0, "metrics": metrics}] * 4


def test_envpool_infos_are_read_by_the_slot() -> None:
    class Pool:
        """Answers in the reverse order."""

        observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

        def step(self, actions: Any, ids: Any) -> Any:
            order = ids[::-1]
            info = {"env_id": order, "distance": order * 10.0, "players": {"env_id": order}}
            return np.zeros((len(ids), 1)), np.ones(len(ids)), order >= 2, np.zeros(len(ids), bool), info

    slots = EnvPoolSlots(Pool(), 4)
    ended = np.zeros((2, 4), bool)
    slots.step(np.zeros(4, int), [0, 2, 3], np.zeros((4, 1)), np.zeros(4), ended)
    assert [slots.final_info(slot)["distance"] for slot in np.flatnonzero(ended[0]).tolist()] == [20.0, 30.0]


def test_vector_infos_may_lack_masks_and_have_nested_entries() -> None:
    nested = {"a": np.array([1.0, 2.0]), "_a": np.array([True, False])}
    info = {"all": 7, "each": [5, 6], "sub": nested, "_sub": np.array([True, True]), "_own": 3, "matrix": np.eye(2)}
    first, second = (info_of_env(info, index, 2) for index in range(2))
    assert first.pop("matrix").tolist() == [1, 0]
    assert first == {"all": 7, "each": 5, "sub": {"a": 1.0}, "_own": 3}
    assert (second["each"], second["sub"]) == (6, {})


def test_older_vectors_have_a_list_of_final_infos() -> None:
    slots = slots_of("SAME_STEP", [Goal(), Goal()])
    assert isinstance(slots, VectorSlots)
    slots._info = {"final_info": np.array([None, {"is_success": True}], object)}
    assert slots.final_info(1) == {"is_success": True}
    assert EpisodeReporter().read(slots.final_info(0)).report == {}


@pytest.mark.parametrize("info", [None, [], "text", {}])
def test_infos_that_are_no_mapping_are_ignored(info: Any) -> None:
    assert EpisodeReporter(["a"]).read(info).report == {}


class Fails(Callback):
    """Returns a value, or raises it."""

    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def on_episode_end(self, info: dict[str, Any]) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (ValueError("no"), "ValueError: no"),
        ([1, 2], "TypeError: on_episode_end must return a dict of numbers by name, or None, not [1, 2]"),
        ({1: 2}, "TypeError: on_episode_end must return a dict of numbers by name, or None, not {1: 2}"),
    ],
)
def test_the_error_of_a_callback_is_reported(outcome: Any, problem: str) -> None:
    collector = collector_of("stepped", [Goal()], EpisodeReporter((), [Fails(outcome)], token="part"))
    reports = decode_episodes(collector.episodes([1])[EPISODE_INFO])
    error = reports[0]["error"]
    assert (error["callback"], error["problem"], error["token"]) == ("Fails", problem, "part")
    assert error["traceback"].rstrip().endswith(problem)
    assert "metrics" not in reports[0]


def test_two_callbacks_cannot_return_the_same_metric() -> None:
    callbacks = [Fails({"a": 1.0}), Fails({"a": 2.0})]
    collector = collector_of("stepped", [Goal()], EpisodeReporter((), callbacks))
    (report,) = decode_episodes(collector.episodes([1])[EPISODE_INFO])
    assert (
        report["error"]["problem"] == "ValueError: another callback returned a metric 'a' already. Rename one of them."
    )


def test_metrics_that_are_no_numbers_are_reported_as_such() -> None:
    collector = collector_of("stepped", [Goal()], EpisodeReporter((), [Fails({"a": 1, "b": "x", "c": float("nan")})]))
    (report,) = decode_episodes(collector.episodes([1])[EPISODE_INFO])
    assert report["metrics"] == {"a": 1}
    assert report["invalid"] == {
        "the metric 'b' of Fails.on_episode_end": "of type str",
        "the metric 'c' of Fails.on_episode_end": "nan",
    }


def test_a_callback_that_cannot_be_pickled_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"the callback Fails has on_episode_end, .* cannot be pickled: .*lock"):
        EpisodeCallbacks.of([Fails(threading.Lock())])


def test_workers_get_copies() -> None:
    original = Fails([1])
    callbacks = EpisodeCallbacks.of([original])
    assert callbacks is not None
    original.outcome.append(2)
    (copy,) = callbacks.load()
    assert copy.outcome == [1]
    assert EpisodeCallbacks.of([]) is None


def test_stepped_slots_keep_the_info_of_each_slot() -> None:
    envs = iter([Goal(), Goal()])
    slots = SteppedSlots(lambda: next(envs), 2)
    obs, reward, ended = np.zeros((2, 2), np.float32), np.zeros(2), np.zeros((2, 2), bool)
    slots.reset([0, 1], [1, 2], obs)
    slots.step(np.zeros(2, int), [1], obs, reward, ended)
    assert slots.final_info(0) == {}
    assert slots.final_info(1)["distance"] != -1.0
