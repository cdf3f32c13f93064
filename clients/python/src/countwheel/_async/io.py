"""How the asynchronous client waits, connects and reads. ``_sync/io.py`` does the same for threads."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, Union

import anyio
import httpcore

from .._exchange import FirstBytes

T = TypeVar("T")

#: What may be given where many values are read one by one.
Many = Union[Iterable[T], AsyncIterable[T]]


def pool(ssl_context: ssl.SSLContext | None) -> httpcore.AsyncConnectionPool:
    """Connections, which are kept for less than the 30 s after which the service closes them."""
    return httpcore.AsyncConnectionPool(
        ssl_context=ssl_context,
        max_connections=None,
        max_keepalive_connections=64,
        keepalive_expiry=15.0,
        network_backend=_Backend(),
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


class _Backend(httpcore.AsyncNetworkBackend):
    """The sockets of anyio, with a look at their first bytes."""

    def __init__(self) -> None:
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner
        self._first = FirstBytes()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        chunk = await self._inner.read(max_bytes, timeout)
        self._first.look(chunk)
        return chunk

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
