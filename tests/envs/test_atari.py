"""Atari games with the standard preprocessing, and vectors of them."""

import math
import sys
from itertools import pairwise
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest

from raceway.envs import Atari, AtariSettings, EnvPoolAtariSlots, EnvSettings, Score, SteppedSlots, make_env, make_slots
from raceway.envs.resize import Resize
from raceway.errors import ConfigError

PLAIN: dict[str, Any] = {"fire_on_reset": False, "terminal_on_life_loss": False, "clip_rewards": False}
"""Only the preprocessing that Gymnasium has too."""
NOOP, FIRE = 0, 1


def atari(name: str = "breakout", **kwargs: Any) -> Atari:
    env = make_env(EnvSettings(name, kwargs))
    assert isinstance(env, Atari)
    return env


def bare(name: str, **kwargs: Any) -> Any:
    """Return a game without preprocessing, one frame per step."""
    kwargs = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale", **kwargs}
    return make_env(EnvSettings(name, {"preprocess": False, **kwargs}))


def downscale(screen: np.ndarray) -> np.ndarray:
    """Return the mean of every area, after enlarging the image until the areas fall on whole pixels."""
    small, area = screen.astype(np.int64), 1
    for axis, side in enumerate(screen.shape):
        times = math.lcm(side, 84) // side
        large = np.moveaxis(np.repeat(small, times, axis), axis, 0)
        small = np.moveaxis(large.reshape(84, side * times // 84, -1).sum(1), 0, axis)
        area *= side * times // 84
    return np.rint(small / area).astype(np.uint8)


def run_episode(env: gym.Env, seed: int, steps: int = 60) -> list[np.ndarray]:
    """Step with the same actions every time, and return the observations."""
    random, observations = np.random.default_rng(0), [env.reset(seed=seed)[0]]
    for _ in range(steps):
        obs, _, terminated, truncated, _ = env.step(int(random.integers(env.action_space.n)))  # type: ignore[attr-defined]
        observations.append(obs)
        if terminated or truncated:
            break
    return observations


def until_life_lost(env: Atari) -> dict[str, Any]:
    for _ in range(1000):
        _, _, terminated, _, info = env.step(NOOP)
        if terminated:
            return info
    raise AssertionError("no life was lost")


@pytest.mark.parametrize("shape", [(210, 160), (250, 160), (168, 84), (84, 84)])
def test_a_pixel_is_the_mean_of_the_area_it_covers(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    small = np.empty((84, 84), np.uint8)
    Resize(shape, (84, 84))(image, small)
    np.testing.assert_array_equal(small, downscale(image))


def test_white_stays_white() -> None:
    small = np.empty((84, 84), np.uint8)
    Resize((250, 160), (84, 84))(np.full((250, 160), 255, np.uint8), small)
    assert (small == 255).all()


@pytest.mark.parametrize("name", ["pong", "ALE/Breakout-v5"])
def test_shapes_and_types(name: str) -> None:
    env = atari(name)
    assert (env.observation_space.shape, env.observation_space.dtype) == ((4, 84, 84), np.uint8)
    first, info = env.reset(seed=0)
    obs, reward, terminated, truncated, _ = env.step(NOOP)
    assert env.observation_space.contains(first)
    assert env.observation_space.contains(obs)
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert info["lives"] == (5 if "Breakout" in name else 0)
    assert np.ptp(obs) > 20  # the image is not blank


@pytest.mark.parametrize("name", ["pong", "breakout", "ALE/AirRaid-v5"])
def test_frames_are_skipped_once_and_the_last_two_are_combined(name: str) -> None:
    """Against the game without preprocessing, frame by frame."""
    env, game = atari(name, noop_max=0, **PLAIN), bare(name)
    first, _ = env.reset(seed=3)
    screen, _ = game.reset(seed=3)
    np.testing.assert_array_equal(first[-1], downscale(screen))
    flickered = False
    for action in np.random.default_rng(1).integers(env.action_space.n, size=60).tolist():  # type: ignore[attr-defined]
        obs, reward, terminated, _, info = env.step(action)
        frames = [game.step(action) for _ in range(4)]
        before, last = frames[2][0], frames[3][0]
        np.testing.assert_array_equal(obs[-1], downscale(np.maximum(before, last)))
        flickered |= bool((before > last).any())
        assert reward == sum(frame[1] for frame in frames)
        assert (terminated, info["lives"]) == (frames[3][2], frames[3][4]["lives"])
    assert flickered


def test_a_single_frame_is_not_combined() -> None:
    env, game = atari("pong", noop_max=0, frame_skip=1, stack=1, **PLAIN), bare("pong")
    env.reset(seed=0)
    game.reset(seed=0)
    for _ in range(30):
        obs, screen = env.step(2)[0], game.step(2)[0]
        assert obs.shape == (1, 84, 84)
        np.testing.assert_array_equal(obs[0], downscale(screen))


def test_the_newest_image_is_the_last() -> None:
    env = atari("pong")
    observations = run_episode(env, 0, 30)
    assert any((before[-1] != after[-1]).any() for before, after in pairwise(observations))
    for before, after in pairwise(observations):
        np.testing.assert_array_equal(after[:-1], before[1:])


def test_the_first_observation_repeats_one_image() -> None:
    env = atari("pong")
    run_episode(env, 0, 10)
    for seed in (0, 1):
        first, _ = env.reset(seed=seed)
        assert all((image == first[-1]).all() for image in first)


def test_returned_observations_do_not_change() -> None:
    env = atari("pong")
    observations = run_episode(env, 0, 8)
    copies = [obs.copy() for obs in observations]
    run_episode(env, 1, 8)
    np.testing.assert_array_equal(observations, copies)


@pytest.mark.parametrize("name", ["pong", "breakout", "ALE/BeamRider-v5", "ALE/Qbert-v5", "ALE/Kaboom-v5"])
def test_the_same_seed_gives_the_same_episode_whatever_came_before(name: str) -> None:
    """Also in games whose memory a reset does not clear, and after games that are over."""
    fresh, used = atari(name, terminal_on_life_loss=False), atari(name, terminal_on_life_loss=False)
    for seed in (5, 6):
        run_episode(used, seed, 700)
    np.testing.assert_array_equal(run_episode(fresh, 7), run_episode(used, 7))
    assert fresh.repeats_from_seed


def test_sticky_actions_depend_on_the_seed() -> None:
    fresh, used = (atari("pong", repeat_action_probability=0.25) for _ in range(2))
    run_episode(used, 5)
    np.testing.assert_array_equal(run_episode(fresh, 7), run_episode(used, 7))
    assert any(
        (obs != other_obs).any()
        for obs, other_obs in zip(run_episode(fresh, 7), run_episode(atari("pong"), 7), strict=True)
    )


@pytest.mark.parametrize(("kwargs", "probability"), [({}, 0.0), ({"repeat_action_probability": 0.25}, 0.25)])
def test_actions_stick_only_on_request(kwargs: dict[str, Any], probability: float) -> None:
    assert atari("pong", **kwargs).ale.getFloat("repeat_action_probability") == probability


def test_a_game_starts_with_noop_frames() -> None:
    env, frames = atari("pong", **PLAIN), []
    game = bare("pong")
    game.reset(seed=0)
    before = game.unwrapped.ale.getEpisodeFrameNumber()
    for seed in range(60):
        env.reset(seed=seed)
        frames.append(env.ale.getEpisodeFrameNumber() - before)
    assert set(frames) <= set(range(1, 31))
    assert len(set(frames)) > 15
    repeated = []
    for seed in range(60):
        env.reset(seed=seed)
        repeated.append(env.ale.getEpisodeFrameNumber() - before)
    assert repeated == frames


def test_without_a_seed_games_start_differently() -> None:
    env = atari("pong", **PLAIN)
    env.reset(seed=0)
    frames = set()
    for _ in range(10):
        env.reset()
        frames.add(env.ale.getEpisodeFrameNumber())
    assert len(frames) > 3


def test_fire_is_pressed_in_games_with_a_fire_button() -> None:
    with_fire, without = atari("breakout", noop_max=0), atari("breakout", noop_max=0, fire_on_reset=False)
    for env, moves in ((with_fire, True), (without, False)):
        env.reset(seed=0)
        info = {"lives": 5}
        for _ in range(60):
            info = env.step(NOOP)[-1]
        assert (info["lives"] < 5) == moves  # the ball has been served, and missed
    envs = [atari("ALE/MsPacman-v5", noop_max=0, fire_on_reset=fire) for fire in (True, False)]  # has no fire button
    np.testing.assert_array_equal(*[env.reset(seed=0)[0] for env in envs])


def test_the_loss_of_a_life_ends_an_episode_and_the_game_continues() -> None:
    env = atari("breakout")
    _, info = env.reset(seed=0)
    lives, frame = [info["lives"]], 0
    while True:
        info = until_life_lost(env)
        lives.append(info["lives"])
        if "episode" in info:
            break
        assert env.ale.getEpisodeFrameNumber() > frame
        frame = env.ale.getEpisodeFrameNumber()
        first, info = env.reset(seed=99)
        assert env.ale.getEpisodeFrameNumber() > frame
        assert info["lives"] == lives[-1]
        assert all((image == first[-1]).all() for image in first)
    assert lives == [5, 4, 3, 2, 1, 0]
    assert info["episode"]["l"] > 4 * 20
    _, info = env.reset(seed=99)
    assert info["lives"] == 5
    assert env.ale.getEpisodeFrameNumber() < frame
    assert not env.repeats_from_seed


def test_the_same_seeds_give_the_same_lives() -> None:
    def all_lives() -> list[np.ndarray]:
        env, observations = atari("breakout"), []
        for seed in range(5):
            observations += run_episode(env, seed, 400)
        return observations

    np.testing.assert_array_equal(all_lives(), all_lives())


def test_a_reset_in_the_middle_of_a_life_starts_a_new_game() -> None:
    env = atari("breakout")
    env.reset(seed=0)
    assert until_life_lost(env)["lives"] == 4
    env.reset(seed=1)
    env.step(NOOP)
    assert env.reset(seed=2)[1]["lives"] == 5
    np.testing.assert_array_equal(run_episode(env, 7), run_episode(atari("breakout"), 7))


def test_without_lives_an_episode_is_a_game() -> None:
    env = atari("breakout", terminal_on_life_loss=False, fire_on_reset=False)
    _, info = env.reset(seed=0)
    terminated, lives, steps = False, [info["lives"]], 0
    while not terminated:
        _, _, terminated, _, info = env.step(FIRE if steps % 10 == 0 else NOOP)
        steps += 1
        if info["lives"] != lives[-1]:
            lives.append(info["lives"])
    assert lives == [5, 4, 3, 2, 1, 0]
    assert info["episode"]["l"] == steps


def test_games_without_lives_repeat_from_their_seed() -> None:
    assert atari("pong").repeats_from_seed


def test_the_score_of_a_game_sums_unclipped_rewards_of_all_lives() -> None:
    env = atari("ALE/BeamRider-v5")
    random, rewards, info = np.random.default_rng(0), [], {}
    lives = 0
    while "episode" not in info:
        env.reset(seed=0)
        lives, ended = lives + 1, False
        assert lives <= 3
        while not ended:
            _, reward, terminated, truncated, info = env.step(int(random.integers(9)))
            ended = terminated or truncated
            rewards.append(reward)
    assert lives == 3
    assert set(rewards) == {0.0, 1.0}
    assert info["episode"]["l"] == len(rewards)
    assert info["episode"]["r"] == 44 * sum(rewards)  # the value of each enemy of the first sector


def test_rewards_are_clipped_to_their_sign() -> None:
    clipped, plain = atari("ALE/Skiing-v5"), atari("ALE/Skiing-v5", clip_rewards=False)
    for env in (clipped, plain):
        env.reset(seed=0)
    pairs = [(clipped.step(NOOP)[1], plain.step(NOOP)[1]) for _ in range(20)]
    assert {clipped_reward for clipped_reward, _ in pairs} <= {-1.0, 0.0}
    assert min(reward for _, reward in pairs) < -1
    assert all(clipped_reward == np.sign(reward) for clipped_reward, reward in pairs)


def test_a_game_is_truncated_after_max_episode_steps() -> None:
    env = atari("pong", max_episode_steps=7)
    for _ in range(2):
        env.reset(seed=0)
        ends = [env.step(NOOP)[2:] for _ in range(7)]
        assert [truncated for _, truncated, _ in ends] == [False] * 6 + [True]
        assert not any(terminated for terminated, _, _ in ends)
        assert ends[-1][2]["episode"]["l"] == 7


def test_the_game_itself_truncates_by_frames() -> None:
    env = atari("pong", max_num_frames_per_episode=100, noop_max=0, fire_on_reset=False)
    env.reset(seed=0)
    ends = [env.step(NOOP)[2:4] for _ in range(25)]
    assert (False, True) in ends
    assert not any(terminated for terminated, _ in ends)


def test_a_game_without_preprocessing() -> None:
    env = make_env(EnvSettings("pong", {"preprocess": False}))
    assert env.observation_space.shape == (210, 160, 3)
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0.25  # type: ignore[attr-defined]
    slots = make_slots(EnvSettings("pong", {"preprocess": False, "obs_type": "ram"}), 2)
    assert slots.observation_space.shape == (128,)
    assert slots.scores is None
    slots.close()


def test_a_game_can_be_rendered() -> None:
    env = atari("pong", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"frameskip": 4}, "frameskip=4: frames would be skipped twice. Use frame_skip"),
        ({"obs_type": "ram"}, "obs_type='ram': .* Add preprocess=False"),
        ({"continuous": True}, "continuous=True: .* Add preprocess=False"),
        ({"frame_skip": 0}, "frame_skip is 0. It must be an integer of at least 1"),
        ({"stack": "4"}, "stack is '4'. It must be an integer"),
        ({"noop_max": -1}, "noop_max is -1. It must be an integer of at least 0"),
        ({"gravitas": 3}, "cannot be created with .*gravitas"),
    ],
)
def test_invalid_settings_are_refused(kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_env(EnvSettings("pong", kwargs))


def test_without_the_games_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"ALE/Pong-v5 needs .*pip install 'raceway\[atari\]'"):
        make_slots(EnvSettings("pong"), 1)


def test_the_native_vector_is_not_supported() -> None:
    slots = make_slots(EnvSettings("pong"), 1)
    assert type(slots) is SteppedSlots
    slots.close()
    with pytest.raises(
        ConfigError, match=r"the native vector environment of ALE/Pong-v5 is not supported. Use --vector auto"
    ):
        make_slots(EnvSettings("pong", vector="native"), 1)


class Arrays:
    """The arrays that slots write to, and a loop over whole games."""

    def __init__(self, slots: Any) -> None:
        self.slots, num = slots, slots.num
        self.obs, self.reward = np.zeros((num, 4, 84, 84), np.uint8), np.zeros(num, np.float32)
        self.ended = np.zeros((2, num), bool)
        self.episodes = self.steps = 0
        slots.reset(range(num), range(num), self.obs)

    def run_games(self, num_games: int) -> None:
        """Step with no-ops until `num_games` games are over."""
        slots, all_slots = self.slots, list(range(self.slots.num))
        while len(slots.scores) < num_games:
            slots.step(np.zeros(slots.num, np.int64), all_slots, self.obs, self.reward, self.ended)
            self.steps += slots.num
            over = np.flatnonzero(self.ended.any(0)).tolist()
            self.episodes += len(over)
            if over:
                slots.reset(over, [self.steps] * len(over), self.obs)
            assert self.steps < 20_000


@pytest.mark.parametrize("vector", ["auto", "envpool"])
def test_slots_report_the_scores_of_whole_games(vector: str) -> None:
    slots = make_slots(EnvSettings("breakout", vector=vector), 2)
    assert not slots.repeats_from_seed
    assert slots.scores == []
    arrays = Arrays(slots)
    arrays.run_games(2)
    assert arrays.episodes == 10  # five lives each
    assert {score.slot for score in slots.scores} == {0, 1}
    assert sum(score.steps for score in slots.scores) >= arrays.steps - 100
    assert all(0 <= score.total < 20 for score in slots.scores)
    slots.close()


@pytest.mark.parametrize("vector", ["auto", "envpool"])
def test_slots_in_which_an_episode_is_a_game(vector: str) -> None:
    slots = make_slots(EnvSettings("pong", {"terminal_on_life_loss": False, "max_episode_steps": 50}, vector), 2)
    arrays = Arrays(slots)
    arrays.run_games(4)
    assert arrays.episodes == 4
    assert all(score.steps == 50 for score in slots.scores or [])
    assert slots.repeats_from_seed == (vector == "auto")
    slots.close()


def test_slots_of_other_environments_report_no_scores() -> None:
    for vector in ("auto", "stepped"):
        slots = make_slots(EnvSettings("cartpole", vector=vector), 2)
        assert slots.scores is None
        assert slots.repeats_from_seed
        slots.close()


def test_envpool_gives_the_same_images() -> None:
    """Apart from the no-op frames, whose number EnvPool does not report."""
    env = atari("pong", noop_max=0)
    first, _ = env.reset(seed=0)
    slots = make_slots(EnvSettings("pong", {"stack": 2}, "envpool"), 1)
    assert isinstance(slots, EnvPoolAtariSlots)
    assert slots.fire_on_reset
    assert slots.observation_space.shape == (2, 84, 84)
    obs = np.zeros((1, 2, 84, 84), np.uint8)
    slots.reset([0], [0], obs)
    difference = np.abs(obs[0, -1].astype(int) - first[-1])
    assert (difference > 1).mean() < 0.05  # the players and the ball have moved
    slots.close()


@pytest.mark.parametrize(("name", "fires"), [("ALE/MsPacman-v5", False), ("breakout", True)])
def test_envpool_fires_in_games_with_a_fire_button(name: str, fires: bool) -> None:
    slots = make_slots(EnvSettings(name, vector="envpool"), 1)
    assert isinstance(slots, EnvPoolAtariSlots)
    assert slots.fire_on_reset == fires
    slots.close()


def test_envpool_has_no_games_without_preprocessing() -> None:
    with pytest.raises(ConfigError, match=r"preprocess=False is not available in EnvPool. Use --vector auto"):
        make_slots(EnvSettings("pong", {"preprocess": False}, "envpool"), 1)


class Lives:
    """A stand-in for EnvPool: the number of lives after each step is fixed."""

    observation_space, action_space = gym.spaces.Box(0, 255, (1,), np.uint8), gym.spaces.Discrete(4)

    def __init__(self, lives: list[list[int]]) -> None:
        self.lives = iter(lives)
        self.calls: list[Any] = []

    def reset(self, slots: np.ndarray) -> tuple[Any, dict[str, Any]]:
        self.calls.append(("reset", slots.tolist()))
        return np.zeros((len(slots), 1), np.uint8), {}

    def step(self, actions: np.ndarray, slots: np.ndarray) -> tuple[Any, ...]:
        self.calls.append((actions.tolist(), slots.tolist()))
        lives = np.array(next(self.lives))
        info = {"env_id": slots, "lives": lives, "reward": np.full(len(slots), 5.0)}
        return np.ones((len(slots), 1)), np.ones(len(slots)), lives == 0, lives < 0, info

    def close(self) -> None:
        pass


def test_envpool_continues_games_that_have_lost_a_life() -> None:
    pool = Lives([[2, 2], [1, 2], [1], [1], [0]])
    slots = EnvPoolAtariSlots(pool, 2, terminal_on_life_loss=True, fire_on_reset=True)
    obs, reward, ended = np.zeros((2, 1)), np.zeros(2), np.zeros((2, 2), bool)
    slots.reset([0, 1], [0, 0], obs)
    slots.step(np.array([3, 2]), [0, 1], obs, reward, ended)
    assert not ended.any()
    slots.step(np.array([3, 2]), [0, 1], obs, reward, ended)
    assert ended.tolist() == [[True, False], [False, False]]
    slots.step(np.array([3, 2]), [1], obs, reward, ended)  # the other slot still waits to be continued
    assert ended[0].tolist() == [True, True]
    pool.calls.clear()
    slots.reset([0], [0], obs)
    assert pool.calls == [([1], [0])]
    slots.step(np.array([3, 2]), [0], obs, reward, ended)
    assert slots.scores == [Score(0, 20.0, 4)]
    pool.calls.clear()
    slots.reset([0], [0], obs)
    assert pool.calls == [("reset", [0])]


def test_a_game_that_ends_while_it_is_continued_starts_again() -> None:
    pool = Lives([[2], [1], [0]])
    slots = EnvPoolAtariSlots(pool, 1, terminal_on_life_loss=True, fire_on_reset=False)
    obs, reward, ended = np.zeros((1, 1)), np.zeros(1), np.zeros((2, 1), bool)
    slots.reset([0], [0], obs)
    for _ in range(2):
        slots.step(np.array([3]), [0], obs, reward, ended)
    pool.calls.clear()
    slots.reset([0], [0], obs)
    assert pool.calls == [([0], [0]), ("reset", [0])]
    assert slots.scores == [Score(0, 15.0, 3)]


def test_all_settings_can_be_passed_by_name() -> None:
    env = atari("pong", frame_skip=2, stack=3, noop_max=5, fire_on_reset=False, clip_rewards=False)
    assert env.settings == AtariSettings(frame_skip=2, stack=3, noop_max=5, fire_on_reset=False, clip_rewards=False)
    assert env.observation_space.shape == (3, 84, 84)
    assert ale_py.Action.FIRE in env.actions
