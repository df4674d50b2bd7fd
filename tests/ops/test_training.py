"""Operators that train: gradients, advantages, priorities, target network, policy lag and sending weights."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from raceway.agents import ActorCritic, Agent, Spaces, as_tensor
from raceway.algorithms import a2c, apex, find_algorithm
from raceway.engine import make_engine
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError
from raceway.flow._graph import empty_envelope
from raceway.learner.learner import gradients_of
from raceway.machine import worker_compute_settings
from raceway.ops import (
    AddAdvantages,
    AddLogProbs,
    AverageGradients,
    ComputeGradients,
    ConcatBatches,
    ConcatFragments,
    Fresh,
    Learner,
    MergeStats,
    ReplaySettings,
    ReplayShard,
    RolloutSettings,
    RolloutWorker,
    StandardizeFields,
    StoreToReplay,
    Target,
    TrainOneStep,
    TrainStats,
    UpdatePriorities,
    UpdateWeights,
    parallel_replay,
    parallel_rollouts,
)
from raceway.rl import generalised_advantages
from raceway.training.train import Training
from tests.example_agents import example_actor, makes_actor_critic

CFG = SimpleNamespace(value_coef=0.5, entropy_coef=0.01)
LOSS = partial(a2c.loss, cfg=CFG)
ROLLOUTS = RolloutSettings(
    env=EnvSettings("CartPole-v1"), agent=makes_actor_critic(), num_shards=4, slots_per_shard=2, fragment_steps=6
)


@pytest.fixture(autouse=True)
def _worker_settings() -> Iterator[None]:
    with worker_compute_settings():
        yield


def agent_of(settings: RolloutSettings, seed: int = 0) -> ActorCritic:
    agent = settings.make_agent(_spaces(settings.env), seed)
    assert isinstance(agent, ActorCritic)
    return agent


def collect(settings: RolloutSettings, agent: Agent, num_rounds: int, *operators: Any) -> list[Any]:
    """Return rounds of items that shards collect, after applying operators."""
    with make_engine("inline") as engine:
        workers = [engine.spawn(RolloutWorker, (settings,)) for _ in range(2)]
        UpdateWeights(Learner(agent, 1e-3), workers).send(workers)
        stream = parallel_rollouts(workers, settings)
        for operator in operators:
            stream = stream.for_each(operator)
        return list(stream.gather_sync().take(num_rounds))


def test_the_gradient_of_four_shards_is_that_of_one_batch() -> None:
    agent = agent_of(ROLLOUTS)
    add_advantages = AddAdvantages(0.99, 0.95)
    (batches,) = collect(ROLLOUTS, agent, 1, add_advantages)
    (gradients,) = collect(ROLLOUTS, agent, 1, AddAdvantages(0.99, 0.95), ComputeGradients(LOSS))
    assert len(batches) == len(gradients) == 4
    mean = AverageGradients()(gradients)
    (whole,) = ConcatBatches()(batches)
    expected, _ = gradients_of(agent, LOSS, whole)
    assert mean.arrays.keys() == expected.keys() == dict(agent.named_parameters()).keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(mean.arrays[name], gradient, rtol=1e-4, atol=1e-6)
    assert mean.stats.num_steps == 48


def test_a3c_with_one_worker_equals_the_sequential_loop() -> None:
    algorithm = find_algorithm("a3c")
    settings = {"env": "cartpole", "engine": "inline", "num_envs": 4, "num_shards": 1, "fragment_steps": 8}
    training = Training(algorithm, algorithm.settings(**settings, hidden=(8,), total_timesteps=320))
    cfg = training.cfg
    before = {name: value.copy() for name, value in training.agent.weights().items()}
    with training.open_flow(run=True) as flow:
        rows = list(flow.take(10))
    # The sequential loop.
    agent = agent_of(training.rollouts)
    agent.load(before)
    learner, worker = cfg.learner(agent), RolloutWorker(training.rollouts)
    shard = SimpleNamespace(number=0)
    add_advantages, loss = AddAdvantages(cfg.gamma, cfg.lam), partial(a2c.loss, cfg=cfg)
    for number in range(10):
        worker.set_weights({name: value.copy() for name, value in agent.weights().items()})
        batch = worker.sample(shard=shard, number=number)  # type: ignore[arg-type]
        arrays, _ = gradients_of(worker.agent, loss, add_advantages(batch, actor=worker))
        learner.apply(arrays, num_steps=32)
    worker.close()
    assert agent.sha256() == training.agent.sha256()
    assert rows[-1]["time/total_timesteps"] == 320


def test_advantages_bootstrap_where_an_episode_is_truncated() -> None:
    settings = RolloutSettings(
        env=EnvSettings("CartPole-v1", {"max_episode_steps": 3}),
        agent=makes_actor_critic(), num_shards=1, slots_per_shard=2, fragment_steps=7,
    )  # fmt: skip
    agent = agent_of(settings)
    ((fragment,),) = collect(settings, agent, 1)
    assert np.argwhere(fragment["truncated"])[:, 0].tolist() == [2, 2, 5, 5]
    rows = AddAdvantages(0.9, 0.8)(fragment, actor=SimpleNamespace(agent=agent))
    with torch.no_grad():
        values = agent.values(as_tensor(fragment["obs"])).numpy()
        final = agent.values(as_tensor(fragment["final_obs"])).numpy().reshape(2, 2)
        last = agent.values(as_tensor(fragment["last_obs"])).numpy()
    bootstrap = np.zeros_like(values)
    bootstrap[[2, 5]] = 0.9 * final
    evaluated = AddLogProbs(0.9)(fragment, actor=SimpleNamespace(agent=agent))
    np.testing.assert_allclose(evaluated["bootstrap"], bootstrap, rtol=1e-5)
    assert evaluated["reward"].tolist() == fragment["reward"].tolist(), "rewards stay those of the environment"
    expected = generalised_advantages(fragment["reward"] + bootstrap, values, last, fragment["truncated"], 0.9, 0.8)
    np.testing.assert_allclose(rows["advantage"], expected.ravel(), rtol=1e-5)
    np.testing.assert_allclose(rows["value_target"], (expected + values).ravel(), rtol=1e-5)
    with torch.no_grad():
        params, _ = agent.evaluate({"obs": as_tensor(fragment["obs"])})
        expected = agent.actor.distribution.log_prob(params, as_tensor(fragment["action"])).numpy()
    np.testing.assert_allclose(rows["log_prob"], expected.ravel(), rtol=1e-5)


def test_a_step_that_is_terminated_and_truncated_is_not_bootstrapped() -> None:
    settings = RolloutSettings(
        env=EnvSettings("CartPole-v1", {"max_episode_steps": 3}),
        agent=makes_actor_critic(), num_shards=1, slots_per_shard=2, fragment_steps=3,
    )  # fmt: skip
    agent = agent_of(settings)
    ((fragment,),) = collect(settings, agent, 1)
    fragment = {**fragment, "terminated": np.array([[False, False], [False, False], [True, False]])}
    evaluated = AddLogProbs(0.9)(fragment, actor=SimpleNamespace(agent=agent))
    assert evaluated["bootstrap"][2, 0] == 0 != evaluated["bootstrap"][2, 1]


@pytest.mark.parametrize("name", ["dqn", "apex"])
def test_with_replay_the_learning_rate_falls_with_environment_steps_not_sampled_rows(name: str) -> None:
    algorithm = find_algorithm(name)
    replay = {"batch_size": 16, "steps_per_update": 4, "learning_starts": 100, "fragment_steps": 4, "hidden": (8,)}
    length = {"total_timesteps": 800, "lr": 1e-3, "lr_end": 0.0, "engine": "inline", "num_envs": 8, "num_shards": 1}
    training = Training(algorithm, algorithm.settings(env="cartpole", **replay, **length))
    with training.open_flow(run=True) as flow:
        for row in flow:
            if row["time/total_timesteps"] >= 400:
                break
    assert 0.4e-3 < training.learner.optimiser.lr < 0.8e-3  # halfway, but for the steps before the first update


def test_impala_updates_its_reward_normaliser() -> None:
    algorithm = find_algorithm("impala")
    settings = {
        "env": "cartpole",
        "num_envs": 8,
        "num_shards": 2,
        "fragment_steps": 4,
        "hidden": (8,),
        "batch_steps": 16,
    }
    training = Training(algorithm, algorithm.settings(**settings, scale_rewards=True, engine="inline", iterations=3))
    with training.open_flow(run=True) as flow:
        list(flow.take(3))
    assert isinstance(training.agent, ActorCritic)
    assert float(training.agent.rewards.count) == 3 * 4 * 4


def test_rewards_are_scaled_by_the_standard_deviation_of_returns() -> None:
    agent = agent_of(ROLLOUTS)
    (first, *_), (second, *_) = collect(ROLLOUTS, agent, 2)
    operator, actor = AddLogProbs(0.5, scale_rewards=True), SimpleNamespace(agent=agent)
    evaluated = operator(first, actor=actor)
    assert evaluated["running_return"][:3, 0].tolist() == [1.0, 1.5, 1.75]
    assert evaluated["reward"].tolist() == first["reward"].tolist()  # no returns were observed yet
    agent.observe({"obs": torch.zeros(2, 4), "running_return": torch.tensor([0.0, 8.0])})
    evaluated = operator(second, actor=actor)
    assert evaluated["reward"][0, 0] == pytest.approx(1 / 4)
    assert evaluated["running_return"][0, 0] > 1.75  # it continues the fragment before


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_the_lag_of_impala_is_bounded(engine: str) -> None:
    algorithm = find_algorithm("impala")
    settings = {"env": "cartpole", "num_envs": 8, "num_shards": 4, "fragment_steps": 4, "hidden": (8,), "max_lag": 3}
    workers = {"num_workers": 2} if engine == "process" else {}
    training = Training(algorithm, algorithm.settings(**settings, **workers, engine=engine, iterations=40))
    with training.open_flow(run=True) as flow:
        lags = [row["train/policy_lag"] for row in flow.take(40)]
    assert lags[0] == 0
    assert 0 < max(lags) <= 3
    assert len(lags) == 40


def test_a_stale_fragment_is_dropped_and_its_worker_gets_new_weights() -> None:
    with make_engine("inline") as engine:
        workers = [engine.spawn(RolloutWorker, (ROLLOUTS,), name=f"worker-{number}") for number in range(2)]
        learner = Learner(agent_of(ROLLOUTS), 1e-3)
        update = UpdateWeights(learner, workers, to="senders")
        update.send(workers)
        fresh = Fresh(update, max_lag=5)
        with parallel_rollouts(workers, ROLLOUTS).gather_async().filter(fresh).start() as run:
            next(run)
            learner.version = 20  # as if other fragments had been trained on meanwhile
            next(run)
            assert run.envelope is not None
            assert run.envelope.version == 20
    assert 1 <= fresh.num_dropped <= 4


def test_ape_x_updates_the_priorities_of_sampled_rows() -> None:
    settings = ReplaySettings(capacity=64, batch_size=8, num_shards=2, alpha=1.0, seed=0)
    agent = example_actor(*_spaces(EnvSettings("CartPole-v1")), hidden=(4,))
    learner = Learner(agent, 0.0)
    random = np.random.default_rng(0)
    rows = {
        "obs": random.normal(size=(32, 4)).astype(np.float32),
        "action": random.integers(2, size=32),
        "reward": random.normal(size=32).astype(np.float32),
        "discount": np.full(32, 0.9, np.float32),
        "next_obs": random.normal(size=(32, 4)).astype(np.float32),
    }
    with make_engine("inline") as engine:
        shards = [engine.spawn(ReplayShard, (settings, number)) for number in range(2)]
        store = StoreToReplay(shards)
        store({name: column[:16] for name, column in rows.items()})
        store({name: column[16:] for name, column in rows.items()})
        train = TrainOneStep(learner, apex.loss, targets=Target(every=50))
        flow = parallel_replay(shards).for_each(train).for_each(UpdatePriorities())
        errors: dict[int, float] = {}
        for stats in flow.take(60):
            assert stats.priorities is not None
            assert stats.num_steps == 0
            for index, error in zip(*stats.priorities, strict=True):  # indices of rows have more digits than a float
                # The weights do not change, so neither does the error.
                assert errors.setdefault(int(index), error) == pytest.approx(error)
        # With a learning rate of 0 the error of a row is constant, and rows are sampled by it.
        with torch.no_grad():
            output = apex.loss(agent, {**_tensors(rows), "weight": torch.ones(32)})
        assert output.priorities is not None
        assert sorted(errors.values()) == pytest.approx(
            [error for error in sorted(output.priorities.tolist()) if _near(error, errors.values())]
        )
        assert len(errors) > 20


def test_batches_sampled_at_once_are_trained_like_samples_of_their_own() -> None:
    """In the order of the rows, of which each gets the priority that its own minibatch computed."""
    random = np.random.default_rng(0)
    rows = {
        "obs": random.normal(size=(12, 4)).astype(np.float32),
        "action": random.integers(2, size=12),
        "reward": random.normal(size=12).astype(np.float32),
        "discount": np.full(12, 0.9, np.float32),
        "next_obs": random.normal(size=(12, 4)).astype(np.float32),
        "weight": np.ones(12, np.float32),
        "index": np.arange(12),
    }
    learners, priorities = [], []
    for size, num in ((12, 3), (4, 1)):
        learner = Learner(example_actor(*_spaces(EnvSettings("CartPole-v1")), hidden=(4,)), 0.1)
        train = TrainOneStep(learner, apex.loss, targets=Target(every=2))
        parts = [{name: column[begin : begin + size] for name, column in rows.items()} for begin in range(0, 12, size)]
        parts = [{**part, "num_batches": np.int64(num)} for part in parts] if num > 1 else parts
        stats = [train(part, envelope=empty_envelope()) for part in parts]
        assert [part.num_updates for part in stats] == [num] * len(parts)
        priorities.append(np.concatenate([part.priorities[1] for part in stats if part.priorities is not None]))
        learners.append(learner)
    together, one_by_one = (learner.agent.weights() for learner in learners)
    for name, weights in together.items():
        np.testing.assert_array_equal(weights, one_by_one[name])
    np.testing.assert_array_equal(*priorities)


def _spaces(env: EnvSettings) -> Spaces:
    slots = make_slots(env, 1)
    slots.close()
    return Spaces(slots.observation_space, slots.action_space)


def _tensors(rows: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(column) for name, column in rows.items()}


def _near(value: float, others: Any) -> bool:
    return any(abs(value - other) < 1e-5 for other in others)


def test_minibatches_hold_every_row_once_per_epoch() -> None:
    learner, minibatches = Learner(agent_of(ROLLOUTS), 1e-3, seed=1), []

    def loss(agent: ActorCritic, batch: Any) -> torch.Tensor:
        minibatches.append(batch["row"].tolist())
        assert set(batch) == {"action", "row", "obs"}
        return agent.values(batch["obs"]).sum()

    rows = {"action": np.zeros(10, np.int64), "row": np.arange(10), "obs": np.zeros((10, 4), np.float32)}
    learner.train(loss, {**rows, "episode_return": np.ones(3)}, num_epochs=2, num_minibatches=3)
    assert [len(part) for part in minibatches] == [4, 3, 3] * 2
    assert sorted(chain(*minibatches[:3])) == sorted(chain(*minibatches[3:])) == list(range(10))
    assert minibatches[0] != minibatches[3]
    assert learner.version == 6


def test_batches_are_held_until_there_are_enough_steps() -> None:
    operator = ConcatBatches(5)
    part = {"reward": np.arange(2.0)}
    assert operator([part]) == []
    assert operator.held == [part]
    ((batch,),) = [operator([part, part])]
    assert batch["reward"].tolist() == [0, 1, 0, 1, 0, 1]


def test_fragments_are_concatenated_along_environments() -> None:
    fragment = {"obs": np.zeros((3, 2, 4)), "reward": np.zeros((3, 2)), "last_obs": np.zeros((2, 4)), "other": 1}
    concat = ConcatFragments(min_steps=10)
    assert concat(fragment) == []  # it has 6 steps
    (joined,) = concat(fragment)
    assert {name: column.shape for name, column in joined.items()} == {
        "obs": (3, 4, 4), "reward": (3, 4), "last_obs": (4, 4)
    }  # fmt: skip
    assert concat.held == []


def test_a_column_is_standardised() -> None:
    batch = StandardizeFields("advantage")({"advantage": np.array([1.0, 3.0]), "other": np.array([5.0])})
    assert batch["advantage"] == pytest.approx([-1, 1])
    assert batch["other"].tolist() == [5]


def test_the_target_network_is_updated_every_two_steps() -> None:
    agent = agent_of(ROLLOUTS)
    before, batch = agent.sha256(), {"obs": np.ones((1, 4), np.float32), "action": np.zeros(1, np.int64)}
    train = TrainOneStep(
        Learner(agent, 0.1), lambda agent, rows: agent.values(rows["obs"]).sum(), targets=Target(every=2)
    )
    train(batch, envelope=empty_envelope())
    assert agent.target.sha256() == before != agent.sha256()
    train(batch, envelope=empty_envelope())
    assert agent.target.sha256() == agent.sha256() != before


def test_stats_of_training_steps_are_merged_with_the_batch_before_them() -> None:
    merge, empty = MergeStats(), np.empty(0)
    collected, trained = TrainStats(5, np.ones(1), np.ones(1)), TrainStats(0, empty, empty, {"train/loss": 2.0})
    assert [merge(stats) for stats in (collected, trained, trained)] == [[], [], []]
    (merged,) = merge(collected)
    assert (merged.num_steps, merged.metrics, len(merged.returns)) == (5, {"train/loss": 2.0}, 1)
    assert merge.finish()[0].num_steps == 5


def test_senders_get_weights_after_every_third_item() -> None:
    with make_engine("inline") as engine:
        workers = [engine.spawn(RolloutWorker, (ROLLOUTS,), name=f"worker-{number}") for number in range(2)]
        learner = Learner(agent_of(ROLLOUTS), 1e-3)
        update = UpdateWeights(learner, workers, to="senders", every=3)
        update.send(workers)
        stream = parallel_rollouts(workers, ROLLOUTS).gather_async().for_each(update)
        versions: dict[str, list[int]] = {"worker-0": [], "worker-1": []}
        with stream.start() as run:
            for _ in range(24):
                next(run)
                envelope = run.envelope
                assert envelope is not None
                assert envelope.version is not None
                versions[envelope.sources[0].name].append(envelope.version)
                learner.version += 1  # as if it had trained
    for worker_versions in versions.values():
        assert worker_versions == sorted(worker_versions)
        # Four shards on two workers: each has two fragments in flight, and gets weights after every third.
        assert all(worker_versions.count(version) <= 4 for version in set(worker_versions))
        assert len(set(worker_versions)) >= 3


def test_a3c_cannot_normalise() -> None:
    with pytest.raises(ConfigError, match="cannot normalise"):
        find_algorithm("a3c").settings(env="cartpole", normalise_obs=True)
