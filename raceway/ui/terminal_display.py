"""Displays of a run: a live display on a terminal, plain lines of text in a log."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from raceway.formatting import format_clock, format_count
from raceway.signals import EXIT_CODES
from raceway.ui.breakpoints import BreakpointHook
from raceway.ui.callback import Display
from raceway.ui.output_stream import OutputStream
from raceway.ui.phase_times import PhaseTimes
from raceway.ui.policy_lines import PolicyMetrics, evaluation_of_policies, summary_of_policies
from raceway.ui.progress_text import MEAN_REWARD, format_steps, length_lines
from raceway.ui.sparkline import SPARKLINE_WIDTH, sparkline
from raceway.ui.training_description import describe_training
from raceway.ui.training_run import TrainingRun

RULE = "=" * 60
_FAILURES = {
    "rollout/env_failures": "environment failure", "rollout/worker_restarts": "worker restart",
    "dataset/worker_restarts": "reader restart",
}  # fmt: skip


class TextDisplay(Display):
    """Plain lines of text: a banner, every tenth iteration and the last, every evaluation, and a summary."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = OutputStream(stream)
        self._last_row: dict[str, Any] | None = None
        self._last_printed, self._eval_episodes = -1, 0
        self.policy_metrics = PolicyMetrics(())
        self._last_print_time = time.monotonic()

    def write(self, *lines: str) -> None:
        """Write lines without buffering. If the stream fails, training continues without output."""
        self._stream.write("\n".join(lines) + "\n")
        self._stream.flush()

    def on_train_start(self, run: TrainingRun) -> None:
        """Print the settings."""
        training = run.training
        self._eval_episodes = training.cfg.eval_episodes
        self.policy_metrics = PolicyMetrics(training.policies)
        self.write(RULE, f"{training.label.upper()} on {training.env.name}", RULE, "Configuration:")
        self.write(
            *(f"  {line}" for line in describe_training(training)),
            f"  Run directory: {run.directory}",
            "",
            "Training...",
        )

    def on_iteration_end(self, run: TrainingRun, metrics: dict[str, Any]) -> None:
        """Print every tenth iteration, and at least one every 30 seconds."""
        self._last_row = metrics
        self.policy_metrics.add(metrics)
        index = metrics["time/iterations"] - 1
        interval = 10 ** max(1, len(str(index)) - 2)  # every hundredth from 1000 on, and so forth: runs can be fast
        if index % interval == 0 or time.monotonic() - self._last_print_time > 30:
            self._print_last_row()

    def on_evaluation_end(self, run: TrainingRun, metrics: dict[str, Any]) -> None:
        """Print the evaluation, after the line of its iteration."""
        self._last_row = metrics
        self._print_last_row()
        episodes = f" ({format_count(self._eval_episodes, 'episode')})" if self._eval_episodes else ""
        self.write(f"Evaluation at {format_steps(metrics)} | Mean Reward{episodes}: {format_evaluation(metrics)}")

    def _print_row(self, row: dict[str, Any]) -> None:
        self._last_printed, self._last_print_time = row["time/iterations"] - 1, time.monotonic()
        mean = row.get("rollout/ep_rew_mean")
        reward = f"{MEAN_REWARD}: {'    none' if mean is None else f'{mean:8.1f}'}"
        state = f"Epoch: {row['dataset/epoch']:8.2f}" if "dataset/epoch" in row else reward
        policies = self.policy_metrics.texts()
        rest = [f"{name}: {text}" for name, text in policies.items()] if policies else [f"Loss: {_format_loss(row)}"]
        self.write(" | ".join([f"Iteration {self._last_printed:4d}", state, *rest]))

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        """Print that a checkpoint was saved, after the line of its iteration."""
        self._print_last_row()
        self.write(f"Saved at {run.steps:,} {run.training.cfg.progress.noun}")

    def on_train_end(self, run: TrainingRun, summary: dict[str, Any]) -> None:
        """Print the summary."""
        self._print_last_row()
        self.write(*summary_lines(summary, self._last_row))

    def _print_last_row(self) -> None:
        if self._last_row is not None and self._last_row["time/iterations"] - 1 != self._last_printed:
            self._print_row(self._last_row)


def format_evaluation(row: dict[str, Any]) -> str:
    """Return the result of an evaluation as text."""
    success = f", success rate {row['eval/success_rate']:.0%}" if "eval/success_rate" in row else ""
    return f"{row['eval/mean_reward']:.1f} ± {row['eval/std_reward']:.1f}{success}{evaluation_of_policies(row)}"


def _format_loss(row: dict[str, Any]) -> str:
    """Return the loss as text, that of the first objective if there are several.

    There is none before the first gradient step of an algorithm with replay.
    """
    losses = [value for name, value in row.items() if name.startswith("train/") and name.endswith("loss")]
    return f"{losses[0]:8.4f}" if losses else "    none"


def summary_lines(summary: dict[str, Any], last_row: dict[str, Any] | None) -> list[str]:
    """Return a summary as lines of text."""
    stopped = summary["stopped_by"] in EXIT_CODES
    title = f"Stopped. Resume with: raceway resume {summary['run_dir']}" if stopped else "Training Complete!"
    if stopped and summary["checkpoint"] is None:
        title = "Stopped before the first checkpoint: by a second signal, or because an iteration took too long."
    if last_row is None and not stopped and summary["resumed_at"] is not None:
        title = f"Nothing left to do: {summary['stopped_by']} was already reached. Set a higher value to continue."
    lines = [RULE, title, f"  Total time: {summary['train_seconds']:.2f}s", *length_lines(summary)]
    lines += summary_of_policies(summary)
    if summary["success_rate"] is not None:
        lines.append(f"  Success rate (last 100 episodes): {summary['success_rate']:.1%}")
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
    return ", ".join(format_count(row[name], noun) for name, noun in _FAILURES.items() if name in row)


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
        self._policy_metrics = PolicyMetrics(())
        self._start_time = time.monotonic()

    def on_train_start(self, run: TrainingRun) -> None:
        """Print the settings, and start the display."""
        from rich.live import Live

        training = self._training = run.training
        self._policy_metrics = PolicyMetrics(training.policies)
        self._console.print(f"[bold]{training.label}[/bold] on [bold]{training.env.name}[/bold]", highlight=False)
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

    def on_iteration_end(self, run: TrainingRun, metrics: dict[str, Any]) -> None:
        """Update the displayed metrics."""
        self._row = metrics
        if metrics.get("rollout/ep_rew_mean") is not None:
            self._mean_returns.append(metrics["rollout/ep_rew_mean"])
        self._phase_times.add(metrics)
        self._policy_metrics.add(metrics)
        if self._text_display is not None:
            self._text_display.on_iteration_end(run, metrics)

    def on_evaluation_end(self, run: TrainingRun, metrics: dict[str, Any]) -> None:
        """Update the displayed evaluation."""
        self._row = metrics
        self._evaluation = f"{format_evaluation(metrics)}  at {format_steps(metrics)}"
        if self._text_display is not None:
            self._text_display.on_evaluation_end(run, metrics)

    def on_train_end(self, run: TrainingRun, summary: dict[str, Any]) -> None:
        """Stop the display, and print the summary."""
        self._stop()
        for line in summary_lines(summary, self._row)[1:-1]:
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
        self._text_display.policy_metrics = self._policy_metrics

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
            for cells in self._progress_rows(row, elapsed):
                grid.add_row(*cells)
            for name, text in self._policy_metrics.texts().items():
                grid.add_row(name, text)
            if self._evaluation is not None:
                grid.add_row("evaluation", self._evaluation)
            if not self._training.policies:
                grid.add_row("loss", _format_loss(row).strip())
            grid.add_row("bottleneck", self._bottleneck())
            if any(name in row for name in _FAILURES):
                grid.add_row("failures", _describe_failures(row))
            if fraction_done is not None:
                grid.add_row("", ProgressBar(total=1.0, completed=fraction_done, width=44))
                grid.add_row("time", f"{format_clock(elapsed)} elapsed, {format_clock(seconds_left)} left")
            else:
                grid.add_row("time", f"{format_clock(elapsed)} elapsed")
        title = f"{self._training.label} · {self._training.env.name} · seed {self._training.cfg.seed}"
        return Panel(grid, title=title, title_align="left", expand=False, border_style="blue")

    def _progress_rows(self, row: dict[str, Any], elapsed: float) -> list[tuple[str, str]]:
        """Return the labels and texts that depend on the source of the run."""
        if "dataset/epoch" in row:
            speed = f"{row['time/updates_per_second']:,.0f} updates/s"
            return [("updates", format_steps(row)), ("epoch", f"{row['dataset/epoch']:,.2f}"), ("speed", speed)]
        mean = row["rollout/ep_rew_mean"]
        mean_text = "none yet" if mean is None else f"[bold green]{mean:.1f}[/bold green]"
        several = ", all agents together" if self._training.policies else ""
        return [
            ("return", f"{mean_text}  [green]{sparkline(self._mean_returns)}[/green]"),
            ("", f"[dim]mean of the last 100 episodes{several}[/dim]"),
            ("speed", f"{row['time/fps']:,.0f} steps/s   {row['time/episodes'] / elapsed:,.1f} episodes/s"),
        ]

    def _progress(self, row: dict[str, Any], elapsed: float) -> tuple[float | None, float]:
        """Return the fraction of the run that is done, by the nearest limit, and the estimated seconds left."""
        cfg = self._training.cfg
        limits = [
            (row["time/iterations"], cfg.num_iterations),
            (cfg.progress.of(row), cfg.total_steps),
            (elapsed, cfg.stop_seconds),
        ]
        fraction_done = max((min(1.0, value / limit) for value, limit in limits if limit), default=None)
        return fraction_done, elapsed * (1 - fraction_done) / fraction_done if fraction_done else 0.0

    def _bottleneck(self) -> str:
        """Return the share of time of every phase, largest first."""
        shares = self._phase_times.texts()
        return "   ".join([f"[bold]{shares[0]}[/bold]", *shares[1:]]) if shares else ""
