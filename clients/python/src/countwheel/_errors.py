"""What can go wrong, by what the caller can do about it."""

from __future__ import annotations

from typing import Any


class CountwheelError(Exception):
    """The base of all errors of this package."""

    #: Whether the service may have done what was asked, although there is no answer that says so.
    outcome_unknown: bool = False
    #: Whether the same request may succeed later.
    transient: bool = False
    #: The least time to wait before the next request, in seconds, where the service has named one.
    retry_after: float | None = None


class InvalidURL(CountwheelError, ValueError):
    """The URL of a server cannot be used. No request was made."""


class Unreachable(CountwheelError):
    """No connection to the server could be made: a wrong host or port, a server that is down, or TLS that failed.

    Nothing was changed. A read has this error as well if its connection ends before the answer does.
    """

    transient = True


class NotCountwheel(CountwheelError):
    """What answers at the URL is no Countwheel: it speaks no HTTP, or its answer is not JSON of this API.

    A proxy in between answers so as well, while the service behind it is away.
    """

    def __init__(self, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        #: The status of the answer; ``None`` if the answer was no HTTP.
        self.status = status
        self.transient = status in (502, 503, 504)
        self.outcome_unknown = True


class TimedOut(CountwheelError):
    """No answer came in time."""

    transient = True

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.outcome_unknown = sent


class OutcomeUnknown(CountwheelError):
    """What was asked is done whole or not at all, and no answer says which.

    The connection ended before the answer, or the service answered ``503 unknown``, and the request could not
    be repeated safely, or its repeats did not succeed either. A ``get`` shows what is there.
    """

    outcome_unknown = True
    transient = True

    def __init__(self, text: str, *, problem: Problem | None = None) -> None:
        super().__init__(text)
        #: What the last repeat was refused with, if it was. An earlier attempt may be the reason for the refusal: a
        #: repeated ``remove`` finds no timer if the first one has removed it.
        self.problem = problem
        #: Of a batch: how many operations have results. The others may have been done.
        self.operations_done: int | None = None


class Problem(CountwheelError):
    """The service refused the request. Nothing was changed, unless ``code`` is ``unknown``."""

    #: The codes with which nothing was done, and a repeat may succeed. ``quota_exceeded`` is none of them: a wait
    #: leaves the quota and what the namespace has as they are.
    _PASSING = frozenset(
        {
            "overloaded",
            "over_rate",
            "unavailable",
            "shard_unavailable",
            "store_unavailable",
            "storage_full",
            "timeout",
            "unknown",
            "idempotency_in_progress",
        }
    )

    def __init__(
        self,
        status: int,
        body: dict[str, Any],
        *,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        #: The code, as the table in ``docs/api.md`` has it: ``not_found``, ``revision_mismatch``, …
        self.code: str = str(body.get("code", ""))
        #: The status of the answer.
        self.status = status
        #: What is wrong, as a sentence.
        self.detail: str = str(body.get("detail", ""))
        errors = body.get("errors")
        #: The faulty fields, each with ``pointer`` and ``detail``.
        self.errors: list[dict[str, str]] = errors if isinstance(errors, list) else []
        #: The whole answer: ``state``, ``revision`` and what else the code brings.
        self.body = body
        #: The ``X-Request-Id`` of the answer, under which the service's log has the request.
        self.request_id = request_id
        self.retry_after = retry_after
        self.transient = self.code in self._PASSING
        self.outcome_unknown = self.code == "unknown"
        text = f"{status} {self.code}: {self.detail}"
        for error in self.errors[:1]:
            if isinstance(error, dict) and "pointer" in error:
                text += f" ({error['pointer']}: {error.get('detail', '')})"
        super().__init__(text)

    @property
    def pointer(self) -> str | None:
        """The JSON pointer of the first faulty field, such as ``/retry/fixed``."""
        for error in self.errors:
            if isinstance(error, dict) and isinstance(error.get("pointer"), str):
                return error["pointer"]
        return None

    @property
    def revision(self) -> int | None:
        """The present revision, of a precondition that does not hold."""
        revision = self.body.get("revision")
        return revision if isinstance(revision, int) else None

    @property
    def state(self) -> str | None:
        """The state of the timer, where that is what forbids the request."""
        state = self.body.get("state")
        return state if isinstance(state, str) else None

    @property
    def quota(self) -> str | None:
        """The quota of the namespace that forbids the request, such as ``timers``."""
        quota = self.body.get("quota")
        return quota if isinstance(quota, str) else None


class Unauthorized(Problem):
    """The token is missing or wrong."""


class BatchEnded(CountwheelError):
    """The service ended a batch before its last operation."""

    def __init__(self, reason: str, *, done: int) -> None:
        super().__init__(f"the batch ended after {done} operations: {reason}")
        #: ``too_many``, ``timeout``, ``shutdown``, ``broken`` or ``moved``.
        self.reason = reason
        #: How many operations have results. Later ones were not begun.
        self.done = done


class Cut(CountwheelError):
    """The connection ended before the answer did. Becomes :class:`OutcomeUnknown`, or is repeated."""

    transient = True
    outcome_unknown = True
