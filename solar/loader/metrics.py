"""The counters of a loader for monitoring: Prometheus, TensorBoard, a progress bar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from solar.io.channels.progress import tqdm_bar
from solar.loader.stats import Stats

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")  # two underscores in front are Prometheus' own
OUR_LABELS = {"loader", "cause"}  # labels that we set

# (key of Stats.as_dict, name, type, help)
FAMILIES = (
    ("epochs", "solar_epochs_total", "counter", "Epochs that came to their end."),
    ("batches", "solar_batches_total", "counter", "Batches handed out."),
    ("samples", "solar_samples_total", "counter", "Samples handed out."),
    ("skipped", "solar_skipped_samples_total", "counter", "Samples that could not be read, and were left out."),
    ("batch_bytes", "solar_batch_bytes_total", "counter", "Bytes of the batches handed out."),
    ("bytes", "solar_read_bytes_total", "counter", "Bytes read from files or copied from the page cache."),
    ("bytes_mapped", "solar_mapped_bytes_total", "counter", "Of these, bytes copied from the page cache."),
    ("bytes_decoded", "solar_decoded_bytes_total", "counter", "Bytes that came out of the decoders."),
    ("requests", "solar_requests_total", "counter", "Requests to the storage, as solar plan counts them."),
    ("calls", "solar_calls_total", "counter", "Calls of the system that they took, or messages to a server."),
    ("retries", "solar_retries_total", "counter", "Calls of the system made again, for what failed may pass."),
    ("bypassed", "solar_bypassed_requests_total", "counter", "Of these, requests made past the page cache."),
    ("stage_requests", "solar_stage_requests_total", "counter", "Of the requests, those to a stage on a local disk."),
    ("stage_bytes", "solar_stage_bytes_total", "counter", "Of the bytes read, those from a stage on a local disk."),
    ("stage_written", "solar_stage_written_bytes_total", "counter", "Bytes written to a stage on a local disk."),
    ("buffer_hits", "solar_buffer_hits_total", "counter", "Fields of samples that were found in the buffer."),
    ("exchanged_bytes", "solar_exchanged_bytes_total", "counter", "Bytes of samples had from ranks of other nodes."),
    ("device_bytes", "solar_device_bytes_total", "counter", "Bytes sent to the device."),
    ("device_hits", "solar_device_hits_total", "counter", "Samples found on the device."),
    ("device_copy_seconds", "solar_device_copy_seconds_total", "counter", "Time of copying there, on its own clock."),
    ("device_decode_seconds", "solar_device_decode_seconds_total", "counter", "Time of decoding and casting there."),
    ("device_peak_bytes", "solar_device_peak_bytes", "gauge", "The most that ever waited on the device for the loop."),
    ("device_resident_samples", "solar_device_resident_samples", "gauge", "Samples that stay on the device."),
    ("device_resident_bytes", "solar_device_resident_bytes", "gauge", "Memory of the device that is taken for them."),
    ("resident_bytes", "solar_resident_bytes", "gauge", "Memory that batches take now."),
    ("peak_bytes", "solar_peak_bytes", "gauge", "The most memory that batches took."),
    ("busy_seconds", "solar_busy_seconds_total", "counter", "Time between a batch and the call for the next."),
    ("wait_seconds", "solar_wait_seconds_total", "counter", "Time the training waited for data, by cause."),
)


def prometheus_text(loaders: Any, labels: Mapping[str, str] | None = None) -> str:
    """Returns the counters of a loader (or its Stats) as Prometheus reads them, in its text format 0.0.4.

    A dict of several, {"train": loader, "validation": other}, labels each with its name: loader="train", ... All get
    `labels`.
    """
    shared = check_labels(labels or {})
    named = loaders if isinstance(loaders, Mapping) else {None: loaders}
    found = [({} if name is None else {"loader": str(name)}, totals_of(loader)) for name, loader in named.items()]
    lines: list[str] = []
    for key, family, kind, about in FAMILIES:
        lines += [f"# HELP {family} {about}", f"# TYPE {family} {kind}"]
        for own, totals in found:
            lines += [
                f"{family}{_braces(shared | own | cause)} {value}" for cause, value in counter_values(totals[key])
            ]
    return "\n".join(lines) + "\n"


def write_scalars(writer: Any, loader: Any, step: int, prefix: str = "solar/") -> None:
    """Writes the counters of a loader (or its Stats) to a TensorBoard SummaryWriter, or anything with add_scalar."""
    for key, value in totals_of(loader).items():
        for cause, number in counter_values(value):
            tag = "/".join((key, *(one.replace(" ", "_") for one in cause.values())))
            writer.add_scalar(f"{prefix}{tag}", number, step)


def serve(
    loaders: Any, *, port: int, host: str = "127.0.0.1", labels: Mapping[str, str] | None = None
) -> MetricsServer:
    """Answers Prometheus at http://host:port/metrics with `prometheus_text` of the moment, until it is closed.

    It is prometheus-client's server. Port 0 takes any free one (see `url`). The host must be given for others than this
    machine to see it.

    >>> with serve(Stats(), port=0) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # optional: only who serves metrics has it
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise ImportError("serve needs prometheus-client, which is missing: `pip install prometheus-client`") from error
    registry = CollectorRegistry(auto_describe=True)  # which collects once: what is wrong is said here
    registry.register(_Collector(lambda: text_string_to_metric_families(prometheus_text(loaders, labels))))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot serve metrics at {host}:{port}: {error.strerror}; choose another port (each process needs its "
            "own; 0 takes any free one)",
        ) from error
    return MetricsServer(server, thread, host)


class _Collector:
    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self.collect = collect


class MetricsServer:
    """The server that `serve` starts. `close`, or leaving the `with` block, ends its thread and frees the port."""

    def __init__(self, server: WSGIServer, thread: Thread, host: str) -> None:
        self._server, self._thread = server, thread
        self.host, self.port = host, server.server_port
        self.url = f"http://{host}:{self.port}/metrics"  # where Prometheus finds it

    def close(self) -> None:
        """Closes the server. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def progress(batches: Iterable[Any] | int | None, description: str = "") -> Any:
    """Returns a tqdm progress bar over batches; for a number (None: unknown), one that you update and close."""
    try:
        tqdm = tqdm_bar()
    except ImportError as error:
        raise ImportError("a progress bar was asked for and tqdm is not installed: `pip install tqdm`") from error
    given = {"total": batches} if batches is None or isinstance(batches, int) else {"iterable": batches}
    return tqdm(**given, desc=description or None, unit="batch")


def totals_of(loader: Any) -> Mapping[str, Any]:
    """Returns the counters of a Stats or of a loader."""
    if isinstance(loader, Stats):
        return loader.as_dict()
    totals = loader.stats() if callable(getattr(loader, "stats", None)) else None
    if isinstance(totals, Stats):
        return totals.as_dict()
    if not isinstance(totals, Mapping) or not {key for key, *_ in FAMILIES} <= totals.keys():
        raise TypeError(f"metrics are made of a solar DataLoader or its Stats, not of {type(loader).__name__}")
    return totals


def counter_values(value: Any) -> Iterator[tuple[dict[str, str], float]]:
    """Returns a counter's values, each with its labels."""
    if not isinstance(value, Mapping):
        yield {}, value
        return
    for cause, seconds in value.items():
        yield {"cause": cause}, seconds


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name in labels:
        if name in OUR_LABELS or not LABEL.fullmatch(name):
            raise ValueError(
                f"label {name!r}: a name is made of letters, digits and _, begins with no digit and no __, and is none "
                f"of {', '.join(sorted(OUR_LABELS))}, which solar sets"
            )
    return {name: str(value) for name, value in labels.items()}


def _braces(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
