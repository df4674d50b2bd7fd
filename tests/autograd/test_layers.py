"""Plain networks in numpy give what torch gives, forwards and backwards."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.agents import Policy, make_policy
from raceway.agents.distributions import distribution_for
from raceway.autograd.layers import Layers, Pass
from raceway.autograd.tape import Tape, taping
from raceway.learner.learner import Learner, backward

SEEN = spaces.Box(-2, 2, (5,), np.float32)
DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)


def some_obs(*shape: int) -> Tensor:
    return torch.randn(*shape, 5, generator=torch.Generator().manual_seed(0))


def a_loss(policy: Policy, obs: Tensor) -> Tensor:
    params, values = policy.evaluate(obs)
    return params.square().mean() + (values - 1).square().mean() + params.sum() * values.mean()


def gradients(policy: Policy, obs: Tensor, tape: Tape | None) -> dict[str, Tensor]:
    policy.zero_grad(set_to_none=True)
    with taping(tape):
        value = a_loss(policy, obs)
    if tape is None:
        value.backward()
    else:
        tape.backward(value)
    return {name: one.grad.clone() for name, one in policy.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("space", [DISCRETE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize("options", [{}, {"activation": "relu"}, {"shared": True}, {"normalise": True}], ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 4)], ids=str)
def test_gradients_are_autograds(space: Any, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    policy = make_policy(SEEN, space, "mlp", (8, 6), seed=1, kind="actor-critic", **options)
    obs = some_obs(*shape)
    policy.observe({"obs": some_obs(50)})
    expected = gradients(policy, obs, None)
    tape = Tape()
    found = gradients(policy, obs, tape)
    assert found.keys() == expected.keys()
    assert len(found) >= 8
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert tape.steps == []


def test_what_comes_out_is_torchs() -> None:
    policy = make_policy(SEEN, BOX, "mlp", (8, 6), seed=1, kind="actor-critic", normalise=True)
    obs = some_obs(9)
    policy.observe({"obs": 3 * some_obs(50) + 1})
    by_torch = policy.evaluate(obs)  # with gradients and no tape
    assert by_torch[0].grad_fn is not None
    with torch.no_grad():
        in_numpy = policy.evaluate(obs)
    for one, other in zip(in_numpy, by_torch, strict=True):
        torch.testing.assert_close(one, other.detach())


def test_gradients_are_added_to_what_is_there() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1, kind="actor-critic")
    once = gradients(policy, some_obs(4), Tape())
    learner = Learner(policy, 0.0)  # its gradients are parts of one vector
    learner.optimiser.zero_grad()
    backward([lambda: a_loss(policy, some_obs(4))] * 2)
    for name, one in policy.named_parameters():
        torch.testing.assert_close(one.grad, 2 * once[name])
    assert learner.optimiser.vectors[0].gradient.abs().sum() > 0


def test_what_is_frozen_gets_no_gradient() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1, kind="actor-critic")
    policy.network[1].weight.requires_grad_(False)
    assert "network.1.weight" not in gradients(policy, some_obs(4), Tape())


def test_what_the_loss_does_not_depend_on_gets_none() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1, kind="actor-critic")
    tape = Tape()
    with taping(tape):
        params, _ = policy.evaluate(some_obs(4))
    tape.backward(params.sum())
    assert all(one.grad is None for one in policy.critic.parameters())
    assert all(one.grad is not None for one in policy.network.parameters())


def test_gradients_of_what_is_seen_go_by_autograd() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1)
    obs = some_obs(4).requires_grad_()
    tape = Tape()
    with taping(tape):
        policy(obs, {})[0].sum().backward()
    assert tape.steps == []
    assert obs.grad is not None


def test_gradients_of_gradients_without_a_tape() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1)
    weight = policy.network[1].weight
    with taping(Tape()), taping(None):
        value = policy(some_obs(4), {})[0].square().sum()
    (first,) = torch.autograd.grad(value, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    assert second.abs().sum() > 0


def test_a_tape_is_of_its_thread() -> None:
    policy = make_policy(SEEN, DISCRETE, "mlp", (8,), seed=1)
    found: list[Any] = []
    tape = Tape()
    with taping(tape):
        other = threading.Thread(target=lambda: found.append(policy(some_obs(2), {})[0].grad_fn))
        other.start()
        other.join()
    assert found[0] is not None, "the other thread has no tape"
    assert tape.steps == []


def test_layers_that_are_not_plain_are_torchs() -> None:
    layers = Layers(torch.nn.Identity(), torch.nn.Linear(5, 4), torch.nn.Softplus(), torch.nn.Linear(4, 2))
    tape = Tape()
    with taping(tape):
        assert layers(some_obs(3)).grad_fn is not None
    assert tape.steps == []


def test_a_pass_keeps_what_came_in() -> None:
    linear = torch.nn.Linear(5, 4)
    x = some_obs(3)
    done = Pass(x, [linear], [torch.nn.Tanh])
    assert torch.equal(x, some_obs(3))
    assert np.shares_memory(done.outputs[0], x.numpy())


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=5), BOX], ids=["choice", "box"])
@pytest.mark.parametrize("shape", [(7,), (3, 4)], ids=str)
def test_probabilities_are_autograds(space: Any, shape: tuple[int, ...]) -> None:
    distribution = distribution_for(space)
    params = torch.randn(*shape, distribution.size, generator=torch.Generator().manual_seed(0))
    actions = torch.from_numpy(np.array([space.sample() for _ in range(math.prod(shape))]))
    actions = actions.reshape(*shape, *actions.shape[1:])

    def loss(params: Tensor) -> Tensor:
        log_prob, entropy = distribution.log_prob_and_entropy(params, actions)
        return (log_prob.square() + 0.3 * entropy.exp()).mean() + params.sum()

    wanted = params.clone().requires_grad_()
    by_torch = loss(wanted)
    by_torch.backward()
    tape, found = Tape(), list[np.ndarray]()
    with taping(tape):
        given = tape.note(params.numpy().copy(), lambda gradient: found.append(gradient.copy()))
        on_tape = loss(given)
    assert len(tape.steps) == 3
    tape.backward(on_tape)
    torch.testing.assert_close(on_tape, by_torch)
    torch.testing.assert_close(torch.from_numpy(found[0]), wanted.grad)
