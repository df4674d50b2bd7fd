"""Gradients of all shards, reduced in the order of the shards."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.agents import ActorCritic, Spaces
from raceway.agents.weights import Weights
from raceway.engine import make_engine
from raceway.envs import EnvSettings
from raceway.errors import FlowError, OperatorError
from raceway.flow import Iter, Shard, send_msg
from raceway.learner.global_random import GlobalRandom
from raceway.learner.learner import Learner, tensors_of
from raceway.learner.minibatches import minibatches
from raceway.learner.replica import Reduced, Replica, merge_statistics, statistics_of
from raceway.machine import worker_compute_settings
from raceway.ops import (
    AddAdvantages,
    AllReduce,
    ConcatBatches,
    MinibatchGradients,
    RolloutSettings,
    RolloutWorker,
    StandardizeFields,
    TrainOneStep,
    UpdateWeights,
    parallel_rollouts,
)
from raceway.ops.all_reduce import MinibatchGradient, NewBatch
from raceway.rl import Batch, Moments
from raceway.rl.seeding import Purpose
from tests.example_agents import makes_actor_critic

NUM_SHARDS = 3
ROLLOUTS = RolloutSettings(
    env=EnvSettings("CartPole-v1"), agent=makes_actor_critic(normalise_obs=True), num_shards=NUM_SHARDS,
    slots_per_shard=2, fragment_steps=6,
)  # fmt: skip

SPACES = Spaces(*(getattr(gym.make("CartPole-v1"), f"{kind}_space") for kind in ("observation", "action")))


@pytest.fixture(autouse=True)
def _worker_settings() -> Iterator[None]:
    with worker_compute_settings():
        yield


def loss(agent: ActorCritic, batch: Batch) -> Tensor:
    params, values = agent.evaluate(batch)
    log_prob = agent.actor.distribution.log_prob(params, batch["action"])
    return (values - batch["value_target"]).square().mean() - (log_prob * batch["advantage"]).mean()


def make_learner(agent: Any) -> Learner:
    return Learner(agent, 0.01, max_grad_norm=0.5, compiled=True)


class Group:
    """A plan whose shards train on their own rows, and its parts."""

    def __init__(self, engine: Any, num_workers: int = 2, **settings: Any) -> None:
        self.workers = [engine.spawn(RolloutWorker, (ROLLOUTS,), name=f"worker-{n}") for n in range(num_workers)]
        self.learner = make_learner(ROLLOUTS.make_agent(SPACES))
        self.weights = UpdateWeights(self.learner, self.workers)
        self.weights.send(self.workers)
        self.all_reduce = AllReduce(self.weights)
        self.rollouts = parallel_rollouts(self.workers, ROLLOUTS).for_each(AddAdvantages(0.99, 0.95))
        self.gradients = MinibatchGradients(loss, make_learner, **settings)

    @property
    def plan(self) -> Iter[Any]:
        return self.rollouts.transform(self.gradients).gather_sync().combine(self.all_reduce)


def in_one_batch(num_epochs: int, num_batches: int) -> tuple[Weights, list[Any]]:
    """Return the weights, and the stats, of a learner that trains on the rows of all shards together."""
    with make_engine("inline") as engine:
        group = Group(engine)
        train = TrainOneStep(group.learner, loss, num_epochs=num_epochs)
        batches = group.rollouts.gather_sync().combine(ConcatBatches()).for_each(StandardizeFields("advantage"))
        stats = list(batches.for_each(train).for_each(group.weights).take(num_batches))
        return group.learner.agent.weights(), stats


@pytest.mark.parametrize("num_epochs", [1, 3])
def test_it_is_training_on_all_rows_in_one_batch(num_epochs: int) -> None:
    """With standardised advantages, clipped gradients, normalised observations and Adam's moments."""
    expected, expected_stats = in_one_batch(num_epochs, 3)
    with make_engine("inline") as engine:
        group = Group(engine, num_epochs=num_epochs)
        stats = list(group.plan.take(3))
        assert group.learner.version == group.learner.objectives["agent"].optimiser.steps == 3 * num_epochs
    for name, array in group.learner.agent.weights().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6, rtol=1e-6, err_msg=name)
    for found, other in zip(stats, expected_stats, strict=True):
        assert (found.num_steps, found.num_updates) == (other.num_steps, other.num_updates) == (36, num_epochs)
        np.testing.assert_array_equal(found.returns, other.returns)
        assert found.metrics.keys() == other.metrics.keys()
        for name, value in found.metrics.items():
            assert value == pytest.approx(other.metrics[name], abs=1e-5)


def test_a_minibatch_is_one_of_every_shards_own_rows() -> None:
    """The mean over the shards is the gradient of one minibatch with the rows of all of them."""
    with make_engine("inline") as engine:
        group = Group(engine)
        (parts,) = group.rollouts.gather_sync().take(1)
        rows = [tensors_of(part) for part in parts]
        moments = Moments.merge(Moments.of(part["advantage"]) for part in parts)
        for part in rows:
            part["advantage"] = torch.from_numpy(moments.standardise(part["advantage"].numpy()))
        seeds = [Shard(k, NUM_SHARDS).generator(int(Purpose.LEARNER)).integers(2**62) for k in range(NUM_SHARDS)]
        generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        alone = Replica(group.learner, loss)
        for _ in range(2):
            split = [list(minibatches(*pair)) for pair in zip(rows, [5] * NUM_SHARDS, generators, strict=True)]
            for minibatch in zip(*split, strict=True):
                together = {name: torch.cat([part[name] for part in minibatch]) for name in minibatch[0]}
                alone.step(alone.gradient(together, GlobalRandom(0))[0], 0.01)
        merge_statistics(group.learner.agent, [statistics_of(group.learner.agent, part) for part in rows])
        expected = group.learner.agent.weights()
    with make_engine("inline") as engine:
        group = Group(engine, num_epochs=2, num_minibatches=5)
        (stats,) = group.plan.take(1)
    assert stats.num_updates == 10
    for name, array in group.learner.agent.weights().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-6, err_msg=name)


def test_other_weights_on_a_worker_are_an_error_that_names_the_rank() -> None:
    with make_engine("inline") as engine:
        group = Group(engine, check_every=2)
        run = iter(group.plan)
        next(run)
        changed = group.learner.agent.weights()
        changed = {name: array + 1 if array.dtype == np.float32 else array for name, array in changed.items()}
        send_msg(group.workers[1], "set_weights", changed).result()
        next(run)  # not checked
        with pytest.raises(
            OperatorError, match=r"rank 1, on worker-1, has other weights than the learner after 2"
        ) as raised:
            next(run)
        assert isinstance(raised.value.original, FlowError)


def test_other_initial_weights_are_an_error() -> None:
    with make_engine("inline") as engine:
        group = Group(engine, check_every=1000)
        with torch.no_grad():
            next(group.learner.agent.critic.parameters())[0] += 1
        with pytest.raises(OperatorError, match=r"rank 0, on worker-0, has other weights than the learner after 0"):
            next(iter(group.plan))


def test_without_an_answer_a_batch_ends_and_a_new_one_is_offered_again() -> None:
    """As when another rank has lost its batch, because its worker was restarted."""
    worker, shard = RolloutWorker(ROLLOUTS), Shard(0, 1)
    add_advantages = AddAdvantages(0.99, 0.95)
    batches = (add_advantages(worker.sample(shard=shard, number=number), actor=worker) for number in range(3))
    rank = MinibatchGradients(loss, make_learner, num_minibatches=4)(batches, actor=worker, shard=shard)
    first = next(rank)
    assert isinstance(first, NewBatch)
    assert next(rank) is first
    worker.receive(Reduced(moments=first.moments))
    gradient = next(rank)
    assert isinstance(gradient, MinibatchGradient)
    worker.receive(Reduced(gradient=gradient.gradient, lr=0.1))
    assert isinstance(next(rank), MinibatchGradient)
    second = next(rank)
    assert isinstance(second, NewBatch)
    assert second.moments != first.moments
    assert worker.replica(lambda agent: Replica(make_learner(agent))).learner.version == 1
    worker.close()
