"""The answers of environments with known answers, found again by value iteration, enumeration and simulation."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import raceway
from raceway.envs import EnvSettings, make_env
from raceway.envs import known_answers as envs
from raceway.errors import ConfigError
from tests.catalogue.small_settings import small_settings

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in envs.__all__),
    ("Coin", {"values": [-2.0, 0.0, 3.0], "probabilities": [0.2, 0.5, 0.3], "continuous": True}),
    ("SoftBandit", {"rewards": [0.0, 0.3, 1.0]}),
    ("Identity", {"num_dims": 3}),
    ("Chain", {"random_start": True}),
    ("Endless", {"ending": "terminated", "show_remaining": True}),
    ("Endless", {"ending": "terminated", "continuous": True}),
    ("Bait", {"continuous": True}),
    ("LinearQuadratic", {"dynamics": [[1.0, 0.1], [0.0, 1.0]], "control": [[0.0], [1.0]], "noise": 0.1}),
]
GAMMAS = [0.0, 0.5, 0.9, 0.99]


def returns(env: gym.Env, choose: Callable[[Any], Any], seeds: range) -> list[float]:
    """Return the sums of rewards of whole episodes, with actions that depend on the current observation alone."""
    totals = []
    for seed in seeds:
        obs, _ = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(choose(obs))
            total, ended = total + float(reward), terminated or truncated
        totals.append(total)
    return totals


# All of them.


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is -?infinity")
def test_gymnasiums_checker_passes(name: str, kwargs: dict[str, Any]) -> None:
    check_env(make_env(EnvSettings(f"raceway/{name}-v0", kwargs)).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_an_episode_depends_on_its_seed_alone(name: str, kwargs: dict[str, Any]) -> None:
    def episode(env: gym.Env, seed: int) -> str:
        steps: list[Any] = [env.reset(seed=seed)]
        env.action_space.seed(seed)
        while len(steps) == 1 or not (steps[-1][2] or steps[-1][3]):
            steps.append(env.step(env.action_space.sample()))
        return repr(steps)

    first, second = (make_env(EnvSettings(f"raceway/{name}-v0", kwargs)) for _ in range(2))
    episodes = [episode(first, seed) for seed in (1, 2, 1)]
    assert episodes[0] == episodes[2] == episode(second, 1)


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_an_algorithm_trains_on_it(name: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    env = f"raceway/{name}-v0"
    discrete = isinstance(make_env(EnvSettings(env, kwargs)).action_space, spaces.Discrete)
    algorithm = "dqn" if discrete else "ppo"
    settings = small_settings(algorithm, env=env, env_kwargs=kwargs, total_timesteps=200, n_step=1)
    result = raceway.train(algorithm, progress=False, run_dir=tmp_path / "run", **settings)
    assert result.summary["timesteps"] >= 200
    assert result.summary["env_failures"] == 0


# Coin.


@pytest.mark.parametrize(
    ("values", "probabilities"),
    [((-1, 1), None), ((-1, 1), (0.25, 0.75)), ((3, -2, 0), (0.3, 0.2, 0.5)), ((5,), (1.0,))],
)
def test_quantiles_and_mean_are_those_of_sampled_returns(values: Any, probabilities: Any) -> None:
    coin = envs.Coin(values, probabilities)
    coin.reset(seed=0)
    samples = [coin.step(0)[1] for _ in range(4000)]
    fractions = (np.arange(7) + 0.5) / 7
    assert coin.quantiles(fractions).tolist() == np.quantile(samples, fractions, method="inverted_cdf").tolist()
    assert coin.mean == pytest.approx(np.mean(samples), abs=0.1)


def test_a_quantile_at_a_jump_is_the_smaller_value() -> None:
    coin = envs.Coin((1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4))
    assert coin.quantiles([0.1, 0.3, 0.6, 1.0]).tolist() == [1, 2, 3, 4]
    assert coin.quantiles([0.1001, 0.3001, 0.6001]).tolist() == [2, 3, 4]
    assert coin.quantiles(np.full((2, 3), 0.5)).shape == (2, 3)


@pytest.mark.parametrize("probabilities", [(0.5,), (0.5, 0.6), (-0.5, 1.5)])
def test_probabilities_that_are_none_are_refused(probabilities: Any) -> None:
    with pytest.raises(ConfigError, match="2 numbers from 0 that add up to 1"):
        envs.Coin(probabilities=probabilities)


# SoftBandit.


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (-3.0, 0.2, 0.5)])
@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 50.0])
def test_no_policy_has_more_soft_value(rewards: Any, alpha: float) -> None:
    bandit = envs.SoftBandit(rewards)

    def soft_value(policy: Any) -> Any:
        return policy @ bandit.rewards - alpha * (policy * np.log(np.maximum(policy, 1e-300))).sum(-1)

    best = bandit.soft_policy(alpha)
    assert best.sum() == pytest.approx(1)
    assert bandit.soft_value(alpha) == pytest.approx(soft_value(best))
    assert bandit.soft_value(alpha) == pytest.approx(best @ bandit.rewards + alpha * bandit.entropy(alpha))
    others = np.random.default_rng(0).dirichlet(np.ones(len(rewards)), 10_000)
    assert soft_value(others).max() <= soft_value(best) + 1e-12
    assert np.allclose(others[soft_value(others).argmax()], best, atol=0.05)


def test_the_bandit_pays_its_rewards() -> None:
    bandit = envs.SoftBandit((0.5, -1.0))
    bandit.reset(seed=0)
    assert [bandit.step(arm)[1:4] for arm in (0, 1)] == [(0.5, True, False), (-1.0, True, False)]


# Identity.


def test_the_best_action_is_the_observation() -> None:
    env = envs.Identity(num_dims=2)
    assert returns(env, env.best_action, range(20)) == [0] * 20
    obs, _ = env.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (100, 2)).astype(np.float32)
    rewards = [env.step(action)[1] for action in actions]
    assert np.allclose(rewards, env.q_value(obs, actions))
    assert np.allclose(rewards, -((actions - obs) ** 2).sum(1))


# Chain.


@pytest.mark.parametrize("gamma", [*GAMMAS, 1.0])
@pytest.mark.parametrize("num_states", [2, 3, 7])
def test_value_iteration_finds_the_table_of_the_chain(num_states: int, gamma: float) -> None:
    env = envs.Chain(num_states)
    q = np.zeros((num_states, 2))
    for _ in range(num_states + 2):
        new = np.zeros_like(q)
        for state, action in itertools.product(range(num_states - 1), range(2)):
            env.reset(seed=0)
            env._state = state
            obs, reward, terminated, truncated, _ = env.step(action)
            assert not truncated
            new[state, action] = reward + (0 if terminated else gamma * q[obs].max())
        q = new
    assert np.allclose(q, env.q_values(gamma))


def test_a_random_start_is_never_the_end() -> None:
    env = envs.Chain(4, random_start=True)
    assert {env.reset(seed=seed)[0] for seed in range(50)} == {0, 1, 2}
    assert {envs.Chain(4).reset(seed=seed)[0] for seed in range(9)} == {0}


# Endless.


@pytest.mark.parametrize("gamma", GAMMAS)
def test_discounted_rewards_up_to_a_termination(gamma: float) -> None:
    env = envs.Endless("terminated", length=6, show_remaining=True)
    remaining, _ = env.reset(seed=0)
    seen, rewards, terminated = [remaining], [], False
    while not terminated:
        remaining, reward, terminated, truncated, _ = env.step(0)
        assert not truncated
        seen.append(remaining)
        rewards.append(reward)
    assert seen == [6, 5, 4, 3, 2, 1, 0]
    sums = [sum(gamma**i * reward for i, reward in enumerate(rewards[start:])) for start in range(7)]
    assert np.allclose(env.value(np.array(seen), gamma), sums)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("ending", ["truncated", "terminated"])
def test_td_learning_converges_to_the_hidden_value(ending: str, gamma: float) -> None:
    env = envs.Endless(ending, length=5)
    obs, _ = env.reset(seed=0)
    steps = [env.step(0) for _ in range(5)]
    assert {obs, *(step[0] for step in steps)} == {0}
    assert [step[2] or step[3] for step in steps] == [False] * 4 + [True]
    value = 0.0
    for _ in range(3000):
        value = np.mean([reward + gamma * (not terminated) * value for _, reward, terminated, _, _ in steps])
    assert env.hidden_value(gamma) == pytest.approx(value)
    if ending == "truncated":
        assert env.value(3, gamma) == pytest.approx(value)
        assert env.value(3, gamma) == pytest.approx(1 / (1 - gamma))


def test_endless_rewards_without_discount() -> None:
    assert envs.Endless("terminated").value(4, 1.0) == 4
    assert envs.Endless("truncated").value(4, 1.0) == math.inf


def test_steps_left_are_not_shown_before_a_truncation() -> None:
    with pytest.raises(ConfigError, match="show_remaining needs ending='terminated'"):
        envs.Endless("truncated", show_remaining=True)


# LinearQuadratic.

SYSTEMS: list[dict[str, Any]] = [
    {},
    {"dynamics": [[1.3]], "control": [[0.5]], "action_cost": 0.1},
    {"dynamics": [[1.0, 0.1], [0.0, 1.0]]},
    {"dynamics": [[1.0, 0.3, 0.0], [0.0, 0.9, 0.3], [0.1, 0.0, 0.8]], "control": [[0, 0], [1, 0], [0, 1]]},
]


def test_gains_worked_out_by_hand() -> None:
    golden = (1 + math.sqrt(5)) / 2
    env = envs.LinearQuadratic()
    assert env.gain(1.0) == pytest.approx(1 / golden)
    assert env.value(np.array([2.0]), 1.0) == pytest.approx(-4 * golden)
    assert env.gain(0.0) == pytest.approx(0)
    assert env.value(np.array([2.0]), 0.0) == pytest.approx(-4)
    # P = 1 + γP/(1 + γP) with γ = 1/2 is P² = 2, and K = γP/(1 + γP) = √2 - 1.
    assert env.gain(0.5) == pytest.approx(math.sqrt(2) - 1)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99, 1.0])
def test_the_cost_matrix_solves_the_riccati_equation(system: dict[str, Any], gamma: float) -> None:
    env = envs.LinearQuadratic(**system)
    a, b = env.dynamics, env.control
    # P from values: xᵀPy is half of the difference between the value of x + y and those of x and y.
    units = np.eye(len(a))
    values = env.value(units, gamma)
    p = -(env.value(units[:, None] + units, gamma) - values[:, None] - values) / 2
    weight = env.action_cost * np.eye(b.shape[1]) + gamma * b.T @ p @ b
    cross = gamma * a.T @ p @ b
    assert np.allclose(p, np.eye(len(a)) + gamma * a.T @ p @ a - cross @ np.linalg.solve(weight, cross.T))
    assert np.allclose(env.gain(gamma), np.linalg.solve(weight, cross.T))


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
def test_the_value_is_the_return_of_the_best_policy_and_other_gains_have_less(
    system: dict[str, Any], gamma: float
) -> None:
    env = envs.LinearQuadratic(**system, action_limit=100.0)
    start = np.array(env.reset(seed=3)[0], float)
    random = np.random.default_rng(0)

    def discounted_return(gain: Any) -> float:
        env.reset(seed=3)
        env._state, total = start, 0.0
        for step in range(300):
            total += gamma**step * float(env.step(-gain @ env._state)[1])
        return total

    best = discounted_return(env.gain(gamma))
    assert best == pytest.approx(float(env.value(start, gamma)), rel=1e-6)
    assert np.allclose(env.best_action(start, gamma), -env.gain(gamma) @ start)
    for _ in range(10):
        assert discounted_return(env.gain(gamma) + random.normal(0, 0.05, env.gain(gamma).shape)) < best


@pytest.mark.parametrize("system", [SYSTEMS[0], SYSTEMS[2]])
def test_the_best_actions_are_within_the_limit(system: dict[str, Any]) -> None:
    env = envs.LinearQuadratic(**system)
    gain = env.gain(1.0)
    for corner in itertools.product([-1.0, 1.0], repeat=len(env.dynamics)):
        state = np.array(corner)
        for _ in range(20):
            assert abs(gain @ state).max() < 0.75
            state = (env.dynamics - env.control @ gain) @ state


def test_the_value_with_noise_satisfies_the_bellman_equation() -> None:
    env, gamma, noise = envs.LinearQuadratic(SYSTEMS[2]["dynamics"], noise=0.3), 0.9, 0.3
    state = np.array([0.5, -0.8])
    action = env.best_action(state, gamma)
    env.reset(seed=0)
    nexts = []
    for _ in range(20_000):
        env._state = state
        obs, reward, *_ = env.step(action)
        nexts.append(obs)
    sampled = float(reward) + gamma * env.value(np.array(nexts), gamma)
    assert sampled.mean() == pytest.approx(float(env.value(state, gamma)), abs=5 * sampled.std() / math.sqrt(20_000))
    without = envs.LinearQuadratic(SYSTEMS[2]["dynamics"])
    assert np.allclose(env.gain(gamma), without.gain(gamma))
    assert without.value(state, gamma) - env.value(state, gamma) > noise**2
    assert env.value(state, 1.0) == -math.inf


def test_the_time_limit_truncates() -> None:
    env = make_env(EnvSettings("raceway/LinearQuadratic-v0"))
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(20)]
    assert ends == [(False, False)] * 19 + [(False, True)]


def test_actions_are_clipped_to_their_limit() -> None:
    env = envs.LinearQuadratic(action_limit=0.5)
    start = env.reset(seed=0)[0]
    obs, reward, *_ = env.step(np.array([7.0], np.float32))
    assert obs == pytest.approx(start + 0.5)
    assert reward == pytest.approx(float(-(start[0] ** 2) - 0.25))


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({"dynamics": [[1.0, 0.1]]}, "square matrix"),
        ({"control": [[1.0], [1.0]]}, "matrix of 1 rows"),
        ({"action_cost": 0.0}, "cost of actions"),
    ],
)
def test_impossible_systems_are_refused(system: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envs.LinearQuadratic(**system)


def test_values_that_are_not_finite_are_an_error() -> None:
    env = envs.LinearQuadratic([[2.0]], control=[[0.0]])
    assert env.value(np.ones(1), 0.2) == pytest.approx(-1 / (1 - 0.2 * 4))
    with pytest.raises(ConfigError, match="not finite"):
        env.gain(0.9)


# TMaze and RepeatPrevious.


@pytest.mark.parametrize("length", [1, 2, 6])
def test_no_function_of_the_current_observation_beats_chance_in_the_maze(length: int) -> None:
    """All deterministic policies have 0.5 in the mean of both goals, and so have the mixtures of them."""
    env = envs.TMaze(length)
    by_goal = {env.reset(seed=seed)[0][0]: seed for seed in range(20)}
    assert set(by_goal) == {-1, 1}
    observations = [(-1, 0), (1, 0), (0, 0), (0, 1)]
    for actions in itertools.product(range(2), repeat=len(observations)):
        table = dict(zip(observations, actions, strict=True))
        totals = [
            returns(env, lambda obs, table=table: table[tuple(obs.astype(int).tolist())], range(seed, seed + 1))[0]
            for seed in by_goal.values()
        ]
        assert np.mean(totals) == env.memoryless_return == 0.5


def test_the_goals_of_the_maze_are_equally_likely() -> None:
    env = envs.TMaze()
    assert np.mean([env.reset(seed=seed)[0][0] for seed in range(2000)]) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_memory_of_the_first_observation_solves_the_maze(length: int) -> None:
    env = envs.TMaze(length)
    for seed in range(10):
        first, _ = env.reset(seed=seed)
        steps = [env.step(int(first[0] > 0)) for _ in range(length + 1)]
        assert [step[1] for step in steps] == [0] * length + [env.best_return]
        assert [step[2] for step in steps] == [False] * length + [True]
        assert [step[0].tolist() for step in steps[:-1]] == [[0, 0]] * (length - 1) + [[0, 1]]


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_no_function_of_the_current_symbol_beats_guessing(delay: int) -> None:
    env = envs.RepeatPrevious(delay, num_symbols=2, length=4)
    means = defaultdict(list)
    for symbols in itertools.product(range(2), repeat=5):
        for table in itertools.product(range(2), repeat=2):
            env.reset(seed=0)
            env._symbols = list(symbols)
            means[table].append(sum(env.step(table[symbols[time]])[1] for time in range(4)))
    assert max(np.mean(totals) for totals in means.values()) == pytest.approx(env.memoryless_return)


@pytest.mark.parametrize(("delay", "num_symbols", "length"), [(0, 2, 1), (1, 3, 2), (2, 4, 16), (5, 2, 9)])
def test_memory_of_earlier_symbols_has_the_best_return(delay: int, num_symbols: int, length: int) -> None:
    env = envs.RepeatPrevious(delay, num_symbols, length)
    for seed in range(5):
        seen = [env.reset(seed=seed)[0]]
        total, terminated = 0.0, False
        while not terminated:
            obs, reward, terminated, truncated, _ = env.step(seen[max(len(seen) - 1 - delay, 0)])
            assert reward == (0 if len(seen) <= delay else pytest.approx(1 / (length - delay)))
            assert not truncated
            seen.append(obs)
            total += reward
        assert len(seen) == length + 1
        assert total == pytest.approx(env.best_return)


def test_an_episode_without_a_scored_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="length of an episode must be a whole number from 4"):
        envs.RepeatPrevious(delay=3, length=3)


# BitFlipping.


def test_vectorised_rewards_and_terminations_are_those_of_the_steps() -> None:
    env = envs.BitFlipping(3)
    random = np.random.default_rng(0)
    achieved, desired, rewards, ends, successes = [], [], [], [], []
    for seed in range(200):
        obs, info = env.reset(seed=seed)
        assert not info["is_success"]
        assert not np.array_equal(obs["achieved_goal"], obs["desired_goal"])
        terminated = truncated = False
        num_steps = 0
        while not (terminated or truncated):
            obs, reward, terminated, truncated, info = env.step(int(random.integers(3)))
            num_steps += 1
            assert np.array_equal(obs["observation"], obs["achieved_goal"])
            for column, value in zip(
                (achieved, desired, rewards, ends, successes),
                (obs["achieved_goal"], obs["desired_goal"], reward, terminated, info["is_success"]),
                strict=True,
            ):
                column.append(value)
        assert terminated or num_steps == 3
    assert set(rewards) == {-1, 0}
    assert successes == ends == [reward == 0 for reward in rewards]
    for shape in ((-1,), (1, -1)):
        goals = np.array(achieved).reshape(*shape, 3), np.array(desired).reshape(*shape, 3)
        assert np.array_equal(env.compute_reward(*goals, {}), np.reshape(rewards, shape))
        assert np.array_equal(env.compute_terminated(*goals, {}), np.reshape(ends, shape))


@pytest.mark.parametrize("gamma", [*GAMMAS, 1.0])
def test_value_iteration_finds_the_value_of_flipping_bits(gamma: float) -> None:
    env = envs.BitFlipping(3)
    states = np.array(list(itertools.product(range(2), repeat=3)), np.float32)
    goal = np.array([1, 0, 1], np.float32)
    value = dict.fromkeys(map(tuple, states), 0.0)
    for _ in range(5):
        new = dict.fromkeys(value, 0.0)
        for state in states:
            if np.array_equal(state, goal):
                continue
            targets = []
            for action in range(3):
                env.reset(seed=0)
                env._bits, env._goal = state, goal
                obs, reward, terminated, _, _ = env.step(action)
                targets.append(reward + (0 if terminated else gamma * value[tuple(obs["observation"])]))
            new[tuple(state)] = max(targets)
        value = new
    assert np.allclose(list(value.values()), env.value(states, goal, gamma))


def test_flipping_the_bits_that_differ_reaches_the_goal_in_time() -> None:
    env = envs.BitFlipping(6)

    def different_bit(obs: Any) -> int:
        return int(np.flatnonzero(obs["observation"] != obs["desired_goal"])[0])

    for seed in range(20):
        first, _ = env.reset(seed=seed)
        best = env.value(first["achieved_goal"], first["desired_goal"], gamma=1.0)
        assert returns(env, different_bit, range(seed, seed + 1)) == [best]


# Reach.


def to_goal(obs: Any) -> Any:
    """Move straight to the goal, and stay there."""
    return np.clip((obs["desired_goal"] - obs["observation"]) / 0.2, -1, 1)


@pytest.mark.parametrize("num_dims", [1, 3])
def test_moving_to_the_goal_has_the_best_value(num_dims: int) -> None:
    env = make_env(EnvSettings("reach", {"num_dims": num_dims}))
    reach = envs.Reach(num_dims)
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        best = reach.value(obs["achieved_goal"], obs["desired_goal"], gamma=1.0)
        assert returns(env, to_goal, range(seed, seed + 1)) == [best]
        after, reward, *_ = reach.step(to_goal(reach.reset(seed=seed)[0]))
        for gamma in GAMMAS:  # the Bellman equation
            value = reach.value(after["achieved_goal"], after["desired_goal"], gamma)
            before = reach.value(obs["achieved_goal"], obs["desired_goal"], gamma)
            assert before == pytest.approx(reward + gamma * value)


def test_rewards_of_reach_are_those_of_its_steps() -> None:
    env = envs.Reach(2)
    random = np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    steps: list[Any] = []
    for _ in range(500):
        steps.append(env.step(to_goal(obs) + random.uniform(-1, 1, 2)))
        obs = steps[-1][0]
    achieved, desired = (np.stack([obs[name] for obs, *_ in steps]) for name in ("achieved_goal", "desired_goal"))
    rewards = [reward for _, reward, *_ in steps]
    assert set(rewards) == {-1, 0}
    assert np.array_equal(env.compute_reward(achieved, desired, {}), rewards)
    assert [info["is_success"] for *_, info in steps] == [reward == 0 for reward in rewards]


# Bait.


@pytest.mark.parametrize("continuous", [False, True])
def test_the_bait_is_never_in_the_data_and_its_reward_is_not_what_the_data_suggest(continuous: bool) -> None:
    env, random = envs.Bait(continuous), np.random.default_rng(0)
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        action = env.data_action(obs, random)
        assert not env.is_bait(obs, action)
        assert env.step(action)[1] == env.extrapolated_value(obs, action)
        best = np.ones(1, np.float32) if continuous else 1
        if env.is_bait(obs, best):
            assert env.step(best)[1] == -1
            assert env.extrapolated_value(obs, best) > env.extrapolated_value(obs, action)
