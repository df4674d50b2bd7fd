"""The examples run, and say the same on every engine."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REINFORCE = ["examples/reinforce/main.py", "--iterations", "3", "--episodes-per-iter", "6"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | environment,
        check=False,
    )


def curve(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    found = re.findall(r"Mean Reward: +(-?[\d.]+) \| Loss: +(-?[\d.]+)", done.stdout)
    assert found, done.stdout
    return [f"{reward} {loss}" for reward, loss in found]


@pytest.fixture(scope="module")
def local_curve() -> list[str]:
    return curve(run(*REINFORCE, "--local"))


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "inline"),
        ("--engine", "process", "--workers", "1"),
        ("--engine", "process", "--workers", "3"),
        ("--engine", "ray"),
    ],
    ids=" ".join,
)
def test_reinforce_learns_the_same_everywhere(options: tuple[str, ...], local_curve: list[str]) -> None:
    assert curve(run(*REINFORCE, *options)) == local_curve


def test_reinforce_by_environment_variable(local_curve: list[str]) -> None:
    assert curve(run(*REINFORCE, RACEWAY_ENGINE="inline")) == local_curve


def test_reinforce_on_mujoco() -> None:
    short = ["examples/reinforce/main.py", "--env", "hopper", "--iterations", "1", "--episodes-per-iter", "2"]
    assert curve(run(*short, "--engine", "process")) == curve(run(*short, "--local"))


def test_reinforce_draws_its_curve(tmp_path: Path) -> None:
    done = run(str(ROOT / REINFORCE[0]), *REINFORCE[1:], "--local", "--plot", MPLCONFIGDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    picture = re.search(r"\S+\.png", done.stdout)
    assert picture is not None, done.stdout
    path = ROOT / picture.group()
    assert path.read_bytes().startswith(b"\x89PNG")
    path.unlink()


def test_reinforce_tells_what_it_knows() -> None:
    done = run(REINFORCE[0], "--env", "cartpol")
    assert done.returncode == 2
    assert "cartpole" in done.stderr
    done = run(*REINFORCE, RACEWAY_ENGINE="proces")
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown engine 'proces'. Did you mean 'process'?")
