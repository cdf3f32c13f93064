"""One request and its answer, without a connection: what is sent, what the answer means, when to ask again."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpcore

from ._errors import (
    CountwheelError,
    Cut,
    InvalidURL,
    NotCountwheel,
    OutcomeUnknown,
    Problem,
    TimedOut,
    Unauthorized,
    Unreachable,
)

#: The longest answer that is read by default: a page of a thousand timers fits.
MAX_ANSWER = 128 << 20
#: The longest refusal that is read.
MAX_PROBLEM = 1 << 20
USER_AGENT = "countwheel-python/0.1.0"


@dataclass(frozen=True)
class Retries:
    """How requests are repeated that did not succeed: with full jitter, between ``first`` and ``cap`` seconds."""

    #: All attempts of a request and the waits between them end after so many seconds.
    total: float = 30.0
    #: The longest first wait.
    first: float = 0.1
    #: The longest wait, unless the service asks for a longer one by ``Retry-After``.
    cap: float = 5.0
    #: How many attempts are made at most, the first included. ``1`` repeats nothing.
    attempts: int = 100

    def delay(self, failures: int, after: float | None = None) -> float:
        """The wait after so many failures in a row, at least what the service has asked for."""
        longest = min(self.cap, self.first * 2.0 ** min(failures - 1, 32))
        drawn = random.uniform(0.0, longest)
        return drawn if after is None else after + drawn


@dataclass
class Call:
    """A request, as the verbs of the client describe it."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    #: Fields that the answer has.
    keys: Sequence[str] = ()
    #: Whether the service does the same if the request comes twice.
    repeatable: bool = False
    #: Whether the service changes anything.
    changes: bool = True
    #: Whether a repeat has the answer of the first, so that a refusal of the repeat says that nothing was done.
    replays: bool = False
    #: Seconds that the service may take by itself before it answers.
    waits: float = 0.0


@dataclass
class Answer:
    """What has arrived."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def is_json(self) -> bool:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind in ("application/json", "application/problem+json")

    def header(self, name: str) -> str | None:
        return self.headers.get(name)


def headers_of(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case. Of two of one name the first one counts."""
    headers: dict[str, str] = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def read_json(call: Call, answer: Answer) -> dict[str, Any]:
    """The body of an answer of success, or the error that the answer is."""
    if not 200 <= answer.status < 300:
        raise refusal(answer)
    body = _object(answer)
    for key in call.keys:
        if key not in body:
            raise NotCountwheel(
                f"the answer to {call.method} {call.path} has no {key!r}: {_shown(answer)}",
                status=answer.status,
            )
    return body


def refusal(answer: Answer) -> CountwheelError:
    """The error that an answer is which is no success."""
    if 300 <= answer.status < 400:
        to = answer.header("location") or "nowhere"
        return NotCountwheel(f"the answer is a redirect to {to}: is the URL right?", status=answer.status)
    try:
        body = _object(answer)
        if not isinstance(body.get("code"), str):
            raise NotCountwheel(
                f"{answer.status} without a code of Countwheel: {_shown(answer)}", status=answer.status
            )
    except NotCountwheel as error:
        error.retry_after = retry_after(answer)
        return error
    kind = Unauthorized if body["code"] == "unauthorized" else Problem
    return kind(
        answer.status,
        body,
        retry_after=retry_after(answer),
        request_id=answer.header("x-request-id"),
    )


def _object(answer: Answer) -> dict[str, Any]:
    kind = answer.header("content-type") or "no content-type"
    if not answer.is_json():
        raise NotCountwheel(
            f"{answer.status} with {kind!r} in place of JSON: {_shown(answer)}", status=answer.status
        )
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise NotCountwheel(
            f"{answer.status} with a body that is no JSON: {_shown(answer)}", status=answer.status
        ) from error
    if not isinstance(body, dict):
        raise NotCountwheel(f"{answer.status} with no JSON object: {_shown(answer)}", status=answer.status)
    return body


def _shown(answer: Answer) -> str:
    return repr(answer.body[:80].decode("utf-8", "replace"))


def retry_after(answer: Answer) -> float | None:
    """The seconds that ``Retry-After`` asks for."""
    text = answer.header("retry-after")
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def failure_of(error: Exception, *, server: str, sent: bool, within: float) -> CountwheelError:
    """The error that a failed exchange is. ``sent`` says whether any of the request has left."""
    if isinstance(error, CountwheelError):
        return error
    reason = str(error) or type(error).__name__
    if isinstance(error, (TimeoutError, httpcore.TimeoutException)):
        if not sent:
            return TimedOut(f"{server}: no connection within {within:g} s", sent=False)
        return TimedOut(f"{server}: no answer within {within:g} s", sent=True)
    if isinstance(error, httpcore.RemoteProtocolError) and not _is_cut(reason):
        return NotCountwheel(f"{server}: the answer is no HTTP: {reason}")
    if not sent:
        return Unreachable(f"{server}: {reason}")
    if isinstance(error, (httpcore.NetworkError, httpcore.RemoteProtocolError)):
        return Cut(f"{server}: the connection ended before the answer: {reason}")
    raise error


class FirstBytes:
    """Looks at the first bytes of a connection, so that what speaks no HTTP is known before it falls silent or ends."""

    def __init__(self) -> None:
        self._seen: bytes | None = b""

    def look(self, chunk: bytes) -> None:
        if self._seen is None or not chunk:
            return
        self._seen += chunk[:8]
        if not self._seen.startswith(b"HTTP/"[: len(self._seen)]):
            raise httpcore.RemoteProtocolError(f"it begins with {self._seen[:8]!r}")
        if len(self._seen) >= 5:
            self._seen = None


def _is_cut(reason: str) -> bool:
    """Whether the peer has closed the connection, and has not broken the rules of HTTP."""
    reason = reason.lower()
    return any(words in reason for words in ("disconnected", "closed connection", "connectionclosed"))


#: An attempt that ends with less than these seconds left of the total was cut by it.
_HARDLY = 0.01


class Attempts:
    """The attempts of one request: which failure is the last, and how long to wait after the others."""

    def __init__(self, call: Call, retries: Retries, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._retries = retries
        self._clock = clock
        self._begun = clock()
        self._failures = 0
        #: The failure of an attempt that may have been acted upon.
        self._unknown: CountwheelError | None = None
        self._last: CountwheelError | None = None

    def left(self) -> float:
        """The seconds that are left of the total. A call that waits by itself has these beside."""
        return self._retries.total + self._call.waits - (self._clock() - self._begun)

    def failed(self, error: CountwheelError) -> float:
        """The wait before the next attempt. Raises the error if there is none."""
        call = self._call
        self._failures += 1
        if call.changes and error.outcome_unknown:
            self._unknown = self._unknown or error
            if not call.repeatable:
                raise self._final(error)
        if self._last is not None and self._says_less(error, self._last):
            error = self._last
        self._last = error
        if not error.transient or self._failures >= self._retries.attempts:
            raise self._final(error)
        delay = self._retries.delay(self._failures, error.retry_after)
        if delay >= self.left():
            raise self._final(error)
        return delay

    def _says_less(self, error: CountwheelError, before: CountwheelError) -> bool:
        """Whether what was left of the total was too short for the attempt, and the failure before says more."""
        if not isinstance(error, TimedOut) or isinstance(before, TimedOut):
            return False
        if not error.outcome_unknown:
            return True
        is_known = self._call.changes and not before.outcome_unknown
        return self.left() < _HARDLY and not is_known

    def _final(self, error: CountwheelError) -> CountwheelError:
        """What the caller gets to know, with the last failure as its cause."""
        final = self._told(error)
        if final is not error:
            final.__cause__ = error
        return final

    def _told(self, error: CountwheelError) -> CountwheelError:
        what = f"{self._call.method} {self._call.path}"
        problem = error if isinstance(error, Problem) else None
        if self._unknown is None:
            return Unreachable(str(error)) if isinstance(error, Cut) else error
        if isinstance(error, (TimedOut, NotCountwheel)) and error.outcome_unknown:
            return error
        if problem is not None and self._call.replays and not problem.transient:
            return problem
        if problem is None or problem.code == "unknown":
            return OutcomeUnknown(f"{what}: {error}", problem=problem)
        return OutcomeUnknown(
            f"{what} was repeated after an attempt without an answer ({self._unknown}), and refused: {problem}",
            problem=problem,
        )


@dataclass(frozen=True)
class Server:
    """Where a server is."""

    text: str
    scheme: bytes
    host: bytes
    port: int
    prefix: str
    #: The header ``Host``.
    name: str

    def url(self, path: str) -> httpcore.URL:
        return httpcore.URL(
            scheme=self.scheme,
            host=self.host,
            port=self.port,
            target=(self.prefix + path).encode("ascii"),
        )


def server_of(text: str) -> Server:
    """Reads the URL of a server."""
    if not isinstance(text, str) or not text:
        raise InvalidURL(f"{text!r} is no URL of http or https")
    try:
        url = urlsplit(text)
        port = url.port
        host = url.hostname
    except ValueError as error:
        raise InvalidURL(f"{text!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not host:
        hint = "" if "://" in text else f"; did you mean http://{text}?"
        raise InvalidURL(f"{text!r} is no URL of http or https{hint}")
    if url.query or url.fragment or url.username is not None or url.password is not None:
        raise InvalidURL(f"the URL of {host!r} has a query, a fragment or a user, which no server has")
    try:
        encoded = host.encode("ascii" if host.isascii() else "idna")
        prefix = url.path.rstrip("/")
        prefix.encode("ascii")
    except UnicodeError as error:
        raise InvalidURL(f"{text!r} is no URL: {error}") from error
    if any(character <= " " for character in host + prefix):
        raise InvalidURL(f"{text!r} is no URL: it has a blank")
    if prefix.endswith("/v1"):
        raise InvalidURL("the URL ends with /v1, which the client adds itself")
    default = 443 if url.scheme == "https" else 80
    return Server(
        text=text.rstrip("/"),
        scheme=url.scheme.encode("ascii"),
        host=encoded,
        port=default if port is None else port,
        prefix=prefix,
        name=_host_header(encoded.decode("ascii"), port, default),
    )


def _host_header(host: str, port: int | None, default: int) -> str:
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port is None or port == default else f"{bracketed}:{port}"


def authorization_of(token: str | None) -> dict[str, str]:
    """The header that shows a token."""
    if token is None:
        return {}
    if not token or not token.isascii() or any(not "!" <= character <= "~" for character in token):
        raise ValueError("the token is empty, or has a character that no header can carry")
    return {"Authorization": f"Bearer {token}"}
