"""Learning gates: train with the presets and several seeds, and compare the mean return with a threshold.

python benchmarks/learning.py [--only "ppo cartpole" "dqn acrobot"] [--seeds 3] [--write-only]

The return is that of the last 100 training episodes at the end of the run, as a mean over the seeds; of some gates,
and of an algorithm that learns from a dataset, that of 50 deterministic episodes after it. Rows that are not measured
again are kept. With --write-only the plot and the page are written from earlier measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _harness import RESULTS, Report

from raceway.envs import make_env
from raceway.recording import record
from raceway.training.train import train
from raceway.training.train_seeds import learning_curve
from raceway.ui.figures import check_matplotlib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "learning.md"
PLOT = ROOT / "docs" / "images" / "learning.png"
MAX_POINTS = 120  # per learning curve
EPISODES = 100  # per evaluation
DETERMINISTIC_EPISODES = 50  # after training, where they decide


@dataclass(frozen=True)
class Recording:
    """Episodes of the policy of a checkpoint."""

    episodes: int
    checkpoint: str | int = "best"
    stochastic: bool = False


@dataclass(frozen=True)
class Data:
    """Episodes of an algorithm, trained with its preset and the seed of the gate."""

    algorithm: str
    recordings: tuple[Recording, ...]
    described: str
    """What they are, for the page."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not those of the preset."""


@dataclass(frozen=True)
class Gate:
    """An algorithm, an environment, and the mean return to reach."""

    algorithm: str
    env: str
    bar: float
    data: Data | None = None
    """The dataset to learn from."""
    updates: int | None = None
    """Gradient steps of learning from a dataset."""
    above_bc: float | None = None
    """By how much the return has to be above that of bc on the same dataset, with as many updates."""
    network: str | None = None
    """The network, if it is not that of the preset."""
    deterministic: bool = False
    """Whether deterministic episodes after training decide, not the last ones of training."""
    success: bool = False
    """Whether the share of those episodes that reach their goal decides, not their return."""
    regret: bool = False
    """Whether the regret during training decides, as a share of that of random actions. The info has it."""
    below: bool = False
    """Whether the return has to stay below the threshold: a control, which lacks what the gate needs."""
    first_seed: int = 0
    variant: str | None = None
    """What distinguishes it from another gate with the same algorithm and environment."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that are not those of the preset."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        return " ".join(part for part in (self.algorithm, self.env, self.network, self.variant) if part)

    @property
    def decisive(self) -> str:
        """The measurement of a run that decides."""
        if self.regret:
            return "regret"
        return "success_rate" if self.success else "deterministic_return" if self.deterministic else "mean_return"

    def passes(self, mean: float, cloned: float | None = None) -> bool:
        """Whether a mean return passes, beside that of bc if there is one."""
        above = cloned is None or mean - cloned >= (self.above_bc or 0)
        return mean < self.bar if self.below else mean >= self.bar and above


EXPERT = Data("ppo", (Recording(50),), "50 episodes of the greedy policy")
MIXED = Data(
    "ppo",
    (Recording(10), Recording(300, 8192)),
    "10 episodes of the best policy and 300 of one after 8,192 steps, both greedy",
    {"save_every": 4096, "keep": 100, "save_seconds": 0.0},
)
REPLAY = Data(
    "sac",
    tuple(Recording(5, steps, stochastic=True) for steps in range(500, 10_001, 500)),
    "5 sampled episodes after every 500 of 10,000 steps, from bad ones to good ones",
    {
        "hidden": (64, 64),
        "batch_size": 128,
        "total_timesteps": 10_000,
        "save_every": 500,
        "keep": 100,
        "save_seconds": 0,
    },
)
BITS_15 = {"env_kwargs": {"num_bits": 15}, "total_timesteps": 50_000}
GATES = [
    Gate("ppo", "cartpole", 475),
    Gate("a2c", "cartpole", 475),
    Gate("a3c", "cartpole", 475),
    Gate("impala", "cartpole", 475),
    Gate("appo", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("impact", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("ddppo", "cartpole", 450, first_seed=10),
    Gate("dqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("double_dqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("simple_q", "cartpole", 195, deterministic=True, first_seed=10),
    Gate("dueling_dqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("noisy_dqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("c51", "cartpole", 450, deterministic=True, first_seed=10),
    Gate("qr_dqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("iqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("rainbow", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("pqn", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("sac", "cartpole", 400, deterministic=True, first_seed=20),
    Gate("apex", "cartpole", 475),
    Gate("es", "cartpole", 195, deterministic=True, first_seed=10),
    Gate("ars", "cartpole", 475, deterministic=True, first_seed=10),
    Gate("ars", "Swimmer-v5", 300, deterministic=True, first_seed=10),
    Gate("slateq", "slates", 9.0, deterministic=True, first_seed=10),
    Gate("linucb", "linear-bandit", 0.05, regret=True, below=True, first_seed=10),
    Gate("lints", "linear-bandit", 0.05, regret=True, below=True, first_seed=10),
    Gate("ppo", "acrobot", -100),
    Gate("dqn", "acrobot", -90, deterministic=True, first_seed=10),
    Gate("qr_dqn", "acrobot", -90, deterministic=True, first_seed=10),
    Gate("ppo", "pendulum", -200),
    Gate("ppo", "lunarlander", 200),
    Gate("dqn", "lunarlander", 100, deterministic=True, first_seed=13),
    Gate("ppo", "halfcheetah", 1443),
    Gate("sac", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("td3", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("ddpg", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("tqc", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("droq", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("redq", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("crossq", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("apex_ddpg", "pendulum", -200, deterministic=True, first_seed=10),
    Gate("bc", "cartpole", 450, data=EXPERT, updates=2000, first_seed=10),
    Gate("marwil", "cartpole", 350, data=MIXED, updates=2000, above_bc=50, first_seed=10),
    Gate("cql", "pendulum", -300, data=REPLAY, updates=10_000, above_bc=50, first_seed=10),
    Gate("iql", "pendulum", -300, data=REPLAY, updates=10_000, above_bc=50, first_seed=10),
    Gate("td3_bc", "pendulum", -300, data=REPLAY, updates=10_000, above_bc=50, first_seed=10),
    Gate("dqn", "bitflipping", 0.95, success=True, deterministic=True, first_seed=10, variant="8 bits"),
    Gate(
        "dqn", "bitflipping", 0.95, success=True, deterministic=True, first_seed=10, variant="15 bits", settings=BITS_15
    ),
    Gate(
        "dqn",
        "bitflipping",
        0.5,
        success=True,
        deterministic=True,
        below=True,
        first_seed=10,
        variant="15 bits, no hindsight",
        settings={**BITS_15, "replay": "uniform"},
    ),
    Gate("r2d2", "cartpole-positions", 150, deterministic=True, first_seed=10),
    Gate("r2d2", "raceway/TMaze-v0", 0.99, deterministic=True, first_seed=10),
    Gate(
        "dqn",
        "raceway/TMaze-v0",
        0.75,
        deterministic=True,
        below=True,
        first_seed=10,
        variant="no memory",
        settings={"env_kwargs": {"length": 10}, "total_timesteps": 24_000, "lr": 1e-3},
    ),
    Gate("ppo", "cartpole-positions", 450, deterministic=True, first_seed=10),
    Gate("ppo", "cartpole-positions", 100, network="mlp", deterministic=True, below=True, first_seed=10),
]
EVALUATED_EPISODES = 50  # of a policy that learnt from a dataset


def record_data(data: Data, folder: str, shared: Mapping[str, Any]) -> tuple[str, float, int]:
    """Train what records the dataset of a gate, and return the dataset, its mean return and its number of steps."""
    train(data.algorithm, run_dir=f"{folder}/expert", **shared, **data.settings)
    parts = [
        record(
            f"{folder}/expert", f"{folder}/data-{index}", num_episodes=each.episodes, checkpoint=each.checkpoint,
            seed=index, deterministic=not each.stochastic,
        )
        for index, each in enumerate(data.recordings)
    ]  # fmt: skip
    returns = np.concatenate([part.returns() for part in parts])
    return ",".join(part.name for part in parts), float(returns.mean()), sum(part.num_steps for part in parts)


def learn_from_data(gate: Gate, data: Data, seed: int) -> dict[str, Any]:
    """Record a dataset, learn from it, also with bc if it has to be better, and return the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        shared = {"env": gate.env, "seed": seed, "progress": False}
        dataset, data_return, num_steps = record_data(data, folder, shared)
        shared |= {"dataset": dataset, "total_updates": gate.updates}
        eval_every = max(1, (gate.updates or 0) // 10)
        settings = {"run_dir": f"{folder}/run", "eval_every": eval_every, **gate.settings}
        result = train(gate.algorithm, **shared, **settings)
        curve = learning_curve(result.metrics)
        cloned = {}
        if gate.above_bc is not None:
            policy = train("bc", run_dir=f"{folder}/bc", **shared).policy
            cloned = {"bc_return": policy.evaluate(EVALUATED_EPISODES, seed=1).mean_return}
    evaluation = result.policy.evaluate(EVALUATED_EPISODES, seed=1)  # other episodes than those of the dataset
    return {
        "seed": seed,
        "mean_return": evaluation.mean_return,
        **cloned,
        "expert_return": data_return,
        "recorded_steps": num_steps,
        "timesteps": result.summary["updates"],
        "seconds": round(result.summary["train_seconds"], 2),
        "num_workers": result.summary["num_workers"],
        "curve": list(curve),
    }


def regret_share(result: Any) -> float:
    """Return the regret of a whole run, as a share of that of random actions."""
    rows = [row for row in result.metrics if "env/regret_mean" in row]
    total = sum(row["env/regret_mean"] * row["counts"]["env/regret_mean"] for row in rows)
    env = make_env(result.policy.env_settings()).unwrapped
    return float(total / (result.summary["episodes"] * env.random_regret))


def learn(gate: Gate, seed: int) -> dict[str, Any]:
    """Train once and return the measurements."""
    if gate.data is not None:
        return learn_from_data(gate, gate.data, seed)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"env": gate.env, "seed": seed, "run_dir": f"{folder}/run", "progress": False, **gate.settings}
        if gate.regret:
            settings["info_keys"] = ("regret",)
        if gate.network is not None:
            settings["network"] = gate.network
        result = train(gate.algorithm, **settings)
        steps, means = learning_curve(result.metrics)
        evaluated = {}
        if gate.deterministic:
            evaluation = result.policy.evaluate(DETERMINISTIC_EPISODES)
            evaluated = {"deterministic_return": evaluation.mean_return}
            evaluated |= {"success_rate": evaluation.success_rate} if gate.success else {}
        if gate.regret:
            evaluated["regret"] = regret_share(result)
    summary = result.summary
    indices = np.unique(np.linspace(0, len(steps) - 1, MAX_POINTS).astype(int))
    return {
        "seed": seed,
        "mean_return": summary["mean_return"],
        "timesteps": summary["timesteps"],
        "seconds": round(summary["train_seconds"], 2),
        "num_workers": summary["num_workers"],
        **evaluated,
        "curve": [[steps[index] for index in indices], [round(means[index], 2) for index in indices]],
    }


def measure(gate: Gate, seeds: int, report: Report) -> None:
    """Train with several seeds and add a row."""
    runs = []
    for seed in range(gate.first_seed, gate.first_seed + seeds):
        runs.append(learn(gate, seed))
        print(f"      {gate.name} seed {seed}: {runs[-1][gate.decisive]:.2f}, {runs[-1]['seconds']:.1f} s", flush=True)
    mean = float(np.mean([run[gate.decisive] for run in runs]))
    measured = {
        "mean": mean,
        "seeds": [round(run[gate.decisive], 3 if gate.regret else 2 if gate.success else 1) for run in runs],
        "steps": int(np.mean([run["timesteps"] for run in runs])),
        "seconds": float(np.mean([run["seconds"] for run in runs])),
        "load": os.getloadavg()[0],
    }
    if gate.data is not None:
        measured["expert"] = [round(run["expert_return"], 1) for run in runs]
    cloned = None
    if gate.above_bc is not None:
        measured["bc"] = [round(run["bc_return"], 1) for run in runs]
        cloned = float(np.mean([run["bc_return"] for run in runs]))
    report.row(gate.name, f"{gate.bar:g}", gate.passes(mean, cloned), **measured)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    report.rows[-1] |= {
        "commit": commit.stdout.strip(),
        "runs": runs,
    }  # rows may come from different commits


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in the order of the gates."""
    names = [gate.name for gate in GATES]
    return sorted((row for row in rows if row["what"] in names), key=lambda row: names.index(row["what"]))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot return against environment steps, one panel per gate: mean and range over seeds, the threshold dashed."""
    check_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, MaxNLocator

    gates = {gate.name: gate for gate in GATES}
    columns = 4
    height = -(-(len(rows) + 1) // columns)  # one more panel for the legend
    figure, table = plt.subplots(height, columns, figsize=(13, 2.8 * height), layout="constrained")
    line, band, bar = "#1f5f99", "#9bb7d4", "#c0562b"
    panels = list(table.flat)
    for axes, row in zip(panels, rows, strict=False):
        curves = [run["curve"] for run in row["runs"]]
        grid = np.linspace(max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves), 300)
        values = np.stack([np.interp(grid, *curve) for curve in curves])
        axes.fill_between(grid, values.min(0), values.max(0), color=band, alpha=0.45, lw=0)
        axes.plot(grid, values.mean(0), color=line, lw=2)
        gate = gates[row["what"]]
        if not (gate.success or gate.regret):  # whose threshold is a share, not a return
            axes.axhline(float(row["bar"]), color=bar, ls="--", lw=1.3)
        title = row["what"].replace("raceway/", "")
        axes.set_title(title, loc="left", fontweight="bold", fontsize=11 if len(title) < 24 else 8.5)
        axes.set_xlabel("updates" if "expert" in row else "", fontsize=9.5)
        reached = f"{row['mean']:.0%} of goals" if gate.success else number(row["mean"]).removesuffix(".0")
        reached = f"{row['mean']:.1%} of random regret" if gate.regret else reached
        subtitle = f"{reached} in {row['seconds']:,.0f} s".replace("-", "−")
        corner = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}  # beside the title, a long one overlaps
        axes.text(0.98, 0.04, subtitle, fontsize=9.5, color="#444444", **corner)
        axes.grid(alpha=0.25)
        axes.set_xlim(0, grid[-1])
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(labelsize=9)
    legend = panels[len(rows)]
    for axes in panels[len(rows) :]:
        axes.axis("off")
    legend.plot([], [], color=line, lw=2, label="mean over seeds")
    legend.fill_between([], [], color=band, alpha=0.45, lw=0, label="lowest to highest seed")
    legend.plot([], [], color=bar, ls="--", lw=1.3, label="threshold")
    legend.legend(frameon=False, loc="center left", fontsize=11)
    figure.supxlabel("environment steps", fontsize=11)
    figure.supylabel("mean return of the last 100 episodes", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def number(value: float) -> str:
    """Return a mean as text, with more digits if it is small."""
    digits = 3 if 0 < abs(value) < 0.1 else 2 if abs(value) < 10 else 1
    return f"{value:,.{digits}f}"


def describe_data(gate: Gate, row: Mapping[str, Any], each: str) -> str:
    """Return a paragraph about a row that learnt from a dataset, with the mean returns of that for each seed."""
    assert gate.data is not None
    text = (
        f"{gate.name} learns from {gate.data.described}, of {gate.data.algorithm} that was trained with the same seed "
        f"(mean returns {each}), for {gate.updates:,} updates. Its return is the mean of {EVALUATED_EPISODES} other "
        f"episodes, greedy. Its settings were chosen with the seeds 0 to 2, and the row is of the seeds from "
        f"{gate.first_seed}. Seconds are those of learning, with evaluations."
    )
    if "bc" in row:
        returns = ", ".join(map(number, row["bc"]))
        text += f" It has to be {gate.above_bc:g} above bc, which reaches {returns} on the same data."
    return text.replace(" -", " −")


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page as Markdown."""
    gates = {gate.name: gate for gate in GATES}
    lines = [
        "# Learning",
        "",
        "Written by `python benchmarks/learning.py` from `benchmarks/results/learning.json`. 2 shared cores, no",
        "GPU, often with other work on the machine. Each row is `raceway train <algorithm> --env <env>` with no",
        "other option, so with the preset of that environment; a row with a remark has other settings, which the",
        "script lists. Three seeds each; seconds are training time.",
        "",
        "What is measured: *training*, the mean return of the last 100 training episodes, exploration included,",
        "with the seeds 0 to 2, which presets were chosen with, so other seeds may do a little worse; *greedy*,",
        f"the mean return of {DETERMINISTIC_EPISODES} deterministic episodes after training, with the seeds 10 to",
        "12 (of dqn on lunarlander 13 to 15, of sac on cartpole 20 to 22), which nothing was chosen with;",
        "*goals*, the share of such episodes that reach their goal; *regret*, that of the whole training as a",
        "share of that of random actions.",
        "Rows *below* a threshold are controls, which lack what a row beside them has.",
        "The curves are of training episodes.",
        "",
        "| algorithm | env | measured | threshold | mean | each seed | environment steps | seconds | steps/s | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gate = gates[row["what"]]
        each = ", ".join(map(number, row["seeds"]))
        unit = " updates" if "expert" in row else ""
        times = f"{row['steps']:,}{unit} | {row['seconds']:.1f} | {row['steps'] / row['seconds']:,.0f}"
        met = "ok" if row["met"] else "missed"
        kind = "goals" if gate.success else "greedy" if gate.deterministic or gate.data else "training"
        kind = "regret" if gate.regret else kind
        remark = ", ".join(part for part in (gate.network, gate.variant) if part)
        env = f"{gate.env} ({remark})" if remark else gate.env
        bar = f"below {row['bar']}" if gate.below else row["bar"]
        cells = f"{gate.algorithm} | {env} | {kind} | {bar} | **{number(row['mean'])}** | {each} | {times} | {met}"
        lines.append(f"| {cells} |".replace(" -", " −").replace("**-", "**−"))
    lines.append("")
    for row in rows:
        if "expert" in row:
            gate = next(gate for gate in GATES if gate.name == row["what"])
            each = ", ".join(f"{value:,.1f}" for value in row["expert"])
            lines += [describe_data(gate, row, each), ""]
    lines += [f"![Return against environment steps, one panel per row](../images/{PLOT.name})", ""]
    return "\n".join(lines)


def main() -> None:
    """Train and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [gate.name for gate in GATES]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="GATE", help=", ".join(names))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write-only", action="store_true", help="only write the plot and the page")
    options = parser.parse_args()
    report, path = Report("learning"), RESULTS / "learning.json"
    report.rows = in_order(json.loads(path.read_text())["rows"]) if path.exists() else []
    for gate in [] if options.write_only else GATES:
        if gate.name in options.only:
            other_rows, report.rows = [row for row in report.rows if row["what"] != gate.name], []
            measure(gate, options.seeds, report)
            report.rows = in_order(other_rows + report.rows)
            report.write()  # measurements survive an interruption
    if report.rows:
        PLOT.parent.mkdir(parents=True, exist_ok=True)
        plot(report.rows, PLOT)
        PAGE.write_text(page(report.rows), encoding="utf-8")
        print(f"written to {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
