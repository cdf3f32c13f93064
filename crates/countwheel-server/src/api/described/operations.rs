//! The operations of the API: methods, paths, parameters, requests and answers.

use super::requests::{self, ENDPOINT, KEY, NAMESPACE_NAME, QUEUE, TIME};
use super::{Kind, Shape, answers};
use crate::api::problem::Code;

/// What can be asked of the service.
#[derive(Debug)]
pub(crate) struct Operation {
    /// As programs call it.
    pub(crate) id: &'static str,
    /// What it is about.
    pub(crate) group: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    /// What it does, in one line.
    pub(crate) doc: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) headers: &'static [&'static Parameter],
    pub(crate) request: Request,
    pub(crate) answers: &'static [Answer],
    /// The refusals of its own, beside those of [`Operation::codes`].
    pub(crate) refusals: &'static [Code],
}

/// A parameter of a path, a query or a header.
#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    pub(crate) doc: &'static str,
}

/// The body of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    /// There is none.
    None,
    /// There is an object.
    Needed(&'static Shape),
    /// There is an object of one of these kinds.
    NeededEither(&'static [Kind]),
    /// There may be an object.
    Optional(&'static Shape),
    /// Objects in lines.
    Lines(&'static [&'static Shape]),
}

/// What is answered with a status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) doc: &'static str,
    pub(crate) body: AnswerBody,
    pub(crate) headers: &'static [&'static Parameter],
}

/// The body of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnswerBody {
    Nothing,
    Json(Kind),
    /// Objects in lines.
    Lines(&'static [Kind]),
    /// Server-sent events with such data.
    Events(&'static [Kind]),
    /// A text of one of these media types.
    Of(&'static [&'static str]),
    /// An object, or a page for people.
    Page(Kind),
}

const fn parameter(name: &'static str, kind: Kind, doc: &'static str) -> Parameter {
    Parameter {
        name,
        kind,
        default: "",
        doc,
    }
}

impl Parameter {
    const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }
}

const fn json(status: u16, shape: &'static Shape, doc: &'static str) -> Answer {
    Answer {
        status,
        doc,
        body: AnswerBody::Json(Kind::Object(shape)),
        headers: &[],
    }
}

impl Answer {
    const fn with(self, headers: &'static [&'static Parameter]) -> Self {
        Self { headers, ..self }
    }
}

static ETAG: Parameter = parameter("ETag", Kind::TEXT, "The revision in quotes.");
static LOCATION: Parameter = parameter("Location", Kind::TEXT, "The path of the timer.");
static REPLAYED: Parameter = parameter(
    "Idempotency-Replayed",
    Kind::Words(&["true"]),
    "The answer is that of an earlier request.",
);
pub(crate) static RETRY_AFTER: Parameter = parameter(
    "Retry-After",
    Kind::TEXT,
    "After how many seconds to ask again.",
);
pub(crate) static REQUEST_ID: Parameter = parameter(
    "X-Request-Id",
    Kind::TEXT,
    "By which the log of the service knows the request.",
);

static IF_MATCH: Parameter = parameter(
    "If-Match",
    Kind::Text {
        least: 1,
        most: usize::MAX,
        pattern: r#"^("[0-9]{1,19}"|\*)$"#,
        format: "",
    },
    "The revision that has to be there, in quotes, or * for any.",
);
static IF_NONE_MATCH: Parameter = parameter(
    "If-None-Match",
    Kind::Words(&["*"]),
    "Nothing of that name may exist.",
);
static KNOWN: Parameter = parameter(
    "If-None-Match",
    Kind::TEXT,
    "Tags that the caller has; what has not changed is answered with 304.",
);
static IDEMPOTENCY_KEY: Parameter = parameter(
    "Idempotency-Key",
    Kind::Text {
        least: 1,
        most: 255,
        pattern: r#"^(?:[!#-\[\]-~][ -!#-\[\]-~]{0,253}[!#-\[\]-~]|[!#-\[\]-~])$"#,
        format: "",
    },
    "Makes the request one that may be repeated.",
);
static LAST_EVENT_ID: Parameter = parameter(
    "Last-Event-ID",
    Kind::TEXT,
    "The id of the last event that the caller has; goes before after.",
);
static TRACEPARENT: Parameter = parameter(
    "traceparent",
    Kind::TEXT,
    "The trace that deliveries go on with.",
);
static TRACESTATE: Parameter = parameter("tracestate", Kind::TEXT, "More of that trace.");

/// The parameters that paths have.
pub(crate) static OF_PATHS: [Parameter; 10] = [
    parameter("queue", QUEUE, "The name of the queue."),
    parameter("key", KEY, "The key of the timer, percent-encoded."),
    parameter("name", ENDPOINT, "The name of the endpoint."),
    parameter("id", Kind::COUNT, "The number of the job."),
    parameter(
        "token",
        Kind::Text {
            least: 12,
            most: 12,
            pattern: "^[0-9a-f]+$",
            format: "",
        },
        "The id of the token.",
    ),
    parameter(
        "namespace",
        Kind::Named(&NAMESPACE_NAME),
        "The name of the namespace.",
    ),
    parameter("node", Kind::text(1, usize::MAX), "The name of the node."),
    parameter("shard", Kind::whole(0, 65_535), "The number of the shard."),
    parameter(
        "code",
        Kind::text(1, usize::MAX),
        "The code of the problem.",
    ),
    parameter("file", Kind::text(1, usize::MAX), "The name of the file."),
];

const LIMIT: Parameter =
    parameter("limit", Kind::whole(1, 1_000), "How many a page has.").or("100");

const CURSOR: Parameter = parameter(
    "after",
    Kind::Text {
        least: 10,
        most: usize::MAX,
        pattern: "^[0-9a-f]{8}[.].+$",
        format: "list-cursor",
    },
    "The cursor of the page before.",
);
static LINK: Parameter = parameter("Link", Kind::TEXT, "The next page, with rel=next.");
static LIST_PARAMETERS: [Parameter; 10] = [
    parameter(
        "state",
        Kind::Words(&["pending", "delivering", "done", "dead"]),
        "Only timers in this state.",
    ),
    parameter("prefix", Kind::TEXT, "Only keys that begin with this."),
    parameter("due_after", TIME, "Only timers due then or later."),
    parameter("due_before", TIME, "Only timers due earlier."),
    parameter(
        "tag",
        Kind::Text {
            least: 1,
            most: usize::MAX,
            pattern: "^[A-Za-z0-9._:/=-]{1,64}(,[A-Za-z0-9._:/=-]{1,64}){0,7}$",
            format: "",
        },
        "Only timers that have all of these tags, with commas between them.",
    ),
    LIMIT,
    CURSOR,
    parameter(
        "order",
        Kind::Words(&["due", "created", "trouble"]),
        "In which order.",
    )
    .or("due"),
    parameter(
        "include",
        Kind::Words(&["next_attempts"]),
        "Each pending timer has its attempts to come.",
    ),
    parameter("bodies", Kind::Words(&["text"]), "Each timer has its body."),
];
static LIST_ALL_PARAMETERS: [Parameter; 11] = [
    parameter(
        "state",
        Kind::Words(&["pending", "delivering", "done", "dead"]),
        "Only timers in this state.",
    ),
    parameter("prefix", Kind::TEXT, "Only keys that begin with this."),
    parameter("due_after", TIME, "Only timers due then or later."),
    parameter("due_before", TIME, "Only timers due earlier."),
    parameter(
        "tag",
        Kind::Text {
            least: 1,
            most: usize::MAX,
            pattern: "^[A-Za-z0-9._:/=-]{1,64}(,[A-Za-z0-9._:/=-]{1,64}){0,7}$",
            format: "",
        },
        "Only timers that have all of these tags, with commas between them.",
    ),
    LIMIT,
    CURSOR,
    parameter(
        "order",
        Kind::Words(&["due", "created", "trouble"]),
        "In which order.",
    )
    .or("due"),
    parameter(
        "include",
        Kind::Words(&["next_attempts"]),
        "Each pending timer has its attempts to come.",
    ),
    parameter("bodies", Kind::Words(&["text"]), "Each timer has its body."),
    parameter(
        "queue_prefix",
        QUEUE_PREFIX,
        "Only queues whose names begin with this.",
    ),
];
const QUEUE_PREFIX: Kind = Kind::Text {
    least: 1,
    most: 193,
    pattern: "^[A-Za-z0-9._:/-]+$",
    format: "",
};

const NOT_FOUND: Code = Code::NotFound;
const BAD_TIMER: [Code; 2] = [Code::InvalidQueue, Code::InvalidKey];

const fn operation(
    id: &'static str,
    group: &'static str,
    method: &'static str,
    path: &'static str,
    doc: &'static str,
) -> Operation {
    Operation {
        id,
        group,
        method,
        path,
        doc,
        query: &[],
        headers: &[],
        request: Request::None,
        answers: &[],
        refusals: &[],
    }
}

const TIMER_PATH: &str = "/v1/queues/{queue}/timers/{key}";
const TIMERS_PATH: &str = "/v1/queues/{queue}/timers";

/// What a set may be refused for.
const OF_SET: [Code; 17] = [
    BAD_TIMER[0],
    BAD_TIMER[1],
    NOT_FOUND,
    Code::Draining,
    Code::Conflict,
    Code::RevisionMismatch,
    Code::Exists,
    Code::TooLarge,
    Code::Unschedulable,
    Code::InvalidRetry,
    Code::InvalidTarget,
    Code::InvalidSetting,
    Code::PullQueue,
    Code::AboveCeiling,
    Code::Unreadable,
    Code::StorageFull,
    Code::QuotaExceeded,
];
const OF_POST: [Code; 17] = [
    Code::InvalidQueue,
    Code::Draining,
    Code::Conflict,
    Code::IdempotencyInProgress,
    Code::IdempotencyMismatch,
    Code::TooLarge,
    Code::Unschedulable,
    Code::InvalidRetry,
    Code::InvalidTarget,
    Code::InvalidSetting,
    Code::InvalidKey,
    Code::PullQueue,
    Code::AboveCeiling,
    Code::Unreadable,
    Code::StorageFull,
    Code::NotFound,
    Code::QuotaExceeded,
];
/// What a change of a timer that is there may be refused for.
const OF_CHANGE: [Code; 9] = [
    BAD_TIMER[0],
    BAD_TIMER[1],
    NOT_FOUND,
    Code::Gone,
    Code::Conflict,
    Code::RevisionMismatch,
    Code::Unschedulable,
    Code::Unreadable,
    Code::StorageFull,
];
const OF_SETTINGS: [Code; 14] = [
    Code::InvalidQueue,
    Code::InvalidEndpoint,
    NOT_FOUND,
    Code::RevisionMismatch,
    Code::Exists,
    Code::TooLarge,
    Code::InvalidRetry,
    Code::InvalidTarget,
    Code::InvalidSetting,
    Code::Unschedulable,
    Code::AboveCeiling,
    Code::Unreadable,
    Code::StorageFull,
    Code::QuotaExceeded,
];
const OF_DRAIN: [Code; 5] = [
    Code::InvalidQueue,
    Code::Unschedulable,
    Code::StorageFull,
    NOT_FOUND,
    Code::QuotaExceeded,
];
const OF_LEASE: [Code; 5] = [
    Code::InvalidQueue,
    Code::PushQueue,
    Code::InvalidSetting,
    Code::StorageFull,
    NOT_FOUND,
];
const OF_SETTLE: [Code; 7] = [
    Code::InvalidQueue,
    Code::InvalidKey,
    Code::InvalidSetting,
    Code::LeaseLost,
    Code::StorageFull,
    Code::Unreadable,
    Code::NotFound,
];
const OF_CLUSTER: [Code; 5] = [
    Code::NoCluster,
    Code::UnknownNode,
    Code::NotFound,
    Code::NodeDraining,
    Code::LastNode,
];

pub(crate) static SET: Operation = Operation {
    headers: &[&IF_MATCH, &IF_NONE_MATCH, &TRACEPARENT, &TRACESTATE],
    request: Request::Needed(&requests::SET),
    answers: &[
        json(200, &answers::WAS_SET, "The timer replaced another.").with(&[&ETAG]),
        json(201, &answers::WAS_SET, "The timer is new.").with(&[&ETAG]),
    ],
    refusals: &OF_SET,
    ..operation("setTimer", "timers", "PUT", TIMER_PATH, "Sets a timer.")
};
pub(crate) static POST: Operation = Operation {
    headers: &[&IDEMPOTENCY_KEY, &TRACEPARENT, &TRACESTATE],
    request: Request::Needed(&requests::SET),
    answers: &[json(
        201,
        &answers::WAS_SET,
        "The timer is set, or was by an earlier request.",
    )
    .with(&[&ETAG, &LOCATION, &REPLAYED])],
    refusals: &OF_POST,
    ..operation(
        "postTimer",
        "timers",
        "POST",
        TIMERS_PATH,
        "Sets a timer under a key that the service draws.",
    )
};
pub(crate) static MOVE: Operation = Operation {
    headers: &[&IF_MATCH],
    request: Request::Needed(&requests::MOVE),
    answers: &[json(200, &answers::MOVED, "The timer is moved.").with(&[&ETAG])],
    refusals: &OF_CHANGE,
    ..operation(
        "moveTimer",
        "timers",
        "PATCH",
        TIMER_PATH,
        "Moves a pending timer.",
    )
};
pub(crate) static REMOVE: Operation = Operation {
    query: &[parameter(
        "only",
        Kind::Words(&["pending"]),
        "Removes the timer only in this state.",
    )],
    headers: &[&IF_MATCH],
    answers: &[json(200, &answers::REMOVED, "The timer is removed.")],
    refusals: &OF_CHANGE,
    ..operation(
        "removeTimer",
        "timers",
        "DELETE",
        TIMER_PATH,
        "Removes a timer.",
    )
};
pub(crate) static GET: Operation = Operation {
    query: &[parameter(
        "body",
        Kind::Words(&["text"]),
        "The timer has its body.",
    )],
    headers: &[&KNOWN],
    answers: &[
        json(200, &answers::TIMER, "The timer.").with(&[&ETAG]),
        Answer {
            status: 304,
            doc: "The caller has the timer as it stands.",
            body: AnswerBody::Nothing,
            headers: &[&ETAG],
        },
    ],
    refusals: &[
        Code::InvalidQueue,
        Code::InvalidKey,
        Code::NotFound,
        Code::Unreadable,
    ],
    ..operation("getTimer", "timers", "GET", TIMER_PATH, "Shows a timer.")
};
pub(crate) static LIST: Operation = Operation {
    query: &LIST_PARAMETERS,
    answers: &[json(200, &answers::TIMER_PAGE, "A page.").with(&[&LINK])],
    refusals: &[
        Code::InvalidQueue,
        Code::Gone,
        Code::TooBroad,
        Code::Unreadable,
    ],
    ..operation(
        "listTimers",
        "timers",
        "GET",
        TIMERS_PATH,
        "Lists timers of a queue in order of their due times.",
    )
};
pub(crate) static LIST_ALL: Operation = Operation {
    query: &LIST_ALL_PARAMETERS,
    answers: &[json(200, &answers::TIMER_PAGE, "A page.").with(&[&LINK])],
    refusals: &[
        Code::InvalidQueue,
        Code::Gone,
        Code::TooBroad,
        Code::Unreadable,
    ],
    ..operation(
        "listAllTimers",
        "timers",
        "GET",
        "/v1/timers",
        "Lists timers of all queues.",
    )
};
pub(crate) static FIRE: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(202, &answers::MOVED, "The timer is due now.").with(&[&ETAG])],
    refusals: &OF_CHANGE,
    ..operation(
        "fireTimer",
        "timers",
        "POST",
        "/v1/queues/{queue}/timers/{key}:fire",
        "Makes a pending timer due now.",
    )
};
pub(crate) static REVIVE: Operation = Operation {
    request: Request::Optional(&requests::REVIVE),
    answers: &[json(202, &answers::MOVED, "The timer is pending again.").with(&[&ETAG])],
    refusals: &OF_CHANGE,
    ..operation(
        "reviveTimer",
        "timers",
        "POST",
        "/v1/queues/{queue}/timers/{key}:revive",
        "Makes a dead timer pending from the start of its schedule.",
    )
};
pub(crate) static RESEND: Operation = Operation {
    headers: &[&IF_MATCH, &TRACEPARENT, &TRACESTATE],
    request: Request::Optional(&requests::RESEND),
    answers: &[
        json(200, &answers::WAS_SET, "The timer is set again.").with(&[&ETAG]),
        json(
            201,
            &answers::WAS_SET,
            "The timer is set again, and was gone meanwhile.",
        )
        .with(&[&ETAG]),
    ],
    refusals: &OF_SET,
    ..operation(
        "resendTimer",
        "timers",
        "POST",
        "/v1/queues/{queue}/timers/{key}:resend",
        "Sends a timer again that is done, dead, or pending after a failure.",
    )
};

pub(crate) static RUNS: Operation = Operation {
    query: &[
        LIMIT,
        parameter("after", TIME, "The next of the page before."),
    ],
    answers: &[json(200, &answers::NEXT_RUNS, "A page.")],
    refusals: &[
        Code::InvalidQueue,
        Code::InvalidKey,
        Code::NotFound,
        Code::Conflict,
        Code::Unschedulable,
        Code::Unreadable,
    ],
    ..operation(
        "listRuns",
        "timers",
        "GET",
        "/v1/queues/{queue}/timers/{key}/runs",
        "Lists the runs to come of a recurring timer.",
    )
};
pub(crate) static BACKFILL: Operation = Operation {
    headers: &[&TRACEPARENT, &TRACESTATE],
    request: Request::Needed(&requests::BACKFILL),
    answers: &[json(200, &answers::BACKFILLED, "What was made.")],
    refusals: &OF_SET,
    ..operation(
        "backfillTimer",
        "timers",
        "POST",
        "/v1/queues/{queue}/timers/{key}:backfill",
        "Makes runs of a recurring timer for nominal times of the past.",
    )
};

pub(crate) static LIST_QUEUES: Operation = Operation {
    query: &[
        parameter("limit", Kind::whole(1, 1_000), "How many a page has.").or("1000"),
        CURSOR,
        parameter(
            "prefix",
            QUEUE_PREFIX,
            "Only queues whose names begin with this.",
        ),
        parameter(
            "state",
            Kind::Words(&["pending", "delivering", "done", "dead"]),
            "Only queues with timers in this state.",
        ),
    ],
    answers: &[json(200, &answers::QUEUES, "A page.").with(&[&LINK])],
    refusals: &[Code::Gone],
    ..operation(
        "listQueues",
        "queues",
        "GET",
        "/v1/queues",
        "Lists all queues with their counts.",
    )
};
pub(crate) static GET_QUEUE: Operation = Operation {
    headers: &[&KNOWN],
    answers: &[
        json(200, &answers::QUEUE, "The queue.").with(&[&ETAG]),
        Answer {
            status: 304,
            doc: "The caller has asked for whatever has changed by *.",
            body: AnswerBody::Nothing,
            headers: &[&ETAG],
        },
    ],
    refusals: &[Code::InvalidQueue, Code::NotFound, Code::Unreadable],
    ..operation(
        "getQueue",
        "queues",
        "GET",
        "/v1/queues/{queue}",
        "Shows a queue with its counts and settings.",
    )
};
const OF_PUT_QUEUE: [Code; 15] = {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = OF_SETTINGS;
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        Code::PlacementFixed,
    ]
};
pub(crate) static PUT_QUEUE: Operation = Operation {
    headers: &[&IF_MATCH, &IF_NONE_MATCH],
    request: Request::Needed(&requests::PUT_QUEUE),
    answers: &[
        json(200, &answers::QUEUE, "The settings replaced others.").with(&[&ETAG]),
        json(201, &answers::QUEUE, "The queue had no settings.").with(&[&ETAG]),
    ],
    refusals: &OF_PUT_QUEUE,
    ..operation(
        "putQueue",
        "queues",
        "PUT",
        "/v1/queues/{queue}",
        "Puts the settings of a queue.",
    )
};
pub(crate) static REMOVE_QUEUE: Operation = Operation {
    headers: &[&IF_MATCH],
    answers: &[json(
        200,
        &answers::QUEUE_REMOVED,
        "The settings are removed.",
    )],
    refusals: &[
        Code::InvalidQueue,
        Code::NotFound,
        Code::NotEmpty,
        Code::RevisionMismatch,
        Code::StorageFull,
    ],
    ..operation(
        "removeQueue",
        "queues",
        "DELETE",
        "/v1/queues/{queue}",
        "Removes the settings of a queue that is empty.",
    )
};
pub(crate) static PAUSE_QUEUE: Operation = Operation {
    request: Request::Optional(&requests::PAUSE),
    answers: &[json(200, &answers::DRAINED, "The queue is paused.")],
    refusals: &OF_DRAIN,
    ..operation(
        "pauseQueue",
        "queues",
        "POST",
        "/v1/queues/{queue}:pause",
        "Pauses a queue: nothing starts until it is resumed.",
    )
};
pub(crate) static DRAIN_QUEUE: Operation = Operation {
    request: Request::Needed(&requests::DRAIN),
    answers: &[json(200, &answers::DRAINED, "The queue is drained.")],
    refusals: &OF_DRAIN,
    ..operation(
        "drainQueue",
        "queues",
        "POST",
        "/v1/queues/{queue}:drain",
        "Drains a queue: sets are refused until it is resumed.",
    )
};
pub(crate) static RESUME_QUEUE: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(200, &answers::RESUMED, "The queue goes on.")],
    refusals: &OF_DRAIN,
    ..operation(
        "resumeQueue",
        "queues",
        "POST",
        "/v1/queues/{queue}:resume",
        "Ends the pause or drain of a queue.",
    )
};
pub(crate) static PAUSE_ALL: Operation = Operation {
    request: Request::Optional(&requests::PAUSE),
    answers: &[json(200, &answers::DRAINED, "All queues are paused.")],
    refusals: &OF_DRAIN,
    ..operation(
        "pauseAllQueues",
        "queues",
        "POST",
        "/v1/queues:pause",
        "Pauses all queues.",
    )
};
pub(crate) static DRAIN_ALL: Operation = Operation {
    request: Request::Needed(&requests::DRAIN),
    answers: &[json(200, &answers::DRAINED, "All queues are drained.")],
    refusals: &OF_DRAIN,
    ..operation(
        "drainAllQueues",
        "queues",
        "POST",
        "/v1/queues:drain",
        "Drains all queues.",
    )
};
pub(crate) static RESUME_ALL: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(200, &answers::RESUMED, "All queues go on.")],
    refusals: &OF_DRAIN,
    ..operation(
        "resumeAllQueues",
        "queues",
        "POST",
        "/v1/queues:resume",
        "Ends the pause or drain of all queues.",
    )
};
pub(crate) static PURGE: Operation = Operation {
    request: Request::Optional(&requests::PURGE),
    answers: &[json(202, &answers::QUEUE_PURGE, "The purge has begun.")],
    refusals: &[
        Code::InvalidQueue,
        Code::NotFound,
        Code::Purging,
        Code::StorageFull,
    ],
    ..operation(
        "purgeQueue",
        "queues",
        "POST",
        "/v1/queues/{queue}:purge",
        "Removes timers of a queue in the background.",
    )
};
pub(crate) static CANCEL_PURGE: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(200, &answers::QUEUE_PURGE, "The purge has ended.")],
    refusals: &[Code::InvalidQueue, Code::NotFound, Code::StorageFull],
    ..operation(
        "cancelPurge",
        "queues",
        "POST",
        "/v1/queues/{queue}:cancel-purge",
        "Ends the purge of a queue.",
    )
};

pub(crate) static LEASE_QUEUE: Operation = Operation {
    request: Request::Optional(&requests::LEASE),
    answers: &[json(
        200,
        &answers::LEASES,
        "The leases, which may be none.",
    )],
    refusals: &OF_LEASE,
    ..operation(
        "leaseFromQueue",
        "leases",
        "POST",
        "/v1/queues/{queue}:lease",
        "Leases timers of a queue that are due.",
    )
};
pub(crate) static LEASE_QUEUES: Operation = Operation {
    request: Request::Needed(&requests::LEASE_OF_QUEUES),
    answers: &[json(
        200,
        &answers::LEASES,
        "The leases, which may be none.",
    )],
    refusals: &OF_LEASE,
    ..operation(
        "leaseFromQueues",
        "leases",
        "POST",
        "/v1/leases",
        "Leases timers of several queues that are due.",
    )
};
const SETTLED: &[Answer] = &[Answer {
    status: 200,
    doc: "What became of the lease, or of each of them.",
    body: AnswerBody::Json(Kind::Either(&[
        Kind::Object(&answers::SETTLED),
        Kind::Object(&answers::SETTLED_ALL),
    ])),
    headers: &[],
}];
pub(crate) static ACK: Operation = Operation {
    request: Request::NeededEither(&[Kind::Object(&requests::ACK), Kind::Object(&requests::ACKS)]),
    answers: SETTLED,
    refusals: &OF_SETTLE,
    ..operation(
        "ackLeases",
        "leases",
        "POST",
        "/v1/leases:ack",
        "Says of leased attempts that they are done.",
    )
};
pub(crate) static NACK: Operation = Operation {
    request: Request::NeededEither(&[
        Kind::Object(&requests::NACK),
        Kind::Object(&requests::NACKS),
    ]),
    answers: SETTLED,
    refusals: &OF_SETTLE,
    ..operation(
        "nackLeases",
        "leases",
        "POST",
        "/v1/leases:nack",
        "Says of leased attempts that they have failed.",
    )
};
pub(crate) static EXTEND: Operation = Operation {
    request: Request::NeededEither(&[
        Kind::Object(&requests::EXTEND),
        Kind::Object(&requests::EXTENDS),
    ]),
    answers: SETTLED,
    refusals: &OF_SETTLE,
    ..operation(
        "extendLeases",
        "leases",
        "POST",
        "/v1/leases:extend",
        "Makes leases longer.",
    )
};

pub(crate) static LIST_ENDPOINTS: Operation = Operation {
    query: &[
        LIMIT,
        parameter("after", ENDPOINT, "The next of the page before."),
    ],
    answers: &[json(200, &answers::ENDPOINTS, "A page.")],
    refusals: &[Code::InvalidEndpoint],
    ..operation(
        "listEndpoints",
        "endpoints",
        "GET",
        "/v1/endpoints",
        "Lists endpoints in order of their names.",
    )
};
pub(crate) static GET_ENDPOINT: Operation = Operation {
    headers: &[&KNOWN],
    answers: &[
        json(200, &answers::ENDPOINT, "The endpoint.").with(&[&ETAG]),
        Answer {
            status: 304,
            doc: "The caller has asked for whatever has changed by *.",
            body: AnswerBody::Nothing,
            headers: &[&ETAG],
        },
    ],
    refusals: &[Code::InvalidEndpoint, Code::NotFound, Code::Unreadable],
    ..operation(
        "getEndpoint",
        "endpoints",
        "GET",
        "/v1/endpoints/{name}",
        "Shows an endpoint, but nothing that is secret.",
    )
};
const OF_PUT_ENDPOINT: [Code; 15] = {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = OF_SETTINGS;
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        l,
        m,
        n,
        Code::SecretKeyRequired,
    ]
};
const ENDPOINT_PUT: AnswerBody = AnswerBody::Json(Kind::Either(&[
    Kind::Object(&answers::ENDPOINT),
    Kind::Object(&answers::ENDPOINT_CHANGED),
]));
pub(crate) static PUT_ENDPOINT: Operation = Operation {
    headers: &[&IF_MATCH, &IF_NONE_MATCH],
    request: Request::Needed(&requests::PUT_ENDPOINT),
    answers: &[
        Answer {
            status: 200,
            doc: "The endpoint replaced another.",
            body: ENDPOINT_PUT,
            headers: &[&ETAG],
        },
        Answer {
            status: 201,
            doc: "The endpoint is new.",
            body: ENDPOINT_PUT,
            headers: &[&ETAG],
        },
    ],
    refusals: &OF_PUT_ENDPOINT,
    ..operation(
        "putEndpoint",
        "endpoints",
        "PUT",
        "/v1/endpoints/{name}",
        "Makes an endpoint, or puts another in its place.",
    )
};
pub(crate) static REMOVE_ENDPOINT: Operation = Operation {
    headers: &[&IF_MATCH],
    answers: &[json(
        200,
        &answers::ENDPOINT_REMOVED,
        "The endpoint is removed.",
    )],
    refusals: &[
        Code::InvalidEndpoint,
        Code::NotFound,
        Code::InUse,
        Code::RevisionMismatch,
        Code::StorageFull,
    ],
    ..operation(
        "removeEndpoint",
        "endpoints",
        "DELETE",
        "/v1/endpoints/{name}",
        "Removes an endpoint that nothing names.",
    )
};
pub(crate) static TEST_ENDPOINT: Operation = Operation {
    request: Request::Optional(&requests::TEST_ENDPOINT),
    answers: &[json(200, &answers::TESTED, "What came of the test.")],
    refusals: &[
        Code::InvalidEndpoint,
        Code::NotFound,
        Code::Conflict,
        Code::InvalidTarget,
    ],
    ..operation(
        "testEndpoint",
        "endpoints",
        "POST",
        "/v1/endpoints/{name}:test",
        "Sends one request to an endpoint now.",
    )
};

pub(crate) static LIST_TOKENS: Operation = Operation {
    answers: &[json(200, &answers::TOKENS, "All tokens.")],
    ..operation(
        "listTokens",
        "tokens",
        "GET",
        "/v1/tokens",
        "Lists tokens in order of their ids, without their secrets.",
    )
};
pub(crate) static CREATE_TOKEN: Operation = Operation {
    request: Request::Needed(&requests::CREATE_TOKEN),
    answers: &[json(
        201,
        &answers::TOKEN_MADE,
        "The token, which is shown this once.",
    )],
    refusals: &[Code::NotFound, Code::Conflict, Code::StorageFull],
    ..operation(
        "createToken",
        "tokens",
        "POST",
        "/v1/tokens",
        "Makes a token.",
    )
};
pub(crate) static GET_TOKEN: Operation = Operation {
    headers: &[&KNOWN],
    answers: &[
        json(200, &answers::TOKEN, "The token, without its secret.").with(&[&ETAG]),
        Answer {
            status: 304,
            doc: "The caller has asked for whatever has changed by *.",
            body: AnswerBody::Nothing,
            headers: &[&ETAG],
        },
    ],
    refusals: &[Code::NotFound, Code::Unreadable],
    ..operation(
        "getToken",
        "tokens",
        "GET",
        "/v1/tokens/{token}",
        "Shows a token, but not its secret.",
    )
};
pub(crate) static REVOKE_TOKEN: Operation = Operation {
    headers: &[&IF_MATCH],
    answers: &[json(
        200,
        &answers::TOKEN_REVOKED,
        "The token opens nothing any more.",
    )],
    refusals: &[
        Code::NotFound,
        Code::Conflict,
        Code::RevisionMismatch,
        Code::StorageFull,
    ],
    ..operation(
        "revokeToken",
        "tokens",
        "DELETE",
        "/v1/tokens/{token}",
        "Revokes a token.",
    )
};
pub(crate) static ROTATE_TOKEN: Operation = Operation {
    request: Request::Optional(&requests::ROTATE_TOKEN),
    answers: &[json(
        200,
        &answers::TOKEN_MADE,
        "The token with its new secret, which is shown this once.",
    )],
    refusals: &[Code::NotFound, Code::Unreadable, Code::StorageFull],
    ..operation(
        "rotateToken",
        "tokens",
        "POST",
        "/v1/tokens/{token}:rotate",
        "Gives a token another secret.",
    )
};

pub(crate) static LIST_NAMESPACES: Operation = Operation {
    answers: &[json(200, &answers::NAMESPACES, "All namespaces.")],
    ..operation(
        "listNamespaces",
        "namespaces",
        "GET",
        "/v1/namespaces",
        "Lists namespaces in order of name.",
    )
};
pub(crate) static GET_NAMESPACE: Operation = Operation {
    headers: &[&KNOWN],
    answers: &[
        json(200, &answers::NAMESPACE, "The namespace.").with(&[&ETAG]),
        Answer {
            status: 304,
            doc: "The caller has the namespace as it stands.",
            body: AnswerBody::Nothing,
            headers: &[&ETAG],
        },
    ],
    refusals: &[Code::NotFound],
    ..operation(
        "getNamespace",
        "namespaces",
        "GET",
        "/v1/namespaces/{namespace}",
        "Shows a namespace, and what it has.",
    )
};
pub(crate) static PUT_NAMESPACE: Operation = Operation {
    headers: &[&IF_MATCH, &IF_NONE_MATCH],
    request: Request::Needed(&requests::PUT_NAMESPACE),
    answers: &[
        json(200, &answers::NAMESPACE, "The quotas are replaced.").with(&[&ETAG]),
        json(201, &answers::NAMESPACE, "The namespace is made.").with(&[&ETAG]),
    ],
    refusals: &[
        Code::NotFound,
        Code::Conflict,
        Code::Exists,
        Code::InvalidSetting,
        Code::RevisionMismatch,
        Code::StorageFull,
    ],
    ..operation(
        "putNamespace",
        "namespaces",
        "PUT",
        "/v1/namespaces/{namespace}",
        "Makes a namespace, or replaces its quotas.",
    )
};
pub(crate) static REMOVE_NAMESPACE: Operation = Operation {
    headers: &[&IF_MATCH],
    answers: &[json(
        200,
        &answers::NAMESPACE_REMOVED,
        "The namespace is gone.",
    )],
    refusals: &[
        Code::NotFound,
        Code::NotEmpty,
        Code::RevisionMismatch,
        Code::StorageFull,
    ],
    ..operation(
        "removeNamespace",
        "namespaces",
        "DELETE",
        "/v1/namespaces/{namespace}",
        "Removes a namespace in which nothing is.",
    )
};

pub(crate) static LIST_JOBS: Operation = Operation {
    answers: &[json(200, &answers::JOBS, "All jobs that are shown.")],
    ..operation("listJobs", "jobs", "GET", "/v1/jobs", "Lists jobs.")
};
pub(crate) static BEGIN_JOB: Operation = Operation {
    request: Request::Needed(&requests::JOB),
    answers: &[json(202, &answers::JOB, "The job has begun.")],
    refusals: &[
        Code::InvalidQueue,
        Code::NotFound,
        Code::TooManyJobs,
        Code::Unschedulable,
        Code::StorageFull,
    ],
    ..operation(
        "beginJob",
        "jobs",
        "POST",
        "/v1/jobs",
        "Changes many timers of a queue in the background.",
    )
};
pub(crate) static GET_JOB: Operation = Operation {
    answers: &[json(200, &answers::JOB, "The job as it stands.")],
    refusals: &[Code::NotFound],
    ..operation("getJob", "jobs", "GET", "/v1/jobs/{id}", "Shows a job.")
};
pub(crate) static CANCEL_JOB: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(200, &answers::JOB, "The job as it stands.")],
    refusals: &[Code::NotFound, Code::StorageFull],
    ..operation(
        "cancelJob",
        "jobs",
        "POST",
        "/v1/jobs/{id}:cancel",
        "Cancels a job.",
    )
};

pub(crate) static BATCH: Operation = Operation {
    query: &[parameter(
        "atomic",
        Kind::Truth,
        "Whether the batch is done whole or not at all.",
    )
    .or("false")],
    headers: &[&TRACEPARENT, &TRACESTATE],
    request: Request::Lines(&requests::LINES),
    answers: &[Answer {
        status: 200,
        doc: "A line for each operation and a last one; of an atomic batch one object.",
        body: AnswerBody::Lines(&[
            Kind::Object(&answers::BATCH_LINE),
            Kind::Object(&answers::BATCH_END),
            Kind::Object(&answers::BATCH_RESULTS),
        ]),
        headers: &[],
    }],
    refusals: &[
        Code::InvalidQueue,
        Code::InvalidKey,
        Code::NotFound,
        Code::Conflict,
        Code::Draining,
        Code::LeaseLost,
        Code::Gone,
        Code::RevisionMismatch,
        Code::Exists,
        Code::TooLarge,
        Code::Unschedulable,
        Code::InvalidRetry,
        Code::InvalidTarget,
        Code::InvalidSetting,
        Code::PullQueue,
        Code::AboveCeiling,
        Code::BatchSpansShards,
        Code::Unreadable,
        Code::StorageFull,
        Code::QuotaExceeded,
    ],
    ..operation(
        "runBatch",
        "batches",
        "POST",
        "/v1/batch",
        "Does many operations, one a line.",
    )
};

pub(crate) static LIST_AUDIT: Operation = Operation {
    query: &[
        parameter("since", TIME, "Only entries of then or later."),
        parameter("until", TIME, "Only entries of before then."),
        parameter(
            "order",
            Kind::Words(&["newest", "oldest"]),
            "Which entries come first.",
        )
        .or("newest"),
        parameter(
            "who",
            Kind::TEXT,
            "Only entries of the token with this id or name, or of this kind of caller.",
        ),
        parameter(
            "operation",
            Kind::TEXT,
            "Only entries of this operation, by its operationId; of the pages, of `logIn`, `logOut` or `endSessions`.",
        ),
        LIMIT,
        CURSOR,
    ],
    answers: &[json(200, &answers::AUDIT_PAGE, "A page.").with(&[&LINK])],
    ..operation(
        "listAudit",
        "audit",
        "GET",
        "/v1/audit",
        "Lists who has changed what.",
    )
};
pub(crate) static STATS: Operation = Operation {
    answers: &[json(200, &answers::STATS, "The figures.")],
    ..operation(
        "getStats",
        "figures",
        "GET",
        "/v1/stats",
        "Shows the figures of the whole service.",
    )
};
pub(crate) static DUE_STATS: Operation = Operation {
    query: &[
        parameter("from", TIME, "The first moment of the first bucket.").or("now"),
        parameter("to", TIME, "The first moment behind the last bucket.").or("no end"),
        parameter(
            "step",
            Kind::Text {
                least: 1,
                most: usize::MAX,
                pattern: "",
                format: "step-text",
            },
            "How long a bucket is: a duration of whole seconds, from 1s to 366d.",
        )
        .or("1s"),
    ],
    answers: &[json(200, &answers::DUE_STATS, "The buckets.")],
    ..operation(
        "getDueStats",
        "figures",
        "GET",
        "/v1/stats/due",
        "Counts pending timers by when they are due.",
    )
};

pub(crate) static EVENTS: Operation = Operation {
    query: &[
        parameter(
            "namespace",
            Kind::Named(&NAMESPACE_NAME),
            "Only of queues of this namespace.",
        ),
        parameter("queue", QUEUE, "Only of this queue."),
        parameter("prefix", Kind::TEXT, "Only of keys that begin with this."),
        parameter(
            "kinds",
            Kind::Text {
                least: 1,
                most: usize::MAX,
                pattern: "",
                format: "event-kinds",
            },
            "Only these kinds, with commas between them.",
        ),
        parameter(
            "after",
            Kind::Text {
                least: 1,
                most: usize::MAX,
                pattern: "^[0-9a-f]{1,16}-([0-9]+[.][0-9]+[.][0-9]+(_[0-9]+[.][0-9]+[.][0-9]+)*)?$",
                format: "event-id",
            },
            "The id of the last event that the caller has.",
        ),
    ],
    headers: &[&LAST_EVENT_ID],
    answers: &[Answer {
        status: 200,
        doc: "A stream of events without an end: id, event and data, which is an Event as JSON, or a Gap.",
        body: AnswerBody::Events(&[Kind::Object(&answers::EVENT), Kind::Object(&answers::GAP)]),
        headers: &[],
    }],
    refusals: &[Code::NotFound],
    ..operation(
        "streamEvents",
        "events",
        "GET",
        "/v1/events",
        "Tells what happens, as server-sent events.",
    )
};

pub(crate) static SIMULATE: Operation = Operation {
    request: Request::Needed(&requests::SIMULATE),
    answers: &[Answer {
        status: 200,
        doc: "The attempts, or the runs.",
        body: AnswerBody::Json(Kind::Either(&[
            Kind::Object(&answers::SIMULATED_ATTEMPTS),
            Kind::Object(&answers::SIMULATED_RUNS),
            Kind::Object(&answers::SIMULATED_THERE),
        ])),
        headers: &[],
    }],
    refusals: &[Code::NotFound, Code::Unschedulable, Code::InvalidRetry],
    ..operation(
        "simulate",
        "simulation",
        "POST",
        "/v1/simulate",
        "Says when the attempts of a retry policy or the runs of a schedule would come.",
    )
};
pub(crate) static SNAPSHOT: Operation = Operation {
    request: Request::Needed(&requests::SNAPSHOT),
    answers: &[json(201, &answers::SNAPSHOT, "The snapshot is on disk.")],
    refusals: &[Code::NotFound, Code::Conflict, Code::StorageFull],
    ..operation(
        "makeSnapshot",
        "operation",
        "POST",
        "/v1/snapshots",
        "Makes a snapshot of the store.",
    )
};

pub(crate) static CLUSTER: Operation = Operation {
    answers: &[json(200, &answers::CLUSTER, "The cluster.")],
    refusals: &[Code::NoCluster],
    ..operation(
        "getCluster",
        "cluster",
        "GET",
        "/v1/cluster",
        "Shows the cluster at a glance.",
    )
};
pub(crate) static NODES: Operation = Operation {
    answers: &[json(200, &answers::NODES, "All nodes.")],
    refusals: &[Code::NoCluster],
    ..operation(
        "listNodes",
        "cluster",
        "GET",
        "/v1/cluster/nodes",
        "Lists the nodes.",
    )
};
pub(crate) static DRAIN_NODE: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(
        202,
        &answers::NODE_MARKED,
        "The node gives its shards away.",
    )],
    refusals: &OF_CLUSTER,
    ..operation(
        "drainNode",
        "cluster",
        "POST",
        "/v1/cluster/nodes/{node}/drain",
        "Drains a node: it gives all its shards to the others.",
    )
};
pub(crate) static UNDRAIN_NODE: Operation = Operation {
    request: Request::Optional(&requests::NOTHING),
    answers: &[json(
        202,
        &answers::NODE_MARKED,
        "The node gets shards again.",
    )],
    refusals: &OF_CLUSTER,
    ..operation(
        "undrainNode",
        "cluster",
        "POST",
        "/v1/cluster/nodes/{node}/undrain",
        "Ends the drain of a node.",
    )
};
pub(crate) static SHARDS: Operation = Operation {
    answers: &[json(200, &answers::SHARDS, "All shards.")],
    refusals: &[Code::NoCluster],
    ..operation(
        "listShards",
        "cluster",
        "GET",
        "/v1/cluster/shards",
        "Lists the shards.",
    )
};
pub(crate) static MOVE_SHARD: Operation = Operation {
    request: Request::Needed(&requests::MOVE_SHARD),
    answers: &[json(202, &answers::SHARD_MOVED, "The shard goes there.")],
    refusals: &OF_CLUSTER,
    ..operation(
        "moveShard",
        "cluster",
        "POST",
        "/v1/cluster/shards/{shard}/move",
        "Has a shard go to a node and stay there.",
    )
};
pub(crate) static REBALANCE: Operation = Operation {
    request: Request::Optional(&requests::REBALANCE),
    answers: &[
        json(200, &answers::REBALANCED, "What would be moved."),
        json(202, &answers::REBALANCED, "What is moved."),
    ],
    refusals: &OF_CLUSTER,
    ..operation(
        "rebalance",
        "cluster",
        "POST",
        "/v1/cluster/rebalance",
        "Ends everything that moves of shards have asked for.",
    )
};
pub(crate) static MOVE_PROGRESS: Operation = Operation {
    answers: &[json(200, &answers::MOVE_PROGRESS, "The move.")],
    refusals: &[Code::NotFound],
    ..operation(
        "getMoveToCluster",
        "cluster",
        "GET",
        "/v1/cluster/move-to",
        "Says how far the move of all timers to a cluster has come.",
    )
};
pub(crate) static BEGIN_MOVE: Operation = Operation {
    request: Request::Needed(&requests::MOVE_TO),
    answers: &[json(202, &answers::MOVE_PROGRESS, "The move has begun.")],
    refusals: &[Code::NotFound, Code::Conflict],
    ..operation(
        "beginMoveToCluster",
        "cluster",
        "POST",
        "/v1/cluster/move-to",
        "Moves all timers to a cluster.",
    )
};

pub(crate) static HEALTHZ: Operation = Operation {
    answers: &[json(200, &answers::HEALTHY, "The process works.")],
    ..operation(
        "getHealth",
        "operation",
        "GET",
        "/healthz",
        "Says whether the process works.",
    )
};
pub(crate) static LIVEZ: Operation = Operation {
    answers: &[json(200, &answers::HEALTHY, "The process works.")],
    ..operation(
        "getLiveness",
        "operation",
        "GET",
        "/livez",
        "Says whether the process works, as /healthz does.",
    )
};
pub(crate) static STARTZ: Operation = Operation {
    answers: &[json(200, &answers::HEALTHY, "The start is over.")],
    ..operation(
        "getStart",
        "operation",
        "GET",
        "/startz",
        "Says whether the start is over.",
    )
};
pub(crate) static READYZ: Operation = Operation {
    answers: &[json(200, &answers::HEALTHY, "The service takes requests.")],
    ..operation(
        "getReadiness",
        "operation",
        "GET",
        "/readyz",
        "Says whether the service takes requests.",
    )
};
pub(crate) static METRICS: Operation = Operation {
    answers: &[Answer {
        status: 200,
        doc: "Metrics in the text format of Prometheus, or in OpenMetrics.",
        body: AnswerBody::Of(&["text/plain", "application/openmetrics-text"]),
        headers: &[],
    }],
    refusals: &[Code::Unauthorized, Code::Forbidden],
    ..operation(
        "getMetrics",
        "operation",
        "GET",
        "/metrics",
        "Shows metrics for Prometheus.",
    )
};
pub(crate) static OPENAPI: Operation = Operation {
    answers: &[Answer {
        status: 200,
        doc: "This document.",
        body: AnswerBody::Json(Kind::Any),
        headers: &[],
    }],
    ..operation(
        "getDescription",
        "description",
        "GET",
        "/openapi.json",
        "Describes the API.",
    )
};
pub(crate) static REFERENCE: Operation = Operation {
    answers: &[Answer {
        status: 200,
        doc: "A page.",
        body: AnswerBody::Of(&["text/html"]),
        headers: &[],
    }],
    ..operation(
        "getReference",
        "description",
        "GET",
        "/reference",
        "Describes the API to people.",
    )
};
pub(crate) static PROBLEMS: Operation = Operation {
    answers: &[Answer {
        status: 200,
        doc: "All codes.",
        body: AnswerBody::Page(Kind::Object(&answers::PROBLEM_PAGES)),
        headers: &[],
    }],
    ..operation(
        "listProblems",
        "description",
        "GET",
        "/problems",
        "Lists the codes of problems.",
    )
};
pub(crate) static PROBLEM: Operation = Operation {
    answers: &[Answer {
        status: 200,
        doc: "The code.",
        body: AnswerBody::Page(Kind::Object(&answers::PROBLEM_PAGE)),
        headers: &[],
    }],
    refusals: &[Code::NotFound],
    ..operation(
        "getProblem",
        "description",
        "GET",
        "/problems/{code}",
        "Says what a code means, and what to do.",
    )
};

/// All of them, in the order of the document.
pub(crate) static ALL: [&Operation; 72] = [
    &SET,
    &GET,
    &MOVE,
    &REMOVE,
    &FIRE,
    &REVIVE,
    &RESEND,
    &RUNS,
    &BACKFILL,
    &POST,
    &LIST,
    &LIST_ALL,
    &BATCH,
    &LIST_QUEUES,
    &GET_QUEUE,
    &PUT_QUEUE,
    &REMOVE_QUEUE,
    &PAUSE_QUEUE,
    &DRAIN_QUEUE,
    &RESUME_QUEUE,
    &PAUSE_ALL,
    &DRAIN_ALL,
    &RESUME_ALL,
    &PURGE,
    &CANCEL_PURGE,
    &LEASE_QUEUE,
    &LEASE_QUEUES,
    &ACK,
    &NACK,
    &EXTEND,
    &LIST_ENDPOINTS,
    &GET_ENDPOINT,
    &PUT_ENDPOINT,
    &REMOVE_ENDPOINT,
    &TEST_ENDPOINT,
    &LIST_TOKENS,
    &CREATE_TOKEN,
    &GET_TOKEN,
    &REVOKE_TOKEN,
    &ROTATE_TOKEN,
    &LIST_NAMESPACES,
    &GET_NAMESPACE,
    &PUT_NAMESPACE,
    &REMOVE_NAMESPACE,
    &LIST_JOBS,
    &BEGIN_JOB,
    &GET_JOB,
    &CANCEL_JOB,
    &EVENTS,
    &LIST_AUDIT,
    &STATS,
    &DUE_STATS,
    &SIMULATE,
    &SNAPSHOT,
    &CLUSTER,
    &NODES,
    &DRAIN_NODE,
    &UNDRAIN_NODE,
    &SHARDS,
    &MOVE_SHARD,
    &REBALANCE,
    &MOVE_PROGRESS,
    &BEGIN_MOVE,
    &HEALTHZ,
    &LIVEZ,
    &STARTZ,
    &READYZ,
    &METRICS,
    &OPENAPI,
    &REFERENCE,
    &PROBLEMS,
    &PROBLEM,
];

/// What each request may be refused for, wherever it goes.
const OF_ALL: [Code; 10] = [
    Code::Malformed,
    Code::Forbidden,
    Code::UriTooLong,
    Code::HeadTooLarge,
    Code::UnsupportedMediaType,
    Code::ExpectationFailed,
    Code::NotImplemented,
    Code::Overloaded,
    Code::Internal,
    Code::Unavailable,
];
/// What those under `/v1` may be refused for beside that.
const OF_V1: [Code; 6] = [
    Code::Unauthorized,
    Code::Forbidden,
    Code::OverRate,
    Code::StoreUnavailable,
    Code::ShardUnavailable,
    Code::Unknown,
];
/// And those with a body.
const OF_BODIES: [Code; 2] = [Code::Timeout, Code::TooLarge];

impl Operation {
    /// Whether a token is asked for, where there is one.
    pub(crate) fn is_guarded(&self) -> bool {
        self.path.starts_with("/v1/")
    }

    /// Whether a token has to be shown where there are tokens.
    pub(crate) fn wants_token(&self) -> bool {
        self.is_guarded() || self.path == "/metrics"
    }

    /// The names of the parameters of the query.
    pub(crate) fn query_names(&self) -> Vec<&'static str> {
        self.query.iter().map(|parameter| parameter.name).collect()
    }

    /// The parameters of the path, in their order.
    pub(crate) fn path_parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        let names = self.path.split('{').skip(1);
        let names = names.filter_map(|rest| rest.split('}').next());
        names.filter_map(|name| OF_PATHS.iter().find(|parameter| parameter.name == name))
    }

    /// The codes of all refusals, in order of their statuses.
    pub(crate) fn codes(&self) -> Vec<Code> {
        let mut codes = self.refusals.to_vec();
        codes.extend(OF_ALL);
        if self.is_guarded() {
            codes.extend(OF_V1);
        }
        if self.path.contains("{queue}") || self.path.contains("{name}") {
            // In a namespace that is not there.
            codes.push(Code::NotFound);
        }
        if !matches!(self.request, Request::None) {
            codes.extend(OF_BODIES);
        }
        codes.sort_by_key(|code| (code.status(), code.name()));
        codes.dedup();
        codes
    }
}
