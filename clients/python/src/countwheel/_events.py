"""Reads a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._errors import NotCountwheel

#: The longest event that is read, and the longest line.
MAX_EVENT = 1 << 20


@dataclass(frozen=True)
class Event:
    """Something that has happened to a timer, a queue or an endpoint."""

    #: Where the stream goes on after this event: the ``after`` of a later call.
    id: str
    #: What has happened: ``set``, ``moved``, ``done``, …; ``gap`` says that events are missing here.
    kind: str
    #: What the event says.
    data: dict[str, Any]


class EventReader:
    """Takes the bytes of a stream as they come, and gives the events that are whole."""

    def __init__(self, last: str = "") -> None:
        self._line = bytearray()
        self._data: list[str] = []
        self._held = 0
        self._kind = ""
        self._id = last
        self._cr = False
        self._begun = False
        #: Behind which event the stream is. A stream says so without an event, too, if none comes for long.
        self.last = last
        #: The wait before the next connection that the service has asked for, in seconds.
        self.retry: float | None = None

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that end in these bytes."""
        if self._cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        if chunk:
            self._cr = chunk.endswith(b"\r")
        pieces = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for piece in pieces[:-1]:
            self._grow(piece)
            line = bytes(self._line)
            self._line.clear()
            event = self._read(line)
            if event is not None:
                yield event
        self._grow(pieces[-1])

    def _grow(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) + self._held > MAX_EVENT:
            raise NotCountwheel(f"an event is longer than {MAX_EVENT} bytes", status=200)

    def _read(self, raw: bytes) -> Event | None:
        line = raw.decode("utf-8", "replace")
        if not self._begun:
            self._begun = True
            line = line.removeprefix("\ufeff")
        if not line:
            return self._end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._held += len(raw)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value) / 1000
        return None

    def _end(self) -> Event | None:
        text, kind = "\n".join(self._data), self._kind
        self._data, self._kind, self._held = [], "", 0
        self.last = self._id
        if not text and not kind:
            return None
        try:
            data = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise NotCountwheel(f"an event is no JSON: {text[:80]!r}", status=200) from error
        if not isinstance(data, dict):
            raise NotCountwheel(f"an event is no JSON object: {text[:80]!r}", status=200)
        return Event(id=self._id, kind=kind or "message", data=data)
