"""CarRacing with faster drawing has the images of Gymnasium's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raceway.envs import EnvSettings, make_env
from raceway.envs.car_racing import CarRacing


@pytest.mark.parametrize("kwargs", [{}, {"domain_randomize": True, "continuous": False}], ids=["plain", "random"])
def test_images_equal_those_of_gymnasium(kwargs: dict[str, Any]) -> None:
    ours, theirs = make_env(EnvSettings("CarRacing-v3", kwargs)), gym.make("CarRacing-v3", **kwargs)
    assert isinstance(ours.unwrapped, CarRacing)
    assert not isinstance(theirs.unwrapped, CarRacing)
    theirs.action_space.seed(0)
    for seed in (3, 4):  # each with the zoom of the first second, in which the edge of the playfield is in view
        np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
        action = theirs.action_space.sample()
        for step in range(60):
            if step % 8 == 0:
                action = theirs.action_space.sample()
            left, right = ours.step(action), theirs.step(action)
            np.testing.assert_array_equal(left[0], right[0])
            assert left[1:4] == right[1:4]
    ours.close()
    theirs.close()


def test_the_registered_environment_is_not_changed() -> None:
    make_env(EnvSettings("CarRacing-v3")).close()
    assert gym.spec("CarRacing-v3").entry_point == "gymnasium.envs.box2d.car_racing:CarRacing"
