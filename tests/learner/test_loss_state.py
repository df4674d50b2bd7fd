"""The state of loss objects: attributes, tensors, generators; and the random numbers of losses on workers."""

from __future__ import annotations

import pickle
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.flow import Shard
from raceway.injection import injected
from raceway.learner.loss_state import restore_loss, state_of_loss
from raceway.ops import ComputeGradients
from tests.example_agents import example_actor


class Numbers:
    """Returns numbers that depend on all calls before."""

    def __init__(self) -> None:
        self.count, self.total = 0, torch.zeros(2)
        self.last: Tensor | None = None
        self.nested: dict[str, Any] = {"tensors": [], "names": ("a", 1)}
        self.torch_random, self.numpy_random = torch.Generator().manual_seed(1), np.random.default_rng(2)
        self.network = nn.Linear(1, 1)  # not saved: it is set by the constructor

    def __call__(self, *_: Any) -> float:
        self.count += 1
        noise = torch.rand(2, generator=self.torch_random) + float(self.numpy_random.random())
        self.total += noise  # in place
        self.last = noise
        self.nested["tensors"].append(noise * self.count)
        return float(self.total.sum() + self.last.sum() + torch.stack(self.nested["tensors"]).sum())

    def method(self, *_: Any) -> float:
        return self()


class ModuleLoss(nn.Module):
    """A loss that is a torch module, with a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(()))
        self.count = 0

    def forward(self, *_: Any) -> float:
        self.count += 1
        self.mean += self.count
        return float(self.mean)


class OwnState:
    """A loss that says what its state is."""

    value = 0.0

    def __call__(self, *_: Any) -> float:
        self.value += 1
        return self.value

    def state(self) -> Any:
        return {"value": self.value}

    def restore(self, state: Any) -> None:
        self.value = state["value"]


@pytest.mark.parametrize(
    "make",
    [Numbers, ModuleLoss, OwnState, lambda: partial(Numbers(), None), lambda: Numbers().method],
    ids=["object", "module", "own state", "partial", "method"],
)
def test_a_restored_loss_continues(make: Any) -> None:
    loss, restored = make(), make()
    for _ in range(3):
        loss()
    state = state_of_loss(loss)
    expected = [loss() for _ in range(3)]  # which does not change the state
    restored()
    restore_loss(restored, pickle.loads(pickle.dumps(state)))
    assert [restored() for _ in range(3)] == expected


def test_a_function_has_no_state() -> None:
    assert state_of_loss(partial(lambda agent, batch, cfg: 0, cfg=1)) is None


OBS, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)


class NoisyLoss:
    """Depends on a random number, and on the number of its calls."""

    calls = 0

    def __call__(self, agent: Any, batch: Any, *, random: torch.Generator = injected) -> Tensor:
        self.calls += 1
        return agent.actor(batch["obs"], {})[0].sum() * torch.rand((), generator=random) * self.calls


def gradients(operator: ComputeGradients, number: int = 0) -> np.ndarray:
    actor = SimpleNamespace(agent=example_actor(OBS, ACTIONS))
    batch = {"obs": np.ones((4, 3), np.float32), "reward": np.zeros(4, np.float32)}
    arrays = operator(batch, actor=actor, shard=Shard(number, 2, seed=3)).arrays
    return arrays["actor.network.1.weight"].copy()


def test_random_numbers_on_workers_are_those_of_the_shard() -> None:
    one, two = ComputeGradients(NoisyLoss()), ComputeGradients(NoisyLoss())
    np.testing.assert_array_equal(gradients(one), gradients(two))
    assert not np.array_equal(
        gradients(ComputeGradients(NoisyLoss()), number=1), gradients(ComputeGradients(NoisyLoss()))
    )


def test_the_state_of_a_loss_on_workers_is_restored() -> None:
    operator, restored = ComputeGradients(NoisyLoss()), ComputeGradients(NoisyLoss())
    gradients(operator)
    restored.restore(operator.state())
    np.testing.assert_array_equal(gradients(operator), gradients(restored))
    assert ComputeGradients(lambda agent, batch: 0).state() == {}
