"""Names that were probably meant: typing errors get a suggestion, other names get none."""

import pytest

from raceway.algorithms import algorithm_names
from raceway.checks import nearest_name, unknown_name
from raceway.envs import ALIASES

OPTIONS = ["--iterations", "--lr", "--lr-end", "--num-envs", "--num-epochs", "--num-workers", "--total-timesteps"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("apx", "apex"), ("pp0", "ppo"), ("impalla", "impala"), ("PPO", "ppo"), ("dnq", "dqn"), ("a3cc", "a3c"),
        ("reinf", "reinforce"), ("malm", "maml"), ("r3inforc", "reinforce"),
    ],
)  # fmt: skip
def test_a_typing_error_in_an_algorithm_is_understood(typed: str, meant: str) -> None:
    assert f"Did you mean {meant!r}?" in str(unknown_name("algorithm", typed, algorithm_names()))


@pytest.mark.parametrize("typed", ["sarsa", "acktr", "foo", "trpo2", "x", "", "muzero", "rt"])
def test_a_name_that_is_not_near_gets_no_suggestion(typed: str) -> None:
    message = str(unknown_name("algorithm", typed, algorithm_names()))
    assert "Did you mean" not in message
    assert "Choose from: a2c, a3c," in message


@pytest.mark.parametrize(
    ("typed", "meant", "names"),
    [
        ("cart-pole", "cartpole", ALIASES),
        ("half_cheetah", "halfcheetah", ALIASES),
        ("lunar", "lunarlander", ALIASES),
        ("mountian-car", "mountaincar", ALIASES),
        ("FrozenLake", None, ALIASES),
        ("--workers", "--num-workers", OPTIONS),
        ("--timesteps", "--total-timesteps", OPTIONS),
        ("--num_envs", "--num-envs", OPTIONS),
        ("--epochs", "--num-epochs", OPTIONS),
        ("ent_coef", "entropy_coef", ["value_coef", "entropy_coef"]),
        ("--max-episode-steps", None, OPTIONS),
        ("--learning-rate", "--lr", OPTIONS),
    ],
)
def test_environments_and_options(typed: str, meant: str | None, names: list[str]) -> None:
    assert nearest_name(typed, names) == meant


def test_the_nearest_of_several_is_chosen() -> None:
    assert nearest_name("num_env", ["num_epochs", "num_envs"]) == "num_envs"
    assert nearest_name("trian", ["train", "list", "trail"]) == "train"
