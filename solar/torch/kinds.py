"""What a data set is made of: the Layouts of its fields, and where its samples lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from solar.errors import LayoutError
from solar.io.crops import Crops
from solar.io.field import Field
from solar.io.layout.hdf5 import Samples, inspect
from solar.io.layout.index import Folder
from solar.io.layout.paths import Paths
from solar.io.libhdf5.mpio import By, by_mpio
from solar.io.lying import Lying, lying_of
from solar.io.ragged import CSR, Columns, Ragged
from solar.io.windows import Windows
from solar.torch.batch.pending import leaves, mapped
from solar.torch.ragged import inspected


def lying(
    path: Paths, fields: Any, samples: Any, reader: By, cache: Folder, together: bool
) -> tuple[Any, Sequence[Lying | Columns]]:
    """The Layouts of the fields, in their structure; and of each of them where its samples lie."""
    given = [field if isinstance(field, Field) else None for field in leaves(fields)]
    look: dict[str, Any] = {"cache": cache, "together": together}
    # Where samples do not lie along the first axis, how long that is need not be the same for all.
    elsewhere = isinstance(samples, Crops) or any(field and field.axis is not None for field in given)
    unequal = any(isinstance(field, Ragged | CSR) for field in leaves(fields))
    if unequal and (elsewhere or isinstance(samples, Windows) or any(field and field.steps for field in given)):
        other = "crops and slices" if elsewhere else "windows"
        raise LayoutError(f"{other} and fields of unequal length do not go together: make a data set of each")
    kind: Samples = "rows" if isinstance(samples, Windows | Crops) else samples
    columns: Sequence[Lying | Columns] = []
    if elsewhere:
        names = mapped(fields, lambda field: field.name if isinstance(field, Field) else field)
        found = mapped(names, partial(inspect, path, samples=kind, **look))
    else:
        found, columns = inspected(path, fields, kind, cache, together)
    layouts = mapped(found, lambda layout: by_mpio(layout, reader))
    return layouts, columns if unequal else lying_of(path, leaves(layouts), given, samples, look)
