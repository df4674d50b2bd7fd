"""Compiled functions and their gradients are what torch computes; what cannot be compiled is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from raceway.compiler.compiled_function import Call, CompiledFunction
from raceway.compiler.recording import NotCompilable, record

ROWS, COLUMNS = 5, 6
MASK = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 3 == 0
INDEX = (torch.arange(ROWS * 2) * 7 % COLUMNS).reshape(ROWS, 2)
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda x, y: (2 * x + y / 3 - 1) * -y + (1 - x) / (1 + y.square()),
    "divided by powers of two": lambda x, y: (x / 4 + y / -0.5) / 1,
    "alpha": lambda x, y: torch.add(x, y, alpha=0.5) - torch.sub(x, y, alpha=2),
    "exponentials": lambda x, y: x.exp() + y.abs().add(1).log() + y.square().log1p() + x.sigmoid() * y.tanh(),
    "powers": lambda x, y: x**3 + (y.abs() + 1) ** 0.5 + (y.abs() + 1).rsqrt() + x.square(),
    "softplus": lambda x, y: functional.softplus(20 * x) + y,
    "relu and clamp": lambda x, y: x.relu() + y.clamp(-0.5, 0.5) + x.clamp(min=0.1) - y.clamp(max=0.2),
    "minimum": lambda x, y: torch.minimum(x, y) - torch.maximum(x, 2 * y),
    "comparisons": lambda x, y: torch.where((x > y) | (x < -1) & ~(y != 0), x, y) + (x >= 0).float() * y,
    "masks": lambda x, y: x.masked_fill(MASK, 0.5) * (y + MASK),
    "reductions": lambda x, y: x.sum(0) * y.mean(-1, keepdim=True) + (x * y).sum() - x.mean(),
    "extremes": lambda x, y: x.amax(-1) + y.amin(1) + x.max(1).values - y.min(-1).values + x.max(),
    "argmax": lambda x, y: x.gather(1, y.argmax(1, keepdim=True)) + y.gather(-1, x.argmin(-1)[:, None]),
    "softmax": lambda x, y: x.log_softmax(-1) * y.softmax(0) + torch.logsumexp(x, 1, keepdim=True),
    "layer norm": lambda x, y: functional.layer_norm(3 * x + 1, (COLUMNS,), y[0], y[1]) * y.sin(),
    "layer norm of two dimensions": lambda x, y: functional.layer_norm(torch.stack([x, y]), (ROWS, COLUMNS)),
    "layer norm of all dimensions": lambda x, y: functional.layer_norm(x, (ROWS, COLUMNS), y, y.cos()),
    "products": lambda x, y: (x @ y.T) @ (x @ y.T).T + functional.linear(x, y, y[:, 0]),
    "batches of products": lambda x, y: torch.baddbmm(y[:2, None, :5], x.expand(2, 5, 6), torch.stack([y.T, -y.T])),
    "shapes": lambda x, y: x.reshape(-1, 2).T.reshape(-1)[:, None] * y.unsqueeze(0).transpose(0, 2).flatten()[None],
    "slices": lambda x, y: x[1:3, 2:] * y[-2:, :4] + x[2][:4] + y[:, -1][1:3, None],
    "parts": lambda x, y: torch.cat([*x.split([2, 4], 1), y], 1) * torch.stack([x, y], 1).reshape(ROWS, -1),
    "unbind": lambda x, y: sum(x.unbind(1), start=y[:, 0]) + x.tensor_split([2], 1)[1].sum(1) + y.chunk(2, 1)[0].sum(1),
    "permute": lambda x, y: x.expand(3, ROWS, COLUMNS).permute(2, 0, 1) * y.T[:, None],
    "gather": lambda x, y: x.gather(1, INDEX) * y.gather(1, INDEX.flip(0)),
    "index select": lambda x, y: x.detach().index_select(1, INDEX[0]) * y[:, :2],
    "cumulative sums": lambda x, y: x.detach().cumsum(1) * y + y.detach().cumsum(-2),
    "scatter": lambda x, y: x.scatter_add(1, INDEX, y[:, :2]) * torch.zeros_like(x).scatter_add(1, INDEX, x[:, 2:4]),
    "rows of matrices": lambda x, y: (x[:, None] * y[None]).gather(1, INDEX[:, :1, None].expand(-1, 1, COLUMNS) % ROWS),
    "waves": lambda x, y: (x[..., None] * torch.arange(3)).cos().mean(-1) + y.sin(),
    "rounding": lambda x, y: (x - x.floor()) * (3 * y).floor().long().clamp(0, 2) + y.sign() * x.abs().sqrt(),
    "sort": lambda x, y: x.sort(-1).values[:, :3] * y.sort(1, descending=True).values[:, 3:],
    "huber": lambda x, y: functional.huber_loss(3 * x, y, delta=0.7) + functional.smooth_l1_loss(3 * x, y, beta=0.5),
    "losses by row": lambda x, y: functional.huber_loss(3 * x, y, reduction="none") + functional.mse_loss(x, y),
    "added in place": lambda x, y: (x * y).add_(y).mul_(2),
    "constants": lambda x, y: x * torch.arange(COLUMNS) + torch.ones_like(y) * torch.from_numpy(np.float32([2.0])),
    "detached": lambda x, y: x * y.detach() + x.clone().contiguous() * x.double().float(),
}  # fmt: skip


def inputs(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(ROWS, COLUMNS, generator=random) for _ in range(2))
    return x.requires_grad_(), y.requires_grad_()


def value_and_gradients(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    value = function(x, y)
    weights = torch.linspace(-1, 1, value.numel()).reshape(value.shape)
    gradients = torch.autograd.grad((value * weights).sum(), (x, y), allow_unused=True)
    names = ("gradient of x", "gradient of y")
    return {"value": value} | {n: each for n, each in zip(names, gradients, strict=True) if each is not None}


def compiled(function: Callable[[], dict[str, Tensor]], **named: Tensor) -> tuple[Call, dict[str, np.ndarray]]:
    """Compile a function, and return a call with the memory of its outputs."""
    recording = record(function, list(named.values()))
    call = Call(CompiledFunction(recording, named, recording.result))
    outputs = {name: np.empty_like(each.detach().numpy(), order="C") for name, each in recording.result.items()}
    for name, array in outputs.items():
        call.bind_output(name, array)
    return call, outputs


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    function = FUNCTIONS[name]
    x, y = inputs()
    call, outputs = compiled(lambda: value_and_gradients(function, x, y), x=x, y=y)
    others = inputs(seed=1)  # not those that it was recorded with
    for key, tensor in zip("xy", others, strict=True):
        if key in call.function.inputs:
            call.bind_input(key, tensor.detach().numpy())
    call.run()
    expected = value_and_gradients(function, *others)
    assert outputs.keys() == expected.keys()
    for key, wanted in expected.items():
        np.testing.assert_allclose(outputs[key], wanted.detach(), rtol=1e-5, atol=1e-5, err_msg=key)


def test_random_numbers_are_drawn_from_the_generator_at_every_call() -> None:
    x, _ = inputs()
    random = torch.Generator().manual_seed(3)
    call, outputs = compiled(lambda: {"value": x + torch.randn(ROWS, COLUMNS, generator=random)}, x=x)
    call.bind_input("x", x.detach().numpy())
    random.manual_seed(4)
    for _ in range(2):
        before = random.get_state()
        for name, draw in call.function.draws.items():
            call.copy_input(name, draw().numpy())
        call.run()
        again = torch.Generator()
        again.set_state(before)
        wanted = x.detach() + torch.randn(ROWS, COLUMNS, generator=again)
        np.testing.assert_array_equal(outputs["value"], wanted)


def test_random_numbers_may_fill_a_constant_tensor() -> None:
    x, _ = inputs()
    random = torch.Generator().manual_seed(3)
    call, outputs = compiled(lambda: {"value": x * torch.empty(ROWS, COLUMNS).geometric_(0.1, generator=random)}, x=x)
    call.bind_input("x", x.detach().numpy())
    (name,), again = call.function.draws, torch.Generator().manual_seed(4)
    random.manual_seed(4)
    for _ in range(2):
        call.copy_input(name, call.function.draws[name]().numpy())
        call.run()
        wanted = x.detach() * torch.empty(ROWS, COLUMNS).geometric_(0.1, generator=again)
        np.testing.assert_array_equal(outputs["value"], wanted)


def item(x: Tensor, y: Tensor) -> Tensor:
    return x * float(y.sum())


def branch(x: Tensor, y: Tensor) -> Tensor:
    return x if y.sum() > 0 else y


def change_input(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        y.mul_(2)
    return x * y


def change_shared(x: Tensor, y: Tensor) -> Tensor:
    product = (x * y).detach()
    row = product[0]
    row.mul_(2)
    return x * product


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (item, "reads a number"),
        (branch, "reads a number"),
        (change_input, "in place"),
        (change_shared, "in place"),
        (lambda x, y: functional.dropout(x) * y, "random numbers"),
        (lambda x, y: x.lgamma() * y, "no conversion of aten.lgamma"),
        (lambda x, y: (x * y).half().float(), "float16"),
    ],
)
def test_what_a_graph_cannot_do_is_refused(function: Any, message: str) -> None:
    x, y = inputs()
    with pytest.raises(NotCompilable, match=message):
        compiled(lambda: value_and_gradients(function, x, y), x=x, y=y)
