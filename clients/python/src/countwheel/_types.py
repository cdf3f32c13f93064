"""The objects of the API. Made from its OpenAPI document by ``tools/generate.py``: change nothing here."""

import sys
from typing import Any, Literal, Union

if sys.version_info >= (3, 11):
    from typing import NotRequired, TypedDict
else:
    from typing_extensions import NotRequired, TypedDict

# A whole number of milliseconds, or a text such as 30m, 1h 30m, 250ms, 7d or PT30M.
Duration = Union[int, str]


class Adaptive(TypedDict):
    """Between which delays the receiver may choose the next run."""

    max: Duration
    min: Duration


# A time as RFC 3339 writes it, with an offset. Answers have UTC with six digits of a second.
Time = str


class AuditStood(TypedDict):
    """How a timer or a setting stood."""

    attempts: NotRequired[int]
    due: NotRequired[Time]
    revision: NotRequired[int]
    state: NotRequired[Literal["pending", "delivering", "done", "dead", "unreadable"]]


class AuditField(TypedDict):
    """A field of a setting that is another than before. A value that is long or could be a secret is left out."""

    after: NotRequired[Any]
    before: NotRequired[Any]
    field: str


class AuditWho(TypedDict):
    """Who has asked."""

    id: NotRequired[str]
    kind: Literal["token", "configured", "anyone", "service", "directory"]
    name: NotRequired[str]
    session: NotRequired[bool]



# A change, and who has asked for it.
AuditEntry = TypedDict(
    "AuditEntry",
    {
        "action": NotRequired[Literal["set", "move", "remove", "fire", "revive"]],
        "after": Union[AuditStood, None],
        "at": Time,
        "before": Union[AuditStood, None],
        "certificate": NotRequired[str],
        "details": NotRequired[Any],
        "fields": list[AuditField],
        "from": NotRequired[str],
        "id": str,
        "kept_until": Time,
        "key": NotRequired[str],
        "operation": NotRequired[str],
        "queue": NotRequired[str],
        "request": NotRequired[str],
        "setting": NotRequired[str],
        "who": AuditWho,
    },
)


class AuditPage(TypedDict):
    """A page of the audit log."""

    items: list[AuditEntry]
    next: Union[str, None]
    unreadable: NotRequired[int]


class BackfilledRun(TypedDict):
    """A run of the past."""

    key: str
    nominal: Time
    result: Literal["made", "exists", "new"]


class Backfilled(TypedDict):
    """What a backfill has made."""

    dry_run: bool
    existing: int
    made: int
    next: Union[Time, None]
    runs: list[BackfilledRun]


class FieldError(TypedDict):
    """A field at fault."""

    detail: str
    pointer: str


# The state of a timer. A timer that a worker has is leased.
State = Literal["pending", "delivering", "leased", "done", "dead"]


class BatchLine(TypedDict):
    """The result of one operation of a batch."""

    attempt: NotRequired[int]
    ceiling: NotRequired[Union[str, int]]
    code: NotRequired[str]
    detail: NotRequired[str]
    due: NotRequired[Time]
    errors: NotRequired[list[FieldError]]
    i: int
    id: NotRequired[str]
    key: NotRequired[str]
    leased_until: NotRequired[Time]
    old_due: NotRequired[Time]
    queue: NotRequired[str]
    quota: NotRequired[Literal["timers", "bytes", "queues", "endpoints", "rate", "connections"]]
    replaced: NotRequired[Union[Literal["pending", "delivering", "done", "dead"], None]]
    revision: NotRequired[int]
    state: NotRequired[State]
    status: int
    was: NotRequired[str]
    worker: NotRequired[str]


class BatchResult(TypedDict):
    """What came of one operation of a batch: of its own request, or the refusal."""

    attempt: NotRequired[int]
    ceiling: NotRequired[Union[str, int]]
    code: NotRequired[str]
    detail: NotRequired[str]
    due: NotRequired[Time]
    errors: NotRequired[list[FieldError]]
    id: NotRequired[str]
    key: NotRequired[str]
    leased_until: NotRequired[Time]
    old_due: NotRequired[Time]
    queue: NotRequired[str]
    quota: NotRequired[Literal["timers", "bytes", "queues", "endpoints", "rate", "connections"]]
    replaced: NotRequired[Union[Literal["pending", "delivering", "done", "dead"], None]]
    revision: NotRequired[int]
    state: NotRequired[State]
    status: int
    was: NotRequired[str]
    worker: NotRequired[str]


# A short text by which lists and jobs find timers.
Tag = str


class JobFilter(TypedDict):
    """Which timers of the queue a job changes."""

    due_after: NotRequired[Time]
    due_before: NotRequired[Time]
    prefix: NotRequired[str]
    states: NotRequired[list[Literal["pending", "done", "dead"]]]
    tags: NotRequired[list[Tag]]



# Where a deadline is moved.
MoveIn = TypedDict(
    "MoveIn",
    {
        "in": Duration,
    },
)


class MoveAt(TypedDict):
    """Where a deadline is moved."""

    at: Time


# A duration with or without a minus before it.
SignedDuration = Union[int, str]


class MoveBy(TypedDict):
    """Where a deadline is moved."""

    by: SignedDuration


# Where a deadline is moved.
Move = Union[MoveIn, MoveAt, MoveBy]

# The name of a queue, behind the name of its namespace and a slash unless that is default.
QueueName = str


class BeginJob(TypedDict):
    """A job: one change of many timers of a queue."""

    action: Literal["remove", "move", "fire", "revive"]
    dry_run: NotRequired[bool]
    filter: JobFilter
    move: NotRequired[Move]
    queue: QueueName
    rate: NotRequired[int]


class Database(TypedDict):
    """The database of a cluster."""

    durability: Union[str, None]
    oldest_snapshot_ms: Union[int, None]
    reachable: bool
    server: Union[str, None]
    sync: Union[list[str], None]


class ClusterEvent(TypedDict):
    """What happened to a shard or to this node."""

    at: Time
    detail: str
    event: str
    shard: Union[int, None]


class NodeCounts(TypedDict):
    """How many nodes there are."""

    draining: int
    live: int
    over: int


class ShardCounts(TypedDict):
    """How many shards there are."""

    free: int
    handing_over: int
    overdue: int
    owned: int
    taking: int


class Cluster(TypedDict):
    """The cluster at a glance."""

    as_of: Time
    clock_offset_ms: int
    database: Database
    events: list[ClusterEvent]
    lease_left_ms: int
    node: str
    nodes: NodeCounts
    shards: ShardCounts


class DrainState(TypedDict):
    """How a queue is drained or paused."""

    mode: Literal["pause", "fire", "hold", "remove"]
    until: NotRequired[Time]


class Left(TypedDict):
    """How many timers are left."""

    dead: int
    delivering: int
    pending: int


class PhaseTimes(TypedDict):
    """How long the phases of an attempt took, in microseconds."""

    connect: NotRequired[int]
    first_byte: int
    resolve: NotRequired[int]
    tls: NotRequired[int]


class TargetAnswer(TypedDict):
    """What a target answered."""

    body: NotRequired[str]
    body_base64: NotRequired[str]
    body_bytes: int
    ignored: NotRequired[list[str]]
    status: int
    times_us: PhaseTimes
    truncated: bool


class Attempt(TypedDict):
    """One attempt of a timer."""

    answer: NotRequired[TargetAnswer]
    detail: NotRequired[str]
    due: Time
    ended: NotRequired[Time]
    held_us: int
    late_us: NotRequired[int]
    number: int
    result: NotRequired[Literal["done", "failed", "stopped", "interrupted", "lost"]]
    run: NotRequired[int]
    started: Time


class RunOf(TypedDict):
    """Of which run of which timer a timer is."""

    nominal: Time
    of: str


class Origins(TypedDict):
    """Who says the rules that the timer has left open."""

    missed: NotRequired[Literal["endpoint", "queue", "default"]]
    overlap: NotRequired[Literal["endpoint", "queue", "default"]]
    retry: NotRequired[Literal["endpoint", "queue", "default"]]
    timeout: NotRequired[Literal["endpoint", "queue", "default"]]


class SkipIfOlderThan(TypedDict):
    """The timer is skipped if it is more overdue than this."""

    skip_if_older_than: Duration


# What becomes of a timer that is overdue before its first attempt.
Missed = Union[Literal["fire", "collapse"], SkipIfOlderThan]


class NextAttempt(TypedDict):
    """An attempt to come."""

    at: Time
    attempt: int


# A duration as answers write it: 1m 30s.
DurationText = str


class AdaptiveBounds(TypedDict):
    """Between which delays the receiver may choose the next run."""

    max: DurationText
    min: DurationText


class Recurring(TypedDict):
    """The schedule of a recurring timer, and its position."""

    adaptive: NotRequired[AdaptiveBounds]
    at: NotRequired[Time]
    cron: NotRequired[str]
    dead_runs: int
    every: NotRequired[DurationText]
    every_after: NotRequired[DurationText]
    jitter: NotRequired[DurationText]
    missed_runs: int
    next_runs: list[Time]
    nominal: Time
    overlap: Literal["skip", "queue"]
    overlapped_runs: int
    repeats: NotRequired[int]
    run: int
    until: NotRequired[Time]
    zone: NotRequired[str]


class RetrySchedule(TypedDict):
    """A retry policy: when attempts come that follow a failure."""

    jitter: NotRequired[Literal["none", "full", "equal"]]
    max_age: NotRequired[Duration]
    max_attempts: NotRequired[int]
    schedule: list[Duration]


class RetryPreset(TypedDict):
    """A retry policy: when attempts come that follow a failure."""

    jitter: NotRequired[Literal["none", "full", "equal"]]
    max_age: NotRequired[Duration]
    max_attempts: NotRequired[int]
    preset: Literal["wechat", "dubbo", "dubbo-registry", "eureka", "go-zero"]


class RetryFixed(TypedDict):
    """A retry policy: when attempts come that follow a failure."""

    fixed: Duration
    jitter: NotRequired[Literal["none", "full", "equal"]]
    max_age: NotRequired[Duration]
    max_attempts: NotRequired[int]


class Linear(TypedDict):
    """Each delay is longer than the last by the same."""

    cap: NotRequired[Duration]
    first: Duration
    increment: Duration


class RetryLinear(TypedDict):
    """A retry policy: when attempts come that follow a failure."""

    jitter: NotRequired[Literal["none", "full", "equal"]]
    linear: Linear
    max_age: NotRequired[Duration]
    max_attempts: NotRequired[int]


class Exponential(TypedDict):
    """Each delay is a multiple of the last."""

    cap: Duration
    factor: NotRequired[float]
    first: Duration


class RetryExponential(TypedDict):
    """A retry policy: when attempts come that follow a failure."""

    exponential: Exponential
    jitter: NotRequired[Literal["none", "full", "equal"]]
    max_age: NotRequired[Duration]
    max_attempts: NotRequired[int]


# A retry policy: when attempts come that follow a failure.
Retry = Union[RetrySchedule, RetryPreset, RetryFixed, RetryLinear, RetryExponential]

# Headers by name: at most 32, and 8 KiB in all.
Headers = dict[str, str]


class TimerTarget(TypedDict):
    """Where a timer is delivered."""

    endpoint: NotRequired[str]
    headers: Headers
    method: NotRequired[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]]
    path: NotRequired[str]
    timeout: NotRequired[DurationText]
    url: NotRequired[str]



# A timer that a drain has removed: the only copy.
HandedBack = TypedDict(
    "HandedBack",
    {
        "attempt": int,
        "attempts": list[Attempt],
        "backfill": NotRequired[RunOf],
        "body": NotRequired[Any],
        "body_base64": NotRequired[str],
        "body_bytes": int,
        "content_type": Union[str, None],
        "created": Time,
        "dead_at": NotRequired[Time],
        "dead_reason": NotRequired[Literal["exhausted", "too_old", "stopped", "interrupted", "missed", "lease_lost"]],
        "done_at": NotRequired[Time],
        "due": Time,
        "failures": int,
        "from": NotRequired[Origins],
        "held_by": NotRequired[str],
        "id": str,
        "keep_until": NotRequired[Time],
        "key": str,
        "leased_until": NotRequired[Time],
        "missed": NotRequired[Missed],
        "next_attempts": NotRequired[list[NextAttempt]],
        "priority": NotRequired[int],
        "queue": str,
        "recurring": NotRequired[Recurring],
        "retry": Retry,
        "revision": int,
        "serial_key": NotRequired[str],
        "spread": NotRequired[DurationText],
        "spread_drawn": NotRequired[DurationText],
        "state": State,
        "tags": NotRequired[list[Tag]],
        "target": Union[TimerTarget, None],
        "trace_id": NotRequired[str],
        "worker": NotRequired[str],
    },
)


class Drained(TypedDict):
    """A queue, or all of them, that was paused or drained."""

    drain: DrainState
    left: Left
    queue: Union[str, None]
    removed: NotRequired[list[HandedBack]]



# How many timers pend that are due within a span of time.
DueBucket = TypedDict(
    "DueBucket",
    {
        "from": Time,
        "timers": int,
        "until": Union[Time, None],
    },
)


class DelaysDrift(TypedDict):
    """How far the buckets of delays are from where the wall clock shows them now, in microseconds."""

    least: int
    most: int


class Overdue(TypedDict):
    """How many timers pend of which the time has come."""

    exact: NotRequired[bool]
    oldest: NotRequired[Time]
    timers: int
    until: Union[Time, None]


class DueStats(TypedDict):
    """How many timers are due when."""

    as_of: Time
    buckets: list[DueBucket]
    delays_drift_micros: DelaysDrift
    exact: NotRequired[bool]
    next: Union[Time, None]
    nodes: int
    overdue: Union[Overdue, None]


class Breaker(TypedDict):
    """When an endpoint is left alone, and for how long."""

    failures: int
    pause: DurationText
    pause_max: DurationText


class ClientCertificate(TypedDict):
    """What the service shows in TLS."""

    certificate: str


class LastFailure(TypedDict):
    """The last failure of an endpoint."""

    at: Time
    detail: str


class EndpointHealth(TypedDict):
    """How an endpoint does, as the node that answers sees it."""

    failures: int
    last_failure: NotRequired[LastFailure]
    state: Literal["healthy", "degraded", "paused", "probing", "disabled"]
    until: NotRequired[Time]


class RateLimit(TypedDict):
    """How many attempts may start."""

    burst: int
    per_second: float


class Secret(TypedDict):
    """A secret, of which nothing secret is shown."""

    created: Time
    id: str


# What statuses of answers mean, by status (200 to 599) or class (2xx, 3xx, 4xx, 5xx).
Statuses = dict[str, Literal["done", "retry", "stop"]]


class Endpoint(TypedDict):
    """An endpoint, of which nothing secret is shown."""

    allow: NotRequired[list[str]]
    auto_disable: NotRequired[DurationText]
    breaker: NotRequired[Breaker]
    ca: NotRequired[str]
    client_certificate: NotRequired[ClientCertificate]
    concurrency: NotRequired[int]
    disabled: bool
    disabled_at: NotRequired[Time]
    disabled_reason: NotRequired[str]
    egress_proxy: NotRequired[str]
    endpoint: str
    fault: NotRequired[str]
    headers: Headers
    health: EndpointHealth
    http: NotRequired[Literal["auto", "1.1"]]
    rate: NotRequired[RateLimit]
    retry: NotRequired[Retry]
    revision: int
    sealed: NotRequired[bool]
    secrets: list[Secret]
    statuses: NotRequired[Statuses]
    timeout: NotRequired[DurationText]
    url: str


class EndpointRemoved(TypedDict):
    """An endpoint is removed."""

    endpoint: str
    removed: bool


class EndpointTested(TypedDict):
    """What came of a test."""

    attempt: Attempt
    endpoint: str
    revision: int


class Endpoints(TypedDict):
    """A page of endpoints."""

    endpoints: list[Endpoint]
    next: Union[str, None]
    unreadable: NotRequired[int]


class JobFilterShown(TypedDict):
    """Which timers a job changes."""

    due_after: NotRequired[Time]
    due_before: NotRequired[Time]
    prefix: NotRequired[str]
    states: list[Literal["pending", "delivering", "done", "dead"]]
    tags: NotRequired[list[Tag]]



# Where a job moves timers.
JobMove = TypedDict(
    "JobMove",
    {
        "at": NotRequired[Time],
        "by": NotRequired[DurationText],
        "in": NotRequired[DurationText],
    },
)


class Job(TypedDict):
    """A job as it stands."""

    action: Literal["remove", "move", "fire", "revive"]
    cancelled: NotRequired[bool]
    done: int
    dry_run: bool
    ended: NotRequired[Time]
    filter: JobFilterShown
    id: int
    matched: int
    move: NotRequired[JobMove]
    queue: str
    rate: NotRequired[int]
    shards_left: int
    since: Time
    skipped: int


class Jobs(TypedDict):
    """All jobs that are shown."""

    jobs: list[Job]


class Lease(TypedDict):
    """A timer that a worker has for a while."""

    attempt: int
    body: NotRequired[str]
    body_base64: NotRequired[str]
    content_type: NotRequired[str]
    due: Time
    headers: NotRequired[Headers]
    held_us: int
    id: str
    key: str
    late_us: int
    leased_until: Time
    queue: str
    run: NotRequired[int]
    token: str
    traceparent: NotRequired[str]


class LeaseResult(TypedDict):
    """What became of one lease."""

    code: NotRequired[str]
    detail: NotRequired[str]
    due: NotRequired[Time]
    key: str
    leased_until: NotRequired[Time]
    queue: str
    state: NotRequired[State]
    status: int
    worker: NotRequired[str]


class Moved(TypedDict):
    """What a move did."""

    due: Time
    old_due: Time
    revision: int


# A namespace of queues.
Namespace = str


class Rate(TypedDict):
    """How many attempts may start."""

    burst: NotRequired[int]
    per_second: float


class Quotas(TypedDict):
    """How much a namespace may have. Without a quota it may have as much as there is."""

    bytes: NotRequired[int]
    connections: NotRequired[int]
    endpoints: NotRequired[int]
    queues: NotRequired[int]
    rate: NotRequired[Rate]
    timers: NotRequired[int]


class NamespaceUsage(TypedDict):
    """What a namespace has."""

    bytes: NotRequired[int]
    connections: int
    endpoints: int
    queues: int
    timers: int


class NamespaceAnswer(TypedDict):
    """A namespace with its quotas."""

    audit_timers: bool
    namespace: Namespace
    quotas: Quotas
    revision: Union[int, None]
    usage: NotRequired[NamespaceUsage]


class NamespaceRemoved(TypedDict):
    """A namespace is removed."""

    namespace: Namespace
    removed: bool


class Namespaces(TypedDict):
    """All namespaces."""

    namespaces: list[NamespaceAnswer]


class NextRun(TypedDict):
    """A run to come."""

    due: Time
    local: NotRequired[str]
    nominal: Time


class NextRuns(TypedDict):
    """A page of runs to come."""

    next: Union[Time, None]
    runs: list[NextRun]


class Node(TypedDict):
    """A node of the cluster."""

    api: str
    here: bool
    id: str
    lease_left_ms: int
    node: str
    peers: Union[str, None]
    shards: int
    state: Literal["live", "draining", "over"]
    version: str
    weight: int
    zones: str


class Nodes(TypedDict):
    """All nodes that have joined and not left."""

    as_of: Time
    nodes: list[Node]


class PurgeFilter(TypedDict):
    """What a purge removes."""

    due_after: NotRequired[Time]
    due_before: NotRequired[Time]
    prefix: NotRequired[str]
    states: NotRequired[list[Literal["pending", "done", "dead"]]]


class NewBreaker(TypedDict):
    """When an endpoint is left alone, and for how long."""

    failures: NotRequired[int]
    pause: NotRequired[Duration]
    pause_max: NotRequired[Duration]


class NewClientCertificate(TypedDict):
    """What the service shows in TLS."""

    certificate: str
    key: NotRequired[str]


class NewSecret(TypedDict):
    """What signs deliveries. An id without a secret keeps the secret of that id."""

    id: str
    secret: NotRequired[str]


class PutEndpoint(TypedDict):
    """An endpoint: a place for deliveries that has a name."""

    allow: NotRequired[list[str]]
    auto_disable: NotRequired[Duration]
    breaker: NotRequired[NewBreaker]
    ca: NotRequired[str]
    client_certificate: NotRequired[NewClientCertificate]
    concurrency: NotRequired[int]
    disabled: NotRequired[bool]
    egress_proxy: NotRequired[str]
    headers: NotRequired[Headers]
    http: NotRequired[Literal["auto", "1.1"]]
    rate: NotRequired[Rate]
    retry: NotRequired[Retry]
    secrets: NotRequired[list[Union[str, NewSecret]]]
    statuses: NotRequired[Statuses]
    timeout: NotRequired[Duration]
    url: str


class PutNamespace(TypedDict):
    """A namespace."""

    audit_timers: NotRequired[bool]
    quotas: NotRequired[Quotas]


class CloudEvents(TypedDict):
    """Deliveries are events of this source and type."""

    source: str
    type: str


# The name of an endpoint, behind the name of its namespace and a slash unless that is default.
EndpointName = str


class Retention(TypedDict):
    """How long timers are kept once they have ended."""

    dead: NotRequired[Union[Duration, None]]
    done: NotRequired[Duration]


class PutQueue(TypedDict):
    """The settings of a queue, for timers that do not say it themselves."""

    cloudevents: NotRequired[CloudEvents]
    concurrency: NotRequired[int]
    endpoint: NotRequired[EndpointName]
    lease: NotRequired[Duration]
    missed: NotRequired[Missed]
    mode: NotRequired[Literal["push", "pull"]]
    overlap: NotRequired[Literal["skip", "queue"]]
    payload_limit: NotRequired[int]
    placement: NotRequired[Literal["spread", "one"]]
    priority: NotRequired[int]
    rate: NotRequired[Rate]
    retention: NotRequired[Retention]
    retry: NotRequired[Retry]
    serial: NotRequired[bool]
    statuses: NotRequired[Statuses]
    timeout: NotRequired[Duration]


class Purge(TypedDict):
    """A purge as it stands."""

    due_after: NotRequired[Time]
    due_before: NotRequired[Time]
    ended: NotRequired[Time]
    id: int
    prefix: NotRequired[str]
    removed: int
    shards_left: int
    since: Time
    states: list[Literal["pending", "delivering", "done", "dead"]]


class RetentionTimes(TypedDict):
    """How long timers are kept once they have ended."""

    dead: Union[DurationText, None]
    done: NotRequired[DurationText]


class Queue(TypedDict):
    """A queue with its counts and settings."""

    cloudevents: NotRequired[CloudEvents]
    concurrency: NotRequired[int]
    dead: int
    delivering: int
    done: int
    drain: NotRequired[DrainState]
    endpoint: NotRequired[str]
    lease: NotRequired[DurationText]
    missed: NotRequired[Missed]
    mode: NotRequired[Literal["push", "pull"]]
    overlap: NotRequired[Literal["skip", "queue"]]
    payload_limit: NotRequired[int]
    pending: int
    placement: NotRequired[Literal["spread", "one"]]
    priority: NotRequired[int]
    purge: NotRequired[Purge]
    queue: str
    rate: NotRequired[RateLimit]
    retention: NotRequired[RetentionTimes]
    retry: NotRequired[Retry]
    revision: Union[int, None]
    serial: NotRequired[bool]
    statuses: NotRequired[Statuses]
    timeout: NotRequired[DurationText]


class QueueCounts(TypedDict):
    """How many timers a queue has, and whether it is drained."""

    dead: int
    delivering: int
    done: int
    drain: NotRequired[DrainState]
    pending: int
    purge: NotRequired[Purge]
    queue: str


class QueuePurge(TypedDict):
    """The purge of a queue."""

    purge: Purge
    queue: str


class QueueRemoved(TypedDict):
    """The settings of a queue are removed."""

    queue: str
    removed: bool


class Queues(TypedDict):
    """All queues."""

    drain: NotRequired[DrainState]
    exact: NotRequired[bool]
    next: Union[str, None]
    queues: list[QueueCounts]


class Removed(TypedDict):
    """What a removed timer was doing."""

    attempt: NotRequired[int]
    due: NotRequired[Time]
    was: Literal["pending", "delivering", "leased", "dead", "unreadable"]


class Resumed(TypedDict):
    """A queue, or all of them, that goes on."""

    left: Left
    queue: Union[str, None]
    was: Union[DrainState, None]


class Shard(TypedDict):
    """A shard of the cluster."""

    commits: NotRequired[int]
    fence: int
    in_flight: NotRequired[int]
    late_p99_us: NotRequired[int]
    overdue: NotRequired[int]
    owner: Union[str, None]
    pending: Union[int, None]
    shard: int
    since: Time
    state: Literal["owned", "taking", "handing_over", "overdue", "free"]
    wanted: Union[str, None]


class Shards(TypedDict):
    """All shards."""

    as_of: Time
    shards: list[Shard]



# A retry policy or a schedule to be gone through.
Simulate = TypedDict(
    "Simulate",
    {
        "at": NotRequired[Time],
        "cron": NotRequired[str],
        "endpoint": NotRequired[EndpointName],
        "every": NotRequired[Duration],
        "every_after": NotRequired[Duration],
        "in": NotRequired[Duration],
        "jitter": NotRequired[Duration],
        "limit": NotRequired[int],
        "missed": NotRequired[Missed],
        "overlap": NotRequired[Literal["skip", "queue"]],
        "queue": NotRequired[QueueName],
        "repeats": NotRequired[int],
        "retry": NotRequired[Retry],
        "start": NotRequired[Time],
        "until": NotRequired[Time],
        "zone": NotRequired[str],
    },
)


class SimulatedAttempt(TypedDict):
    """An attempt of a retry policy."""

    after_ms: int
    at: Time
    attempt: int
    delay_ms: int
    earliest: Time


class SimulatedAttempts(TypedDict):
    """The attempts of a retry policy."""

    attempts: list[SimulatedAttempt]
    then: Union[Literal["dead"], None]
    total_ms: int
    truncated: bool


class SimulatedRun(TypedDict):
    """A run of a schedule."""

    at: Time
    latest: Time
    local: NotRequired[str]
    run: int


class SimulatedRuns(TypedDict):
    """The runs of a schedule."""

    runs: list[SimulatedRun]
    then: Union[Literal["done"], None]
    truncated: bool



# The attempts of a timer of a queue or to an endpoint, and the rules that hold there.
SimulatedThere = TypedDict(
    "SimulatedThere",
    {
        "attempts": list[SimulatedAttempt],
        "from": Origins,
        "missed": Missed,
        "overlap": NotRequired[Literal["skip", "queue"]],
        "retry": Retry,
        "then": Union[Literal["dead"], None],
        "timeout": Union[DurationText, None],
        "total_ms": int,
        "truncated": bool,
    },
)


# What was done between two moments.
DoneRecently = TypedDict(
    "DoneRecently",
    {
        "attempts": int,
        "dead": int,
        "done": int,
        "failed": int,
        "from": Time,
        "moved": int,
        "removed": int,
        "set": int,
        "until": Time,
    },
)


class DoneSoFar(TypedDict):
    """What was done."""

    attempts: int
    dead: int
    done: int
    failed: int
    moved: int
    removed: int
    set: int


class TimerCounts(TypedDict):
    """How many timers there are."""

    dead: int
    delivering: int
    done: int
    exact: NotRequired[bool]
    pending: int
    queues: int


class Stats(TypedDict):
    """The figures of all nodes."""

    as_of: Time
    delays_drift_micros: DelaysDrift
    due: list[DueBucket]
    exact: NotRequired[bool]
    in_flight: int
    leased: int
    nodes: int
    overdue: Union[Overdue, None]
    recent: Union[DoneRecently, None]
    since_start: DoneSoFar
    timers: TimerCounts
    waiting_for_limits: int


class Target(TypedDict):
    """Where a timer is delivered, and how."""

    endpoint: NotRequired[Union[EndpointName, None]]
    headers: NotRequired[Headers]
    method: NotRequired[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]]
    path: NotRequired[str]
    timeout: NotRequired[Duration]
    url: NotRequired[str]


class TestEndpoint(TypedDict):
    """The one request of a test."""

    body: NotRequired[Any]
    headers: NotRequired[Headers]
    method: NotRequired[Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]]
    path: NotRequired[str]



# A timer as it stands.
Timer = TypedDict(
    "Timer",
    {
        "attempt": int,
        "attempts": list[Attempt],
        "backfill": NotRequired[RunOf],
        "body": NotRequired[str],
        "body_base64": NotRequired[str],
        "body_bytes": int,
        "content_type": Union[str, None],
        "created": Time,
        "dead_at": NotRequired[Time],
        "dead_reason": NotRequired[Literal["exhausted", "too_old", "stopped", "interrupted", "missed", "lease_lost"]],
        "done_at": NotRequired[Time],
        "due": Time,
        "failures": int,
        "from": NotRequired[Origins],
        "held_by": NotRequired[str],
        "id": str,
        "keep_until": NotRequired[Time],
        "key": str,
        "leased_until": NotRequired[Time],
        "missed": NotRequired[Missed],
        "next_attempts": NotRequired[list[NextAttempt]],
        "priority": NotRequired[int],
        "queue": str,
        "recurring": NotRequired[Recurring],
        "retry": Retry,
        "revision": int,
        "serial_key": NotRequired[str],
        "spread": NotRequired[DurationText],
        "spread_drawn": NotRequired[DurationText],
        "state": State,
        "tags": NotRequired[list[Tag]],
        "target": Union[TimerTarget, None],
        "trace_id": NotRequired[str],
        "worker": NotRequired[str],
    },
)


class TimerPage(TypedDict):
    """A page of timers."""

    bound_reached: NotRequired[bool]
    exact: NotRequired[bool]
    items: list[Timer]
    next: Union[str, None]
    unreadable: NotRequired[int]


class Token(TypedDict):
    """A token, without its secret."""

    before_until: NotRequired[Time]
    certificate: NotRequired[str]
    created: Time
    expires: NotRequired[Time]
    id: str
    name: str
    namespace: NotRequired[Namespace]
    revision: int
    scopes: list[Literal["read", "write", "deliver", "metrics", "admin"]]


class TokenMade(TypedDict):
    """A token with its secret."""

    before_until: NotRequired[Time]
    certificate: NotRequired[str]
    created: Time
    expires: NotRequired[Time]
    id: str
    name: str
    namespace: NotRequired[Namespace]
    revision: int
    scopes: list[Literal["read", "write", "deliver", "metrics", "admin"]]
    token: NotRequired[str]


class TokenRevoked(TypedDict):
    """A token is revoked."""

    id: str
    revoked: bool


class Tokens(TypedDict):
    """All tokens."""

    tokens: list[Token]


class WasSet(TypedDict):
    """What a set did."""

    due: Time
    id: str
    key: str
    queue: str
    replaced: Union[Literal["pending", "delivering", "done", "dead"], None]
    revision: int
