"""Algorithms of other packages, which entry points name; and mistakes in registering one."""

from pathlib import Path
from typing import Any

import pytest

from raceway.algorithms import AlgorithmConfig, algorithm, algorithm_names, find_algorithm, registry
from raceway.errors import ConfigError

MODULE = '''"""OTHER: an algorithm of another package."""
from raceway.algorithms import AlgorithmConfig, algorithm

@algorithm("other", AlgorithmConfig)
def other(rollouts, cfg, ctx):
    return rollouts
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an installed package, whose entry points name one good module and two bad ones."""
    about = tmp_path / "others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    points = "other = others_good\nabsent = others_absent\nnameless = others_good"
    (about / "entry_points.txt").write_text(f"[raceway.algorithms]\n{points}\n")
    (tmp_path / "others_good.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    return tmp_path


def test_an_algorithm_of_another_package_is_found_by_its_name(package: Path) -> None:
    assert "other" in algorithm_names()
    assert find_algorithm("other").summary == "OTHER: an algorithm of another package."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "'absent' of others cannot be imported: No module named 'others_absent'.* name the module that"),
        ("nameless", r"others has an entry point .* but others_good does not register it. Add @algorithm\('nameless'"),
    ],
)
def test_an_entry_point_that_gives_no_algorithm_is_named(package: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_algorithm(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"actions": ("boxes",)}, r"unknown kind of action of the algorithm mine 'boxes'\. Choose from: box, discrete"),
        (
            {"presets": {"CartPole-v1": {"num_env": 4}}},
            r"unknown setting in the preset of mine for CartPole-v1 'num_env'\. Did you mean 'num_envs'\?",
        ),
    ],
    ids=["actions", "presets"],
)
def test_mistakes_are_refused_when_an_algorithm_is_registered(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm("mine", AlgorithmConfig, **arguments)(lambda rollouts, cfg, ctx: rollouts)
    assert "mine" not in algorithm_names()


def test_a_module_without_algorithms_has_none_to_choose_from() -> None:
    with pytest.raises(ConfigError) as caught:
        find_algorithm("json:dumps")
    assert str(caught.value) == (
        "unknown algorithm in json 'dumps'. Register its plan function with @algorithm(name, Config)."
    )
