"""The command that plays with a trained policy: `raceway eval RUN`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TextIO

from raceway.errors import ConfigError


def eval_run(arguments: list[str]) -> int:
    """Evaluate the policy of a run, and film it if that is asked for."""
    given = _parser().parse_args(arguments)
    if given.video_episodes is not None and given.video is None:
        raise ConfigError("--video-episodes is of a video. Give --video FILE too.")
    from raceway.rollouts.video import Film, film_path

    path = film_path(given.video) if given.video else None
    from raceway.loaded_policy import load
    from raceway.machine import as_in_a_worker

    policy = load(given.run, given.which, network=given.network, trust=given.trust)
    settings = policy.env_settings(given.env)
    found = policy.about | {"seed": given.seed, "deterministic": given.deterministic}
    with ExitStack() as stack:
        stack.enter_context(as_in_a_worker())
        # Whether it can be filmed is seen before anything is played, which may take long.
        film = stack.enter_context(Film(settings)) if path else None
        if film is not None:
            policy.check_spaces(film.env.observation_space, film.env.action_space)
        how: dict[str, Any] = {"seed": given.seed, "deterministic": given.deterministic}
        with Progress(f"of {given.episodes} episodes") as progress:
            done = policy.evaluate(given.episodes, env=settings, told=progress, **how)
        found |= {
            "episodes": given.episodes,
            "mean_return": done.mean_return,
            "std_return": done.std_return,
            "mean_length": done.mean_length,
            "returns": done.returns.tolist(),
            "lengths": done.lengths.tolist(),
            "trained_return": policy.about["mean_return"],
        }
        if not given.json:
            _tell(found)
        if film is not None and path is not None:
            num = given.video_episodes or 1
            with Progress("pictures") as progress:
                film.shoot(policy, path, num, told=progress, **how)
            found |= {"video": str(path), "video_returns": film.returns}
            if not given.json:
                shown = ", ".join(f"{value:.2f}" for value in film.returns)
                print(f"Video saved to {path}: {'return' if num == 1 else 'returns'} {shown}", flush=True)
    if given.json:
        print(json.dumps(found), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raceway eval", description="Play whole episodes with the policy of a run.", allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )  # fmt: skip
    option = parser.add_argument
    option("run", metavar="RUN", help="the folder of a run")
    option("--episodes", type=_count, default=20, metavar="N", help="how many [20]")
    option("--deterministic", action=argparse.BooleanOptionalAction, default=True,
           help="take the most likely action, or that of the highest value, instead of drawing one [yes]")  # fmt: skip
    option("--which", default="best", metavar="CHECKPOINT", help="best, latest, or a number of steps [best]")
    option("--seed", type=_seed, default=0, metavar="N", help="of the episodes, and of actions that are drawn [0]")
    option("--env", metavar="NAME", help="another environment; or that of the run again, if it is module:Id")
    option("--network", metavar="NAME", help="the network of the run again, if it is module:function")
    option("--trust", action="store_true", help="import modules that the run names")
    option("--video", metavar="FILE", help="film another episode, into a file that ends in .mp4 or .gif")
    option("--video-episodes", type=_count, metavar="N", help="episodes in the video [1]")
    option("--json", action="store_true", help="print one JSON object instead")
    return parser


def _tell(found: dict[str, Any]) -> None:
    returns, lengths = found["returns"], found["lengths"]
    how = "" if found["deterministic"] else ", actions drawn"
    print(f"{found['algorithm']} on {found['env']}, after {found['steps']:,} steps of training{how}")
    print(f"  episodes     {found['episodes']}")
    print(f"  mean return  {found['mean_return']:.2f} ± {found['std_return']:.2f}, "
          f"from {min(returns):.2f} to {max(returns):.2f}")  # fmt: skip
    print(f"  mean length  {found['mean_length']:.1f}, from {min(lengths)} to {max(lengths)}", flush=True)


class Progress(AbstractContextManager["Progress"]):
    """Shows how far something is: on a terminal in one line that changes, in a log by a line now and then.

    Args:
        what: is counted.
        stream: where it is shown.
        clock: by which it is now and then.
    """

    EVERY = (0.1, 10.0)
    """Seconds between two, on a terminal and in a log."""

    def __init__(self, what: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.what, self.stream, self._clock = what, stream or sys.stderr, clock
        self._live = self.stream.isatty()
        self._next = clock() + self.EVERY[not self._live]

    def __call__(self, done: int) -> None:
        """Show that so many are done, if it is time."""
        if self._clock() >= self._next:
            self._next = self._clock() + self.EVERY[not self._live]
            self._write(f"\r\x1b[K  {done} {self.what}" if self._live else f"  {done} {self.what}\n")

    def __exit__(self, *_: object) -> None:
        """Leave a terminal as it was."""
        self._write("\r\x1b[K" if self._live else "")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _count(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)


def _seed(text: str) -> int:
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)
