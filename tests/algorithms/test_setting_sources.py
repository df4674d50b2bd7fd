"""Where settings come from: defaults, presets, the user, environment variables, and adaptation to the environment."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import find_algorithm
from raceway.algorithms.setting_sources import SOURCES, describe_sources
from raceway.training.train import Training, resume, train

SMALL = {"engine": "inline", "iterations": 1, "num_envs": 8, "fragment_steps": 4, "num_minibatches": 1}


@pytest.fixture(autouse=True)
def _no_engine_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RACEWAY_ENGINE", raising=False)


def names_from(source: str, sources: dict[str, str]) -> set[str]:
    return {name for name, its_source in sources.items() if its_source == source}


def test_each_setting_has_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = find_algorithm("ppo")
    sources = ppo.sources({"env": "cartpole", "lr": 1.0})
    assert sources.keys() == vars(ppo.settings()).keys()
    assert names_from("user", sources) == {"env", "lr"}
    assert names_from("preset", sources) == set(ppo.presets["CartPole-v1"]) - {"lr"}
    assert sources["engine"] == "default"
    assert ppo.sources({"env": "cartpole", "iterations": 3})["total_timesteps"] == "default"  # of another length
    monkeypatch.setenv("RACEWAY_ENGINE", "inline")
    assert ppo.sources({})["engine"] == "variable"
    assert ppo.sources({"engine": "ray"})["engine"] == "user"


def test_settings_adapted_to_the_environment_are_marked() -> None:
    reinforce = find_algorithm("reinforce")
    settings = {"env": "cartpole", "engine": "inline", "hidden": (8,)}
    training = Training(reinforce, reinforce.settings(**settings), setting_sources=reinforce.sources(settings))
    assert names_from("adapted", training.setting_sources) == {"num_shards", "lr"}
    lines = describe_sources(training.cfg, training.setting_sources, "CartPole-v1")
    assert lines == ["Set by you: engine inline, hidden 8", "Adapted to CartPole-v1: num_shards 5, lr 0.01"]


def test_all_settings_can_be_shown_and_lines_break_between_them() -> None:
    ppo = find_algorithm("ppo")
    cfg, sources = ppo.settings(env="cartpole", hidden=(7, 7)), ppo.sources({"env": "cartpole", "hidden": (7, 7)})
    for width in range(31, 80):
        lines = describe_sources(cfg, sources, "CartPole-v1", SOURCES, width)
        assert max(map(len, lines)) <= width
        text = ", ".join(line.strip().rstrip(",") for line in lines)
        for setting in ("hidden 7,7", "num_shards 1", "total_timesteps 100000", "env_kwargs none", "clip 0.2"):
            assert setting in text
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == [
        "Set by you", "Preset for CartPole-v1", "Defaults",
    ]  # fmt: skip


def config_of(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def test_config_json_has_the_sources_and_resuming_adds_to_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train("ppo", env="cartpole", run_dir=str(run), **SMALL)
    sources = config_of(run)["setting_sources"]
    assert sources.keys() == config_of(run)["config"].keys()
    assert names_from("user", sources) == {"env", "run_dir", *SMALL}
    assert (sources["lr"], sources["keep"], sources["seed"]) == ("preset", "default", "default")
    resume(run, iterations=2, keep=1)
    assert config_of(run)["setting_sources"] == {**sources, "keep": "user"}


UNKNOWN = {"no_such_setting": "user", "lr": "moon", "keep": ["user"]}


@pytest.mark.parametrize("saved", [{}, {"setting_sources": {**UNKNOWN, "seed": "default"}}])
def test_a_run_without_known_sources_resumes(tmp_path: Path, saved: dict[str, Any]) -> None:
    run = tmp_path / "run"
    train("ppo", env="cartpole", run_dir=str(run), **SMALL)
    about = config_of(run)
    del about["setting_sources"], about["num_workers_reason"]
    (run / "config.json").write_text(json.dumps({**about, **saved}))
    resume(run, iterations=2)
    assert config_of(run)["setting_sources"] == {**({"seed": "default"} if saved else {}), "iterations": "user"}


def test_more_workers_than_shards_of_a_preset_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs: dict[int, Any] = {}
    for number in (1, 2):
        run = tmp_path / str(number)
        with caplog.at_level(logging.WARNING):
            runs[number] = train("ppo", env="cartpole", num_workers=number, run_dir=str(run), **SMALL).summary
        about = config_of(run)
        assert (about["num_workers"], about["config"]["num_workers"]) == (1, number)
        assert bool(about["num_workers_reason"]) == (number == 2)
    assert runs[1]["weights_sha256"] == runs[2]["weights_sha256"]
    [warning] = [record.getMessage() for record in caplog.records if "worker" in record.getMessage()]
    assert warning == f"using {about['num_workers_reason']}"
    assert warning.startswith(
        "using 1 worker instead of 2: the preset has 1 shard, and a worker without one would be idle"
    )
    assert "With num_shards 2 all of them work, and the results differ" in warning
