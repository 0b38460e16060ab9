"""A network between workers and server that can be cut, stalled and healed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_HOST = "127.0.0.1"


class Proxy:
    """Passes TCP connections on to a port of this host, in a thread of its own."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._passing = asyncio.Event()
        self._passing.set()
        self._is_cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = self._call(asyncio.start_server(self._connected, _HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Reset every connection, and each new one at once."""

        def cut() -> None:
            self._is_cut = True
            for writer in list(self._writers):
                writer.transport.abort()

        self._do(cut)

    def stall(self) -> None:
        """Accept connections and data, and deliver nothing."""
        self._do(self._passing.clear)

    def heal(self) -> None:
        """Pass everything on again, what was kept back too."""

        def heal() -> None:
            self._is_cut = False
            self._passing.set()

        self._do(heal)

    def close(self) -> None:
        """End the thread and every connection."""

        async def close() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in list(self._writers):
                writer.transport.abort()

        self._call(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection(_HOST, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        try:
            await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        except asyncio.CancelledError:
            pass  # the proxy is closed
        finally:
            for each in (writer, there[1]):
                self._writers.discard(each)
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.transport.abort()

    def _do(self, action: Callable[[], None]) -> None:
        async def do() -> None:
            action()

        self._call(do())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
