"""What a learner recomputes is what acting computed, as long as no update changes the weights.

Learning rates are so small here that none does, so that all fragments of a run can be compared, not only the first,
which begin with the initial state.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.agents import Policy, QAgent, copy_weights
from raceway.algorithms import algorithm_names, find_algorithm
from raceway.rl import Batch
from raceway.training.train import Training, make_training, resume, train
from tests.catalogue.recurrent_envs import UniqueParallel, UniqueTurns

RECURRENT = [name for name in algorithm_names() if find_algorithm(name).recurrent]
SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": {"episodes_per_iter": 12, "num_shards": 2, "num_envs": 4},
    "maml": {"num_shards": 2, "num_envs": 4, "env_kwargs": {"continuous": True}},
    "ppo": {"fragment_steps": 10, "num_epochs": 1, "num_minibatches": 1},
    "a2c": {"fragment_steps": 10},
    "a3c": {"fragment_steps": 10},
    "impala": {"fragment_steps": 10, "batch_steps": 40},
    "appo": {"fragment_steps": 10, "batch_steps": 40},
    "impact": {"fragment_steps": 10, "batch_steps": 40, "num_batches": 2},
    "dqn": {
        "fragment_steps": 2,
        "sequence_steps": 8,
        "burn_in": 4,
        "n_step": 3,
        "learning_starts": 50,
        "batch_size": 64,
    },
}
SETTINGS["double_dqn"] = SETTINGS["dqn"]
SETTINGS["r2d2"] = {**SETTINGS["dqn"], "steps_per_update": 4.0}


def rows_of(obs: Any) -> Any:
    """Return what identifies the rows of observations, which may have the last action and reward beside it."""
    return obs["observation"] if isinstance(obs, dict) else obs


class Recorder:
    """Records what policies compute: for acting, and for losses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acted: dict[bytes, np.ndarray] = {}
        self.recomputed: list[tuple[bytes, np.ndarray]] = []
        self._in_q_values = False
        outputs = Policy.outputs

        def acting(policy: Policy, obs: Any, state: Any) -> Any:
            params, state = outputs(policy, obs, state)
            for row, output in zip(rows_of(obs), params, strict=True):
                # Slots that have finished keep their last observation: the first time counts.
                self.acted.setdefault(row.tobytes(), output.copy())
            return params, state

        monkeypatch.setattr(Policy, "outputs", acting)
        monkeypatch.setattr(Policy, "params_of_features", self._recording(Policy.params_of_features))
        monkeypatch.setattr(QAgent, "q_values", self._of_trained_steps("obs", QAgent.q_values))
        monkeypatch.setattr(QAgent, "next_q_values", self._of_trained_steps("next_obs", QAgent.next_q_values))
        names = ("obs", "next_obs", "next_obs")
        monkeypatch.setattr(QAgent, "sequence_q_values", self._of_trained_steps(names, QAgent.sequence_q_values))

    def _record(self, obs: Any, params: Tensor) -> None:
        rows = zip(rows_of(obs).detach().numpy(), params.detach().numpy(), strict=True)
        self.recomputed += [(row.tobytes(), output.copy()) for row, output in rows]

    def _recording(self, params_of_features: Any) -> Any:
        def recording(policy: Policy, features: Tensor, obs: Any) -> Tensor:
            params: Tensor = params_of_features(policy, features, obs)
            if not self._in_q_values:
                self._record(obs, params)
            return params

        return recording

    def _of_trained_steps(self, names: str | tuple[str, ...], q_values: Any) -> Any:
        """Record the Q-values that a loss uses: not of burn-in, nor of what follows the end of an episode."""

        def recording(agent: QAgent, batch: Batch) -> Any:
            self._in_q_values = True
            results = q_values(agent, batch)
            self._in_q_values = False
            for name, result in [(names, results)] if isinstance(names, str) else zip(names, results, strict=True):
                used = batch["mask"] & (batch["discount"] > 0) if name == "next_obs" else batch["mask"]
                self._record(rows_of(batch[name])[used], result[used])
            return results

        return recording

    def check(self) -> None:
        """Compare the outputs. Final observations of episodes are recomputed, but nothing acted on them."""
        pairs = [(self.acted[key], output) for key, output in self.recomputed if key in self.acted]
        assert len({key for key, _ in self.recomputed} & self.acted.keys()) >= 60
        acted, recomputed = map(np.array, zip(*pairs, strict=True))
        np.testing.assert_allclose(recomputed, acted, atol=1e-5)


def strengthen(agent: Any) -> None:
    """Make the weights larger, so that the recurrent state matters."""
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter *= 3


@pytest.mark.parametrize("network", ["lstm", "gru"])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_learner_recomputes_what_acting_computed(name: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_recomputed(name, network, monkeypatch)


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_without_burn_in_it_starts_from_the_stored_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_recomputed(name, "lstm", monkeypatch, sequence_steps=4, burn_in=0)


def check_recomputed(name: str, network: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    common = {"num_envs": 4, "num_shards": 2, "hidden": (6,), "engine": "inline", "lr": 1e-30}
    settings = {**common, **SETTINGS[name], **more, "env": "tests.catalogue.recurrent_envs:UniqueSteps-v0"}
    algorithm, recorder = find_algorithm(name), Recorder(monkeypatch)
    cfg = algorithm.settings(network=network, total_timesteps=150, **settings)
    training = Training(algorithm, cfg)
    strengthen(training.agent)
    before = copy_weights(training.agent.weights())
    summary = training.run().summary
    assert summary["iterations"] > 1
    for part, array in training.agent.weights().items():
        np.testing.assert_allclose(array, before[part], rtol=0, atol=1e-20)
    recorder.check()


@pytest.mark.parametrize("env", [UniqueParallel, UniqueTurns])
@pytest.mark.parametrize("name", sorted(set(RECURRENT) - {"reinforce", "maml"}))
def test_with_several_agents_too(
    name: str, env: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder = Recorder(monkeypatch)
    settings = {"num_envs": 4, "num_shards": 2, "engine": "inline", "total_timesteps": 300, **SETTINGS[name]}
    settings["last_action_and_reward"] = False  # of one agent
    algorithm = find_algorithm(name)
    cfg = algorithm.settings(env=env, network="lstm", hidden=(6,), lr=1e-30, run_dir=tmp_path / "run", **settings)
    training = make_training(algorithm, cfg, policies={"all": {"agents": ["*"]}})
    strengthen(training.policies["all"].agent)
    training.run()
    recorder.check()


QUICK: dict[str, Any] = {
    "env": "cartpole-positions", "network": "lstm", "hidden": (8,), "num_envs": 4, "num_shards": 2, "fragment_steps": 2,
    "sequence_steps": 6, "burn_in": 2, "n_step": 2, "learning_starts": 40, "steps_per_update": 8, "target_every": 3,
    "batch_size": 32, "lr_end": None, "total_timesteps": 160, "progress": False,
}  # fmt: skip


def weights_after(**settings: Any) -> str:
    """Return the hash of DQN's weights after a short run."""
    return str(train("dqn", **{**QUICK, **settings}).summary["weights_sha256"])


@pytest.fixture(scope="module")
def expected_weights() -> str:
    return weights_after(engine="inline")


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "process", "num_workers": 2},
        {"engine": "inline", "learner_on": "thread"},
        {"engine": "process", "num_workers": 1, "learner_on": "actor"},
    ],
    ids=str,
)
def test_weights_do_not_depend_on_engine_workers_and_place(settings: dict[str, Any], expected_weights: str) -> None:
    assert weights_after(**settings) == expected_weights


@pytest.mark.parametrize("steps", [24, 104], ids=["before the first sequence", "later"])
def test_a_run_resumes_exactly(steps: int, expected_weights: str, tmp_path: Path) -> None:
    train("dqn", **{**QUICK, "engine": "inline", "run_dir": tmp_path / "run", "total_timesteps": steps})
    summary = resume(tmp_path / "run", total_timesteps=QUICK["total_timesteps"], progress=False).summary
    assert summary["resumed_at"] == steps
    assert summary["weights_sha256"] == expected_weights
