"""REINFORCE with distributed episodes: workers collect episodes, one learner updates the policy.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696

    weights -> episodes        on every worker
       -> one Adam step        on the learner

Run `python examples/reinforce/main.py --help` for the options. The same seed gives the same learning curve on every
engine, with any number of workers, and with `--local`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from threadpoolctl import threadpool_limits

from model import ENV_CONFIGS, EnvConfig, create_policy
from raceway.errors import ConfigError
from raceway.runner import Runner

GAMMA = 0.99
"""Discount factor."""
CHUNK_STEPS = 4096
"""Steps of one backward pass: more would not fit in the CPU caches."""
WINDOW = 100
"""Episodes of the plot's moving average."""
RULE = "=" * 60


def collect_episode(weights: dict, env_name: str, seed: SeedSequence) -> dict:
    """Collect one episode with these weights; runs in a worker."""
    import numpy as np

    from model import ENV_CONFIGS, create_env, create_once, create_policy

    config = ENV_CONFIGS[env_name]
    env, policy = create_once(create_env, config), create_once(create_policy, config)
    policy.load_state_dict(weights)
    act = policy.actor()

    rng = np.random.default_rng(seed)
    max_steps = env.spec.max_episode_steps
    noise = policy.sample_noise(rng, max_steps)
    states = np.empty((max_steps, config.obs_dim), np.float32)
    actions, rewards = [], []
    states[0], _ = env.reset(seed=int(rng.integers(2**31)))
    for step in range(max_steps):
        action = act(states[step], noise[step])
        obs, reward, terminated, truncated, _ = env.step(action)
        actions.append(action)
        rewards.append(reward)
        if terminated or truncated:
            break
        states[step + 1] = obs
    return {
        "states": states[: len(rewards)],
        "actions": np.array(actions),
        "rewards": np.array(rewards, np.float32),
        "total_reward": float(sum(rewards)),
    }


def discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted returns G[t] = r[t] + γ G[t+1], in one backward pass.

    >>> discounted_returns(np.array([1.0, 2.0, 4.0]), gamma=0.5)
    array([3., 4., 4.])
    """
    backwards = accumulate(reversed(rewards.tolist()), lambda later, reward: reward + gamma * later)
    return np.fromiter(backwards, float, len(rewards))[::-1]


def normalise(returns: np.ndarray) -> np.ndarray:
    """Scale the returns of one episode to mean 0 and standard deviation 1.

    >>> normalise(np.array([3.0, 1.0])).round(3)
    array([ 1., -1.], dtype=float32)
    """
    return ((returns - returns.mean()) / (returns.std() + 1e-8)).astype(np.float32)


class Learner:
    """The policy, its optimiser, and the total reward of every episode so far."""

    def __init__(self, config: EnvConfig, seed: int) -> None:
        torch.manual_seed(seed)
        self.policy = create_policy(config)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.lr)
        self.total_rewards: list[float] = []
        self.mean_reward = 0.0
        """Mean total reward of the last iteration's episodes."""

    def update(self, episodes: list[dict]) -> float:
        """Take one policy-gradient step; return the loss, the mean over episodes of -Σₜ log π(aₜ|sₜ) Gₜ."""
        returns = [normalise(discounted_returns(episode["rewards"], GAMMA)) for episode in episodes]
        columns = [[episode["states"] for episode in episodes], [episode["actions"] for episode in episodes], returns]
        chunks = [torch.from_numpy(np.concatenate(column)).split(CHUNK_STEPS) for column in columns]

        loss = 0.0
        self.optimizer.zero_grad()
        for states, actions, weights in zip(*chunks, strict=True):
            chunk_loss = -(self.policy.log_prob(states, actions) * weights).sum() / len(episodes)
            chunk_loss.backward()  # adds to the gradients of the earlier chunks
            loss += chunk_loss.item()
        self.optimizer.step()

        rewards = [episode["total_reward"] for episode in episodes]
        self.total_rewards += rewards
        self.mean_reward = float(np.mean(rewards))
        return loss


def episode_seeds(seed: int, iteration: int, num_episodes: int) -> list[SeedSequence]:
    """Return a seed for every episode of an iteration, which does not depend on the worker that collects it."""
    return [SeedSequence(seed, spawn_key=(iteration, episode)) for episode in range(num_episodes)]


def train_distributed(learner: Learner, args: argparse.Namespace) -> None:
    """Train with episodes that the workers of a Runner collect."""
    policy, env_name = learner.policy, args.env
    collect_fn = partial(collect_episode, env_name=env_name)
    with Runner(f"rl-{env_name}", engine=args.engine, workers=args.workers) as rr:
        collector = rr.service(collect_fn)
        for iteration in range(args.iterations):
            weights_ref = rr.put_object(policy.state_dict())
            seeds = episode_seeds(args.seed, iteration, args.episodes_per_iter)
            futures = [collector(weights_ref, seed=seed) for seed in seeds]
            episodes = rr.get(futures)
            report(iteration, args.iterations, learner, loss=learner.update(episodes))


def train_local(learner: Learner, args: argparse.Namespace) -> None:
    """Train with episodes that are collected in this process."""
    for iteration in range(args.iterations):
        weights = learner.policy.state_dict()
        seeds = episode_seeds(args.seed, iteration, args.episodes_per_iter)
        episodes = [collect_episode(weights, env_name=args.env, seed=seed) for seed in seeds]
        report(iteration, args.iterations, learner, loss=learner.update(episodes))


def report(iteration: int, num_iterations: int, learner: Learner, loss: float) -> None:
    """Print the metrics of every tenth iteration and of the last."""
    if iteration % 10 == 0 or iteration == num_iterations - 1:
        print(f"Iteration {iteration:4d} | Mean Reward: {learner.mean_reward:8.1f} | Loss: {loss:8.4f}", flush=True)


def plot_rewards(figure: Any, rewards: list[float], title: str) -> None:
    """Plot the total reward of every episode, and its moving average."""
    sums = np.cumsum([0.0, *rewards])
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - WINDOW, 0)  # the first windows are shorter
    axes = figure.subplots()
    means = (sums[ends] - sums[starts]) / (ends - starts)
    size = 3 if len(rewards) > 1000 else 6
    axes.plot(ends, rewards, ".", ms=size, mew=0, color="#5b8db8", alpha=0.35, label="one episode")
    axes.plot(ends, means, lw=1.8, color="#14406b", label=f"mean of the last {WINDOW}")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel="episode", ylabel="total reward")
    axes.margins(x=0.01)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, markerscale=8 / size)
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def save_and_show_plot(rewards: list[float], title: str, path: Path) -> None:
    """Save a plot of the rewards, and show it if there is a display."""
    from matplotlib.figure import Figure

    size = {"figsize": (9, 5), "layout": "constrained"}
    figure = Figure(**size)  # needs no display: the file is written even if no window can be opened
    plot_rewards(figure, rewards, title)
    figure.savefig(path, dpi=130)
    print(f"Plot saved to {path.resolve()}", flush=True)
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import matplotlib.pyplot as plt

        plot_rewards(plt.figure(**size), rewards, title)
        if plt.get_backend().lower() != "agg":  # matplotlib's fallback if there is no GUI toolkit
            plt.show()
        plt.close("all")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and check that optional dependencies are installed."""
    parser = argparse.ArgumentParser(description="Train a policy with distributed REINFORCE.")
    option = parser.add_argument
    option("--env", choices=list(ENV_CONFIGS), default="cartpole", help="environment (%(default)s)")
    option("--local", action="store_true", help="collect episodes in this process, without a Runner")
    option("--iterations", type=count, default=100, help="number of training iterations (%(default)s)")
    option("--episodes-per-iter", type=count, default=100, help="episodes collected per iteration (%(default)s)")
    option("--plot", action="store_true", help="save a plot as reinforce-<env>.png; show it if there is a display")
    option("--engine", choices=["inline", "process", "ray"], help="where workers run ($RACEWAY_ENGINE, or process)")
    option("--workers", type=count, help="number of workers (the engine's capacity)")
    option("--seed", type=seed_number, default=0, help="seed of weights, actions and environments (%(default)s)")
    args = parser.parse_args(argv)
    if args.local and (args.engine or args.workers):
        parser.error("--local collects in this process; leave out --engine and --workers")
    if ENV_CONFIGS[args.env].continuous and not importlib.util.find_spec("mujoco"):
        parser.error(f"--env {args.env} needs MuJoCo: pip install 'gymnasium[mujoco]'")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def seed_number(text: str) -> int:
    """Parse a seed in the range that both numpy and torch accept."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**64 - 1, not {text!r}")
    return int(text)


def main() -> None:
    """Train, and print the progress and a summary."""
    args = parse_args()
    config = ENV_CONFIGS[args.env]
    mode, runner = ("Local", "") if args.local else ("Distributed", " using Raceway Runner")
    num_episodes = args.iterations * args.episodes_per_iter
    print(RULE, f"{mode} REINFORCE on {config.name}{runner}", RULE, "", sep="\n")
    print("Configuration:")
    print(f"  Environment: {config.name}")
    print(f"  Observation dim: {config.obs_dim}")
    print(f"  Action dim: {config.action_dim}")
    print(f"  Continuous actions: {config.continuous}")
    print(f"  Training iterations: {args.iterations}")
    print(f"  Episodes per iteration: {args.episodes_per_iter}")
    print(f"  Total episodes: {num_episodes}")
    print(f"  Seed: {args.seed}")
    print(f"\nStarting {mode.lower()} training...", flush=True)

    learner = Learner(config, args.seed)
    train = train_local if args.local else train_distributed
    start = time.perf_counter()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # the last bits of a sum depend on the number of threads
        train(learner, args)
    seconds = time.perf_counter() - start

    print("", RULE, "Training Complete!", sep="\n")
    print(f"  Total time: {seconds:.2f}s")
    print(f"  Episodes: {num_episodes} ({num_episodes / seconds:.1f} episodes/sec)")
    print(f"  Final Mean Reward: {learner.mean_reward:.1f}")
    print(RULE, flush=True)
    if args.plot:
        save_and_show_plot(learner.total_rewards, f"REINFORCE on {config.name}", Path(f"reinforce-{args.env}.png"))


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
