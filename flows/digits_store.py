"""A slow network store: files on disk, served over HTTP at a limited rate.

The rate is the kernel's: it paces the connection, so a reader truly waits for its bytes, as it
does for a busy file server or an object store across a thin line.
"""

from __future__ import annotations

import http.client
import io
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from digits_data import Digits

SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python's socket module does not name it
ETHERNET_SEGMENT_BYTES = 1400


class _PacedHandler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # one connection for all files

    def __init__(self, *args: object, bytes_per_second: int, **kwargs: object) -> None:
        self._bytes_per_second = bytes_per_second
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self._bytes_per_second)
        super().setup()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        pass


class DigitStore:
    """Batches of digits, one file each, that have to be fetched."""

    def __init__(self, port: int, batches: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def fetch(self, index: int) -> Digits:
        """Read one batch from the store; takes as long as its bytes need."""
        self._connection.request("GET", f"/batch-{index}.npz")
        with np.load(io.BytesIO(self._connection.getresponse().read())) as arrays:
            return Digits(arrays["images"], arrays["labels"])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def epoch(self, seed: int) -> Iterator[Digits]:
        """Read every batch once, in an order that the seed decides."""
        for index in np.random.default_rng(seed).permutation(self._batches):
            yield self.fetch(int(index))


@contextmanager
def serve(digits: Digits, *, batch_size: int, megabytes_per_second: float) -> Iterator[DigitStore]:
    """Put digits into a store and serve them until the block ends.

    Digits beyond the last full batch are left out, so that all steps are alike.
    """
    with tempfile.TemporaryDirectory(prefix="digits-") as directory:
        batches = len(digits.images) // batch_size
        for index in range(batches):
            part = slice(index * batch_size, (index + 1) * batch_size)
            np.savez(
                Path(directory, f"batch-{index}.npz"),
                images=digits.images[part],
                labels=digits.labels[part],
            )
        handler = partial(
            _PacedHandler,
            directory=directory,
            bytes_per_second=round(megabytes_per_second * 1e6),
        )
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            # The kernel paces whole segments, and those of the loopback device are huge.
            server.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, ETHERNET_SEGMENT_BYTES)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            store = DigitStore(server.server_address[1], batches)
            try:
                yield store
            finally:
                store.close()
                server.shutdown()
