"""Environments: looked up by name, stepped as vectors, and seeded episode by episode."""

from raceway.envs.atari import Atari, AtariSettings
from raceway.envs.make import EnvSettings, make_env, make_slots
from raceway.envs.names import ALIASES, resolve_env_id
from raceway.envs.seeds import Purpose, derive_seed, episode_seed
from raceway.envs.slots import UNKNOWN_SLOT, Score, Slots, SteppedSlots
from raceway.envs.tasks import assign_tasks, has_tasks
from raceway.envs.vector import CartPoleSlots, EnvPoolAtariSlots, EnvPoolSlots, VectorSlots

__all__ = [
    "ALIASES",
    "UNKNOWN_SLOT",
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
    "assign_tasks",
    "derive_seed",
    "episode_seed",
    "has_tasks",
    "make_env",
    "make_slots",
    "resolve_env_id",
]
