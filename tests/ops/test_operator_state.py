"""The state of an operator holds what changes while it runs, and none of the constants that it is constructed with."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import raceway.ops
from raceway.agents import EpsilonGreedy
from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.envs import EnvSettings
from raceway.flow import Iter
from raceway.ops import (
    AddAdvantages,
    AddDiscounts,
    AddLogProbs,
    AddProgress,
    AddQLambdaReturns,
    AddReturns,
    AllReduce,
    ApplyGradients,
    AverageGradients,
    CircularBatches,
    ComputeGradients,
    ConcatBatches,
    ConcatFragments,
    CountSteps,
    EpisodeTransitions,
    EstimateGradient,
    Exploration,
    Explore,
    FitBaseline,
    FitOneStep,
    Fresh,
    InnerAdapt,
    Learner,
    MergeObservations,
    MergeStats,
    MetaUpdate,
    MinibatchGradients,
    ReplaySettings,
    ReplayShard,
    ReportMetrics,
    RolloutSettings,
    RolloutWorker,
    Sequences,
    StandardizeFields,
    StoreToReplay,
    TrainOneStep,
    TrainStats,
    Transitions,
    UpdatePriorities,
    UpdateWeights,
)
from raceway.ops.multi_agent import WholeEpisodes
from raceway.ops.policy_report import JointEpisodes, ReportPolicies
from raceway.ops.update_report import ReportUpdates
from raceway.rollouts import RunningReturns
from raceway.state import Stateful, restore, state_of
from tests.example_agents import example_actor, makes_actor


class Parts:
    """The arguments of operators that are not constants."""

    def __init__(self, workers: list[Actor], shards: list[Actor]) -> None:
        agent = example_actor(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), hidden=(4,))
        self.learner, self.workers, self.shards = Learner(agent, 1e-3), workers, shards
        self.exploration = Exploration(EpsilonGreedy(1.0))
        self.weights = UpdateWeights(self.learner, workers)


def loss(*_: Any) -> Any:
    """Stand in for a loss."""


# Positional arguments, and constants: numbers and names that do not occur in a state for another reason.
OPERATORS: dict[type, tuple[Callable[[Parts], tuple[Any, ...]], dict[str, Any]]] = {
    AddAdvantages: (lambda parts: (), {"gamma": 0.731, "lam": 0.137, "scale_rewards": True}),
    AddDiscounts: (lambda parts: (), {"gamma": 0.731}),
    AddLogProbs: (lambda parts: (), {"gamma": 0.731, "scale_rewards": True}),
    AddProgress: (lambda parts: (parts.learner,), {}),
    AddQLambdaReturns: (lambda parts: (), {"gamma": 0.731, "lam": 0.137, "reward_scale": 0.317}),
    AddReturns: (lambda parts: (), {"gamma": 0.731}),
    AllReduce: (lambda parts: (parts.weights,), {}),
    ApplyGradients: (lambda parts: (parts.learner,), {"optimiser": "the-optimiser"}),
    AverageGradients: (lambda parts: (), {}),
    CircularBatches: (lambda parts: (), {"num": 7919, "times": 17}),
    ComputeGradients: (lambda parts: (loss,), {}),
    ConcatBatches: (lambda parts: (), {"min_steps": 7919}),
    ConcatFragments: (lambda parts: (), {"min_steps": 7919}),
    CountSteps: (lambda parts: (parts.learner,), {}),
    EpisodeTransitions: (lambda parts: (), {"gamma": 0.731}),
    EstimateGradient: (lambda parts: (parts.learner, loss), {"seed": 7919, "l2": 0.731, "alive_bonus": 0.137}),
    Explore: (lambda parts: (parts.exploration,), {"epsilon": loss}),
    FitBaseline: (lambda parts: (), {"gamma": 0.731}),
    FitOneStep: (lambda parts: (parts.learner,), {}),
    Fresh: (lambda parts: (parts.weights,), {"max_lag": 7919}),
    InnerAdapt: (lambda parts: (parts.weights, loss), {"num_steps": 7919}),
    JointEpisodes: (lambda parts: (), {}),
    MergeObservations: (lambda parts: (parts.learner,), {}),
    MergeStats: (lambda parts: (), {}),
    MetaUpdate: (lambda parts: (parts.learner, loss, loss), {"num_epochs": 7919, "first_order": True}),
    MinibatchGradients: (lambda parts: (loss, loss), {"num_epochs": 7919, "num_minibatches": 17, "check_every": 19}),
    ReportMetrics: (lambda parts: (), {}),
    ReportPolicies: (lambda parts: (["pair"], JointEpisodes()), {}),
    ReportUpdates: (lambda parts: (), {"num_rows": 7919}),
    Sequences: (lambda parts: (), {"gamma": 0.731, "n": 17, "length": 7919, "burn_in": 19}),
    StandardizeFields: (lambda parts: ("the-column",), {}),
    StoreToReplay: (lambda parts: (parts.shards,), {}),
    TrainOneStep: (lambda parts: (parts.learner, loss), {"num_epochs": 7919, "num_minibatches": 17}),
    Transitions: (lambda parts: (), {"gamma": 0.731, "n": 17}),
    UpdatePriorities: (lambda parts: (), {}),
    UpdateWeights: (lambda parts: (parts.learner, parts.workers), {"to": "senders", "every": 7919}),
    WholeEpisodes: (lambda parts: (), {"num_episodes": 7919}),
}


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    rollouts = RolloutSettings(
        env=EnvSettings("CartPole-v1"), agent=makes_actor(), num_shards=1, slots_per_shard=1, fragment_steps=2
    )
    with make_engine("inline") as engine:
        yield Parts(
            [engine.spawn(RolloutWorker, (rollouts,))],
            [engine.spawn(ReplayShard, (ReplaySettings(capacity=8),))],
        )


def make(operator: type, parts: Parts, **changed: Any) -> Any:
    positional, constants = OPERATORS[operator]
    return operator(*positional(parts), **{**constants, **changed})


def leaves(state: Any) -> Iterator[Any]:
    """Yield all keys and values of a nested state."""
    if isinstance(state, dict):
        yield from state
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        for value in state:
            yield from leaves(value)
    else:
        yield state


def test_every_operator_is_tested() -> None:
    modules = [
        importlib.import_module(f"raceway.ops.{module.name}") for module in pkgutil.iter_modules(raceway.ops.__path__)
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and "__call__" in vars(value)
    }
    assert classes == set(OPERATORS)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_state_holds_no_constant(operator: type, parts: Parts) -> None:
    state = state_of(make(operator, parts))
    saved = list(leaves(state))
    constants = {**OPERATORS[operator][1], "names": "the-column", "gamma": 0.731}
    for name, value in constants.items():
        assert name not in saved
        assert isinstance(value, bool) or not any(isinstance(leaf, type(value)) and leaf == value for leaf in saved)


class PlainObject:
    """Has no `state()`: its state is every attribute that holds plain data."""


def state_with_constants(operator: Any) -> Any:
    """Return the state of an operator as checkpoints of earlier versions hold it."""
    plain = PlainObject()
    vars(plain).update(vars(operator))
    return state_of(plain)


CHANGED: dict[type, tuple[dict[str, Any], dict[str, Any]]] = {
    AddAdvantages: ({"running": RunningReturns(sums=np.ones(2))}, {"gamma": 0.5, "lam": 0.5}),
    AddLogProbs: ({"running": RunningReturns(sums=np.ones(2))}, {"gamma": 0.5}),
    AddQLambdaReturns: ({}, {"gamma": 0.5, "lam": 0.5, "reward_scale": 0.5}),
    AddReturns: ({}, {"gamma": 0.5}),
    ConcatBatches: ({"held": [{"reward": np.ones(3)}]}, {"min_steps": 5}),
    Explore: ({"steps": 40}, {}),
    FitBaseline: ({}, {"gamma": 0.5}),
    Fresh: ({"num_dropped": 3}, {"max_lag": 5}),
    MergeStats: ({"held": [TrainStats(5, np.ones(1), np.ones(1))]}, {}),
    MetaUpdate: ({}, {"num_epochs": 5, "first_order": False}),
    StandardizeFields: ({}, {}),
}
"""Operators whose constants earlier versions saved: values of their state, and other constants."""


@pytest.mark.parametrize("operator", CHANGED)
def test_an_old_state_with_constants_restores(operator: type, parts: Parts) -> None:
    """What changes is restored; constants stay as they were constructed."""
    values, constants = CHANGED[operator]
    before, after = make(operator, parts), make(operator, parts, **constants)
    vars(before).update(values)
    old_state = state_with_constants(before)
    assert set(old_state) >= set(values)
    restore(after, old_state)
    assert state_of(after) == values
    for name, value in constants.items():
        assert getattr(after, name) == value
    assert isinstance(after, Stateful)


@pytest.mark.parametrize("operator", CHANGED)
def test_a_missing_state_changes_nothing(operator: type, parts: Parts) -> None:
    instance = make(operator, parts)
    before = state_of(instance)
    restore(instance, None)
    assert state_of(instance) == before


def test_a_flow_restores_an_old_state_with_constants(parts: Parts) -> None:
    def flow(operator: Fresh) -> Iter[int]:
        return Iter.from_range(10).filter(operator)

    def add_constant(state: Any) -> None:
        """Add `max_lag` wherever the state of the operator is."""
        if isinstance(state, dict):
            if state.get("function") == {"num_dropped": 4}:
                state["function"]["max_lag"] = 3
            state = list(state.values())
        for value in state if isinstance(state, (list, tuple)) else ():
            add_constant(value)

    operator = Fresh(parts.weights, max_lag=3)
    operator.num_dropped = 4
    with flow(operator).start() as run:
        for _ in range(4):
            next(run)
        state = run.state()
    add_constant(state)
    assert "max_lag" in list(leaves(state))
    operator = Fresh(parts.weights, max_lag=7)
    assert len(list(flow(operator).restore(state))) == 6
    assert (operator.num_dropped, operator.max_lag) == (4, 7)
