"""Algorithms of other packages, which entry points name."""

from pathlib import Path

import pytest

from raceway.algorithms import algorithm_names, find_algorithm, registry
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
