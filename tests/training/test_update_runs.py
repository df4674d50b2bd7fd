"""Runs that learn from a dataset: what they count and report, the commands that read them, and bad input."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.checkpoints.store import Checkpoints
from raceway.cli import main
from raceway.datasets.folder import DatasetWriter
from raceway.errors import ConfigError, DatasetError, OperatorError, ShardFailed
from raceway.training.train import resume, train
from raceway.ui.terminal_display import LiveDisplay
from tests.commands.run_seeds import texts_in
from tests.odd_envs import Odd
from tests.recorded_episodes import record_random

QUICK = {"engine": "inline", "hidden": (8,), "batch_size": 16, "progress": False, "metrics_interval": 0}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bc(dataset: str | Path | None, **settings: Any) -> Any:
    return train("bc", dataset=dataset, **{**QUICK, **settings})


def test_rows_and_summary_count_updates(cartpole_dataset: str) -> None:
    result = bc(cartpole_dataset, total_updates=6, eval_every=3, eval_episodes=2, save_every=2, run_dir="run")
    assert [row["time/total_updates"] for row in result.metrics] == [1, 2, 3, 4, 5, 6]
    names = set().union(*result.metrics)
    assert {"train/loss", "eval/mean_reward", "dataset/epoch", "time/updates_per_second"} <= names
    assert not {name for name in names if name.startswith(("rollout/", "env/", "time/total_timesteps"))}
    assert [row["time/total_updates"] for row in result.metrics if "eval/mean_reward" in row] == [3, 6]
    assert [entry.about["steps"] for entry in Checkpoints(Path("run/checkpoints")).all()] == [3, 4, 6]  # 3 is the best
    summary = result.summary
    assert (summary["updates"], summary["timesteps"], summary["fps"], summary["mean_return"]) == (6, 0, None, None)
    assert summary["eval_mean_return"] == result.metrics[-1]["eval/mean_reward"]
    assert summary["stopped_by"] == "total_updates"
    assert repr(result) == "<result of bc on CartPole-v1, no return after 6 updates, in run>"
    assert result.returns == []


def test_the_environment_and_its_arguments_are_those_of_the_dataset(tmp_path: Path) -> None:
    record_random(tmp_path / "data", "Pendulum-v1", 2, env_kwargs={"g": 5.0})
    result = bc("data", total_updates=1, run_dir="run")
    config = json.loads(Path("run/config.json").read_text())["config"]
    assert (config["env"], config["env_kwargs"], config["dataset"]) == (
        "Pendulum-v1",
        {"g": 5.0},
        str(tmp_path / "data"),
    )
    assert result.policy.env_settings().kwargs == {"g": 5.0}


def test_commands_read_such_runs(cartpole_dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        bc(cartpole_dataset, total_updates=4, eval_every=2, eval_episodes=1, run_dir=f"runs/{seed}", seed=seed)
    assert main(["list", "--runs", "runs"]) == 0
    assert "bc         CartPole-v1     0  4 updates" in capsys.readouterr().out
    assert main(["plot", "runs", "--out", "plot.svg"]) == 0
    assert {"updates (gradient steps)", "mean return of evaluations", "bc (2 seeds)"} <= set(texts_in("plot.svg"))
    assert main(["compare", "runs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["metric"] == "eval/mean_reward"
    assert report["envs"]["CartPole-v1"]["groups"]["bc"]["seeds"] == [0, 1]
    assert main(["eval", "runs/0", "--episodes", "2"]) == 0
    assert "bc on CartPole-v1, after 4 updates of training" in capsys.readouterr().out
    train("a2c", env="cartpole", iterations=1, run_dir="runs/other", engine="inline", progress=False)
    assert main(["plot", "runs", "--y", "train/loss"]) == 1
    assert "these runs count different things: bc updates (gradient steps), a2c environment" in capsys.readouterr().err
    assert main(["plot", "runs", "--y", "train/loss", "--x", "time"]) == 0


@pytest.mark.parametrize("settings", [{"policies": "shared"}, {"env": "pettingzoo:mpe2.simple_spread_v3"}])
def test_several_agents_are_refused(cartpole_dataset: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="bc does not learn from rollouts, which the policies of several"):
        bc(cartpole_dataset, total_updates=1, **settings)


def test_a_plan_is_analysed_without_a_budget(cartpole_dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "bc", "--dataset", cartpole_dataset, "--analyze", "--seconds", "0.1", "--local"]) == 0
    assert "for_each(TrainOneStep)" in capsys.readouterr().out
    assert main(["explain", "bc", "--analyze", "--local"]) == 1
    assert "there is no dataset to learn from" in capsys.readouterr().err


def test_seeds_are_compared_by_their_evaluations(cartpole_dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "bc", "--dataset", cartpole_dataset, "--total-updates", "1", "--plot", "--local"]) == 0
    assert "There is no plot: no episode ended, and there was no evaluation" in capsys.readouterr().out
    options = ["--total-updates", "3", "--eval-every", "3", "--eval-episodes", "1", "--local", "--json"]
    assert main(["train", "bc", "--dataset", cartpole_dataset, "--seeds", "2", "--run-dir", "runs", *options]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert "bc on CartPole-v1, 2 seeds, Mean Reward of the last evaluation:" in lines
    assert "Evaluation at 3 updates" in "".join(lines)
    assert "  Total updates: 3" in lines
    summary = json.loads(last)
    evaluations = [
        json.loads(Path(f"runs/seed-{seed}/summary.json").read_text())["eval_mean_return"] for seed in (0, 1)
    ]
    assert summary["mean_returns"] == evaluations


def test_the_live_display(cartpole_dataset: str) -> None:
    from rich.console import Console

    console = Console(force_terminal=True, record=True, width=120)
    bc(cartpole_dataset, total_updates=4, eval_every=2, eval_episodes=1, callbacks=[LiveDisplay(console)])
    text = console.export_text()
    assert "Updates: 4 (" in text
    assert "Last evaluation:" in text


def test_a_dataset_that_moved_is_named_again(tmp_path: Path, cartpole_dataset: str) -> None:
    record_random(tmp_path / "data", "CartPole-v1", 2)
    bc("data", total_updates=2, run_dir="run")
    Path("data").rename("moved")
    with pytest.raises(DatasetError, match="there is no such file or directory"):
        resume("run", total_updates=3, progress=False)
    assert resume("run", total_updates=3, dataset="moved", progress=False).summary["updates"] == 3
    with pytest.raises(ShardFailed, match="cannot be continued: its dataset was"):
        resume("run", total_updates=4, dataset=cartpole_dataset, progress=False)


# Bad input.


def test_options_of_rollouts_are_unknown(cartpole_dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint = "This algorithm counts updates (gradient steps): use total_updates."
    for option, suggestion in (("--total-timesteps", hint), ("--num-envs", None), ("--gamma", None),
                               ("--fragment-steps", None), ("--stop-return", None), ("--info-keys", None)):  # fmt: skip
        with pytest.raises(SystemExit):
            main(["train", "bc", "--dataset", cartpole_dataset, option, "5"])
        error = capsys.readouterr().err
        assert f"unknown option '{option}'" in error
        assert suggestion is None or suggestion in error
    with pytest.raises(ConfigError, match="unknown setting of bc 'total_timesteps'"):
        bc(cartpole_dataset, total_timesteps=5)


@pytest.mark.parametrize(("settings", "message"), [
    ({"dataset": None, "total_updates": 1}, r"no dataset to learn from\. Pass one: --dataset RUN"),
    ({}, r"no end of its own\. Pass --total-updates N"),
    ({"total_updates": 0}, "total_updates must be a whole number from 1, not 0"),
    ({"total_updates": 1, "num_shards": 10_000}, "10000 shards cannot share the"),
    ({"total_updates": 1, "network": "lstm"}, r"bc cannot train a recurrent network\. Use --network mlp or another"),
    ({"total_updates": 1, "env": "Pendulum-v1"}, r"environment has observations of Box\(.*of the dataset .* of Box\("),
    ({"total_updates": 1, "env": "Acrobot-v1", "dataset": "acrobat"}, "there is no such file or directory"),
])  # fmt: skip
def test_settings_that_are_refused(cartpole_dataset: str, settings: dict[str, Any], message: str) -> None:
    arguments = {"dataset": cartpole_dataset, "run_dir": "run", **settings}
    with pytest.raises((ConfigError, DatasetError), match=message):
        bc(**arguments)
    assert not Path("run").exists()


def test_actions_of_another_number_are_refused(tmp_path: Path) -> None:
    class More(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"))
            self.action_space = spaces.Discrete(3)

        def observation(self, observation: Any) -> Any:
            return observation

    record_random(tmp_path / "data", "CartPole-v1", 1)
    message = r"environment has actions of Discrete\(3\); those of the dataset .*data are of Discrete\(2\)"
    with pytest.raises(ConfigError, match=message):
        bc("data", total_updates=1, env=More)


def test_actions_that_it_cannot_take(tmp_path: Path) -> None:
    class Switches(Odd):
        def __init__(self) -> None:
            super().__init__()
            self.action_space: Any = spaces.MultiBinary(3)

    with DatasetWriter(tmp_path / "data", Switches().observation_space, spaces.MultiBinary(3), {}) as writer:
        step = {
            "obs": np.zeros((1, 2), np.float32),
            "action": np.zeros((1, 3), np.int8),
            "reward": np.zeros(1, np.float32),
        }
        ends = {"terminated": np.ones(1, bool), "truncated": np.zeros(1, bool), "length": np.ones(1, np.int64)}
        writer.add({**step, **ends, "final_obs": np.zeros((1, 2), np.float32)})
    with pytest.raises(
        ConfigError, match=r"bc is for discrete and multidiscrete and box actions, and .*MultiBinary\(3\)"
    ):
        bc("data", total_updates=1, env=Switches)


def test_a_dataset_without_an_environment(tmp_path: Path) -> None:
    record_random(tmp_path / "unnamed", gym.make("CartPole-v1"), 1)
    with pytest.raises(ConfigError, match=r"unnamed does not name its environment\. Pass one: --env NAME"):
        bc("unnamed", total_updates=1)
    assert bc("unnamed", total_updates=1, env="cartpole").summary["env"] == "CartPole-v1"
    record_random(tmp_path / "foreign", gym.make("CartPole-v1"), 1, env="somewhere:Mine-v0")
    with pytest.raises(ConfigError, match=r"'somewhere:Mine-v0', whose module is not imported .* Pass it: --env"):
        bc("foreign", total_updates=1)


def test_a_dataset_that_is_empty_or_corrupt(tmp_path: Path) -> None:
    Path("empty.jsonl").write_text("")
    with pytest.raises(DatasetError, match=r"empty\.jsonl"):
        bc("empty.jsonl", total_updates=1, env="cartpole")
    record_random(tmp_path / "data", "CartPole-v1", 1)
    part = next(Path("data").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(OperatorError, match=r"part-00000.safetensors: it is corrupt") as raised:
        bc("data", total_updates=1, run_dir="run")
    assert isinstance(raised.value.original, DatasetError)
    assert not Path("run").exists()
    Path("data/dataset.json").write_text("{}")
    with pytest.raises(DatasetError, match="does not describe a dataset"):
        bc("data", total_updates=1)


@pytest.mark.parametrize(
    "arguments", [["sac"], ["sac", "--learner-on", "actor"], ["bc"], ["bc", "--learner-on", "actor"]]
)
def test_explain_starts_nothing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine of a plan that is only shown raises if anything is sent, and no other engine is created."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("raceway.training.train.make_engine", refuse)
    monkeypatch.setattr("raceway.training.train.decide_workers", refuse)
    assert main(["explain", *arguments]) == 0
    text = capsys.readouterr().out
    assert "for_each(TrainOneStep" in text
    assert "on 1 actor" in text
    assert list(Path().iterdir()) == []
