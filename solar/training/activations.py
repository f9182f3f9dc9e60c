"""compressed_activations: keeps what a model needs for its backward pass in fewer bytes."""

from __future__ import annotations

import difflib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from solar.training.bounds import COARSER, Choice
from solar.training.packed_tensor import Each, PackedTensor, ShapeAlone, SignsAlone, dense_tensor, has_boxes

SMALL = 4096  # numbers; tensors that have fewer are left alone
OF_THE_REST = 1.0  # bound of what `frequency` keeps beside the means, of its root mean square: some two bits
REAL = (torch.float32, torch.float64, torch.complex64, torch.complex128)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Modules whose backward pass reads what they save for its shape, or its signs, only; tests hold torch to it.
FOR_SHAPE = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool2d, nn.AvgPool3d)
FOR_SIGNS = (nn.ReLU, nn.LeakyReLU)
TWICE = (
    "a gradient of a gradient (create_graph=True) is asked for, and the activations behind it are not exact: take it "
    "outside of compressed_activations()"
)


class KeptActivations:
    """Counts what is kept at present: its bytes, and what they would be without compression."""

    def __init__(self) -> None:
        self.nbytes = self.exact_nbytes = 0
        self.peak_nbytes = self.exact_peak_nbytes = 0
        self.peak_restored_nbytes = 0  # what is kept, and with it the one tensor that backward has just restored
        self.shares: Mapping[str, float] = {}  # with bound="auto": the bounds, of each layer's root mean square

    def _add(self, nbytes: int, exact_nbytes: int) -> None:
        self.nbytes += nbytes
        self.exact_nbytes += exact_nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        self.exact_peak_nbytes = max(self.exact_peak_nbytes, self.exact_nbytes)


def compressed_activations(
    bound: Literal["auto"] | Mapping[str, float] = "auto",
    method: Literal["bounded", "frequency"] = "bounded",
    *,
    fraction: float = 0.1,
) -> AbstractContextManager[KeptActivations]:
    """Within it, what models keep for their backward pass is kept in fewer bytes; gradients change a little.

    `bounded`: each number is off by a bound at most. "auto" finds that of each layer, and finds it anew while training:
    all together change the gradient by at most `fraction` of what it is off because it is of one batch. A mapping gives
    the bounds of layers by their names in the model; what it does not name is kept as it is.

    `frequency`: the means of boxes of 4 pixels or voxels a side are kept as they are, and some two bits of the rest; or
    the rest within the bounds that are given.

    What is no activation is left alone: parameters, the model's inputs, small tensors, those on other devices than the
    CPU and of other types than float32, float64 and complex. Whole numbers come back bit for bit.

    >>> model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))
    >>> images = torch.rand(16, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> _ = model(images)
    >>> with compressed_activations({"": 0.01}) as kept:  # all of the model
    ...     model(images).mean().backward()
    >>> 3 * kept.peak_nbytes < kept.exact_peak_nbytes
    True
    """
    if method not in ("bounded", "frequency"):
        raise ValueError(f'method={method!r}: there are "bounded" and "frequency"')
    if isinstance(bound, Mapping):
        wrong = {name: value for name, value in bound.items() if not (_is_number(value) and 0 <= value < math.inf)}
        if wrong:
            raise ValueError(f"bound={wrong}: a bound is a number of 0 (bit for bit) or more")
    elif bound != "auto":
        given = repr(bound) if _is_number(bound) or isinstance(bound, str) else f"of {type(bound).__name__}"
        every = f' ({{"": {bound}}} for all)' if _is_number(bound) else ""
        raise ValueError(f'bound {given}: give "auto", or bounds by the names of layers: {{"conv1": 1e-3}}{every}')
    if not _is_number(fraction) or not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: it is a share of the gradient's noise, above 0 and at most 1")
    return compress_saved(bound, method, fraction)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@contextmanager
def compress_saved(bound: str | Mapping[str, float], method: str, fraction: float) -> Iterator[KeptActivations]:
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        packer = _Packer(bound, method == "frequency", fraction, pool.map if threads > 1 else map)
        apart: Callable[[Any], Any] = torch.compiler.disable  # torch.compile breaks its graphs there
        before = register_module_forward_pre_hook(apart(packer.enter))
        after = register_module_forward_hook(apart(packer.leave), always_call=True)
        try:
            with saved_tensors_hooks(apart(packer.pack), apart(packer.unpack)):
                yield packer.kept
        finally:
            before.remove()
            after.remove()
            packer.each = map  # what is unpacked later has no pool any more


class _Left:
    """A tensor that was saved as it is. Nobody may have written to it since."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.version = x, x._version

    def restored(self) -> torch.Tensor:
        if self.x._version != self.version:
            raise RuntimeError(
                f"a tensor of shape {tuple(self.x.shape)} that backward needs was written to in place after it had "
                "been saved: write to a copy"
            )
        return self.x


class _Memory:
    """Memory that was saved, in one way or several."""

    def __init__(self, of: StorageWeakRef) -> None:
        self.of = of  # as long as this is there, nobody else gets the memory's number


class _Block:
    """One compressed form of it."""

    def __init__(self, packed: ShapeAlone, layer: str, memory: _Memory) -> None:
        self.packed, self.layer, self.memory = packed, layer, memory


class _Saved:
    """A tensor in compressed memory, and how it lies there."""

    def __init__(self, block: _Block, x: torch.Tensor) -> None:
        self.block, self.shape, self.strides = block, x.shape, x.stride()


class _Packer:
    """The hooks, and the layer that is being computed."""

    def __init__(self, bound: str | Mapping[str, float], smooth: bool, fraction: float, each: Each) -> None:
        self.kept, self.each = KeptActivations(), each
        self._bounds = bound if isinstance(bound, Mapping) else None
        self._smooth, self._thread = smooth, threading.get_ident()
        self._choice = Choice(fraction) if self._bounds is None and not smooth else None
        if self._choice:
            self.kept.shares = self._choice.shares
        self._memories: weakref.WeakValueDictionary[Any, _Memory] = weakref.WeakValueDictionary()
        self._blocks: weakref.WeakValueDictionary[Any, _Block] = weakref.WeakValueDictionary()
        self._model: nn.Module | None = None
        self._names: dict[nn.Module, str] = {}
        self._running: list[nn.Module] = []  # the model, and what of it was called, the innermost last
        self._step: tuple[set[int], bool] = set(), False  # storages of the model's inputs; whether it is measured

    # --- which layer ----

    def enter(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        """Runs before a module is called."""
        if threading.get_ident() != self._thread or isinstance(module, DistributedDataParallel):
            return
        if not self._running:
            if module in self._names and module is not self._model:
                return  # a part of it is calculated once more, by torch.utils.checkpoint
            if not any(one.requires_grad for one in module.parameters()):
                return  # a loss
            if module is not self._model:
                self._begin(module)
            measured = self._choice is not None and torch.is_grad_enabled() and self._choice.begin()
            self._step = set(tensor_places(given)), measured
        self._running.append(module)

    def leave(self, module: nn.Module, given: tuple[Any, ...], output: Any) -> Any:
        """Runs after a module was called, even if it failed."""
        if threading.get_ident() != self._thread or module not in self._running:
            return None
        while self._running.pop() is not module:
            pass
        _, measured = self._step
        return self._look(output) if not self._running and measured and output is not None else None

    def _begin(self, model: nn.Module) -> None:
        if self._model is not None and self._choice is not None:
            raise ValueError(
                f'bound="auto" is for one model, and after {type(self._model).__name__} a {type(model).__name__} is '
                "called: let each have its own compressed_activations(), or give bounds"
            )
        names = model.named_modules()
        self._model, self._names = model, {module: name.replace("_orig_mod.", "") for name, module in names}
        for name in self._bounds or ():
            if name not in self._names.values():
                near = difflib.get_close_matches(name, self._names.values(), 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"the model {type(model).__name__} has no layer {name!r}{hint}")

    def _look(self, output: Any) -> torch.Tensor | None:
        """Returns the output of a step that is measured; its gradient is measured when it arrives."""
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f'bound="auto" looks at the gradient of what the model gives, which must be one tensor, not '
                f"{type(output).__name__}: give bounds by the names of layers"
            )
        if not output.requires_grad:
            return None
        copy, model, choice = output.clone(), self._model, self._choice
        assert model is not None and choice is not None

        def look(gradient: torch.Tensor) -> None:
            handle.remove()
            choice.look(model, output, gradient)

        handle = copy.register_hook(look)  # type: ignore[no-untyped-call]
        return copy

    # --- packing ----

    def pack(self, x: torch.Tensor) -> _Saved | _Left:
        """Returns what is kept in place of a tensor that autograd saves."""
        if not self._running or _is_parameter(x) or x.layout != torch.strided:
            return _Left(x)
        if x.untyped_storage().data_ptr() in self._step[0]:
            return _Left(x)
        with torch.no_grad():
            plain = x.detach().resolve_conj().resolve_neg()
            pack = self._how(plain)
            if pack is None:
                left = _Left(x)
                self._count(left, plain.nbytes, plain.nbytes)
                return left
            plain = dense_tensor(plain)
            return _Saved(self._block(plain, pack), plain)

    def _how(self, x: torch.Tensor) -> Callable[[torch.Tensor], ShapeAlone] | None:
        """Returns what packs a tensor; None if it is left alone."""
        ours = type(x) is torch.Tensor and x.device.type == "cpu"
        if not ours or not SMALL <= x.numel() <= x.untyped_storage().nbytes() // x.itemsize:
            return None
        inner = self._running[-1]
        module = None if inner._forward_pre_hooks else type(inner)  # which may save what they like in its name
        if module in FOR_SHAPE and x.is_floating_point():
            return ShapeAlone
        if module in FOR_SIGNS:
            return SignsAlone
        if x.dtype in WHOLE:
            return partial(PackedTensor, bound=0.0, each=self.each)
        smooth = self._smooth and has_boxes(x)
        bound = self._bound(x, smooth) if x.dtype in REAL else None
        if bound is None:
            return None
        return partial(PackedTensor, bound=bound, each=self.each, relative=self._bounds is None, smooth=smooth)

    def _bound(self, x: torch.Tensor, smooth: bool) -> float | None:
        """Returns the bound of a tensor that the current layer saves."""
        if self._choice is not None:
            return self._choice.share(self._layer(), x.numel())
        if self._bounds is None:
            return OF_THE_REST if smooth else None
        layer = self._layer()
        while layer and layer not in self._bounds:
            layer = layer.rpartition(".")[0]
        return self._bounds.get(layer)

    def _layer(self) -> str:
        """Returns the name of the innermost module that has one."""
        return next((self._names[one] for one in reversed(self._running) if one in self._names), "")

    def _block(self, x: torch.Tensor, pack: Callable[[torch.Tensor], ShapeAlone]) -> _Block:
        of = StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]
        key = of.cdata, x.storage_offset(), x.numel(), x.dtype, x._version
        how = pack if isinstance(pack, type) else PackedTensor
        block = self._blocks.get((key, how))
        if block is None:
            memory = self._memories.get(key)
            if memory is None:
                self._memories[key] = memory = _Memory(of)
                self._count(memory, 0, x.nbytes)
            self._blocks[key, how] = block = _Block(pack(x), self._layer(), memory)
            self._count(block, block.packed.nbytes, 0)
        return block

    def _count(self, held: _Left | _Memory | _Block, nbytes: int, exact_nbytes: int) -> None:
        self.kept._add(nbytes, exact_nbytes)
        weakref.finalize(held, self.kept._add, -nbytes, -exact_nbytes).atexit = False

    def unpack(self, saved: _Saved | _Left) -> torch.Tensor:
        """Returns the tensor, within its bound."""
        if isinstance(saved, _Left):
            return saved.restored()
        if torch.is_grad_enabled():
            raise ValueError(TWICE)
        block = saved.block
        coarse = self._choice is not None and self._choice.coarse == block.layer
        x = block.packed.restored(self.each, COARSER if coarse else 0.0)
        self.kept.peak_restored_nbytes = max(self.kept.peak_restored_nbytes, self.kept.nbytes + x.nbytes)
        return x.as_strided(saved.shape, saved.strides)


def _is_parameter(x: torch.Tensor) -> bool:
    """Returns whether a tensor is a parameter, or a view of one, such as its transpose."""
    whole = x._base if x._base is not None else x
    return whole.is_leaf and whole.requires_grad


def tensor_places(given: Any) -> Iterator[int]:
    """Yields where the tensors lie that a model gets as input."""
    if isinstance(given, torch.Tensor):
        if given.layout == torch.strided:
            yield given.untyped_storage().data_ptr()
    elif isinstance(given, (list, tuple, Mapping)):
        for one in given.values() if isinstance(given, Mapping) else given:
            yield from tensor_places(one)
