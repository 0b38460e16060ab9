"""Runs a call of any kind - plain, coroutine, generator, async generator - inside something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


def _nothing(_urgent: bool) -> None:  # noqa: FBT001
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """What stands around a call.

    Attributes:
        isasync: The call returns a coroutine or an async generator.
        isgenerator: It returns a generator or an async generator.
        within: Makes the context in which its body runs.
        closing: Called after it, whatever happened; `True` when there is no time to lose, as on
            a cancellation. It may block, so it is never called on an event loop.
    """

    isasync: bool
    isgenerator: bool
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    closing: Callable[[bool], None] = _nothing

    def run(self, call: Callable[[], Any]) -> Any:
        """Run the call and return what it returns, in the same kind."""
        if self.isasync:
            return self._async_generator(call) if self.isgenerator else self._coroutine(call)
        return self._generator(call) if self.isgenerator else self._plain(call)

    def _plain(self, call: Callable[[], Any]) -> Any:
        urgent = False
        try:
            with self.within():
                return call()
        except BaseException as error:
            urgent = not isinstance(error, Exception)
            raise
        finally:
            self.closing(urgent)

    async def _coroutine(self, call: Callable[[], Any]) -> Any:
        urgent = False
        try:
            with self.within():
                return await call()
        except BaseException as error:
            urgent = not isinstance(error, Exception)
            raise
        finally:
            await asyncio.to_thread(self.closing, urgent)

    def _generator(self, call: Callable[[], Any]) -> Generator[Any, Any, Any]:
        urgent = False
        try:
            with self.within():
                return (yield from call())
        except BaseException as error:
            urgent = not isinstance(error, Exception)
            raise
        finally:
            self.closing(urgent)

    async def _async_generator(self, call: Callable[[], Any]) -> AsyncIterator[Any]:
        urgent = False
        try:
            with self.within():
                generator = call()
                try:
                    async for item in generator:
                        yield item
                finally:
                    await generator.aclose()
        except BaseException as error:
            urgent = not isinstance(error, Exception)
            raise
        finally:
            await asyncio.to_thread(self.closing, urgent)
