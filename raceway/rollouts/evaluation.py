"""Evaluation: how good a policy is, in environments of its own, and without a trace in what is trained."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import EpsilonGreedy, Policy
from raceway.agents.inference import drawing
from raceway.checks import check_int
from raceway.envs import (
    SOME_SLOT,
    EnvSettings,
    Purpose,
    Slots,
    SteppedSlots,
    has_tasks,
    make_slots,
    seed_of,
    seed_of_episode,
)
from raceway.envs.slots import failed
from raceway.errors import EnvironmentFailed, RacewayError
from raceway.rl import empty, row_of, tree_map

Array = np.ndarray

_WIDTH = 8
"""Environments that are played at once, at most. Part of every result: it changes the last bits of a network."""
_ENDLESS = 1 << 20  # steps


class GivenUp(RacewayError):
    """An evaluation was stopped by whoever wanted it."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What whole episodes brought; of Atari games, whole games and their scores."""

    returns: Array
    """One for every episode, [E]."""
    lengths: Array
    """Steps of every episode, [E]."""

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


def evaluate(
    policy: Policy,
    env: EnvSettings,
    num_episodes: int,
    *,
    seed: int,
    deterministic: bool = True,
    clip_actions: bool = False,
    num_envs: int | None = None,
    told: Callable[[int], None] | None = None,
    stop: Callable[[], object] | None = None,
    check: Callable[[spaces.Space, spaces.Space], None] | None = None,
) -> Evaluation:
    """Play whole episodes in fresh environments. The same arguments give the same numbers every time.

    The policy, and the random generators of torch, numpy and Python, are afterwards what they were.

    Args:
        policy: what plays. Where it is on another device, a copy plays on the CPU.
        env: what it plays in. Environments of tasks are given one for every episode, by the seed.
        num_episodes: how many.
        seed: of the episodes, and of actions that are drawn.
        deterministic: take the most likely action, or that of the highest value; else draw. A policy of values then
            strays as often as its ε says.
        clip_actions: whether environments get actions within their bounds.
        num_envs: environments that are played at once.
        told: called with how many episodes are over, whenever some are.
        stop: asked before every step whether to give up, with `GivenUp`.
        check: called with the spaces of observations and actions, before anything is played.
    """
    check_int("num_episodes", num_episodes)
    num = min(num_episodes, _WIDTH if num_envs is None else check_int("num_envs", num_envs))
    seed = seed_of(seed, Purpose.EVALUATION)
    with _own_generators(seed), _for_playing(policy, None if deterministic else num) as playing:
        slots = _made(env, num, seed)
        try:
            if check is not None:
                check(slots.observation_space, slots.action_space)
            player = Player(slots, playing, seed=seed, clip_actions=clip_actions, deterministic=deterministic)
            return player.play(num_episodes, told, stop)
        finally:
            slots.close()


def _made(env: EnvSettings, num: int, seed: int) -> Slots:
    """Make environments, having said so if one cannot be made."""
    try:
        return make_slots(env, num, seed)
    except RacewayError:
        raise
    except (Exception, SystemExit) as error:
        failure = failed(SOME_SLOT, "making", error)
        raise EnvironmentFailed(failure.problem, SOME_SLOT, f"evaluation, one of {num} environments") from error


class Player:
    """Plays whole episodes, or games of several lives, and keeps their returns and lengths only.

    What a collector keeps, everything that was seen, would be gigabytes of long games.
    """

    def __init__(self, slots: Slots, policy: Policy, *, seed: int, clip_actions: bool, deterministic: bool) -> None:
        self.slots, self.policy, self.seed = slots, policy, seed
        self.num, space = slots.num, slots.action_space
        self.obs: Any = empty(slots.observation_space, (self.num,))
        self.action: Array = empty(space, (self.num,))
        self.reward, self.ended = np.zeros(self.num, np.float32), np.zeros((2, self.num), bool)
        self.state = policy.initial_state(self.num)
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, spaces.Box) else None
        random = None if deterministic else np.random.default_rng(seed_of(seed, Purpose.ACTIONS))
        self._actor = policy.actor(random)
        # Only slots that play are asked about, unless there is something of its own for every one of them.
        strays = isinstance(policy.distribution, EpsilonGreedy) and not deterministic
        self._choosy = isinstance(slots, SteppedSlots) and not (policy.recurrent or strays)
        self._sums, self._steps = np.zeros(self.num), np.zeros(self.num, np.int64)
        self._tasks: list[Array] = []

    def play(
        self, num_episodes: int, told: Callable[[int], None] | None = None, stop: Callable[[], object] | None = None
    ) -> Evaluation:
        """Play so many episodes, as many in each slot, or one more in the first ones."""
        counts = [num_episodes // self.num + (slot < num_episodes % self.num) for slot in range(self.num)]
        found: list[list[tuple[float, int]]] = [[] for _ in counts]
        self._draw_tasks(max(counts))
        active = list(range(self.num))
        self._begin(active, found)
        while active:
            if stop is not None and stop():
                raise GivenUp(f"the evaluation was stopped after {sum(map(len, found))} of {num_episodes} episodes")
            over = self._step(active)
            if not over:
                continue
            self._note(over, found)
            more = [slot for slot in over if len(found[slot]) < counts[slot]]
            active = [slot for slot in active if slot not in over or slot in more]
            self._begin(more, found)
            if told is not None:
                told(sum(map(len, found)))
        table = np.array([row for rows, count in zip(found, counts, strict=True) for row in rows[:count]], float)
        return Evaluation(table[:, 0], table[:, 1].astype(np.int64))

    def _begin(self, slots: list[int], found: list[list[tuple[float, int]]]) -> None:
        """Begin an episode in these slots; a game that goes on after a life does so."""
        if not slots:
            return
        numbers = [len(found[slot]) for slot in slots]
        for slot, number in zip(slots, numbers, strict=True) if self._tasks else ():
            self._env(slot).get_wrapper_attr("set_task")(self._tasks[number * self.num + slot])
        seeds = [seed_of_episode(self.seed, 0, slot, number) for slot, number in zip(slots, numbers, strict=True)]
        with self._placed():
            self.slots.reset(slots, seeds, self.obs)
            self._check_obs(slots, "reset")
        self._forget(slots)

    def _step(self, active: list[int]) -> list[int]:
        """Take a step, and return the slots whose episode it ended."""
        rows: Any = active if self._choosy and len(active) < self.num else slice(None)
        actions, self.state = self._actor(row_of(self.obs, rows), self.state)
        self.action[rows] = actions
        given = self.action.copy() if self._bounds is None else np.clip(self.action, *self._bounds)
        with self._placed():
            real = self.slots.step(given, active, self.obs, self.reward, self.ended)
            self._check_obs(active, "step")
        playing = active if real is None else [slot for slot in active if real[slot]]
        if real is not None:
            self._forget([slot for slot in active if not real[slot]])  # it has seen the end of the episode before
        self._sums[playing] += self.reward[playing]
        self._steps[playing] += 1
        return [slot for slot in playing if self.ended[:, slot].any()]

    def _note(self, over: list[int], found: list[list[tuple[float, int]]]) -> None:
        """Add what the episodes brought that are over; or the games, of which an episode may be a life."""
        if self.slots.scores is None:
            for slot in over:
                found[slot].append((float(self._sums[slot]), int(self._steps[slot])))
        else:
            for score in self.slots.scores:
                found[score.slot].append((score.total, score.steps))
            self.slots.scores.clear()
        self._sums[over] = self._steps[over] = 0

    def _forget(self, slots: list[int]) -> None:
        """Let a recurrent policy remember nothing in these slots."""
        if not self.state or not slots:
            return
        with torch.inference_mode():
            fresh = self.policy.initial_state(len(slots))
            self.state = {
                name: part.index_copy(0, torch.tensor(slots), fresh[name]) for name, part in self.state.items()
            }

    def _check_obs(self, slots: list[int], verb: str) -> None:
        """Refuse what no policy can use, and an episode without an end."""
        parts: list[Array] = [] if verb == "reset" else [self.reward]
        tree_map(parts.append, self.obs)
        for part in parts:
            if part.dtype.kind != "f" or np.isfinite(part).all():
                continue
            for slot in slots:
                if not np.isfinite(part[slot]).all():
                    what = "a reward" if part is self.reward else "an observation"
                    value = np.ravel(part[slot])[:8].tolist()
                    raise EnvironmentFailed(f"{verb} of the environment gave {what} of {value}", slot)
        if self._steps[slots].max() >= _ENDLESS:
            slot = max(slots, key=lambda slot: self._steps[slot])
            problem = f"the episode does not end: it has {_ENDLESS:,} steps. Give a time limit, such as "
            raise EnvironmentFailed(f"{problem}max_episode_steps=1000 in env_kwargs", slot)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Say of a failure where it was."""
        try:
            yield
        except EnvironmentFailed as error:
            place = f"evaluation, one of {self.num} environments"
            if error.slot != SOME_SLOT:
                step = int(self._steps[error.slot])
                place = f"evaluation, environment {error.slot} of {self.num}, step {step} of its episode"
            raise EnvironmentFailed(error.problem, error.slot, place) from error

    def _draw_tasks(self, num: int) -> None:
        """Draw a task for every episode of every slot, if there are tasks."""
        if has_tasks(self.slots):
            sample = self._env(0).get_wrapper_attr("sample_tasks")
            self._tasks = list(sample(num * self.num, seed_of(self.seed, Purpose.TASKS)))

    def _env(self, slot: int) -> Any:
        assert isinstance(self.slots, SteppedSlots)
        return self.slots.envs[slot]


@contextmanager
def _for_playing(policy: Policy, num_drawn: int | None) -> Iterator[Policy]:
    """Give the policy in the mode for use; where actions are drawn, with the ε for so many environments."""
    here = policy
    if any(part.device.type != "cpu" for part in policy.parameters()):
        here = copy.deepcopy(policy).to("cpu")
    modes = [(module, module.training) for module in policy.modules()]
    if num_drawn is not None and isinstance(policy.distribution, EpsilonGreedy):
        here = copy.copy(here)  # it has the same network
        here.distribution = drawing(policy, num_drawn)
    here.eval()
    try:
        yield here
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _own_generators(seed: int) -> Iterator[None]:
    """Keep the global random generators as they are: an environment or network may use them."""
    kept = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
