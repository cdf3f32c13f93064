"""The real service, servers that misbehave, and one way to ask both clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from inspect import isasyncgenfunction
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from countwheel import AsyncClient, Client, Retries

BINARY = os.environ.get("COUNTWHEEL", "countwheel")
#: How long is waited for what comes soon on an idle machine.
PATIENCE = 30.0


class Service:
    """The program on a data directory of its own, which may be killed and started again at its address."""

    def __init__(self, *options: str, token: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="countwheel-")
        self._options = options
        self._token = token
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COUNTWHEEL")}
        if self._token is not None:
            environment["COUNTWHEEL_TOKEN"] = self._token
        self._process = subprocess.Popen(
            [BINARY, "serve", "--data", self._folder.name, "--listen", self._listen, *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready http://"), f"{BINARY} said {line!r}"
        self.url = line.split()[1]
        self._listen = self.url.removeprefix("http://")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stub:
    """Takes connections, and does with each what ``act`` says. Closes a connection when ``act`` returns."""

    def __init__(self, act: Callable[[socket.socket, int], None]) -> None:
        self._act = act
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            number = self.connections
            self.connections += 1
            threading.Thread(target=self._serve, args=(peer, number), daemon=True).start()

    def _serve(self, peer: socket.socket, number: int) -> None:
        with peer:
            peer.settimeout(PATIENCE)
            try:
                self._act(peer, number)
            except OSError:
                pass

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_request(peer: socket.socket) -> bytes:
    """A whole request of a connection; nothing if there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = peer.recv(65536)
        if not chunk:
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += peer.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(status: str, body: bytes, kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def closed_port() -> str:
    """The URL of a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return "http://127.0.0.1:%d" % server.getsockname()[1]


def answers(*texts: bytes) -> Callable[[socket.socket, int], None]:
    """Answers one request after the other, over all connections; the last one goes on."""
    lock, left = threading.Lock(), list(texts)

    def act(peer: socket.socket, number: int) -> None:
        while read_request(peer):
            with lock:
                text = left.pop(0) if len(left) > 1 else left[0]
            peer.sendall(text)

    return act


class ThroughTasks:
    """Asks the asynchronous client as if it were the other one, so that the same tests are for both."""

    def __init__(self, portal: BlockingPortal, client: AsyncClient) -> None:
        self._portal = portal
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name == "close":
            return partial(self._portal.call, self._client.aclose)
        method = getattr(self._client, name)
        if name == "with_options":
            return lambda **options: ThroughTasks(self._portal, method(**options))
        if isasyncgenfunction(method):
            return lambda *given, **named: self._iterate(method(*given, **named))
        return lambda *given, **named: self._portal.call(partial(method, *given, **named))

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._portal.call(values.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._portal.call(values.aclose)  # type: ignore[attr-defined, call-arg]


class BothClients(unittest.TestCase):
    """Tests that ask either client."""

    portal: BlockingPortal

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        # Python 3.10 has no `enterClassContext`.
        opened = start_blocking_portal()
        cls.portal = opened.__enter__()
        cls.addClassCleanup(opened.__exit__, None, None, None)

    def clients(self, url: Any, **options: Any) -> list[tuple[str, Any]]:
        """Either client, which is closed after the test."""
        sync = Client(url, **options)
        tasks = ThroughTasks(self.portal, self.portal.call(partial(AsyncClient, url, **options)))
        self.addCleanup(sync.close)
        self.addCleanup(tasks.close)
        return [("threads", sync), ("tasks", tasks)]

    def each(self, url: Any, **options: Any) -> Iterator[tuple[str, Any]]:
        yield from self.clients(url, **options)


#: No repeats.
ONCE = Retries(attempts=1)
#: Repeats that come soon.
SOON = Retries(total=10.0, first=0.01, cap=0.05)


def until(what: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Waits until there is something, and gives it."""
    ends = time.monotonic() + patience
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > ends:
            raise AssertionError("it did not come in time")
        time.sleep(0.005)


ROOT = Path(__file__).resolve().parent.parent
