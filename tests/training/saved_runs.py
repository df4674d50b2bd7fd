"""Settings of small runs of every algorithm, and their checkpoints, for tests of resuming."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from raceway.checkpoints.encoding import differences, encode
from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.training.train import Training

SYNCHRONOUS: dict[str, dict[str, Any]] = {
    "reinforce cartpole": {"episodes_per_iter": 8, "num_envs": 8, "num_shards": 2},
    "a2c cartpole": {"num_envs": 8, "num_shards": 2, "normalise_obs": True, "scale_rewards": True},
    "ppo cartpole": {"num_envs": 8, "num_shards": 2, "fragment_steps": 16, "num_minibatches": 4, "num_epochs": 2},
    "dqn cartpole": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 4, "learning_starts": 100, "batch_size": 16, "n_step": 3,
        "buffer_size": 150, "target_every": 5, "steps_per_update": 16,
    },
    "maml point": {"num_envs": 8, "num_shards": 2},
    "maml cheetah-direction": {"num_envs": 4, "num_shards": 2, "env_kwargs": {"max_episode_steps": 30}},
    "reinforce HalfCheetah-v5": {
        "episodes_per_iter": 2, "num_envs": 2, "num_shards": 2, "env_kwargs": {"max_episode_steps": 40},
    },
    "a2c HalfCheetah-v5": {"num_envs": 4, "num_shards": 2, "env_kwargs": {"max_episode_steps": 60}},
    "ppo HalfCheetah-v5": {
        "num_envs": 4, "num_shards": 2, "fragment_steps": 25, "batch_steps": 100, "num_minibatches": 4, "num_epochs": 2,
        "env_kwargs": {"max_episode_steps": 60},
    },
}  # fmt: skip


ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "a3c": {"num_envs": 8, "num_shards": 2},
    "impala": {"num_envs": 8, "num_shards": 2},
    "apex": {
        "num_envs": 8, "num_shards": 2, "fragment_steps": 8, "learning_starts": 100, "batch_size": 16,
        "buffer_size": 2000, "steps_per_update": 16,
    },
}  # fmt: skip


def settings_of(name: str) -> tuple[str, dict[str, Any]]:
    algorithm, env = name.split()
    return algorithm, {"env": env, "seed": 3, "metrics_interval": 0.0, **SYNCHRONOUS[name]}


def last_checkpoint(run: str) -> Checkpoint:
    return Checkpoints(Path(run) / "checkpoints").find("latest")


def assert_same_state(first: str, second: str) -> None:
    """Check that the last checkpoints of two runs are identical, or list the differences."""
    states = [encode(last_checkpoint(run).state())[0] for run in (first, second)]
    assert list(differences(*states)) == []
    assert last_checkpoint(first).sha256 == last_checkpoint(second).sha256


def assert_state_restored(run: str, engine: str) -> None:
    """Resume a run, and check that its state is at once what was saved."""
    training, saved = Training.from_run(run, engine=engine), last_checkpoint(run).state()
    training.learner.restore(saved["learner"])
    training.exploration.restore(saved["exploration"])
    training.evaluator.restore(saved["evaluations"])
    with training.open_flow(run=True) as flow, flow.start(state=saved["flow"]) as running:
        restored = training._state(running)
    (doc, arrays), (restored_doc, restored_arrays) = encode(last_checkpoint(run).state()), encode(restored)
    # Workers of an asynchronous run, whose weights had several versions, are sent the newest.
    assert [line for line in differences(doc, restored_doc) if "/version: " not in line] == []
    assert arrays.keys() == restored_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, restored_arrays[name], name)
    assert sum(array.nbytes for array in arrays.values()) > 100


PROGRAM = "from raceway.cli import main; import sys; sys.exit(main(sys.argv[1:]))"


def command_options(settings: dict[str, Any]) -> list[str]:
    options = []
    for name, value in settings.items():
        options.append("--" + name.replace("_", "-"))
        options += (
            [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else [] if value is True else [str(value)]
        )
    return options


def start_command(*arguments: str) -> subprocess.Popen[str]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], **pipes)


HANGING_ENV = """
import time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    steps = 0
    def step(self, action):
        Hanging.steps += 1
        if Hanging.steps == 43:  # two environments, five steps per iteration
            Path("hangs").touch()
            time.sleep(1000)
        return super().step(action)

gymnasium.register("Hanging-v0", Hanging)
"""


class FailsOnce(CartPoleEnv):
    """Raises in its next step after `fails` is set."""

    fails = False

    def __init__(self, size: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.size = size
        assert isinstance(size, tuple)

    def step(self, action: Any) -> Any:
        if FailsOnce.fails:
            FailsOnce.fails = False
            raise RuntimeError("not again")
        return super().step(action)
