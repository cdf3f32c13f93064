"""The client: each verb of the API, by its name there."""

# Made from _async by tools/generate.py: change nothing here.

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Iterable, List, Literal, Union, cast

import httpcore

from .._batch import IfMatch, LeaseName, LineReader, Op
from .._encode import (
    Duration,
    Time,
    TimerFields,
    Unpack,
    due,
    duration,
    query,
    segment,
    timer_fields,
    to_json,
)
from .._errors import BatchEnded, CountwheelError, Cut, NotCountwheel, OutcomeUnknown
from .._events import Event, EventReader
from .._exchange import (
    MAX_ANSWER,
    MAX_PROBLEM,
    USER_AGENT,
    Answer,
    Attempts,
    Call,
    Retries,
    Server,
    authorization_of,
    failure_of,
    headers_of,
    read_json,
    refusal,
    server_of,
)
from .._types import (
    AuditEntry,
    AuditPage,
    Backfilled,
    BatchLine,
    BatchResult,
    BeginJob,
    Cluster,
    Drained,
    DueStats,
    Endpoint,
    EndpointRemoved,
    Endpoints,
    EndpointTested,
    Job,
    Jobs,
    Lease,
    LeaseResult,
    Moved,
    NamespaceAnswer,
    NamespaceRemoved,
    Namespaces,
    NextRun,
    NextRuns,
    Nodes,
    PurgeFilter,
    PutEndpoint,
    PutNamespace,
    PutQueue,
    Queue,
    QueueCounts,
    QueuePurge,
    QueueRemoved,
    Queues,
    Removed,
    Resumed,
    Shards,
    Simulate,
    SimulatedAttempts,
    SimulatedRuns,
    SimulatedThere,
    Stats,
    Target,
    TestEndpoint,
    Timer,
    TimerPage,
    Token,
    TokenMade,
    TokenRevoked,
    Tokens,
    WasSet,
)
from . import io

#: A batch goes out in requests of at most so many operations, and about so many bytes.
BATCH_OPERATIONS = 5000
BATCH_BYTES = 4 << 20
#: How long a stream of events may be silent. The service says something every 15 s.
EVENTS_SILENCE = 45.0

Simulated = Union[SimulatedAttempts, SimulatedRuns, SimulatedThere]
Order = Literal["due", "created", "trouble"]
Scope = Literal["read", "write", "deliver", "metrics", "admin"]


class Client:
    """Speaks to a service, or to the nodes of a cluster, which are asked in turn. Connects when first used.

    ``timeout`` is for one attempt, in seconds; ``retries`` says how attempts are repeated. Many
    callers may use it at a time, but for its closing.
    """

    def __init__(
        self,
        servers: Union[str, Sequence[str]],
        *,
        token: str | None = None,
        timeout: float = 10.0,
        retries: Retries = Retries(),
        ssl_context: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        named = [servers] if servers is None or isinstance(servers, str) else servers
        self._servers: List[Server] = [server_of(text) for text in named]
        if not self._servers:
            raise ValueError("a client needs the URL of a server")
        self._authorization = authorization_of(token)
        self._timeout = timeout
        self._retries = retries
        self._max_answer = max_answer
        self._pool = io.pool(ssl_context)
        self._turn = 0

    def with_options(self, *, timeout: float | None = None, retries: Retries | None = None) -> Client:
        """The same client with other limits. Both share their connections, and one of them is to be closed."""
        other = object.__new__(Client)
        other.__dict__.update(self.__dict__)
        other._timeout = self._timeout if timeout is None else timeout
        other._retries = self._retries if retries is None else retries
        return other

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Timers

    def set(
        self,
        queue: str,
        key: str,
        *,
        if_match: IfMatch | None = None,
        if_none_match: Literal["*"] | None = None,
        traceparent: str | None = None,
        **fields: Unpack[TimerFields],
    ) -> WasSet:
        """Sets a timer, in place of whatever has its key.

        ``if_none_match="*"`` sets only if there is none, ``if_match`` only the one of that revision, or with ``"*"`` any.
        """
        call = Call("PUT", _timer(queue, key), to_json(timer_fields(fields)), keys=("revision", "due"))
        call.repeatable = True
        call.headers = _preconditions(if_match, if_none_match) | _traced(traceparent)
        return cast(WasSet, self._ask(call))

    def post(
        self,
        queue: str,
        *,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
        **fields: Unpack[TimerFields],
    ) -> WasSet:
        """Sets a timer whose key the service draws.

        With an ``idempotency_key`` the request is repeated safely: for 24 h the same request has the same answer and sets
        nothing more.
        """
        call = Call("POST", _queue(queue) + "/timers", to_json(timer_fields(fields)), keys=("key", "revision"))
        call.headers = _traced(traceparent)
        if idempotency_key is not None:
            call.headers["Idempotency-Key"] = _quoted(idempotency_key)
            call.repeatable = call.replays = True
        return cast(WasSet, self._ask(call))

    def move(
        self,
        queue: str,
        key: str,
        *,
        in_: Duration | None = None,
        at: Time | None = None,
        by: Duration | None = None,
        if_match: IfMatch | None = None,
    ) -> Moved:
        """Moves a pending timer: to a duration from now, to a time, or by a duration, which may be negative.

        A move ``by`` a duration is not repeated without a revision, since two of them would move twice as far.
        """
        call = Call("PATCH", _timer(queue, key), to_json(due(in_, at, by)), keys=("revision", "old_due"))
        call.headers = _preconditions(if_match)
        call.repeatable = by is None or isinstance(if_match, int)
        return cast(Moved, self._ask(call))

    def remove(
        self, queue: str, key: str, *, only_pending: bool = False, if_match: IfMatch | None = None
    ) -> Removed:
        """Removes a timer, and says what it was doing. No attempt starts afterwards."""
        call = Call("DELETE", _timer(queue, key) + ("?only=pending" if only_pending else ""), keys=("was",))
        call.headers = _preconditions(if_match)
        call.repeatable = True
        return cast(Removed, self._ask(call))

    def get(self, queue: str, key: str, *, body: bool = False) -> Timer:
        """A timer as it stands, with its body if asked for: ``body`` as text, or ``body_base64`` if it is no UTF-8."""
        path = _timer(queue, key) + ("?body=text" if body else "")
        return cast(Timer, self._ask(_read(path, "revision", "state")))

    def list_page(
        self,
        queue: str | None,
        *,
        state: str | None = None,
        prefix: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        tags: Sequence[str] | None = None,
        queue_prefix: str | None = None,
        order: Order | None = None,
        next_attempts: bool = False,
        bodies: bool = False,
        limit: int | None = None,
        after: str | None = None,
    ) -> TimerPage:
        """One page of the timers of a queue, or of all queues (``None``), and the cursor of the next one.

        A page without items is not the last one while ``next`` is there: ``bound_reached`` says that the service looked no
        further. ``queue_prefix`` is for all queues alone.
        """
        parameters = {
            "state": state,
            "prefix": prefix,
            "due_after": due_after,
            "due_before": due_before,
            "tag": tags or None,
            "queue_prefix": queue_prefix,
            "order": order,
            "include": "next_attempts" if next_attempts else None,
            "bodies": "text" if bodies else None,
            "limit": limit,
            "after": after,
        }
        return cast(
            TimerPage,
            self._ask(_read(_timers(queue) + query(parameters), "items", "next")),
        )

    def list(
        self,
        queue: str | None,
        *,
        state: str | None = None,
        prefix: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        tags: Sequence[str] | None = None,
        queue_prefix: str | None = None,
        order: Order | None = None,
        next_attempts: bool = False,
        bodies: bool = False,
        limit: int | None = None,
    ) -> Iterator[Timer]:
        """The timers of a queue, or of all queues (``None``), page by page. ``limit`` is for a page.

        They come in order of their due times, or as ``order`` says: ``"created"`` with the oldest first, ``"trouble"`` with
        the dead first and then those with the most failures. The service refuses these two with ``too_broad`` if more timers
        match than it looks at.
        """
        after: str | None = None
        while True:
            page = self.list_page(
                queue,
                state=state,
                prefix=prefix,
                due_after=due_after,
                due_before=due_before,
                tags=tags,
                queue_prefix=queue_prefix,
                order=order,
                next_attempts=next_attempts,
                bodies=bodies,
                limit=limit,
                after=after,
            )
            for timer in page["items"]:
                yield timer
            after = page["next"]
            if after is None:
                return

    def runs_page(
        self, queue: str, key: str, *, limit: int | None = None, after: Time | None = None
    ) -> NextRuns:
        """One page of the runs to come of a recurring timer, and the ``after`` of the next one."""
        path = _timer(queue, key) + "/runs" + query({"limit": limit, "after": after})
        return cast(NextRuns, self._ask(_read(path, "runs", "next")))

    def runs(self, queue: str, key: str, *, limit: int | None = None) -> Iterator[NextRun]:
        """The runs to come of a recurring timer, if each is made on time, page by page. ``limit`` is for a page.

        A timer without an end has runs without an end.
        """
        after: str | None = None
        while True:
            page = self.runs_page(queue, key, limit=limit, after=after)
            for run in page["runs"]:
                yield run
            after = page["next"]
            if after is None:
                return

    def backfill(
        self,
        queue: str,
        key: str,
        *,
        from_: Time,
        until: Time,
        limit: int | None = None,
        dry_run: bool = False,
        traceparent: str | None = None,
    ) -> Backfilled:
        """Makes runs of a recurring timer for nominal times of the past, from the first to the last of them.

        A run that is there already is not made again. ``next`` of the answer is the ``from_`` of the next call.
        """
        fields: dict[str, Any] = {"from": from_, "until": until}
        if limit is not None:
            fields["limit"] = limit
        if dry_run:
            fields["dry_run"] = True
        call = Call("POST", _timer(queue, key) + ":backfill", to_json(fields), keys=("made", "runs", "next"))
        call.headers = _traced(traceparent)
        call.repeatable, call.changes = dry_run, not dry_run
        return cast(Backfilled, self._ask(call))

    def fire(self, queue: str, key: str) -> Moved:
        """Makes a pending timer due now."""
        return cast(Moved, self._ask(Call("POST", _timer(queue, key) + ":fire", keys=("revision", "due"))))

    def revive(
        self, queue: str, key: str, *, in_: Duration | None = None, at: Time | None = None
    ) -> Moved:
        """Makes a dead timer pending from the start of its schedule, now or when it says."""
        fields = due(in_, at)
        call = Call("POST", _timer(queue, key) + ":revive", to_json(fields) if fields else None)
        call.keys = ("revision", "due")
        return cast(Moved, self._ask(call))

    def resend(
        self, queue: str, key: str, *, target: Target | None = None, if_match: IfMatch | None = None
    ) -> WasSet:
        """Sends a timer again that is done, dead, or pending after a failure: to its target, or to another."""
        body = None if target is None else to_json({"target": target})
        call = Call("POST", _timer(queue, key) + ":resend", body, keys=("revision", "due"))
        call.headers = _preconditions(if_match)
        # The revision that it names is gone once it is done.
        call.repeatable = isinstance(if_match, int)
        return cast(WasSet, self._ask(call))

    # Batches

    def batch(self, operations: io.Many[Op]) -> Iterator[BatchLine]:
        """Does operations one after the other, and gives the result of each, in their order.

        The operations go out in requests of up to 5,000, so any number of them may be given. A refused operation is a result
        with its ``status`` and ``code``, and the others go on. ``i`` counts from 0 over all requests.
        """
        first, lines, size = 0, [], 0
        for operation in io.each(operations):
            line = to_json(operation) + b"\n"
            lines.append(line)
            size += len(line)
            if len(lines) >= BATCH_OPERATIONS or size >= BATCH_BYTES:
                for result in self._some(first, lines):
                    yield result
                first, lines, size = first + len(lines), [], 0
        if lines:
            for result in self._some(first, lines):
                yield result

    def _some(self, first: int, lines: Sequence[bytes]) -> Iterator[BatchLine]:
        """Does operations of one request, of which the first has that number."""
        call = Call("POST", "/v1/batch", b"".join(lines), content_type="application/x-ndjson")
        done, reader, ended = first, LineReader(), False
        with ExitStack() as stack:
            stream = self._open(call, stack, silence=self._timeout + 30)
            try:
                for chunk in stream.iter_stream():
                    for line in reader.feed(chunk):
                        if "end" in line:
                            ended = True
                            if line["end"] is not True:
                                raise BatchEnded(str(line.get("reason")), done=done)
                        else:
                            line["i"] = done
                            done += 1
                            yield cast(BatchLine, line)
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.RemoteProtocolError) as error:
                raise _broken(done) from error
        if not ended:
            raise _broken(done)

    def batch_atomic(self, operations: Iterable[Op]) -> List[BatchResult]:
        """Does all of the operations or none, in one commit: at most 10,000 of them and 64 MiB.

        A refused operation refuses all: ``item`` in the ``body`` of the :class:`Problem` is its number.
        """
        body = b"".join(to_json(operation) + b"\n" for operation in operations)
        call = Call("POST", "/v1/batch?atomic=true", body, content_type="application/x-ndjson", keys=("results",))
        return cast(List[BatchResult], (self._ask(call))["results"])

    # Queues

    def queues_page(
        self,
        *,
        prefix: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Queues:
        """One page of the queues with the counts of their timers, and the cursor of the next one."""
        path = "/v1/queues" + query({"prefix": prefix, "state": state, "limit": limit, "after": after})
        return cast(Queues, self._ask(_read(path, "queues", "next")))

    def queues(
        self, *, prefix: str | None = None, state: str | None = None, limit: int | None = None
    ) -> Iterator[QueueCounts]:
        """The queues with the counts of their timers, in order of their names, page by page. ``limit`` is for a page.

        ``prefix`` is for their names; ``state`` leaves only queues with timers in that state.
        """
        after: str | None = None
        while True:
            page = self.queues_page(prefix=prefix, state=state, limit=limit, after=after)
            for queue in page["queues"]:
                yield queue
            after = page["next"]
            if after is None:
                return

    def queue(self, queue: str) -> Queue:
        """The settings of a queue, with the counts of its timers."""
        return cast(Queue, self._ask(_read(_queue(queue), "queue", "revision")))

    def put_queue(
        self,
        queue: str,
        settings: PutQueue,
        *,
        if_match: IfMatch | None = None,
        if_none_match: Literal["*"] | None = None,
    ) -> Queue:
        """Gives a queue settings, in place of those that it had."""
        call = Call("PUT", _queue(queue), to_json(settings), keys=("queue", "revision"))
        call.headers = _preconditions(if_match, if_none_match)
        call.repeatable = True
        return cast(Queue, self._ask(call))

    def remove_queue(self, queue: str, *, if_match: IfMatch | None = None) -> QueueRemoved:
        """Removes the settings of a queue that has no timers."""
        call = Call("DELETE", _queue(queue), keys=("removed",), repeatable=True)
        call.headers = _preconditions(if_match)
        return cast(QueueRemoved, self._ask(call))

    def pause(
        self, queue: str | None, *, in_: Duration | None = None, at: Time | None = None
    ) -> Drained:
        """Pauses a queue, or all of them (``None``): it takes timers, and starts none, until a resume or until then."""
        call = Call("POST", _queues(queue) + ":pause", to_json(due(in_, at)), keys=("queue", "left"))
        call.repeatable = True
        return cast(Drained, self._ask(call))

    def drain(
        self,
        queue: str | None,
        mode: Literal["fire", "hold", "remove"],
        *,
        in_: Duration | None = None,
        at: Time | None = None,
    ) -> Drained:
        """Drains a queue, or all of them (``None``): it takes no timers, and ``mode`` rules those that it has.

        With ``"remove"`` the answer has the only copy of the timers in it: at most 1,000 a call. Ask again until ``removed``
        is empty. Such a call is not repeated by itself.
        """
        call = Call("POST", _queues(queue) + ":drain", to_json({"mode": mode, **due(in_, at)}), keys=("queue", "left"))
        call.repeatable = mode != "remove"
        return cast(Drained, self._ask(call))

    def resume(self, queue: str | None) -> Resumed:
        """Ends the pause or drain of a queue, or that of all (``None``)."""
        call = Call("POST", _queues(queue) + ":resume", keys=("queue", "was"), repeatable=True)
        return cast(Resumed, self._ask(call))

    def purge(self, queue: str, filter: PurgeFilter | None = None) -> QueuePurge:
        """Removes timers of a queue in the background: those that the filter selects."""
        call = Call("POST", _queue(queue) + ":purge", to_json(filter or {}), keys=("queue", "purge"))
        return cast(QueuePurge, self._ask(call))

    def cancel_purge(self, queue: str) -> QueuePurge:
        """Ends the purge of a queue. What was removed stays removed."""
        return cast(QueuePurge, self._ask(Call("POST", _queue(queue) + ":cancel-purge", keys=("queue", "purge"))))

    # Jobs

    def start_job(self, job: BeginJob) -> Job:
        """Removes, moves, fires or revives many timers of a queue in the background."""
        return cast(Job, self._ask(Call("POST", "/v1/jobs", to_json(job), keys=("id", "action"))))

    def jobs(self) -> List[Job]:
        """The jobs that run, and those that have ended within the hour."""
        return cast(Jobs, self._ask(_read("/v1/jobs", "jobs")))["jobs"]

    def job(self, id: int) -> Job:
        """A job as it stands."""
        return cast(Job, self._ask(_read(f"/v1/jobs/{id}", "id", "action")))

    def cancel_job(self, id: int) -> Job:
        """Cancels a job. What was changed stays changed."""
        call = Call("POST", f"/v1/jobs/{id}:cancel", keys=("id", "action"), repeatable=True)
        return cast(Job, self._ask(call))

    # Endpoints

    def endpoints(self, *, limit: int | None = None) -> Iterator[Endpoint]:
        """The endpoints, in order of their names, page by page."""
        after: str | None = None
        while True:
            path = "/v1/endpoints" + query({"limit": limit, "after": after})
            page = cast(Endpoints, self._ask(_read(path, "endpoints", "next")))
            for endpoint in page["endpoints"]:
                yield endpoint
            after = page["next"]
            if after is None:
                return

    def endpoint(self, name: str) -> Endpoint:
        """An endpoint, but nothing that is secret."""
        return cast(Endpoint, self._ask(_read(_endpoint(name), "endpoint", "revision")))

    def put_endpoint(
        self,
        name: str,
        endpoint: PutEndpoint,
        *,
        if_match: IfMatch | None = None,
        if_none_match: Literal["*"] | None = None,
    ) -> Endpoint:
        """Makes an endpoint, or puts another in its place."""
        call = Call("PUT", _endpoint(name), to_json(endpoint), keys=("endpoint", "revision"))
        call.headers = _preconditions(if_match, if_none_match)
        call.repeatable = True
        return cast(Endpoint, self._ask(call))

    def remove_endpoint(self, name: str, *, if_match: IfMatch | None = None) -> EndpointRemoved:
        """Removes an endpoint that no timer and no queue names."""
        call = Call("DELETE", _endpoint(name), keys=("endpoint", "removed"), repeatable=True)
        call.headers = _preconditions(if_match)
        return cast(EndpointRemoved, self._ask(call))

    def test_endpoint(self, name: str, request: TestEndpoint | None = None) -> EndpointTested:
        """Sends one request to an endpoint now, and says what came of it."""
        call = Call("POST", _endpoint(name) + ":test", to_json(request or {}), keys=("endpoint", "attempt"), waits=30.0)
        return cast(EndpointTested, self._ask(call))

    # Namespaces

    def put_namespace(
        self,
        name: str,
        namespace: PutNamespace,
        *,
        if_match: IfMatch | None = None,
        if_none_match: Literal["*"] | None = None,
    ) -> NamespaceAnswer:
        """Makes a namespace, or puts other quotas in place of those that it had."""
        call = Call("PUT", _namespace(name), to_json(namespace), keys=("namespace", "revision"))
        call.headers = _preconditions(if_match, if_none_match)
        call.repeatable = True
        return cast(NamespaceAnswer, self._ask(call))

    def namespace(self, name: str) -> NamespaceAnswer:
        """The quotas of a namespace, and in ``usage`` what it has of each."""
        return cast(NamespaceAnswer, self._ask(_read(_namespace(name), "namespace", "revision")))

    def namespaces(self) -> List[NamespaceAnswer]:
        """All namespaces in order of their names, with their quotas and without their ``usage``."""
        return cast(Namespaces, self._ask(_read("/v1/namespaces", "namespaces")))["namespaces"]

    def remove_namespace(self, name: str, *, if_match: IfMatch | None = None) -> NamespaceRemoved:
        """Removes a namespace that has no timers, queues, endpoints and tokens; of ``default``, its quotas."""
        call = Call("DELETE", _namespace(name), keys=("namespace", "removed"), repeatable=True)
        call.headers = _preconditions(if_match)
        return cast(NamespaceRemoved, self._ask(call))

    # Tokens and the audit log

    def create_token(
        self,
        name: str,
        scopes: Union[Scope, Sequence[Scope]],
        *,
        expires_in: Duration | None = None,
        certificate: str | None = None,
        namespace: str | None = None,
    ) -> TokenMade:
        """Makes a token that opens what its scopes say. ``token`` of the answer is the token, and no other answer has it.

        A ``certificate`` such as ``"dns:worker.example"`` stands for a token without a secret. A token with a ``namespace``
        opens what is in it, and nothing else. The call is not repeated after a lost answer.
        """
        fields: dict[str, Any] = {"name": name, "scopes": [scopes] if isinstance(scopes, str) else [*scopes]}
        if expires_in is not None:
            fields["expires_in"] = duration(expires_in)
        if certificate is not None:
            fields["certificate"] = certificate
        if namespace is not None:
            fields["namespace"] = namespace
        call = Call("POST", "/v1/tokens", to_json(fields), keys=("id", "revision"))
        return cast(TokenMade, self._ask(call))

    def tokens(self) -> List[Token]:
        """All tokens in order of their ids, without their secrets."""
        return cast(Tokens, self._ask(_read("/v1/tokens", "tokens")))["tokens"]

    def token(self, id: str) -> Token:
        """A token, without its secret."""
        return cast(Token, self._ask(_read(_token(id), "id", "revision")))

    def rotate_token(self, id: str, *, overlap: Duration | None = None) -> TokenMade:
        """Gives a token another secret. The one before counts for ``overlap`` still, by default not at all.

        The answer alone has the new secret, so the call is not repeated after a lost answer.
        """
        fields = {} if overlap is None else {"overlap": duration(overlap)}
        call = Call("POST", _token(id) + ":rotate", to_json(fields), keys=("id", "revision"))
        return cast(TokenMade, self._ask(call))

    def revoke_token(self, id: str, *, if_match: IfMatch | None = None) -> TokenRevoked:
        """Revokes a token: it opens nothing any more."""
        call = Call("DELETE", _token(id), keys=("id", "revoked"), repeatable=True)
        call.headers = _preconditions(if_match)
        return cast(TokenRevoked, self._ask(call))

    def audit_page(
        self,
        *,
        since: Time | None = None,
        until: Time | None = None,
        who: str | None = None,
        operation: str | None = None,
        order: Literal["newest", "oldest"] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AuditPage:
        """One page of the audit log, and the cursor of the next one.

        A page with fewer entries than ``limit`` is not the last one while ``next`` is there. ``unreadable`` counts entries that
        cannot be read.
        """
        parameters = {
            "since": since,
            "until": until,
            "who": who,
            "operation": operation,
            "order": order,
            "limit": limit,
            "after": after,
        }
        return cast(AuditPage, self._ask(_read("/v1/audit" + query(parameters), "items", "next")))

    def audit(
        self,
        *,
        since: Time | None = None,
        until: Time | None = None,
        who: str | None = None,
        operation: str | None = None,
        order: Literal["newest", "oldest"] | None = None,
        limit: int | None = None,
    ) -> Iterator[AuditEntry]:
        """The entries of the audit log, the newest first, page by page. ``limit`` is for a page.

        ``since`` and ``until`` are the first time and the one behind the last; ``who`` is the id or the name of a token, or a
        kind of caller; ``operation`` is one such as ``"putQueue"``.
        """
        after: str | None = None
        while True:
            page = self.audit_page(
                since=since,
                until=until,
                who=who,
                operation=operation,
                order=order,
                limit=limit,
                after=after,
            )
            for entry in page["items"]:
                yield entry
            after = page["next"]
            if after is None:
                return

    # Leases

    def lease(
        self,
        queues: Union[str, Sequence[str]],
        *,
        max: int = 1,
        lease: Duration | None = None,
        wait: float = 0.0,
        worker: str | None = None,
    ) -> List[Lease]:
        """Leases timers that are due of a queue of mode ``pull``, or of several. ``wait`` is in seconds, at most 60."""
        request: dict[str, Any] = {"max": max}
        if lease is not None:
            request["lease"] = duration(lease)
        if wait > 0:
            request["wait"] = int(wait * 1000)
        if worker is not None:
            request["worker"] = worker
        if isinstance(queues, str):
            path = _queue(queues) + ":lease"
        else:
            path = "/v1/leases"
            request["queues"] = [*queues]
        call = Call("POST", path, to_json(request), keys=("leases",), waits=wait)
        return cast(List[Lease], (self._ask(call))["leases"])

    def ack(self, lease: LeaseName) -> LeaseResult:
        """Says that what was leased is done. ``lease_lost`` if the lease is over."""
        return self._settle("ack", lease, {})

    def nack(
        self,
        lease: LeaseName,
        *,
        in_: Duration | None = None,
        dead: bool = False,
        detail: str | None = None,
    ) -> LeaseResult:
        """Says that what was leased has failed: the next attempt comes as ``retry`` says, after ``in_``, or never."""
        more: dict[str, Any] = due(in_, None)
        if dead:
            more["dead"] = True
        if detail is not None:
            more["detail"] = detail
        return self._settle("nack", lease, more)

    def extend(self, lease: LeaseName, by: Duration) -> LeaseResult:
        """Lets a lease end so long from now."""
        return self._settle("extend", lease, {"lease": duration(by)})

    def ack_many(self, leases: Sequence[LeaseName]) -> List[LeaseResult]:
        """Says that up to 1,000 leases are done. Each result has its own ``status``."""
        return self._settle_many("ack", leases, {})

    def extend_many(self, leases: Sequence[LeaseName], by: Duration) -> List[LeaseResult]:
        """Lets up to 1,000 leases end so long from now. Each result has its own ``status``."""
        return self._settle_many("extend", leases, {"lease": duration(by)})

    def _settle(self, verb: str, lease: LeaseName, more: Mapping[str, Any]) -> LeaseResult:
        body = to_json({**_lease_name(lease), **more})
        # The token is a precondition: a repeat does nothing that the first has not done.
        call = Call("POST", f"/v1/leases:{verb}", body, keys=("status",), repeatable=True)
        return cast(LeaseResult, self._ask(call))

    def _settle_many(
        self, verb: str, leases: Sequence[LeaseName], more: Mapping[str, Any]
    ) -> List[LeaseResult]:
        items = [{**_lease_name(lease), **more} for lease in leases]
        call = Call("POST", f"/v1/leases:{verb}", to_json({"items": items}), keys=("results",), repeatable=True)
        return cast(List[LeaseResult], (self._ask(call))["results"])

    # Events

    def events(
        self,
        *,
        namespace: str | None = None,
        queue: str | None = None,
        prefix: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
    ) -> Iterator[Event]:
        """What happens from now on, or after the event of that ``id``, without an end.

        A stream that breaks off is resumed after its last event. The kind ``gap`` says that events are missing there: what
        they were about has to be read anew. The service that stays away for longer than the ``total`` of the client's
        :class:`Retries` raises the error of the last attempt.
        """
        path = "/v1/events" + query(
            {"namespace": namespace, "queue": queue, "prefix": prefix, "kinds": kinds or None}
        )
        failures = 0
        while True:
            call = Call("GET", path, repeatable=True, changes=False)
            call.headers = {"Accept": "text/event-stream"}
            if after is not None:
                call.headers["Last-Event-ID"] = after
            reader = EventReader(after or "")
            with ExitStack() as stack:
                stream = self._open(call, stack, silence=EVENTS_SILENCE, kind="text/event-stream")
                try:
                    for chunk in stream.iter_stream():
                        for event in reader.feed(chunk):
                            failures = 0
                            yield event
                except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.RemoteProtocolError):
                    pass
            after = reader.last or after
            failures += 1
            self._turn += 1
            io.sleep(self._retries.delay(failures, reader.retry))

    # Figures

    def stats(self) -> Stats:
        """The figures of the service: timers by state and due time, what is overdue, what runs and what was done."""
        return cast(Stats, self._ask(_read("/v1/stats", "timers", "due")))

    def stats_due(
        self, *, from_: Time | None = None, to: Time | None = None, step: Duration | None = None
    ) -> DueStats:
        """How many timers are due when, in buckets of ``step``. ``next`` is the ``from_`` of the next call."""
        path = "/v1/stats/due" + query({"from": from_, "to": to, "step": None if step is None else _step(step)})
        return cast(DueStats, self._ask(_read(path, "buckets", "next")))

    # What is asked beside

    def simulate(self, request: Simulate) -> Simulated:
        """When each attempt would come under a retry policy, or each run of a schedule.

        With a ``queue`` or an ``endpoint`` the request takes from there what it leaves open.
        """
        call = Call("POST", "/v1/simulate", to_json(request), keys=("then",), repeatable=True, changes=False)
        return cast(Simulated, self._ask(call))

    def cluster(self) -> Cluster:
        """The cluster at a glance."""
        return cast(Cluster, self._ask(_read("/v1/cluster", "node", "shards")))

    def cluster_nodes(self) -> Nodes:
        """All nodes that have joined and not left."""
        return cast(Nodes, self._ask(_read("/v1/cluster/nodes", "nodes")))

    def cluster_shards(self) -> Shards:
        """All shards, with their owners."""
        return cast(Shards, self._ask(_read("/v1/cluster/shards", "shards")))

    # How it is asked

    def _ask(self, call: Call) -> dict[str, Any]:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                answer = self._once(call, attempts.left())
                return read_json(call, answer)
            except CountwheelError as error:
                self._next_server(error)
                delay = attempts.failed(error)
            io.sleep(delay)

    def _next_server(self, error: CountwheelError) -> None:
        """Turns to another node, which may be there, after an error that may pass."""
        if error.transient:
            self._turn += 1

    def _once(self, call: Call, left: float) -> Answer:
        """One attempt, to its end."""
        within = max(0.001, min(self._timeout + call.waits, left))
        sent = _Sent()
        server = self._servers[self._turn % len(self._servers)]
        try:
            with io.fail_after(within):
                with self._stream(call, server, within, sent) as stream:
                    answer = Answer(stream.status, headers_of(stream.headers))
                    return self._read(answer, stream)
        except Exception as error:
            raise failure_of(error, server=server.text, sent=sent.head, within=within) from error

    def _read(self, answer: Answer, stream: httpcore.Response) -> Answer:
        """Reads the body of an answer, as far as it may go."""
        most = self._max_answer if 200 <= answer.status < 300 else MAX_PROBLEM
        chunks, size = [], 0
        for chunk in stream.iter_stream():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise NotCountwheel(f"the answer is longer than {most} bytes", status=answer.status)
        answer.body = b"".join(chunks)
        return answer

    def _open(
        self, call: Call, stack: ExitStack, *, silence: float, kind: str = "application/x-ndjson"
    ) -> httpcore.Response:
        """The stream that answers a call, which ends with the stack. Each read of it may take as long as the silence."""
        attempts = Attempts(call, self._retries)
        while True:
            try:
                return self._open_once(call, stack, attempts.left(), silence, kind)
            except CountwheelError as error:
                self._next_server(error)
                delay = attempts.failed(error)
            io.sleep(delay)

    def _open_once(
        self, call: Call, stack: ExitStack, left: float, silence: float, kind: str
    ) -> httpcore.Response:
        within = max(0.001, min(self._timeout, left))
        sent = _Sent()
        server = self._servers[self._turn % len(self._servers)]
        try:
            with ExitStack() as opened:
                with io.fail_after(within):
                    stream: httpcore.Response = opened.enter_context(
                        self._stream(call, server, silence, sent)
                    )
                    answer = Answer(stream.status, headers_of(stream.headers))
                    if not 200 <= stream.status < 300:
                        raise refusal(self._read(answer, stream))
                    found = (answer.header("content-type") or "").partition(";")[0].strip().lower()
                    if found != kind:
                        raise NotCountwheel(f"{stream.status} with {found!r} in place of {kind}", status=stream.status)
                stack.enter_context(opened.pop_all())
                return stream
        except Exception as error:
            raise failure_of(error, server=server.text, sent=sent.head, within=within) from error

    def _stream(self, call: Call, server: Server, within: float, sent: _Sent) -> Any:
        headers = {
            "Host": server.name,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": USER_AGENT,
            **self._authorization,
            **call.headers,
        }
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return self._pool.stream(
            call.method,
            server.url(call.path),
            headers=[*headers.items()],
            content=call.body,
            extensions={
                "timeout": {name: within for name in ("connect", "read", "write", "pool")},
                "trace": sent.trace,
            },
        )


class _Sent:
    """Notes whether the head of a request has left."""

    head = False

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        if name.endswith("send_request_headers.started"):
            self.head = True


def _read(path: str, *keys: str) -> Call:
    return Call("GET", path, keys=keys, repeatable=True, changes=False)


def _queue(queue: str) -> str:
    return f"/v1/queues/{segment(queue)}"


def _queues(queue: str | None) -> str:
    return "/v1/queues" if queue is None else _queue(queue)


def _timers(queue: str | None) -> str:
    return "/v1/timers" if queue is None else _queue(queue) + "/timers"


def _timer(queue: str, key: str) -> str:
    return f"{_queue(queue)}/timers/{segment(key)}"


def _endpoint(name: str) -> str:
    return f"/v1/endpoints/{segment(name)}"


def _namespace(name: str) -> str:
    return f"/v1/namespaces/{segment(name)}"


def _token(id: str) -> str:
    return f"/v1/tokens/{segment(id)}"


def _step(step: Duration) -> str:
    """A duration in a query, where a number has to name its unit."""
    text = duration(step)
    return f"{text}ms" if isinstance(text, int) else text


def _lease_name(lease: LeaseName) -> dict[str, str]:
    return {"queue": lease["queue"], "key": lease["key"], "token": lease["token"]}


def _preconditions(if_match: IfMatch | None, if_none_match: Literal["*"] | None = None) -> dict[str, str]:
    headers = {}
    if if_match is not None:
        headers["If-Match"] = "*" if if_match == "*" else f'"{if_match}"'
    if if_none_match is not None:
        headers["If-None-Match"] = if_none_match
    return headers


def _traced(traceparent: str | None) -> dict[str, str]:
    return {} if traceparent is None else {"traceparent": _header(traceparent)}


def _quoted(key: str) -> str:
    escaped = _header(key).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _header(text: str) -> str:
    if not text or any(not " " <= character <= "~" for character in text):
        raise ValueError(f"{text!r} is empty, or has a character that no header can carry")
    return text


def _broken(done: int) -> OutcomeUnknown:
    error = OutcomeUnknown(f"the answer to a batch broke off: of operation {done} and later ones there is no result")
    error.operations_done = done
    return error
