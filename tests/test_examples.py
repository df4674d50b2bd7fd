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


PLANS = ("a3c", "a2c", "apex", "two_trainers", "maml")


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_the_plans_run(engine: str) -> None:
    done = run("examples/plans/main.py", "--engine", engine, "--items", "10")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(PLANS)


def test_the_documentation_shows_the_plans_as_they_are(tmp_path: Path) -> None:
    done = run("examples/plans/main.py", "--engine", "inline", "--svg", str(tmp_path))
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/concepts/flow.md").read_text()
    source = (ROOT / "examples/plans/main.py").read_text()
    for name in PLANS:
        match = re.search(rf"^def {name}\(.*?(?=\n\n\n)", source, re.MULTILINE | re.DOTALL)
        assert match is not None
        assert re.sub(r'\n    """.*?"""', "", match.group(), count=1) in page
        assert f"../images/plans/{name}.svg" in page
        drawn, kept = (tmp_path / f"{name}.svg").read_text(), (ROOT / f"docs/images/plans/{name}.svg").read_text()
        # The tooltips have line numbers in them, which other edits of the file may move.
        assert re.sub(r"main\.py:\d+", "", drawn) == re.sub(r"main\.py:\d+", "", kept)
