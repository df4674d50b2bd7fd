"""What `import raceway` gives, and what it costs."""

import importlib.metadata
import subprocess
import sys

import raceway

# The stable API. A name is added here on purpose, and removed only after its deprecation (see CONTRIBUTING.md).
PUBLIC_NAMES = [
    "__version__",
]

# Heavy packages that importing raceway must leave to whoever needs them.
IMPORTED_LATER = {"torch", "ray", "torchrl", "tensordict"}


def test_public_names() -> None:
    assert sorted(raceway.__all__) == sorted(PUBLIC_NAMES)


def test_every_public_name_exists() -> None:
    missing = [name for name in raceway.__all__ if not hasattr(raceway, name)]
    assert missing == []


def test_version_is_the_installed_one() -> None:
    assert raceway.__version__ == importlib.metadata.version("raceway")


def test_import_is_light_and_silent() -> None:
    program = "import sys, raceway; print(*sorted(set(sys.argv[1:]) & set(sys.modules)))"
    command = [sys.executable, "-W", "error", "-c", program, *sorted(IMPORTED_LATER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")
