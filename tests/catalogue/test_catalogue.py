"""Properties of every algorithm in the catalogue. A new algorithm is tested as soon as its file exists."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.commands.config_options import field_docs
from raceway.engine import make_engine
from raceway.training.train import Training, resume, train

ROOT = Path(__file__).parents[2]
NAMES = algorithm_names()


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    settings = {"env": find_algorithm(name).config.env, "iterations": 2, "engine": "inline"}
    first, second, other = (train(name, seed=seed, **settings).summary for seed in (0, 0, 1))
    assert first["iterations"] == 2
    assert first["timesteps"] > 0
    assert first["weights_sha256"] == second["weights_sha256"] != other["weights_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_can_be_resumed(name: str) -> None:
    """A synchronous algorithm ends in the same state as an uninterrupted run."""
    algorithm = find_algorithm(name)
    settings = {"env": algorithm.config.env, "engine": "inline"}
    whole = train(name, iterations=4, run_dir="whole", **settings).summary
    first = train(name, iterations=2, run_dir="parts", **settings).summary
    resumed = resume("parts", iterations=4).summary
    assert resumed["iterations"] == 4
    assert resumed["resumed_at"] == first["timesteps"] < resumed["timesteps"]
    assert resumed["state_sha256"] != first["state_sha256"]
    training = Training(algorithm, algorithm.settings(**settings))
    with make_engine("inline") as engine:
        synchronous = "gather_async" not in training.flow(training._spawn(engine)).explain()
    if synchronous:
        assert resumed["state_sha256"] == whole["state_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_can_be_explained(name: str) -> None:
    algorithm = find_algorithm(name)
    training = Training(algorithm, algorithm.settings(env=algorithm.config.env))
    with make_engine("inline") as engine:
        plan = training.flow(training._spawn(engine)).explain()
    assert "create(sample" in plan
    assert "ReportMetrics" in plan


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_page_and_help_for_every_setting(name: str) -> None:
    algorithm = find_algorithm(name)
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    helps = field_docs(algorithm.config)
    assert [field.name for field in dataclasses.fields(algorithm.config) if field.name not in helps] == []
    assert algorithm.summary.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_plan(name: str) -> None:
    source = inspect.getsource(find_algorithm(name).plan)
    body = source.partition('"""Return the plan."""\n')[2]
    assert body
    assert body in (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_valid_settings_and_documented(name: str) -> None:
    algorithm = find_algorithm(name)
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    for env, preset in algorithm.presets.items():
        assert env in page
        algorithm.config(**preset)
