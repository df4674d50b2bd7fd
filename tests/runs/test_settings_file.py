"""Settings of a training from a file, in Python."""

import json
from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import find_algorithm
from raceway.errors import ConfigError
from raceway.runs.config_file import read_config
from raceway.runs.settings_file import merge_settings, open_settings_file, read_settings_file
from raceway.training.train import train
from raceway.training.train_seeds import train_seeds

SMALL = {"engine": "inline", "iterations": 1, "num_envs": 8, "fragment_steps": 4, "num_minibatches": 1, "num_shards": 1}


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RACEWAY_ENGINE", raising=False)


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def settings_in(name: str, text: str, algorithm: str = "ppo", **settings: Any) -> dict[str, Any]:
    return merge_settings(find_algorithm(algorithm), open_settings_file(write(name, text)), settings).values


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "lr = 3e-4\nhidden = [8, 8]\nmax_grad_norm = 'none'\ntotal_timesteps = 1e6\nenv_kwargs.size = [1]"),
        ("a.yaml", "lr: 3e-4\nhidden: [8, 8]\nmax_grad_norm: null\ntotal_timesteps: 1e6\nenv_kwargs:\n  size: [1]"),
        ("a.yml", "lr: 3e-4\nhidden: [8, 8]\nmax_grad_norm: none\ntotal_timesteps: 1_000_000\nenv_kwargs: {size: [1]}"),
        ("a.json", '{"lr": 3e-4, "hidden": [8, 8], "max_grad_norm": null, "total_timesteps": 1e6,'
                   ' "env_kwargs": {"size": [1]}}'),
    ],
)  # fmt: skip
def test_every_format_gives_the_same_settings(name: str, text: str) -> None:
    settings = settings_in(name, text)
    assert settings == {
        "lr": 3e-4, "hidden": (8, 8), "max_grad_norm": None, "total_timesteps": 1_000_000, "env_kwargs": {"size": [1]}
    }  # fmt: skip
    assert type(settings["total_timesteps"]) is int
    find_algorithm("ppo").settings(**settings)


def test_settings_of_the_caller_come_before_the_file_and_the_file_before_the_preset() -> None:
    ppo = find_algorithm("ppo")
    file = read_settings_file(write("a.toml", "algorithm = 'ppo'\nlr = 0.5\nnum_envs = 4\nseed = 7"))
    merged = merge_settings(ppo, file, {"env": "cartpole", "num_envs": 2})
    assert merged.values == {"env": "cartpole", "num_envs": 2, "lr": 0.5, "seed": 7}
    cfg, sources = ppo.settings(**merged.values), ppo.sources(*merged)
    assert (cfg.num_envs, cfg.lr, cfg.num_epochs, cfg.keep) == (2, 0.5, 4, 3)
    assert {name: sources[name] for name in ("num_envs", "lr", "seed", "num_epochs", "keep")} == {
        "num_envs": "user", "lr": "file", "seed": "file", "num_epochs": "preset", "keep": "default"
    }  # fmt: skip
    length = merge_settings(ppo, read_settings_file(write("b.toml", "iterations = 3\nenv = 'cartpole'")), {})
    assert ppo.settings(**length.values).total_timesteps is None  # as if the caller had set it


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "# x\nlr = 1\nlearning_rate = 1", r"line 3: unknown setting of ppo .*Did you mean 'lr'"),
        ("a.toml", "lr = 1\n\nnum_envs = 0", r"a.toml, line 3: num_envs must be a whole number from 1, not 0"),
        ("a.toml", "seed = true", r"a.toml, line 1: seed must be a whole number from 0, not True"),
        ("a.toml", "[env_kwargs]\nx = 1\n[optimiser]\nlr = 1", r"a.toml, line 3: unknown setting of ppo 'optimiser'"),
        ("a.toml", "lr = 'none'", r"a.toml, line 1: lr must be a number above 0, not 'none'"),
        ("a.yaml", "a: 1\nlr: '3e-4'", r"a.yaml, line 1: unknown setting of ppo 'a'"),
        ("a.yaml", "keep: 2\nlr: '3e-4'", r"a.yaml, line 2: lr must be a number above 0, not '3e-4'"),
        ("a.json", '{"keep": 2,\n"vector": "nativ"}', r"line 2: vector: unknown vector mode .*mean 'native'"),
        ("a.toml", "lr = 1\nalgorithm = 'a2c'", r"a.toml, line 2: the settings are those of a2c, not of ppo"),
        ("a.toml", "algorithm = 3", r"a.toml, line 1: algorithm must be the name of one, not 3"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_key(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_in(name, text)


def test_a_wrong_value_that_the_caller_replaces_does_not_matter() -> None:
    assert settings_in("a.toml", "lr = 'x'\nkeep = 2", lr=1.0) == {"lr": 1.0, "keep": 2}


def test_train_with_a_file_equals_train_with_its_settings() -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"env": "cartpole", "lr": 0.01, **SMALL}.items()]
    file = write("a.toml", "\n".join(["algorithm = 'ppo'", *lines]))
    by_file = train(config=file, run_dir="file", progress=False)
    by_hand = train("ppo", env="cartpole", lr=0.01, run_dir="hand", progress=False, **SMALL)
    assert by_file.summary["weights_sha256"] == by_hand.summary["weights_sha256"]
    sources = read_config("file")["setting_sources"]
    assert (sources["lr"], sources["run_dir"], sources["num_epochs"]) == ("file", "user", "preset")
    with pytest.raises(ConfigError, match=r"a.toml, line 1: the settings are those of ppo, not of a2c"):
        train("a2c", config=file)


def test_a_run_is_trained_again_with_its_settings() -> None:
    first = train("ppo", env="cartpole", lr=0.01, hidden=(8,), run_dir="first", progress=False, **SMALL)
    for number, config in enumerate((Path("first"), "first/config.json")):
        again = train(config=config, run_dir=f"again-{number}", progress=False)
        assert again.summary["weights_sha256"] == first.summary["weights_sha256"]
    before, after = read_config("first")["config"], read_config("again-1")["config"]
    assert after == {**before, "run_dir": "again-1"}
    other = train(config="first", seed=1, progress=False)
    assert other.path.parent.resolve() == Path("runs").resolve()
    assert other.summary["weights_sha256"] != first.summary["weights_sha256"]


def test_what_the_file_of_a_run_cannot_stand_for_is_passed_again() -> None:
    train("ppo", env="cartpole", run_dir="first", progress=False, **SMALL)
    about = json.loads(Path("first/config.json").read_text())

    def changed(importable: bool = True, **settings: Any) -> None:
        config, can = {**about["config"], **settings}, dict.fromkeys(about["importable"], importable)
        Path("first/config.json").write_text(json.dumps({**about, "config": config, "importable": can}, indent=2))

    ppo = find_algorithm("ppo")
    changed(env="mine:Mine-v0")
    with pytest.raises(
        ConfigError, match=r"config.json, line \d+: the env of this run is 'mine:Mine-v0'.*--env mine:Mine"
    ):
        merge_settings(ppo, read_settings_file("first"), {})
    assert merge_settings(ppo, read_settings_file("first"), {"env": "cartpole"}).values["env"] == "cartpole"
    changed(address="10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"the address of this run is '10.0.0.1:6379'"):
        merge_settings(ppo, read_settings_file("first"), {})
    changed(importable=False)
    with pytest.raises(ConfigError, match=r"the env of this run cannot be read from its file. Pass it: env=..."):
        merge_settings(ppo, read_settings_file("first"), {})
    changed(lrr=1.0)
    with pytest.raises(ConfigError, match=r"config.json, line \d+: unknown setting of ppo 'lrr'. Did you mean 'lr'"):
        merge_settings(ppo, read_settings_file("first"), {})
    Path("first/config.json").rename("old.json")
    with pytest.raises(ConfigError, match=r"old.json is the config.json of a run. Name it config.json"):
        read_settings_file("old.json")
    with pytest.raises(ConfigError, match=r"first is not a run: it has no config.json"):
        read_settings_file("first")


def test_resume_auto_compares_the_settings_of_the_file() -> None:
    text = "algorithm = 'ppo'\nenv = 'cartpole'\nrun_dir = 'run'\nlr = 0.01\nkeep = 2\n"
    small = {name: value for name, value in SMALL.items() if name != "iterations"}
    train(config=write("a.toml", text), iterations=1, resume="auto", progress=False, **small)
    resumed = train(config="a.toml", iterations=2, resume="auto", progress=False, **small).summary
    assert (resumed["iterations"], resumed["resumed_at"]) == (2, 32)
    sources = read_config("run")["setting_sources"]
    assert (sources["lr"], sources["keep"], sources["iterations"]) == ("file", "file", "user")
    with pytest.raises(ConfigError, match=r"lr cannot change when a run is resumed: it is 0.01, not 0.02"):
        train(config=write("a.toml", text.replace("0.01", "0.02")), resume="auto", progress=False)


def test_seeds_with_a_file() -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in {"env": "acrobot", **SMALL}.items()]
    write("a.toml", "\n".join([*lines, "seed = 9", "run_dir = 'group'"]))
    outcome = train_seeds("ppo", [3, 4], config="a.toml", progress=False)
    assert outcome.summary["seeds"] == [3, 4]
    assert [result.path.name for result in outcome.results] == ["seed-3", "seed-4"]
    assert Path("group/summary.json").is_file()
    assert outcome.summary["env"] == "Acrobot-v1"
