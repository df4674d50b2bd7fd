"""Small environments with known answers, for checking that an algorithm learns the right numbers.

Each class computes its answer, and an episode depends on its seed alone.

    one_step            Coin: the distribution of the return. SoftBandit: the maximum-entropy policy.
                        Identity: the best continuous action
    finite_states       Chain: the table of Q-values. Endless: the value with truncation and with termination
    linear_quadratic    LinearQuadratic: the linear policy and the quadratic value of continuous control
    memory              TMaze, RepeatPrevious: the best return with and without memory
    bit_flipping        BitFlipping: the value of reaching a goal
    reach               Reach: the same with continuous actions
    linear_bandit       LinearBandit: the mean reward of every arm, and the best
    slates              Slates: the values of items and slates
    bait                Bait: an action that a dataset lacks, and that extrapolation overestimates

>>> import gymnasium
>>> env = gymnasium.make("raceway/Chain-v0", num_states=4)
>>> env.unwrapped.q_values(gamma=0.5).tolist()
[[0.125, 0.25], [0.125, 0.5], [0.25, 1.0], [0.0, 0.0]]
"""

from __future__ import annotations

import gymnasium as gym

from raceway.envs.known_answers.bait import Bait
from raceway.envs.known_answers.bit_flipping import BitFlipping
from raceway.envs.known_answers.finite_states import Chain, Endless
from raceway.envs.known_answers.linear_bandit import LinearBandit
from raceway.envs.known_answers.linear_quadratic import LinearQuadratic
from raceway.envs.known_answers.memory import RepeatPrevious, TMaze
from raceway.envs.known_answers.one_step import Coin, Identity, SoftBandit
from raceway.envs.known_answers.reach import Reach
from raceway.envs.known_answers.slates import Slates

__all__ = [
    "Bait",
    "BitFlipping",
    "Chain",
    "Coin",
    "Endless",
    "Identity",
    "LinearBandit",
    "LinearQuadratic",
    "Reach",
    "RepeatPrevious",
    "Slates",
    "SoftBandit",
    "TMaze",
]

_TIME_LIMITS = {Chain: 100, LinearQuadratic: 20, Reach: 20}  # the other environments end their episodes themselves

# With a prefix, because users have environments of names such as Chain themselves.
_ENVS = (Bait, BitFlipping, Chain, Coin, Endless, Identity, LinearBandit, LinearQuadratic, Reach, RepeatPrevious,
         Slates, SoftBandit, TMaze)  # fmt: skip
for _env in _ENVS:
    gym.register(f"raceway/{_env.__name__}-v0", f"{__name__}:{_env.__name__}", max_episode_steps=_TIME_LIMITS.get(_env))
