"""CrossQ: batch renormalisation and the losses by hand, whose statistics they use, and what is sent to workers."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import Spaces, build_agent
from raceway.agents.batch_renorm import BatchRenorm, NormalisedCritics
from raceway.algorithms.crossq import ADAM, Config, actor_loss, agent, critics_loss, temperature_loss
from raceway.errors import ConfigError
from raceway.learner.learner import Learner, backward, tensors_of
from raceway.learner.objectives import LossOutput, Objective
from raceway.training.train import train

SPACES = Spaces(spaces.Box(-1, 1, (3,)), spaces.Box(-2, 2, (2,)))
OBJECTIVES = {
    "critics": Objective(loss=critics_loss, options=ADAM),
    "actor": Objective(loss=actor_loss, options=ADAM),
    "temperature": Objective(loss=temperature_loss),
}


def example_learner(*, compiled: bool = False, width: int = 8, seed: int = 1) -> Learner:
    cfg = Config(hidden=(width, width), critic_hidden=(width, width))
    return Learner(build_agent(agent, SPACES, cfg, 0), 1e-2, seed=seed, compiled=compiled)


def example_batch(num: int = 12) -> Any:
    random = np.random.default_rng(0)
    columns = {"obs": (num, 3), "next_obs": (num, 3), "action": (num, 2), "reward": (num,), "discount": (num,)}
    return {key: random.normal(2, 3, size=shape).astype(np.float32) for key, shape in columns.items()}


# Batch renormalisation.


@pytest.mark.parametrize("warm", [False, True])
def test_batch_renormalisation_by_hand(warm: bool) -> None:
    norm = BatchRenorm(1, 2)
    norm.mean.copy_(torch.tensor([[1.0, 20.0]]))
    norm.var.copy_(torch.tensor([[4.0, 4.0]]) - norm.epsilon)
    norm.steps.fill_(norm.warm_up - (not warm))
    # Columns with means 2 and 0, and variances 1 and 36, of which epsilon is a part.
    x = torch.tensor([[1.0, -6.0], [3.0, 6.0]])
    scale = math.sqrt(1 - norm.epsilon), math.sqrt(36 - norm.epsilon) / 6
    x = (x - torch.tensor([2.0, 0.0])) * torch.tensor(scale) + torch.tensor([2.0, 0.0])
    y, buffers = norm.normalise(x)
    expected = torch.tensor([[-scale[0], -scale[1]], [scale[0], scale[1]]])
    if warm:
        # r = 1 / 2 and 6 / 2 = 3; d = (2 - 1) / 2 = 0.5, and (0 - 20) / 2 = -10, limited to -5
        expected = expected * torch.tensor([0.5, 3.0]) + torch.tensor([0.5, -5.0])
    torch.testing.assert_close(y, expected)
    assert [buffer is own for (buffer, _), own in zip(buffers, norm.buffers(), strict=True)] == 3 * [True]
    new_mean, new_var, new_steps = (value for _, value in buffers)
    torch.testing.assert_close(new_mean, torch.tensor([[1 + 0.01 * (2 - 1), 20 + 0.01 * (0 - 20)]]))
    torch.testing.assert_close(new_var, torch.tensor([[4 + 0.01 * (1 - 4), 4 + 0.01 * (36 - 4)]]) - norm.epsilon)
    assert int(new_steps) == int(norm.steps) + 1
    torch.testing.assert_close(norm(x), (x - norm.mean) / 2)  # the running ones, unchanged


def test_within_the_limits_the_correction_gives_the_running_statistics() -> None:
    norm, x = BatchRenorm(1, 3), torch.randn(64, 3) * 1.5 + 0.7
    norm.steps.fill_(norm.warm_up)
    torch.testing.assert_close(norm.normalise(x)[0], norm(x))


def test_critics_have_the_statistics_of_both_halves_together() -> None:
    critics = NormalisedCritics(*SPACES, hidden=(4,), num=2)
    rows = tensors_of(example_batch(6))
    action = rows["action"]
    q_values, next_q_values, buffers = critics.run_jointly(rows["obs"], action, rows["next_obs"], action)
    pairs = torch.cat([torch.cat([rows[name], action], -1) for name in ("obs", "next_obs")])
    torch.testing.assert_close(buffers[0][1], (0.01 * pairs.mean(0)).expand(2, 1, 5))
    assert buffers[0][0] is critics.layers.norms[0].mean
    normal = (pairs - pairs.mean(0)) / (pairs.var(0, correction=0) + 1e-3).sqrt()
    first, last = critics.layers.layers
    for member in range(2):
        hidden = (normal @ first.weight[member] + first.bias[member]).relu()
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-3).sqrt()
        output = (hidden @ last.weight[member] + last.bias[member])[:, 0]
        torch.testing.assert_close(torch.cat([q_values[member], next_q_values[member]]), output, rtol=1e-4, atol=1e-5)


# The losses.


def fixed_agent(q_values: list[float], next_q_values: list[float]) -> Any:
    """Return an agent with given Q-values, a log-probability of -0.5 and a temperature of 0.2."""

    def sample(params: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(params), 2), torch.full((len(params),), -0.5)

    def actor(obs: Any, state: Any) -> Any:
        return torch.zeros(len(obs), 4), state

    def critics(obs: Any, action: Tensor) -> Tensor:
        return torch.tensor(q_values)[:, None].expand(-1, len(obs))

    def run_jointly(obs: Any, action: Tensor, next_obs: Any, next_action: Tensor) -> Any:
        next_q = torch.tensor(next_q_values)[:, None].expand(-1, len(obs))
        return critics(obs, action), next_q, [(torch.zeros(1), torch.ones(1))]

    actor.distribution = SimpleNamespace(sample_with_log_prob=sample)  # type: ignore[attr-defined]
    actor.network = None  # type: ignore[attr-defined]
    critics.run_jointly = run_jointly  # type: ignore[attr-defined]
    alpha = torch.tensor(0.2)
    temperature = SimpleNamespace(alpha=alpha, log_alpha=alpha.log(), target_entropy=-2.0)
    return SimpleNamespace(actor=actor, critics=critics, temperature=temperature)


def test_losses_by_hand() -> None:
    fixed, random = fixed_agent([1.0, 2.0], [3.0, 5.0]), torch.Generator()
    batch = {
        "obs": torch.zeros(2, 3), "next_obs": torch.zeros(2, 3), "action": torch.zeros(2, 2),
        "reward": torch.tensor([1.0, 0.0]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip
    # targets: 1 + 0.5 (min(3, 5) + 0.2 · 0.5) = 2.55, and 0 after termination
    expected = 0.5 * np.mean([(1 - 2.55) ** 2 + (2 - 2.55) ** 2, 1.0**2 + 2.0**2])
    output = critics_loss(fixed, batch, random=random)
    assert float(output.value) == pytest.approx(expected)
    assert len(output.buffers) == 1
    assert float(actor_loss(fixed, batch, random=random).value) == pytest.approx(0.2 * -0.5 - 1)
    assert float(temperature_loss(fixed, batch)[0]) == pytest.approx(-math.log(0.2) * (-0.5 - 2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_changes_weights_and_statistics_of_its_own_part_only(name: str, compiled: bool) -> None:
    learner = example_learner(compiled=compiled)
    before = {key: value.copy() for key, value in learner.agent.weights().items()}
    batch = example_batch() | {"new_log_prob": np.zeros(12, np.float32)}  # that the temperature gets from the actor
    learner.train({name: OBJECTIVES[name]}, batch)
    for key, value in learner.agent.weights().items():
        assert np.array_equal(value, before[key]) != key.startswith(f"{name}."), key


def test_the_target_is_a_constant_and_the_next_rows_matter_by_their_statistics_alone() -> None:
    """The gradient is that of a loss whose target was computed before."""
    learner, rows = example_learner(), tensors_of(example_batch())
    trained: Any = learner.agent
    value = critics_loss(trained, rows, random=torch.Generator().manual_seed(0)).value
    gradients = torch.autograd.grad(value, list(trained.critics.parameters()), allow_unused=True)
    with torch.no_grad():
        params = trained.actor(rows["next_obs"], {})[0]
        action, log_prob = trained.actor.distribution.sample_with_log_prob(params, torch.Generator().manual_seed(0))
        next_q = trained.critics.run_jointly(rows["obs"], rows["action"], rows["next_obs"], action)[1].amin(0)
        target = rows["reward"] + rows["discount"] * (next_q - log_prob)  # the initial temperature is 1
    q_values = trained.critics.run_jointly(rows["obs"], rows["action"], rows["next_obs"], action)[0]
    expected = torch.autograd.grad(
        0.5 * (q_values - target).square().mean(-1).sum(), list(trained.critics.parameters())
    )
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("name", ["critics", "actor"])
def test_compiled_losses_have_the_gradients_of_torch_and_the_same_statistics(name: str) -> None:
    learner, batch = example_learner(compiled=True, width=128), example_batch(256)
    learner.prepare(OBJECTIVES)
    objective, state = learner.objectives[name], learner.random.get_state()
    with objective.isolated():
        output = learner._run_compiled(objective, objective.loss, tensors_of(batch))
        assert output is not None
        gradients = [parameter.grad.clone() for parameter in objective.parameters]
        learner.random.set_state(state)
        objective.optimiser.zero_grad()
        expected = objective.call(objective.loss, learner.agent, tensors_of(batch), learner.random)
        expected.value.backward()
    assert learner._compiled_losses is not None
    assert learner._compiled_losses.num_blocks(name) == [1], "statistics of all rows together"
    for gradient, parameter in zip(gradients, objective.parameters, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-5)
    assert len(output.buffers) == len(expected.buffers) == 9
    for (buffer, value), (own, wanted) in zip(output.buffers, expected.buffers, strict=True):
        assert buffer is own
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_restored_learner_goes_on_as_the_saved_one(compiled: bool) -> None:
    first, second = (example_learner(compiled=compiled, seed=seed) for seed in (1, 2))
    for _ in range(3):
        first.train(OBJECTIVES, example_batch())
    second.restore(first.state())
    for learner in (first, second):
        learner.train(OBJECTIVES, example_batch())
    assert first.agent.sha256() == second.agent.sha256()


# Acting, and what is refused.


def test_workers_get_the_statistics_of_the_actor_and_act_row_by_row() -> None:
    learner = example_learner()
    for _ in range(5):
        learner.train(OBJECTIVES, example_batch())
    sent = learner.worker_weights()
    assert {name.rpartition(".")[2] for name in sent} >= {"mean", "var", "steps"}
    worker = build_agent(agent, SPACES, Config(hidden=(8, 8), critic_hidden=(8, 8)), 5)
    worker.load(sent)
    obs = example_batch()["obs"]
    actions = worker.actor.act(obs, {}, None)[0]
    np.testing.assert_allclose(actions, learner.agent.actor.act(obs, {}, None)[0])
    single = np.concatenate([worker.actor.act(obs[row : row + 1], {}, None)[0] for row in range(len(obs))])
    np.testing.assert_allclose(actions, single, rtol=1e-4, atol=1e-5)


def test_networks_and_settings_that_do_not_fit(tmp_path: Any) -> None:
    class Critic(nn.Module):
        def forward(self, obs: Tensor, action: Tensor) -> Tensor:
            return obs[:, :1] + action[:, :1]

    def network(*_: Any) -> list[nn.Module]:
        return [nn.Linear(3, 4), Critic()]

    with pytest.raises(ConfigError, match=r"without the batch normalisation of this algorithm\. Return the actor"):
        build_agent(agent, SPACES, Config(network=network), 0)
    own: Any = Learner(
        build_agent(agent, SPACES, Config(network=lambda *_: nn.Linear(3, 4), critic_hidden=(4,)), 0), 0.1
    )
    before = own.agent.actor.network.weight.detach().clone()
    own.train(OBJECTIVES, example_batch())
    assert not torch.equal(own.agent.actor.network.weight, before)
    with pytest.raises(ConfigError, match=r"tau .*it has no target networks"):
        train("crossq", tau=0.01, iterations=1, progress=False, run_dir=tmp_path / "run")


def test_buffers_of_a_loss_are_refused_where_gradients_are_summed() -> None:
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(ConfigError, match="set by TrainOneStep"):
        backward([lambda: LossOutput(weight.sum(), buffers=[(torch.zeros(1), torch.ones(1))])])
