"""Compiled losses: the gradients are those of torch, and what cannot be compiled is left to torch."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from raceway.agents import Spaces, build_agent
from raceway.agents.soft_actor_critic import SoftActorCritic
from raceway.algorithms import find_algorithm
from raceway.algorithms.sac import actor_loss, critics_loss, temperature_loss
from raceway.injection import injected
from raceway.learner.compiled_losses import BLOCK_ROWS, _are_close
from raceway.learner.learner import Learner, tensors_of
from raceway.learner.objectives import LossAndMetrics, LossOutput, Objective, Target
from raceway.rl import Batch, tree_map

OBS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-2, 2, (2,))
OBJECTIVES = {
    name: Objective(loss=loss)
    for name, loss in [("critics", critics_loss), ("actor", actor_loss), ("temperature", temperature_loss)]
}
TARGETS = (Target("critics", tau=0.1),)


def batch(num_rows: int, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    columns = {"obs": 3, "next_obs": 3, "action": 2}
    rows: Batch = {name: random.normal(size=(num_rows, size)).astype(np.float32) for name, size in columns.items()}
    return rows | {name: random.random(num_rows, np.float32) for name in ("reward", "discount")}


def learner(*, compiled: bool = True, threads: int = 1, width: int = 16) -> Learner:
    algorithm = find_algorithm("sac")
    agent = build_agent(algorithm.agent, Spaces(OBS, ACTIONS), algorithm.settings(hidden=(width, width)))
    return Learner(agent, 1e-2, threads, seed=5, compiled=compiled)


def train(trained: Learner, objectives: Any = None, num_updates: int = 3, num_rows: int = 2 * BLOCK_ROWS) -> str:
    for seed in range(num_updates):
        trained.train(objectives or OBJECTIVES, batch(num_rows, seed), targets=TARGETS)
    return trained.agent.sha256()


def refused(trained: Learner) -> dict[str, str]:
    assert trained._compiled_losses is not None
    return trained._compiled_losses.refused


@pytest.mark.parametrize("num_rows", [32, 200, BLOCK_ROWS + 1])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_and_metrics_are_the_means_of_those_of_torch_over_blocks(name: str, num_rows: int) -> None:
    trained = learner(width=128)  # large enough for blocks
    trained.prepare(OBJECTIVES, TARGETS)
    objective, agent = trained.objectives[name], trained.agent
    rows = tensors_of(batch(num_rows)) | {"new_log_prob": torch.linspace(-1, 1, num_rows)}
    state = trained.random.get_state()
    with objective.isolated():
        output = trained._run_compiled(objective, objective.loss, dict(rows))
        assert output is not None, refused(trained)
        gradients = [parameter.grad.clone() for parameter in objective.parameters]
        after = trained.random.get_state()
        trained.random.set_state(state)
        objective.optimiser.zero_grad()
        middle = num_rows // 2 if num_rows > BLOCK_ROWS else num_rows
        losses, metrics = [], []
        for block in [slice(0, middle), slice(middle, num_rows)][: 1 + (num_rows > BLOCK_ROWS)]:
            part = tree_map(lambda column, block=block: column[block], rows)
            share = len(part["action"]) / num_rows
            value, numbers = objective.call(objective.loss, agent, part, trained.random)
            (value * share).backward()
            losses.append(float(value.detach()) * share)
            metrics.append({key: float(number) * share for key, number in numbers.items()})
    for gradient, parameter in zip(gradients, objective.parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(float(output.value), sum(losses), rtol=1e-4, atol=1e-6)
    for key, number in output.metrics.items():
        torch.testing.assert_close(number, sum(each[key] for each in metrics), rtol=1e-4, atol=1e-6)
    assert torch.equal(trained.random.get_state(), after)


@pytest.mark.parametrize("width", [16, 256])
def test_threads_and_a_copy_on_another_process_change_nothing(width: int) -> None:
    one, two = learner(width=width), learner(width=width, threads=2)
    assert train(one) == train(two)
    assert not refused(one)
    copied = pickle.loads(pickle.dumps(one))
    assert train(copied) == train(one)


def test_a_restored_learner_goes_on_as_the_saved_one() -> None:
    saved, other = learner(), learner()
    train(saved)
    train(other, num_updates=5)
    other.restore(saved.state())
    assert train(other) == train(saved)


def reads_a_number(agent: SoftActorCritic, rows: Batch) -> Tensor:
    return agent.critics(rows["obs"], rows["action"]).mean() * float(rows["reward"].mean())


def computes_in_numpy(agent: SoftActorCritic, rows: Batch) -> Tensor:
    return (agent.critics(rows["obs"], rows["action"]) * torch.from_numpy(rows["reward"].numpy() + 1)).mean()


class LossWithState:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, agent: SoftActorCritic, rows: Batch) -> Tensor:
        self.calls += 1
        return agent.critics(rows["obs"], rows["action"]).mean() * self.calls


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(reads_a_number, "reads a number"), (computes_in_numpy, "other gradients than torch"), (LossWithState, None)],
)
def test_other_losses_are_left_to_torch(loss: Any, reason: str | None) -> None:
    def objectives() -> dict[str, Objective]:
        return {"critics": Objective(loss=loss() if isinstance(loss, type) else loss)}

    trained, plain = learner(), learner(compiled=False)
    assert train(trained, objectives()) == train(plain, objectives())
    assert reason is None or reason in refused(trained)["critics"]


def sum_over_rows(agent: SoftActorCritic, rows: Batch) -> Tensor:
    return agent.critics(rows["obs"], rows["action"]).square().sum()


def masked_mean(agent: SoftActorCritic, rows: Batch) -> Tensor:
    mask = rows["discount"]  # all the same in the first batch
    return (agent.critics(rows["obs"], rows["action"]).square() * mask).sum() / mask.sum()


def standardised(agent: SoftActorCritic, rows: Batch) -> Tensor:
    rewards = rows["reward"] - rows["reward"].mean()
    return (agent.critics(rows["obs"], rows["action"]) - rewards).square().mean()


@pytest.mark.parametrize("loss", [sum_over_rows, masked_mean, standardised])
def test_a_loss_that_is_no_mean_over_rows_is_not_split(loss: Any) -> None:
    trained, plain = learner(width=128), learner(width=128, compiled=False)
    for seed in range(3):
        rows = batch(2 * BLOCK_ROWS, seed)
        if seed == 0:
            rows["discount"][:] = 1
        for each in (trained, plain):
            each.train({"critics": Objective(loss=loss)}, rows)
    assert trained._compiled_losses is not None
    assert trained._compiled_losses.num_blocks("critics") == [1]
    for ours, theirs in zip(trained.agent.parameters(), plain.agent.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def chosen_critic(agent: SoftActorCritic, rows: Batch, *, random: torch.Generator = injected) -> LossAndMetrics:
    chosen = torch.rand(1, generator=random)
    rows["chosen"] = (rows["reward"] * 0 + chosen).detach()
    return (agent.critics(rows["obs"], rows["action"]) * chosen).mean(), {}


def test_random_numbers_that_are_not_by_row_are_the_same_for_all_rows() -> None:
    trained, objectives = learner(width=128), {"critics": Objective(loss=chosen_critic)}
    trained.prepare(objectives)
    chosen = []
    for seed in range(2):
        rows = tensors_of(batch(2 * BLOCK_ROWS, seed))
        assert trained._run_compiled(trained.objectives["critics"], chosen_critic, rows) is not None
        assert len(rows["chosen"].unique()) == 1
        chosen.append(float(rows["chosen"][0]))
    assert trained._compiled_losses is not None
    assert trained._compiled_losses.num_blocks("critics") == [2]
    assert chosen[0] != chosen[1]


def with_priorities(agent: SoftActorCritic, rows: Batch) -> LossOutput:
    errors = agent.critics(rows["obs"], rows["action"]).mean(0) - rows["reward"]
    rows["error"] = errors.detach()
    return LossOutput(errors.square().mean(), {"constant": 7}, errors.detach().abs())


def uses_column(agent: SoftActorCritic, rows: Batch) -> Tensor:
    return (agent.temperature.log_alpha * rows["error"]).mean()


def test_priorities_and_columns_for_later_objectives() -> None:
    objectives = {"critics": Objective(loss=with_priorities), "temperature": Objective(loss=uses_column)}
    trained, plain = learner(), learner(compiled=False)
    for seed in range(3):
        found, wanted = (each.train(objectives, batch(200, seed)) for each in (trained, plain))
        np.testing.assert_allclose(found.priorities, wanted.priorities, rtol=1e-4, atol=1e-5)
        assert found.metrics.keys() == wanted.metrics.keys()
        assert found.metrics["constant"] == 7
        assert found.metrics["temperature_loss"] == pytest.approx(wanted.metrics["temperature_loss"], rel=1e-3)
    assert not refused(trained)


def test_batches_of_ever_new_sizes_are_left_to_torch() -> None:
    trained = learner()
    for num_rows in range(10, 30):
        trained.train({"critics": Objective(loss=critics_loss)}, batch(num_rows), targets=TARGETS)
    assert trained._compiled_losses is not None
    assert len(trained._compiled_losses._compiled) <= 8


def test_a_loss_that_is_a_new_function_every_time_is_left_to_torch() -> None:
    trained, plain = learner(), learner(compiled=False)
    for seed in range(12):
        for each in (trained, plain):
            each.train({"critics": Objective(loss=lambda *args: sum_over_rows(*args))}, batch(16, seed))
    assert trained._compiled_losses is not None
    assert trained._compiled_losses._num_compiled["critics"] == 8
    for ours, theirs in zip(trained.agent.parameters(), plain.agent.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def samples_globally(agent: SoftActorCritic, rows: Batch) -> Tensor:
    return (agent.critics(rows["obs"], rows["action"]) * torch.rand(len(rows["obs"]))).mean()


def test_compiling_leaves_torch_s_global_generator_as_it_was() -> None:
    """A run that is resumed compiles once more, and has to go on as one that was not."""
    saved, resumed = learner(), learner()
    objectives = {"critics": Objective(loss=samples_globally)}
    train(saved, objectives)
    resumed.restore(saved.state())
    assert train(resumed, objectives) == train(saved, objectives)
    assert not refused(saved)


def test_a_gradient_that_is_no_number_is_not_the_expected_one() -> None:
    expected = torch.tensor([1.0, 2.0])
    assert _are_close(expected.clone(), expected)
    assert not _are_close(torch.tensor([1.0, float("nan")]), expected)
    assert not _are_close(torch.tensor([1.0, 2.1]), expected)


def counting_loss() -> Any:
    calls = 0

    def loss(agent: SoftActorCritic, rows: Batch) -> Tensor:
        nonlocal calls
        calls += 1
        return sum_over_rows(agent, rows) * (-2.0) ** calls

    return loss


def test_a_closure_whose_number_changes_is_left_to_torch() -> None:
    hashes = []
    for compiled in (True, False):
        trained, objectives = learner(compiled=compiled), {"critics": Objective(loss=counting_loss())}
        for _ in range(3):
            trained.train(objectives, batch(16))
        hashes.append(trained.agent.sha256())
    assert hashes[0] == hashes[1]
