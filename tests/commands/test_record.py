"""`raceway record` and `raceway inspect`: what they print, and their errors."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from raceway import load, train
from raceway.cli import main
from raceway.commands import inspect as inspect_command
from raceway.commands import record as record_command
from raceway.commands.inspect import histogram
from raceway.commands.progress_line import Progress
from raceway.datasets import open_dataset
from raceway.errors import ConfigError, DatasetError
from tests.commands.conftest import Output
from tests.datasets.test_jsonl import FIRST, HEAD, SECOND, write_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "ppo"
    train("ppo", env="cartpole", total_timesteps=1500, engine="inline", run_dir=str(path))
    return path


def test_what_was_written_is_printed(run: Path, in_tmp_path: Path, output: Output) -> None:
    lines = output(record_command.run, str(run), "--episodes", "5", "--dataset", "data/cartpole", "--seed", "4")
    returns = load(run).evaluate(5, seed=4).returns
    assert lines == [
        f"ppo on CartPole-v1, after {load(run).about['steps']:,} steps of training",
        "  episodes     5",
        f"  steps        {int(returns.sum())}",
        f"  mean return  {returns.mean():.2f} ± {returns.std():.2f}, from {returns.min():.2f} to {returns.max():.2f}",
        "Dataset saved to data/cartpole",
    ]
    assert open_dataset("data/cartpole").num_episodes == 5


def test_options(run: Path, in_tmp_path: Path, output: Output) -> None:
    (line,) = output(record_command.run, str(run), "--episodes", "2", "--dataset", "data", "--stochastic",
                     "--checkpoint", "latest", "--json")  # fmt: skip
    report = json.loads(line)
    assert (report["dataset"], report["episodes"], report["about"]["deterministic"]) == ("data", 2, False)
    assert report["about"]["checkpoint"] == load(run, "latest").about["checkpoint"]
    assert report == json.loads(output(inspect_command.run, "data", "--json")[0])
    sampled = load(run, "latest").evaluate(2, deterministic=False)
    assert report["mean_return"] == pytest.approx(sampled.mean_return)


def test_the_default_is_a_dataset_in_the_run(run: Path, output: Output) -> None:
    assert output(record_command.run, str(run), "--episodes", "1")[-1] == f"Dataset saved to {run / 'dataset'}"
    assert output(inspect_command.run, str(run))[0] == f"dataset        {run / 'dataset'}"


def test_checkpoints_are_recorded_and_described_together(run: Path, in_tmp_path: Path, output: Output) -> None:
    for name, checkpoint in (("first", "0"), ("last", "latest")):
        output(record_command.run, str(run), "--episodes", "3", "--dataset", name, "--checkpoint", checkpoint)
    lines = output(inspect_command.run, "first,last")
    assert lines[:2] == ["dataset        first,last", "recorded with  ppo on CartPole-v1, most likely actions"]
    assert lines[2].startswith("episodes       6, of which")
    histogram_of = [*open_dataset("first").returns(), *open_dataset("last").returns()]
    assert lines[-len(histogram(histogram_of)) :] == [f"  {line}" for line in histogram(histogram_of)]


def test_a_dataset_is_not_overwritten(run: Path, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp_path / "data").mkdir()
    assert main(["record", str(run), "--episodes", "1", "--dataset", "data"]) == 1
    assert capsys.readouterr().err.startswith("error: data exists, and a dataset is never overwritten.")


def test_progress_is_displayed(
    run: Path, in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    monkeypatch.setattr(Progress, "INTERVALS", (0.0, 0.0))
    assert record_command.run([str(run), "--episodes", "3", "--dataset", "data"]) == 0
    assert "  3 of 3 episodes\n" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--episodes", "0"], ["--seed", "-1"], ["--episodes", "x"]])
def test_numbers_are_checked(run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        record_command.run([str(run), *arguments])
    assert "is not a whole number of at least" in capsys.readouterr().err


def test_modules_of_a_run_are_not_imported_without_trust(in_tmp_path: Path, output: Output) -> None:
    train("ppo", env="tests.odd_envs:Odd-v0", total_timesteps=500, engine="inline", run_dir="odd")
    with pytest.raises(ConfigError, match="--env"):
        record_command.run(["odd", "--episodes", "2"])
    assert output(record_command.run, "odd", "--episodes", "2", "--trust")[1:3] == [
        "  episodes     2", "  steps        16",
    ]  # fmt: skip


def test_the_description(in_tmp_path: Path, output: Output) -> None:
    path = write_lines(in_tmp_path, HEAD, FIRST, SECOND, SECOND)
    bar = "█" * 40
    assert output(inspect_command.run, path.name) == [
        "dataset        data.jsonl",
        "recorded with  an unknown algorithm on Toy-v0",
        "episodes       3, of which 1 terminated and 2 truncated",
        "steps          4",
        "observations   Box(-inf, inf, (2,), float32)",
        "actions        Discrete(3)",
        "mean return    2.50 ± 0.71, from 1.50 to 3.00",
        "mean length    1.3, from 1 to 2",
        "",
        "returns",
        f"  1.50 to 1.65  {bar[:20]:40}  1",
        *(f"  {1.5 + 0.15 * i:.2f} to {1.65 + 0.15 * i:.2f}  {'':40}  0" for i in range(1, 9)),
        f"  2.85 to 3.00  {bar}  2",
    ]


def test_actions_outside_their_bounds_are_counted(in_tmp_path: Path, output: Output) -> None:
    box = {"type": "Box", "low": -1.0, "high": 1.0, "shape": [1], "dtype": "float32"}
    path = write_lines(in_tmp_path, {**HEAD, "action_space": box}, {**FIRST, "action": [[0.5], [1.5]]})
    assert "               1 actions are outside the bounds of their space" in output(inspect_command.run, path.name)
    assert json.loads(output(inspect_command.run, path.name, "--json")[0])["actions_outside"] == 1


def test_a_corrupt_dataset_is_found(run: Path, in_tmp_path: Path) -> None:
    record_command.run([str(run), "--episodes", "1", "--dataset", "data"])
    part = in_tmp_path / "data" / "part-00000.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(DatasetError, match="it is corrupt"):
        inspect_command.run(["data"])


@pytest.mark.parametrize("values", [[5.0], [2.0, 2.0, 2.0]])
def test_a_histogram_of_equal_values_has_one_line(values: list[Any]) -> None:
    assert histogram(values) == [f"{values[0]:.2f}  {'█' * 40}  {len(values)}"]


def test_a_bin_with_few_values_has_a_bar() -> None:
    lines = histogram([0.0] * 1000 + [10.0])
    assert lines[-1].split() == ["9.00", "to", "10.00", "█", "1"]
    assert lines[1].split() == ["1.00", "to", "2.00", "0"]
