"""The HDF5 filters that solar writes datasets with, for h5py and every other reader of HDF5.

Importing this makes libhdf5 find solar's own filter: h5py's, those of libraries imported later, and those of child
processes. Other programs find it by the folder that `python -m solar.filters` prints:

    export HDF5_PLUGIN_PATH=$(python -m solar.filters)

>>> import h5py, numpy, solar.filters
>>> file = h5py.File("doctest", "w", driver="core", backing_store=False)
>>> values = numpy.linspace(0, 1, 10000, dtype="f4")
>>> x = file.create_dataset("x", data=values, chunks=(10000,), **solar.filters.Bounded(abs=1e-3))
>>> bool(abs(x[:] - values).max() <= 1e-3) and x.id.get_storage_size() < values.nbytes / 5
True
"""

from __future__ import annotations

import sys

from solar.io.codec.codec import FILTER
from solar.io.codec.filters import FOLDER, NAMED, Bounded, filter_values, named, register

__all__ = ["FILTER", "FOLDER", "NAMED", "Bounded", "filter_values", "named", "register"]

register()

if __name__ == "__main__":
    sys.stdout.write(FOLDER + "\n")
