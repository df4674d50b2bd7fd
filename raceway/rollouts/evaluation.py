"""Evaluation: the returns of a policy in separate environments, without side effects on training."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import Explorer, Policy, Sample
from raceway.agents.exploration import LATE
from raceway.checks import check_int
from raceway.envs import UNKNOWN_SLOT, EnvSettings, Slots, SteppedSlots, has_tasks, make_slots
from raceway.envs.env_vector import environment_error
from raceway.errors import EnvironmentFailed, RacewayError
from raceway.rl import empty, row_of, tree_map
from raceway.rl.episode_info import success_of
from raceway.rl.seeding import Purpose, derive_seed, episode_seed, seeded_globally_shared

Array = np.ndarray

_MAX_ENVS = 8
"""Environments that are stepped together, at most. Part of every result: it changes the last bits of a network."""
_MAX_EPISODE_STEPS = 1 << 20


class EvaluationStopped(RacewayError):
    """An evaluation was stopped by its caller."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Returns and lengths of whole episodes; of Atari games, those of whole games with unclipped rewards."""

    returns: Array
    """Undiscounted return of every episode, [E]."""
    lengths: Array
    """Steps of every episode, [E]."""
    successes: Array = field(default_factory=lambda: np.empty(0))
    """`is_success` of the info of every episode's last step, [E]; NaN for an episode without it."""

    @property
    def mean_return(self) -> float:
        """The mean of the returns."""
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        """The mean of the lengths."""
        return float(self.lengths.mean())

    @property
    def success_rate(self) -> float | None:
        """The mean of `is_success` over the episodes that have it; None if none has."""
        reported = self.successes[~np.isnan(self.successes)]
        return float(reported.mean()) if len(reported) else None


def evaluate(
    policy: Policy,
    env: EnvSettings,
    num_episodes: int,
    *,
    seed: int,
    deterministic: bool = True,
    clip_actions: bool = False,
    num_envs: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    stop: Callable[[], object] | None = None,
    check: Callable[[spaces.Space, spaces.Space], None] | None = None,
    explorer: Explorer | None = None,
    make_evaluator: Callable[..., Evaluator] | None = None,
) -> Evaluation:
    """Evaluate a policy on whole episodes in fresh environments. The same arguments always give the same result.

    The policy and the global random generators of torch, numpy and Python are left as they were. An environment that
    samples from the global generators gives the same result only if nothing else in the process uses them meanwhile.

    Args:
        policy: the policy to evaluate. If it is on another device, a copy on the CPU is evaluated.
        env: the environment. If it has tasks, one is sampled for every episode.
        num_episodes: the number of episodes in total.
        seed: the seed of the episodes, and of sampled actions.
        deterministic: take the most likely action, or the one with the highest Q-value; else explore.
        clip_actions: whether environments get actions clipped to their bounds.
        num_envs: the number of environments that are stepped together.
        on_progress: called with the number of finished episodes, whenever some finish.
        stop: called before every step; if it returns a true value, `EvaluationStopped` is raised.
        check: called with the observation and action space before the first step.
        explorer: how actions are chosen if not deterministic; by default they are sampled.
        make_evaluator: returns the evaluator to use, such as an `EpisodeRecorder`; by default an `Evaluator`.
    """
    check_int("num_episodes", num_episodes)
    num = min(num_episodes, _MAX_ENVS if num_envs is None else check_int("num_envs", num_envs))
    seed = derive_seed(seed, Purpose.EVALUATION)
    explorer = None if deterministic else (explorer or Sample()).for_slots(num)
    with seeded_globally_shared(seed), _evaluation_mode(policy) as acting:
        slots = _make_slots(env, num, seed)
        try:
            if check is not None:
                check(slots.observation_space, slots.action_space)
            make = Evaluator if make_evaluator is None else make_evaluator
            evaluator = make(slots, acting, seed=seed, clip_actions=clip_actions, explorer=explorer)
            return evaluator.run(num_episodes, on_progress, stop)
        finally:
            slots.close()


def _make_slots(env: EnvSettings, num: int, seed: int) -> Slots:
    """Create environments, or raise an `EnvironmentFailed` that names the evaluation."""
    try:
        return make_slots(env, num, seed)
    except RacewayError:
        raise
    except (Exception, SystemExit) as error:
        failure = environment_error(UNKNOWN_SLOT, "construction", error)
        raise EnvironmentFailed(failure.problem, UNKNOWN_SLOT, f"evaluation, one of {num} environments") from error


Totals = list[list[tuple[float, int, float]]]
"""Return, length and success (NaN if unknown) of every finished episode, by slot."""


class Evaluator:
    """Runs whole episodes, or games of several lives, and keeps only their returns and lengths.

    A collector also keeps all observations, which would be gigabytes for long games.
    """

    def __init__(
        self, slots: Slots, policy: Policy, *, seed: int, clip_actions: bool, explorer: Explorer | None
    ) -> None:
        self.slots, self.policy, self.seed = slots, policy, seed
        self.num, space = slots.num, slots.action_space
        self.obs: Any = empty(slots.observation_space, (self.num,))
        self.action: Array = empty(space, (self.num,))
        self.reward, self.ended = np.zeros(self.num, np.float32), np.zeros((2, self.num), bool)
        self.recurrent_state = policy.initial_state(self.num)
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        generator = None if explorer is None else np.random.default_rng(derive_seed(seed, Purpose.ACTIONS))
        self._actor = policy.acting(generator, explorer, first_step=LATE)
        # Only active slots need an action, unless every slot has its own recurrent state or knob.
        by_slot = policy.recurrent or (explorer is not None and bool(explorer.knobs))
        self._skip_inactive = isinstance(slots, SteppedSlots) and not by_slot
        self._returns, self._steps = np.zeros(self.num), np.zeros(self.num, np.int64)
        self._tasks: list[Array] = []

    def run(
        self,
        num_episodes: int,
        on_progress: Callable[[int], None] | None = None,
        stop: Callable[[], object] | None = None,
    ) -> Evaluation:
        """Run the same number of episodes in every slot, or one more in the first slots. Arguments as in `evaluate`."""
        counts = [num_episodes // self.num + (slot < num_episodes % self.num) for slot in range(self.num)]
        totals: Totals = [[] for _ in counts]
        self._sample_tasks(max(counts))
        active = list(range(self.num))
        self._begin_episodes(active, totals)
        while active:
            if stop is not None and stop():
                finished = sum(map(len, totals))
                raise EvaluationStopped(f"the evaluation was stopped after {finished} of {num_episodes} episodes")
            over = self._step(active)
            if not over:
                continue
            self._add_totals(over, totals)
            continuing = [slot for slot in over if len(totals[slot]) < counts[slot]]
            active = [slot for slot in active if slot not in over or slot in continuing]
            self._begin_episodes(continuing, totals)
            if on_progress is not None:
                on_progress(sum(map(len, totals)))
        table = np.array([row for rows, count in zip(totals, counts, strict=True) for row in rows[:count]], float)
        return Evaluation(table[:, 0], table[:, 1].astype(np.int64), table[:, 2])

    def _begin_episodes(self, slots: list[int], totals: Totals) -> None:
        """Begin an episode in these slots; a game that has lives left continues with the next one."""
        if not slots:
            return
        numbers = [len(totals[slot]) for slot in slots]
        for slot, number in zip(slots, numbers, strict=True) if self._tasks else ():
            self._env(slot).get_wrapper_attr("set_task")(self._tasks[number * self.num + slot])
        seeds = [episode_seed(self.seed, 0, slot, number) for slot, number in zip(slots, numbers, strict=True)]
        with self._locating_failures():
            self.slots.reset(slots, seeds, self.obs)
            self._check_step(slots, "reset")
        self._reset_recurrent_state(slots)

    def _step(self, active: list[int]) -> list[int]:
        """Step the active slots, and return those whose episode ended."""
        rows: Any = active if self._skip_inactive and len(active) < self.num else slice(None)
        actions, self.recurrent_state = self._actor(row_of(self.obs, rows), self.recurrent_state)
        self.action[rows] = actions
        with self._locating_failures():
            stepped = self.slots.step(self._env_actions(), active, self.obs, self.reward, self.ended)
            self._check_step(active, "step")
        valid = active if stepped is None else [slot for slot in active if stepped[slot]]
        if stepped is not None:
            # In a slot that only reset, the policy has acted on the last observation of the episode before.
            self._reset_recurrent_state([slot for slot in active if not stepped[slot]])
        self._returns[valid] += self.reward[valid]
        self._steps[valid] += 1
        self._on_steps(valid)
        return [slot for slot in valid if self.ended[:, slot].any()]

    def _env_actions(self) -> Array:
        """Return a copy of the actions, as environments get them."""
        return self.action.copy() if self._bounds is None else np.clip(self.action, *self._bounds)

    def _on_steps(self, slots: list[int]) -> None:
        """Do nothing after a step of these slots; subclasses can record it."""

    def _add_totals(self, over: list[int], totals: Totals) -> None:
        """Add the totals of finished episodes, or of finished games where an episode may be a life."""
        if self.slots.scores is None:
            for slot in over:
                success = _success(self.slots.final_info(slot))
                totals[slot].append((float(self._returns[slot]), int(self._steps[slot]), success))
        else:
            for score in self.slots.scores:
                totals[score.slot].append((score.total, score.steps, _success(score.info)))
            self.slots.scores.clear()
        self._returns[over] = self._steps[over] = 0

    def _reset_recurrent_state(self, slots: list[int]) -> None:
        """Reset the recurrent state of these slots."""
        if not self.recurrent_state or not slots:
            return
        with torch.inference_mode():
            initial = self.policy.initial_state(len(slots))
            self.recurrent_state = {
                name: part.index_copy(0, torch.tensor(slots), initial[name])
                for name, part in self.recurrent_state.items()
            }

    def _check_step(self, slots: list[int], verb: str) -> None:
        """Raise if a value is not finite, or an episode does not end."""
        parts: list[Array] = [] if verb == "reset" else [self.reward]
        tree_map(parts.append, self.obs)
        for part in parts:
            if part.dtype.kind != "f" or np.isfinite(part).all():
                continue
            for slot in slots:
                if not np.isfinite(part[slot]).all():
                    kind = "a reward" if part is self.reward else "an observation"
                    value = np.ravel(part[slot])[:8].tolist()
                    raise EnvironmentFailed(f"environment {verb} returned {kind} of {value}", slot)
        if self._steps[slots].max() >= _MAX_EPISODE_STEPS:
            slot = max(slots, key=lambda slot: self._steps[slot])
            problem = f"the episode does not end: it has {_MAX_EPISODE_STEPS:,} steps. Give a time limit, such as "
            raise EnvironmentFailed(f"{problem}max_episode_steps=1000 in env_kwargs", slot)

    @contextmanager
    def _locating_failures(self) -> Iterator[None]:
        """Add to a failure the environment and step in which it happened."""
        try:
            yield
        except EnvironmentFailed as error:
            place = f"evaluation, one of {self.num} environments"
            if error.slot != UNKNOWN_SLOT:
                step = int(self._steps[error.slot])
                place = f"evaluation, environment {error.slot} of {self.num}, step {step} of its episode"
            raise EnvironmentFailed(error.problem, error.slot, place) from error

    def _sample_tasks(self, num: int) -> None:
        """Sample a task for every episode of every slot, if the environment has tasks."""
        if has_tasks(self.slots):
            sample = self._env(0).get_wrapper_attr("sample_tasks")
            self._tasks = list(sample(num * self.num, derive_seed(self.seed, Purpose.TASKS)))

    def _env(self, slot: int) -> Any:
        assert isinstance(self.slots, SteppedSlots)
        return self.slots.envs[slot]


def _success(info: Any) -> float:
    success = success_of(info)
    return math.nan if success is None else success


@contextmanager
def _evaluation_mode(policy: Policy) -> Iterator[Policy]:
    """Yield the policy on the CPU in evaluation mode."""
    acting = policy
    if any(part.device.type != "cpu" for part in policy.parameters()):
        acting = copy.deepcopy(policy).to("cpu")
    modes = [(module, module.training) for module in policy.modules()]
    acting.eval()
    try:
        yield acting
    finally:
        for module, mode in modes:
            module.training = mode
