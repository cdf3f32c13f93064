"""How the client for threads waits, connects and reads. ``_async/io.py`` does the same for coroutines."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import httpcore

from .._exchange import FirstBytes

T = TypeVar("T")

#: What may be given where many values are read one by one.
Many = Iterable[T]

_deadline: ContextVar[float | None] = ContextVar("countwheel_deadline", default=None)
#: So much is written between two looks at the deadline.
_SLICE = 16384


def pool(ssl_context: ssl.SSLContext | None) -> httpcore.ConnectionPool:
    """Connections, which are kept for less than the 30 s after which the service closes them."""
    return httpcore.ConnectionPool(
        ssl_context=ssl_context,
        max_connections=None,
        max_keepalive_connections=64,
        keepalive_expiry=15.0,
        network_backend=_Backend(),
    )


@contextmanager
def fail_after(seconds: float) -> Iterator[None]:
    """Ends every wait for the network within after so many seconds in all."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def each(values: Many[T]) -> Iterator[T]:
    """The values one by one."""
    yield from values


def _left(timeout: float | None, error: type[httpcore.TimeoutException]) -> float | None:
    """The shorter of a timeout of one read or write, and what is left until the deadline."""
    deadline = _deadline.get()
    if deadline is None:
        return timeout
    left = deadline - time.monotonic()
    if left <= 0:
        raise error("the time is over")
    return left if timeout is None else min(timeout, left)


class _Backend(httpcore.NetworkBackend):
    """The sockets of the standard library, whose timeouts end with the deadline.

    A timeout of a socket is for one read. A server that sends a byte at a time never exceeds it.
    """

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_tcp(host, port, left, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._first = FirstBytes()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        chunk = self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))
        self._first.look(chunk)
        return chunk

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _SLICE):
            left = _left(timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _SLICE], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
