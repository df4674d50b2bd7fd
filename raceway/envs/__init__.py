"""Environments: finding them by name, stepping many at once, and the seeds they begin with."""

from raceway.envs.atari import Atari, AtariSettings
from raceway.envs.make import EnvSettings, make_env, make_slots
from raceway.envs.names import ALIASES, find
from raceway.envs.seeds import Purpose, seed_of, seed_of_episode
from raceway.envs.slots import SOME_SLOT, Score, Slots, SteppedSlots
from raceway.envs.tasks import give_tasks, has_tasks
from raceway.envs.vector import CartPoleSlots, EnvPoolAtariSlots, EnvPoolSlots, VectorSlots

__all__ = [
    "ALIASES",
    "SOME_SLOT",
    "Atari",
    "AtariSettings",
    "CartPoleSlots",
    "EnvPoolAtariSlots",
    "EnvPoolSlots",
    "EnvSettings",
    "Purpose",
    "Score",
    "Slots",
    "SteppedSlots",
    "VectorSlots",
    "find",
    "give_tasks",
    "has_tasks",
    "make_env",
    "make_slots",
    "seed_of",
    "seed_of_episode",
]
