"""Settings that a family of algorithms shares, such as actor-critic methods, or those that learn from replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from raceway.agents import Agent, Explorer, Spaces
from raceway.algorithms.config import AlgorithmConfig, TrainingConfig, default_iterations
from raceway.envs import EnvSettings, Slots, SteppedSlots
from raceway.envs.goals import check_goals
from raceway.envs.names import is_multi_agent
from raceway.errors import ConfigError
from raceway.flow import RateLimit
from raceway.ops import (
    DatasetSettings,
    HindsightSettings,
    PerturbationSettings,
    ReplaySettings,
    RolloutSettings,
    replay_limits,
)
from raceway.settings.field_types import Called, Discount, Fraction, PositiveFloat, PositiveInt, Widths
from raceway.settings.groups import INPUT, EpisodesConfig, RunConfig, UpdatesConfig


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AlgorithmConfig):
    """Settings of on-policy algorithms with a policy and a critic."""

    clip_actions: ClassVar[bool] = True

    num_envs: PositiveInt = 8
    """Number of parallel environments, over all shards."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers, of the policy and of the critic."""
    activation: Literal["tanh", "relu"] | None = None
    """Activation function: tanh or relu (default: tanh, or relu for image observations)."""
    shared_layers: bool = False
    """Share the hidden layers between policy and critic; with image observations they are always shared."""
    lr_end: float | None = 0.0
    """Final learning rate, after linear decay over total_timesteps. Without either, the learning rate is constant."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    value_coef: float = 0.5
    """Coefficient of the value loss."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus."""
    normalise_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""
    scale_rewards: bool = False
    """Divide rewards by the running standard deviation of discounted returns."""


_ROWS_PER_SAMPLE = 1024  # from replay, at most, if they are of several gradient steps


@dataclass(frozen=True, kw_only=True)
class VTraceConfig(ActorCriticConfig):
    """Settings of actor-critic algorithms with asynchronous rollouts, whose policy lag V-trace corrects for."""

    num_envs: PositiveInt = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 20
    """Steps per environment in one rollout fragment."""
    batch_steps: PositiveInt = 640
    """Minimum environment steps per gradient step; fragments are collected until it is reached."""
    num_async: PositiveInt = 1
    """Maximum number of outstanding fragments per shard."""
    learner_on: Annotated[Literal["driver", "thread", "actor"], Called("place of the learner")] = "driver"
    """Where the learner runs: driver, thread (a separate thread), or actor (a separate actor)."""
    learner_queue: PositiveInt = 2
    """Queue size, in batches, of a learner on a thread or an actor."""
    max_lag: PositiveInt = 100
    """Maximum policy lag of a fragment, in gradient steps; older fragments are discarded."""
    max_grad_norm: PositiveFloat | None = 40.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    lam: Fraction = 1.0
    """Trace parameter λ of V-trace."""
    max_rho: PositiveFloat = 1.0
    """Clipping threshold ρ̄ of the importance weights in V-trace."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AlgorithmConfig):
    """Settings of algorithms that learn Q-values from replay."""

    prioritised: ClassVar[bool] = False
    """Whether sampling follows priorities, which every gradient step changes."""
    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers."""
    lr: PositiveFloat = 1e-4
    """Learning rate."""
    max_grad_norm: PositiveFloat | None = 10.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    batch_size: PositiveInt = 32
    """Transitions per gradient step."""
    buffer_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer, in transitions."""
    learning_starts: PositiveInt = 100
    """Environment steps before the first gradient step."""
    steps_per_update: PositiveFloat = 4.0
    """Environment steps per gradient step."""
    target_every: PositiveInt = 2500
    """Update the target network every N gradient steps."""
    stacked_frames: bool = False
    """Store each frame of stacked image observations only once."""
    learner_on: Annotated[Literal["driver", "thread", "actor"], Called("place of the learner")] = "driver"
    """Where the learner runs: driver, thread (a separate thread), or actor (a separate actor)."""
    learner_queue: PositiveInt = 1
    """Queue size, in batches, of a learner on a thread or an actor."""

    @property
    def updates_per_round(self) -> int:
        """Gradient steps per round of rollout fragments."""
        return max(1, round(self.num_envs * self.fragment_steps / self.steps_per_update))  # type: ignore[attr-defined]

    @property
    def updates_per_sample(self) -> int:
        """Gradient steps per sample from replay, each on a part of its rows: few samples take less time than many.

        It divides the gradient steps of a round. Stacked images are so large that one batch is enough for a sample.
        """
        if self.prioritised or self.stacked_frames:
            return 1
        limit = max(1, _ROWS_PER_SAMPLE // self.batch_size)
        return max(num for num in range(1, limit + 1) if self.updates_per_round % num == 0)

    @property
    def samples_per_round(self) -> int:
        """Samples from replay per round of rollout fragments."""
        return self.updates_per_round // self.updates_per_sample

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the replay buffer."""
        return ReplaySettings(
            capacity=self.buffer_size, batch_size=self.batch_size, batches_per_sample=self.updates_per_sample,
            stacked=self.stacked_frames, seed=self.seed,
        )  # fmt: skip

    @property
    def limits(self) -> list[RateLimit]:
        """Rate limits between storing transitions and sampling them."""
        ahead = self.num_envs * self.fragment_steps  # type: ignore[attr-defined]
        ratio = self.batch_size / self.steps_per_update
        rows = self.batch_size * self.updates_per_sample
        return replay_limits(ratio, batch_size=rows, min_size=self.learning_starts, ahead=ahead)


@dataclass(frozen=True, kw_only=True)
class HindsightConfig(ReplayConfig):
    """Settings of algorithms that can learn from replay in hindsight, in environments with goals."""

    replay: Annotated[Literal["uniform", "her"], Called("kind of replay")] = "uniform"
    """How transitions are replayed: uniform (as they were collected), or her (hindsight experience replay: most get a
    goal that their episode achieved)."""
    her_goals: PositiveInt = 4
    """With her, new goals for each original one: a share of k/(k+1) of the transitions gets a new goal."""
    her_strategy: Literal["future", "final", "episode"] = "future"
    """With her, where a new goal comes from: future (what the step or a later one achieved), final (what the last step
    of the episode achieved), or episode (what any of its steps achieved)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay == "her":
            n_step = getattr(self, "n_step", 1)
            if n_step > 1:
                raise ConfigError(f"replay her needs transitions of one step, not n_step {n_step}. Set n_step to 1.")
            if self.stacked_frames:
                raise ConfigError("replay her does not store stacked frames once. Set stacked_frames to False.")
            if self.last_action_and_reward:
                raise ConfigError(
                    "replay her computes rewards again for other goals, but not those in observations. Set "
                    "last_action_and_reward to False."
                )
        elif (self.her_goals, self.her_strategy) != (HindsightConfig.her_goals, HindsightConfig.her_strategy):
            raise ConfigError(
                f"her_goals and her_strategy are settings of replay her, and replay is {self.replay}. Set replay to "
                "her, or leave them out."
            )

    def for_env(self, slots: Slots) -> Self:
        """Return this config with the settings filled in that depend on the environment, after checking its goals."""
        if self.hindsight is not None:
            if is_multi_agent(self.env):
                raise ConfigError(f"replay her is for environments with one agent, not {self.env}. Use replay uniform.")
            check_goals(self.hindsight.env)
        return super().for_env(slots)

    def rollouts(self, *arguments: Any, **options: Any) -> RolloutSettings:
        """Return the settings of the rollout workers: in hindsight, the goals of terminated episodes count too."""
        settings = super().rollouts(*arguments, **options)
        return dataclasses.replace(settings, keep_terminal_obs=self.replay == "her")

    @property
    def hindsight(self) -> HindsightSettings | None:
        """How goals are replaced, if they are."""
        if self.replay != "her":
            return None
        goals = {"num_goals": self.her_goals, "strategy": self.her_strategy}
        env = EnvSettings(self.env, self.env_kwargs)
        return HindsightSettings(env=env, gamma=self.gamma, **goals)  # type: ignore[arg-type]

    @property
    def replay_settings(self) -> ReplaySettings:
        """Settings of the replay buffer."""
        return dataclasses.replace(super().replay_settings, hindsight=self.hindsight)


@dataclass(frozen=True, kw_only=True)
class ActorReplayConfig(ReplayConfig):
    """Settings of algorithms that learn a policy of continuous actions, and critics of its actions, from replay."""

    num_envs: PositiveInt = 1
    """Number of parallel environments, over all shards."""
    fragment_steps: PositiveInt = 1
    """Steps per environment in one rollout fragment."""
    hidden: Widths | None = (256, 256)
    """Widths of the hidden layers, of the policy and of the critics."""
    lr: PositiveFloat = 3e-4
    """Learning rate."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    batch_size: PositiveInt = 256
    """Transitions per gradient step."""
    steps_per_update: PositiveFloat = 1.0
    """Environment steps per gradient step."""
    tau: Fraction = 0.005
    """Share τ of the trained weights in each update of the target networks."""
    target_every: PositiveInt = 1
    """Update the target networks every N gradient steps."""
    learner_threads: PositiveInt = 2
    """CPU threads of the learner. Does not affect the results of compiled losses."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(TrainingConfig, UpdatesConfig):
    """Settings of algorithms that learn from a dataset. The environment is for evaluation only."""

    example_env: ClassVar[str] = "cartpole"
    """The environment of a plan that is shown without a dataset."""

    iterations: PositiveInt | None = None
    """Number of training iterations, each of one minibatch."""
    env: Any = None
    """Environment of evaluations: a short name such as cartpole, any Gymnasium id, or module:Id (default: the one that
    the dataset names)."""
    num_workers: PositiveInt | Literal["auto"] = "auto"
    """Number of readers of the dataset, at most one per shard; auto reads in this process. Does not affect the
    results."""
    num_shards: PositiveInt | None = 1
    """Slices of the dataset, the upper limit on readers. A minibatch comes from one of them, in turn. Affects the
    results."""
    item_deadline: PositiveFloat | None = 600.0
    """Timeout in seconds for one minibatch; a reader that exceeds it is killed and restarted."""
    max_restarts: PositiveInt = 10
    """Restart budget of a reader, counted over a minute, or over the time of max_restarts + 1 timeouts if that is
    longer. One more failure ends the run."""
    lr_end: float | None = None
    """Final learning rate, after linear decay over total_updates. Without either, the learning rate is constant."""
    save_every: PositiveInt | None = None
    """Save a checkpoint every N gradient steps."""
    eval_every: PositiveInt | None = None
    """Evaluate the policy every N gradient steps, and keep the checkpoint of the best evaluation."""
    dataset: Annotated[str | Path | None, INPUT] = None
    """Dataset: a folder, a run that has one, a .jsonl file, or the id of a Minari dataset; or several, separated by
    commas."""
    batch_size: PositiveInt = 256
    """Steps of the dataset per gradient step."""
    learner_on: Annotated[Literal["driver", "thread", "actor"], Called("place of the learner")] = "driver"
    """Where the learner runs: driver, thread (a separate thread), or actor (a separate actor)."""
    learner_queue: PositiveInt = 1
    """Queue size, in batches, of a learner on a thread or an actor."""

    def check_complete(self, *, limited: bool = False) -> None:
        """Refuse to train without a dataset or a budget."""
        if self.dataset is None:
            raise ConfigError(
                "there is no dataset to learn from. Pass one: --dataset RUN, FOLDER, FILE.jsonl or a Minari id; "
                "`raceway record RUN` records one."
            )
        limits = (self.total_updates, self.iterations, self.stop_seconds)
        if not limited and all(limit is None for limit in limits):
            raise ConfigError(
                "training on a dataset has no end of its own. Pass --total-updates N (gradient steps), or "
                "--stop-seconds X."
            )

    def for_env(self, slots: Slots) -> Self:
        """Return this config with one shard, unless there are more."""
        return self if self.num_shards is not None else dataclasses.replace(self, num_shards=1)

    @property
    def reading(self) -> DatasetSettings:
        """How the dataset is read."""
        path, num_shards = str(self.dataset or ""), self.num_shards or 1
        return DatasetSettings(path=path, batch_size=self.batch_size, num_shards=num_shards, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class BanditConfig(AlgorithmConfig):
    """Settings of linear contextual bandits, whose episodes have one step: an arm is pulled for an observation."""

    env: Any = "linear-bandit"
    """Environment: a short name such as linear-bandit, any Gymnasium id, or module:Id."""
    num_envs: PositiveInt = 1
    """Number of parallel environments, over all shards: with more than one, arms are pulled before the models know of
    the last rewards."""
    fragment_steps: PositiveInt = 1
    """Pulls per environment between two updates."""
    ridge: PositiveFloat = 1.0
    """Regularisation λ of the models, which start with A = λI."""
    recompute_every: PositiveInt = 100
    """Pulls of an arm after which A⁻¹ is computed from A again, against the rounding errors of its updates."""


@dataclass(frozen=True, kw_only=True)
class PerturbationConfig(TrainingConfig, EpisodesConfig, RunConfig):
    """Settings of algorithms that learn from the returns of perturbed weights."""

    clip_actions: ClassVar[bool] = True

    num_shards: PositiveInt | None = None
    """Number of shards, the upper limit on workers: each rolls out the episodes of its directions one after the other
    (default: at most 20, or 5 if the environment has a native vectorised implementation)."""
    num_directions: PositiveInt = 40
    """Directions per iteration in which weights are perturbed, each for two episodes."""
    sigma: PositiveFloat = 0.05
    """Standard deviation σ of the perturbations."""
    normalise_obs: bool = False
    """Normalise observations by their running mean and standard deviation."""

    def for_env(self, slots: Slots) -> Self:
        """Return this config with the number of shards filled in."""
        max_shards = 20 if isinstance(slots, SteppedSlots) else 5
        return dataclasses.replace(self, num_shards=min(self.num_shards or max_shards, self.num_directions))

    def rollouts(
        self,
        env: EnvSettings,
        agent: Callable[[Spaces], Agent],
        explorer: Callable[[Spaces], Explorer] | None = None,
    ) -> PerturbationSettings:
        """Return the settings of the workers; see `AlgorithmConfig.rollouts`."""
        return PerturbationSettings(
            env=env,
            num_shards=self.num_shards or 1,
            slots_per_shard=self.slots_per_shard,
            seed=self.seed,
            agent=agent,
            explorer=explorer,
            clip_actions=self.clip_actions,
            info_keys=tuple(self.info_keys),
            max_env_failures=self.max_env_failures,
            num_directions=self.num_directions,
            sigma=self.sigma,
        )

    @property
    def slots_per_shard(self) -> int:
        """Environments that are stepped together: one, for each has other weights."""
        return 1

    @property
    def num_iterations(self) -> int | None:
        """Maximum number of iterations, if they are limited."""
        return default_iterations(self)


@dataclass(frozen=True, kw_only=True)
class TransitionDatasetConfig(DatasetConfig):
    """Settings of algorithms that learn Q-values from the transitions of a dataset."""

    gamma: Discount = 0.99
    """Discount factor γ."""
    target_every: PositiveInt = 1
    """Update the target networks every N gradient steps."""

    @property
    def reading(self) -> DatasetSettings:
        """How the dataset is read: with the observations after steps."""
        return dataclasses.replace(super().reading, next_obs=True)


@dataclass(frozen=True, kw_only=True)
class ActorDatasetConfig(TransitionDatasetConfig):
    """Settings of algorithms that learn a policy of continuous actions, and critics of its actions, from a dataset."""

    example_env: ClassVar[str] = "pendulum"

    hidden: Widths | None = (256, 256)
    """Widths of the hidden layers, of the policy and of the critics."""
    tau: Fraction = 0.005
    """Share τ of the trained weights in each update of the target networks."""
    learner_threads: PositiveInt = 2
    """CPU threads of the learner. Does not affect the results of compiled losses."""
