"""The learner: an agent, its objectives with their optimisers, and the gradient steps that it takes on a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raceway.agents.agent import Agent
from raceway.agents.policy import as_tensor
from raceway.agents.weights import Weights, copy_weights, weights_of_parts
from raceway.autograd.fast_paths import fast_paths_enabled
from raceway.autograd.row_blocks import BlockThreads
from raceway.autograd.tape import Tape, use_tape
from raceway.errors import ConfigError
from raceway.learner.active_objectives import ActiveObjective, check_disjoint
from raceway.learner.global_random import GlobalRandom
from raceway.learner.minibatches import minibatches
from raceway.learner.objectives import Loss, LossOutput, Metrics, Objective, Schedule, Target, check_loss_output
from raceway.learner.target_networks import TargetNetworks
from raceway.rl import (
    Batch,
    Layout,
    LinearSchedule,
    is_repeated,
    layout_of,
    num_steps,
    split_episodes,
    tree_map,
    without_episode_columns,
)

if TYPE_CHECKING:
    from raceway.learner.compiled_losses import CompiledLosses
    from raceway.learner.members import Members

VersionedWeights = tuple[int, Weights]
"""A version number, and the weights of that version."""
WHOLE_AGENT = "agent"
"""Name of the objective that trains all parts of an agent with one optimiser."""

_MAX_ACTIVATIONS = 1 << 19  # that a network computes at once: 2 MB


class TrainingOutput(NamedTuple):
    """The result of training on a batch."""

    metrics: Metrics
    """The means over all gradient steps, by name."""
    priorities: np.ndarray | None = None
    """The new priorities of the batch's rows, if the loss computed them."""


class Learner:
    """An agent in training, with its optimisers, target networks, device and threads.

    The number of threads is a setting and does not depend on the machine: it changes the last bits of gradients.

    Args:
        agent: the agent to train. It is moved to the device.
        lr: the learning rate, or a schedule of it over the progress of the run.
        threads: the number of threads for computing.
        max_grad_norm: the norm to which gradients are clipped.
        epsilon: Adam's epsilon.
        seed: the seed for shuffling minibatches, and of random numbers in losses.
        device: the torch device, such as `cpu` or `cuda`.
        remote: whether training runs on another thread or process than the one that sends weights. Each training step
            then publishes a copy of the weights.
        counts_updates: whether the progress of the run is counted in updates instead of environment steps.
        compiled: whether losses are compiled; see `CompiledLosses` for what they may do.
    """

    def __init__(
        self,
        agent: Agent,
        lr: float | Schedule,
        threads: int = 1,
        *,
        max_grad_norm: float | None = None,
        epsilon: float = 1e-8,
        seed: int = 0,
        device: str = "cpu",
        remote: bool = False,
        counts_updates: bool = False,
        compiled: bool = False,
    ) -> None:
        self.agent, self.threads, self.max_grad_norm = agent.to(device), threads, max_grad_norm
        self.epsilon, self.device, self.remote, self.counts_updates = epsilon, device, remote, counts_updates
        self.lr: Schedule = lr if callable(lr) else LinearSchedule(lr, lr, 1)
        self.steps = self.steps_before = 0
        """Progress of the run in environment steps: of all batches so far, or as the last batch said (`env_steps`);
        or in updates."""
        self.version = 0
        """The number of updates so far: gradient steps, or rounds of them if there are several objectives."""
        self.chunk_steps = max(_MAX_ACTIVATIONS // activations_per_step(agent), 1)
        self.random = torch.Generator().manual_seed(seed)
        """The generator of minibatches and of losses."""
        self.global_random = GlobalRandom(seed)
        self.objectives: dict[str, ActiveObjective] = {}
        self.targets: TargetNetworks | None = None
        self._restored: dict[str, Any] = {}  # states of objectives and targets that are not prepared yet
        self._published: VersionedWeights | None = None
        self._members: Members | None = None  # that compute the gradients of the current batch
        self.compiled = compiled and device == "cpu" and fast_paths_enabled() and not agent.actor.recurrent
        self._compiled_losses: CompiledLosses | None = None
        # Other operations are so short that handing them over takes longer than torch's own threads do.
        self._block_threads = BlockThreads(threads)
        self._has_convolutions = any(isinstance(module, nn.Conv2d) for module in agent.modules())

    def prepare(self, objectives: Mapping[str, Objective], targets: Sequence[Target] = ()) -> None:
        """Create the optimisers of objectives, and the target networks, unless they exist already."""
        if targets and self.targets is None:
            self.targets = TargetNetworks(self.agent, targets)
            if self._restored.get("target") is not None:
                self.targets.restore(self._restored.pop("target"))
        missing = {name: objective for name, objective in objectives.items() if name not in self.objectives}
        if not missing:
            return
        defaults: dict[str, Any] = {"lr": self.lr, "max_grad_norm": self.max_grad_norm, "epsilon": self.epsilon}
        created = {name: ActiveObjective(name, entry, self.agent, **defaults) for name, entry in missing.items()}
        check_disjoint([*self.objectives.values(), *created.values()])
        self.objectives |= created
        for name, objective in created.items():
            if name in self._restored.get("objectives", {}):
                objective.restore(self._restored["objectives"].pop(name))

    def whole_agent(self, optimiser: str | None = None) -> ActiveObjective:
        """Return the objective that trains all parts with one optimiser, for gradients that are computed elsewhere."""
        self.prepare({WHOLE_AGENT: Objective(loss=_no_loss, optimiser=optimiser)})
        return self.objectives[WHOLE_AGENT]

    @property
    def optimiser(self) -> Any:
        """The optimiser of the whole agent, if there is one objective for all its parts."""
        return self.whole_agent().optimiser

    def train(
        self,
        objectives: Loss | Mapping[str, Objective],
        batch: Batch,
        num_epochs: int = 1,
        num_minibatches: int = 1,
        targets: Sequence[Target] = (),
        members: Members | None = None,
    ) -> TrainingOutput:
        """Take a gradient step on every minibatch of every epoch, for every objective.

        A batch of whole episodes is one step, and its loss must be a mean over episodes: it is computed in chunks that
        fit into the caches, which takes two thirds of the time and much less memory.

        Args:
            objectives: the objectives in the order of their steps; or a loss that trains the whole agent.
            batch: the batch.
            num_epochs: passes over the batch.
            num_minibatches: minibatches of a pass, of each of the batches that were sampled from replay at once.
            targets: the target networks that are updated after each step.
            members: compute the gradients, of a loss that trains the whole agent, instead of this process.
        """
        self._members = members
        if not isinstance(objectives, Mapping):
            objectives = {WHOLE_AGENT: Objective(loss=objectives)}
        self.prepare(objectives, targets)
        active = [(self.objectives[name], objective.loss) for name, objective in objectives.items()]
        batch = self._count_steps(batch)
        if "num_batches" in batch:
            num_minibatches *= int(batch["num_batches"])
            batch = {name: column for name, column in batch.items() if name != "num_batches"}
        for objective, _ in active:
            objective.set_lr(self.steps_before)
        metrics, priorities = [], []
        episodes = layout_of(batch) is Layout.EPISODES
        generator = self.global_random.used_by(self.agent, [loss for _, loss in active])
        with self.own_threads(in_blocks=self.compiled and not episodes), generator:
            if episodes:
                if list(objectives) != [WHOLE_AGENT]:
                    names = ", ".join(objectives)
                    raise ConfigError(
                        f"a batch of whole episodes trains with one loss for the whole agent, not with the objectives "
                        f"{names}. Use fragments of a fixed number of steps."
                    )
                chunks, total = split_episodes(without_episode_columns(batch), self.chunk_steps), len(batch["length"])
                metrics.append(self.step(partial(self._chunk_loss, *active[0], chunk, total) for chunk in chunks))
                if self.targets is not None:
                    self.targets.update(self.version)
            else:
                rows = tensors_of(batch, self.device)
                for _ in range(num_epochs):
                    updates = [self._update(active, part) for part in minibatches(rows, num_minibatches, self.random)]
                    metrics += [update for update, _ in updates]
                    priorities = [part for _, part in updates if part is not None]
                if not is_repeated(batch):
                    self.agent.observe(rows)
        return TrainingOutput(mean_metrics(metrics), np.concatenate(priorities) if priorities else None)

    def _count_steps(self, batch: Batch) -> Batch:
        """Advance the progress of the run: by the steps of the batch, or to those that its `env_steps` says."""
        if self.counts_updates:
            self.steps_before = self.steps = self.version
            return batch
        self.steps_before = self.steps
        if "env_steps" not in batch:
            self.steps += num_steps(batch)
            return batch
        self.steps_before = self.steps = int(batch["env_steps"])
        return {name: column for name, column in batch.items() if name != "env_steps"}

    def _update(
        self, active: Sequence[tuple[ActiveObjective, Loss]], minibatch: Batch
    ) -> tuple[Metrics, np.ndarray | None]:
        """Take a step for every objective that is due, update the targets, and return metrics and priorities."""
        metrics, priorities = Metrics(), None
        self.version += 1
        for objective, loss in active:
            if self.version % objective.every:
                continue
            output = self._minimise(objective, loss, minibatch)
            metrics |= output.metrics
            if output.priorities is not None:
                priorities = output.priorities.detach().cpu().numpy()
        if self.targets is not None:
            self.targets.update(self.version)
        return metrics, priorities

    def _minimise(self, objective: ActiveObjective, loss: Loss, minibatch: Batch) -> LossOutput:
        """Take a step for one objective, and return what its loss returned, with its metrics by their full names."""
        if self._members is not None:
            metrics = self._members.compute_gradients(self, objective, minibatch)
            output = LossOutput(torch.tensor(metrics["loss"]))
        else:
            output = self.compute_gradients(objective, loss, minibatch)
            metrics = output.metrics
        metrics = {**metrics, **objective.clip_and_step()}
        for buffer, value in output.buffers:
            buffer.copy_(value)
        return output._replace(metrics=metrics)

    def compute_gradients(self, objective: ActiveObjective, loss: Loss, minibatch: Batch) -> LossOutput:
        """Set the gradients of an objective, and return what its loss returned, with its metrics by full names."""
        output = self._run_compiled(objective, loss, minibatch) if self.compiled else None
        if output is None:
            tape = Tape()
            with objective.isolated():
                with use_tape(tape):
                    output = check_loss_output(objective.call(loss, self.agent, minibatch, self.random), objective.name)
                tape.backward(output.value)
        return output._replace(metrics={objective.metric("loss"): float(output.value.detach()), **output.metrics})

    def _run_compiled(self, objective: ActiveObjective, loss: Loss, minibatch: Batch) -> LossOutput | None:
        """Compute a loss and its gradients by a compiled graph, or return None if it cannot be compiled."""
        if self._compiled_losses is None:
            from raceway.learner.compiled_losses import CompiledLosses  # a large import, which few runs need

            self._compiled_losses = CompiledLosses(self.agent)
        return self._compiled_losses.minimise(objective, loss, minibatch, self.random)

    def step(self, losses: Iterable[Callable[[], Any]]) -> Metrics:
        """Take one gradient step of the whole agent on the sum of some losses, computed one after the other."""
        objective = self.whole_agent()
        objective.optimiser.zero_grad()
        with self.own_threads():
            metrics = backward(losses)
            metrics |= objective.clip_and_step()
        self.version += 1
        return metrics

    def fit(self, batch: Batch) -> Metrics:
        """Update the agent by its own `fit(batch) -> metrics`, in closed form: without a loss and an optimiser."""
        metrics: Metrics = self.agent.fit(without_episode_columns(self._count_steps(batch)))
        self.version += 1
        return metrics

    def apply(self, gradients: Weights, num_steps: int = 0, optimiser: str | None = None) -> Metrics:
        """Take one gradient step with gradients of another process, computed from `num_steps` environment steps."""
        objective = self.whole_agent(optimiser)
        objective.optimiser.zero_grad()
        objective.set_lr(self.steps)
        self.steps += num_steps
        for name, parameter in self.agent.named_parameters():
            if name in gradients:
                parameter.grad.copy_(as_tensor(gradients[name]))  # type: ignore[union-attr]
        self.version += 1
        return objective.clip_and_step()

    def count_steps(self, num_steps: int) -> None:
        """Begin a batch of environment steps that are trained on elsewhere: set the learning rate, and count them."""
        self.whole_agent().set_lr(self.steps)
        self.steps_before = self.steps
        self.steps += num_steps

    def publish(self) -> VersionedWeights | None:
        """Publish a copy of the current weights if the learner is remote, and return the latest published ones."""
        if self.remote:
            self._published = self.version, copy_weights(self.agent.weights())
        return self._published

    @property
    def published_weights(self) -> VersionedWeights:
        """The weights for workers: the latest published, or the current ones if none were."""
        return self._published or (self.version, self.agent.weights())

    @property
    def published_version(self) -> int:
        """The version of the weights for workers."""
        return self.version if self._published is None else self._published[0]

    def worker_weights(self) -> Weights:
        """Return the weights for workers of the parts that they need."""
        parts = self.agent.worker_parts
        if self._published is None:
            return self.agent.weights(parts)
        weights = self._published[1]
        return weights if parts is None else weights_of_parts(weights, parts)

    def load_published(self, published: VersionedWeights) -> None:
        """Load weights that a remote learner has published, if they are newer than these."""
        version, weights = self._published = published
        if version > self.version:
            self.agent.load(weights)
            self.version = version

    def state(self) -> Any:
        """Return the state for a checkpoint. Later training does not change it."""
        objectives = {name: objective.state() for name, objective in self.objectives.items()}
        target = self._restored.get("target") if self.targets is None else self.targets.state()
        return {
            "policy": copy_weights(self.agent.weights()),
            "target": target,
            "objectives": {**self._restored.get("objectives", {}), **objectives},
            "steps": self.steps,
            "version": self.version,
            "random": self.random.get_state().numpy().copy(),
            "global_random": self.global_random.state,
        }

    def restore(self, state: Any) -> None:
        """Restore a state. Objectives and targets are created, and restored, when they are prepared."""
        self.agent.load(state["policy"])
        self.agent.remove_target()
        self.objectives, self.targets = {}, None  # a state from before the first step has none
        self._compiled_losses = None
        self.steps, self.version, self._published = state["steps"], state["version"], None
        self.random.set_state(torch.from_numpy(np.array(state["random"])))
        self.global_random.state = state.get("global_random")
        self._restored = {"target": state["target"], "objectives": dict(state["objectives"])}

    def _chunk_loss(self, objective: ActiveObjective, loss: Loss, chunk: Batch, num_episodes: int) -> Tensor:
        value = objective.call(loss, self.agent, tensors_of(chunk, self.device), self.random)
        assert isinstance(value, Tensor)
        return value * (len(chunk["length"]) / num_episodes)

    def lag_metrics(self, version: int | None) -> Metrics:
        """Return the metric `policy_lag`: the number of gradient steps since a version of the weights."""
        return {} if version is None else {"policy_lag": self.version - version}

    @contextmanager
    def own_threads(self, in_blocks: bool = False) -> Iterator[None]:
        """Compute with the learner's threads: blocks of rows on each, or else each operation of torch on all."""
        in_blocks = (in_blocks or self._has_convolutions) and self.threads > 1 and fast_paths_enabled()
        before = torch.get_num_threads()
        # After an operation, torch's other threads spin for a while: they would compete with those of the blocks.
        threads = 1 if in_blocks else self.threads
        if before != threads:
            torch.set_num_threads(threads)
        try:
            with self._block_threads.active() if in_blocks else nullcontext():
                yield
        finally:
            if before != threads:
                torch.set_num_threads(before)  # environments in the same process are stepped with one thread


class HasLearner:
    """Mixin for an operator with a learner: a remote learner is saved with the operator."""

    shared_by_runs = True  # of a flow: they continue with the learner as it is
    learner: Learner

    def state(self) -> Any:
        """Return the learner's state if it is remote; a local learner is saved separately."""
        return self.learner.state() if self.learner.remote else None

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.learner.restore(state)


def resolve_device(name: str) -> str:
    """Return the torch device for a setting. Raise ConfigError if it is not available."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"--device {name} cannot be used here: {error}. Use cpu, or auto.") from error
    return name


def gradients_of(agent: Agent, loss: Loss, batch: Batch) -> tuple[Weights, Metrics]:
    """Return the gradients of a loss by parameter name, and the metrics. The agent is not changed."""
    agent.zero_grad(set_to_none=True)
    metrics = backward([partial(loss, agent, tensors_of(batch))])
    gradients = {
        name: parameter.grad.numpy() for name, parameter in agent.named_parameters() if parameter.grad is not None
    }
    agent.zero_grad(set_to_none=True)
    return gradients, mean_metrics([metrics])


def backward(losses: Iterable[Callable[[], Any]]) -> Metrics:
    """Accumulate the gradients of some losses, and return the sum of the losses and the metrics of the last."""
    total, metrics, tape = 0.0, Metrics(), Tape()
    for loss in losses:
        with use_tape(tape):
            output = check_loss_output(loss(), "function")
        if output.buffers:
            raise ConfigError("buffers that a loss returns are set by TrainOneStep, and not where gradients are summed")
        metrics = output.metrics
        tape.backward(output.value)
        total += float(output.value.detach())
    return {"loss": total, **metrics}


def _no_loss(agent: Agent, batch: Batch) -> Tensor:
    raise ConfigError("this learner applies gradients that are computed elsewhere, and has no loss")


def tensors_of(batch: Batch, device: str = "cpu") -> Batch:
    """Return the rows of a batch as tensors on a device."""
    return tree_map(
        as_tensor if device == "cpu" else lambda array: as_tensor(array).to(device), without_episode_columns(batch)
    )


def mean_metrics(steps: list[Metrics]) -> Metrics:
    """Return the mean of every metric over some steps."""
    values_of: dict[str, list[Any]] = {}
    for metrics in steps:
        for name, value in metrics.items():
            values_of.setdefault(name, []).append(value.detach() if isinstance(value, Tensor) else value)
    return {name: math.fsum(map(float, values)) / len(values) for name, values in values_of.items()}


def activations_per_step(network: nn.Module) -> int:
    """Return the approximate number of activations per step: the outputs of all layers of a network.

    >>> activations_per_step(nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)))
    130
    """
    return sum(len(weight) for weight in network.parameters() if weight.ndim > 1) or 1
