"""Recorded episodes are those that the environments saw, however they are stepped."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from raceway.agents import Sample, make_policy
from raceway.datasets.episodes import check_episodes
from raceway.envs import EnvSettings
from raceway.rl import Batch
from raceway.rollouts.episode_recorder import EpisodeRecorder
from raceway.rollouts.evaluation import evaluate
from tests.odd_envs import Odd
from tests.rollouts.toy_envs import KINDS, Counting, slots_of


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_those_of_the_environments(kind: str) -> None:
    envs = [Counting(0, [3, -2, 4]), Counting(1, [5, 1, -3])]
    policy = make_policy(envs[0].observation_space, envs[0].action_space, seed=0)
    recorded: list[Batch] = []
    recorder = EpisodeRecorder(
        slots_of(kind, envs), policy, seed=0, clip_actions=False, explorer=Sample(), on_episode=recorded.append
    )
    evaluation = recorder.run(5)
    recorder.slots.close()
    assert len(recorded) == 5
    assert sorted(float(episode["reward"].sum()) for episode in recorded) == sorted(evaluation.returns.tolist())
    by_env = [[episode for episode in recorded if episode["obs"][0, 0] == env.name] for env in envs]
    assert [len(recorded_by) for recorded_by in by_env] == [3, 2]
    for env, recorded_by in zip(envs, by_env, strict=True):
        for actual, episode in zip(env.since(0), recorded_by, strict=False):
            check_episodes(episode, env.observation_space, env.action_space)
            np.testing.assert_array_equal(np.concatenate([episode["obs"], episode["final_obs"]]), actual.obs)
            columns = (episode[name].tolist() for name in ("action", "reward", "terminated", "truncated"))
            assert list(zip(*columns, strict=True)) == actual.steps
            assert episode["length"].tolist() == [len(actual.steps)]


class Clipped(Odd):
    """Pays the executed action, and has bounds of 64 bits that most actions exceed."""

    def __init__(self) -> None:
        super().__init__("continuous")
        self.action_space = spaces.Box(-0.25, 0.25, (1,), np.float64)  # type: ignore[arg-type]


@pytest.mark.parametrize("clips", [True, False])
def test_actions_are_recorded_as_they_were_executed(clips: bool) -> None:
    env, recorded = Clipped(), list[Batch]()

    def evaluate_with(**settings: Any) -> Any:
        return evaluate(policy, EnvSettings(Clipped), 3, seed=1, deterministic=False, clip_actions=clips, **settings)

    policy = make_policy(env.observation_space, env.action_space, seed=0)
    evaluation = evaluate_with(make_evaluator=partial(EpisodeRecorder, on_episode=recorded.append))
    actions = np.concatenate([episode["action"] for episode in recorded])
    assert actions.dtype == np.float32
    assert (np.abs(actions) <= 0.25).all() == clips
    np.testing.assert_array_equal(actions[:, 0], np.concatenate([episode["reward"] for episode in recorded]))
    assert evaluation.returns.tolist() == evaluate_with().returns.tolist()


class Lives(Odd):
    """Games of two lives, each of which is an episode; the score of a game is 99."""

    reports_scores = True
    repeats_from_seed = False
    num_steps = 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return (
            obs,
            reward,
            terminated,
            truncated,
            {"episode": {"r": 99.0, "l": 16}} if self.num_steps % 16 == 0 else info,
        )


def test_every_life_of_a_game_is_an_episode() -> None:
    recorded: list[Batch] = []
    policy = make_policy(Lives().observation_space, Lives().action_space, seed=0)
    make = partial(EpisodeRecorder, on_episode=recorded.append)
    evaluation = evaluate(policy, EnvSettings(Lives), 3, seed=0, make_evaluator=make)
    assert evaluation.returns.tolist() == [99.0] * 3
    assert [episode["length"].tolist() for episode in recorded] == [[8]] * 6
