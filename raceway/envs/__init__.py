"""Environments: looked up by name, stepped as vectors, and seeded episode by episode."""

from raceway.envs.atari import Atari, AtariSettings
from raceway.envs.env_vector import UNKNOWN_SLOT, Score, Slots, SteppedSlots
from raceway.envs.known_answers import (
    Bait,
    BitFlipping,
    Chain,
    Coin,
    Endless,
    Identity,
    LinearBandit,
    LinearQuadratic,
    Reach,
    RepeatPrevious,
    Slates,
    SoftBandit,
    TMaze,
)
from raceway.envs.make import EnvSettings, make_env, make_slots
from raceway.envs.names import ALIASES, resolve_env_id
from raceway.envs.native_vectors import CartPoleSlots, EnvPoolAtariSlots, EnvPoolSlots, VectorSlots
from raceway.envs.partially_observed import CartPolePositions
from raceway.envs.tasks import assign_tasks, has_tasks

__all__ = [
    "ALIASES",
    "UNKNOWN_SLOT",
    "Atari",
    "AtariSettings",
    "Bait",
    "BitFlipping",
    "CartPolePositions",
    "CartPoleSlots",
    "Chain",
    "Coin",
    "Endless",
    "EnvPoolAtariSlots",
    "EnvPoolSlots",
    "EnvSettings",
    "Identity",
    "LinearBandit",
    "LinearQuadratic",
    "Reach",
    "RepeatPrevious",
    "Score",
    "Slates",
    "Slots",
    "SoftBandit",
    "SteppedSlots",
    "TMaze",
    "VectorSlots",
    "assign_tasks",
    "has_tasks",
    "make_env",
    "make_slots",
    "resolve_env_id",
]
