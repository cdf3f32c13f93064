"""The operations of a batch, and the lines of its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, TypedDict, Union

from ._encode import Duration, Time, TimerFields, Unpack, due, timer_fields
from ._errors import NotCountwheel

#: The longest line of an answer that is read.
MAX_LINE = 2 << 20

IfMatch = Union[int, Literal["*"]]


class LeaseName(TypedDict):
    """What names a lease; a lease itself does."""

    queue: str
    key: str
    token: str


class Op(dict[str, Any]):
    """One operation of a batch. The class methods make them."""

    @classmethod
    def set(
        cls,
        queue: str,
        key: str,
        *,
        if_match: IfMatch | None = None,
        if_none_match: Literal["*"] | None = None,
        **fields: Unpack[TimerFields],
    ) -> Op:
        """Sets a timer."""
        return cls._of(
            "set", queue, key, if_match=if_match, if_none_match=if_none_match, **timer_fields(fields)
        )

    @classmethod
    def move(
        cls,
        queue: str,
        key: str,
        *,
        in_: Duration | None = None,
        at: Time | None = None,
        by: Duration | None = None,
        if_match: IfMatch | None = None,
    ) -> Op:
        """Moves a pending timer."""
        return cls._of("move", queue, key, if_match=if_match, **due(in_, at, by))

    @classmethod
    def remove(
        cls, queue: str, key: str, *, only_pending: bool = False, if_match: IfMatch | None = None
    ) -> Op:
        """Removes a timer."""
        return cls._of("remove", queue, key, if_match=if_match, only="pending" if only_pending else None)

    @classmethod
    def fire(cls, queue: str, key: str) -> Op:
        """Makes a pending timer due now."""
        return cls._of("fire", queue, key)

    @classmethod
    def revive(
        cls, queue: str, key: str, *, in_: Duration | None = None, at: Time | None = None
    ) -> Op:
        """Makes a dead timer pending again."""
        return cls._of("revive", queue, key, **due(in_, at))

    @classmethod
    def ack(cls, lease: LeaseName) -> Op:
        """Says that what was leased is done."""
        return cls._of("ack", lease["queue"], lease["key"], token=lease["token"])

    @classmethod
    def nack(
        cls,
        lease: LeaseName,
        *,
        in_: Duration | None = None,
        dead: bool = False,
        detail: str | None = None,
    ) -> Op:
        """Says that what was leased has failed."""
        return cls._of(
            "nack",
            lease["queue"],
            lease["key"],
            token=lease["token"],
            dead=True if dead else None,
            detail=detail,
            **due(in_, None),
        )

    @classmethod
    def _of(cls, op: str, queue: str, key: str, **fields: Any) -> Op:
        sent = {name: value for name, value in fields.items() if value is not None or name == "body"}
        return cls(op=op, queue=queue, key=key, **sent)


class LineReader:
    """Takes the bytes of an answer of lines of JSON as they come."""

    def __init__(self) -> None:
        self._line = bytearray()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The objects whose lines end in these bytes."""
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            self._grow(piece)
            line = bytes(self._line)
            self._line.clear()
            if line.strip():
                yield _object(line)
        self._grow(pieces[-1])

    def _grow(self, piece: bytes) -> None:
        self._line += piece
        if len(self._line) > MAX_LINE:
            raise NotCountwheel(f"a line of the answer is longer than {MAX_LINE} bytes", status=200)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotCountwheel(f"a line of the answer is no JSON: {line[:80]!r}", status=200) from error
    if not isinstance(value, dict):
        raise NotCountwheel(f"a line of the answer is no JSON object: {line[:80]!r}", status=200)
    return value
