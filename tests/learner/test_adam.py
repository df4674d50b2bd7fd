"""Adam and RAdam, against torch's implementation."""

import pytest
import torch
from torch import nn

from raceway.learner.adam import _MIN_FUSED, Adam, RAdam


@pytest.mark.parametrize(("optimiser_class", "lr"), [(Adam, 0.01), (RAdam, 1e-4)])  # RAdam's first steps are large
@pytest.mark.parametrize("width", [8, _MIN_FUSED // 4])
def test_steps_equal_those_of_torch(width: int, optimiser_class: type[Adam], lr: float) -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    unused = nn.Parameter(torch.ones(2))
    adam = optimiser_class([*ours.parameters(), unused], lr, epsilon=1e-3)
    torch_adam = getattr(torch.optim, optimiser_class.__name__)(theirs.parameters(), lr, eps=1e-3)
    for _ in range(20):
        inputs = torch.randn(5, 3)
        for network, optimiser in ((ours, adam), (theirs, torch_adam)):
            optimiser.zero_grad()  # type: ignore[attr-defined]
            network(inputs).square().sum().backward()
            optimiser.step()  # type: ignore[attr-defined]
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)
    assert unused.tolist() == [1, 1]
    adam.zero_grad()
    assert not any(parameter.grad.any() for parameter in ours.parameters())  # type: ignore[union-attr]


def test_the_norm_of_the_gradient_is_clipped() -> None:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1, dtype=torch.float64))]
    adam = Adam(parameters, 0.01)
    parameters[0].grad.copy_(torch.tensor([0.0, 3.0]))  # type: ignore[union-attr]
    parameters[1].grad.copy_(torch.tensor([4.0]))  # type: ignore[union-attr]
    assert adam.clip_grad_norm(1.0) == 5.0
    assert [parameter.grad.tolist() for parameter in parameters] == [[0.0, pytest.approx(0.6)], [0.8]]  # type: ignore[union-attr]
    assert adam.clip_grad_norm(2.0) == pytest.approx(1.0)  # small enough already
    adam.step()
    assert parameters[0].tolist() == [0.0, pytest.approx(-0.01)]
