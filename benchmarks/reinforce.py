"""Whole trainings of REINFORCE, compared with the plain loop that people write; and when distribution helps.

python benchmarks/reinforce.py [--quick]

The plain loop has one environment, a forward pass with autograd for every step, `torch.distributions`, and
log-probabilities whose graph is kept and summed step by step into the loss.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from _harness import Report
from _timed import Timed
from rollouts import iteration_side, raw_side
from torch import nn
from torch.distributions import Categorical, Normal

from raceway.algorithms import find_algorithm
from raceway.training.train import Training, train


class PlainPolicy(nn.Module):
    """The policy of the plain program."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__()
        inputs, self.continuous = env.observation_space.shape[0], isinstance(env.action_space, gym.spaces.Box)  # type: ignore[index]
        if self.continuous:
            outputs = env.action_space.shape[0]  # type: ignore[index]
            self.net = nn.Sequential(
                nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
            )
            self.log_std = nn.Parameter(torch.zeros(outputs))
        else:
            self.net = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, env.action_space.n))  # type: ignore[attr-defined]

    def forward(self, state: torch.Tensor) -> Any:
        return Normal(self.net(state), self.log_std.exp()) if self.continuous else Categorical(logits=self.net(state))


class PlainLoop:
    """The plain program, one iteration at a time."""

    def __init__(self, name: str, num_episodes: int, weights: dict[str, np.ndarray] | None = None) -> None:
        self.env = gym.make(name)
        self.policy = PlainPolicy(self.env)
        self.num_episodes = num_episodes
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4 if self.policy.continuous else 1e-2)
        if weights is not None:
            state = self.policy.state_dict()
            for (key, value), array in zip(state.items(), _ordered(weights, state), strict=True):
                assert value.shape == array.shape, key
                value.copy_(torch.from_numpy(array))

    def iterate(self) -> int:
        """Collect the episodes and take one gradient step. Return the number of environment steps."""
        steps, losses = 0, []
        for _ in range(self.num_episodes):
            log_probs, rewards, ended = [], [], False
            state, _ = self.env.reset()
            while not ended:
                distribution = self.policy(torch.from_numpy(np.asarray(state, np.float32)).unsqueeze(0))
                action = distribution.sample()
                log_probs.append(distribution.log_prob(action).sum())
                env_action = action.squeeze(0).numpy() if self.policy.continuous else action.item()
                state, reward, terminated, truncated, _ = self.env.step(env_action)
                rewards.append(float(reward))
                ended = terminated or truncated
            returns, discounted = [], 0.0
            for reward in reversed(rewards):
                discounted = reward + 0.99 * discounted
                returns.insert(0, discounted)
            scaled = torch.tensor(returns)
            scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8) if len(returns) > 1 else scaled
            loss = torch.zeros(())
            for log_prob, value in zip(log_probs, scaled, strict=True):
                loss = loss - log_prob * value
            losses.append(loss)
            steps += len(rewards)
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        self.optimizer.step()
        return steps


def _ordered(weights: dict[str, np.ndarray], like: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """Return Raceway's weights in the order of the plain policy's."""
    logs = [value for name, value in weights.items() if name.endswith("log_std")]
    rest = [value for name, value in weights.items() if not name.endswith("log_std")]
    return [*logs, *rest] if next(iter(like)) == "log_std" else [*rest, *logs]


def rate(loop: PlainLoop, length: float) -> float:
    """Return the environment steps per second of the plain loop, over at least `length` seconds."""
    start, steps = time.perf_counter(), 0
    while steps == 0 or time.perf_counter() - start < length:
        steps += loop.iterate()
    return steps / (time.perf_counter() - start)


def cartpole(report: Report, quick: bool) -> None:
    """Compare a whole training on CartPole with the plain loop, measured before and after it."""
    before = rate(PlainLoop("CartPole-v1", 20), 5)
    with tempfile.TemporaryDirectory() as folder:
        settings = {"env": "cartpole", "iterations": 20 if quick else 100, "run_dir": f"{folder}/run"}
        result = train("reinforce", progress=False, **settings)
    after = rate(PlainLoop("CartPole-v1", 4, result.policy.weights()), 5)
    reference = statistics.mean([before, after])
    ratio = result.summary["fps"] / reference
    report.row(
        "CartPole, 100 x 100 episodes: steps/s of training / the plain loop (untrained and trained)",
        "at least 50 where the learner dominates; goal 100",
        ratio >= 50,
        ratio=ratio,
        steps_per_s=result.summary["fps"],
        plain_untrained=before,
        plain_trained=after,
    )


def _raw(pipe: Any) -> None:
    step = raw_side("Ant-v5", 50)
    step()
    pipe.send(0.0)
    while (length := pipe.recv()) is not None:
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < length:
            steps += step()
        pipe.send(steps / (time.perf_counter() - start))


class TwoRaw:
    """Two processes that only call `env.step`."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(2):
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            self.processes.append(context.Process(target=_raw, args=(theirs,), daemon=True))
            self.processes[-1].start()
        for pipe in self.pipes:
            pipe.recv()

    def rate(self, length: float) -> float:
        """Return their environment steps per second, added up."""
        for pipe in self.pipes:
            pipe.send(length)
        return float(sum(pipe.recv() for pipe in self.pipes))

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


def ant(report: Report, quick: bool) -> None:
    """Compare training on Ant with the plain loop and with bare `env.step`, in short turns."""
    iterate, close = iteration_side("process")
    iterate()
    raw, plain = TwoRaw(), PlainLoop("Ant-v5", 100)
    rates: dict[str, list[float]] = {"ours": [], "raw": [], "plain": []}
    for _ in range(2 if quick else 6):
        for _ in range(4):
            rates["raw"].append(raw.rate(1.5))
            start = time.perf_counter()
            steps = iterate()
            rates["ours"].append(steps / (time.perf_counter() - start))
        rates["plain"].append(rate(plain, 0))  # one iteration
    close()
    raw.close()
    mean = {name: statistics.mean(values) for name, values in rates.items()}
    raw_ratio, plain_ratio = mean["ours"] / mean["raw"], mean["ours"] / mean["plain"]
    report.row("Ant, 2 workers: steps/s of training / the plain loop", "at least 5", plain_ratio >= 5,
               ratio=plain_ratio, steps_per_s=mean["ours"], plain_per_s=mean["plain"])  # fmt: skip
    report.row("Ant, 2 workers: steps/s of training / two processes that only step", "at least 0.8", raw_ratio >= 0.8,
               ratio=raw_ratio, raw_per_s=mean["raw"])  # fmt: skip


def executors(report: Report) -> None:
    """Measure whole iterations with 1, 5, 10 and 20 workers on an environment that sleeps."""
    settings: dict[str, Any] = {"env": Timed, "env_kwargs": {"milliseconds": 50.0, "waits": True}}
    reference = 0.0
    for workers, bar in ((1, 1.0), (5, 4.8), (10, 9.0), (20, 17.0)):
        iterate, close = iteration_side("process", num_workers=workers, **settings)
        iterate()
        durations = []
        for _ in range(2 if workers == 1 else 4):
            start = time.perf_counter()
            iterate()
            durations.append(time.perf_counter() - start)
        close()
        reference = reference or statistics.median(durations)
        speed_up = reference / statistics.median(durations)
        report.row(f"100 episodes that wait 50 ms, weights and learner included: {workers} workers / 1",
                   f"at least {bar:g}" if workers > 1 else "the reference", speed_up >= bar,
                   speed_up=speed_up, seconds=statistics.median(durations))  # fmt: skip


def when_it_helps(report: Report) -> None:
    """Measure iterations of episodes of several durations by number of workers, and the choice of `auto`."""
    for milliseconds, episodes in ((1, 100), (15, 100), (50, 40), (100, 40), (1000, 20)):
        for waits in (False, True):
            settings: dict[str, Any] = {
                "env": Timed, "env_kwargs": {"milliseconds": float(milliseconds), "waits": waits},
                "episodes_per_iter": episodes,
            }  # fmt: skip
            algorithm = find_algorithm("reinforce")
            chosen = Training(algorithm, algorithm.settings(**settings))
            counts = sorted({0, 2, 20, chosen.num_workers})
            seconds = {}
            for workers in counts:
                iterate, close = iteration_side("process" if workers else "inline", num_workers=workers, **settings)
                iterate()
                start = time.perf_counter()
                for _ in range(times := 5 if milliseconds < 50 else 1):
                    iterate()
                seconds[workers] = (time.perf_counter() - start) / times
                close()
            best = min(seconds.values())
            # A few milliseconds per iteration are not worth starting workers for.
            good_choice = seconds[chosen.num_workers] <= 1.15 * best or seconds[chosen.num_workers] - best < 0.1
            report.row(
                f"episodes of {milliseconds} ms that {'wait' if waits else 'compute'}, {episodes} per iteration: "
                "seconds per iteration by workers",
                "auto's choice within 15 % of the best, or 0.1 s",
                good_choice,
                auto=chosen.num_workers,
                **{f"workers_{workers}": duration for workers, duration in seconds.items()},
            )


def from_the_prompt(report: Report) -> None:
    """Time one iteration from the shell prompt to the prompt."""
    arguments = ["train", "reinforce", "--env", "cartpole", "--iterations", "1", "--engine", "process", "--json"]
    for more in ([], ["--num-workers", "2"]):
        durations = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "raceway", *arguments, *more, "--run-dir", f"{folder}/run"],
                    capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
                )  # fmt: skip
                durations.append(time.perf_counter() - start)
                json.loads(done.stdout.splitlines()[-1])
        wall = statistics.median(durations)
        report.row(
            f"one iteration of CartPole from the prompt {' '.join(more)}".strip(), "under 5 s", wall < 5, seconds=wall
        )


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer iterations")
    quick = parser.parse_args().quick
    report = Report("reinforce")
    from_the_prompt(report)
    cartpole(report, quick)
    ant(report, quick)
    executors(report)
    when_it_helps(report)
    report.write()


if __name__ == "__main__":
    main()
