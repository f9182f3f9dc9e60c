"""What tests of Stats and of its report share: its counters' names, counts of one batch, a training that waited."""

from __future__ import annotations

from typing import Any

from solar.loader.stats import Stats

KEYS = {
    "epochs", "batches", "samples", "batch_bytes", "bytes", "bytes_mapped", "bytes_decoded", "requests", "calls",
    "bypassed", "retries", "skipped", "buffer_hits", "exchanged_bytes", "resident_bytes", "peak_bytes", "busy_seconds",
    "wait_seconds", "wait_share",
    "device_bytes", "device_peak_bytes", "device_copy_seconds", "device_decode_seconds",
    "device_hits", "device_resident_samples", "device_resident_bytes",
    "stage_requests", "stage_bytes", "stage_written",
}  # fmt: skip
MIB = 2**20


def counts(**changed: int) -> dict[str, int]:
    """What the engine says of one batch of 4 MiB."""
    plain = {
        "rows": 64, "requests": 8, "bypassed": 0, "bytes_read": 4 * MIB, "bytes_mapped": 0, "chunks_decoded": 0,
        "bytes_decoded": 0, "read_ns": 3000, "decode_ns": 0,
    }  # fmt: skip
    return plain | changed


def used(epochs: int = 1, batches: int = 100, busy: float = 6.0, waits: Any = None, **changed: int) -> Stats:
    """The Stats of a training that waited as told."""
    stats = Stats()
    for _ in range(batches):
        stats.batch(64, 4 * MIB, counts(**changed))
    for cause, seconds in (waits or {}).items():
        stats.waited(cause, seconds)
    stats.busy(busy)
    for _ in range(epochs):
        stats.epoch()
    return stats
