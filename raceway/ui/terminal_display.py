"""Displays of a run: a live display on a terminal, plain lines of text in a log."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from gymnasium.spaces import Box

from raceway.algorithms.setting_sources import describe_sources
from raceway.formatting import format_clock, format_count
from raceway.signals import EXIT_CODES
from raceway.ui.breakpoints import BreakpointHook
from raceway.ui.callback import Display
from raceway.ui.output_stream import OutputStream
from raceway.ui.phase_times import PhaseTimes
from raceway.ui.sparkline import SPARKLINE_WIDTH, sparkline

RULE = "=" * 60
MEAN_REWARD = "Mean Reward (last 100 episodes)"
"""The name of the one number by which training is judged, wherever it is printed."""


def describe_training(training: Any) -> list[str]:
    """Return the settings of a training as lines of text."""
    cfg, (observation_space, action_space) = training.cfg, training.spaces
    num_iterations, num_episodes = cfg.num_iterations, getattr(cfg, "episodes_per_iter", None)
    shape = observation_space.shape
    where = format_count(training.num_workers, "worker") if training.num_workers else "in this process"
    lines = [
        f"Environment: {training.env.name}",
        f"Observation dim: {math.prod(shape)}" if shape else f"Observations: {observation_space}",
        f"Action dim: {getattr(action_space, 'n', None) or math.prod(action_space.shape)}",
        f"Continuous actions: {isinstance(action_space, Box)}",
        f"Engine: {cfg.engine}, {where}" if training.num_workers else f"Engine: {where}",
    ]
    chosen_by = "auto chose" if cfg.num_workers == "auto" else "using"
    lines += [f"  {chosen_by} {training.num_workers_reason}"] if training.num_workers_reason else []
    lines += [f"Training iterations: {num_iterations}"] if num_iterations else []
    lines += [f"Total timesteps: {cfg.total_timesteps:,}"] if cfg.total_timesteps else []
    if num_episodes:
        lines.append(f"Episodes per iteration: {num_episodes}")
        lines += [f"Total episodes: {num_iterations * num_episodes}"] if num_iterations else []
    lines += [f"Resumed from: {training.resume_point.checkpoint.path}"] if training.resume_point else []
    return [
        *lines,
        f"Seed: {cfg.seed}",
        *describe_sources(cfg, training.setting_sources, training.env.name),
    ]


class TextDisplay(Display):
    """Plain lines of text: a banner, every tenth iteration and the last, every evaluation, and a summary."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = OutputStream(stream)
        self._last_row: dict[str, Any] | None = None
        self._last_printed, self._eval_episodes = -1, 0
        self._last_print_time = time.monotonic()

    def write(self, *lines: str) -> None:
        """Write lines without buffering. If the stream fails, training continues without output."""
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()

    def on_start(self, training: Any, path: Path) -> None:
        """Print the settings."""
        self._eval_episodes = training.cfg.eval_episodes
        self.write(RULE, f"{training.algorithm.name.upper()} on {training.env.name}", RULE, "Configuration:")
        self.write(
            *(f"  {line}" for line in describe_training(training)), f"  Run directory: {path}", "", "Training..."
        )

    def on_iteration(self, row: dict[str, Any]) -> None:
        """Print every tenth iteration, and at least one every 30 seconds."""
        self._last_row = row
        index = row["time/iterations"] - 1
        interval = 10 ** max(1, len(str(index)) - 2)  # every hundredth from 1000 on, and so forth: runs can be fast
        if index % interval == 0 or time.monotonic() - self._last_print_time > 30:
            self._print_row(row)
        if "eval/mean_reward" in row:
            self._print_last_row()
            episodes = f" ({format_count(self._eval_episodes, 'episode')})" if self._eval_episodes else ""
            steps = row["time/total_timesteps"]
            self.write(f"Evaluation at {steps:,} steps | Mean Reward{episodes}: {format_evaluation(row)}")

    def _print_row(self, row: dict[str, Any]) -> None:
        self._last_printed, self._last_print_time = row["time/iterations"] - 1, time.monotonic()
        mean = row["rollout/ep_rew_mean"]
        reward = "    none" if mean is None else f"{mean:8.1f}"
        self.write(f"Iteration {self._last_printed:4d} | {MEAN_REWARD}: {reward} | Loss: {_format_loss(row)}")

    def on_checkpoint(self, steps: int) -> None:
        """Print that a checkpoint was saved, after the line of its iteration."""
        self._print_last_row()
        self.write(f"Saved at {steps:,} steps")

    def on_end(self, result: Any) -> None:
        """Print the summary."""
        self._print_last_row()
        self.write(*summary_lines(result.summary, self._last_row))

    def _print_last_row(self) -> None:
        if self._last_row is not None and self._last_row["time/iterations"] - 1 != self._last_printed:
            self._print_row(self._last_row)


def format_evaluation(row: dict[str, Any]) -> str:
    """Return the result of an evaluation as text."""
    return f"{row['eval/mean_reward']:.1f} ± {row['eval/std_reward']:.1f}"


def _format_loss(row: dict[str, Any]) -> str:
    """Return the loss as text. There is none before the first gradient step of an algorithm with replay."""
    return f"{row['train/loss']:8.4f}" if "train/loss" in row else "    none"


def summary_lines(summary: dict[str, Any], last_row: dict[str, Any] | None) -> list[str]:
    """Return a summary as lines of text."""
    stopped = summary["stopped_by"] in EXIT_CODES
    title = f"Stopped. Resume with: raceway resume {summary['run_dir']}" if stopped else "Training Complete!"
    if stopped and summary["checkpoint"] is None:
        title = "Stopped before the first checkpoint: by a second signal, or because an iteration took too long."
    if last_row is None and not stopped and summary["resumed_at"] is not None:
        title = f"Nothing left to do: {summary['stopped_by']} was already reached. Set a higher value to continue."
    seconds = summary["train_seconds"]
    final = summary["mean_return"]
    lines = [
        RULE,
        title,
        f"  Total time: {seconds:.2f}s",
        f"  Episodes: {summary['episodes']} ({summary['episodes'] / seconds:.1f} episodes/sec)",
        f"  Steps: {summary['timesteps']:,} ({summary['fps']:,.0f} steps/sec)",
        f"  {MEAN_REWARD}: {'none' if final is None else format(final, '.1f')}",
    ]
    if summary["best_eval_mean_return"] is not None:
        last = summary["eval_mean_return"]
        last_text = "abandoned" if last is None else f"{last:.1f}"
        lines.append(f"  Last evaluation: {last_text} (best: {summary['best_eval_mean_return']:.1f})")
    if summary["env_failures"]:
        lines.append(f"  Environment failures: {summary['env_failures']:,} (each discarded an episode)")
    if summary["worker_restarts"]:
        lines.append(f"  Worker restarts: {summary['worker_restarts']:,}")
    return [*lines, f"  Stopped by: {summary['stopped_by']}", f"  Run directory: {summary['run_dir']}", RULE]


def _describe_failures(row: dict[str, Any]) -> str:
    """Return the failures so far as text."""
    counts = {"environment failure": "rollout/env_failures", "worker restart": "rollout/worker_restarts"}
    return ", ".join(format_count(row[name], noun) for noun, name in counts.items() if name in row)


class LiveDisplay(Display):
    """A display on a terminal that is refreshed several times a second; plain lines after a breakpoint."""

    def __init__(self, console: Any = None) -> None:
        from rich.console import Console

        self._console = console or Console()
        self._live: Any = None
        self._breakpoint_hook = BreakpointHook(self._continue_as_text)
        self._text_display: TextDisplay | None = None
        self._training: Any = None
        self._row: dict[str, Any] | None = None
        self._evaluation: str | None = None
        self._mean_returns: deque[float] = deque(maxlen=SPARKLINE_WIDTH)
        self._phase_times = PhaseTimes()
        self._start_time = time.monotonic()

    def on_start(self, training: Any, path: Path) -> None:
        """Print the settings, and start the display."""
        from rich.live import Live

        self._training = training
        self._console.print(
            f"[bold]{training.algorithm.name}[/bold] on [bold]{training.env.name}[/bold]", highlight=False
        )
        for line in describe_training(training)[1:]:
            self._console.print(f"  {line}", highlight=False, markup=False)
        self._start_time = time.monotonic()
        # The display may be on stderr: what the program prints to a file on stdout is left alone.
        options: Any = {
            "redirect_stdout": sys.stdout is not None and sys.stdout.isatty(),
            "get_renderable": self._render,
        }
        self._live = Live(console=self._console, refresh_per_second=8, **options)
        self._live.start()
        self._breakpoint_hook.install()

    def on_iteration(self, row: dict[str, Any]) -> None:
        """Update the displayed metrics."""
        self._row = row
        if row["rollout/ep_rew_mean"] is not None:
            self._mean_returns.append(row["rollout/ep_rew_mean"])
        if "eval/mean_reward" in row:
            self._evaluation = f"{format_evaluation(row)}  at {row['time/total_timesteps']:,} steps"
        self._phase_times.add(row)
        if self._text_display is not None:
            self._text_display.on_iteration(row)

    def on_end(self, result: Any) -> None:
        """Stop the display, and print the summary."""
        self._stop()
        for line in summary_lines(result.summary, self._row)[1:-1]:
            self._console.print(line, highlight=False, markup=False)

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._breakpoint_hook.remove()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _continue_as_text(self) -> None:
        self._stop()
        stream: Any = self._console.file
        self._text_display = TextDisplay(stream)

    def _render(self) -> Any:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", justify="right", min_width=10)
        grid.add_column(min_width=44)
        row, elapsed = self._row, time.monotonic() - self._start_time
        if row is None:
            grid.add_row("", f"starting, {elapsed:.0f} s")
        else:
            fraction_done, seconds_left = self._progress(row, elapsed)
            total = self._training.cfg.num_iterations
            grid.add_row("iteration", f"[bold]{row['time/iterations']}[/bold]" + (f" of {total}" if total else ""))
            mean = row["rollout/ep_rew_mean"]
            mean_text = "none yet" if mean is None else f"[bold green]{mean:.1f}[/bold green]"
            grid.add_row("return", f"{mean_text}  [green]{sparkline(self._mean_returns)}[/green]")
            grid.add_row("", "[dim]mean of the last 100 episodes[/dim]")
            if self._evaluation is not None:
                grid.add_row("evaluation", self._evaluation)
            grid.add_row("loss", _format_loss(row).strip())
            grid.add_row("speed", f"{row['time/fps']:,.0f} steps/s   {row['time/episodes'] / elapsed:,.1f} episodes/s")
            grid.add_row("bottleneck", self._bottleneck())
            if "rollout/env_failures" in row or "rollout/worker_restarts" in row:
                grid.add_row("failures", _describe_failures(row))
            if fraction_done is not None:
                grid.add_row("", ProgressBar(total=1.0, completed=fraction_done, width=44))
                grid.add_row("time", f"{format_clock(elapsed)} elapsed, {format_clock(seconds_left)} left")
            else:
                grid.add_row("time", f"{format_clock(elapsed)} elapsed")
        title = f"{self._training.algorithm.name} · {self._training.env.name} · seed {self._training.cfg.seed}"
        return Panel(grid, title=title, title_align="left", expand=False, border_style="blue")

    def _progress(self, row: dict[str, Any], elapsed: float) -> tuple[float | None, float]:
        """Return the fraction of the run that is done, by the nearest limit, and the estimated seconds left."""
        cfg = self._training.cfg
        limits = [
            (row["time/iterations"], cfg.num_iterations),
            (row["time/total_timesteps"], cfg.total_timesteps),
            (elapsed, cfg.stop_seconds),
        ]
        fraction_done = max((min(1.0, value / limit) for value, limit in limits if limit), default=None)
        return fraction_done, elapsed * (1 - fraction_done) / fraction_done if fraction_done else 0.0

    def _bottleneck(self) -> str:
        """Return the share of time of every phase, largest first."""
        shares = self._phase_times.texts()
        return "   ".join([f"[bold]{shares[0]}[/bold]", *shares[1:]]) if shares else ""
