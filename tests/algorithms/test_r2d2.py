"""R2D2: its loss by hand, what has a gradient, and the answers of environments that need memory."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raceway
from raceway.agents import QAgent, Spaces
from raceway.agents.builders import build_agent
from raceway.algorithms import find_algorithm
from raceway.algorithms.r2d2 import Config, explorer, loss
from raceway.envs import EnvSettings, make_slots
from raceway.errors import ConfigError
from raceway.learner.learner import tensors_of
from raceway.rl import Batch, sequences
from tests.agents.test_sequence_evaluation import agent_of, sequence_batch

FINAL, LAST = 9.0, 4.0
"""The observations after a truncated episode, and after the last step of the sequence."""


def h(x: float) -> float:
    """Return the rescaled value of a positive number."""
    return math.sqrt(x + 1) - 1 + 1e-3 * x


class Table:
    """Q-values by observation. The online network prefers action 1; the target network's other entry is too large."""

    def action_index(self, batch: Batch) -> Any:
        return batch["action"]

    def sequence_q_values(self, batch: Batch) -> Any:
        obs, next_obs = batch["obs"].squeeze(-1), batch["next_obs"].squeeze(-1)
        own = torch.stack([torch.full_like(obs, 50.0), torch.full_like(obs, 1.0)], -1)  # action 1 is taken
        online = torch.tensor([0.0, 1.0]).expand(*obs.shape, 2)
        values = torch.where(next_obs == FINAL, h(20), torch.where(next_obs == LAST, h(10), 77.0))
        return own.requires_grad_(), online, torch.stack([torch.full_like(values, 99.0), values], -1)


def four_steps(*, terminates: bool) -> Batch:
    """Return a sequence of four steps, of which the first is burn-in and the third ends an episode; n is 2, γ is ½."""
    ended = np.array([[False], [False], [True], [False]])
    batch, _ = sequences(
        {
            "obs": np.arange(4, dtype=np.float32).reshape(4, 1, 1), "action": np.ones((4, 1), np.int64),
            "reward": np.array([[5], [-1], [8], [3]], np.float32),
            "terminated": ended & terminates, "truncated": ended & (not terminates),
            "last_obs": np.array([[LAST]], np.float32),
            "final_obs": np.array([] if terminates else [[FINAL]], np.float32).reshape(-1, 1),
        },
        gamma=0.5, n=2, length=4, burn_in=1,
    )  # fmt: skip
    return tensors_of({**batch, "weight": np.array([0.5], np.float32)})


@pytest.mark.parametrize(
    ("terminates", "targets"),
    [
        # -1 + ½ 8; the reward alone; and one reward at the end of the sequence, 3 + ½ 10.
        (True, [h(3), h(8), h(8)]),
        # The value after the truncated episode is 20: -1 + ½ 8 + ¼ 20 and 8 + ½ 20.
        (False, [h(8), h(18), h(8)]),
    ],
    ids=["terminated", "truncated"],
)
def test_the_loss_by_hand(*, terminates: bool, targets: list[float]) -> None:
    output = loss(Table(), four_steps(terminates=terminates), eta=0.75)  # type: ignore[arg-type]
    errors = [1.0 - target for target in targets]  # of Q(s, a) = 1, without that of the burn-in
    assert output.value.item() == pytest.approx(0.5 * sum(0.5 * error**2 for error in errors) / 3, rel=1e-5)
    magnitudes = [abs(error) for error in errors]
    assert output.priorities.tolist() == pytest.approx([0.75 * max(magnitudes) + 0.25 * sum(magnitudes) / 3], rel=1e-5)
    assert output.metrics["q_values"].item() == 1.0


def test_burn_in_and_targets_have_no_gradient() -> None:
    agent = agent_of("lstm")
    batch = sequence_batch(agent)
    batch["obs"].requires_grad_()
    batch["next_obs"].requires_grad_()
    batch["weight"] = torch.ones(len(batch["obs"]))
    loss(agent, batch).value.backward()
    trained = batch["mask"]
    assert not batch["obs"].grad[~trained].any()
    assert batch["obs"].grad[trained].any()
    assert not batch["next_obs"].grad.any()
    assert all(parameter.grad is None for parameter in agent.target.parameters())


def test_one_pass_gives_the_values_of_both_networks() -> None:
    agent = agent_of("gru")
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter *= 0.5
    batch = sequence_batch(agent)
    values = agent.sequence_q_values(batch)
    expected = agent.q_values(batch), agent.next_q_values(batch), agent.target.next_q_values(batch)
    for value, other in zip(values, expected, strict=True):
        assert torch.equal(value, other)
    assert not torch.equal(values[1], values[2])


def test_the_ladder_of_epsilon() -> None:
    cfg = Config(num_envs=8, epsilon=0.5)
    knobs = explorer(Spaces(None, None), cfg).knobs["epsilon"]  # type: ignore[arg-type]
    np.testing.assert_allclose(knobs, 0.5 ** np.arange(1.0, 9.0), rtol=1e-6)


def agent_for(**settings: Any) -> QAgent:
    cfg = find_algorithm("r2d2").config(env="cartpole", hidden=(6,), **settings)
    slots = make_slots(EnvSettings("cartpole", last_action_and_reward=True), 1)
    agent = build_agent(find_algorithm("r2d2").agent, Spaces(slots.observation_space, slots.action_space), cfg)
    assert isinstance(agent, QAgent)
    return agent


def test_the_head_is_dueling() -> None:
    head: Any = agent_for().actor.network.head
    with torch.no_grad():
        head.value[-1].bias.fill_(5.0)
        features = torch.randn(4, 6)
        q_values = head(features)
    torch.testing.assert_close(q_values.mean(-1), head.value(features).squeeze(-1))  # advantages have a mean of 0
    advantages = head.advantages(features)
    torch.testing.assert_close(q_values[:, 0] - q_values[:, 1], advantages[:, 0] - advantages[:, 1])


def test_a_network_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Use --network lstm or gru.*apex"):
        agent_for(network="mlp")


# Environments that need memory.

SEQUENCES: dict[str, Any] = {
    "fragment_steps": 24, "sequence_steps": 32, "burn_in": 8, "batch_size": 384, "buffer_size": 20_000,
    "learning_starts": 1000, "steps_per_update": 24, "lr": 5e-3, "target_every": 50, "replay_shards": 1,
    "hidden": (32,), "max_grad_norm": 10.0, "adam_epsilon": 1e-5, "stop_return": 0.9, "total_timesteps": 20_000,
}  # fmt: skip


def learn(name: str, env: str, run: Path, **settings: Any) -> float:
    """Return the mean return of the greedy policy after a short training."""
    result = raceway.train(
        name, env=env, engine="inline", num_workers=1, num_shards=1, num_envs=16, seed=1, progress=False, run_dir=run,
        **settings,
    )  # fmt: skip
    return result.policy.evaluate(100).mean_return


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("raceway/TMaze-v0", {"env_kwargs": {"length": 10}}),
        (
            "raceway/RepeatPrevious-v0",  # every reward is 1/14
            {"gamma": 0.2, "n_step": 1, "lr": 1e-2, "adam_epsilon": 1e-8, "steps_per_update": 16},
        ),
    ],
)
def test_what_was_observed_before_is_remembered(env: str, settings: dict[str, Any], tmp_path: Path) -> None:
    assert learn("r2d2", env, tmp_path / "run", **{**SEQUENCES, **settings}) > 0.97


def test_a_feed_forward_policy_cannot_find_the_goal(tmp_path: Path) -> None:
    settings = {"env_kwargs": {"length": 10}, "total_timesteps": 3000, "learning_starts": 500, "epsilon_steps": 1000}
    assert learn("dqn", "raceway/TMaze-v0", tmp_path / "run", **settings) == pytest.approx(0.5, abs=0.15)
