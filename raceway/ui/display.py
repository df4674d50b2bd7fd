"""What a person sees of a run: a live display on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

from gymnasium.spaces import Box

from raceway.formatting import format_count
from raceway.signals import EXIT_CODES

_log = logging.getLogger(__name__)

RULE = "=" * 60
_BARS = "▁▂▃▄▅▆▇█"


class Watcher(AbstractContextManager["Watcher"]):
    """Is told of a run."""

    def begin(self, training: Any, path: Path) -> None:
        """Hear that a run begins, in this folder."""

    def iteration(self, row: dict[str, Any]) -> None:
        """Hear the metrics of an iteration."""

    def saved(self, steps: int) -> None:
        """Hear that a checkpoint was saved, after so many steps."""

    def end(self, result: Any) -> None:
        """Hear that it is over."""

    def __exit__(self, *_: object) -> None:
        """Give back what it uses."""


def described(training: Any) -> list[str]:
    """Return the lines that say what a run is."""
    cfg, (obs, actions) = training.cfg, training.spaces
    most, episodes = cfg.num_iterations, getattr(cfg, "episodes_per_iter", None)
    where = format_count(training.num_workers, "worker") if training.num_workers else "in this process"
    lines = [
        f"Environment: {training.env.name}",
        f"Observation dim: {math.prod(obs.shape)}" if obs.shape else f"Observations: {obs}",
        f"Action dim: {getattr(actions, 'n', None) or math.prod(actions.shape)}",
        f"Continuous actions: {isinstance(actions, Box)}",
        f"Engine: {cfg.engine}, {where}" if training.num_workers else f"Engine: {where}",
    ]
    lines += [f"  auto chose {training.why}"] if training.why else []
    lines += [f"Training iterations: {most}"] if most else []
    lines += [f"Total timesteps: {cfg.total_timesteps:,}"] if cfg.total_timesteps else []
    if episodes:
        lines.append(f"Episodes per iteration: {episodes}")
        lines += [f"Total episodes: {most * episodes}"] if most else []
    lines += [f"Goes on from: {training.start.checkpoint.path}"] if training.start else []
    return [*lines, f"Seed: {cfg.seed}"]


class Lines(Watcher):
    """Plain lines: a banner, every tenth iteration and the last, and a summary."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._last: dict[str, Any] | None = None
        self._shown = -1
        self._spoke = time.monotonic()

    def say(self, *lines: str) -> None:
        """Write lines at once. If whoever read them has gone, training goes on without."""
        stream = self._stream or sys.stdout
        try:
            print(*lines, sep="\n", file=stream, flush=True)
        except BrokenPipeError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
            _log.warning("nobody reads what is shown any more; training goes on")

    def begin(self, training: Any, path: Path) -> None:
        """Say what is run."""
        self.say(RULE, f"{training.algorithm.name.upper()} on {training.env.name}", RULE, "Configuration:")
        self.say(*(f"  {line}" for line in described(training)), f"  Run folder: {path}", "", "Training...")

    def iteration(self, row: dict[str, Any]) -> None:
        """Say every tenth, and one at least every half minute."""
        self._last = row
        number = row["time/iterations"] - 1
        if number % 10 == 0 or time.monotonic() - self._spoke > 30:
            self._line(row)

    def _line(self, row: dict[str, Any]) -> None:
        self._shown, self._spoke = row["time/iterations"] - 1, time.monotonic()
        mean = _mean(row)
        reward = "    none" if mean is None else f"{mean:8.1f}"
        self.say(f"Iteration {self._shown:4d} | Mean Reward: {reward} | Loss: {_loss(row)}")

    def saved(self, steps: int) -> None:
        """Say so, after the iteration."""
        self._catch_up()
        self.say(f"Saved at {steps:,} steps")

    def end(self, result: Any) -> None:
        """Say how it went."""
        self._catch_up()
        self.say(*closing(result.summary, self._last))

    def _catch_up(self) -> None:
        if self._last is not None and self._last["time/iterations"] - 1 != self._shown:
            self._line(self._last)


def _mean(row: dict[str, Any]) -> float | None:
    """Return the mean return of the episodes that ended in an iteration; if none did, of the last that have."""
    mean: float | None = row["rollout/iteration_rew_mean"]
    return row["rollout/ep_rew_mean"] if mean is None else mean


def _loss(row: dict[str, Any]) -> str:
    """Return the loss of an iteration. In the first of an algorithm with replay nothing is trained on yet."""
    return f"{row['train/loss']:8.4f}" if "train/loss" in row else "    none"


def closing(summary: dict[str, Any], last: dict[str, Any] | None) -> list[str]:
    """Return the lines of a summary."""
    stopped = summary["stopped_by"] in EXIT_CODES
    title = f"Stopped. Go on with: raceway resume {summary['run_dir']}" if stopped else "Training Complete!"
    if stopped and summary["checkpoint"] is None:
        title = "Stopped before anything was saved: a second signal came, or an iteration took too long to wait for."
    if last is None and not stopped and summary["resumed_at"] is not None:
        title = f"Nothing left to do: {summary['stopped_by']} was reached before. Give a higher one to go on."
    seconds = summary["train_seconds"]
    final = summary["mean_return"] if last is None else _mean(last)
    return [
        RULE,
        title,
        f"  Total time: {seconds:.2f}s",
        f"  Episodes: {summary['episodes']} ({summary['episodes'] / seconds:.1f} episodes/sec)",
        f"  Steps: {summary['timesteps']:,} ({summary['fps']:,.0f} steps/sec)",
        f"  Final Mean Reward: {'none' if final is None else format(final, '.1f')}",
        f"  Stopped by: {summary['stopped_by']}",
        f"  Run folder: {summary['run_dir']}",
        RULE,
    ]


def sparkline(values: list[float], width: int = 40) -> str:
    """Draw values as a line of bars, the last of them if there are more than fit.

    >>> sparkline([0.0, 5.0, 10.0])
    '▁▅█'
    """
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in shown)


class Live(Watcher):
    """A display on a terminal that is drawn anew several times a second."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console

        self._console = console or Console()
        self._live: Any = None
        self._training: Any = None
        self._row: dict[str, Any] | None = None
        self._means: list[float] = []
        self._phases: dict[str, float] = {}
        self._began = time.monotonic()

    def begin(self, training: Any, path: Path) -> None:
        """Say what is run, and start drawing."""
        from rich.live import Live as RichLive

        self._training = training
        self._console.print(
            f"[bold]{training.algorithm.name}[/bold] on [bold]{training.env.name}[/bold]", highlight=False
        )
        for line in described(training)[1:]:
            self._console.print(f"  {line}", highlight=False, markup=False)
        self._began = time.monotonic()
        self._live = RichLive(console=self._console, refresh_per_second=8, get_renderable=self._picture)
        self._live.start()

    def iteration(self, row: dict[str, Any]) -> None:
        """Take in the figures."""
        self._row = row
        if row["rollout/iteration_rew_mean"] is not None:
            self._means.append(row["rollout/iteration_rew_mean"])
        for name, value in row.items():
            if name.endswith("_seconds") and name.startswith("time/"):
                phase = name.removeprefix("time/").removesuffix("_seconds")
                self._phases[phase] = self._phases.get(phase, 0.0) + value

    def end(self, result: Any) -> None:
        """Stop drawing, and say how it went."""
        self._stop()
        for line in closing(result.summary, self._row)[1:-1]:
            self._console.print(line, highlight=False, markup=False)

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _picture(self) -> Any:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right", min_width=10)
        grid.add_column(min_width=44)
        row, elapsed = self._row, time.monotonic() - self._began
        if row is None:
            grid.add_row("", f"starting, {elapsed:.0f} s")
        else:
            done, left = self._progress(row, elapsed)
            most = self._training.cfg.num_iterations
            grid.add_row("iteration", f"[bold]{row['time/iterations']}[/bold]" + (f" of {most}" if most else ""))
            mean = row["rollout/ep_rew_mean"]
            shown = "none yet" if mean is None else f"[bold green]{mean:.1f}[/bold green]"
            grid.add_row("return", f"{shown}  [green]{sparkline(self._means)}[/green]")
            grid.add_row("loss", _loss(row).strip())
            grid.add_row("speed", f"{row['time/fps']:,.0f} steps/s   {row['time/episodes'] / elapsed:,.1f} episodes/s")
            grid.add_row("bottleneck", self._bottleneck())
            if done is not None:
                grid.add_row("", ProgressBar(total=1.0, completed=done, width=44))
                grid.add_row("time", f"{clock(elapsed)} gone, {clock(left)} left")
            else:
                grid.add_row("time", f"{clock(elapsed)} gone")
        name = f"{self._training.algorithm.name} · {self._training.env.name} · seed {self._training.cfg.seed}"
        return Panel(grid, title=name, title_align="left", expand=False, border_style="blue")

    def _progress(self, row: dict[str, Any], elapsed: float) -> tuple[float | None, float]:
        """Return how much of the run is done, by the limit that is nearest, and the seconds left."""
        cfg = self._training.cfg
        parts = [
            (row["time/iterations"], cfg.num_iterations),
            (row["time/total_timesteps"], cfg.total_timesteps),
            (elapsed, cfg.stop_seconds),
        ]
        done = max((min(1.0, have / limit) for have, limit in parts if limit), default=None)
        return done, elapsed * (1 - done) / done if done else 0.0

    def _bottleneck(self) -> str:
        total = sum(self._phases.values()) or 1.0
        order = sorted(self._phases.items(), key=lambda one: -one[1])
        shares = [f"{name} {spent / total:.0%}" for name, spent in order]
        return "   ".join([f"[bold]{shares[0]}[/bold]", *shares[1:]]) if shares else ""


def clock(seconds: float) -> str:
    """Return a time as people read it.

    >>> clock(75), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def watcher_for(stream: TextIO) -> Watcher:
    """Return a live display for a terminal, and lines for anything else."""
    return Live() if stream.isatty() else Lines(stream)
