"""Receives deliveries: middleware for ASGI and WSGI that verifies them, drops repeats, and says what they are.

Delivery is at least once. A repeat has the same ``webhook-id``; it is answered with ``200``, and the application is not called.
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from typing import Any, Literal, Protocol, Union
from urllib.parse import unquote

from ._encode import read_time
from ._errors import CountwheelError
from .signatures import BadSignature, Verifier

logger = logging.getLogger("countwheel.receiver")

#: Where the middleware puts the :class:`Delivery`: in the scope of ASGI, in the environment of WSGI.
DELIVERY = "countwheel.delivery"
#: The longest body that is read by default: the largest ``payload_limit`` of a queue.
MAX_BODY = 16 << 20
#: How many ids a :class:`MemorySeen` keeps by default.
MAX_SEEN = 65536

Begun = Literal["new", "done", "busy"]


class NotADelivery(CountwheelError):
    """A request without the headers of a delivery."""


@dataclass(frozen=True)
class Delivery:
    """What the headers of a delivery say."""

    #: ``webhook-id``: the same in every attempt, and for a recurring timer in every attempt of a run.
    id: str
    #: The number of the attempt, from 1.
    attempt: int
    #: The deadline of the timer.
    due: datetime
    #: How late this attempt is.
    late: timedelta
    #: For how long a limit held this attempt.
    held: timedelta
    #: The queue and the key of the timer; ``None`` in the test of an endpoint.
    queue: str | None
    key: str | None
    #: The number of the store's ownership, which only grows.
    fence: int | None
    #: Of a recurring timer: the number of the run, and its nominal time.
    run: int | None
    nominal: datetime | None
    #: Whether the request is the test of an endpoint.
    is_test: bool


def read_delivery(headers: Mapping[str, str]) -> Delivery:
    """Reads the headers of a delivery, whose names are in lower case."""

    def number(name: str) -> int:
        text = headers[name]
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise NotADelivery(f"{name} is no number")
        return int(text)

    def microseconds(name: str) -> timedelta:
        return timedelta(microseconds=number(name)) if name in headers else timedelta()

    try:
        id = headers["webhook-id"]
        if not id or len(id) > 256:
            raise NotADelivery("webhook-id is empty or too long")
        key = headers.get("timer-key")
        return Delivery(
            id=id,
            attempt=number("timer-attempt"),
            due=read_time(headers["timer-due"]),
            late=microseconds("timer-late-us"),
            held=microseconds("timer-held-us"),
            queue=headers.get("timer-queue"),
            key=None if key is None else unquote(key),
            fence=number("timer-fence") if "timer-fence" in headers else None,
            run=number("timer-run") if "timer-run" in headers else None,
            nominal=read_time(headers["timer-nominal"]) if "timer-nominal" in headers else None,
            is_test=headers.get("timer-test") == "1",
        )
    except KeyError as error:
        raise NotADelivery(f"the request has no {error.args[0]}") from None
    except (ValueError, OverflowError) as error:
        raise NotADelivery(f"a header cannot be read: {error}") from None


class Seen(Protocol):
    """Where the ids of deliveries are kept. The methods may also be coroutines, for ASGI alone."""

    def begin(self, id: str) -> Union[Begun, Awaitable[Begun]]:
        """Notes that a delivery is under way, in one step. ``done``: it was handled before. ``busy``: it is under way."""

    def done(self, id: str) -> Union[None, Awaitable[None]]:
        """Notes that a delivery was handled."""

    def failed(self, id: str) -> Union[None, Awaitable[None]]:
        """Forgets that a delivery is under way: the next attempt is handled."""


class MemorySeen:
    """The ids of this process: at most so many that were handled, of which the oldest are forgotten first."""

    def __init__(self, most: int = MAX_SEEN) -> None:
        if most < 1:
            raise ValueError("at least one id has to be kept")
        self._most = most
        self._done: OrderedDict[str, None] = OrderedDict()
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, id: str) -> Begun:
        with self._lock:
            if id in self._busy:
                return "busy"
            if id in self._done:
                return "done"
            self._busy.add(id)
            return "new"

    def done(self, id: str) -> None:
        with self._lock:
            self._busy.discard(id)
            self._done[id] = None
            while len(self._done) > self._most:
                self._done.popitem(last=False)

    def failed(self, id: str) -> None:
        with self._lock:
            self._busy.discard(id)


@dataclass(frozen=True)
class _Reply:
    """What the middleware answers by itself."""

    status: int
    body: dict[str, str]
    retry_after: int | None = None

    def headers(self, text: bytes) -> list[tuple[str, str]]:
        headers = [("content-type", "application/json"), ("content-length", str(len(text)))]
        if self.retry_after is not None:
            headers.append(("retry-after", str(self.retry_after)))
        return headers

    def text(self) -> bytes:
        return json.dumps(self.body).encode("ascii")


_REPEAT = _Reply(200, {"repeat": "handled before"})
# 503 with Retry-After is what the service waits for. Any other refusal has the time that its retry policy says.
_BUSY = _Reply(503, {"error": "an attempt of the same id is under way"}, retry_after=1)
_TOO_LONG = _Reply(413, {"error": "the body is too long"})


class _Checks:
    """What both kinds of middleware do before and after the application."""

    def __init__(
        self,
        verifier: Union[Verifier, str, Iterable[str], None],
        seen: Seen | None,
        path: str | None,
        max_body: int,
    ) -> None:
        is_made = verifier is None or isinstance(verifier, Verifier)
        self._verifier: Verifier | None = verifier if is_made else Verifier(verifier)  # type: ignore[arg-type, assignment]
        self.seen: Seen = MemorySeen() if seen is None else seen
        self._path = None if path is None else path.rstrip("/")
        self.max_body = max_body

    def applies(self, path: str) -> bool:
        at = self._path
        return at is None or path == at or path.startswith(at + "/")

    def check(self, headers: Mapping[str, str], body: bytes) -> Union[Delivery, _Reply]:
        """The delivery, or the refusal of what is none."""
        try:
            if self._verifier is not None:
                self._verifier.verify(headers, body)
            return read_delivery(headers)
        except BadSignature as error:
            return _Reply(401, {"error": str(error)})
        except NotADelivery as error:
            return _Reply(400, {"error": str(error)})


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ASGIReceiver:
    """Middleware for ASGI: Starlette, FastAPI, Django, Quart.

    ``verifier`` has the secrets of the endpoint; with ``None`` nobody is asked for a signature, and anybody who reaches the
    application can call it. ``path`` is where deliveries come; other requests go to the application as they are. A delivery
    counts as handled if the application answers with 2xx.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        verifier: Union[Verifier, str, Iterable[str], None],
        seen: Seen | None = None,
        path: str | None = None,
        max_body: int = MAX_BODY,
    ) -> None:
        self._app = app
        self._checks = _Checks(verifier, seen, path, max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._checks.applies(scope["path"]):
            await self._app(scope, receive, send)
            return
        body = await self._body(receive)
        if isinstance(body, _Reply):
            await _reply(body, send)
            return
        if body is None:
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        delivery = self._checks.check(headers, body)
        if isinstance(delivery, _Reply):
            await _reply(delivery, send)
            return
        begun = await _wait(self._checks.seen.begin(delivery.id))
        if begun != "new":
            await _reply(_REPEAT if begun == "done" else _BUSY, send)
            return
        await self._handle(delivery, body, scope, receive, send)

    async def _handle(
        self, delivery: Delivery, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        seen, status, is_done, is_read = self._checks.seen, 0, False, False

        async def replay() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def watch(message: Message) -> None:
            nonlocal status, is_done
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                # Noted before the answer has gone: after it, the service may never ask again.
                if 200 <= status < 300 and not is_done:
                    is_done = True
                    await _wait(seen.done(delivery.id))
            await send(message)

        try:
            await self._app({**scope, DELIVERY: delivery}, replay, watch)
        finally:
            if not is_done:
                await _wait(seen.failed(delivery.id))

    async def _body(self, receive: Receive) -> Union[bytes, _Reply, None]:
        chunks, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            chunks.append(chunk)
            size += len(chunk)
            if size > self._checks.max_body:
                return _TOO_LONG
            if not message.get("more_body", False):
                return b"".join(chunks)


async def _reply(reply: _Reply, send: Send) -> None:
    text = reply.text()
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in reply.headers(text)]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": text, "more_body": False})


async def _wait(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


Environ = MutableMapping[str, Any]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 413: "Content Too Large", 503: "Service Unavailable"}


class WSGIReceiver:
    """Middleware for WSGI: Flask, Django, Bottle. The arguments are those of :class:`ASGIReceiver`.

    The answer of the application is held back until it is whole, so that an application that fails on the way has failed.
    """

    def __init__(
        self,
        app: WSGIApp,
        *,
        verifier: Union[Verifier, str, Iterable[str], None],
        seen: Seen | None = None,
        path: str | None = None,
        max_body: int = MAX_BODY,
    ) -> None:
        self._app = app
        self._checks = _Checks(verifier, seen, path, max_body)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        if not self._checks.applies(path):
            return self._app(environ, start_response)
        body = self._body(environ)
        if isinstance(body, _Reply):
            return _start(body, start_response)
        headers = {
            name[5:].replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        delivery = self._checks.check(headers, body)
        if isinstance(delivery, _Reply):
            return _start(delivery, start_response)
        begun = self._checks.seen.begin(delivery.id)
        if begun != "new":
            return _start(_REPEAT if begun == "done" else _BUSY, start_response)
        return self._handle(delivery, body, environ, start_response)

    def _handle(
        self, delivery: Delivery, body: bytes, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        seen, is_done, answer = self._checks.seen, False, _Held()
        try:
            given = {
                **environ,
                DELIVERY: delivery,
                "wsgi.input": BytesIO(body),
                "CONTENT_LENGTH": str(len(body)),
            }
            given.pop("HTTP_TRANSFER_ENCODING", None)
            parts = self._app(given, answer)
            try:
                chunks = [*parts]
            finally:
                close = getattr(parts, "close", None)
                if close is not None:
                    close()
            if 200 <= answer.code() < 300:
                seen.done(delivery.id)
                is_done = True
        finally:
            if not is_done:
                seen.failed(delivery.id)
        start_response(*answer.given)
        return [*answer.written, *chunks]

    def _body(self, environ: Environ) -> Union[bytes, _Reply]:
        source, most = environ["wsgi.input"], self._checks.max_body
        text = environ.get("CONTENT_LENGTH") or ""
        if text:
            if not (text.isascii() and text.isdigit()):
                return _Reply(400, {"error": "content-length is no number"})
            if int(text) > most:
                return _TOO_LONG
            whole: bytes = source.read(int(text))
            if len(whole) < int(text):
                return _Reply(400, {"error": "the body is shorter than its content-length"})
            return whole
        if not environ.get("wsgi.input_terminated"):
            return b""
        whole = source.read(most + 1)
        return _TOO_LONG if len(whole) > most else whole


class _Held:
    """The ``start_response`` that an application gets, which keeps what it is given."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.written: list[bytes] = []

    def __call__(self, status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], None]:
        self.given = (status, headers) if exc_info is None else (status, headers, exc_info)
        return self.written.append

    def code(self) -> int:
        if not self.given:
            raise RuntimeError("the application did not call start_response")
        return int(self.given[0].split(" ", 1)[0])


def _start(reply: _Reply, start_response: StartResponse) -> Iterable[bytes]:
    text = reply.text()
    start_response(f"{reply.status} {_REASONS[reply.status]}", reply.headers(text))
    return [text]
