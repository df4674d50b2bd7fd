"""DD-PPO: PPO on the rows of all shards, whatever the number of workers, and workers that are killed."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError, RacewayError
from raceway.flow import injected
from raceway.ops import AllReduce
from raceway.ops.all_reduce import MinibatchGradient
from raceway.training.train import make_training, resume, train
from tests.training.multi_agent_runs import SPREAD
from tests.training.saved_runs import assert_same_state

SMALL: dict[str, Any] = {
    "env": "cartpole", "num_envs": 6, "num_shards": 3, "fragment_steps": 16, "hidden": (8,), "seed": 1, "lr": 1e-3,
    "gamma": 0.98, "lam": 0.9, "normalise_obs": True, "scale_rewards": True, "engine": "inline",
    "metrics_interval": 0.0, "progress": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("num_epochs", [1, 4])
def test_it_is_ppo_on_the_batches_of_all_shards(num_epochs: int) -> None:
    settings = {**SMALL, "num_epochs": num_epochs, "num_minibatches": 1, "total_timesteps": 500}
    group, ppo = (train(name, **settings) for name in ("ddppo", "ppo"))
    expected = ppo.policy.agent.weights()
    for name, array in group.policy.agent.weights().items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert group.returns == ppo.returns
    for found, other in zip(group.metrics, ppo.metrics, strict=True):
        assert found["time/total_timesteps"] == other["time/total_timesteps"]
        assert found["train/grad_norm"] == pytest.approx(other["train/grad_norm"], rel=1e-4)


def test_a_run_resumes_to_the_same_bytes_with_another_number_of_workers() -> None:
    settings = {**SMALL, "num_epochs": 2, "num_minibatches": 4, "total_timesteps": 576}
    train("ddppo", **settings, run_dir="whole")
    train("ddppo", **settings, run_dir="parts", iterations=2)
    summary = resume("parts", iterations=6, engine="process", num_workers=3, progress=False).summary
    assert (summary["resumed_at"], summary["timesteps"], summary["num_workers"]) == (192, 576, 3)
    assert_same_state("whole", "parts")


class Killer:
    """Kills a worker after some rounds of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
        self.rounds, self.kinds = rounds, list[list[bool]]()
        answer = AllReduce.__call__

        def kill(all_reduce: AllReduce, round: Any, *, envelope: Any = injected) -> Any:
            stats = answer(all_reduce, round, envelope=envelope)
            self.kinds.append([isinstance(part, MinibatchGradient) for part in round])
            if len(self.kinds) in self.rounds:
                pid = all_reduce.weights.workers[1].call("pid").result()
                os.kill(pid, signal.SIGKILL)
            return stats

        monkeypatch.setattr(AllReduce, "__call__", kill)


KILLED: dict[str, Any] = {
    **SMALL, "engine": "process", "num_workers": 2, "num_epochs": 2, "num_minibatches": 3, "check_every": 1,
}  # fmt: skip


@pytest.mark.parametrize("round", [3, 7], ids=["between two steps", "after the last step"])
def test_a_worker_that_is_killed_gets_the_weights_and_the_optimiser(
    round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of all shards are compared in every iteration, so a step with other moments would be an error."""
    killer = Killer(monkeypatch, round)
    summary = train("ddppo", **KILLED, iterations=4).summary
    assert (summary["iterations"], summary["worker_restarts"]) == (4, 1)
    mixed = [kinds for kinds in killer.kinds if len(set(kinds)) > 1]
    assert bool(mixed) == (round != 7), "the batch is lost if a step of it was to come"
    assert summary["timesteps"] == 4 * 96


def test_a_worker_that_is_killed_too_often_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Killer(monkeypatch, *range(1, 100))
    with pytest.raises(RacewayError, match=r"shard 1 of create.* failed and the restart budget is used up"):
        train("ddppo", **KILLED, iterations=20, max_restarts=2)


def test_several_agents_are_refused() -> None:
    algorithm = find_algorithm("ddppo")
    training = make_training(algorithm, algorithm.settings(env=SPREAD, num_envs=2))
    error = pytest.raises(ConfigError, match="cannot be trained on the workers, which several policies share")
    with error, training.open_flow(run=False):
        pass
