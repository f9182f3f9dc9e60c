"""Reads integers of our codec as float32, cast while their chunks are decoded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solar.io.reading.encoded import CODES, only_ours
from solar.samples.field import Field
from solar.values import Filter, Form, Layout

CAST = 65534  # native/include/solar/codec.hpp: chunks of our codec, decoded as float32; in no file


def without_conversion(layout: Layout, field: Field | None) -> tuple[Layout, Field | None]:
    """Returns the Layout to read and the Field to apply: decoding itself may cast to float32."""
    alone = field is not None and field.only(dtype=np.float32)
    view = as_float32(layout) if alone else None
    return (layout, field) if view is None else (view, None)


def as_float32(layout: Layout) -> Layout | None:
    """Returns the same samples as float32, with the values of `astype`; None if they are not integers of our codec.

    The integers are never in memory: each row of a tile is cast in the processor's registers. Reading a chunk whose
    type is not that of `layout` raises a CodecError.
    """
    whole = layout.dtype.isnative and layout.dtype.kind in "iu" and layout.dtype.str[1:] in CODES
    if layout.reader != "direct" or not only_ours(layout) or not whole or layout.chunk_mask.any():
        return None
    code = CODES[layout.dtype.str[1:]]
    forms = (
        Form(
            form.chunk,
            (Filter(CAST, 0, (*form.filters[0].values, code)),),
            np.frombuffer(form.fill, layout.dtype).astype(np.float32).tobytes(),
        )
        for form in layout.forms
    )
    return replace(layout, dtype=np.dtype(np.float32), forms=tuple(forms))
