"""Kernels that decode chunks to batches on the device.

    heads = decoder.inspect(rows, lengths)                    # on the host, where the rows are before they are copied
    decoder.decode(on_device, lengths, heads, out)            # on the device, in its current stream

chunk.py, tables.py, entropy.py, sums.py, values.py and tiles.py are the kernels; launch.py alone imports them.
"""

from __future__ import annotations

from solar.device.kernels.decoder import Decoder
from solar.device.kernels.heads import Heads

__all__ = ["Decoder", "Heads"]
