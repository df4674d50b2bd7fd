"""Replicas: gradients and steps apart, and normalisers whose rows are in several places."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.agents import ActorCritic
from raceway.autograd.fast_paths import without_fast_paths
from raceway.learner.global_random import GlobalRandom
from raceway.learner.learner import Learner
from raceway.learner.objectives import LossOutput
from raceway.learner.replica import Reduced, Replica, mean_gradient, merge_statistics, statistics_of
from raceway.rl import Batch, Moments
from tests.example_agents import example_actor_critic

OBS_SPACE, ACTION_SPACE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
RANDOM = GlobalRandom(0)


def example_agent(**options: Any) -> ActorCritic:
    return example_actor_critic(OBS_SPACE, ACTION_SPACE, hidden=(4,), **options)


def example_loss(agent: ActorCritic, batch: Batch) -> Tensor:
    params, values = agent.evaluate(batch)
    return params.square().mean() + (values - 1).square().mean()


def rows(num: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {"obs": torch.randn(num, 3, generator=generator), "action": torch.zeros(num, dtype=torch.long)}


@pytest.mark.parametrize("fast", [nullcontext, without_fast_paths])
def test_a_gradient_and_a_step_are_those_of_a_learner(fast: Callable[[], Any]) -> None:
    with fast():
        alone, other = (Learner(example_agent(), 0.1, max_grad_norm=0.5) for _ in range(2))
        replica = Replica(other, example_loss)
        for seed in range(3):
            batch = rows(8, seed)
            expected = alone.train(example_loss, batch).metrics
            before = other.agent.sha256()
            gradient, metrics = replica.gradient(batch, RANDOM)
            assert gradient.shape == (sum(parameter.numel() for parameter in other.agent.parameters()),)
            assert other.agent.sha256() == before
            metrics |= replica.receive(Reduced(gradient=gradient, lr=0.1))
            assert metrics == expected
            assert other.agent.sha256() == alone.agent.sha256()
            assert replica.num_answers == other.version == seed + 1


def test_an_answer_without_a_gradient_changes_nothing_but_the_moments() -> None:
    replica = Replica(Learner(example_agent(), 0.1))
    before = replica.learner.agent.sha256()
    assert replica.receive(Reduced(moments=Moments(2, 1.0, 1.0))) == {}
    assert replica.receive(Reduced()) == {}
    assert replica.num_answers == 2
    assert replica.moments == (2, 1.0, 1.0)
    assert (replica.learner.version, replica.learner.agent.sha256()) == (0, before)


def test_a_loss_with_buffers_is_refused() -> None:
    def loss(agent: ActorCritic, batch: Batch) -> LossOutput:
        return LossOutput(example_loss(agent, batch), buffers=[(agent.rewards.mean, torch.ones(1))])

    with pytest.raises(ValueError, match="buffers that a loss returns"):
        Replica(Learner(example_agent(), 0.1), loss).gradient(rows(2), RANDOM)


def test_normalisers_observe_the_rows_of_all() -> None:
    together, apart = (example_agent(normalise_obs=True) for _ in range(2))
    for seed in range(2):
        batch = rows(9, seed)
        together.observe(batch)
        before = apart.sha256()
        parts = [{name: column[part] for name, column in batch.items()} for part in (slice(2), slice(2, 9))]
        statistics = [statistics_of(apart, part) for part in parts]
        assert apart.sha256() == before
        merge_statistics(apart, statistics)
    names = [name for name in together.weights() if "normaliser" in name]
    assert len(names) == 3
    for name in names:
        np.testing.assert_allclose(apart.weights()[name], together.weights()[name], rtol=1e-6, atol=1e-7)
    assert statistics_of(example_agent(), rows(3)) == {}


def test_the_mean_is_weighted_by_rows_and_divided_once() -> None:
    """(2 · 1 + 1 · 4) / 3 = 2 and (2 · 3 + 1 · 0) / 3 = 2; a part without rows adds nothing."""
    parts = [(np.array([1.0, 3.0], np.float32), 2), (None, 0), (np.array([4.0, 0.0], np.float32), 1)]
    mean = mean_gradient(parts)
    assert mean is not None
    assert (mean.dtype, mean.tolist()) == (np.float32, [2.0, 2.0])
    np.testing.assert_array_equal(parts[0][0], [1.0, 3.0])
    assert mean_gradient(parts[1:2]) is None
