"""MAML: its mathematics by hand, each shard with its own task and weights, the same bytes everywhere, and a gain."""

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

from raceway.agents import Policy, make_policy
from raceway.algorithms import find_algorithm
from raceway.algorithms.maml import inner_loss, loss
from raceway.engine import make_engine
from raceway.envs import Purpose, seed_of
from raceway.envs.tasks import PointGoals
from raceway.errors import ConfigError
from raceway.learner.adaptation import adapted, loss_with
from raceway.learner.learner import tensors_of
from raceway.machine import as_in_a_worker
from raceway.ops import FitBaseline, InnerAdapt, UpdateWeights, parallel_rollouts
from raceway.rl import Batch, linear_baseline
from raceway.training.train import Training, train
from raceway.ui.display import Watcher

SMALL: dict[str, Any] = {"env": "point", "iterations": 2, "num_shards": 6, "num_envs": 12, "hidden": (16,)}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# The mathematics.


class Line(nn.Module):
    """w x, for a start."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))


def squares(line: Any, batch: Batch) -> torch.Tensor:
    return (line.w * batch["x"] - batch["y"]).square().mean()


def of(x: float, y: float) -> Batch:
    return {"x": torch.tensor([x], dtype=torch.float64), "y": torch.tensor([y], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("first_order", "wanted"),
    # w = 1, x = 2, y = 5, α = 0.1: the slope is 2 · 2 (2 - 5) = -12, so w' = 2.2, and the loss after it, (w' - 4)², has
    # a slope of -3.6 by w'. By w it is (1 - 0.1 · 8) of that, which first order leaves out.
    [(False, -0.72), (True, -3.6)],
)
def test_a_step_by_hand(first_order: bool, wanted: float) -> None:
    line: Any = Line(1.0)
    params = adapted(line, squares, 0.1, [of(2, 5)], first_order)
    assert params["w"].item() == pytest.approx(2.2)
    loss_with(line, params, squares, of(1, 4)).backward()
    assert line.w.grad.item() == pytest.approx(wanted)
    assert line.w.item() == 1


def test_two_steps_by_hand() -> None:
    line: Any = Line(1.0)
    params = adapted(line, squares, 0.1, [of(2, 5), of(1, 4)])
    assert params["w"].item() == pytest.approx(2.2 + 0.1 * 3.6)
    loss_with(line, params, squares, of(1, 0)).backward()
    assert line.w.grad.item() == pytest.approx(2 * 2.56 * (1 - 0.1 * 2) * (1 - 0.1 * 8))


def played(policy: Policy, random: np.random.Generator) -> Batch:
    """Return steps that were not quite drawn from the policy, as those of a later epoch are not."""
    batch = {
        "obs": random.normal(size=(30, 3)),
        "action": random.normal(size=(30, 2)),
        "advantage": random.normal(size=30),
        "length": np.array([10, 20]),
    }
    with torch.no_grad():
        batch["log_prob"] = policy.log_prob(batch).numpy() + 0.01 * random.normal(size=30)
    return tensors_of(batch)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_meta_gradient_is_that_of_finite_differences(num_steps: int) -> None:
    policy = make_policy(spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,)), _tanh, seed=0).double()
    random = np.random.default_rng(0)
    *before, after = [played(policy, random) for _ in range(num_steps + 1)]
    meta_loss = partial(loss, cfg=find_algorithm("maml").settings(clip=10.0))

    def value() -> torch.Tensor:
        return loss_with(policy, adapted(policy, inner_loss, 0.5, before), meta_loss, after)

    value().backward()
    slopes = {name: one.grad.clone() for name, one in policy.named_parameters()}  # type: ignore[union-attr]
    for name, one in policy.named_parameters():
        for place in range(min(one.numel(), 4)):
            step = torch.zeros_like(one).flatten()
            step[place] = 1e-5
            sides = []
            for sign in (1, -1):
                one.data += sign * step.view_as(one)
                sides.append(value().item())
                one.data -= sign * step.view_as(one)
            assert (sides[0] - sides[1]) / 2e-5 == pytest.approx(slopes[name].flatten()[place].item(), abs=1e-7), name


def _tanh(observations: Any, actions: Any) -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.layers(obs.to(self.layers[0].weight.dtype))

    return Net()


def test_the_baseline_finds_what_is_linear_in_its_features() -> None:
    random = np.random.default_rng(0)
    obs, lengths = random.normal(size=(50, 2)), np.array([20, 30])
    time = np.concatenate([np.arange(20), np.arange(30)])
    returns = 3 * obs[:, 0] - obs[:, 1] ** 2 + 0.5 * time - 7
    assert np.allclose(linear_baseline(obs, lengths, returns), returns, atol=1e-2)
    tree = {"a": obs[:, :1], "b": obs[:, 1]}
    assert np.allclose(linear_baseline(tree, lengths, returns), returns, atol=1e-2)


# The flow.


def test_every_shard_plays_its_task_with_its_own_weights() -> None:
    found = find_algorithm("maml")
    training = Training(found, found.settings(**SMALL))
    policy, cfg = training.policy, training.cfg
    with as_in_a_worker(), make_engine("inline") as engine:
        workers = training._spawn(engine)
        weights = UpdateWeights(training.learner, workers)
        weights.send(workers)
        adapt = partial(adapted, policy, inner_loss, cfg.inner_lr)
        plan = (
            parallel_rollouts(workers, training.rollouts)
            .for_each(FitBaseline(cfg.gamma))
            .gather_sync()
            .combine(InnerAdapt(weights, adapt))
            .for_each(lambda tasks: (weights.send(workers), tasks)[1])
        )
        iterations = list(plan.take(2))
    for number, tasks in enumerate(iterations):
        goals = PointGoals().sample_tasks(6, seed_of(0, Purpose.TASKS, number))
        for goal, (before, after) in zip(goals, tasks, strict=True):
            for batch in (before, after):
                # What is seen next is where the step went, and the reward is minus how far from the goal that is.
                within = np.setdiff1d(np.arange(len(batch["reward"]) - 1), np.cumsum(batch["length"]) - 1)
                away = np.linalg.norm(batch["obs"][within + 1] - goal, axis=1)
                assert np.allclose(-away, batch["reward"][within], atol=1e-5)
                assert batch["advantage"].mean() == pytest.approx(0, abs=1e-5)
            params = adapt([tensors_of(before)])
            for batch, with_ in ((before, dict(policy.named_parameters())), (after, params)):
                log_prob = loss_with(policy, with_, lambda policy, rows: policy.log_prob(rows), tensors_of(batch))
                assert np.allclose(log_prob.detach().numpy(), batch["log_prob"], atol=1e-5)
            assert not torch.equal(params["network.1.weight"], policy.get_parameter("network.1.weight"))


def test_the_weights_do_not_depend_on_the_workers() -> None:
    local = train("maml", engine="inline", **SMALL).summary
    assert local["timesteps"] > 0
    assert local["episodes"] == 2 * 12  # after adapting
    for settings in ({"engine": "inline", "num_workers": 3}, {"num_workers": 2}, {"num_workers": 4}):
        assert train("maml", **settings, **SMALL).summary["weights_sha256"] == local["weights_sha256"], settings


def test_the_weights_are_the_same_on_ray(ray_session: None) -> None:
    local = train("maml", engine="inline", **SMALL).summary["weights_sha256"]
    assert train("maml", engine="ray", num_workers=2, **SMALL).summary["weights_sha256"] == local


class Pid(Watcher):
    """Notes the process of the first worker."""

    def begin(self, training: Any, path: Path) -> None:
        spawn = training._spawn

        def spawned(engine: Any) -> Any:
            workers = spawn(engine)
            self.found = workers[0].call("pid").result(60)
            return workers

        training._spawn = spawned


def test_a_worker_that_is_killed_between_rounds_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    local = train("maml", engine="inline", **SMALL).summary["weights_sha256"]
    adapt, worker, times = InnerAdapt._adapted, Pid(), 0

    def adapted_and_killed(inner: InnerAdapt, task: Any) -> Any:
        nonlocal times
        times += 1
        if times == 9:  # in the second iteration
            os.kill(worker.found, signal.SIGKILL)
        return adapt(inner, task)

    monkeypatch.setattr(InnerAdapt, "_adapted", adapted_and_killed)
    killed = train("maml", watchers=[worker], num_workers=2, **SMALL).summary
    assert times == 12
    assert killed["weights_sha256"] == local


@pytest.mark.parametrize("settings", [{"inner_steps": 2}, {"first_order": True}, {"network": "lstm"}], ids=str)
def test_other_settings_give_other_weights(settings: dict[str, Any]) -> None:
    usual = train("maml", engine="inline", **SMALL).summary["weights_sha256"]
    assert train("maml", engine="inline", **SMALL, **settings).summary["weights_sha256"] != usual


@pytest.mark.parametrize(("env", "problem"), [("pendulum", "environments of tasks"), ("cartpole", "box actions")])
def test_environments_that_it_is_not_for_are_refused(env: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        train("maml", env=env, engine="inline")


# What is learned.


def test_it_learns_to_adapt() -> None:
    metrics = train("maml", env="point", engine="inline", iterations=12, lr=2e-3).metrics
    gains = [row["rollout/adaptation_gain"] for row in metrics]
    assert np.mean(gains[-3:]) > np.mean(gains[:2]) + 1
    assert metrics[-1]["rollout/iteration_rew_mean"] > metrics[0]["rollout/iteration_rew_mean"] + 3
