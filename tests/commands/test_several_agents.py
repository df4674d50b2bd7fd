"""The commands with a run of several agents, from `train` to `compare`."""

import json
from pathlib import Path
from typing import Any

import imageio.v2
import pytest

from raceway.cli import main
from raceway.runs.reader import read_run

ENV = "pettingzoo:mpe2.simple_spread_v3"
POLICIES = """
[pair]
agents = ["agent_0", "agent_1"]

[single]
agents = ["agent_2"]
algorithm = "dqn"
learning_starts = 20
"""
SMALL = (
    "--env-kwargs max_cycles=5 --num-envs 2 --num-shards 1 --fragment-steps 10 --num-epochs 1 --num-minibatches 2 "
    "--hidden 8 --metrics-interval 0"
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several-agents")


@pytest.fixture(scope="module")
def run(directory: Path) -> str:
    """Return a trained run, and check what training prints."""
    (directory / "policies.toml").write_text(POLICIES)
    path = str(directory / "run")
    options = f"{SMALL} --local --iterations 6 --eval-every 60 --eval-episodes 2 --run-dir {path}"
    assert main(["train", "ppo", "--env", ENV, "--policies", str(directory / "policies.toml"), *options.split()]) == 0
    return path


def test_training_prints_the_policies_and_their_metrics(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"{SMALL} --local --iterations 4 --eval-every 60 --eval-episodes 2 --run-dir {directory / 'printed'}"
    (directory / "policies.toml").write_text(POLICIES)
    arguments = ["--env", ENV, "--policies", str(directory / "policies.toml"), *options.split()]
    assert main(["train", "ppo", *arguments]) == 0
    printed = capsys.readouterr().out
    assert f"DQN+PPO on {ENV}" in printed
    assert "Policy pair: ppo, for agent_0, agent_1" in printed
    assert "Set for this policy: learning_starts 20" in printed
    assert "| pair: " in printed
    assert "| single: " in printed
    assert "Policy single (dqn): mean reward" in printed
    assert "Evaluation at" in printed
    assert "(pair -" in printed


def test_a_run_is_evaluated_by_policy_and_agent(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", run, "--episodes", "3"]) == 0
    printed = capsys.readouterr().out
    assert "all agents together" in printed
    assert "policy pair  mean return -" in printed
    assert "agent_2  -" in printed
    report = evaluate(run, capsys, "--episodes", "3")
    assert report["mean_return"] == pytest.approx(sum(report["agents"].values()))
    assert report["policies"]["single"]["mean_return"] == pytest.approx(report["agents"]["agent_2"])
    assert evaluate(run, capsys, "--episodes", "3") == report


def evaluate(run: str, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    assert main(["eval", run, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_video_has_a_frame_for_every_step(run: str, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = directory / "agents.gif"
    report = evaluate(run, capsys, "--episodes", "1", "--video", str(video), "--video-episodes", "2")
    assert len(report["video_returns"]) == 2
    assert len(list(imageio.v2.get_reader(video))) >= 2  # equal frames are stored once


def test_a_run_is_resumed_listed_plotted_and_compared(
    run: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", run, "--iterations", "8"]) == 0
    assert read_run(run).summary is not None
    assert main(["list", "--runs", str(directory)]) == 0
    assert f"dqn+ppo    {ENV}" in capsys.readouterr().out
    plot = directory / "curves.png"
    assert main(["plot", run, "--y", "rollout/*/ep_rew_mean", "--out", str(plot)]) == 0
    assert plot.stat().st_size > 1000
    assert main(["plot", run, "--y", "rollout/*/nothing", "--out", str(plot)]) == 1
    assert main(["compare", run, "--json", "--out", str(directory / "compare.png")]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert list(json.loads(printed)["envs"][ENV]["groups"]) == ["dqn+ppo"]


def test_no_dataset_is_recorded_of_several_agents(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", run]) == 1
    assert "a dataset has the episodes of one agent" in capsys.readouterr().err


def test_the_plan_of_every_policy_is_explained(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = directory / "only-dqn.json"
    file.write_text(json.dumps({"all": {"agents": "agent_*", "algorithm": "dqn"}}))
    assert main(["explain", "--env", ENV, "--policies", str(file)]) == 0  # the algorithm is in the file
    printed = capsys.readouterr().out
    assert "for_each(all: Transitions)" in printed
    assert "Policy all: dqn, for agent_0, agent_1, agent_2" in printed
