"""Presets: TOML files beside the algorithms, and mappings of algorithms that other packages register."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import AlgorithmConfig, algorithm, find_algorithm, registry
from raceway.algorithms.preset_files import PresetFile, describe_source, find_preset
from raceway.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of an algorithm for tests."""

    fragment_steps: int = 5


def write(path: Path, text: str) -> Path:
    file = path / "presets.toml"
    file.write_text(text)
    return file


def test_tables_of_environments_and_families(tmp_path: Path) -> None:
    text = """
        ["CartPole-v1"]
        source = "chosen here"
        hidden = [8, 8]
        lr = 1e-3

        [family.atari]
        environments = ["ALE/Pong-v5", "ALE/Breakout-v5"]
        source = "a paper"
        env_kwargs = { frames = [1, 2] }
    """
    presets = dict(PresetFile(write(tmp_path, text), Config))
    atari = {"env_kwargs": {"frames": [1, 2]}}
    assert presets == {"CartPole-v1": {"hidden": (8, 8), "lr": 1e-3}, "ALE/Pong-v5": atari, "ALE/Breakout-v5": atari}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["A-v0"]\nsource = "x"\nlearning_rate = 1', "unknown setting .*for A-v0, 'learning_rate'. .*Choose from"),
        ('["A-v0"]\nlr = 1', "the preset for A-v0 has no `source`"),
        ('lr = 1\n["A-v0"]\nsource = "x"', "'lr' is outside of a table"),
        ('[family.a]\nsource = "x"', "family 'a' has no list of `environments`"),
        ('["A-v0"]\nsource = "x"\n[family.a]\nenvironments = ["A-v0"]\nsource = "x"', "two presets for A-v0"),
        ('["A-v0"', "not valid TOML"),
        ('["A-v0"]\nsource = "x"\npatterns = ["B*"]', "`patterns` is a list, and belongs to a family, not to A-v0"),
        ('[family.a]\nsource = "x"\nenvironments = ["A-v0"]\npatterns = "B*"', "`patterns` is a list"),
    ],
)
def test_invalid_preset_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dict(PresetFile(write(tmp_path, text), Config))


def test_a_file_is_read_on_first_use(tmp_path: Path) -> None:
    presets = PresetFile(tmp_path / "later.toml", Config)
    write(tmp_path, '["A-v0"]\nsource = "x"\nlr = 0.5').rename(tmp_path / "later.toml")
    assert dict(presets) == {"A-v0": {"lr": 0.5}}


def test_the_files_of_the_catalogue_belong_to_algorithms() -> None:
    for file in Path(registry.__file__).parent.joinpath("presets").iterdir():
        presets = find_algorithm(file.stem).presets
        assert isinstance(presets, PresetFile)
        assert presets.path == file


def test_a_preset_applies_below_the_settings_of_the_caller() -> None:
    ppo = find_algorithm("ppo")
    assert ppo.settings(env="cartpole").total_timesteps == 100_000
    assert ppo.settings(env="cartpole", lr=1.0).lr == 1.0
    assert ppo.settings(env="cartpole", stop_seconds=1.0).total_timesteps is None
    assert ppo.settings(env="MountainCar-v0").num_envs == ppo.config.num_envs


def test_other_environments_of_a_family_get_its_preset(tmp_path: Path) -> None:
    text = """
        [family.mujoco]
        environments = ["Ant-v5"]
        patterns = ["gymnasium.envs.mujoco.*"]
        source = "a paper"
        lr = 0.5

        ["Hopper-v5"]
        source = "another"
        lr = 0.25

        [family.atari]
        environments = []
        patterns = ["ALE/*"]
        source = "a third"
        lr = 0.125
    """
    presets = PresetFile(write(tmp_path, text), Config)
    rates = {"Ant-v5": 0.5, "Walker2d-v5": 0.5, "Humanoid-v4": 0.5, "Hopper-v5": 0.25, "ALE/Asterix-v5": 0.125}
    assert {env: find_preset(presets, env)["lr"] for env in rates} == rates
    for env in ("Pendulum-v1", "HalfCheetahDirection-v0", "HalfCheetah-v3", "module:Unknown-v0"):
        assert find_preset(presets, env) == {}
        assert describe_source(presets, env) == ""
    assert list(presets) == ["Ant-v5", "Hopper-v5"]
    assert describe_source(presets, "Ant-v5") == "a paper"
    assert describe_source(presets, "Walker2d-v5") == "Walker2d-v5 has that of the family mujoco. a paper"


ENVIRONMENTS = {"Walker2d-v5": "HalfCheetah-v5", "Humanoid-v5": "Ant-v5", "ALE/Asterix-v5": "ALE/Pong-v5"}


@pytest.mark.parametrize("name", ["a2c", "a3c", "apex", "dqn", "impala", "ppo"])
def test_families_of_the_catalogue(name: str) -> None:
    algorithm = find_algorithm(name)
    for env, measured in ENVIRONMENTS.items():
        if "box" not in algorithm.actions and "ALE/" not in env:
            continue
        settings = {"env": env}
        assert algorithm.preset(settings) == algorithm.preset({"env": measured}) != {}
        assert set(algorithm.sources(settings).values()) == {"user", "preset", "default"}
        assert "Not measured on other" in algorithm.preset_source(settings)
    for env in ("MountainCar-v0", "BipedalWalker-v3", "FrozenLake-v1"):
        assert algorithm.preset({"env": env}) == {}
        assert algorithm.preset_source({"env": env}) == ""


def test_presets_may_be_a_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @algorithm("elsewhere", Config, presets={"CartPole-v1": {"lr": 0.5}})
    def elsewhere(rollouts: Any, cfg: Any, ctx: Any) -> Any:
        return rollouts

    assert find_algorithm("elsewhere").settings(env="cartpole").lr == 0.5
    assert find_algorithm("elsewhere").preset_source({"env": "cartpole"}) == "the program that registers the algorithm"
