"""AnnData: sparse rows of an .h5ad file to a classifier of cells, exactly shuffled; beside scDataset.

python -m examples.recipes.anndata_cells [--compare] [--scanpy]
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas
import scipy.sparse
import torch
from anndata.io import sparse_dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from examples.cells import data as cells
from examples.cells.model import CellTypes
from examples.recipes import side_by_side
from examples.recipes.side_by_side import SEED, Steps
from solar import CSR, DataLoader, H5Dataset, PlanSampler

READERS = {"scdataset": "scDataset over AnnData's rows", "memory": "AnnData in RAM", "solar": "solar"}
GENES, TYPE = 2000, "/obs/cell_type/codes"


def make(path: Path, asked: Any) -> None:
    """Counts as examples/cells makes them, in a file that AnnData writes; normalised by scanpy if that is asked for."""
    active, blocks, types = cells.activities(SEED, GENES), [], []
    for block in range(0, asked.samples, cells.BLOCK):
        some, counts = cells.make_cells(np.random.default_rng([SEED, block]), active, cells.BLOCK)
        types.append(some)
        blocks.append(scipy.sparse.csr_matrix(counts))
    of = pandas.Categorical.from_codes(np.concatenate(types)[: asked.samples], [*cells.SHARES])
    names = [f"cell-{cell}" for cell in range(asked.samples)]
    found = anndata.AnnData(
        scipy.sparse.vstack(blocks, "csr")[: asked.samples], pandas.DataFrame({"cell_type": of}, names)
    )
    if asked.scanpy:
        import scanpy  # large, and only this needs it

        scanpy.pp.normalize_total(found, target_sum=1e4)
        scanpy.pp.log1p(found)
    found.write_h5ad(path, compression="gzip")


class Rows:
    """What scDataset takes: AnnData's rows of the file, opened in each process, with the types and numbers of these."""

    def __init__(self, path: Path) -> None:
        self.path, self.process, self.matrix = str(path), -1, None
        with h5py.File(path) as file:
            self.types = file[TYPE][()]

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: Any) -> Chosen:
        if self.process != os.getpid():
            self.process, self.matrix = os.getpid(), sparse_dataset(h5py.File(self.path, rdcc_nbytes=2**28)["X"])
        return Chosen(self.matrix[rows], self.types[rows])


class Chosen:
    """Some rows, of which batches are taken."""

    def __init__(self, matrix: Any, types: Any) -> None:
        self.matrix, self.types = matrix, types

    def __getitem__(self, rows: Any) -> Chosen:
        return Chosen(self.matrix[rows], self.types[rows])

    def __len__(self) -> int:
        return len(self.types)

    __getitems__ = __getitem__  # of all rows, torch's loader asks for a batch at once


def tensors(rows: Chosen) -> dict[str, torch.Tensor]:
    """As solar's batches are."""
    parts = (torch.from_numpy(part) for part in (rows.matrix.indptr, rows.matrix.indices, rows.matrix.data))
    return {"cell": torch.sparse_csr_tensor(*parts, rows.matrix.shape), "type": torch.from_numpy(rows.types)}


def batches(path: Path, asked: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Of all epochs."""
    if asked.reader == "solar":
        data = H5Dataset(path, {"cell": CSR("/X"), "type": TYPE})
        order = PlanSampler(data, seed=SEED, drop_last=True)
        loader: Any = DataLoader(data, asked.batch_size, sampler=order, drop_last=True, epochs=asked.epochs)
        for epoch in range(asked.epochs):
            loader.set_epoch(epoch)
            yield from loader
    elif asked.reader == "memory":
        read = anndata.read_h5ad(path)
        rows: Any = Chosen(read.X, np.ascontiguousarray(read.obs["cell_type"].cat.codes.values))
        order: Any = DistributedSampler(rows, 1, 0, seed=SEED, drop_last=True)
        loader = torch.utils.data.DataLoader(rows, asked.batch_size, sampler=order, drop_last=True, collate_fn=tensors)
        for epoch in range(asked.epochs):
            order.set_epoch(epoch)
            yield from loader
    else:
        from scdataset import BlockShuffling, scDataset  # only this reader needs it

        setting = {"fetch": 16, "workers": 0} | asked.setting
        loader = scDataset(
            Rows(path), BlockShuffling(block_size=1), asked.batch_size, setting["fetch"], drop_last=True, seed=SEED,
            batch_transform=tensors,
        )  # fmt: skip
        if workers := setting["workers"]:
            more = {"num_workers": workers, "prefetch_factor": setting["fetch"], "persistent_workers": True}
            loader = torch.utils.data.DataLoader(loader, batch_size=None, **more)
        for _ in range(asked.epochs):
            yield from loader


def train(path: Path, asked: Any) -> dict[str, Any]:
    torch.manual_seed(SEED)
    network, steps = CellTypes(GENES, len(cells.SHARES), 32), Steps()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for batch in batches(path, asked):
        loss = cross_entropy(network(batch["cell"]), batch["type"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.note(loss.item())
    return steps.told(asked)


def tuned(path: Path, asked: Any) -> dict[str, Any]:
    """How many batches scDataset fetches at once, and by how many workers."""
    settings = [{"fetch": fetch, "workers": workers} for fetch in (16, 64, 256) for workers in (0, 2)]
    return {"scdataset": side_by_side.fastest(batches, path, asked, "scdataset", settings)}


def alike(path: Path, asked: Any) -> bool:
    """Whether all readers give the same rows with the same types, each once. Their orders differ."""
    found = []
    for reader in READERS:
        of = side_by_side.changed(asked, reader=reader, epochs=1, batch_size=1, setting={"fetch": 1024})
        found.append(sorted(checksum(batch) for batch in batches(path, of)))
    return len(found[0]) == asked.samples and all(one == found[0] for one in found)


def checksum(batch: dict[str, torch.Tensor]) -> int:
    """Of one cell."""
    cell = batch["cell"]
    parts = (cell.col_indices().numpy().astype("i8"), cell.values().numpy(), batch["type"].numpy())
    return zlib.crc32(b"".join(part.tobytes() for part in parts))


def main(argv: list[str] | None = None) -> int:
    given = {"flags": {"scanpy": "normalise by scanpy before the file is written"}, "suffix": ".h5ad"}
    given |= {"readers": READERS, "samples": 16384}
    return side_by_side.main("anndata_cells", __doc__, argv, make, train, tuned, alike, **given)


if __name__ == "__main__":
    raise SystemExit(main())
