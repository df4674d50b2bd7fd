"""A program that saves checkpoints as a run does, for tests that kill it or make its system calls fail.

    python saving_program.py SCENARIO DIRECTORY

It calls getppid before and after the saves under test, which marks them in a trace. It imports only what saving needs.
"""

import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raceway.checkpoints import blocks
from raceway.checkpoints.saver import Saver
from raceway.checkpoints.store import Checkpoints

blocks.BLOCK_BYTES = 1024
_UNCHANGED_ROWS = 3 * blocks.BLOCK_BYTES // 8


def state_at(steps: int) -> dict[str, Any]:
    """Return a state with weights, other small arrays, and a large array of which some blocks never change."""
    large = np.arange(5 * blocks.BLOCK_BYTES // 8)
    large[_UNCHANGED_ROWS:] += steps
    return {"learner": {"policy": {"weight": np.full(7, steps)}}, "flow": (steps, np.full(3, steps)), "replay": large}


def save(directory: str, steps: int, state_steps: int | None = None) -> None:
    Checkpoints(directory, keep=1).save(state_at(state_steps or steps), {"steps": steps})


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save_between_marks(directory: str, steps: int, state_steps: int) -> None:
    os.getppid()
    save(directory, steps, state_steps)
    os.getppid()


def killed_before_pruning(directory: str) -> None:
    Checkpoints._prune = lambda self, steps: kill_self()  # type: ignore[method-assign]
    save(directory, 20)


def killed_between_renames(directory: str) -> None:
    rename = os.rename

    def rename_then_kill(old: Any, new: Any) -> None:
        rename(old, new)
        if Path(new).name.startswith(".was-"):
            kill_self()

    os.rename = rename_then_kill  # type: ignore[assignment]
    save(directory, 10, state_steps=20)


class MessageHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def attempt_saves(
    directory: str, break_disk: Callable[[], Any], repair_disk: Callable[[], Any], failing_steps: tuple[int, ...]
) -> None:
    """Save repeatedly with a `Saver` while the disk breaks and is repaired, and print the outcome."""
    handler, saver = MessageHandler(), Saver(Checkpoints(directory, keep=1), every=10, seconds=0)
    logging.getLogger("raceway").addHandler(handler)

    def attempt(steps: int) -> bool:
        return saver.save(lambda: state_at(steps), {"steps": steps}) is not None

    saved = [attempt(10)]
    break_disk()
    os.getppid()
    saved += [attempt(steps) for steps in failing_steps]
    os.getppid()
    readable_steps = Checkpoints(directory).newest_readable()[1]["flow"][0]
    repair_disk()
    saved += [attempt(steps) for steps in (30, 31)]
    print(json.dumps({"saved": saved, "readable_steps": readable_steps, "messages": handler.messages}))


def broken_from_outside(directory: str) -> None:
    attempt_saves(directory, lambda: None, lambda: None, failing_steps=(20,))


def full_disk(directory: str) -> None:
    filler = Path(directory) / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1024)):
                    pass
            except OSError:
                pass

    attempt_saves(directory, fill, filler.unlink, failing_steps=(20, 21))


def limited_file_size(directory: str) -> None:
    """Limit files to 700 bytes: the call that exceeds it writes a part, and the next one fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    attempt_saves(
        directory,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1])),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        failing_steps=(20, 21),
    )


SCENARIOS: dict[str, Callable[[str], None]] = {
    "later_steps": lambda directory: save_between_marks(directory, 20, 20),
    "same_steps": lambda directory: save_between_marks(directory, 10, 20),
    "killed_before_pruning": killed_before_pruning,
    "killed_between_renames": killed_between_renames,
    "broken_from_outside": broken_from_outside,
    "full_disk": full_disk,
    "limited_file_size": limited_file_size,
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2])
