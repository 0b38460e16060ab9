"""Runs a call of any kind - plain, coroutine, generator, async generator - with something around."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Context = Callable[[], AbstractContextManager[None]]


def surrounded(
    run: Callable[[], Any],
    *,
    isasync: bool,
    isgenerator: bool,
    within: Context = nullcontext,
    closing: Callable[[], None] | None = None,
) -> Any:
    """Run a call and return what it returns, in the same kind.

    Args:
        run: The call; it returns a value, a coroutine, a generator or an async generator.
        isasync: It is one of the async kinds.
        isgenerator: It is one of the generators.
        within: The context in which its body runs.
        closing: Called after it, whatever happened; it may block, so never on an event loop.
    """
    if isasync and isgenerator:
        return _async_generator(run, within, closing)
    if isgenerator:
        return _generator(run, within, closing)
    if isasync:
        return _coroutine(run, within, closing)
    try:
        with within():
            return run()
    finally:
        if closing is not None:
            closing()


async def _coroutine(
    run: Callable[[], Any], within: Context, closing: Callable[[], None] | None
) -> Any:
    try:
        with within():
            return await run()
    finally:
        if closing is not None:
            await asyncio.to_thread(closing)


def _generator(
    run: Callable[[], Any], within: Context, closing: Callable[[], None] | None
) -> Iterator[Any]:
    try:
        with within():
            return (yield from run())
    finally:
        if closing is not None:
            closing()


async def _async_generator(
    run: Callable[[], Any], within: Context, closing: Callable[[], None] | None
) -> AsyncIterator[Any]:
    try:
        with within():
            generator = run()
            try:
                async for item in generator:
                    yield item
            finally:
                await generator.aclose()
    finally:
        if closing is not None:
            await asyncio.to_thread(closing)
