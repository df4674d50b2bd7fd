"""Evaluation: the same numbers every time, and nothing changed by it."""

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import Policy, make_policy
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rollouts.evaluation import Evaluation, Player, evaluate
from tests.odd_envs import Odd
from tests.rollouts.toy_envs import KINDS, Counting, Walk, slots_of

CARTPOLE = EnvSettings("CartPole-v1")


def policy_for(env: EnvSettings, **how: Any) -> Policy:
    slots = make_slots(env, 1)
    slots.close()
    return make_policy(slots.observation_space, slots.action_space, seed=0, **how)


def same(one: Evaluation, other: Evaluation) -> bool:
    return one.returns.tobytes() == other.returns.tobytes() and one.lengths.tobytes() == other.lengths.tobytes()


class Given(nn.Module):
    """A network that likes the actions as it is told to, whatever it sees."""

    def __init__(self, likes: list[float]) -> None:
        super().__init__()
        self.likes = nn.Parameter(torch.tensor(likes))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.likes.expand(len(obs), -1)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("env", "how"),
    [
        (CARTPOLE, {"kind": "actor-critic"}),
        (CARTPOLE, {"network": "lstm"}),
        (CARTPOLE, {"kind": "values", "num_slots": 3}),
        (EnvSettings("CartPole-v1", vector="envpool"), {}),
        (EnvSettings("CartPole-v1", vector="stepped"), {"kind": "values", "num_slots": 5}),
        (EnvSettings(Walk), {}),
        (EnvSettings("point"), {"kind": "actor-critic", "normalise": True}),
    ],
)
def test_the_same_seed_gives_the_same_numbers(env: EnvSettings, how: dict[str, Any], deterministic: bool) -> None:
    policy = policy_for(env, **how)
    first, again, other = (evaluate(policy, env, 10, seed=seed, deterministic=deterministic) for seed in (3, 3, 4))
    assert first.returns.shape == first.lengths.shape == (10,)
    assert same(first, again)
    assert not same(first, other)


def test_figures() -> None:
    found = Evaluation(np.array([1.0, 3.0]), np.array([10, 20]))
    assert (found.mean_return, found.std_return, found.mean_length) == (2.0, 1.0, 15.0)


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_are_counted_as_environments_do(kind: str) -> None:
    envs = [Counting(name, [3 + name, -5]) for name in range(3)]
    policy = make_policy(Counting.observation_space, Counting.action_space, seed=0)
    player = Player(slots_of(kind, envs), policy, seed=0, clip_actions=False, deterministic=True)
    heard: list[int] = []
    found = player.play(7, heard.append)
    played = [episode for env, count in zip(envs, (3, 2, 2), strict=True) for episode in env.since(0)[:count]]
    assert found.lengths.tolist() == [len(episode.steps) for episode in played]
    assert found.returns.tolist() == [sum(step[1] for step in episode.steps) for episode in played]
    assert heard[-1] == 7
    assert heard == sorted(heard)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_policy_forgets_between_episodes(kind: str) -> None:
    """What an episode brings does not depend on how many were played before it."""

    class Memory(nn.Module):
        """Adds up the steps that it remembers, and plays their number."""

        def initial_state(self, num: int) -> dict[str, torch.Tensor]:
            return {"steps": torch.zeros(num)}

        def forward(self, obs: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
            steps = state["steps"] + 1
            return -(torch.arange(4) - steps[:, None] + 1).square().float(), {"steps": steps}

    envs = [Counting(name, [3, -4]) for name in range(2)]
    policy = make_policy(Counting.observation_space, Counting.action_space, lambda *_: Memory())
    Player(slots_of(kind, envs), policy, seed=0, clip_actions=False, deterministic=True).play(6)
    for env in envs:
        for episode in env.since(0):
            actions = [step[0] for step in episode.steps]
            assert actions == list(range(len(actions)))


def test_nothing_is_changed() -> None:
    class Careless(Walk):
        """Uses the generators that belong to everybody."""

        def step(self, action: Any) -> Any:
            noise = random.random() + np.random.random() + float(torch.rand(()))
            obs, reward, *rest = super().step(action)
            return obs, reward + noise, *rest

    def network(*_: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).eval()

    policy = make_policy(Walk.observation_space, Walk.action_space, network, seed=0)
    policy.train()
    policy.network[2].eval()  # type: ignore[index]
    modes = [module.training for module in policy.modules()]
    weights = {name: value.tobytes() for name, value in policy.weights().items()}
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    env = EnvSettings(Careless)
    found = [evaluate(policy, env, 5, seed=0, deterministic=False) for _ in range(2)]
    assert same(*found)  # also these generators begin with the seed
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert {name: value.tobytes() for name, value in policy.weights().items()} == weights
    assert [module.training for module in policy.modules()] == modes


def chooser(epsilon: list[float]) -> Policy:
    """Return a policy of values that likes action 1 of two, and strays as told."""
    space = spaces.Box(-np.inf, np.inf, (2,))
    policy = make_policy(space, spaces.Discrete(2), lambda *_: Given([0.0, 1.0]), kind="values", num_slots=len(epsilon))
    policy.set_epsilon(epsilon)
    return policy


def test_deterministic_is_greedy() -> None:
    found = evaluate(chooser([1.0]), EnvSettings(Odd), 6, seed=0)  # its reward is its action
    assert found.returns.tolist() == [8.0] * 6


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_each_slot_strays_as_its_own_epsilon_says(width: int) -> None:
    """Also where there are more or fewer slots than the policy was made for, and when some have finished."""
    policy = chooser([0.0, 1.0])
    found = evaluate(policy, EnvSettings(Odd), 2 * width + 1, seed=0, deterministic=False, num_envs=width)
    counts = [2 + (slot < 1) for slot in range(width)]
    returns = np.split(found.returns, np.cumsum(counts)[:-1])
    for slot, those in enumerate(returns):
        assert (those == 8).all() == (slot % 2 == 0)
    assert policy.weights()["epsilon"].tolist() == [0.0, 1.0]


def test_every_episode_has_a_task_by_the_seed() -> None:
    given: list[tuple[int, float]] = []

    class Tasks(Odd):
        def sample_tasks(self, num: int, seed: int) -> Any:
            return np.random.default_rng(seed).random(num)

        def set_task(self, task: Any) -> None:
            given.append((id(self), float(task)))

    env = EnvSettings(Tasks)
    policy = policy_for(env)
    tasks = []
    for seed in (0, 0, 1):
        given.clear()
        evaluate(policy, env, 7, seed=seed, num_envs=3)
        tasks.append([task for _, task in given])
    assert len(set(tasks[0])) == 7
    assert tasks[0] == tasks[1]
    assert not set(tasks[0]) & set(tasks[2])


class Lives(gym.Env[Any, Any]):
    """A game of three lives of two steps each, of which every step brings 10, shown as 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)
    tells_scores = True
    began = 0

    def __init__(self) -> None:
        self.lives = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.lives == 0:
            Lives.began += 1
            self.lives, self.steps = 3, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps % 2 == 0
        self.lives -= over
        info = {"episode": {"r": 10.0 * self.steps, "l": self.steps}} if self.lives == 0 else {}
        return np.zeros(1, np.float32), 1.0, over, False, info


def test_of_games_whole_ones_are_played_and_their_scores_told() -> None:
    env = EnvSettings(Lives)
    policy, Lives.began = policy_for(env), 0
    found = evaluate(policy, env, 5, seed=0, num_envs=2)
    assert found.returns.tolist() == [60.0] * 5
    assert found.lengths.tolist() == [6] * 5
    assert Lives.began == 5


@pytest.mark.parametrize("vector", ["auto", "envpool"])
def test_atari_games(vector: str) -> None:
    env = EnvSettings("ALE/Breakout-v5", {"max_episode_steps": 90}, vector)
    policy = make_policy(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4), lambda *_: Still(), seed=0)
    found = evaluate(policy, env, 3, seed=0, num_envs=2)
    assert (found.lengths > 60).all()  # longer than a life, in which nothing is done
    assert (found.returns >= 0).all()


class Still(nn.Module):
    """A network that does nothing, always."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 0, 0, 0]).expand(len(obs), -1)


def test_actions_are_clipped_if_that_is_said() -> None:
    def network(*_: Any) -> nn.Module:
        return Given([5.0, -3.0])  # a mean far outside, and the logarithm of a deviation

    env = EnvSettings(Odd, {"how": "continuous"})
    policy = make_policy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (1,)), network)
    assert evaluate(policy, env, 1, seed=0, clip_actions=True).returns.tolist() == [8.0]
    assert evaluate(policy, env, 1, seed=0).returns.tolist() == [40.0]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", r"step of the environment gave an observation of \[nan, nan\](?s:.)*step 2 of its episode"),
        ("reward", r"step of the environment gave a reward of \[nan\]"),
        ("raise", "the simulator broke down"),
        ("reset", "the simulator did not start"),
    ],
)
def test_an_environment_that_fails_is_told_of_and_closed(how: str, said: str) -> None:
    closed = []

    class Closing(Odd):
        def close(self) -> None:
            closed.append(self)

    env = EnvSettings(Closing, {"how": how})
    policy = make_policy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2), seed=0)
    with pytest.raises(EnvironmentFailed, match=said):
        evaluate(policy, env, 4, seed=0, num_envs=2)
    assert len(closed) == 2


def test_an_episode_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raceway.rollouts.evaluation._ENDLESS", 50)
    env = EnvSettings(Odd, {"length": -1})
    with pytest.raises(EnvironmentFailed, match="the episode does not end: it has 50 steps"):
        evaluate(policy_for(env), env, 2, seed=0)


@pytest.mark.parametrize("numbers", [{"num_episodes": 0}, {"num_episodes": 2, "num_envs": 0}])
def test_numbers_are_checked(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        evaluate(policy_for(CARTPOLE), CARTPOLE, seed=0, **numbers)
