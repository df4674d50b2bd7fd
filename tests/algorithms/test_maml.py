"""MAML: gradients worked out by hand, tasks and weights per shard, determinism, and the gain from adaptation."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from raceway.agents import Agent
from raceway.algorithms import find_algorithm
from raceway.algorithms.maml import inner_loss, loss
from raceway.engine import make_engine
from raceway.envs.tasks import PointGoals
from raceway.errors import ConfigError
from raceway.learner.adaptation import adapt_parameters, loss_with
from raceway.learner.learner import tensors_of
from raceway.machine import worker_compute_settings
from raceway.ops import FitBaseline, InnerAdapt, UpdateWeights, parallel_rollouts
from raceway.rl import Batch, linear_baseline
from raceway.rl.seeding import Purpose, derive_seed
from raceway.training.train import Training, train
from raceway.ui.callback import Callback
from tests.example_agents import example_actor

SMALL: dict[str, Any] = {"env": "point", "iterations": 2, "num_shards": 6, "num_envs": 12, "hidden": (16,)}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Gradients


class Line(nn.Module):
    """The model w x."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))


def squared_error(line: Any, batch: Batch) -> torch.Tensor:
    return (line.w * batch["x"] - batch["y"]).square().mean()


def point(x: float, y: float) -> Batch:
    return {"x": torch.tensor([x], dtype=torch.float64), "y": torch.tensor([y], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("first_order", "gradient"),
    # With w = 1, x = 2, y = 5 and α = 0.1 the inner gradient is 2 · 2 (2 - 5) = -12, so w' = 2.2. The outer loss
    # (w' - 4)² has the gradient -3.6 with respect to w'; with respect to w it is (1 - 0.1 · 8) of that, a factor that
    # the first-order approximation leaves out.
    [(False, -0.72), (True, -3.6)],
)
def test_the_gradient_through_one_inner_step(first_order: bool, gradient: float) -> None:
    line: Any = Line(1.0)
    params = adapt_parameters(line, squared_error, 0.1, [point(2, 5)], first_order)
    assert params["w"].item() == pytest.approx(2.2)
    loss_with(line, params, squared_error, point(1, 4)).backward()
    assert line.w.grad.item() == pytest.approx(gradient)
    assert line.w.item() == 1


def test_the_gradient_through_two_inner_steps() -> None:
    line: Any = Line(1.0)
    params = adapt_parameters(line, squared_error, 0.1, [point(2, 5), point(1, 4)])
    assert params["w"].item() == pytest.approx(2.2 + 0.1 * 3.6)
    loss_with(line, params, squared_error, point(1, 0)).backward()
    assert line.w.grad.item() == pytest.approx(2 * 2.56 * (1 - 0.1 * 2) * (1 - 0.1 * 8))


def off_policy_batch(agent: Agent, random: np.random.Generator) -> Batch:
    """Return steps of a slightly different policy, as in a later epoch."""
    batch = {
        "obs": random.normal(size=(30, 3)),
        "action": random.normal(size=(30, 2)),
        "advantage": random.normal(size=30),
        "length": np.array([10, 20]),
    }
    with torch.no_grad():
        batch["log_prob"] = agent.actor.log_prob(batch).numpy() + 0.01 * random.normal(size=30)
    return tensors_of(batch)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_meta_gradient_matches_finite_differences(num_steps: int) -> None:
    agent = example_actor(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,)), _tanh_network).double()
    random = np.random.default_rng(0)
    *before, after = [off_policy_batch(agent, random) for _ in range(num_steps + 1)]
    meta_loss = partial(loss, cfg=find_algorithm("maml").settings(clip=10.0))

    def value() -> torch.Tensor:
        return loss_with(agent, adapt_parameters(agent, inner_loss, 0.5, before), meta_loss, after)

    value().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in agent.named_parameters()}  # type: ignore[union-attr]
    for name, parameter in agent.named_parameters():
        for index in range(min(parameter.numel(), 4)):
            step = torch.zeros_like(parameter).flatten()
            step[index] = 1e-5
            values = []
            for sign in (1, -1):
                parameter.data += sign * step.view_as(parameter)
                values.append(value().item())
                parameter.data -= sign * step.view_as(parameter)
            difference = (values[0] - values[1]) / 2e-5
            assert difference == pytest.approx(gradients[name].flatten()[index].item(), abs=1e-7), name


def _tanh_network(observations: Any, actions: Any) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layers(obs.to(self.layers[0].weight.dtype))

    return Net()


def test_the_baseline_fits_returns_that_are_linear_in_its_features() -> None:
    random = np.random.default_rng(0)
    obs, lengths = random.normal(size=(50, 2)), np.array([20, 30])
    time = np.concatenate([np.arange(20), np.arange(30)])
    returns = 3 * obs[:, 0] - obs[:, 1] ** 2 + 0.5 * time - 7
    assert np.allclose(linear_baseline(obs, lengths, returns), returns, atol=1e-2)
    tree = {"a": obs[:, :1], "b": obs[:, 1]}
    assert np.allclose(linear_baseline(tree, lengths, returns), returns, atol=1e-2)


# Plan


def test_every_shard_has_its_own_task_and_weights() -> None:
    maml = find_algorithm("maml")
    training = Training(maml, maml.settings(**SMALL))
    agent, cfg = training.agent, training.cfg
    with worker_compute_settings(), make_engine("inline") as engine:
        workers = training._spawn(engine)
        weights = UpdateWeights(training.learner, workers)
        weights.send(workers)
        adapt = partial(adapt_parameters, agent, inner_loss, cfg.inner_lr)
        plan = (
            parallel_rollouts(workers, training.rollouts)
            .for_each(FitBaseline(cfg.gamma))
            .gather_sync()
            .combine(InnerAdapt(weights, adapt))
            .for_each(lambda tasks: (weights.send(workers), tasks)[1])
        )
        iterations = list(plan.take(2))
    for number, tasks in enumerate(iterations):
        goals = PointGoals().sample_tasks(6, derive_seed(0, Purpose.TASKS, number))
        for goal, (before, after) in zip(goals, tasks, strict=True):
            for batch in (before, after):
                # The next observation is the new position, and the reward is minus its distance from the goal.
                inner_steps = np.setdiff1d(np.arange(len(batch["reward"]) - 1), np.cumsum(batch["length"]) - 1)
                distance = np.linalg.norm(batch["obs"][inner_steps + 1] - goal, axis=1)
                assert np.allclose(-distance, batch["reward"][inner_steps], atol=1e-5)
                assert batch["advantage"].mean() == pytest.approx(0, abs=1e-5)
            params = adapt([tensors_of(before)])
            for batch, weights_of_batch in ((before, dict(agent.named_parameters())), (after, params)):
                log_prob = loss_with(
                    agent, weights_of_batch, lambda agent, rows: agent.actor.log_prob(rows), tensors_of(batch)
                )
                assert np.allclose(log_prob.detach().numpy(), batch["log_prob"], atol=1e-5)
            assert not torch.equal(params["actor.network.1.weight"], agent.get_parameter("actor.network.1.weight"))


class NotePid(Callback):
    """Notes the process of the first worker."""

    def on_train_start(self, run: Any) -> None:
        training = run.training
        spawn = training._spawn

        def spawn_and_note(engine: Any) -> Any:
            workers = spawn(engine)
            self.pid = workers[0].call("pid").result(60)
            return workers

        training._spawn = spawn_and_note


def test_a_worker_killed_between_rounds_does_not_change_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    local = train("maml", engine="inline", **SMALL).summary
    assert local["timesteps"] > 0
    assert local["episodes"] == 2 * 12  # after adaptation
    adapt, callback, num_calls = InnerAdapt._adapted_weights, NotePid(), 0

    def kill_and_adapt(inner: InnerAdapt, task: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 9:  # in the second iteration
            os.kill(callback.pid, signal.SIGKILL)
        return adapt(inner, task)

    monkeypatch.setattr(InnerAdapt, "_adapted_weights", kill_and_adapt)
    killed = train("maml", callbacks=[callback], num_workers=2, **SMALL).summary
    assert num_calls == 12
    assert killed["weights_sha256"] == local["weights_sha256"]


@pytest.mark.parametrize("settings", [{"inner_steps": 2}, {"first_order": True}, {"network": "lstm"}], ids=str)
def test_settings_affect_the_weights(settings: dict[str, Any]) -> None:
    default = train("maml", engine="inline", **SMALL).summary["weights_sha256"]
    assert train("maml", engine="inline", **SMALL, **settings).summary["weights_sha256"] != default


@pytest.mark.parametrize(
    ("env", "problem"), [("pendulum", "needs an environment with tasks"), ("cartpole", "box actions")]
)
def test_unsupported_environments_are_refused(env: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        train("maml", env=env, engine="inline")


# Learning


def test_adaptation_improves_with_training() -> None:
    metrics = train("maml", env="point", engine="inline", iterations=12, lr=2e-3).metrics
    gains = [row["rollout/adaptation_gain"] for row in metrics]
    assert np.mean(gains[-3:]) > np.mean(gains[:2]) + 1
    assert metrics[-1]["rollout/iteration_rew_mean"] > metrics[0]["rollout/iteration_rew_mean"] + 3
