"""Learning from replay compared with Stable-Baselines3, sb3-contrib and SBX, each in its own virtual environment.

python benchmarks/offpolicy.py --peers DIR [--only rates dqn overlap pendulum cartpole pqn memory sac_cheetah
    td3_cheetah] [--runs 3] [--write-only]

The virtual environments are created in DIR the first time. Rates are measured with the same networks, batches, learning
rates and gradient steps per environment step on both sides; times until an environment is solved with the presets, and
for the peers with the settings of RL Baselines3 Zoo. The last two parts compare returns after 100,000 steps instead of
times, and take half an hour each. With --write-only the page is written from earlier measurements.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _harness import RESULTS, Report
from _peers import PROGRAMS, matrix_multiply_flops, medians_of_ratios, python_of, run, steady_rate, train_raceway

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "offpolicy.md"
PROGRAM = str(PROGRAMS / "offpolicy.py")
SB3, CONTRIB, SBX = "Stable-Baselines3", "sb3-contrib", "SBX (JAX, after compiling)"
WARM_UP, STEPS = 500, 1500  # environment steps that are not timed, and those that are
SETTINGS: dict[str, dict[str, Any]] = {
    "SAC": {"learning_rate": 3e-4, "batch_size": 256, "net_arch": [256, 256], "learning_starts": 100},
    "TD3": {"learning_rate": 3e-4, "batch_size": 256, "net_arch": [256, 256], "learning_starts": 100, "noise": 0.1},
    "TQC": {"learning_rate": 3e-4, "batch_size": 256, "net_arch": [256, 256], "learning_starts": 100},
}
"""Settings of the peers; those of Raceway are the same by default, but for learning_starts of its MuJoCo presets."""
CARTPOLE_ZOO = {
    "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, "gamma": 0.99,
    "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04, "net_arch": [256, 256],
}  # fmt: skip
"""DQN's settings for CartPole in RL Baselines3 Zoo."""


def peer(peers: Path, library: str, algorithm: str, *options: str, **settings: Any) -> tuple[dict[str, Any], float]:
    """Train with a peer; return what it measured, and the seconds from the prompt to its end."""
    python = python_of(peers, "sb3contrib" if library == "sb3" else library)  # which needs Stable-Baselines3 itself
    names = ("--library", library, "--algorithm", algorithm, "--settings", json.dumps(settings))
    return run(python, PROGRAM, *names, *options)


def raceway_rate(algorithm: str, warm_up: int, *options: str) -> float:
    """Train with Raceway, and return the environment steps per second after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        train_raceway(algorithm, "--run-dir", f"{folder}/run", *options)
        return steady_rate(Path(folder, "run", "metrics.jsonl"), warm_up)


def rates(report: Report, peers: Path, runs: int) -> None:
    """Compare environment steps per second on HalfCheetah, with one gradient step per step."""
    against = {"SAC": ("sb3", "sbx"), "TD3": ("sb3", "sbx"), "TQC": ("sb3contrib", "sbx")}
    names, bars = {"sb3": SB3, "sb3contrib": CONTRIB, "sbx": SBX}, {"sb3": 1.5, "sb3contrib": 1.5, "sbx": 1.0}
    for algorithm, libraries in against.items():
        measured: dict[str, list[float]] = {name: [] for name in ("raceway", *libraries)}
        limits = []
        for seed in map(str, range(runs)):
            limits.append(matrix_multiply_flops() / SAC_UPDATE_FLOPS)
            length = ("--learning-starts", "100", "--total-timesteps", str(WARM_UP + STEPS))
            options = ("--env", "HalfCheetah-v5", "--local", *length, "--seed", seed)
            measured["raceway"].append(raceway_rate(algorithm.lower(), WARM_UP, *options))
            for library in libraries:
                times = ("--warm-up", str(WARM_UP), "--steps", str(STEPS), "--seed", seed)
                result, _ = peer(peers, library, algorithm, *times, **SETTINGS[algorithm])
                measured[library].append(result["steps"] / result["seconds"])
        limit = {"limit_of_matrix_products_per_s": statistics.median(limits)} if algorithm == "SAC" else {}
        for library in libraries:
            what = f"{algorithm} on HalfCheetah-v5, one gradient step per step: Raceway / {names[library]}, steps/s"
            ratios = medians_of_ratios(measured["raceway"], measured[library])
            report.row(what, f"at least {bars[library]:g}", ratios["ratio"] >= bars[library], **ratios, **limit)


def _sac_update_flops(batch: int = 256, obs: int = 17, actions: int = 6, width: int = 256) -> int:
    """Return the operations of the matrix products in one update of SAC on HalfCheetah."""
    actor = obs * width + width * width + width * 2 * actions
    critics = 2 * ((obs + actions) * width + width * width + width)
    # Of the actor, two forward passes and one backward pass, which counts twice. Of the critics, forward passes of the
    # targets, of the trained ones and for the actor; backward passes to their weights and, counted once, to the actor.
    return 2 * batch * (4 * actor + 6 * critics)


SAC_UPDATE_FLOPS = _sac_update_flops()


def dqn(report: Report, peers: Path, runs: int) -> None:
    """Compare environment steps per second of DQN on CartPole: 64-64, batches of 64, one update in four steps."""
    ours, theirs, single = [], [], []
    settings = {"net_arch": [64, 64], "batch_size": 64, "learning_rate": 1e-3, "learning_starts": 100}
    for seed in map(str, range(runs)):
        sizes = ("--hidden", "64,64", "--batch-size", "64", "--lr", "1e-3", "--learning-starts", "100")
        ratio = ("--num-envs", "4", "--num-shards", "1", "--fragment-steps", "8", "--steps-per-update", "4")
        length = ("--total-timesteps", "80000", "--seed", seed, "--n-step", "1", "--local")
        ours.append(raceway_rate("dqn", 20_000, "--env", "cartpole", *sizes, *ratio, *length))
        for rates, frequency, envs in ((single, 4, "1"), (theirs, 1, "4")):
            times = ("--env", "CartPole-v1", "--num-envs", envs, "--warm-up", "4000", "--steps", "12000")
            result, _ = peer(
                peers, "sb3", "DQN", *times, "--seed", seed, train_freq=frequency, gradient_steps=1, **settings
            )
            rates.append(result["steps"] / result["seconds"])
    better = theirs if statistics.median(theirs) > statistics.median(single) else single
    ratios = medians_of_ratios(ours, better)
    what = f"DQN on CartPole-v1, one gradient step in four steps: Raceway / {SB3} (the better of 1 and 4 envs), steps/s"
    report.row(what, "at least 3", ratios["ratio"] >= 3, **ratios)


def overlap(report: Report, peers: Path, runs: int) -> None:
    """Compare DDPG's two plans on Ant: the learner waits for rollouts, or workers collect while it trains.

    The more often the learner trains, the more of the two cores it uses alone: with an update in 8 steps, the
    environments and the updates of the second plan take 63 % of the time of the first if both cores are never idle.
    """
    for steps_per_update in (8, 16, 32):
        measured: dict[str, list[float]] = {"ddpg": [], "apex_ddpg": []}
        for seed in map(str, range(runs)):
            shared = ("--env", "Ant-v5", "--hidden", "256,256", "--batch-size", "256", "--learning-starts", "1000")
            ratio = ("--num-envs", "16", "--num-shards", "2", "--steps-per-update", str(steps_per_update))
            length = ("--total-timesteps", str(2000 * steps_per_update + 8000), "--seed", seed)
            one_thread = ("--learner-threads", "1")  # as the workers use the other core
            places = {
                "ddpg": ("--local", "--fragment-steps", "4"),
                "apex_ddpg": ("--num-workers", "2", "--fragment-steps", "32", "--replay-shards", "1", *one_thread),
            }
            for name, place in places.items():
                measured[name].append(raceway_rate(name, 5000, *shared, *ratio, *length, *place))
        ratios = medians_of_ratios(measured["apex_ddpg"], measured["ddpg"])
        what = f"Ant-v5, a gradient step in {steps_per_update} steps: apex_ddpg with two workers / ddpg, steps/s"
        report.row(what, "at least 1.5", ratios["ratio"] >= 1.5, **ratios)


def pendulum(report: Report, peers: Path, runs: int) -> None:
    """Compare the seconds from the prompt to a solved Pendulum: -200 over 20 deterministic episodes."""
    solved = ("--stop-eval-return=-200", "--eval-every", "1000", "--eval-episodes", "20")
    measured: dict[str, list[float]] = {"raceway": [], "sb3": [], "sbx": []}
    steps: dict[str, list[int]] = {name: [] for name in measured}
    for seed in map(str, range(10, 10 + runs)):
        summary, seconds = train_raceway("sac", "--env", "pendulum", "--local", "--seed", seed, *solved)
        assert summary["stopped_by"] == "stop_eval_return", summary
        measured["raceway"].append(seconds)
        steps["raceway"].append(summary["timesteps"])
        for library in ("sb3", "sbx"):
            options = ("--env", "Pendulum-v1", "--warm-up", "0", "--steps", "20000", "--seed", seed, *solved)
            result, seconds = peer(peers, library, "SAC", *options, learning_rate=1e-3)
            assert result["mean_return"] >= -200, result
            measured[library].append(seconds)
            steps[library].append(int(result["steps"]))
    for library, name, bar in (("sb3", SB3, 2.0), ("sbx", "SBX, its compilation included", 1.0)):
        ratios = medians_of_ratios(measured[library], measured["raceway"])
        both = {"raceway_s": ratios.pop("other"), "other_s": ratios.pop("raceway")}
        both |= {"raceway_steps": steps["raceway"], "other_steps": steps[library]}
        what = f"SAC, from the prompt to a solved Pendulum-v1: {name} / Raceway, seconds"
        report.row(what, f"at least {bar:g}", ratios["ratio"] >= bar, **ratios, **both)


def cartpole(report: Report, peers: Path, runs: int) -> None:
    """Compare the seconds from the prompt to a greedy DQN with a mean return of 475 over 20 episodes."""
    solved = ("--stop-eval-return", "475", "--eval-every", "2000", "--eval-episodes", "20")
    ours, theirs = [], []
    for seed in map(str, range(10, 10 + runs)):
        summary, seconds = train_raceway("dqn", "--env", "cartpole", "--local", "--seed", seed, *solved)
        assert summary["stopped_by"] == "stop_eval_return", summary
        ours.append(seconds)
        options = ("--env", "CartPole-v1", "--warm-up", "0", "--steps", "50000", "--seed", seed, *solved)
        result, seconds = peer(peers, "sb3", "DQN", *options, **CARTPOLE_ZOO)
        theirs.append(seconds)
        print(f"      {SB3}: {result['mean_return']:.0f} after {result['steps']:.0f} steps", flush=True)
    ratios = medians_of_ratios(theirs, ours)
    both = {"raceway_s": ratios.pop("other"), "other_s": ratios.pop("raceway")}
    what = f"DQN, from the prompt to a greedy 475 on CartPole-v1: {SB3} (the Zoo's settings) / Raceway, seconds"
    report.row(what, "at least 3", ratios["ratio"] >= 3, **ratios, **both)


def pqn(report: Report, peers: Path, runs: int) -> None:
    """Measure the seconds from the prompt to a greedy PQN with a mean return of 475 over 20 episodes."""
    solved = ("--stop-eval-return", "475", "--eval-every", "20000", "--eval-episodes", "20")
    times, steps = [], []
    for seed in map(str, range(10, 10 + runs)):
        summary, seconds = train_raceway("pqn", "--env", "cartpole", "--local", "--seed", seed, *solved)
        assert summary["stopped_by"] == "stop_eval_return", summary
        times.append(round(seconds, 2))
        steps.append(summary["timesteps"])
    what = "PQN, from the prompt to a greedy 475 on CartPole-v1, seconds"
    report.row(what, "at most 20", max(times) <= 20, seconds=times, steps=steps)


MEMORY_PROGRAM = """
import json, os, sys, tempfile
import raceway

class Memory(raceway.Callback):
    def __init__(self):
        self.megabytes = {}
    def on_iteration_end(self, run, metrics):
        steps = metrics["time/total_timesteps"] // 100_000
        if steps not in self.megabytes:
            pages = int(open("/proc/self/statm").read().split()[1])
            self.megabytes[steps] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6

memory = Memory()
with tempfile.TemporaryDirectory() as folder:
    raceway.train("dqn", env="cartpole", engine="inline", run_dir=f"{folder}/run", progress=False, callbacks=[memory],
                  total_timesteps=1_000_001, buffer_size=50_000, steps_per_update=32.0,
                  save_every=50_000)
print(json.dumps({"megabytes": memory.megabytes}))
"""


def memory(report: Report, peers: Path, runs: int) -> None:
    """Measure how the memory of a run grows over a million steps, once its replay buffer is full."""
    result, _ = run(sys.executable, "-c", MEMORY_PROGRAM)
    megabytes = {int(steps): value for steps, value in result["megabytes"].items()}
    growth = megabytes[max(megabytes)] / megabytes[1]
    what = "memory of DQN on CartPole-v1 after 1,000,000 steps / after 100,000"
    report.row(
        what, "at most 1.02", growth <= 1.02, ratio=growth, megabytes=[round(each) for each in megabytes.values()]
    )


def cheetah(algorithm: str, report: Report, peers: Path, runs: int) -> None:
    """Compare the deterministic return on HalfCheetah after 100,000 steps, with the settings of the Zoo."""
    from raceway.training.train import train

    ours, theirs = [], []
    settings = {**SETTINGS[algorithm], "learning_starts": 10_000}
    for seed in range(10, 10 + runs):
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"run_dir": f"{folder}/run", "progress": False, "engine": "inline"}
            result = train(algorithm.lower(), env="halfcheetah", seed=seed, total_timesteps=100_000, **options)
            ours.append(result.policy.evaluate(50).mean_return)
        length = ("--warm-up", "0", "--steps", "100000", "--evaluate", "50", "--seed", str(seed))
        theirs.append(peer(peers, "sb3", algorithm, *length, **settings)[0]["mean_return"])
        print(f"      {algorithm} seed {seed}: {ours[-1]:.0f}, {SB3} {theirs[-1]:.0f}", flush=True)
    means = {"raceway": statistics.mean(ours), "other": statistics.mean(theirs)}
    each = {"raceway_seeds": [round(value) for value in ours], "other_seeds": [round(value) for value in theirs]}
    what = f"{algorithm} on HalfCheetah-v5, mean return after 100,000 steps: Raceway / {SB3}"
    ratio = means["raceway"] / means["other"]
    report.row(what, f"at least {SB3}'s", means["raceway"] >= means["other"], ratio=ratio, **means, **each)


PARTS = {
    "rates": rates, "dqn": dqn, "overlap": overlap, "pendulum": pendulum, "cartpole": cartpole, "pqn": pqn,
    "memory": memory, "sac_cheetah": partial(cheetah, "SAC"), "td3_cheetah": partial(cheetah, "TD3"),
}  # fmt: skip


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Learning from replay, beside other libraries",
        "",
        "    python benchmarks/offpolicy.py --peers DIR    # the peers are installed into virtual environments in DIR",
        "",
        "Written by that script from `benchmarks/results/offpolicy.json`. 2 shared cores, no GPU. Both programs of a",
        "ratio run in turn, on a machine with no other work; a ratio is the median of the runs, beside the lowest.",
        "Rates are measured with the same networks, batches, learning rates and gradient steps per environment step on",
        "both sides. Times until an environment is solved are from the shell prompt, imports and evaluations included,",
        "with Raceway's presets and the settings of RL Baselines3 Zoo, which have the same networks and batches on",
        "Pendulum but another discount and target update; on seeds that the presets were not chosen with. Returns on",
        "HalfCheetah do not depend on the load of the machine; so far they are of one seed, 10.",
        "",
        "| measurement | Raceway | other | ratio (lowest) | threshold | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        unit = " s" if "raceway_s" in row else ""
        ours, theirs = (row.get(name, row.get(f"{name}_s")) for name in ("raceway", "other"))
        cells = [row["what"], _cell(ours, row.get("raceway_seeds"), unit), _cell(theirs, row.get("other_seeds"), unit)]
        lowest = f" ({row['smallest_ratio']:.2f})" if "smallest_ratio" in row else ""
        cells.append(f"**{row['ratio']:.2f}**{lowest}" if "ratio" in row else "")
        if "seconds" in row:
            cells[1] = ", ".join(f"{value:.1f} s" for value in row["seconds"])
        if "megabytes" in row:
            cells[1] = f"{row['megabytes'][-1]:.0f} MB"
            cells[2] = f"{row['megabytes'][1]:.0f} MB"
        lines.append(f"| {' | '.join([*cells, row['bar'], 'ok' if row['met'] else 'missed'])} |")
    limits = [row["limit_of_matrix_products_per_s"] for row in rows if "limit_of_matrix_products_per_s" in row]
    if limits:
        lines += [
            "",
            f"The matrix products of an update of SAC at that size are {SAC_UPDATE_FLOPS / 1e9:.2f} GFLOP. Both cores "
            f"can do {limits[0]:,.0f} such updates a second: no library can be faster than that.",
        ]
    return "\n".join([*lines, ""])


def _cell(value: float | None, seeds: list[float] | None, unit: str) -> str:
    each = f" ({', '.join(f'{seed:,.0f}' for seed in seeds)})" if seeds else ""
    return "" if value is None else f"{value:,.1f}{unit}{each}" if value < 100 else f"{value:,.0f}{unit}{each}"


def main() -> None:
    """Run the selected comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", type=Path, help="directory for the virtual environments of the peers", default=Path("peers")
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write-only", action="store_true", help="only write the page")
    options = parser.parse_args()
    report = Report("offpolicy")
    for name in [] if options.write_only else options.only:
        PARTS[name](report, options.peers.resolve(), options.runs)
        report.write(keep=True)
    PAGE.write_text(page(json.loads((RESULTS / "offpolicy.json").read_text())["rows"]), encoding="utf-8")
    print(f"written to {PAGE.name}")


if __name__ == "__main__":
    main()
