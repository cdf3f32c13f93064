"""How the asynchronous client waits, connects and reads. ``_sync/io.py`` does the same for threads."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar, Union

import anyio
import httpcore

T = TypeVar("T")

#: What may be given where many values are read one by one.
Many = Union[Iterable[T], AsyncIterable[T]]


def pool(ssl_context: ssl.SSLContext | None) -> httpcore.AsyncConnectionPool:
    """Connections, which are kept for less than the 30 s after which the service closes them."""
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl_context, max_connections=None, max_keepalive_connections=64, keepalive_expiry=15.0
    )


def fail_after(seconds: float) -> AbstractContextManager[object]:
    """Raises ``TimeoutError`` if what is done within takes longer."""
    return anyio.fail_after(seconds)


async def sleep(seconds: float) -> None:
    await anyio.sleep(seconds)


async def each(values: Many[T]) -> AsyncIterator[T]:
    """The values one by one."""
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value
