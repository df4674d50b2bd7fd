"""`raceway eval RUN`: evaluate a trained policy, and record a video of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from raceway.commands.arguments import parse_count, parse_seed, wide_help
from raceway.commands.progress_line import Progress
from raceway.errors import ConfigError
from raceway.imports import fast_imports


def run(arguments: list[str]) -> int:
    """Evaluate the policy of a run, and record a video of it if asked for."""
    options = _parser().parse_args(arguments)
    if options.video_episodes is not None and options.video is None:
        raise ConfigError("--video-episodes needs a video. Add --video FILE.")
    with fast_imports():
        from raceway.loaded_policy import load
        from raceway.machine import worker_compute_settings
        from raceway.rollouts.video import check_video_path

    path = check_video_path(options.video) if options.video else None
    policy = load(options.run, options.which, network=options.network, trust=options.trust)
    env = policy.env_settings(options.env)
    sampling: dict[str, Any] = {"seed": options.seed, "deterministic": options.deterministic}
    report = policy.about | sampling
    with ExitStack() as stack:
        stack.enter_context(worker_compute_settings())
        # Fail before the evaluation, which may take long, if the environment cannot be recorded.
        recorder = stack.enter_context(_recorder(policy, env)) if path else None
        with Progress(f"of {options.episodes} episodes") as progress:
            evaluation = policy.evaluate(options.episodes, env=env, on_progress=progress, **sampling)
        report |= {
            "episodes": options.episodes,
            "mean_return": evaluation.mean_return,
            "std_return": evaluation.std_return,
            "mean_length": evaluation.mean_length,
            "success_rate": evaluation.success_rate,
            "returns": evaluation.returns.tolist(),
            "lengths": evaluation.lengths.tolist(),
            "trained_return": policy.about["mean_return"],
            **_by_agent(evaluation),
        }
        if not options.json:
            _print_evaluation(report)
        if recorder is not None and path is not None:
            num_episodes = options.video_episodes or 1
            with Progress("frames") as progress:
                recorder.record(policy, path, num_episodes, on_progress=progress, **sampling)
            report |= {"video": str(path), "video_returns": recorder.returns}
            if not options.json:
                returns = ", ".join(f"{value:.2f}" for value in recorder.returns)
                print(f"Video saved to {path}: {'return' if num_episodes == 1 else 'returns'} {returns}", flush=True)
    if options.json:
        print(json.dumps(report), flush=True)
    return 0


@contextmanager
def _recorder(policy: Any, env: Any) -> Iterator[Any]:
    """Yield the recorder of a video of one agent or several, after checking that the policy fits the environment."""
    from raceway.rollouts.multi_video import MultiVideoRecorder
    from raceway.rollouts.video import VideoRecorder
    from raceway.runs.trained_policies import TrainedPolicies

    if isinstance(policy, TrainedPolicies):
        policy.check_spaces(env)
        with MultiVideoRecorder(env) as recorder:
            yield recorder
        return
    with VideoRecorder(env) as recorder:
        policy.check_spaces(recorder.env.observation_space, recorder.env.action_space)
        yield recorder


def _by_agent(evaluation: Any) -> dict[str, Any]:
    """Return the mean returns by policy and by agent, if there are several agents."""
    if not hasattr(evaluation, "by_agent"):
        return {}
    by_policy = {
        name: {"mean_return": mean, "agents": list(evaluation.agents_of[name])}
        for name, mean in evaluation.means_by_policy().items()
    }
    return {"policies": by_policy, "agents": evaluation.means_by_agent()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raceway eval", description="Evaluate the policy of a run on whole episodes.", allow_abbrev=False,
        formatter_class=wide_help,
    )  # fmt: skip
    option = parser.add_argument
    option("run", metavar="RUN", help="run directory")
    option("--episodes", type=parse_count, default=20, metavar="N", help="number of episodes [20]")
    option(
        "--deterministic", action=argparse.BooleanOptionalAction, default=True,
        help="take the most likely action, or the one with the highest Q-value, instead of sampling [yes]",
    )  # fmt: skip
    option("--which", default="best", metavar="CHECKPOINT", help="best, latest, or a number of steps [best]")
    option("--seed", type=parse_seed, default=0, metavar="N", help="random seed of the episodes and the actions [0]")
    option("--env", metavar="NAME", help="another environment; or that of the run, if it is module:Id")
    option("--network", metavar="NAME", help="the network of the run, if it is module:function")
    option("--trust", action="store_true", help="import modules that the run names")
    option("--video", metavar="FILE", help="record a further episode as a video: .mp4 or .gif")
    option("--video-episodes", type=parse_count, metavar="N", help="number of episodes in the video [1]")
    option("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def _print_evaluation(report: dict[str, Any]) -> None:
    returns, lengths = report["returns"], report["lengths"]
    sampled = "" if report["deterministic"] else ", sampled actions"
    print(f"{report['algorithm']} on {report['env']}, after {report['steps']:,} {report['unit']} of training{sampled}")
    print(f"  episodes     {report['episodes']}")
    together = " (all agents together)" if "policies" in report else ""
    print(f"  mean return  {report['mean_return']:.2f} ± {report['std_return']:.2f}{together}, "
          f"from {min(returns):.2f} to {max(returns):.2f}")  # fmt: skip
    print(f"  mean length  {report['mean_length']:.1f}, from {min(lengths)} to {max(lengths)}", flush=True)
    for name, policy in report.get("policies", {}).items():
        print(f"  policy {name}  mean return {policy['mean_return']:.2f} per agent")
        for agent in policy["agents"]:
            mean = report["agents"].get(agent)
            print(f"    {agent}  {'took no part' if mean is None else format(mean, '.2f')}", flush=True)
    if report["success_rate"] is not None:
        print(f"  success rate {report['success_rate']:.1%}", flush=True)
