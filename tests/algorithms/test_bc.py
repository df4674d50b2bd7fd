"""BC: maximum likelihood for every kind of action, the same bytes wherever it runs, and exact resumption."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from raceway.agents import Agent, Spaces, build_agent
from raceway.agents.builders import actor
from raceway.algorithms.bc import Config, loss
from raceway.loaded_policy import load
from raceway.rl import Batch
from raceway.runs.recorder import Result
from raceway.training.train import Training, resume, train
from raceway.ui.callback import Callback

QUICK = {"engine": "inline", "hidden": (8,), "batch_size": 16, "progress": False, "save_seconds": 0}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fit(action_space: spaces.Space, actions: Any, dtype: Any, steps: int = 400) -> tuple[Agent, Batch]:
    """Train on these actions in two states, one-hot: without hidden layers, a table of distributions."""
    cfg = Config(hidden=(), lr=0.1)
    agent = build_agent(actor, Spaces(spaces.Box(0, 1, (2,)), action_space), cfg)
    states = np.eye(2, dtype=np.float32)[np.arange(len(actions)) % 2]
    batch = {"obs": states, "action": np.array(actions, dtype), "reward": np.zeros(len(actions), np.float32)}
    learner = cfg.learner(agent)
    for _ in range(steps):
        learner.train(loss, batch)
    return agent, batch


def params(agent: Agent) -> torch.Tensor:
    """Return the parameters of the distribution in both states, [2, size]."""
    return agent.actor(torch.eye(2), {})[0].detach()


def test_the_loss_by_hand() -> None:
    agent, batch = fit(spaces.Discrete(2), [0, 1, 1, 1], np.int64, steps=0)
    logits = params(agent)[[0, 1, 0, 1]]
    expected = -np.mean([float(row.log_softmax(0)[action]) for row, action in zip(logits, [0, 1, 1, 1], strict=True)])
    rows = {name: torch.from_numpy(column) for name, column in batch.items()}
    assert loss(agent, rows).item() == pytest.approx(expected, abs=1e-6)


def test_discrete_actions_get_their_frequencies() -> None:
    """In the first state 0, 0, 2, and in the second 1, 2, 1."""
    agent, _ = fit(spaces.Discrete(3), [0, 1, 0, 2, 2, 1], np.int64)
    np.testing.assert_allclose(params(agent).softmax(-1), [[2 / 3, 0, 1 / 3], [0, 2 / 3, 1 / 3]], atol=0.02)


def test_each_of_several_discrete_actions_gets_its_frequencies() -> None:
    actions = [[0, 2], [1, 0], [0, 1], [1, 0], [1, 1], [1, 0], [0, 1], [1, 0]]
    agent, _ = fit(spaces.MultiDiscrete([2, 3]), actions, np.int64)
    first, second = params(agent)[:, :2].softmax(-1), params(agent)[:, 2:].softmax(-1)
    np.testing.assert_allclose(first, [[0.75, 0.25], [0, 1]], atol=0.02)
    np.testing.assert_allclose(second, [[0, 0.75, 0.25], [1, 0, 0]], atol=0.02)


def test_continuous_actions_get_their_mean_and_deviation() -> None:
    """The deviation is the same in both states: that of all actions around the means of their states."""
    agent, _ = fit(spaces.Box(-9, 9, (1,)), [[1.0], [5.0], [2.0], [5.5], [3.0], [6.0]], np.float32, steps=1500)
    np.testing.assert_allclose(params(agent)[:, 0], [2.0, 5.5], atol=0.02)
    deviation = np.sqrt(np.mean([1, 0, 1, 0.25, 0, 0.25]))
    np.testing.assert_allclose(params(agent)[:, 1].exp(), [deviation] * 2, atol=0.02)


def test_a_run_follows_the_dataset(cartpole_dataset: str) -> None:
    """The loss falls to less than that of random actions if each minibatch is the whole, small dataset."""
    result = train("bc", dataset=cartpole_dataset, **{**QUICK, "hidden": (64, 64), "batch_size": 200, "lr": 1e-2},
                   total_updates=300, metrics_interval=0)  # fmt: skip
    losses = [row["train/loss"] for row in result.metrics]
    assert losses[0] == pytest.approx(np.log(2), abs=0.05)
    assert losses[-1] < 0.5


def test_the_learning_rate_follows_the_updates() -> None:
    """Not the steps of the dataset, nor the number of minibatches."""
    cfg = Config(hidden=(), lr=1.0, lr_end=0.0, total_updates=10)
    learner = cfg.learner(build_agent(actor, Spaces(spaces.Box(0, 1, (2,)), spaces.Discrete(2)), cfg))
    batch = {"obs": np.eye(2, dtype=np.float32), "action": np.zeros(2, np.int64), "reward": np.zeros(2, np.float32)}
    rates = []
    for _ in range(4):
        learner.train(loss, batch, num_epochs=3)
        rates.append(learner.optimiser.lr)
    assert rates == pytest.approx([1.0, 0.7, 0.4, 0.1])


def run(dataset: str, name: str, **settings: Any) -> Result:
    return train("bc", dataset=dataset, run_dir=name, **{**QUICK, "num_shards": 3, "seed": 4, **settings})


def test_bytes_depend_neither_on_engine_nor_readers_nor_on_the_place_of_the_learner(cartpole_dataset: str) -> None:
    inline = run(cartpole_dataset, "inline", total_updates=9).summary
    processes = run(cartpole_dataset, "processes", total_updates=9, engine="process", num_workers=2).summary
    assert (inline["num_workers"], processes["num_workers"]) == (0, 2)
    assert processes["state_sha256"] == inline["state_sha256"]
    for place in ("thread", "actor"):
        placed = run(cartpole_dataset, place, total_updates=9, learner_on=place, eval_every=4, eval_episodes=1)
        assert placed.summary["weights_sha256"] == inline["weights_sha256"] == placed.policy.sha256()
        assert placed.metrics[-1]["time/total_updates"] == 9


def test_a_reader_that_dies_is_restarted_and_loses_nothing(
    cartpole_dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KillReader(Callback):
        def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
            if metrics["time/iterations"] == 3:
                workers[0].engine.kill(workers[0])

    workers: list[Any] = []
    spawn = Training._spawn
    monkeypatch.setattr(Training, "_spawn", lambda *args: workers.extend(spawn(*args)) or workers)
    settings = {"total_updates": 8, "num_shards": 1, "metrics_interval": 0}
    killed = run(cartpole_dataset, "killed", **settings, engine="process", num_workers=1, callbacks=[KillReader()])
    assert killed.metrics[-1]["dataset/worker_restarts"] == killed.summary["worker_restarts"] == 1
    workers.clear()
    assert killed.summary["weights_sha256"] == run(cartpole_dataset, "whole", **settings).summary["weights_sha256"]


def test_a_run_resumes_exactly_in_mid_epoch(cartpole_dataset: str) -> None:
    """Also with another number of readers. The learning rate follows the updates."""
    settings = {"total_updates": 11, "lr_end": 0.0, "eval_every": 3, "eval_episodes": 1}
    whole = run(cartpole_dataset, "whole", **settings)
    assert whole.summary["eval_mean_return"] is not None
    first = run(cartpole_dataset, "parts", **settings, iterations=5)
    assert first.metrics[-1]["dataset/epoch"] % 1 > 0
    resumed = resume("parts", iterations=None, num_workers=2, engine="process", progress=False).summary
    assert (first.summary["updates"], resumed["resumed_at"], resumed["updates"]) == (5, 5, 11)
    assert resumed["stopped_by"] == "total_updates"
    assert resumed["state_sha256"] == whole.summary["state_sha256"]


def test_a_policy_is_loaded_evaluated_and_exported(cartpole_dataset: str) -> None:
    result = run(cartpole_dataset, "run", total_updates=3)
    policy = load("run")
    assert (policy.about["algorithm"], policy.about["env"], policy.about["steps"]) == ("bc", "CartPole-v1", 3)
    assert policy.sha256() == result.summary["weights_sha256"]
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.act(obs), result.policy.act(obs))
    np.testing.assert_array_equal(policy.evaluate(2).returns, result.policy.evaluate(2).returns)
    module = torch.export.load(policy.export_torch("policy.pt2")).module()
    np.testing.assert_array_equal(module({"obs": torch.from_numpy(obs)})[0], policy.act(obs))
