"""A run whose output stream is closed by its reader."""

import subprocess
import sys
from pathlib import Path

from raceway.checkpoints.store import Checkpoints


def test_training_continues_when_its_output_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raceway", "train", "ppo", "--local", "--num-envs", "4", "--iterations", "40"]
    with subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.readline()
        run.stdout.close()
        error = run.stderr.read()
    assert run.returncode == 0, error
    assert "Traceback" not in error
    assert "the output stream was closed by its reader" in error
    assert Checkpoints(tmp_path / "run" / "checkpoints").find("latest").about["iterations"] == 40
