"""The type of a cell from its counts: two layers, of which the first adds up the rows of those genes that it has."""

from __future__ import annotations

import torch
from torch import nn


class CellTypes(nn.Module):
    """Scores (N, types) of sparse counts (N, genes)."""

    def __init__(self, genes: int, types: int, width: int) -> None:
        super().__init__()
        self.genes = nn.EmbeddingBag(genes, width, mode="sum")
        nn.init.normal_(self.genes.weight, std=0.02)
        self.types = nn.Sequential(nn.ReLU(), nn.Linear(width, types))
        self.missed = nn.Dropout(0.5)  # rare cells come often: they are not to be known by heart

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        begins, copies = cells.crow_indices(), cells.values()
        each = begins.diff()
        whole = torch.segment_reduce(copies, "sum", lengths=each.long())
        share = torch.log1p(1e3 * copies / whole.repeat_interleave(each))  # cells of many copies are as good as others
        summed = self.genes(cells.col_indices(), begins[:-1], per_sample_weights=self.missed(share))
        scores: torch.Tensor = self.types(summed)
        return scores
