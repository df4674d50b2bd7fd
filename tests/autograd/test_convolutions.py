"""Networks of images in blocks of rows give the outputs and gradients of torch, with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.agents import ActorCritic
from raceway.autograd import layers, matrix_products
from raceway.autograd.tape import Tape, use_tape
from raceway.learner.learner import Learner
from raceway.machine import worker_compute_settings
from raceway.rl import Batch, tree_map
from tests.example_agents import example_actor_critic

FIRST = spaces.Box(0, 255, (2, 40, 36), np.uint8)
LAST = spaces.Box(0, 255, (40, 36, 2), np.uint8)
MIXED = spaces.Dict({"camera": LAST, "speed": spaces.Box(-1, 1, (3,), np.float32)})
ACTIONS = spaces.Discrete(3)
WIDE = 80


@pytest.fixture(autouse=True)
def compute_as_in_training(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with one thread unless a learner has more, and linear layers in blocks, as if they were large."""
    monkeypatch.setattr(matrix_products, "_MIN_WEIGHTS", 1000)
    monkeypatch.setattr(layers, "_MIN_BLOCK_WEIGHTS", 1000)
    monkeypatch.setattr(layers, "_BLOCK_ROWS", 16)
    with worker_compute_settings():
        yield


def random_obs(space: Any, *shape: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    if isinstance(space, spaces.Dict):
        return {name: random_obs(part, *shape) for name, part in space.items()}
    if space.dtype == np.uint8:
        return torch.randint(0, 256, (*shape, *space.shape), generator=generator, dtype=torch.uint8)
    return torch.randn(*shape, *space.shape, generator=generator)


def loss(agent: ActorCritic, batch: Batch) -> Tensor:
    params, values = agent.evaluate(batch)
    return params.square().mean() + (values - 1).square().mean() + params.sum() * values.mean()


@pytest.mark.parametrize("space", [FIRST, LAST, MIXED], ids=["first", "last", "mixed"])
@pytest.mark.parametrize("shape", [(37,), (3, 6)], ids=str)
def test_gradients_equal_those_of_autograd(space: Any, shape: tuple[int, ...]) -> None:
    agent = example_actor_critic(space, ACTIONS, hidden=(WIDE,), seed=1)
    batch = {"obs": random_obs(space, *shape)}
    loss(agent, batch).backward()
    expected = {name: parameter.grad.clone() for name, parameter in agent.named_parameters()}  # type: ignore[union-attr]
    agent.zero_grad(set_to_none=True)
    tape = Tape()
    with use_tape(tape):
        value = loss(agent, batch)
    assert tape.steps
    tape.backward(value)
    for name, parameter in agent.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("space", [FIRST, LAST], ids=["first", "last"])
def test_inference_equals_that_of_autograd(space: Any) -> None:
    agent = example_actor_critic(space, ACTIONS, hidden=(WIDE,), seed=1)
    batch = {"obs": random_obs(space, 37)}
    expected = agent.evaluate(batch)
    with torch.no_grad():
        actual = agent.evaluate(batch)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5)


def train(threads: int) -> str:
    learner = Learner(example_actor_critic(FIRST, ACTIONS, hidden=(WIDE,), seed=1), 1e-3, threads, max_grad_norm=0.1)
    rows: Batch = {"obs": random_obs(FIRST, 90), "action": torch.zeros(90)}
    learner.train(loss, tree_map(lambda part: part.numpy(), rows), num_epochs=2, num_minibatches=2)
    return learner.agent.sha256()


def test_small_networks_are_the_same_with_any_number_of_threads() -> None:
    assert train(1) == train(2) == train(3)
    assert torch.get_num_threads() == 1


def test_layers_that_are_not_trained_get_no_gradients() -> None:
    agent = example_actor_critic(FIRST, ACTIONS, hidden=(8,), seed=1)
    images: Any = agent.actor.network[0].images  # type: ignore[index]
    images.requires_grad_(False)
    tape = Tape()
    with use_tape(tape):
        value = loss(agent, {"obs": random_obs(FIRST, 5)})
    tape.backward(value)
    assert all(parameter.grad is None for parameter in images.parameters())
    assert all(parameter.grad is not None for parameter in agent.critic.parameters())
