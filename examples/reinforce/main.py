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
import sys
import time
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.random import SeedSequence

from model import ENV_CONFIGS, EnvConfig, create_policy
from raceway.errors import ConfigError
from raceway.runner import Runner

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


class Learner:
    """The policy, its optimiser, and the mean reward of every iteration so far."""

    def __init__(self, config: EnvConfig, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # gradients differ in their last bits with the number of threads
        self.config = config
        self.policy = create_policy(config)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=config.lr)
        self.mean_rewards: list[float] = []

    def update(self, episodes: list[dict]) -> float:
        """Take one step along the policy gradient and return the loss."""
        states = torch.from_numpy(np.concatenate([episode["states"] for episode in episodes]))
        actions = torch.from_numpy(np.concatenate([episode["actions"] for episode in episodes]))
        returns = np.concatenate([discounted_returns(episode["rewards"], self.config.gamma) for episode in episodes])
        weights = torch.from_numpy((returns - returns.mean()) / (returns.std() + 1e-8)).float()

        loss = -(self.policy.log_prob(states, actions) * weights).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.mean_rewards.append(float(np.mean([episode["total_reward"] for episode in episodes])))
        return loss.item()


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
        print(
            f"Iteration {iteration:4d} | Mean Reward: {learner.mean_rewards[-1]:8.1f} | Loss: {loss:8.4f}", flush=True
        )


def save_plot(mean_rewards: list[float], config: EnvConfig, path: Path) -> None:
    """Draw the mean reward over the iterations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(mean_rewards)
    axes.set(title=f"REINFORCE on {config.name}", xlabel="iteration", ylabel="mean reward of its episodes")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line, and refuse what could only fail after the training."""
    parser = argparse.ArgumentParser(description="Train a policy with distributed REINFORCE.")
    option = parser.add_argument
    option("--env", choices=list(ENV_CONFIGS), default="cartpole", help="environment (%(default)s)")
    option("--local", action="store_true", help="collect episodes in this process, without a Runner")
    option("--iterations", type=positive_int, default=100, help="number of policy updates (%(default)s)")
    option("--episodes-per-iter", type=positive_int, default=100, help="episodes collected for an update (%(default)s)")
    option("--plot", action="store_true", help="save a plot of the rewards as reinforce-<env>.png")
    option("--engine", choices=["inline", "process", "ray"], help="where workers live ($RACEWAY_ENGINE, or process)")
    option("--workers", type=positive_int, help="number of workers (as many as the engine has room for)")
    option("--seed", type=int, default=0, help="seed of the weights, the actions and the environments (%(default)s)")
    args = parser.parse_args(argv)
    if args.local and (args.engine or args.workers):
        parser.error("--local collects in this process; leave out --engine and --workers")
    if ENV_CONFIGS[args.env].continuous and not importlib.util.find_spec("mujoco"):
        parser.error(f"--env {args.env} needs MuJoCo: pip install 'raceway[mujoco]'")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return args


def positive_int(text: str) -> int:
    """Convert an option that must be at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main() -> None:
    """Train, and say how it went."""
    args = parse_args()
    config = ENV_CONFIGS[args.env]
    mode, runner = ("Local", "") if args.local else ("Distributed", " using Raceway Runner")
    num_episodes = args.iterations * args.episodes_per_iter
    print(RULE, f"{mode} REINFORCE on {config.name}{runner}", RULE, sep="\n")
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
    start = time.perf_counter()
    train = train_local if args.local else train_distributed
    train(learner, args)
    seconds = time.perf_counter() - start

    print(RULE, "Training Complete!", sep="\n")
    print(f"  Total time: {seconds:.2f}s")
    print(f"  Episodes: {num_episodes} ({num_episodes / seconds:.1f} episodes/sec)")
    print(f"  Final Mean Reward: {learner.mean_rewards[-1]:.1f}")
    print(RULE)
    if args.plot:
        path = Path(f"reinforce-{args.env}.png")
        save_plot(learner.mean_rewards, config, path)
        print(f"Plot saved to {path.resolve()}")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
