"""Environments are restored to their saved state, by repeating their open episodes."""

import logging
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.agents import make_policy
from raceway.envs import EnvSettings, SteppedSlots, make_slots
from raceway.flow import Shard
from raceway.ops import RolloutSettings, RolloutWorker
from raceway.rl import Batch, tree_map
from raceway.rollouts.collector import Collector
from raceway.rollouts.recovery import Recovery
from tests.example_agents import makes_actor

ENVS: dict[str, Any] = {
    "native vector": EnvSettings("CartPole-v1"),
    "stepped": EnvSettings("CartPole-v1", vector="stepped"),
    "truncated": EnvSettings("Pendulum-v1", {"max_episode_steps": 7}),
    "mujoco": EnvSettings("HalfCheetah-v5", {"max_episode_steps": 30}),
    "lives": EnvSettings("ALE/Breakout-v5", {"noop_max": 3}),
    "sticky": EnvSettings("ALE/Breakout-v5", {"noop_max": 3, "repeat_action_probability": 0.25}),
    "dict": EnvSettings(lambda: Hidden()),
}


class Hidden(gym.Env[Any, Any]):
    """Uses random numbers within an episode, and has state that is not observed."""

    observation_space = spaces.Dict({"sum": spaces.Box(-np.inf, np.inf, (1,)), "action_mask": spaces.Box(0, 1, (3,))})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.sum, self.steps = 0.0, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.sum += float(action) * self.np_random.normal()
        self.steps += 1
        return self._observe(), self.sum, self.steps > 5 + self.np_random.integers(9), False, {}

    def _observe(self) -> Any:
        return {"sum": np.array([self.sum], np.float32), "action_mask": np.array([1, self.steps % 2, 1], np.float32)}


def collector_of(env: EnvSettings, network: Any = "mlp") -> Collector:
    slots = make_slots(env, 3, 0)
    policy = make_policy(slots.observation_space, slots.action_space, network, (8,), seed=0)
    return Collector(slots, policy, seed=3, shard=1, clip_actions=True)


def assert_equal(batch: Batch, other: Batch) -> None:
    assert batch.keys() == other.keys()
    tree_map(np.testing.assert_array_equal, batch, other)


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize("name", ENVS)
def test_fragments_continue_exactly_after_a_restoration(name: str, network: str) -> None:
    if network == "lstm" and name in ("lives", "sticky"):
        network = "mlp"  # images need a convolutional network
    first = collector_of(ENVS[name], network)
    steps = 40 if name in ("lives", "sticky") else 11
    for number in range(7):
        first.fragment(steps, number)
    snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    expected = [first.fragment(steps, number) for number in (7, 8)]
    restored = collector_of(ENVS[name], network)
    assert restored.resume(snapshot)
    np.testing.assert_equal(restored.snapshot(), snapshot)
    for number, batch in zip((7, 8), expected, strict=True):
        assert_equal(restored.fragment(steps, number), batch)
    first.close()
    restored.close()


def test_the_lives_of_a_game_continue_exactly_after_a_restoration() -> None:
    first = collector_of(ENVS["lives"])
    for number in range(3):
        first.episodes([1, 2, 1], number)
    snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    expected = first.episodes([1, 2, 1], 3)
    restored = collector_of(ENVS["lives"])
    assert restored.resume(snapshot)
    assert_equal(restored.episodes([1, 2, 1], 3), expected)
    first.close()
    restored.close()


def test_only_open_episodes_are_logged() -> None:
    collector = collector_of(EnvSettings("Pendulum-v1", {"max_episode_steps": 20}))
    for number in range(50):
        collector.fragment(5, number)
    history = collector.snapshot()["episode_log"]
    assert history["num_steps"] == 250
    assert len(history["actions"]) <= 20
    collector.close()


class Unrepeatable(Hidden):
    """Differs for the same seed."""

    starts = iter(range(1000))

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**settings)
        self.sum = float(next(self.starts))
        return self._observe(), {}


def test_a_warning_is_logged_if_an_environment_cannot_be_restored(caplog: pytest.LogCaptureFixture) -> None:
    settings = RolloutSettings(
        env=EnvSettings(Unrepeatable), agent=makes_actor(), num_shards=1, slots_per_shard=2, fragment_steps=3
    )
    shard = Shard(0, 1)
    worker, restored = RolloutWorker(settings), RolloutWorker(settings)
    worker.sample(shard=shard, number=0)
    restored.restore(worker.state(shard=shard), shard=shard)
    with caplog.at_level(logging.WARNING):
        restored.sample(shard=shard, number=1)
    assert "shard 0: environments could not be restored" in caplog.text
    worker.close()
    restored.close()


def test_environments_that_depend_on_earlier_episodes_begin_new_ones() -> None:
    class Past(Hidden):
        repeats_from_seed = False

    slots = SteppedSlots(Past, 2)
    policy = make_policy(slots.observation_space, slots.action_space, "mlp", (8,), seed=0)
    collector = Collector(slots, policy, seed=0, shard=0)
    collector.fragment(4)
    other = Collector(SteppedSlots(Past, 2), policy, seed=0, shard=0)
    assert not other.resume(collector.snapshot())
    assert (other.episode == collector.episode + 1).all()
    assert other.fragment(4)["obs"]["sum"][0, 0, 0] == 0
    collector.close()
    other.close()


class Crashing(Hidden):
    """Fails in these steps, counted over all environments."""

    at: tuple[int, ...] = ()
    num_steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Crashing.num_steps += 1
        if Crashing.num_steps in self.at:
            raise RuntimeError("the simulator broke down")
        return super().step(action)


# For three environments in fragments of 11 steps: in the middle, twice in a row, and in the first and last steps.
CRASHES = [(50,), (50, 53, 56), (199, 200), (231,), (229, 230, 231), (199, 231), (1, 100, 180, 230)]


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize("at", CRASHES)
def test_fragments_continue_after_failures(at: tuple[int, ...], network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crashing, "at", at)
    monkeypatch.setattr(Crashing, "num_steps", 0)
    first = collector_of(EnvSettings(Crashing), network)
    first.recovery = Recovery(10)
    lost = sum(len(first.fragment(11, number)["episode_lost"]) for number in range(7))
    assert lost == len(at)
    snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    monkeypatch.setattr(Crashing, "at", ())
    expected = [first.fragment(11, number) for number in (7, 8)]
    restored = collector_of(EnvSettings(Crashing), network)
    assert restored.resume(snapshot)
    np.testing.assert_equal(restored.snapshot(), snapshot)
    for number, batch in zip((7, 8), expected, strict=True):
        assert_equal(restored.fragment(11, number), batch)


def test_fragments_continue_after_one_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blank(Crashing):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, _, *rest = super().step(action)
            return obs, np.nan if Crashing.num_steps == 190 else self.sum, *rest  # type: ignore[return-value]

    monkeypatch.setattr(Crashing, "num_steps", 0)
    first = collector_of(EnvSettings(Blank))
    first.recovery = Recovery(10)
    lost = sum(len(first.fragment(11, number)["episode_lost"]) for number in range(7))
    assert lost == 1
    snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    expected = first.fragment(11, 7)
    restored = collector_of(EnvSettings(Blank))
    assert restored.resume(snapshot)
    assert_equal(restored.fragment(11, 7), expected)


def test_a_game_that_failed_is_not_continued() -> None:
    """If its episodes are lives, the rebuilt environment begins another game."""
    first = collector_of(ENVS["lives"])
    first.recovery = Recovery(10)
    slots: Any = first.slots
    for number in range(5):
        if number in (2, 3):
            env = slots._bare[1]

            def breaks(*_: Any, env: Any = env) -> Any:
                del env.step
                raise RuntimeError("the simulator broke down")

            env.step = breaks
        assert len(first.fragment(40, number)["episode_lost"]) == (number in (2, 3))
    snapshot = pickle.loads(pickle.dumps(first.snapshot()))
    expected = first.fragment(40, 5)
    restored = collector_of(ENVS["lives"])
    assert restored.resume(snapshot)
    assert_equal(restored.fragment(40, 5), expected)
    first.close()
    restored.close()
