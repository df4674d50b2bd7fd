"""A program that trains algorithms, each in a process that is killed (SIGKILL) in its third iteration.

Its arguments are the name of an algorithm and the settings of its run, as JSON.
"""

import json
import os
import signal
import sys
from typing import Any

from raceway.training.train import train
from raceway.ui.callback import Callback


class KillItself(Callback):
    """Kills the process after the third iteration, before anything of it is saved."""

    def on_iteration_end(self, run: Any, metrics: dict[str, Any]) -> None:
        if metrics["time/iterations"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    for name, settings in json.loads(sys.argv[1]).items():
        child = os.fork()
        if not child:
            train(name, callbacks=[KillItself()], iterations=10**6, progress=False, **settings)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"{name} was not killed: it ended with {status}")


if __name__ == "__main__":
    main()
