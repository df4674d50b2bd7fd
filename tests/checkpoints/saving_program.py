"""Saves checkpoints as a run does, for tests that make its system calls fail, or kill it.

    python saving_program.py WAY FOLDER

It calls getppid before and after what is to be attacked, which shows in a trace. Only what saving needs is imported.
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

blocks.BLOCK = 1024
_SAME = 3 * blocks.BLOCK // 8


def state_of(steps: int) -> dict[str, Any]:
    """Return a state with all that a checkpoint has: weights, other arrays, and blocks of which some stay the same."""
    long = np.arange(5 * blocks.BLOCK // 8)
    long[_SAME:] += steps
    return {"learner": {"policy": {"weight": np.full(7, steps)}}, "flow": (steps, np.full(3, steps)), "replay": long}


def save(folder: str, steps: int, of: int | None = None) -> None:
    Checkpoints(folder, keep=1).save(state_of(of or steps), {"steps": steps})


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attacked(folder: str, steps: int, of: int) -> None:
    os.getppid()
    save(folder, steps, of)
    os.getppid()


def killed_before_it_prunes(folder: str) -> None:
    Checkpoints._prune = lambda self, steps: killed()  # type: ignore[method-assign]
    save(folder, 20)


def killed_between_two_renames(folder: str) -> None:
    rename = os.rename

    def last(old: Any, new: Any) -> None:
        rename(old, new)
        if Path(new).name.startswith(".was-"):
            killed()

    os.rename = last  # type: ignore[assignment]
    save(folder, 10, of=20)


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def attempts(folder: str, break_it: Callable[[], Any], mend: Callable[[], Any], bad: tuple[int, ...]) -> None:
    """Save by a `Saver` again and again, of which some attempts go wrong, and print what came of it."""
    said, saver = Said(), Saver(Checkpoints(folder, keep=1), every=10, seconds=0)
    logging.getLogger("raceway").addHandler(said)

    def tried(steps: int) -> bool:
        return saver.save(lambda: state_of(steps), {"steps": steps}) is not None

    results = [tried(10)]
    break_it()
    os.getppid()
    results += [tried(steps) for steps in bad]
    os.getppid()
    held = Checkpoints(folder).newest_good()[1]["flow"][0]
    mend()
    results += [tried(steps) for steps in (30, 31)]
    print(json.dumps({"saved": results, "held": held, "said": said.messages}))


def broken_from_outside(folder: str) -> None:
    attempts(folder, lambda: None, lambda: None, bad=(20,))


def full(folder: str) -> None:
    filler = Path(folder) / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1024)):
                    pass
            except OSError:
                pass

    attempts(folder, fill, filler.unlink, bad=(20, 21))


def limited(folder: str) -> None:
    """Let files be of 700 bytes at most: the call that goes beyond writes a part, and the next fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    attempts(
        folder,
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1])),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
        bad=(20, 21),
    )


WAYS: dict[str, Callable[[str], None]] = {
    "next": lambda folder: attacked(folder, 20, 20),
    "again": lambda folder: attacked(folder, 10, 20),
    "killed_before_it_prunes": killed_before_it_prunes,
    "killed_between_two_renames": killed_between_two_renames,
    "broken_from_outside": broken_from_outside,
    "full": full,
    "limited": limited,
}

if __name__ == "__main__":
    WAYS[sys.argv[1]](sys.argv[2])
