"""REINFORCE with distributed episodes: workers play, one learner follows the policy gradient.

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
STEPS_AT_ONCE = 4096
"""Steps for which gradients are computed together: more would not fit in the caches."""
WINDOW = 100
"""Episodes over which the plot averages."""
RULE = "=" * 60


def collect_episode(weights: dict, env_name: str, seed: SeedSequence) -> dict:
    """Play one episode with these weights; runs in a worker."""
    import numpy as np

    from model import ENV_CONFIGS, create_env, create_policy, once

    config = ENV_CONFIGS[env_name]
    env, policy = once(create_env, config), once(create_policy, config)
    policy.load_state_dict(weights)
    act = policy.actor()

    rng = np.random.default_rng(seed)
    max_steps = env.spec.max_episode_steps
    noise = policy.draw_noise(rng, max_steps)
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
    """Return G[t] = r[t] + γ G[t+1], in one pass from the end.

    >>> discounted_returns(np.array([1.0, 2.0, 4.0]), gamma=0.5)
    array([3., 4., 4.])
    """
    backwards = accumulate(reversed(rewards.tolist()), lambda later, reward: reward + gamma * later)
    return np.fromiter(backwards, float, len(rewards))[::-1]


def normalise(returns: np.ndarray) -> np.ndarray:
    """Return the returns of one episode with mean 0 and deviation 1: its better half is reinforced.

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
        """That of the last iteration."""

    def update(self, episodes: list[dict]) -> float:
        """Take one step along the policy gradient; return the loss, the mean over episodes of -Σₜ log π(aₜ|sₜ) Gₜ."""
        returns = [normalise(discounted_returns(episode["rewards"], GAMMA)) for episode in episodes]
        columns = [[episode["states"] for episode in episodes], [episode["actions"] for episode in episodes], returns]
        parts = [torch.from_numpy(np.concatenate(column)).split(STEPS_AT_ONCE) for column in columns]

        loss = 0.0
        self.optimizer.zero_grad()
        for states, actions, weights in zip(*parts, strict=True):
            part = -(self.policy.log_prob(states, actions) * weights).sum() / len(episodes)
            part.backward()  # adds to the gradients of the parts before
            loss += part.item()
        self.optimizer.step()

        rewards = [episode["total_reward"] for episode in episodes]
        self.total_rewards += rewards
        self.mean_reward = float(np.mean(rewards))
        return loss


def episode_seeds(seed: int, iteration: int, num_episodes: int) -> list[SeedSequence]:
    """Give every episode a seed of its own, whichever worker plays it."""
    return [SeedSequence(seed, spawn_key=(iteration, episode)) for episode in range(num_episodes)]


def train_distributed(learner: Learner, args: argparse.Namespace) -> None:
    """Collect every iteration's episodes on the workers of a Runner."""
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
    """Collect every iteration's episodes here, one after the other."""
    for iteration in range(args.iterations):
        weights = learner.policy.state_dict()
        seeds = episode_seeds(args.seed, iteration, args.episodes_per_iter)
        episodes = [collect_episode(weights, env_name=args.env, seed=seed) for seed in seeds]
        report(iteration, args.iterations, learner, loss=learner.update(episodes))


def report(iteration: int, num_iterations: int, learner: Learner, loss: float) -> None:
    """Print every tenth iteration and the last."""
    if iteration % 10 == 0 or iteration == num_iterations - 1:
        print(f"Iteration {iteration:4d} | Mean Reward: {learner.mean_reward:8.1f} | Loss: {loss:8.4f}", flush=True)


def draw_rewards(figure: Any, rewards: list[float], title: str) -> None:
    """Draw the total reward of every episode, and the mean of the last hundred."""
    totals = np.cumsum([0.0, *rewards])
    ends = np.arange(1, len(totals))
    starts = np.maximum(ends - WINDOW, 0)  # the first means are over the episodes there are
    axes = figure.subplots()
    means = (totals[ends] - totals[starts]) / (ends - starts)
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


def plot(rewards: list[float], title: str, path: Path) -> None:
    """Save a picture of the rewards, and show it where there is a screen."""
    from matplotlib.figure import Figure

    size = {"figsize": (9, 5), "layout": "constrained"}
    picture = Figure(**size)  # needs no screen, so that the file is there whatever becomes of the window
    draw_rewards(picture, rewards, title)
    picture.savefig(path, dpi=130)
    print(f"Plot saved to {path.resolve()}", flush=True)
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import matplotlib.pyplot as plt

        draw_rewards(plt.figure(**size), rewards, title)
        if plt.get_backend().lower() != "agg":  # what matplotlib falls back to without a toolkit for windows
            plt.show()
        plt.close("all")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, and refuse what could only fail after the training."""
    parser = argparse.ArgumentParser(description="Train a policy with distributed REINFORCE.")
    option = parser.add_argument
    option("--env", choices=list(ENV_CONFIGS), default="cartpole", help="environment (%(default)s)")
    option("--local", action="store_true", help="collect episodes in this process, without a Runner")
    option("--iterations", type=count, default=100, help="number of training iterations (%(default)s)")
    option("--episodes-per-iter", type=count, default=100, help="episodes collected per iteration (%(default)s)")
    option("--plot", action="store_true", help="save the rewards as reinforce-<env>.png; show it if there is a screen")
    option("--engine", choices=["inline", "process", "ray"], help="where workers live ($RACEWAY_ENGINE, or process)")
    option("--workers", type=count, help="number of workers (as many as the engine has room for)")
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
    """Convert an option that must be at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def seed_number(text: str) -> int:
    """Convert a seed to what both numpy and torch take for one."""
    if not text.isdecimal() or int(text) >= 2**64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2**64 - 1, not {text!r}")
    return int(text)


def main() -> None:
    """Train, and say how it went."""
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
    with threadpool_limits(1):  # the last bits of a sum depend on how many threads it is shared by
        train(learner, args)
    seconds = time.perf_counter() - start

    print("", RULE, "Training Complete!", sep="\n")
    print(f"  Total time: {seconds:.2f}s")
    print(f"  Episodes: {num_episodes} ({num_episodes / seconds:.1f} episodes/sec)")
    print(f"  Final Mean Reward: {learner.mean_reward:.1f}")
    print(RULE, flush=True)
    if args.plot:
        plot(learner.total_rewards, f"REINFORCE on {config.name}", Path(f"reinforce-{args.env}.png"))


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
