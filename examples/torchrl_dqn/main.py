"""TorchRL's DQN with distributed collectors and sharded, object-backed replay on a Raceway Runner.

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
from raceway.envs import resolve_env_id
from raceway.errors import ConfigError, RacewayError

RULE = "=" * 60


def format_row(row: dict[str, Any]) -> str:
    """Return the line to print for an iteration."""
    reward, loss = format_metric(row["mean_reward"], "8.1f"), format_metric(row["loss"], "8.4f")
    return (
        f"Iteration {row['iteration']:4d} | ε {row['epsilon']:.3f} | Buffer: {row['buffer']:6d} | "
        f"Total: {row['total']:7d} | Mean Reward: {reward} | Loss: {loss}"
    )


def format_metric(value: float | None, spec: str) -> str:
    """Format a value, or print a dash of the same width if it is None."""
    return "-".rjust(len(format(0.0, spec))) if value is None else format(value, spec)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse and validate the command line."""
    parser = argparse.ArgumentParser(description="Train TorchRL's DQN with distributed collectors and replay.")
    option = parser.add_argument
    option("--env", default="CartPole-v1", help="Gymnasium id, or acrobot, mountaincar, lunarlander (%(default)s)")
    option("--iterations", type=count, default=20, help="number of iterations (%(default)s)")
    option("--collections", type=count, default=4, help="collections per iteration (%(default)s)")
    option("--frames-per-collection", type=count, default=100, help="frames per collection (%(default)s)")
    option("--num-envs", type=count, default=1, help="environments per collector, stepped as a vector (%(default)s)")
    option("--batch-size", type=count, default=64, help="frames per gradient step (%(default)s)")
    option("--buffer-size", type=count, default=10_000, help="frames that replay holds in total (%(default)s)")
    option("--optim-steps", type=count, default=1, help="gradient steps per iteration (%(default)s)")
    option("--replay", choices=["simple", "sharded"], default="simple", help="one buffer, or several (%(default)s)")
    option("--replay-shards", type=count, help="number of buffers of sharded replay (4)")
    option("--sample-parallelism", type=count, default=1, help="shards that a batch is sampled from (%(default)s)")
    option("--sample-work", type=count_or_zero, default=0, help="rounds of arithmetic per sampled frame (%(default)s)")
    option("--sample-wait", type=milliseconds, default=0.0, help="milliseconds to wait per sampled frame (%(default)s)")
    option("--local", action="store_true", help="run everything in this process, without a Runner")
    option("--engine", choices=["inline", "process", "ray"], help="where workers run ($RACEWAY_ENGINE, or process)")
    option("--workers", type=count, help="workers that share the collectors (one for each collector)")
    option("--seed", type=seed_number, default=0, help="seed of weights, actions and environments (%(default)s)")
    option("--metrics-json", type=Path, metavar="FILE", help="write configuration and metrics to this file")
    args = parser.parse_args(argv)
    if args.local and (args.engine or args.workers):
        parser.error("--local works in this process; leave out --engine and --workers")
    if args.replay == "simple" and args.replay_shards not in (None, 1):
        parser.error(f"--replay-shards {args.replay_shards} needs --replay sharded")
    args.replay_shards = args.replay_shards or {"simple": 1, "sharded": 4}[args.replay]
    if args.metrics_json and not args.metrics_json.absolute().parent.is_dir():
        parser.error(f"--metrics-json: directory {args.metrics_json.absolute().parent} does not exist")
    conflict = find_conflict(args)
    if conflict:
        parser.error(conflict)
    try:
        args.env = resolve_env_id(args.env)
        if "box2d" in str(gym.spec(args.env.rpartition(":")[2]).entry_point) and not importlib.util.find_spec("Box2D"):
            parser.error(f"--env {args.env} needs Box2D: pip install 'gymnasium[box2d]'")
        args.obs_dim, args.num_actions = check_env(args.env)
    except ConfigError as error:
        parser.error(f"argument --env: {error}")
    return args


def find_conflict(args: argparse.Namespace) -> str | None:
    """Return a message about options that contradict each other, or None."""
    shards, frames = args.replay_shards, args.frames_per_collection
    smallest_capacity = args.buffer_size // shards
    max_frames = -(-args.collections // shards) * frames  # of one iteration, in one shard
    if shards > args.buffer_size:
        return f"--replay-shards {shards} is more than --buffer-size {args.buffer_size}"
    if args.sample_parallelism > shards:
        return f"--sample-parallelism {args.sample_parallelism} is more than the number of replay shards, {shards}"
    if args.sample_parallelism > args.batch_size:
        return f"--sample-parallelism {args.sample_parallelism} is more than --batch-size {args.batch_size}"
    if frames % args.num_envs:
        return f"--frames-per-collection {frames} is not a multiple of --num-envs {args.num_envs}"
    if max_frames > smallest_capacity:
        return (
            f"an iteration adds up to {max_frames} frames to a replay shard, which holds {smallest_capacity}. "
            f"Make --buffer-size at least {max_frames * shards}."
        )
    return None


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def count_or_zero(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def milliseconds(text: str) -> float:
    """Parse a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number from 0, not {text!r}")
    return value


def seed_number(text: str) -> int:
    """Parse a seed in the range that both numpy and torch accept."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**64 - 1, not {text!r}")
    return int(text)


def main() -> None:
    """Train, and print the progress and a summary."""
    args = parse_args()
    from training import run  # after the options are validated: importing TorchRL takes seconds

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
    loop, seconds = run(args, engine, report=lambda row: print(format_row(row), flush=True))
    summary = loop.summary(seconds)
    print("", RULE, "Training Complete!", sep="\n")
    print(f"  Total time: {seconds:.2f}s")
    print(f"  Frames: {summary['frames']} ({summary['frames_per_second']:.1f} frames/sec)")
    print(f"  First Loss: {format_metric(summary['first_loss'], '.4f')}")
    print(f"  Last Loss: {format_metric(summary['last_loss'], '.4f')}")
    print(f"  Last Mean Reward: {format_metric(summary['last_mean_reward'], '.1f')}")
    print("\nTiming:")
    for phase, timing in summary["timing"].items():
        print(f"  {phase.capitalize() + ':':10} {timing['total']:8.3f}s total, {timing['mean']:.4f}s/iteration")
    print(RULE, flush=True)
    if args.metrics_json:
        args.metrics_json.write_text(json.dumps(metrics(args, mode, loop.rows, summary), indent=1) + "\n")


def metrics(args: argparse.Namespace, mode: str, rows: list[dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of the --metrics-json file."""
    from training import EPSILON, SETTINGS, WARMUP_FRAMES

    left_out = ("env", "obs_dim", "num_actions", "metrics_json")
    options = {name: value for name, value in vars(args).items() if name not in left_out}
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
