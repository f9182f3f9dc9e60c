"""Compressed activations: gradients stay near the exact ones, and what is no activation is left alone."""

from __future__ import annotations

import doctest
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from solar.training import activations, compressed_activations
from solar.training.bounds import COARSER, EARLY, FEWEST, FIRST, MOST, Choice
from solar.training.packed_tensor import NUMBERS_AT_ONCE, PackedTensor, dense_tensor, has_boxes

X = torch.randn(8, 2, 24, 24, generator=torch.Generator().manual_seed(0))
Gradients = list[torch.Tensor]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 144, 4))


def gradients(model: nn.Module, x: torch.Tensor = X) -> Gradients:
    model.zero_grad()
    model(x).square().mean().backward()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def off(found: Gradients, exact: Gradients) -> float:
    """The length of the difference beside that of the exact gradient."""
    one, other = (torch.cat([part.flatten() for part in some]) for some in (found, exact))
    return float((one - other).norm() / other.norm())


# --- what is packed ----

SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(0, 3),
    "a part": lambda x: x[:, :, 3:19, ::2],
    "spread": lambda x: x[:1].expand(3, -1, -1, -1),
    "one axis of one": lambda x: x[:, :1],
    "double": lambda x: x.double(),
    "complex": lambda x: torch.complex(x, -x),
    "more than a piece": lambda x: x.repeat(NUMBERS_AT_ONCE // x.numel() + 2, 1, 1, 1),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("bound", [0.0, 0.01])
def test_each_number_is_within_the_bound_wherever_it_lies(kind: str, bound: float) -> None:
    x = dense_tensor(SHAPES[kind](X))
    back = PackedTensor(x, bound, map).restored(map)
    assert (back.shape, back.stride(), back.dtype) == (x.shape, x.stride(), x.dtype)
    parts = [torch.view_as_real(one) if one.is_complex() else one for one in (back, x)]
    assert float((parts[0].double() - parts[1].double()).abs().max()) <= bound
    assert bound or torch.equal(back, x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int64])
def test_whole_numbers_come_back_bit_for_bit_and_are_smaller(dtype: torch.dtype) -> None:
    x = (torch.arange(6000).reshape(20, 300).t() // 7 % 100).to(dtype)
    packed = PackedTensor(x, 0.0, map)
    assert torch.equal(packed.restored(map), x)
    assert packed.nbytes < x.nbytes / (1.1 if x.itemsize == 1 else 2)


@pytest.mark.parametrize("shape", [(2, 3, 4096), (3, 2, 37, 41), (2, 3, 11, 12, 13)])
def test_the_means_of_boxes_and_the_rest_give_the_values_within_the_bound(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).cumsum(-1)
    assert has_boxes(x)
    back = PackedTensor(x, 0.05, map, smooth=True).restored(map)
    assert float((back - x).abs().max()) <= 0.05 + 1e-4, "and what rounding makes of sums of float32"


def test_values_that_are_not_finite_come_back() -> None:
    x = X.clone()
    x[0, 0, :2] = torch.tensor([np.nan, np.inf, -np.inf] * 8)
    for relative in (False, True):
        back = PackedTensor(x, 0.1, map, relative).restored(map)
        assert torch.equal(back.isfinite(), x.isfinite())


# --- gradients ----


@pytest.mark.slow
def test_bounds_of_layers_give_gradients_near_the_exact_ones_in_fewer_bytes() -> None:
    model = network()
    exact = gradients(model)
    with compressed_activations({"": 0.01}) as kept:
        found = gradients(model)
    assert 0 < off(found, exact) < 0.01
    assert kept.peak_nbytes * 3 < kept.exact_peak_nbytes
    assert kept.peak_nbytes < kept.peak_restored_nbytes


def test_a_bound_of_nothing_gives_the_exact_gradients() -> None:
    model = network()
    exact = gradients(model)
    with compressed_activations({"": 0.0}):
        assert off(gradients(model), exact) == 0
    assert off(gradients(model), exact) == 0, "and so it is afterwards"


def test_a_layer_that_is_not_named_is_exact_and_the_nearest_name_counts() -> None:
    model = nn.Sequential(network(), nn.Identity())
    exact = gradients(model)
    with compressed_activations({"0.3": 0.5}):
        found = gradients(model)
    changed = [not torch.equal(one, other) for one, other in zip(found, exact, strict=True)]
    assert changed == [False, False, True, False, False, False], "of a convolution, only its own weights' gradient"
    with compressed_activations({"0": 0.5, "0.3": 0.0}):
        mixed = gradients(model)
    assert not torch.equal(mixed[4], exact[4])


def test_frequency_needs_fewer_bytes_for_smooth_values() -> None:
    model, x = network(), X.cumsum(2).cumsum(3) / 50
    exact = gradients(model, x)
    with compressed_activations(method="frequency") as kept:
        found = gradients(model, x)
    assert 0 < off(found, exact) < 0.3
    assert kept.peak_nbytes * 3 < kept.exact_peak_nbytes


def test_the_same_steps_give_the_same_bits() -> None:
    def run(threads: int) -> Gradients:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with compressed_activations():
                model = network()
                return [one for _ in range(FEWEST + 2) for one in gradients(model)]
        finally:
            torch.set_num_threads(before)

    first = run(1)
    assert all(torch.equal(one, other) for one, other in zip(first, run(1), strict=True))
    assert off(run(2), first) < 1e-5, "torch's own sums differ by the number of threads"


def test_the_inner_one_of_two_counts() -> None:
    model = network()
    exact = gradients(model)
    with compressed_activations({"": 0.5}) as outer:
        with compressed_activations({"": 0.0}) as inner:
            assert off(gradients(model), exact) == 0
        assert (outer.exact_peak_nbytes, inner.exact_peak_nbytes > 0) == (0, True)
        assert off(gradients(model), exact) > 0


def test_backward_may_come_after_the_end() -> None:
    model = network()
    exact = gradients(model)
    model.zero_grad()
    with compressed_activations({"": 0.01}) as kept:
        loss = model(X).square().mean()
    loss.backward()
    assert 0 < off([one.grad for one in model.parameters() if one.grad is not None], exact) < 0.01
    del loss
    gc.collect()
    assert (kept.nbytes, kept.exact_nbytes) == (0, 0), "nothing is kept of a step that is over"


READ_IN_PART = [
    *(nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.3), nn.LeakyReLU(0.3, inplace=True)),
    *(nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(3, 2), nn.MaxPool3d(2), nn.AvgPool3d(2)),
    nn.MaxPool1d(3),
]


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("layer", READ_IN_PART, ids=str)
def test_what_backward_reads_only_in_part_is_kept_in_part_and_the_gradient_is_exact(
    layer: nn.Module, last: bool
) -> None:
    axes = int(str(type(layer).__name__)[-2]) if "Pool" in type(layer).__name__ else 2
    shape = (2, 4, *{1: (4096,), 2: (64, 64), 3: (16, 16, 16)}[axes])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    if last and axes > 1:
        x = x.contiguous(memory_format=torch.channels_last if axes == 2 else torch.channels_last_3d)

    class Before(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(shape)), layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(x * self.scale)
            return found

    model = Before()
    exact = gradients(model, x)
    with compressed_activations({"": 0.5}) as kept:
        found = gradients(model, x)
    assert torch.equal(found[0], exact[0])
    assert kept.peak_nbytes * (4 if isinstance(layer, nn.MaxPool1d) else 8) < kept.exact_peak_nbytes


# --- what is left alone, and what is shared ----


class Twice(nn.Module):
    """Saves one tensor several times: as it is, turned, and as a flat view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 2, 24, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x * self.scale
        return (made * made).sum() + made.transpose(0, 3).square().sum() + made.flatten().tanh().sum()


def test_what_is_saved_twice_is_packed_once_and_inputs_and_parameters_are_not() -> None:
    with compressed_activations({"": 0.01}) as kept:
        loss = Twice()(X)
    assert kept.exact_peak_nbytes == 2 * X.nbytes, "what was made, and its tanh"
    loss.backward()


def test_inputs_in_a_dictionary_are_left_alone_too() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of = network()

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = self.of(batch["x"])
            return found

    counts = []
    for model, x in ((Named(), {"x": X}), (Named(), {"x": X + 0})):
        with compressed_activations({"": 0.01}) as kept:
            model(x)
        counts.append(kept.exact_peak_nbytes)
    with compressed_activations({"": 0.01}) as kept:
        network()(X)
    assert counts == [kept.exact_peak_nbytes] * 2


def test_a_value_written_over_later_is_that_of_the_moment_it_was_saved() -> None:
    class Over(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor, cut: int) -> torch.Tensor:
            made = (x * self.scale)[:cut]
            squared = (made * made).sum()
            made.mul_(2)
            return squared

    model = Over()
    with compressed_activations({"": 1e-6}):
        model(X, 8).backward()
        assert model.scale.grad is not None
        assert float(model.scale.grad) == pytest.approx(2 * float(X.square().sum()), rel=1e-5)
        small = model(X[:, :, :4, :4], 8)  # which is left alone, and so cannot be had as it was
        with pytest.raises(RuntimeError, match="was written to in place after it had been saved: write to a copy"):
            small.backward()


def test_halves_and_losses_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Tanh()).to(torch.bfloat16)
    with compressed_activations({"": 0.1}) as kept:
        model(X.bfloat16()).float().square().mean().backward()
    assert kept.exact_peak_nbytes == kept.peak_nbytes > 0
    with compressed_activations({"": 0.1}) as kept:
        nn.MSELoss()(X.clone().requires_grad_(), X + 1).backward()
    assert kept.exact_peak_nbytes == 0


def test_a_checkpointed_part_is_calculated_again_and_exact() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = network()[:5], network()[5:]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(checkpoint(self.first, x, use_reentrant=False))
            return found

    model = Part()
    exact = gradients(model)
    with compressed_activations({"": 0.01}):
        assert off(gradients(model), exact) < 0.01


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("bound", [{"": 0.01}, {"0": 0.01, "3": 0.01}, "auto"])
def test_a_compiled_model_is_packed_layer_by_layer_as_without(backend: str, bound: Any) -> None:
    def run(model: nn.Module) -> tuple[Gradients, int, dict[str, float]]:
        with compressed_activations(bound) as kept:
            found = [one for _ in range(FEWEST + 1) for one in gradients(model)]
        return found, kept.peak_nbytes, dict(kept.shares)

    model = network()
    exact, nbytes, shares = run(model)
    model.compile(backend=backend)
    found, compiled_nbytes, compiled_shares = run(model)
    assert off(found, exact) < 1e-3
    assert (compiled_nbytes, compiled_shares) == (pytest.approx(nbytes, rel=1e-2), pytest.approx(shares, rel=0.1))


# --- the choice of bounds ----


@pytest.mark.slow
def test_bounds_are_chosen_so_that_gradients_change_by_less_than_their_noise() -> None:
    model, rng = network(), torch.Generator().manual_seed(3)
    batches = [torch.randn(X.shape, generator=rng) + torch.randn(1, generator=rng) for _ in range(12)]
    with compressed_activations(fraction=0.1) as kept:
        for x in batches:
            gradients(model, x)
        shares = dict(kept.shares)
        found = [torch.cat([one.flatten() for one in gradients(model, x)]) for x in batches]
    exact = [torch.cat([one.flatten() for one in gradients(model, x)]) for x in batches]
    assert {"0", "3", "4"} & set(shares) and all(0 < one <= MOST for one in shares.values())
    assert any(one != FIRST for one in shares.values())
    noise = float(torch.stack(exact).var(0).sum().sqrt())
    change = float(torch.stack([a - b for a, b in zip(found, exact, strict=True)]).square().sum(1).mean().sqrt())
    assert 0 < change < 0.2 * noise, "twice what was asked for: the noise of four batches is known to a third"


def test_a_layer_that_matters_more_has_a_smaller_bound() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loud, self.quiet = nn.Conv2d(2, 8, 3), nn.Conv2d(2, 8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * self.loud(x + 1).square().mean((1, 2, 3)) + 0.01 * self.quiet(x + 1).square().mean((1, 2, 3))

    model, rng = Two(), torch.Generator().manual_seed(3)
    with compressed_activations(fraction=0.01) as kept:
        for _ in range(EARLY[1] + FEWEST):
            gradients(model, torch.randn(X.shape, generator=rng))
    assert 3 * kept.shares["loud"] < kept.shares["quiet"] <= MOST


def test_choices_are_made_early_and_then_now_and_then() -> None:
    choice = Choice(0.1)
    looked = [step for step in range(600) if choice.begin()]
    assert looked == [first + more for first in (0, 8, 32, 96, 256, 512) for more in range(FEWEST)]
    assert COARSER > 1


def test_the_example_of_the_docstring_runs() -> None:
    found = doctest.testmod(activations)
    assert found.attempted > 3 and found.failed == 0


# --- what is refused ----


def test_a_gradient_of_a_gradient_is_refused_in_words() -> None:
    model = network()
    with compressed_activations({"": 0.01}):
        loss = model(X).square().mean()
    with pytest.raises(ValueError, match=r"create_graph=True.*outside of compressed_activations"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"bound": 0.1}, 'give "auto", or bounds by the names of layers.*for all'),
        ({"bound": nn.Identity()}, 'bound of Identity: give "auto"'),
        ({"bound": {"0": "a"}}, "a bound is a number of 0"),
        ({"fraction": "x"}, "a share of the gradient's noise"),
        ({"bound": {"0": -1.0}}, "a bound is a number of 0"),
        ({"bound": {"0": float("nan")}}, "a bound is a number of 0"),
        ({"method": "sparse"}, 'there are "bounded" and "frequency"'),
        ({"fraction": 0.0}, "a share of the gradient's noise"),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compressed_activations(**asked)


def test_a_name_that_the_model_has_not_is_refused_with_the_nearest() -> None:
    model = nn.ModuleDict({"conv1": nn.Conv2d(2, 2, 3)})
    model.forward = model["conv1"].forward  # type: ignore[method-assign]
    with (
        compressed_activations({"conv": 0.1}),
        pytest.raises(ValueError, match="no layer 'conv'; did you mean 'conv1'"),
    ):
        model(X)


def test_auto_refuses_two_models_and_several_outputs() -> None:
    class Two(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, x

    with compressed_activations():
        network()(X)
        with pytest.raises(ValueError, match="for one model"):
            nn.Linear(24, 2)(X)
    with compressed_activations(), pytest.raises(ValueError, match="must be one tensor, not tuple"):
        Two(24, 1)(X)
