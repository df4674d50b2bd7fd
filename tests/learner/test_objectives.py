"""Objectives: each trains its own parts, with its own optimiser; target networks follow; all of it is saved."""

import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from raceway.agents import ActorCritic, Agent, Normaliser, Spaces, build_agent, make_policy
from raceway.checkpoints.encoding import decode, encode
from raceway.errors import ConfigError
from raceway.flow import injected
from raceway.learner.adam import Adam
from raceway.learner.learner import Learner
from raceway.learner.objectives import LossOutput, Objective, Target, check_loss_output
from raceway.learner.optimisers import TorchOptimiser, make_optimiser
from raceway.ops import TrainOneStep
from raceway.rl import Batch, LinearSchedule
from raceway.state import Stateful
from tests.example_agents import example_actor, example_actor_critic

OBS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))
ROWS: Batch = {
    "obs": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32),
    "action": np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32),
}


class Parts(Agent):
    """An actor, two critics and a temperature."""

    def __init__(self) -> None:
        critics = {
            name: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)) for name in ("critic", "second_critic")
        }
        super().__init__(make_policy(OBS, ACTIONS, hidden=(4,), seed=0), **critics, temperature=nn.Linear(1, 1))

    def q_values(self, batch: Batch, actions: Tensor) -> Tensor:
        inputs = torch.cat([batch["obs"], actions], -1)
        return torch.cat([self.get_submodule(name)(inputs) for name in ("critic", "second_critic")], -1)


def parts() -> Parts:
    agent = build_agent(lambda *_: Parts(), Spaces(OBS, ACTIONS), None)
    assert isinstance(agent, Parts)
    return agent


def actor_loss(agent: Parts, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Depends on the critics and the temperature too, whose gradients must not be theirs."""
    means = agent.actor(batch["obs"], {})[0][:, :2]
    q_values = agent.q_values(batch, means).mean()
    return -q_values * agent.get_submodule("temperature")(torch.ones(1, 1)).sum(), {"q_values": q_values}


def critic_loss(agent: Parts, batch: Batch) -> Tensor:
    means = agent.actor(batch["obs"], {})[0][:, :2]  # no torch.no_grad: the objective isolates it
    return (agent.q_values(batch, batch["action"]) - agent.q_values(batch, means) - 1).square().mean()


def noisy_loss(agent: Parts, batch: Batch, *, random: torch.Generator = injected) -> Tensor:
    """Is proportional to a random number, which the learner's generator gives."""
    noise = torch.rand((), generator=random)
    return noise * agent.get_submodule("temperature")(torch.ones(1, 1)).sum() + 0 * noise


CRITICS = Objective(loss=critic_loss, parts=("critic", "second_critic"))
OBJECTIVES = {
    "critics": CRITICS,
    "actor": Objective(loss=actor_loss, lr=0.05),
    "temperature": Objective(loss=noisy_loss),
}
TARGETS = (Target("critic", tau=0.1), Target("second_critic", every=2))


def snapshot(agent: Agent) -> dict[str, tuple[bytes, bytes | None]]:
    """Return the bytes of every parameter and of its gradient."""
    return {
        name: (value.detach().numpy().tobytes(), None if value.grad is None else value.grad.numpy().tobytes())
        for name, value in agent.named_parameters()
    }


def saved(state: Any) -> Any:
    """Return a state as it is read from a checkpoint."""
    return decode(*encode(state))


# Isolation.


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_changes_only_its_own_parameters_and_gradients(name: str) -> None:
    agent = parts()
    learner = Learner(agent, 0.01)
    learner.train(OBJECTIVES, ROWS)  # so that every parameter has a gradient that is not zero
    before = snapshot(agent)
    learner.train({name: OBJECTIVES[name]}, ROWS)
    after = snapshot(agent)
    own = {"critics": ("critic.", "second_critic."), "actor": ("actor.",), "temperature": ("temperature.",)}[name]
    for parameter in before:
        if not parameter.startswith(own):
            assert after[parameter] == before[parameter], parameter
    changed = [parameter for parameter in before if after[parameter][0] != before[parameter][0]]
    assert {parameter.partition(".")[0] for parameter in changed} == {prefix.rstrip(".") for prefix in own}


def test_parameters_are_trainable_again_after_a_step_and_after_an_error() -> None:
    agent = parts()
    learner = Learner(agent, 0.01)
    learner.train(OBJECTIVES, ROWS)
    assert all(parameter.requires_grad for parameter in agent.parameters())

    def failing(agent: Agent, batch: Batch) -> Tensor:
        raise RuntimeError("the loss failed")

    with pytest.raises(RuntimeError, match="the loss failed"):
        learner.train({"actor": Objective(loss=failing)}, ROWS)
    assert all(parameter.requires_grad for parameter in agent.parameters())


def test_frozen_parameters_stay_frozen() -> None:
    agent = parts()
    frozen = list(agent.get_submodule("temperature").parameters())
    for parameter in frozen:
        parameter.requires_grad_(False)
    Learner(agent, 0.01).train({"critics": CRITICS}, ROWS)
    assert not any(parameter.requires_grad for parameter in frozen)


def test_objectives_take_their_steps_in_order() -> None:
    """The second loss is computed with the weights after the first step."""
    agent, other = parts(), parts()
    Learner(agent, 0.01).train({"critics": CRITICS, "actor": Objective(loss=actor_loss)}, ROWS)
    learner = Learner(other, 0.01)
    learner.train({"critics": CRITICS}, ROWS)
    learner.train({"actor": Objective(loss=actor_loss)}, ROWS)
    assert agent.sha256() == other.sha256()


def test_one_objective_for_all_parts_equals_a_loss_for_the_agent() -> None:
    agents = parts(), parts()
    Learner(agents[0], 0.01, max_grad_norm=0.1).train(critic_loss, ROWS)
    Learner(agents[1], 0.01, max_grad_norm=0.1).train({"agent": Objective(loss=critic_loss)}, ROWS)
    assert agents[0].sha256() == agents[1].sha256() != parts().sha256()


@pytest.mark.parametrize(
    "objectives",
    [
        {"critics": CRITICS, "critic": Objective(loss=critic_loss)},
        {"critic": Objective(loss=critic_loss), "agent": Objective(loss=critic_loss)},
    ],
    ids=lambda objectives: " and ".join(objectives),
)
def test_objectives_that_train_the_same_parameters_are_refused(objectives: dict[str, Objective]) -> None:
    first, second = objectives
    message = rf"the objectives '{first}' and '{second}' train the same parameters, of shape \(4, 5\)"
    with pytest.raises(ConfigError, match=message):
        Learner(parts(), 0.01).train(objectives, ROWS)


def test_parts_that_share_layers_cannot_have_separate_objectives() -> None:
    agent = example_actor_critic(OBS, ACTIONS, lambda *_: shared_networks())

    def value_loss(agent: ActorCritic, batch: Batch) -> Tensor:
        return agent.values(batch["obs"]).mean()

    with pytest.raises(ConfigError, match="the objectives 'actor' and 'critic' train the same parameters"):
        Learner(agent, 0.01).train({"actor": Objective(loss=value_loss), "critic": Objective(loss=value_loss)}, ROWS)


def shared_networks() -> tuple[nn.Module, nn.Module]:
    first = nn.Linear(3, 4)
    return nn.Sequential(first, nn.Linear(4, 4)), nn.Sequential(first, nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("objectives", "name"),
    [({"crtic": critic_loss}, "crtic"), ({"values": Objective(loss=critic_loss, parts=("critic", "gone"))}, "gone")],
    ids=["name", "parts"],
)
def test_an_unknown_part_is_refused_when_the_plan_is_built(objectives: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown part of the agent '{name}'"):
        TrainOneStep(Learner(parts(), 0.01), **objectives)
    with pytest.raises(ConfigError, match=f"unknown part of the agent '{name}'"):
        Learner(parts(), 0.01).train(
            {
                key: entry if isinstance(entry, Objective) else Objective(loss=entry)
                for key, entry in objectives.items()
            },
            ROWS,
        )


def test_an_unknown_part_of_a_target_is_refused_when_the_plan_is_built() -> None:
    with pytest.raises(ConfigError, match=r"unknown part of the agent 'crtic'\. Did you mean 'critic'"):
        TrainOneStep(Learner(parts(), 0.01), critic_loss, targets=[Target("actor"), Target(("actor", "crtic"))])


@pytest.mark.parametrize("arguments", [{}, {"loss": critic_loss, "actor": actor_loss}], ids=["neither", "both"])
def test_either_a_loss_or_objectives(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs either a loss for the whole agent, or objectives by name"):
        TrainOneStep(Learner(parts(), 0.01), **arguments)


def test_a_part_without_parameters_cannot_be_trained() -> None:
    agent = example_actor_critic(OBS, ACTIONS)
    with pytest.raises(ConfigError, match="the objective 'rewards' has no parameters to train"):
        Learner(agent, 0.01).train({"rewards": Objective(loss=critic_loss)}, ROWS)


def test_whole_episodes_are_for_one_loss_of_the_whole_agent() -> None:
    batch = {**ROWS, "length": np.array([3, 5])}
    with pytest.raises(ConfigError, match=r"whole episodes .* one loss for the whole agent, not with .*critics, actor"):
        Learner(parts(), 0.01).train({"critics": CRITICS, "actor": Objective(loss=actor_loss)}, batch)


# Settings of an objective.


def test_metrics_carry_the_name_of_their_objective() -> None:
    learner = Learner(parts(), 0.01, max_grad_norm=1.0)
    metrics, priorities = learner.train(OBJECTIVES, ROWS)
    assert priorities is None
    losses = {f"{name}_{metric}" for name in OBJECTIVES for metric in ("loss", "grad_norm")}
    assert metrics.keys() == losses | {"q_values"}
    assert Learner(parts(), 0.01).train(critic_loss, ROWS).metrics.keys() == {"loss"}


def test_an_objective_every_few_updates() -> None:
    agent = parts()
    learner, changed = Learner(agent, 0.01), []
    objectives = {"critics": CRITICS, "actor": Objective(loss=actor_loss, every=3)}
    for _ in range(7):
        before = agent.actor.sha256()
        metrics = learner.train(objectives, ROWS).metrics
        changed.append(agent.actor.sha256() != before)
        assert ("actor_loss" in metrics) == changed[-1]
        assert "critics_loss" in metrics
    assert changed == [False, False, True, False, False, True, False]
    assert learner.version == 7
    assert learner.objectives["actor"].optimiser.steps == 2


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_an_impossible_period_is_refused(every: Any) -> None:
    with pytest.raises(ConfigError, match="every must be"):
        Objective(loss=critic_loss, every=every)
    with pytest.raises(ConfigError, match="every must be"):
        Target(every=every)


def test_every_objective_has_its_own_learning_rate() -> None:
    learner = Learner(parts(), LinearSchedule(0.01, 0.0, 16))
    objectives = {
        "critics": CRITICS,
        "actor": Objective(loss=actor_loss, lr=0.5),
        "temperature": Objective(loss=noisy_loss, lr=LinearSchedule(1.0, 0.0, 32)),
    }
    for expected in ([0.01, 0.5, 1.0], [0.005, 0.5, 0.75], [0.0, 0.5, 0.5]):
        learner.train(objectives, ROWS)
        rates = [learner.objectives[name].optimiser.lr for name in objectives]
        assert rates == pytest.approx(expected)


def test_an_objective_with_its_own_clipping() -> None:
    agent = parts()
    before = torch.cat([value.detach().flatten() for value in agent.parameters_of(CRITICS.parts)])
    objective = Objective(loss=critic_loss, parts=CRITICS.parts, max_grad_norm=1e-2, optimiser="sgd", lr=0.5)
    metrics = Learner(agent, 0.1, max_grad_norm=1e9).train({"critics": objective}, ROWS).metrics
    after = torch.cat([value.detach().flatten() for value in agent.parameters_of(CRITICS.parts)])
    assert metrics["critics_grad_norm"] > 0.1, "the norm before clipping is reported"
    assert float((after - before).norm()) == pytest.approx(0.5 * 1e-2, rel=1e-2)


# Optimisers.


def test_rmsprop_by_name_steps_as_torchs_does() -> None:
    agent, other = parts(), parts()
    options = {"alpha": 0.9, "epsilon": 1e-3, "centered": True}
    objective = Objective(loss=critic_loss, parts=CRITICS.parts, optimiser="RMSprop", options=options, lr=0.02)
    learner = Learner(agent, 0.01)
    parameters = list(other.parameters_of(CRITICS.parts))
    optimiser = torch.optim.RMSprop(parameters, lr=0.02, alpha=0.9, eps=1e-3, centered=True)
    rows = {name: torch.from_numpy(column) for name, column in ROWS.items()}
    for _ in range(4):
        learner.train({"critics": objective}, ROWS)
        optimiser.zero_grad()
        critic_loss(other, rows).backward()
        optimiser.step()
    for actual, expected in zip(agent.parameters_of(CRITICS.parts), parameters, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "AdamW", "SGD"])
@pytest.mark.parametrize("prepared", [False, True], ids=["new learner", "prepared learner"])
def test_the_state_of_an_optimiser_is_saved(name: str, prepared: bool) -> None:
    options = {"momentum": 0.9} if name == "SGD" else None
    objective = {"critics": Objective(loss=critic_loss, parts=CRITICS.parts, optimiser=name, options=options)}
    learner, restored = Learner(parts(), 0.01), Learner(parts(), 0.01)
    for _ in range(3):
        learner.train(objective, ROWS)
    if prepared:
        restored.train(objective, ROWS)
    restored.restore(saved(learner.state()))
    assert restored.agent.sha256() == learner.agent.sha256()
    for each in (learner, restored):
        each.train(objective, ROWS)
    assert restored.agent.sha256() == learner.agent.sha256()
    assert restored.objectives["critics"].optimiser.steps == 4


def test_optimisers_by_name() -> None:
    weights = [torch.zeros(2, requires_grad=True)]
    assert isinstance(make_optimiser("Adam", weights, 0.1), Adam)
    weighted = make_optimiser("adam", weights, 0.1, weight_decay=0.01)
    assert isinstance(weighted, TorchOptimiser)
    assert isinstance(weighted.optimiser, torch.optim.Adam)
    with pytest.raises(ConfigError, match=r"unknown optimiser 'rmspro'. Did you mean 'rmsprop'\?"):
        make_optimiser("rmspro", weights, 0.1)
    with pytest.raises(ConfigError, match=r"the optimiser sgd has no option 'betas'. It has: lr, momentum"):
        make_optimiser("sgd", weights, 0.1, betas=(0.9, 0.99))


# Losses.


@pytest.mark.parametrize("result", [None, 5, torch.zeros(2), (torch.zeros(()), {}, None, 1)], ids=str)
def test_a_loss_that_returns_something_else_is_named(result: Any) -> None:
    with pytest.raises(ConfigError, match=r"the loss critics returned .*; expected a single number as a tensor"):
        check_loss_output(result, "critics")


def test_the_priorities_of_a_loss_are_returned() -> None:
    def loss(agent: Parts, batch: Batch) -> LossOutput:
        errors = agent.q_values(batch, batch["action"]).mean(-1)
        return LossOutput(errors.square().mean(), {"error": errors.mean()}, priorities=errors.abs())

    agent = parts()
    with torch.no_grad():
        rows = {name: torch.from_numpy(column) for name, column in ROWS.items()}
        expected = agent.q_values(rows, rows["action"]).mean(-1).abs().numpy()
    metrics, priorities = Learner(agent, 0.01).train({"critic": Objective(loss=loss)}, ROWS)
    np.testing.assert_array_equal(priorities, expected)
    assert metrics.keys() == {"critic_loss", "error"}


def test_a_loss_gets_the_generator_of_the_learner() -> None:
    values = []

    def loss(agent: Parts, batch: Batch, *, random: torch.Generator = injected) -> Tensor:
        values.append(torch.rand((), generator=random).item())
        return agent.q_values(batch, batch["action"]).mean()

    generator = torch.Generator().manual_seed(9)
    expected = [torch.rand((), generator=generator).item() for _ in range(4)]
    learner = Learner(parts(), 0.01, seed=9)
    for _ in range(2):
        learner.train({"critics": Objective(loss=loss, parts=CRITICS.parts)}, ROWS)
    state = saved(learner.state())
    learner.train({"critics": Objective(loss=loss, parts=CRITICS.parts)}, ROWS)
    resumed = Learner(parts(), 0.01, seed=1)
    resumed.restore(state)
    for _ in range(2):
        resumed.train({"critics": Objective(loss=loss, parts=CRITICS.parts)}, ROWS)
    assert values == [*expected[:3], *expected[2:]]


class ScaledLoss(Stateful):
    """A loss with a scale that grows with every call."""

    state_attributes: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, agent: Parts, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        self.scale *= 2
        return self.scale * agent.q_values(batch, batch["action"]).mean(), {"scale": self.scale}


@pytest.mark.parametrize("prepared", [False, True], ids=["new learner", "prepared learner"])
def test_a_loss_with_a_state_is_saved(prepared: bool) -> None:
    learner, restored, loss, other = Learner(parts(), 0.01), Learner(parts(), 0.01), ScaledLoss(), ScaledLoss()
    for _ in range(3):
        learner.train({"critic": Objective(loss=loss)}, ROWS)
    if prepared:
        restored.train({"critic": Objective(loss=other)}, ROWS)
    restored.restore(saved(learner.state()))
    metrics = restored.train({"critic": Objective(loss=other)}, ROWS).metrics
    assert (loss.scale, other.scale, metrics["scale"]) == (8, 16, 16)


# Target networks.


def constant_loss(agent: Agent, batch: Batch) -> Tensor:
    return 0 * agent.get_submodule("actor").network[-1].bias.sum()  # type: ignore[index,union-attr]


def test_a_small_tau_averages() -> None:
    """From 0 to 1 with τ = 0.005: after two updates the target is 1 - 0.995² = 0.009975."""
    agent = example_actor(OBS, ACTIONS)
    learner = Learner(agent, 0.0)
    learner.prepare({}, [Target(tau=0.005)])
    with torch.no_grad():
        for own, trained in zip(agent.target.parameters(), agent.parameters(), strict=True):
            own.zero_()
            trained.fill_(1)
    for expected in (0.005, 0.009975):
        learner.train(constant_loss, ROWS, targets=[Target(tau=0.005)])
        for own in agent.target.parameters():
            np.testing.assert_allclose(own.numpy(), expected, rtol=1e-6)
    assert all((parameter == 1).all() for parameter in agent.parameters())


def test_buffers_are_copied_and_not_averaged() -> None:
    agent = example_actor_critic(OBS, ACTIONS, normalise_obs=True)
    learner = Learner(agent, 0.0)
    learner.prepare({}, [Target(tau=0.005)])
    normalisers = [module for module in agent.modules() if isinstance(module, Normaliser)]
    assert len(normalisers) == 2  # of observations, and of rewards
    learner.train(constant_loss, ROWS, targets=[Target(tau=0.005)])  # observes the rows after the step
    learner.train(constant_loss, {**ROWS, "running_return": np.ones(8, np.float32)}, targets=[Target(tau=0.005)])
    copies = [module for module in agent.target.modules() if isinstance(module, Normaliser)]
    assert float(normalisers[0].count) == 16
    for own, trained in zip(copies, normalisers, strict=True):
        assert own is not trained
    assert float(copies[0].count) == 8, "the statistics at the time of the update"
    np.testing.assert_allclose(copies[0].mean, ROWS["obs"].mean(0), rtol=1e-5)


def test_targets_of_parts_at_their_own_pace() -> None:
    agent = parts()
    learner = Learner(agent, 0.01)
    first, second = [], []
    for _ in range(4):
        before = copies_of(agent) if agent.has_target else {}
        learner.train(critic_loss, ROWS, targets=TARGETS)
        after = copies_of(agent)
        first.append(not before or (before["critic"] != after["critic"]).any())
        second.append(bool(before) and bool((before["second_critic"] != after["second_critic"]).any()))
    assert (first, second) == ([True] * 4, [False, True, False, True])
    assert set(agent.target._modules) == {"critic", "second_critic"}
    np.testing.assert_array_equal(copies_of(agent)["second_critic"], agent.weights()["second_critic.0.weight"])
    assert (copies_of(agent)["critic"] != agent.weights()["critic.0.weight"]).any()


def copies_of(agent: Agent) -> dict[str, np.ndarray]:
    weights = agent.target.weights()
    return {name: weights[f"{name}.0.weight"].copy() for name in ("critic", "second_critic")}


@pytest.mark.parametrize("tau", [0, -0.1, 1.5])
def test_an_impossible_tau_is_refused(tau: float) -> None:
    with pytest.raises(ConfigError, match="tau must be"):
        Target(tau=tau)


def test_a_target_of_everything_cannot_be_combined_with_others() -> None:
    with pytest.raises(ConfigError, match="a Target of the whole agent cannot be combined with others"):
        Learner(parts(), 0.01).train(critic_loss, ROWS, targets=[Target(), Target("critic")])


# The learner's state.


def target_loss(agent: Parts, batch: Batch) -> Tensor:
    """Depends on the target networks."""
    with torch.no_grad():
        wanted = agent.target.q_values(batch, batch["action"]) + 1  # type: ignore[operator]
    return (agent.q_values(batch, batch["action"]) - wanted).square().mean()


SEVERAL = {**OBJECTIVES, "critics": Objective(loss=target_loss, parts=CRITICS.parts, optimiser="rmsprop")}


def train_with_targets(learner: Learner) -> None:
    learner.train(SEVERAL, ROWS, num_epochs=2, num_minibatches=2, targets=TARGETS)


@pytest.mark.parametrize("trained", [0, 1, 3])
@pytest.mark.parametrize("prepared", [0, 1, 2], ids=lambda num: f"restored after {num} steps")
def test_a_restored_learner_trains_like_the_original(trained: int, prepared: int) -> None:
    """Whether it was saved before or after its first step, and restored into one that has trained or not."""
    learner, restored = Learner(parts(), 0.01, seed=3), Learner(parts(), 0.01, seed=4)
    for _ in range(trained):
        train_with_targets(learner)
    for _ in range(prepared):
        train_with_targets(restored)
    state = saved(learner.state())
    restored.restore(state)
    assert saved(restored.state()).keys() == state.keys()
    assert encode(restored.state())[0].keys() == encode(learner.state())[0].keys()
    for _ in range(2):
        for each in (learner, restored):
            train_with_targets(each)
    assert restored.agent.sha256() == learner.agent.sha256()
    assert restored.agent.target.sha256() == learner.agent.target.sha256()
    assert (
        (restored.version, restored.steps) == (learner.version, learner.steps) == (4 * (trained + 2), 8 * (trained + 2))
    )


def test_a_state_that_was_restored_can_be_saved_before_the_first_step() -> None:
    """A run may be saved again before the objectives are prepared."""
    learner = Learner(parts(), 0.01)
    train_with_targets(learner)
    between, restored = Learner(parts(), 0.01), Learner(parts(), 0.01)
    between.restore(saved(learner.state()))
    restored.restore(saved(between.state()))
    for each in (learner, restored):
        train_with_targets(each)
    assert restored.agent.sha256() == learner.agent.sha256()
    assert restored.agent.target.sha256() == learner.agent.target.sha256()


def test_a_saved_state_does_not_change_with_later_training() -> None:
    learner = Learner(parts(), 0.01)
    train_with_targets(learner)
    state = learner.state()
    before = pickle.dumps(state)
    train_with_targets(learner)
    assert pickle.dumps(state) == before


@pytest.mark.parametrize("copied", [lambda learner: pickle.loads(pickle.dumps(learner))], ids=["pickle"])
def test_a_sent_learner_trains_like_the_original(copied: Callable[[Learner], Learner]) -> None:
    """As for training on an actor: its targets follow its own agent."""
    learner = Learner(parts(), 0.01)
    train_with_targets(learner)
    other = copied(learner)
    for each in (learner, other):
        train_with_targets(each)
    assert other.agent.sha256() == learner.agent.sha256()
    assert other.agent.target.sha256() == learner.agent.target.sha256()
    train_with_targets(other)
    assert other.agent.target.sha256() != learner.agent.target.sha256()
