"""ES and ARS: what workers roll out and send, steps worked out by hand, and what they learn."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway import load
from raceway.agents import Agent, Greedy, Spaces, build_agent
from raceway.agents.builders import deterministic_actor
from raceway.algorithms import find_algorithm
from raceway.algorithms.ars import Config as ArsConfig
from raceway.algorithms.ars import agent as ars_agent
from raceway.algorithms.es import Config as EsConfig
from raceway.engine.process.message_frames import FrameDecoder
from raceway.envs import EnvSettings
from raceway.errors import ConfigError
from raceway.flow import Shard
from raceway.learner.learner import Learner
from raceway.ops import (
    ApplyGradients,
    EstimateGradient,
    MergeObservations,
    PerturbationSettings,
    PerturbationWorker,
    RolloutWorker,
)
from raceway.ops.perturbations import noise_seed
from raceway.rl import ars_coefficients, direction_noise, es_coefficients
from raceway.training.train import Training, make_training, resume, train
from tests.flaky_envs import Flaky

SEED, SIGMA = 5, 0.1
BOX = spaces.Box(-100, 100, (1,), np.float32)


class Reward(gym.Env[Any, Any]):
    """Episodes of two steps in which the reward is the action, and the observation a random vector of the episode."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs, self.steps = self.np_random.normal(3.0, 2.0, 2).astype(np.float32), 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.obs, float(action[0]), self.steps == 2, False, {}


class Short(Reward):
    """The same with discrete actions, which change nothing."""

    action_space = spaces.Discrete(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.obs, 1.0, self.steps == 2, False, {}


def make_linear(spaces: Spaces) -> Agent:
    return build_agent(ars_agent, spaces, ArsConfig(), 0)


def make_normalised(spaces: Spaces) -> Agent:
    return build_agent(ars_agent, spaces, ArsConfig(normalise_obs=True), 0)


def greedy(_: Spaces) -> Greedy:
    return Greedy()


def settings_of(make: Any = make_linear, env: Any = Reward, **changed: Any) -> PerturbationSettings:
    defaults = {"num_directions": 5, "num_shards": 2, "sigma": SIGMA, "seed": SEED}
    return PerturbationSettings(
        env=EnvSettings(env), agent=make, explorer=greedy, slots_per_shard=1, **{**defaults, **changed}
    )


def trained(make: Any = make_linear) -> Agent:
    """Return an agent for the environment `Reward` whose weights are not zeros."""
    agent: Agent = make(Spaces(Reward.observation_space, Reward.action_space))
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.copy_(torch.arange(1, parameter.numel() + 1).reshape(parameter.shape))
    return agent


def sample(settings: PerturbationSettings, agent: Agent, shard: int, number: int) -> Any:
    worker = PerturbationWorker(settings)
    worker.set_weights(agent.weights())
    return worker.sample(shard=Shard(shard, settings.num_shards, SEED), number=number)


# What workers roll out.


def test_both_episodes_of_a_direction_start_from_the_same_seed_with_opposite_noise() -> None:
    agent, settings = trained(), settings_of()
    batch = sample(settings, agent, shard=1, number=2)
    assert batch["direction"].tolist() == [11, 13], "of 10 to 14 every second"
    returns = batch["episode_return"].reshape(2, 2)
    for direction, pair in zip(batch["direction"], returns, strict=True):
        seen = RolloutWorker(settings_of(num_episodes=1))._make_collector(1).episodes([1], int(direction))["obs"][0]
        noise = SIGMA * direction_noise(noise_seed(SEED), direction, 2)
        expected = [2 * np.dot([1, 2] + sign * noise, seen) for sign in (1, -1)]
        np.testing.assert_allclose(pair, expected, rtol=1e-5)
    assert returns[0].sum() != returns[1].sum(), "another direction has another seed"
    assert batch["episode_length"].tolist() == [2] * 4


def test_rolling_out_leaves_the_weights_of_a_worker_as_they_were() -> None:
    worker, agent = PerturbationWorker(settings_of()), trained()
    worker.set_weights(agent.weights())
    for _ in range(2):
        worker.sample(shard=Shard(0, 2, SEED), number=3)
        assert worker.agent.sha256() == agent.sha256()


def test_directions_do_not_depend_on_the_number_of_shards() -> None:
    for num_shards in (1, 3, 5):
        settings = settings_of(num_shards=num_shards)
        directions = [number for shard in range(num_shards) for number in settings.directions(shard, 4)]
        assert sorted(directions) == list(range(20, 25))


def test_a_shard_may_have_no_direction() -> None:
    batch = sample(settings_of(num_directions=1), trained(), shard=1, number=0)
    assert batch["direction"].size == batch["episode_return"].size == batch["episode_length"].size == 0


def test_statistics_of_observations_are_merged_into_normalisers_in_the_order_of_shards() -> None:
    agent, settings = trained(make_normalised), settings_of(make_normalised)
    batches = [sample(settings, agent, shard, number=0) for shard in range(2)]
    merge = MergeObservations(Learner(agent, 0.1))
    for batch in batches:
        merge(batch)
    seen = [
        RolloutWorker(settings_of(num_episodes=1))._make_collector(direction % 2).episodes([1], direction)["obs"]
        for direction in range(5)
    ]
    rows = np.concatenate(seen * 2)  # the noise is in the weights, so both episodes of a direction see the same
    normaliser = next(iter(agent.actor.network.children())).normaliser
    assert float(normaliser.count) == len(rows) == 20
    np.testing.assert_allclose(normaliser.mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.var, rows.var(0), rtol=1e-5)
    again = sample(settings, agent, shard=0, number=0)
    np.testing.assert_array_equal(again["obs_moments"], batches[0]["obs_moments"])
    assert not np.allclose(again["episode_return"], batches[0]["episode_return"]), "they act on normalised observations"


# What travels.


@pytest.mark.parametrize("normalise_obs", [False, True])
def test_an_episode_takes_less_than_a_hundred_bytes(
    normalise_obs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Everything that the driver receives in an iteration with the default directions, on twenty shards."""
    monkeypatch.chdir(tmp_path)
    received, feed = [0], FrameDecoder.feed

    def count(decoder: FrameDecoder, data: bytes) -> Any:
        received[0] += len(data)
        return feed(decoder, data)

    monkeypatch.setattr(FrameDecoder, "feed", count)
    algorithm = find_algorithm("es")
    settings = {"env": Short, "engine": "process", "num_workers": 1, "normalise_obs": normalise_obs}
    training = Training(algorithm, algorithm.settings(**settings))
    assert training.cfg.num_shards == 20
    with training.open_flow(run=True) as flow, flow.start() as run:
        next(run)  # with the start of the worker
        before, rows = received[0], [next(run) for _ in range(10)]
    num_episodes = sum(len(row["returns"]) for row in rows)
    assert num_episodes == 10 * 2 * training.cfg.num_directions
    assert 10 < (received[0] - before) / num_episodes < 100


# Steps.


def batch_of(returns: Any, lengths: Any = 2) -> Any:
    totals = np.array(returns, float).ravel()
    return {
        "direction": np.arange(len(totals) // 2) + 6,
        "episode_return": totals,
        "episode_length": np.broadcast_to(lengths, totals.shape),
    }


def noise_of(direction: int) -> np.ndarray:
    return direction_noise(noise_seed(SEED), direction, 2)


RETURNS = [[3.0, 1.0], [2.0, 2.0], [0.0, 5.0]]


def test_the_gradient_of_es() -> None:
    agent = trained()
    estimate = EstimateGradient(Learner(agent, 0.1), partial(es_coefficients, sigma=SIGMA), SEED, l2=0.5)
    gradients = estimate(batch_of(RETURNS))
    # Ranks 4, 1; 2.5, 2.5; 0, 5 of 0 to 5. So u⁺ - u⁻ is 0.6, 0 and -1, which is divided by 2 · 3 · 0.1.
    ascent = 1.0 * noise_of(6) - 1 / 0.6 * noise_of(8)
    np.testing.assert_allclose(gradients.arrays["actor.network.1.weight"], [0.5 * np.array([1, 2]) - ascent], rtol=1e-6)
    assert gradients.stats.num_steps == 12
    assert gradients.stats.returns.tolist() == [3, 1, 2, 2, 0, 5]
    assert gradients.stats.metrics["train/loss"] == pytest.approx(-13 / 6)
    shuffled = {
        "direction": np.array([8, 6, 7]), "episode_return": np.array([0.0, 5, 3, 1, 2, 2]),
        "episode_length": np.full(6, 2),
    }  # fmt: skip
    np.testing.assert_array_equal(
        estimate(shuffled).arrays["actor.network.1.weight"], gradients.arrays["actor.network.1.weight"]
    )


def test_a_step_of_ars() -> None:
    agent = trained()
    learner = Learner(agent, 0.02)
    estimate = EstimateGradient(learner, partial(ars_coefficients, num_top=2), SEED)
    stats = ApplyGradients(learner, optimiser="sgd")(estimate(batch_of(RETURNS)), envelope=SimpleNamespace(version=0))
    # The directions 6 and 8 are the best two. Their returns 3, 1, 0, 5 have the variance 59 / 16.
    step = 0.02 / (2 * np.sqrt(59) / 4) * (2 * noise_of(6) - 5 * noise_of(8))
    np.testing.assert_allclose(agent.weights()["actor.network.1.weight"], [np.array([1, 2]) + step], rtol=1e-6)
    assert (learner.version, learner.steps) == (1, 12)
    assert stats.metrics["train/policy_lag"] == 0


def test_the_alive_bonus_is_subtracted() -> None:
    learner, seen = Learner(trained(), 0.02), []
    estimate = EstimateGradient(learner, lambda returns: seen.append(returns) or np.zeros(3), SEED, alive_bonus=0.5)
    stats = estimate(batch_of(RETURNS, [1, 2, 3, 4, 5, 6])).stats
    np.testing.assert_array_equal(seen[0], [[2.5, 0], [0.5, 0], [-2.5, 2]])
    assert stats.returns.tolist() == [3, 1, 2, 2, 0, 5], "what is reported are the returns of the environment"


def test_the_policy_of_ars_is_a_matrix_of_zeros() -> None:
    agent = make_linear(Spaces(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,))))
    assert {name: array.tolist() for name, array in agent.weights().items()} == {
        "actor.network.1.weight": [[0, 0, 0], [0, 0, 0]]
    }
    cfg = ArsConfig(hidden=(4,))
    weights = build_agent(ars_agent, Spaces(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)), cfg, 0).weights()
    assert {name: array.shape for name, array in weights.items()} == {
        "actor.network.1.weight": (4, 3), "actor.network.1.bias": (4,),
        "actor.network.3.weight": (2, 4), "actor.network.3.bias": (2,),
    }  # fmt: skip
    assert all(array.any() for array in weights.values())


@pytest.mark.parametrize("fast", [False, True])
def test_actions_of_a_box_are_outputs_and_environments_get_them_clipped(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raceway.agents.numpy_inference.fast_paths_enabled", lambda: fast)
    agent = build_agent(deterministic_actor, Spaces(Reward.observation_space, BOX), EsConfig(hidden=()), 0)
    obs = np.array([[1.0, -2.0], [50.0, 800.0]], np.float32)
    random = np.random.default_rng(0)
    weights = agent.weights()
    expected = obs @ weights["actor.network.1.weight"].T + weights["actor.network.1.bias"]
    for actor in (agent.actor.acting(None), agent.actor.acting(random, Greedy())):
        np.testing.assert_allclose(actor(obs, {})[0], expected, rtol=1e-5)


def test_more_top_directions_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_top 9 is more than num_directions 8"):
        ArsConfig(num_top=9)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("es", "learner_threads"), ("ars", "compile_losses"), ("ars", "adam_epsilon"), ("es", "normalise_obs")],
)
def test_settings_without_an_effect_are_refused(name: str, setting: str) -> None:
    value = {"learner_threads": 2, "compile_losses": False, "adam_epsilon": 1e-5, "normalise_obs": True}[setting]
    with pytest.raises(ConfigError, match=f"{setting} .* has no effect"):
        train(name, env="raceway/Coin-v0", iterations=1, engine="inline", progress=False, **{setting: value})


# Runs.


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SMALL: dict[str, Any] = {"env": "cartpole", "num_directions": 4, "engine": "inline", "progress": False, "seed": 1}


def test_evaluations_are_not_trained_on() -> None:
    plain = train("es", iterations=4, normalise_obs=True, **SMALL).summary
    evaluated = train("es", iterations=4, normalise_obs=True, eval_every=50, eval_episodes=3, **SMALL)
    assert any("eval/mean_reward" in row for row in evaluated.metrics)
    assert evaluated.summary["weights_sha256"] == plain["weights_sha256"]
    assert evaluated.summary["timesteps"] == plain["timesteps"]


@pytest.mark.parametrize("name", ["es", "ars"])
def test_normalisers_are_part_of_an_exactly_resumed_run(name: str) -> None:
    whole = train(name, iterations=6, normalise_obs=True, run_dir="whole", **SMALL)
    train(name, iterations=2, normalise_obs=True, run_dir="parts", **SMALL)
    parts = resume("parts", iterations=6, progress=False, engine="process", num_workers=2)
    assert parts.summary["state_sha256"] == whole.summary["state_sha256"]
    obs = np.array([0.1, -0.5, 0.02, 0.3], np.float32)
    assert load("whole").act(obs) == whole.policy.act(obs) == load("parts").act(obs, deterministic=False)


def make_flaky() -> Any:
    return Flaky(gym.make("CartPole-v1"), step=0.02, reset=0.0, seed=3)


def test_environments_that_fail_are_rebuilt_and_their_episodes_repeated() -> None:
    result = train("es", iterations=4, **{**SMALL, "env": make_flaky}, max_env_failures=100)
    assert result.summary["env_failures"] > 0
    assert result.summary["episodes"] == 4 * 8


def test_the_policies_of_several_agents_are_refused() -> None:
    algorithm = find_algorithm("es")
    with pytest.raises(ConfigError, match="es does not learn from rollouts, which"):
        make_training(algorithm, algorithm.settings(env="pettingzoo:mpe2.simple_spread_v3"))


def test_ars_learns_the_gain_of_a_regulator() -> None:
    """A linear policy of a linear system. Episodes end after 20 steps, which hardly changes the best gain."""
    settings = {"env": "raceway/LinearQuadratic-v0", "num_directions": 8, "sigma": 0.05, "lr": 0.05}
    policy = train("ars", iterations=60, **{**SMALL, **settings}).policy
    (gain,) = -policy.agent.weights()["actor.network.1.weight"].ravel()
    assert gain == pytest.approx(0.618, abs=0.1)


def test_es_learns_the_best_action() -> None:
    settings = {"env": "raceway/Identity-v0", "num_directions": 20, "hidden": (), "lr": 0.05, "l2": 0.0}
    policy = train("es", iterations=60, **{**SMALL, **settings}).policy
    states = np.linspace(-0.9, 0.9, 7, dtype=np.float32)[:, None]
    np.testing.assert_allclose(np.array([policy.act(state) for state in states]), states, atol=0.15)
