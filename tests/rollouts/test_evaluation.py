"""Evaluation is reproducible, and has no side effects."""

import random
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import Agent, EpsilonGreedy, Explorer, Policy, make_policy
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rl.seeding import GLOBAL_GENERATORS_LOCK
from raceway.rollouts.evaluation import Evaluation, Evaluator, evaluate
from tests.conftest import GENEROUS
from tests.example_agents import example_actor, example_actor_critic
from tests.odd_envs import Odd
from tests.rollouts.toy_envs import KINDS, Counting, Walk, slots_of

CARTPOLE = EnvSettings("CartPole-v1")


def policy_for(env: EnvSettings, make: Callable[..., Agent] = example_actor, **settings: Any) -> Policy:
    slots = make_slots(env, 1)
    slots.close()
    return make(slots.observation_space, slots.action_space, hidden=(128,), seed=0, **settings).actor


def same(first: Evaluation, second: Evaluation) -> bool:
    return first.returns.tobytes() == second.returns.tobytes() and first.lengths.tobytes() == second.lengths.tobytes()


class Constant(nn.Module):
    """A network with the same outputs for every observation."""

    def __init__(self, outputs: list[float]) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor(outputs))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.outputs.expand(len(obs), -1)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("env", "settings", "explorer"),
    [
        (CARTPOLE, {"make": example_actor_critic}, None),
        (CARTPOLE, {"network": "lstm"}, None),
        (CARTPOLE, {}, EpsilonGreedy(np.ones(3))),
        (EnvSettings("CartPole-v1", vector="envpool"), {}, None),
        (EnvSettings("CartPole-v1", vector="stepped"), {}, EpsilonGreedy(np.ones(5))),
        (EnvSettings(Walk), {}, None),
        (EnvSettings("point"), {"make": example_actor_critic, "normalise_obs": True}, None),
    ],
)
def test_the_same_seed_gives_the_same_returns(
    env: EnvSettings, settings: dict[str, Any], explorer: Explorer | None, deterministic: bool
) -> None:
    policy, options = policy_for(env, **settings), {"deterministic": deterministic, "explorer": explorer}
    first, again, other = (evaluate(policy, env, 10, seed=seed, **options) for seed in (3, 3, 4))
    assert first.returns.shape == first.lengths.shape == (10,)
    assert same(first, again)
    assert not same(first, other)


def test_means_and_standard_deviation() -> None:
    result = Evaluation(np.array([1.0, 3.0]), np.array([10, 20]))
    assert (result.mean_return, result.std_return, result.mean_length) == (2.0, 1.0, 15.0)


@pytest.mark.parametrize("kind", KINDS)
def test_returns_and_lengths_are_those_of_the_environments(kind: str) -> None:
    envs = [Counting(name, [3 + name, -5]) for name in range(3)]
    policy = make_policy(Counting.observation_space, Counting.action_space, seed=0)
    evaluator = Evaluator(slots_of(kind, envs), policy, seed=0, clip_actions=False, explorer=None)
    progress: list[int] = []
    result = evaluator.run(7, progress.append)
    episodes = [episode for env, count in zip(envs, (3, 2, 2), strict=True) for episode in env.since(0)[:count]]
    assert result.lengths.tolist() == [len(episode.steps) for episode in episodes]
    assert result.returns.tolist() == [sum(step[1] for step in episode.steps) for episode in episodes]
    assert progress[-1] == 7
    assert progress == sorted(progress)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recurrent_state_is_reset_between_episodes(kind: str) -> None:
    """An episode does not depend on those before it."""

    class Memory(nn.Module):
        """Counts steps in its recurrent state, and acts with their number."""

        def initial_state(self, num: int) -> dict[str, torch.Tensor]:
            return {"steps": torch.zeros(num)}

        def forward(self, obs: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
            steps = state["steps"] + 1
            return -(torch.arange(4) - steps[:, None] + 1).square().float(), {"steps": steps}

    envs = [Counting(name, [3, -4]) for name in range(2)]
    policy = make_policy(Counting.observation_space, Counting.action_space, lambda *_: Memory())
    Evaluator(slots_of(kind, envs), policy, seed=0, clip_actions=False, explorer=None).run(6)
    for env in envs:
        for episode in env.since(0):
            actions = [step[0] for step in episode.steps]
            assert actions == list(range(len(actions)))


def test_policy_and_generators_are_left_unchanged() -> None:
    class GlobalRandom(Walk):
        """Uses the global random generators."""

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
    env = EnvSettings(GlobalRandom)
    results = [evaluate(policy, env, 5, seed=0, deterministic=False) for _ in range(2)]
    assert same(*results)  # the global generators are seeded too
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert {name: value.tobytes() for name, value in policy.weights().items()} == weights
    assert [module.training for module in policy.modules()] == modes


def q_policy() -> Policy:
    """Return a Q-network whose greedy action is 1 of two."""
    space = spaces.Box(-np.inf, np.inf, (2,))
    return make_policy(space, spaces.Discrete(2), lambda *_: Constant([0.0, 1.0]))


def test_a_deterministic_q_policy_is_greedy() -> None:
    result = evaluate(q_policy(), EnvSettings(Odd), 6, seed=0, explorer=EpsilonGreedy(1.0))  # its reward is its action
    assert result.returns.tolist() == [8.0] * 6


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_each_slot_explores_with_its_own_epsilon(width: int) -> None:
    """Also with more or fewer slots than the explorer was created for, and when some have finished."""
    explorer, settings = EpsilonGreedy([0.0, 1.0]), {"deterministic": False, "num_envs": width}
    result = evaluate(q_policy(), EnvSettings(Odd), 2 * width + 1, seed=0, explorer=explorer, **settings)
    counts = [2 + (slot < 1) for slot in range(width)]
    returns = np.split(result.returns, np.cumsum(counts)[:-1])
    for slot, slot_returns in enumerate(returns):
        assert (slot_returns == 8).all() == (slot % 2 == 0)
    assert explorer.knobs["epsilon"].tolist() == [0.0, 1.0]


def test_every_episode_has_a_task_sampled_by_the_seed() -> None:
    assigned: list[tuple[int, float]] = []

    class Tasks(Odd):
        def sample_tasks(self, num: int, seed: int) -> Any:
            return np.random.default_rng(seed).random(num)

        def set_task(self, task: Any) -> None:
            assigned.append((id(self), float(task)))

    env = EnvSettings(Tasks)
    policy = policy_for(env)
    tasks = []
    for seed in (0, 0, 1):
        assigned.clear()
        evaluate(policy, env, 7, seed=seed, num_envs=3)
        tasks.append([task for _, task in assigned])
    assert len(set(tasks[0])) == 7
    assert tasks[0] == tasks[1]
    assert not set(tasks[0]) & set(tasks[2])


class Lives(gym.Env[Any, Any]):
    """A game of three lives of two steps each. Every step scores 10, and has a reward of 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)
    reports_scores = True
    games = 0

    def __init__(self) -> None:
        self.lives = self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.lives == 0:
            Lives.games += 1
            self.lives, self.steps = 3, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps % 2 == 0
        self.lives -= over
        info = {"episode": {"r": 10.0 * self.steps, "l": self.steps}} if self.lives == 0 else {}
        return np.zeros(1, np.float32), 1.0, over, False, info


def test_whole_games_are_evaluated_with_their_scores() -> None:
    env = EnvSettings(Lives)
    policy, Lives.games = policy_for(env), 0
    result = evaluate(policy, env, 5, seed=0, num_envs=2)
    assert result.returns.tolist() == [60.0] * 5
    assert result.lengths.tolist() == [6] * 5
    assert Lives.games == 5


@pytest.mark.parametrize("vector", ["auto", "envpool"])
def test_atari_games_are_evaluated_over_all_lives(vector: str) -> None:
    env = EnvSettings("ALE/Breakout-v5", {"max_episode_steps": 90}, vector)
    policy = make_policy(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4), lambda *_: NoAction(), seed=0)
    result = evaluate(policy, env, 3, seed=0, num_envs=2)
    assert (result.lengths > 60).all()  # longer than a life without any action
    assert (result.returns >= 0).all()


class NoAction(nn.Module):
    """A network that always takes action 0, which does nothing."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.tensor([1.0, 0, 0, 0]).expand(len(obs), -1)


def test_actions_are_clipped_if_requested() -> None:
    def network(*_: Any) -> nn.Module:
        return Constant([5.0, -3.0])  # a mean far out of bounds, and the logarithm of a standard deviation

    env = EnvSettings(Odd, {"how": "continuous"})
    policy = make_policy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (1,)), network)
    assert evaluate(policy, env, 1, seed=0, clip_actions=True).returns.tolist() == [8.0]
    assert evaluate(policy, env, 1, seed=0).returns.tolist() == [40.0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", r"environment step returned an observation of \[nan, nan\](?s:.)*step 2 of its episode"),
        ("reward", r"environment step returned a reward of \[nan\]"),
        ("raise", "the simulator broke down"),
        ("reset", "the simulator did not start"),
    ],
)
def test_an_environment_that_fails_is_named_and_closed(how: str, message: str) -> None:
    closed = []

    class Closing(Odd):
        def close(self) -> None:
            closed.append(self)

    env = EnvSettings(Closing, {"how": how})
    policy = make_policy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2), seed=0)
    with pytest.raises(EnvironmentFailed, match=message):
        evaluate(policy, env, 4, seed=0, num_envs=2)
    assert len(closed) == 2


def test_an_episode_that_does_not_end_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raceway.rollouts.evaluation._MAX_EPISODE_STEPS", 50)
    env = EnvSettings(Odd, {"length": -1})
    with pytest.raises(EnvironmentFailed, match="the episode does not end: it has 50 steps"):
        evaluate(policy_for(env), env, 2, seed=0)


@pytest.mark.parametrize("numbers", [{"num_episodes": 0}, {"num_episodes": 2, "num_envs": 0}])
def test_numbers_are_checked(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 1"):
        evaluate(policy_for(CARTPOLE), CARTPOLE, seed=0, **numbers)


def test_other_trainings_do_not_wait_for_an_evaluation() -> None:
    stepping, released = threading.Event(), threading.Event()

    class Slow(Walk):
        """Waits in its steps."""

        def step(self, action: Any) -> Any:
            stepping.set()
            released.wait(GENEROUS)
            return super().step(action)

    env = EnvSettings(Slow)
    policy = policy_for(env)
    thread = threading.Thread(target=lambda: evaluate(policy, env, 1, seed=0))
    thread.start()
    stepping.wait(GENEROUS)
    acquired = GLOBAL_GENERATORS_LOCK.acquire(blocking=False)
    if acquired:
        GLOBAL_GENERATORS_LOCK.release()
    released.set()
    thread.join(GENEROUS)
    assert acquired
