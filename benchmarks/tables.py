"""The tables of docs/benchmarks/reinforce.md: 100 x 100 episodes, in one process and on workers, several seeds.

python benchmarks/tables.py [--seeds 5] [--local-seeds 5] [--envs cartpole ant] [--write-only]

With --write-only the page is written from earlier measurements.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import RESULTS, Report

from raceway.runs.statistics import bootstrap_interval, interquartile_mean
from raceway.training.train import train
from raceway.training.train_seeds import learning_curve
from raceway.ui.training_plots import plot_seeds

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "reinforce.md"
MODES = {"distributed": {"engine": "process", "num_workers": 2}, "local": {"engine": "inline"}}


def measure(env: str, mode: str, seed: int) -> dict[str, Any]:
    """Train once and return the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"run_dir": f"{folder}/run", "metrics_interval": 0.0, "progress": False}
        result = train("reinforce", env=env, seed=seed, **options, **MODES[mode])
        metrics, summary = result.metrics, result.summary
    return {
        "env": env,
        "mode": mode,
        "seed": seed,
        "seconds": summary["train_seconds"],
        "episodes": summary["episodes"],
        "timesteps": summary["timesteps"],
        "final_mean_reward": metrics[-1]["rollout/iteration_rew_mean"],
        "best_mean_return": summary["best_mean_return"],
        "weights_sha256": summary["weights_sha256"],
        "curve": learning_curve(metrics),
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of one environment."""
    lines = [
        "| mode | seeds | total time | episodes | throughput | steps/s "
        "| mean reward of the last iteration (95 % interval) |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        selected = [row for row in rows if row["mode"] == mode]
        if not selected:
            continue
        seconds = np.mean([row["seconds"] for row in selected])
        rate = np.mean([row["episodes"] / row["seconds"] for row in selected])
        steps = np.mean([row["timesteps"] / row["seconds"] for row in selected])
        finals = [row["final_mean_reward"] for row in selected]
        low, high = bootstrap_interval(finals)
        times = f"{seconds:.1f} s | {selected[0]['episodes']:,} | {rate:.1f} episodes/s | {steps:,.0f}"
        lines.append(
            f"| {mode} | {len(selected)} | {times} | {interquartile_mean(finals):.1f} ({low:.1f} to {high:.1f}) |"
        )
    return lines


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: the tables of the runs, and those measured by benchmarks/reinforce.py."""
    others = (
        json.loads((RESULTS / "reinforce.json").read_text())["rows"] if (RESULTS / "reinforce.json").exists() else []
    )
    lines = [
        "# REINFORCE",
        "",
        "Written by `python benchmarks/tables.py` from `benchmarks/results/`; the last three sections are measured by",
        "`python benchmarks/reinforce.py`. 2 shared cores, no GPU. 100 iterations of 100 episodes; distributed is the",
        "process engine with 2 workers, local is one process. A seed gives bit-identical weights in both, so they",
        "differ in their times only. Rewards are interquartile means.",
        "",
    ]
    for env in dict.fromkeys(row["env"] for row in rows):
        env_rows = [row for row in rows if row["env"] == env]
        lines += [f"## {env}", "", *table(env_rows), ""]
        local_seeds = [row["seed"] for row in env_rows if row["mode"] == "local"]
        same = sum(len({row["weights_sha256"] for row in env_rows if row["seed"] == seed}) == 1 for seed in local_seeds)
        lines += [
            f"Weights of both modes equal: {same} of {len(local_seeds)} seeds that ran in both.",
            "",
        ]
        if env == "cartpole":
            best = [row["best_mean_return"] for row in env_rows if row["mode"] == "distributed"]
            returns = ", ".join(f"{value:.0f}" for value in best)
            lines += [
                f"Best mean of 100 episodes: {returns} (at least 400 in {sum(b >= 400 for b in best)} of {len(best)}).",
                "",
            ]
        curves = {row["seed"]: tuple(row["curve"]) for row in env_rows if row["mode"] == "distributed"}
        if curves:
            plot = ROOT / "docs" / "images" / f"reinforce-{env}.png"
            plot_seeds(curves, f"REINFORCE on {env}, {len(curves)} seeds", plot)
            lines += [f"![Learning curves on {env}](../images/{plot.name})", ""]
    lines += helps(others) + speed_ups(others) + ratios(others)
    return "\n".join(lines).rstrip() + "\n"


def helps(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of when distribution helps."""
    selected = [row for row in rows if row["what"].startswith("episodes of ")]
    if not selected:
        return []
    lines = ["## When distribution helps", "",
             "Seconds per iteration, by the number of workers (0: in the driver).", "",
             "| episodes | 0 | 2 | 20 | `--num-workers auto` chose |", "|---|---|---|---|---|"]  # fmt: skip
    for row in selected:
        cells = [f"{row[f'workers_{count}']:.3f}" if f"workers_{count}" in row else "" for count in (0, 2, 20)]
        lines.append(f"| {row['what'].partition(':')[0]} | {' | '.join(cells)} | {row['auto']} |")
    return [*lines, ""]


def speed_ups(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of speed-ups by the number of workers."""
    selected = [row for row in rows if "that wait 50 ms" in row["what"]]
    if not selected:
        return []
    lines = ["## Scaling", "",
             "Whole iterations: 100 episodes that sleep 50 ms each, weights and learner included.", "",
             "| workers | seconds | speed-up |", "|---|---|---|"]  # fmt: skip
    for row in selected:
        lines.append(f"| {row['what'].split(': ')[1].split()[0]} | {row['seconds']:.2f} | {row['speed_up']:.2f} |")
    return [*lines, ""]


def ratios(rows: list[dict[str, Any]]) -> list[str]:
    """Return the comparisons with the plain loop."""
    selected = [row for row in rows if "ratio" in row]
    if not selected:
        return []
    lines = ["## Compared with the plain loop", "", "| what | ratio |", "|---|---|"]
    return [*lines, *(f"| {row['what']} | {row['ratio']:.2f} |" for row in selected), ""]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the distributed runs")
    parser.add_argument("--local-seeds", type=int, default=5, help="number of these seeds that also run in one process")
    parser.add_argument("--envs", nargs="+", default=["cartpole", "ant"])
    parser.add_argument("--write-only", action="store_true", help="only write the page")
    options = parser.parse_args()
    report, path = Report("tables"), RESULTS / "tables.json"
    earlier = json.loads(path.read_text())["rows"] if path.exists() else []
    if not options.write_only:
        report.rows = [row for row in earlier if row["env"] not in options.envs]
        for env in options.envs:
            for mode, seeds in (("distributed", options.seeds), ("local", options.local_seeds)):
                for seed in range(seeds):
                    row = measure(env, mode, seed)
                    print(
                        f"{env} {mode} seed {seed}: {row['seconds']:.1f} s, final {row['final_mean_reward']:.1f}",
                        flush=True,
                    )
                    report.rows.append(row)
                    report.write()  # measurements survive an interruption
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(report.rows or earlier), encoding="utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
