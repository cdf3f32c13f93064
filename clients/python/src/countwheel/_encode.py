"""From the words of Python to the words of the API."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, TypedDict, Union
from urllib.parse import quote

from ._types import Adaptive, Missed, Retry, Target

if sys.version_info >= (3, 12):
    from typing import Unpack
else:
    from typing_extensions import Unpack

__all__ = ["Duration", "Time", "TimerFields", "Unpack"]

#: A duration: a text such as ``"1h 30m"``, a whole number of milliseconds, or a ``timedelta``.
Duration = Union[str, int, timedelta]
#: A time: RFC 3339 with an offset, or a ``datetime`` with a time zone.
Time = Union[str, datetime]


class TimerFields(TypedDict, total=False):
    """The fields of a set, as ``docs/api.md`` has them. ``in`` is ``in_``, since Python keeps that word."""

    #: How long from now the timer is due.
    in_: Duration
    #: When the timer is due.
    at: Time
    #: Short for a ``target`` of this ``url`` alone.
    url: str
    #: Where the delivery goes.
    target: Target
    #: Any JSON value; with ``content_type``, a text; or ``bytes``, which are sent as ``body_base64``.
    body: Any
    content_type: str
    retry: Retry
    missed: Missed
    spread: Duration
    priority: int
    serial_key: str
    tags: list[str]
    #: The timer recurs at a fixed rate.
    every: Duration
    #: The timer recurs with a fixed delay after the end of each run.
    every_after: Duration
    #: The timer recurs at the times of this expression.
    cron: str
    #: The time zone of ``cron``.
    zone: str
    repeats: int
    until: Time
    jitter: Duration
    overlap: str
    adaptive: Adaptive


def timer_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a set."""
    sent: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "url":
            if "target" in fields:
                raise ValueError("url is short for target: name one of them")
            sent["target"] = {"url": value}
        elif name == "body" and isinstance(value, (bytes, bytearray, memoryview)):
            sent["body_base64"] = base64.b64encode(value).decode("ascii")
        elif name == "body":
            # Times and durations in it are the caller's to write: nothing in a body is changed.
            json.dumps(value, allow_nan=False)
            sent["body"] = value
        else:
            sent[name.rstrip("_")] = value
    return sent


def duration(value: Duration) -> str | int:
    """A duration as the API reads it. Microseconds that are no whole millisecond are kept."""
    if not isinstance(value, timedelta):
        return value
    microseconds = value // timedelta(microseconds=1)
    if microseconds % 1000 == 0:
        return microseconds // 1000
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{abs(microseconds)}us"


def time(value: Time) -> str:
    """A time as the API reads it."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone: say which, such as timezone.utc")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def read_time(text: str) -> datetime:
    """Reads a time of an answer or of a header."""
    # Python 3.10 reads no `Z`.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _other(value: object) -> str | int:
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, datetime):
        return time(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def to_json(value: Any) -> bytes:
    """JSON without blanks, with times and durations as the API reads them."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), default=_other)
    return text.encode("ascii")


def due(in_: Duration | None, at: Time | None, by: Duration | None = None) -> dict[str, Any]:
    """The one of the fields that is there."""
    fields = {"in": in_, "at": at, "by": by}
    return {name: value for name, value in fields.items() if value is not None}


def segment(text: str) -> str:
    """A name as one segment of a path. ``.`` and ``..`` are escaped, since proxies take them out."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")


def query(parameters: Mapping[str, Any]) -> str:
    """The query of a path, of the parameters that are not ``None``."""
    parts = []
    for name, value in parameters.items():
        if value is None:
            continue
        if isinstance(value, datetime):
            value = time(value)
        elif not isinstance(value, (str, int)):
            value = ",".join(value)
        parts.append(f"{name}={quote(str(value), safe='')}")
    return "?" + "&".join(parts) if parts else ""
