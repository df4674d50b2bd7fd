"""Sequences from replay: evaluated as step by step, with resets inside them, and burn-in without gradients."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from raceway.agents import Agent, QAgent, make_policy
from raceway.agents.sequence_evaluation import evaluate_sequences
from raceway.algorithms.dqn import loss
from raceway.learner.learner import tensors_of
from raceway.rl import Batch, sequences, tree_map
from tests.rollouts.test_recurrence import Learned

LENGTH, BURN_IN, NUM_SLOTS = 8, 3, 5
NETWORKS = ["lstm", "gru", Learned]


def agent_of(network: Any) -> QAgent:
    agent = QAgent(make_policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(4), network, (6,), seed=0))
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter *= 3  # so that the recurrent state matters
    agent.make_target(None)
    return agent


def sequence_batch(agent: Agent, n: int = 2, burn_in: int = BURN_IN) -> Batch:
    """Return sequences of random steps, as tensors. Some episodes end in them, and some steps are invalid."""
    random, shape = np.random.default_rng(3), (LENGTH, NUM_SLOTS)
    ended = random.random(shape) < 0.25
    ended[:, 0] = False
    terminates = random.random(shape) < 0.5
    valid = np.ones(shape, bool)
    valid[1:] = ~(ended[:-1] & (random.random((LENGTH - 1, NUM_SLOTS)) < 0.5))  # an environment that reset itself
    ended &= valid
    obs = random.normal(size=(LENGTH + 1, NUM_SLOTS, 2)).astype(np.float32)
    truncated = ended & ~terminates
    states = agent.actor.initial_state(NUM_SLOTS)
    fragment = {
        "obs": obs[:-1],
        "action": random.integers(4, size=shape),
        "reward": random.normal(size=shape).astype(np.float32),
        "terminated": ended & terminates,
        "truncated": truncated,
        "valid": valid,
        "last_obs": obs[-1],
        "final_obs": random.normal(size=(truncated.sum(), 2)).astype(np.float32),
    }
    state = {name: random.normal(size=part.shape).astype(np.float32) for name, part in states.items()}
    assert valid.sum() < valid.size
    assert ended[BURN_IN:].any()
    assert ended[:BURN_IN].any()
    return tensors_of({**sequences(fragment, 0.9, n, LENGTH, burn_in)[0], "state": state})


def step_by_step(agent: Agent, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs for `obs` and `next_obs` of every step, by running the network over single steps."""
    policy, results = agent.actor, np.zeros((2, NUM_SLOTS, LENGTH, 4), np.float32)
    with torch.no_grad():
        for slot in range(NUM_SLOTS):
            after = {}
            state = {name: part[slot : slot + 1] for name, part in batch["state"].items()}
            for step in range(LENGTH):
                if batch["valid"][slot, step]:
                    state = policy.initial_state(1) if batch["begins"][slot, step] else state
                    outputs, state = policy(batch["obs"][slot, step][None], state)
                    results[0, slot, step], after[step] = outputs[0].numpy(), state
            for step in after:
                last = step + int(batch["span"][slot, step]) - 1
                results[1, slot, step] = policy(batch["next_obs"][slot, step][None], after[last])[0][0].numpy()
    return results[0], results[1]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("burn_in", [0, BURN_IN])
def test_sequences_are_evaluated_as_step_by_step(network: Any, burn_in: int) -> None:
    agent = agent_of(network)
    batch = sequence_batch(agent, burn_in=burn_in)
    mask = batch["mask"].numpy()
    for actual, expected in zip(evaluate_sequences(agent.actor, batch), step_by_step(agent, batch), strict=True):
        np.testing.assert_allclose(actual.detach().numpy()[mask], expected[mask], atol=1e-5)


def gradient_by_obs(agent: QAgent, batch: Batch, slot: int, step: int) -> Tensor:
    """Return the gradient of the outputs of one step with respect to all observations of its sequence, [L, 2]."""
    obs = batch["obs"].clone().requires_grad_()
    agent.q_values({**batch, "obs": obs})[slot, step].square().sum().backward()
    assert obs.grad is not None
    return obs.grad[slot]


@pytest.mark.parametrize("network", NETWORKS)
def test_memory_does_not_leak_through_a_reset(network: Any) -> None:
    agent = agent_of(network)
    batch = sequence_batch(agent, burn_in=0)
    slots, steps = np.nonzero((batch["begins"] & batch["valid"]).numpy())
    assert len(slots) > 2
    for slot, step in zip(slots, steps, strict=True):
        gradient = gradient_by_obs(agent, batch, slot, step)
        assert not gradient[:step].any()
        assert gradient[step].any()
    assert gradient_by_obs(agent, batch, 0, LENGTH - 1)[0].any(), "without a reset, there is memory"


@pytest.mark.parametrize("network", NETWORKS)
def test_burn_in_changes_the_state_and_has_no_gradient(network: Any) -> None:
    agent = agent_of(network)
    batch = sequence_batch(agent)
    assert not gradient_by_obs(agent, batch, 0, LENGTH - 1)[:BURN_IN].any()
    obs = batch["obs"].clone()
    obs[0, :BURN_IN] += 1
    before, after = agent.q_values(batch)[0], agent.q_values({**batch, "obs": obs})[0]
    assert not before[:BURN_IN].any()
    assert (before[BURN_IN:] != after[BURN_IN:]).any(-1).all()


def gradients(agent: QAgent, value: Tensor) -> list[Tensor]:
    agent.zero_grad()
    value.backward()
    return [parameter.grad.clone() for parameter in agent.parameters() if parameter.grad is not None]


def test_the_loss_is_that_of_the_trained_steps() -> None:
    """It is the mean over the trained steps of all sequences, and others change neither the loss nor a metric."""
    agent = agent_of("lstm")
    batch = sequence_batch(agent)
    value, metrics = loss(agent, batch)
    own, following = step_by_step(agent, batch)
    q_values = np.take_along_axis(own, batch["action"].numpy()[..., None], -1)[..., 0]
    targets = batch["reward"].numpy() + batch["discount"].numpy() * following.max(-1)
    errors = np.abs(q_values - targets)
    losses = np.where(errors < 1, errors**2 / 2, errors - 0.5)
    trained = (batch["valid"] & (torch.arange(LENGTH) >= BURN_IN)).numpy()
    assert value.item() == pytest.approx(losses[trained].mean(), rel=1e-4)
    assert metrics["q_values"].item() == pytest.approx(q_values[trained].mean(), rel=1e-4)
    rest = ~batch["mask"]
    changed = {**batch, "reward": torch.where(rest, 1e6, batch["reward"]), "action": batch["action"].where(~rest, 0)}
    other, other_metrics = loss(agent, changed)
    assert other.item() == value.item()
    assert other_metrics["q_values"].item() == metrics["q_values"].item()
    first, second = gradients(agent, value), gradients(agent, other)
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_sequences_without_a_trained_step() -> None:
    """As of an agent that had no turn: they change nothing, alone or beside others."""
    agent = agent_of("gru")
    batch = sequence_batch(agent)
    value, _ = loss(agent, batch)
    idle = {**tree_map(lambda part: part[:2], batch), "mask": torch.zeros(2, LENGTH, dtype=torch.bool)}
    assert loss(agent, idle)[0].item() == 0
    both = tree_map(lambda *parts: torch.cat(parts), batch, idle)
    assert loss(agent, both)[0].item() == pytest.approx(value.item())
