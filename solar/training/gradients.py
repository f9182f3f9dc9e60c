"""compressed_gradients: sends gradients between ranks in few bits."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SMALL = 4096  # numbers; layers that have fewer are sent as they are
SCALED = 512  # numbers with a scale of their own
FEW, MORE = 4, 8  # bits
MORE_BYTES = 0.25  # that "auto" spends, of the bytes that all layers take in FEW bits
CHOSEN_EVERY = 100  # steps, after which it chooses anew

Rows = torch.Tensor  # of SCALED numbers
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name since PyTorch 2.13


def compressed_gradients(
    model: DistributedDataParallel, bits: Literal["auto", 4, 8] = "auto", group: dist.ProcessGroup | None = None
) -> SentGradients:
    """Has the ranks of a model on CPUs send their gradients in so many bits; gives what counts the bytes.

    Each rank gets its share of all ranks' gradients, takes their mean, and sends that to all, both times in few bits:
    the ranks decode the same bytes, so that their parameters stay the same to the bit. What rounding has taken off is
    added to the next step's gradients. Vectors (biases, normalisation) and small layers are sent as they are.

    "auto" gives 8 bits to the layers where they save the most error for each byte, and 4 to the others.

    >>> sent = compressed_gradients(ddp_model, bits=4)  # doctest: +SKIP
    """
    if bits not in ("auto", FEW, MORE):
        raise ValueError(f'bits={bits!r}: give 4, 8 or "auto"')
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"model is a {type(model).__name__}: give it as DistributedDataParallel(model)")
    if any(one.device.type != "cpu" for one in model.parameters()):
        raise ValueError("the model is on a device; this has been tried on CPUs (gloo) only: leave it out there")
    exchange = SentGradients(model, bits, group)
    try:
        # Not the method itself: DDP compares annotations with types, and ours are text.
        model.register_comm_hook(None, lambda _, bucket: exchange.averaged(bucket))
    except RuntimeError as error:
        raise ValueError(f"the model has a hook for its gradients already, and takes one: {error}") from None
    return exchange


class SentGradients:
    """The sending of one model's gradients."""

    def __init__(self, model: DistributedDataParallel, bits: str | int, group: dist.ProcessGroup | None) -> None:
        self.sent_nbytes = 0  # by this rank to others, so far
        self.exact_nbytes = 0  # what it would have been with gradients as they are, in a ring
        self._group = model.process_group if group is None else group
        self._ranks = dist.get_world_size(self._group)
        self._names = {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}
        self._auto, self._steps = bits == "auto", 0
        first = FEW if bits == "auto" else int(bits)
        self._bits = {one: first for one in self._names if one.requires_grad and self._is_sent_short(one)}
        self._errors: dict[nn.Parameter, torch.Tensor] = {}  # that this rank has yet to make good
        self._mean_errors: dict[tuple[int, int], Rows] = {}  # the same for its share of the means, of bucket and bits
        self._largest: dict[nn.Parameter, float] = {}  # numbers of a layer's blocks, their mean square

    @property
    def bits(self) -> dict[str, int]:
        """The bits of the layers that are compressed."""
        return {self._names[one]: bits for one, bits in self._bits.items()}

    @staticmethod
    def _is_sent_short(one: torch.Tensor) -> bool:
        return one.dim() > 1 and one.numel() >= SMALL and one.dtype == torch.float32

    def averaged(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Returns the mean over ranks of the gradients in one of DDP's buckets."""
        if bucket.index() == 0:
            if self._auto and self._steps % CHOSEN_EVERY == 1:
                self._choose()
            self._steps += 1
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        exact = [gradient for one, gradient in pairs if one not in self._bits]
        if exact:
            self._average_exactly(exact)
        for bits in (FEW, MORE):
            some = [(one, gradient) for one, gradient in pairs if self._bits.get(one) == bits]
            if some:
                self._average(some, bits, bucket.index())
        self.exact_nbytes += 2 * bucket.buffer().nbytes * (self._ranks - 1) // self._ranks
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def _average_exactly(self, gradients: list[torch.Tensor]) -> None:
        flat = torch.cat([one.reshape(-1) for one in gradients]).div_(self._ranks)
        dist.all_reduce(flat, group=self._group)
        self.sent_nbytes += 2 * flat.nbytes * (self._ranks - 1) // self._ranks
        for one, mean in zip(gradients, torch.split_with_sizes(flat, [one.numel() for one in gradients]), strict=True):
            one.copy_(mean.view_as(one))

    def _average(self, layers: list[tuple[nn.Parameter, torch.Tensor]], bits: int, bucket: int) -> None:
        """Replaces the layers' gradients by their mean: each rank computes that of its share of the rows."""
        counts = [-(-one.numel() // SCALED) for one, _ in layers]
        share = -(-sum(counts) // self._ranks)
        rows, sizes = torch.zeros(share * self._ranks, SCALED), [*counts, share * self._ranks - sum(counts)]
        parts = list(zip(layers, torch.split_with_sizes(rows, sizes), strict=False))
        for (one, gradient), part in parts:
            own = part.view(-1)[: one.numel()]
            own.copy_(gradient.reshape(-1))
            if one in self._errors:
                own.add_(self._errors[one])
        sent = encode_rows(rows, bits)
        errors = (rows - decode_rows(sent, bits)).nan_to_num_(0.0, 0.0, 0.0)  # what is not finite would stay for ever
        for (one, _), part in zip(layers, torch.split_with_sizes(errors, sizes), strict=False):
            self._errors[one] = part.view(-1)[: one.numel()].clone()

        found = torch.empty_like(sent)
        dist.all_to_all_single(found, sent, group=self._group)
        mean = decode_rows(found, bits).view(self._ranks, share, SCALED).mean(0)
        before = self._mean_errors.get((bucket, bits))
        if before is not None and before.shape == mean.shape:  # else DDP has made its buckets anew
            mean += before
        encoded = encode_rows(mean, bits)
        self._mean_errors[bucket, bits] = (mean - decode_rows(encoded, bits)).nan_to_num_(0.0, 0.0, 0.0)
        ALL_GATHER(sent, encoded, group=self._group)
        self.sent_nbytes += 2 * encoded.nbytes * (self._ranks - 1)

        rows.copy_(decode_rows(sent, bits))
        for (one, gradient), part in parts:
            gradient.copy_(part.view(-1)[: one.numel()].view_as(gradient))
            if self._auto:
                self._largest[one] = float(part.abs().amax(1).square().mean())

    def _choose(self) -> None:
        """Chooses MORE bits for the layers whose blocks have the largest numbers, as far as MORE_BYTES allow, on rank
        0.

        A block's error is proportional to its largest number, so these save the most error for each byte that they
        cost.
        """
        bits = torch.full((len(self._bits),), FEW, dtype=torch.uint8)
        left = MORE_BYTES * sum(one.numel() for one in self._bits)
        order = list(self._bits)
        for number in sorted(range(len(order)), key=lambda number: -self._largest.get(order[number], 0.0)):
            if order[number].numel() <= left:
                left -= order[number].numel()
                bits[number] = MORE
        dist.broadcast(bits, dist.get_global_rank(self._group, 0), self._group)
        self._bits = dict(zip(order, bits.tolist(), strict=True))


def encode_rows(rows: Rows, bits: int) -> torch.Tensor:
    """Returns one row of bytes for each row: its scale, and its numbers as multiples of that."""
    most = (1 << (bits - 1)) - 1
    scales = rows.abs().amax(1, keepdim=True) / most
    whole = (rows / scales).nan_to_num_(0.0, 0.0, 0.0).round_().to(torch.int8).view(torch.uint8)
    if bits == FEW:
        whole = (whole[:, ::2] & 15) | (whole[:, 1::2] << 4)
    return torch.cat([scales.view(torch.uint8), whole], 1)


def decode_rows(sent: torch.Tensor, bits: int) -> Rows:
    scales, whole = sent[:, :4].contiguous().view(torch.float32), sent[:, 4:]
    if bits == FEW:
        halves = torch.stack([whole << 4, whole & 240], 2).view(len(sent), SCALED)
        return (halves.view(torch.int8) >> 4) * scales
    return whole.contiguous().view(torch.int8) * scales
