"""What the help, the header of a run and `raceway explain` show about settings."""

import re

import pytest

from raceway.cli import main


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exited:
        main([*arguments, "--help"])
    assert exited.value.code == 0
    return capsys.readouterr().out


def test_help_shows_the_docstrings_of_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "train", "reinforce")
    for option in (
        "--env ", "--iterations ", "--episodes-per-iter ", "--total-timesteps ", "--num-workers N|auto",
        "--stop-return ", "--stop-seconds ", "--run-dir ", "--env-kwargs ", "--gamma ", "--seeds ", "--json",
    ):  # fmt: skip
        assert option in text
    assert "Discount factor γ. [0.99]" in text


def help_words(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the help with its line breaks removed."""
    return " ".join(help_of(capsys, *arguments).split())


def test_help_for_an_environment_shows_what_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "explain"):
        text = help_words(capsys, command, "ppo", "--lr", "0.1", "--env", "lunarlander", "--no-such-option")
        for value in (
            "rollout fragment. [512, preset; default 256]", "Learning rate. [0.1, you; default 0.0003]",
            "--total-timesteps N Stop after N environment steps. [1000000, preset]", "Random seed.", "engine. [0]",
            "[lunarlander, you; default cartpole]",
            "Widths of the hidden layers, of the policy and of the critic. [64,64]",
        ):  # fmt: skip
            assert value in text
    assert "There is no preset for MountainCar-v0." in help_words(capsys, "train", "ppo", "--env", "MountainCar-v0")
    text = help_words(capsys, "train", "ppo", "--env", "walker2d", "--max-grad-norm", "none")
    assert "Source of the preset: Walker2d-v5 has that of the family mujoco. As in CleanRL" in text
    assert "Not measured on other MuJoCo environments" in text
    assert "[64, preset; default 8]" in text
    assert "[none, you; default 0.5]" in text


def test_help_without_an_environment_is_for_the_default_one_and_names_the_presets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_words(capsys, "train", "ppo")
    assert "There are presets for CartPole-v1, CartPolePositions-v1, Acrobot-v1," in text
    assert "other environments of the family mujoco, other environments of the family atari: add --env" in text
    assert "Learning rate. [0.003, preset; default 0.0003]" in text
    assert "presets" not in help_words(capsys, "train", "reinforce")


@pytest.mark.usefixtures("in_tmp_path")
def test_the_header_shows_where_settings_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ppo", "--engine", "inline", "--num-workers", "2", "--iterations", "1", "--run-dir", "run"]
    assert main(["train", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  Set by you: iterations 1, engine inline, num_workers 2" in lines
    assert any(line.startswith("  Preset for CartPole-v1: num_envs 64, num_shards 1, lr 0.003,") for line in lines)
    assert any(line.startswith("    using 1 worker instead of 2: the preset has 1 shard") for line in lines)
    text = help_words(capsys, "resume", "run", "--iterations", "5")
    assert "[5, you]" in text
    assert "[2, you; default auto]" in text


def test_explain_shows_the_plan_and_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ppo", "--local", "--env", "CartPole-v1"]) == 0
    plan, _, settings = capsys.readouterr().out.partition("\n\n")
    assert "for_each(TrainOneStep)" in plan
    starts = [line.partition(":")[0] for line in settings.splitlines() if not line.startswith(" ")]
    assert starts == ["Set by you", "Preset for CartPole-v1", "Defaults", "Source of the preset"]
    assert main(["explain", "ppo", "--local", "--mermaid"]) == 0
    assert "Defaults" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_help_is_grouped(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "train", name)
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    assert headings == ["options", "run", "environment", "workers", "optimiser", "algorithm", "output"]
    groups = dict(zip(headings, re.split(r"^\w+:$", text, flags=re.MULTILINE)[1:], strict=True))
    options = {"run": "--seeds", "environment": "--num-envs", "workers": "--local", "optimiser": "--max-grad-norm",
               "algorithm": "--gamma", "output": "--json"}  # fmt: skip
    assert all(f"  {option}" in groups[group] for group, option in options.items())
