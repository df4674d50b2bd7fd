"""Members of a learner: parts of every minibatch, whose gradients make the same step wherever they are computed."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raceway.algorithms import find_algorithm
from raceway.engine import make_engine
from raceway.engine.base import Engine
from raceway.errors import ConfigError, RestartsExhausted
from raceway.learner.learner import Learner
from raceway.learner.members import Member, Members, split_minibatch
from raceway.rl import Batch
from raceway.training.train import Training, train

SETTINGS: dict[str, Any] = {
    "env": "cartpole", "num_envs": 6, "num_shards": 2, "fragment_steps": 8, "hidden": (8,), "seed": 1,
    "engine": "inline", "metrics_interval": 0.0,
}  # fmt: skip
PPO: dict[str, Any] = {**SETTINGS, "num_epochs": 2, "num_minibatches": 3, "normalise_obs": True}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary(name: str, **settings: Any) -> dict[str, Any]:
    """Train for three iterations, and return the summary."""
    found: dict[str, Any] = train(name, iterations=3, progress=False, **settings).summary
    return found


# Parts.


def test_rows_are_split_in_order() -> None:
    rows = {"obs": {"a": torch.arange(10).view(5, 2)}, "action": torch.arange(5)}
    parts = split_minibatch(rows, 3)
    assert [part.batch["action"].tolist() for part in parts] == [[0], [1, 2], [3, 4]]
    assert [part.batch["obs"]["a"][0, 0].item() for part in parts] == [0, 2, 6]
    assert [part.weight for part in parts] == [1, 2, 2]
    assert [part.weight for part in split_minibatch(rows, 9)] == [1] * 5


def test_segments_stay_whole() -> None:
    rows = {
        "action": torch.arange(7), "segment": torch.tensor([4, 1, 2]), "state": {"h": torch.tensor([[0], [1], [2]])}
    }  # fmt: skip
    parts = split_minibatch(rows, 2)
    assert [part.batch["segment"].tolist() for part in parts] == [[4], [1, 2]]
    assert [part.batch["action"].tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [part.batch["state"]["h"].tolist() for part in parts] == [[[0]], [[1], [2]]]
    assert [part.weight for part in parts] == [4, 3]


def test_fragments_are_split_by_slots_and_weighted_by_valid_steps() -> None:
    fragment = {
        "action": torch.arange(6).view(2, 3), "ended": torch.zeros(2, 3), "last_obs": torch.arange(3),
        "valid": torch.tensor([[True, True, False], [True, True, True]]), "state": {"h": torch.arange(3)},
    }  # fmt: skip
    parts = split_minibatch(fragment, 2)
    assert [part.batch["action"].tolist() for part in parts] == [[[0], [3]], [[1, 2], [4, 5]]]
    assert [part.batch["last_obs"].tolist() for part in parts] == [[0], [1, 2]]
    assert [part.batch["state"]["h"].tolist() for part in parts] == [[0], [1, 2]]
    assert [part.weight for part in parts] == [2, 3]


# Steps.


def batch_of(name: str, **settings: Any) -> tuple[Training, Any, Batch]:
    """Return a training, its loss, and the first batch that its learner gets."""
    algorithm = find_algorithm(name)
    training = Training(algorithm, algorithm.settings(**{**SETTINGS, **settings}))
    batches: list[Batch] = []
    learn = training.learner.train

    def keep(objectives: Any, batch: Batch, *arguments: Any) -> Any:
        batches.append(batch)
        return learn(objectives, batch, *arguments)

    training.learner.train = keep  # type: ignore[method-assign]
    with training.open_flow(run=True) as flow:
        next(flow)
    return training, partial(find_module(name).loss, cfg=training.cfg), batches[0]


def find_module(name: str) -> Any:
    from importlib import import_module

    return import_module(f"raceway.algorithms.{name}")


def members(engine: Engine, num: int, training: Training, loss: Any) -> Members:
    arguments = training.cfg.learner, training.agent, loss
    return Members([engine.spawn(Member, arguments, name=f"learner-{index}") for index in range(num)], loss, 600)


@pytest.mark.parametrize("network", ["mlp", "lstm"])
@pytest.mark.parametrize(("name", "settings"), [("ppo", {"num_minibatches": 1, "num_epochs": 1}), ("impala", {})])
def test_the_number_of_members_changes_only_the_rounding(name: str, settings: dict, network: str) -> None:
    """After one step, whose gradient is clipped."""
    training, loss, batch = batch_of(name, network=network, **settings)
    expected, expected_metrics = None, {}
    for num in (1, 2, 3, 7):
        with make_engine("inline") as engine:
            agent = training.rollouts.make_agent(training.spaces)
            learner: Learner = training.cfg.learner(agent)
            group = None if num == 1 else members(engine, num, training, loss)
            metrics = learner.train(loss, batch, members=group).metrics
        weights = agent.weights()
        expected, expected_metrics = expected or weights, expected_metrics or metrics
        assert metrics.keys() == expected_metrics.keys()
        for key, value in metrics.items():
            assert value == pytest.approx(expected_metrics[key], rel=1e-4, abs=1e-5), key
        for key, array in weights.items():
            np.testing.assert_allclose(array, expected[key], atol=1e-6, err_msg=key)


def test_where_members_run_does_not_change_the_bytes() -> None:
    places: list[dict[str, Any]] = [{"num_learners": 1}, {}, {"engine": "process", "num_workers": 2}]
    alone, inline, in_processes = (
        summary("ppo", **{**PPO, "num_learners": 3, **place})["state_sha256"] for place in places
    )
    assert alone != inline == in_processes


def test_impala_has_members_on_a_thread_too() -> None:
    for place in ("driver", "thread"):
        run = summary("impala", **SETTINGS, num_learners=2, batch_steps=48, learner_on=place)
        assert run["iterations"] == 3


def test_a_member_that_is_killed_is_restarted_and_called_again() -> None:
    training, loss, batch = batch_of("ppo")
    hashes = []
    for killed in (False, True):
        with make_engine("process") as engine:
            agent = training.rollouts.make_agent(training.spaces)
            learner: Learner = training.cfg.learner(agent)
            group = members(engine, 2, training, loss)
            for _ in range(2):
                learner.train(loss, batch, num_minibatches=2, members=group)
                if killed:
                    assert group.actors[1].pid is not None
                    os.kill(group.actors[1].pid, signal.SIGKILL)
            learner.train(loss, batch, members=group)
            assert group.actors[1].incarnation == 2 * killed
            hashes.append(agent.sha256())
    assert hashes[0] == hashes[1]


def test_a_member_that_always_dies_ends_the_run() -> None:
    training, loss, batch = batch_of("ppo")
    with make_engine("process") as engine:
        group = members(engine, 1, training, die)
        with pytest.raises(RestartsExhausted, match="learner-0"):
            training.cfg.learner(training.agent).train(loss, batch, members=group)


def die(*_: Any) -> None:
    """Kill the process, as running out of memory does."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_members_are_part_of_the_plan() -> None:
    algorithm = find_algorithm("ppo")
    with Training(algorithm, algorithm.settings(**PPO, num_learners=2)).open_flow(run=False) as flow:
        assert "learner-0, learner-1" in flow.explain()


def test_a_learner_on_an_actor_has_no_members() -> None:
    with pytest.raises(ConfigError, match="num_learners 2 has the gradients computed by actors"):
        summary("impala", **SETTINGS, num_learners=2, learner_on="actor")
