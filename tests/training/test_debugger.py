"""Quitting a debugger ends a run like Ctrl-C, wherever the breakpoint is."""

import io
import pdb
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from torch import nn

import raceway
from raceway.engine._calls import decode_error, encode_error
from raceway.errors import RemoteError
from raceway.flow import create
from raceway.ui.callback import Callback

SETTINGS: dict[str, Any] = {"engine": "inline", "iterations": 3, "num_envs": 2, "episodes_per_iter": 2}


prompts: list[str] = []
"""The prompts of debuggers."""


@pytest.fixture(autouse=True)
def _no_prompts() -> None:
    prompts.clear()


def quit_debugger() -> None:
    """Stop in a debugger, in which the user quits at once."""
    prompts.append("(Pdb)")
    pdb.Pdb(stdin=io.StringIO("q\n"), stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()
    pytest.fail("the debugger was not quit")


def quits_in_env() -> dict[str, Any]:
    class Env(CartPoleEnv):
        def step(self, action: Any) -> Any:
            quit_debugger()
            return super().step(action)

    return {"env": lambda: gym.wrappers.TimeLimit(Env(), 5)}


def quits_in_network() -> dict[str, Any]:
    class Network(nn.Sequential):
        def forward(self, obs: Any) -> Any:
            if self.training:  # not when its outputs are checked, and not in rollouts
                quit_debugger()
            return super().forward(obs)

    return {"network": lambda obs, actions: Network(nn.Linear(4, 2))}


def quits_in_callback() -> dict[str, Any]:
    class Stop(Callback):
        def on_iteration_end(self, run: Any, row: dict[str, Any]) -> None:
            quit_debugger()

    return {"callbacks": [Stop()]}


def quits_in_operator() -> dict[str, Any]:
    class Stop(Callback):
        def on_train_start(self, run: Any) -> None:
            training = run.training
            flow = training.flow
            training.flow = lambda workers: flow(workers).for_each(lambda row: quit_debugger())

    return {"callbacks": [Stop()]}


@pytest.mark.parametrize("breakpoint", [quits_in_env, quits_in_network, quits_in_callback, quits_in_operator])
def test_quitting_a_debugger_ends_the_run(breakpoint: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    settings = {"env": "cartpole", "run_dir": tmp_path / "run", **SETTINGS, **breakpoint()}
    result = raceway.train("reinforce", **settings)
    assert len(prompts) == 1
    assert result.summary["stopped_by"] == "interrupt"
    assert (tmp_path / "run" / "summary.json").exists()


def test_quitting_a_debugger_in_a_flow_raises_what_the_debugger_raises() -> None:
    with raceway.make_engine("inline") as engine:
        flow = create([engine.spawn(list)], "__len__").for_each(lambda item: quit_debugger()).gather_async()
        with pytest.raises(pdb.bdb.BdbQuit):  # type: ignore[attr-defined]
            next(iter(flow.start()))


def test_a_debugger_in_a_worker_says_where_to_use_one() -> None:
    try:
        quit_debugger()
    except pdb.bdb.BdbQuit as error:  # type: ignore[attr-defined]
        failure = decode_error(encode_error(error, "rollouts-0", "sample"))
    assert isinstance(failure, RemoteError)
    assert "--local" in str(failure)
