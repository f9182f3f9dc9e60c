"""GroupNames: the names of many groups in little memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class GroupNames:
    """The names of many groups, one after another, without an object for each."""

    text: bytes
    begins: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.begins) - 1

    def __getitem__(self, number: int) -> str:
        begin, end = self.begins[number : number + 2].tolist()
        return self.text[begin:end].decode(errors="surrogateescape")
