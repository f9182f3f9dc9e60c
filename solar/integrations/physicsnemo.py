"""solar in PhysicsNeMo's datapipes: a reader that takes the place of physicsnemo.datapipes.HDF5Reader.

    from physicsnemo.datapipes import DataLoader, Dataset
    from solar.integrations.physicsnemo import SolarReader

    loader = DataLoader(Dataset(SolarReader("train.h5", fields=["pressure", "velocity"])), batch_size=16)

In Hydra's configurations it is ${dp:SolarReader} once this module was imported.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from physicsnemo.datapipes.readers.base import Reader
from physicsnemo.datapipes.registry import register

from solar import H5Dataset
from solar.errors import LayoutError
from solar.io.hdf5.layouts import inspect

log = logging.getLogger("solar")

OPEN = 256  # files kept open where each is a sample of a shape of its own


@register()
class SolarReader(Reader):
    """Samples of HDF5 files for PhysicsNeMo, with the arguments, samples and metadata of its HDF5Reader.

    `path` is a file, whose samples are rows, or a directory, whose files (of `file_pattern`) are samples. `fields`
    names the datasets; None takes all of the first file. The threads of PhysicsNeMo's Dataset may read at the same
    time. Other than there a dataset with one number for each sample is read too, and fields must have as many samples.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        fields: Sequence[str] | None = None,
        file_pattern: str = "*.h5",
        pin_memory: bool = False,
        include_index_in_metadata: bool = True,
        page_cache: bool | None = None,
    ) -> None:
        super().__init__(pin_memory=pin_memory, include_index_in_metadata=include_index_in_metadata)
        self.path = Path(path)
        self._per_file = self.path.is_dir()
        self._files = sorted(self.path.glob(file_pattern)) if self._per_file else [self.path]
        if not self._files:
            raise LayoutError(f"{self.path}: no file matches file_pattern={file_pattern!r}")
        self.fields = _top_level(self._files[0]) if fields is None else list(fields)
        self._page_cache = page_cache
        self._open = lru_cache(OPEN)(self._open_dataset)
        self._all = self._together()

    def _open_dataset(self, *files: Path) -> H5Dataset:
        samples: Any = "files" if self._per_file else "rows"
        names = {name: name for name in self.fields}
        return H5Dataset(list(files), names, samples=samples, page_cache=self._page_cache)

    def _together(self) -> H5Dataset | None:
        """Returns all files as one dataset; None if they do not fit together, such as samples of different shapes."""
        try:
            return self._open_dataset(*self._files)
        except LayoutError as error:
            if len(self._files) == 1:
                raise
            log.info("%s: the files are read one by one: %s", self.path, error)
            return None

    def _load_sample(self, index: int) -> dict[str, torch.Tensor]:
        dataset, row = (self._open(self._files[index]), 0) if self._all is None else (self._all, index)
        return {name: torch.as_tensor(values) for name, values in dataset[row].items()}

    def __len__(self) -> int:
        return len(self._files) if self._all is None else len(self._all)

    def _get_field_names(self) -> list[str]:
        return list(self.fields)

    def _get_sample_metadata(self, index: int) -> dict[str, Any]:
        file = self._files[index if self._per_file else 0]
        return {"source_file": str(file), "source_filename": file.name}

    def close(self) -> None:
        super().close()
        self._open.cache_clear()

    def __repr__(self) -> str:
        mode = "directory" if self._per_file else "file"
        return f"SolarReader(path={self.path}, mode={mode}, len={len(self)}, fields={self.fields})"


def _top_level(file: Path) -> list[str]:
    """Returns the datasets of the root group of a file, as HDF5Reader finds them."""
    return [name for name in (path.lstrip("/") for path in inspect(file)) if "/" not in name]
