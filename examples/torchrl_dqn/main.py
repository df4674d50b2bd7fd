"""TorchRL's DQN with collectors and sharded, object-backed replay on a Raceway Runner; the learner stays here.

Paper: Mnih et al. 2015, https://doi.org/10.1038/nature14236

    weights -> frames                    on every collector
       -> ReplayBuffer(ObjectStorage)    on every replay shard
       -> DQNLoss, one Adam step         on the learner

Run `python examples/torchrl_dqn/main.py --help` for the options. The same seed gives the same losses on every engine,
with any number of workers, and with `--local`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym

from collector import check_env
from raceway.envs import find
from raceway.errors import ConfigError, RacewayError

RULE = "=" * 60


def line(row: dict[str, Any]) -> str:
    """Return what is printed of an iteration."""
    reward, loss = figure(row["mean_reward"], "8.1f"), figure(row["loss"], "8.4f")
    return (
        f"Iteration {row['iteration']:4d} | ε {row['epsilon']:.3f} | Buffer: {row['buffer']:6d} | "
        f"Total: {row['total']:7d} | Mean Reward: {reward} | Loss: {loss}"
    )


def figure(value: float | None, form: str) -> str:
    """Return a figure, or a dash as wide as it where there is none yet."""
    return "-".rjust(len(format(0.0, form))) if value is None else format(value, form)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, and refuse what cannot work."""
    parser = argparse.ArgumentParser(description="Train TorchRL's DQN with distributed collectors and replay.")
    option = parser.add_argument
    option("--env", default="CartPole-v1", help="Gymnasium id, or acrobot, mountaincar, lunarlander (%(default)s)")
    option("--iterations", type=count, default=20, help="number of iterations (%(default)s)")
    option("--collections", type=count, default=4, help="collections in an iteration (%(default)s)")
    option("--frames-per-collection", type=count, default=100, help="frames of each (%(default)s)")
    option("--num-envs", type=count, default=1, help="environments that each collector steps together (%(default)s)")
    option("--batch-size", type=count, default=64, help="frames of a step of the optimiser (%(default)s)")
    option("--buffer-size", type=count, default=10_000, help="frames that replay holds (%(default)s)")
    option("--optim-steps", type=count, default=1, help="steps of the optimiser in an iteration (%(default)s)")
    option("--replay", choices=["simple", "sharded"], default="simple", help="one buffer, or several (%(default)s)")
    option("--replay-shards", type=count, help="buffers of sharded replay (4)")
    option("--sample-parallelism", type=count, default=1, help="shards that a batch is drawn from (%(default)s)")
    option("--sample-work", type=amount, default=0, help="rounds of arithmetic for each frame drawn (%(default)s)")
    option("--sample-wait", type=duration, default=0.0, help="milliseconds to wait for each frame drawn (%(default)s)")
    option("--local", action="store_true", help="do everything in this process, without a Runner")
    option("--engine", choices=["inline", "process", "ray"], help="where workers live ($RACEWAY_ENGINE, or process)")
    option("--workers", type=count, help="workers that the collectors are spread over (one each)")
    option("--seed", type=seed_number, default=0, help="seed of weights, actions and environments (%(default)s)")
    option("--metrics-json", type=Path, metavar="FILE", help="write configuration and figures there")
    args = parser.parse_args(argv)
    if args.local and (args.engine or args.workers):
        parser.error("--local works in this process; leave out --engine and --workers")
    if args.replay == "simple" and args.replay_shards not in (None, 1):
        parser.error(f"--replay-shards {args.replay_shards} needs --replay sharded")
    args.replay_shards = args.replay_shards or {"simple": 1, "sharded": 4}[args.replay]
    if args.metrics_json and not args.metrics_json.absolute().parent.is_dir():
        parser.error(f"--metrics-json: there is no folder {args.metrics_json.absolute().parent}")
    problem = conflict(args)
    if problem:
        parser.error(problem)
    try:
        args.env = find(args.env)
        if "box2d" in str(gym.spec(args.env.rpartition(":")[2]).entry_point) and not importlib.util.find_spec("Box2D"):
            parser.error(f"--env {args.env} needs Box2D: pip install 'gymnasium[box2d]'")
        args.obs_dim, args.num_actions = check_env(args.env)
    except ConfigError as error:
        parser.error(f"argument --env: {error}")
    return args


def conflict(args: argparse.Namespace) -> str | None:
    """Return what does not go together, or None."""
    shards, frames = args.replay_shards, args.frames_per_collection
    smallest = args.buffer_size // shards
    most = -(-args.collections // shards) * frames  # that one shard gets in an iteration
    if shards > args.buffer_size:
        return f"--replay-shards {shards} is more than --buffer-size {args.buffer_size} holds"
    if args.sample_parallelism > shards:
        return f"--sample-parallelism {args.sample_parallelism} is more than the {shards} replay shards that there are"
    if args.sample_parallelism > args.batch_size:
        return f"--sample-parallelism {args.sample_parallelism} is more than --batch-size {args.batch_size}"
    if frames % args.num_envs:
        return f"--frames-per-collection {frames} is no multiple of --num-envs {args.num_envs}"
    if most > smallest:
        return (
            f"an iteration gives a replay shard up to {most} frames, and it holds {smallest}. "
            f"Make --buffer-size at least {most * shards}."
        )
    return None


def count(text: str) -> int:
    """Convert an option that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def amount(text: str) -> int:
    """Convert an option that may be 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def duration(text: str) -> float:
    """Convert a time that may be 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return value


def seed_number(text: str) -> int:
    """Convert a seed to what both numpy and torch take for one."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**64 - 1, not {text!r}")
    return int(text)


def main() -> None:
    """Train, and say how it went."""
    args = parse_args()
    from training import run  # not before the options are known to be good: importing TorchRL takes seconds

    mode = "local" if args.local else "distributed"
    title = f"{mode.capitalize()} TorchRL DQN on {args.env}{'' if args.local else ' using Raceway Runner'}"
    print(RULE, title, RULE, "", sep="\n")
    frames = args.iterations * args.collections * args.frames_per_collection
    replay = "simple" if args.replay == "simple" else f"sharded, {args.replay_shards} shards"
    print("Configuration:")
    print(f"  Environment: {args.env}")
    print(f"  Observation dim: {args.obs_dim}")
    print(f"  Actions: {args.num_actions}")
    print(f"  Iterations: {args.iterations}")
    print(f"  Collections per iteration: {args.collections}")
    print(f"  Frames per collection: {args.frames_per_collection}")
    print(f"  Total frames: {frames}")
    print(f"  Replay: {replay}")
    print(f"  Buffer size: {args.buffer_size}")
    print(f"  Batch size: {args.batch_size}")
    print(f"  Sample parallelism: {args.sample_parallelism}")
    print(f"  Seed: {args.seed}")
    print(f"\nStarting {mode} training...", flush=True)

    engine = args.engine or os.environ.get("RACEWAY_ENGINE") or "process"
    training, seconds = run(args, engine, report=lambda row: print(line(row), flush=True))
    summary = training.summary(seconds)
    print("", RULE, "Training Complete!", sep="\n")
    print(f"  Total time: {seconds:.2f}s")
    print(f"  Frames: {summary['frames']} ({summary['frames_per_second']:.1f} frames/sec)")
    print(f"  First Loss: {figure(summary['first_loss'], '.4f')}")
    print(f"  Last Loss: {figure(summary['last_loss'], '.4f')}")
    print(f"  Last Mean Reward: {figure(summary['last_mean_reward'], '.1f')}")
    print("\nTiming:")
    for phase, spent in summary["timing"].items():
        print(f"  {phase.capitalize() + ':':10} {spent['total']:8.3f}s total, {spent['mean']:.4f}s/iteration")
    print(RULE, flush=True)
    if args.metrics_json:
        args.metrics_json.write_text(json.dumps(metrics(args, mode, training.rows, summary), indent=1) + "\n")


def metrics(args: argparse.Namespace, mode: str, rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    """Return what is written as JSON."""
    from training import EPSILON, SETTINGS, WARMUP_FRAMES

    described = ("env", "obs_dim", "num_actions", "metrics_json")
    options = {name: value for name, value in vars(args).items() if name not in described}
    constants = {"epsilon": EPSILON, "warmup_frames": WARMUP_FRAMES, **SETTINGS}
    return {
        "mode": mode,
        "environment": {"name": args.env, "observation_dim": args.obs_dim, "num_actions": args.num_actions},
        "configuration": options | constants,
        "summary": summary,
        "iterations": rows,
    }


if __name__ == "__main__":
    try:
        main()
    except RacewayError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
