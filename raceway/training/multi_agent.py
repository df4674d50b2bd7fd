"""Training with several agents: the same run, loop and files as with one, and a plan for every policy.

rollouts of all agents -> the operators of every policy      on every worker
   -> split
      -> the plan of one policy
      -> the plan of another
   -> whichever has an iteration -> metrics
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from raceway.agents import Spaces
from raceway.algorithms import Algorithm, Context
from raceway.algorithms.setting_sources import FILE, Sources, adapted_sources, check_settings_used
from raceway.algorithms.sources import RolloutSource, WorkerCall
from raceway.engine.base import Actor
from raceway.envs import EnvSettings
from raceway.envs.multi_agent import MultiAgentSettings
from raceway.errors import ConfigError
from raceway.flow import SharedStream, create, union_async
from raceway.learner.exploration import Exploration
from raceway.machine import num_cores
from raceway.ops.multi_agent import MultiRolloutSettings, MultiRolloutWorker, WholeEpisodes, policy_on_worker
from raceway.ops.policy_report import JointEpisodes, ReportPolicies
from raceway.rl.seeding import Purpose, derive_seed
from raceway.runs.initial_weights import load_initial_weights
from raceway.runs.recorder import Result
from raceway.runs.resume import ResumePoint
from raceway.runs.trained_policies import AgentGroup, TrainedPolicies
from raceway.runs.trained_policy import TrainedPolicy
from raceway.training.multi_evaluations import PolicyEvaluator
from raceway.training.multi_step_cost import measure_joint_step
from raceway.training.policy_settings import PolicyChoice, PolicySettings, read_policies
from raceway.training.policy_trainers import (
    FRAGMENT_STEPS,
    ExplorationGroup,
    LearnerGroup,
    PolicyTrainer,
    WeightSenders,
    adapt,
    check_used,
    env_with_policies,
    policy_config,
    with_imported_network,
    with_shards,
)
from raceway.training.train import Training
from raceway.training.worker_count import choose_workers, decide_workers
from raceway.ui.callback import Callback
from raceway.ui.callback_list import CallbackList


class JointRolloutSource(RolloutSource):
    """Rollouts of all agents of an environment."""

    settings: Any

    def worker(self, name: str) -> WorkerCall:
        """Return how a rollout worker is created."""
        return MultiRolloutWorker, (self.settings, name)


class MultiAgentTraining(Training):
    """One run with several agents, from its settings to its summary.

    Args:
        algorithm: the algorithm of policies that name none.
        cfg: its config, with the settings of the run. Policies of this algorithm have its other settings too.
        callbacks: notified of the progress.
        policies: the policies and their agents; see `raceway.training.policy_settings`.
        resume_point: the checkpoint to resume from.
        clock: the clock that the intervals of checkpoints refer to.
        setting_sources: where the settings come from.
    """

    source: JointRolloutSource
    env: Any
    policies: Mapping[str, PolicyTrainer]
    agent: Any
    learner: Any
    exploration: Any
    report: ReportPolicies
    evaluator: PolicyEvaluator
    _weights: Any

    def __init__(
        self, algorithm: Algorithm, cfg: Any, callbacks: Sequence[Callback] = (), *, policies: PolicyChoice = None,
        resume_point: ResumePoint | None = None, clock: Callable[[], float] = time.monotonic,
        setting_sources: Sources | None = None,
    ) -> None:  # fmt: skip
        self.algorithm, self.resume_point, self._clock, self.requested_cfg = algorithm, resume_point, clock, cfg
        self.callbacks = CallbackList(callbacks)
        if cfg.vector != "auto":
            raise ConfigError(f"vector is {cfg.vector!r}, but environments with several agents have no vectors.")
        if cfg.last_action_and_reward:
            raise ConfigError(
                "last_action_and_reward is for environments with one agent. Set it to false: "
                "--no-last-action-and-reward"
            )
        env = MultiAgentSettings(cfg.env, {}, cfg.env_kwargs)
        settings = read_policies(policies, algorithm, env)
        check_used(algorithm, cfg, settings, setting_sources or {})
        self.env = env_with_policies(env, settings)
        self.policies = self._make_trainers(settings, setting_sources or {})
        learners = {name: trainer.learner for name, trainer in self.policies.items()}
        self.learner = LearnerGroup(learners)
        self.exploration = ExplorationGroup({name: trainer.exploration for name, trainer in self.policies.items()})
        self.agent = AgentGroup({name: trainer.agent for name, trainer in self.policies.items()})
        if resume_point is not None:
            resume_point.check_weights_fit(self.agent)
        if self.cfg.num_workers != "auto":
            _ = self._decided_workers  # refuses too many at once
        token = self.rollouts.episode_callbacks.token if self.rollouts.episode_callbacks else ""
        self.episodes = JointEpisodes()
        self.report = ReportPolicies(list(self.policies), self.episodes, token=token)
        policies_of_result = self._trained_policies()
        self.result = Result({}, policies_of_result)
        self.evaluator = PolicyEvaluator(
            self.learner, policies_of_result, self.env, cfg.eval_every, cfg.eval_episodes, seed=cfg.seed
        )

    def _make_trainers(self, settings: Mapping[str, PolicySettings], sources: Sources) -> dict[str, PolicyTrainer]:
        """Return what trains each policy; set the config, the spaces and the rollouts of the run."""
        requested, spaces = self.requested_cfg, {name: Spaces(*pair) for name, pair in self.env.spaces().items()}
        first = next((name for name in settings if settings[name].algorithm is self.algorithm), next(iter(settings)))
        self.spaces: Any = spaces
        self.cfg = with_imported_network(adapt(with_shards(requested), spaces[first]))
        self.setting_sources = adapted_sources(
            sources, requested, dataclasses.replace(self.cfg, network=requested.network)
        )
        num_agents = sum(len(policy.agents) for policy in settings.values())
        configs, networks = dict[str, Any](), dict[str, Any]()
        for name, policy in settings.items():
            share = len(policy.agents) / num_agents
            config = policy_config(policy, self.algorithm, requested, self.cfg, share)
            networks[name] = config.network
            configs[name] = with_imported_network(adapt(config, spaces[name]))
        self.source = JointRolloutSource(requested)
        self.source.settings = self._rollout_settings(settings, configs)
        agents = self.rollouts.make_agents(derive_seed(requested.seed, Purpose.WEIGHTS))
        explorers = self.rollouts.make_explorers()
        for name, agent in agents.items():
            settings[name].algorithm.check_memory(agent)
            if self.resume_point is None:
                inherited = self.setting_sources if settings[name].algorithm is self.algorithm else {}
                own_sources = {**inherited, **dict.fromkeys(settings[name].settings, FILE)}  # may repeat defaults
                default = settings[name].algorithm.config
                check_settings_used(agent.actor.unused_settings, configs[name], own_sources, default)
        starts_from = {name: cfg.init_from for name, cfg in configs.items() if cfg.init_from is not None}
        if self.resume_point is None and starts_from:
            self.initial_weights = {
                name: load_initial_weights(agents[name], run, name) for name, run in starts_from.items()
            }
        return {
            name: PolicyTrainer(
                policy, spaces[name], configs[name], networks[name], agents[name],
                configs[name].learner(agents[name]), Exploration(explorers[name]),
            )
            for name, policy in settings.items()
        }  # fmt: skip

    def _rollout_settings(
        self, settings: Mapping[str, PolicySettings], configs: Mapping[str, Any]
    ) -> MultiRolloutSettings:
        cfg, unused = self.cfg, EnvSettings(self.env.name)  # policies are made from spaces
        return MultiRolloutSettings(
            env=self.env,
            num_shards=cfg.num_shards,
            slots_per_shard=cfg.num_envs // cfg.num_shards,
            fragment_steps=getattr(cfg, "fragment_steps", FRAGMENT_STEPS),
            policies={name: settings[name].algorithm.rollouts(config, unused) for name, config in configs.items()},
            seed=cfg.seed,
            info_keys=tuple(cfg.info_keys),
            episode_callbacks=self.callbacks.for_workers(),
            max_env_failures=cfg.max_env_failures,
        )

    def _trained_policies(self) -> Any:
        about = {"run": None, "env": self.env.name, "checkpoint": None, "steps": 0, "mean_return": None}
        about["unit"] = self.cfg.progress.noun
        policies = {
            name: TrainedPolicy(
                trainer.agent, trainer.spaces, EnvSettings(self.env.name, self.env.kwargs),
                {**about, "algorithm": trainer.algorithm.name, "policy": name},
                clip_actions=trainer.cfg.clip_actions, explorer=trainer.exploration.explorer,
            )
            for name, trainer in self.policies.items()
        }  # fmt: skip
        agents_of = {name: list(trainer.agents) for name, trainer in self.policies.items()}
        return TrainedPolicies(policies, self.env, agents_of, {**about, "algorithm": self.label})

    @property
    def label(self) -> str:
        """The algorithms of the run, as text."""
        return "+".join(sorted({trainer.algorithm.name for trainer in self.policies.values()}))

    @cached_property
    def _decided_workers(self) -> tuple[int, str]:
        cfg = self.cfg
        slots: Any = None  # not needed unless a step is measured
        if cfg.num_workers != "auto" or cfg.engine == "inline":
            resumed = self.resume_point is not None
            return decide_workers(cfg, self.env, slots, self.setting_sources, resumed=resumed)
        return choose_workers(measure_joint_step(self.env, cfg.item_deadline), num_cores(), cfg.num_shards)

    def flow(self, workers: Sequence[Actor]) -> Any:
        """Return the flow of the run."""
        contexts = {
            name: Context(
                trainer.learner, workers, workers[0].engine, trainer.exploration, policy=name,
                failure_policy=self.failure_policy,
            )
            for name, trainer in self.policies.items()
        }  # fmt: skip
        self._weights = WeightSenders([context.weights() for context in contexts.values()])
        hooks: list[Callable[[Actor], Any]] = [self._weights.send_to]
        settings = self.rollouts
        source = create(workers, "sample", num_shards=settings.num_shards, seed=settings.seed).on_failure(
            "restart", on_restart=partial(_call_all, hooks), **self.failure_policy
        )
        shared = SharedStream(
            source, list(self.policies), buffer=self._buffer, actor_of=policy_on_worker, on_restart=hooks
        )
        plans: dict[str, Any] = {}
        for name, trainer in self.policies.items():
            rollouts: Any = shared.part(name)
            num_episodes = settings.policies[name].num_episodes
            if num_episodes is not None:
                rollouts = rollouts.flat_map(WholeEpisodes(-(-num_episodes // settings.num_shards)))
            plan = trainer.algorithm.plan(rollouts, trainer.cfg, contexts[name])
            plans[name] = plan.for_each(partial(_with_name, name))
        shared.connect(self.episodes)
        return union_async(**plans).for_each(self.report)

    @property
    def _buffer(self) -> int:
        """Rounds by which one plan may be ahead of another: as many as one needs for a batch, and some more."""
        settings = self.rollouts
        steps = settings.num_shards * settings.slots_per_shard * settings.fragment_steps
        rounds = max(-(-getattr(trainer.cfg, "batch_steps", 1) // steps) for trainer in self.policies.values())
        return 8 + 4 * rounds  # a fragment has fewer steps of agents that are absent or have fewer turns

    def check_policies(self, policies: PolicyChoice) -> None:
        """Refuse policies that are not those of the run, if it is resumed with some."""
        if policies is None:
            return
        requested = read_policies(policies, self.algorithm, self.env)
        for name, policy in requested.items():
            own = self.policies[name].settings if name in self.policies else None
            same = own is not None and (policy.agents, policy.algorithm.name) == (own.agents, own.algorithm.name)
            if own is None or not same or not policy.settings.items() <= own.settings.items():
                raise ConfigError(
                    f"the policies of a run cannot change when it is resumed: {name!r} is not as it was. Choose "
                    "another --run-dir."
                )

    def describe_agents(self) -> dict[str, Any]:
        """Return the policies, for config.json."""
        return {"policies": {name: trainer.describe() for name, trainer in self.policies.items()}}

    def summarise_agents(self) -> dict[str, Any]:
        """Return the summary of every policy."""
        reports, evaluated = self.report.policies, self.evaluator.last_by_policy
        return {
            "algorithm": self.label,
            "policies": {
                name: {
                    "algorithm": trainer.algorithm.name,
                    "agents": list(trainer.agents),
                    "iterations": reports[name].iterations,
                    "timesteps": reports[name].timesteps,
                    "episodes": reports[name].episodes,
                    "mean_return": reports[name].mean_return,
                    "best_mean_return": reports[name].best,
                    "eval_mean_return": evaluated.get(name),
                    "weights_sha256": trainer.agent.sha256(),
                }
                for name, trainer in self.policies.items()
            },
        }

    def describe_checkpoint(self) -> dict[str, Any]:
        """Return the mean return of every policy, for checkpoints."""
        reports = self.report.policies
        return {"policies": {name: {"mean_return": reports[name].mean_return} for name in self.policies}}

    def _release_policy(self) -> None:
        super()._release_policy()
        policies: Any = self.result.policy
        for name, policy in policies.policies.items():
            mean_return = self.report.policies[name].mean_return
            policy.about |= {**policies.about, "algorithm": policy.about["algorithm"], "mean_return": mean_return}
            for agent in policies.agents_of[name]:
                policies[agent].about |= policy.about


def _with_name(name: str, stats: Any) -> tuple[str, Any]:
    return name, stats


def _call_all(hooks: Sequence[Callable[[Actor], Any]], worker: Actor) -> list[Any]:
    """Call hooks, and return their results, of which each may be a list."""
    results = [hook(worker) for hook in hooks]
    return [part for result in results for part in (result if isinstance(result, list) else [result])]
