"""What holds for every algorithm of the catalogue. A new one is tested when its file is there."""

import dataclasses
from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names, find_algorithm
from raceway.engine import make_engine
from raceway.training.train import Training, resume, train
from raceway.ui.options import field_docs

ROOT = Path(__file__).parents[2]
NAMES = algorithm_names()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_two_iterations_are_the_same_bytes_each_time(name: str) -> None:
    settings = {"env": find_algorithm(name).config.env, "iterations": 2, "engine": "inline"}
    first, second, other = (train(name, seed=seed, **settings).summary for seed in (0, 0, 1))
    assert first["iterations"] == 2
    assert first["timesteps"] > 0
    assert first["weights_sha256"] == second["weights_sha256"] != other["weights_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_saved_and_resumed(name: str) -> None:
    """To the same bytes, if it works in step."""
    found = find_algorithm(name)
    settings = {"env": found.config.env, "engine": "inline"}
    whole = train(name, iterations=4, run_dir="whole", **settings).summary
    first = train(name, iterations=2, run_dir="parts", **settings).summary
    last = resume("parts", iterations=4).summary
    assert last["iterations"] == 4
    assert last["resumed_at"] == first["timesteps"] < last["timesteps"]
    assert last["state_sha256"] != first["state_sha256"]
    training = Training(found, found.settings(**settings))
    with make_engine("inline") as engine:
        synchronous = "gather_async" not in training.flow(training._spawn(engine)).explain()
    if synchronous:
        assert last["state_sha256"] == whole["state_sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_its_plan_explains_itself(name: str) -> None:
    found = find_algorithm(name)
    training = Training(found, found.settings(env=found.config.env))
    with make_engine("inline") as engine:
        plan = training.flow(training._spawn(engine)).explain()
    assert "create(sample" in plan
    assert "ReportMetrics" in plan


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_page_and_help_for_every_setting(name: str) -> None:
    found = find_algorithm(name)
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    helps = field_docs(found.config)
    assert [one.name for one in dataclasses.fields(found.config) if one.name not in helps] == []
    assert found.summary.endswith(".")
