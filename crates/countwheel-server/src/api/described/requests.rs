//! The objects that requests have.

use super::{Field, Kind, Named, Rule, Shape, may, need};
use crate::resources::token::Scope;

const NAME: &str = r"^[A-Za-z0-9._:-]+$";
const NAME_WITHIN: &str = r"^([A-Za-z0-9._:-]{1,64}/)?[A-Za-z0-9._:-]{1,128}$";
const TAG: &str = "^[A-Za-z0-9._:/=-]+$";

pub(crate) static QUEUE_NAME: Named = Named {
    name: "QueueName",
    doc: "The name of a queue, behind the name of its namespace and a slash unless that is default.",
    kind: Kind::Text {
        least: 1,
        most: 193,
        pattern: NAME_WITHIN,
        format: "",
    },
};
pub(crate) static NAMESPACE_NAME: Named = Named {
    name: "Namespace",
    doc: "A namespace of queues.",
    kind: Kind::Text {
        least: 1,
        most: 64,
        pattern: NAME,
        format: "",
    },
};
pub(crate) static ENDPOINT_NAME: Named = Named {
    name: "EndpointName",
    doc: "The name of an endpoint, behind the name of its namespace and a slash unless that is default.",
    kind: Kind::Text {
        least: 1,
        most: 193,
        pattern: NAME_WITHIN,
        format: "",
    },
};
pub(crate) static KEY_NAME: Named = Named {
    name: "Key",
    doc: "The key of a timer: 1 to 256 bytes of UTF-8 without control characters.",
    kind: Kind::Text {
        least: 1,
        most: 256,
        pattern: r"^[^\u0000-\u001F\u007F-\u009F]+$",
        format: "timer-key",
    },
};
pub(crate) static TAG_TEXT: Named = Named {
    name: "Tag",
    doc: "A short text by which lists and jobs find timers.",
    kind: Kind::Text {
        least: 1,
        most: 64,
        pattern: TAG,
        format: "",
    },
};
pub(crate) static TIME_TEXT: Named = Named {
    name: "Time",
    doc: "A time as RFC 3339 writes it, with an offset. Answers have UTC with six digits of a second.",
    kind: Kind::Text {
        least: 0,
        most: usize::MAX,
        pattern: "^(19[7-9][0-9]|[2-9][0-9]{3})-",
        format: "date-time",
    },
};
pub(crate) static DURATION_KIND: Named = Named {
    name: "Duration",
    doc: "A whole number of milliseconds, or a text such as 30m, 1h 30m, 250ms, 7d or PT30M.",
    kind: Kind::Duration,
};
pub(crate) static SHIFT_KIND: Named = Named {
    name: "SignedDuration",
    doc: "A duration with or without a minus before it.",
    kind: Kind::Shift,
};
pub(crate) static SPAN_TEXT: Named = Named {
    name: "DurationText",
    doc: "A duration as answers write it: 1m 30s.",
    kind: Kind::Text {
        least: 1,
        most: usize::MAX,
        pattern: "",
        format: "",
    },
};
/// Of a header: no control character but tabs.
const HEADER_VALUE: Kind = Kind::Text {
    least: 0,
    most: usize::MAX,
    pattern: r"^[^\u0000-\u0008\u000A-\u001F\u007F]*$",
    format: "",
};
pub(crate) static HEADER_MAP: Named = Named {
    name: "Headers",
    doc: "Headers by name: at most 32, and 8 KiB in all.",
    kind: Kind::Map {
        of: &HEADER_VALUE,
        most: 32,
        // Receivers take an underscore for a hyphen.
        pattern: "^[!#$%&'*+.^`|~0-9A-Za-z-]+$",
    },
};
pub(crate) static STATUS_MAP: Named = Named {
    name: "Statuses",
    doc: "What statuses of answers mean, by status (200 to 599) or class (2xx, 3xx, 4xx, 5xx).",
    kind: Kind::Map {
        of: &Kind::Words(&["done", "retry", "stop"]),
        most: usize::MAX,
        pattern: "^([2-5]xx|[2-5][0-9][0-9])$",
    },
};
pub(crate) static MISSED_KIND: Named = Named {
    name: "Missed",
    doc: "What becomes of a timer that is overdue before its first attempt.",
    kind: Kind::Either(&[Kind::Words(&["fire", "collapse"]), Kind::Object(&SKIP)]),
};

pub(crate) const QUEUE: Kind = Kind::Named(&QUEUE_NAME);
pub(crate) const ENDPOINT: Kind = Kind::Named(&ENDPOINT_NAME);
pub(crate) const KEY: Kind = Kind::Named(&KEY_NAME);
pub(crate) const TIME: Kind = Kind::Named(&TIME_TEXT);
pub(crate) const DURATION: Kind = Kind::Named(&DURATION_KIND);
pub(crate) const SHIFT: Kind = Kind::Named(&SHIFT_KIND);
pub(crate) const HEADERS: Kind = Kind::Named(&HEADER_MAP);
pub(crate) const STATUSES: Kind = Kind::Named(&STATUS_MAP);
pub(crate) const MISSED: Kind = Kind::Named(&MISSED_KIND);
pub(crate) const RETRY_POLICY: Kind = Kind::Object(&RETRY);
pub(crate) const OVERLAP: Kind = Kind::Words(&["skip", "queue"]);
pub(crate) const METHOD: Kind =
    Kind::Words(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);
pub(crate) const TAGS: Kind = Kind::Set {
    of: &Kind::Named(&TAG_TEXT),
    least: 0,
    most: 8,
};
pub(crate) const SCOPE: Kind = Kind::Words(&Scope::WORDS);
const URL: Kind = Kind::Text {
    least: 8,
    most: 2_048,
    pattern: "^[Hh][Tt][Tt][Pp][Ss]?://",
    format: "target-url",
};
const PATH: Kind = Kind::Text {
    least: 0,
    most: 2_048,
    pattern: "",
    format: "target-path",
};
const BASE64: Kind = Kind::Text {
    least: 0,
    most: usize::MAX,
    pattern: "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
    format: "",
};
pub(crate) const PRIORITY: Kind = Kind::whole(0, 4_294_967_295);
const CONCURRENCY: Kind = Kind::whole(1, 1_000_000);
const TOKEN: Kind = Kind::Text {
    least: 24,
    most: 24,
    pattern: "^[0-9a-f]+$",
    format: "",
};
const PREFIX: Kind = Kind::text(0, 256);

/// Nothing: an empty object.
pub(crate) static NOTHING: Shape = Shape {
    name: "Nothing",
    doc: "An object without fields.",
    with: &[],
    fields: &[],
    rules: &[],
    is_open: false,
};

pub(crate) static SKIP: Shape = Shape {
    name: "SkipIfOlderThan",
    doc: "The timer is skipped if it is more overdue than this.",
    with: &[],
    fields: &[need(
        "skip_if_older_than",
        DURATION,
        "How overdue the timer may be.",
    )],
    rules: &[],
    is_open: false,
};

pub(crate) static TARGET: Shape = Shape {
    name: "Target",
    doc: "Where a timer is delivered, and how.",
    with: &[],
    fields: &[
        may(
            "url",
            URL,
            "The URL, http or https, without user and password.",
        ),
        may(
            "endpoint",
            Kind::Nullable(&ENDPOINT),
            "In place of url: the name of an endpoint, or null for that of the queue.",
        ),
        may("path", PATH, "What follows the URL of the endpoint."),
        may("method", METHOD, "The method of the request.").or("POST"),
        may("headers", HEADERS, "Sent with each delivery.").or("none"),
        may(
            "timeout",
            DURATION,
            "One deadline for a whole attempt: 100 ms to 30 min.",
        )
        .or("that of the endpoint, else that of the queue, else 15 s"),
    ],
    rules: &[
        Rule::AtMostOne(&["url", "endpoint"]),
        Rule::AtMostOne(&["url", "path"]),
    ],
    is_open: false,
};

pub(crate) static LINEAR: Shape = Shape {
    name: "Linear",
    doc: "Each delay is longer than the last by the same.",
    with: &[],
    fields: &[
        need("first", DURATION, "The first delay."),
        need("increment", DURATION, "How much longer each next one is."),
        may("cap", DURATION, "The longest delay.").or("365d"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static EXPONENTIAL: Shape = Shape {
    name: "Exponential",
    doc: "Each delay is a multiple of the last.",
    with: &[],
    fields: &[
        need("first", DURATION, "The first delay."),
        may(
            "factor",
            Kind::Number {
                least: 1.0,
                most: 1_000.0,
            },
            "How many times the last each next one is: 1, or 1.01 to 1,000.",
        )
        .or("2"),
        need("cap", DURATION, "The longest delay."),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static RETRY: Shape = Shape {
    name: "Retry",
    doc: "A retry policy: when attempts come that follow a failure.",
    with: &[],
    fields: &[
        may(
            "schedule",
            Kind::List {
                of: &DURATION,
                least: 1,
                most: 1_000,
            },
            "These delays.",
        ),
        may(
            "preset",
            Kind::Words(&["wechat", "dubbo", "dubbo-registry", "eureka", "go-zero"]),
            "The schedule of a known system.",
        ),
        may("fixed", DURATION, "The same delay each time."),
        may("linear", Kind::Object(&LINEAR), "Delays that grow evenly."),
        may(
            "exponential",
            Kind::Object(&EXPONENTIAL),
            "Delays that multiply.",
        ),
        may(
            "jitter",
            Kind::Words(&["none", "full", "equal"]),
            "How much of each delay is left to chance.",
        )
        .or("none"),
        may(
            "max_attempts",
            Kind::whole(1, 10_000),
            "How many attempts are made at the most, the first included.",
        ),
        may(
            "max_age",
            DURATION,
            "No retry comes later than this after the first deadline.",
        ),
    ],
    rules: &[Rule::Exactly(&[
        "schedule",
        "preset",
        "fixed",
        "linear",
        "exponential",
    ])],
    is_open: false,
};

pub(crate) static ADAPTIVE: Shape = Shape {
    name: "Adaptive",
    doc: "Between which delays the receiver may choose the next run.",
    with: &[],
    fields: &[
        need("min", DURATION, "The shortest."),
        need("max", DURATION, "The longest."),
    ],
    rules: &[],
    is_open: false,
};

/// When a timer is due, for the first time and again.
static SCHEDULE: Shape = Shape {
    name: "Schedule",
    doc: "When a timer is due, for the first time and again.",
    with: &[],
    fields: &[
        may("in", DURATION, "A duration from now, at most 36,525 days."),
        may("at", TIME, "A time, at most 36,525 days ahead."),
        may("every", DURATION, "The timer recurs at a fixed rate."),
        may(
            "every_after",
            DURATION,
            "The timer recurs, this long after the end of each run.",
        ),
        may(
            "cron",
            Kind::Text {
                least: 0,
                most: usize::MAX,
                pattern: "",
                format: "cron-expression",
            },
            "The timer recurs at the times that this expression names.",
        ),
        may(
            "zone",
            Kind::Text {
                least: 0,
                most: usize::MAX,
                pattern: "",
                format: "time-zone",
            },
            "The time zone of cron, an IANA name.",
        )
        .or("UTC"),
        may(
            "repeats",
            Kind::whole(1, 4_294_967_295),
            "How many runs are made in all.",
        )
        .or("no end"),
        may("until", TIME, "No run has a nominal time after this.").or("no end"),
        may(
            "jitter",
            DURATION,
            "Each run is due between its nominal time and this much later.",
        )
        .or("none"),
        may(
            "overlap",
            OVERLAP,
            "The rule for a run that comes due before the run before it has ended.",
        )
        .or("that of the queue, else skip"),
        may("missed", MISSED, "The rule for a timer that is overdue.")
            .or("that of the queue, else fire"),
    ],
    rules: &[],
    is_open: false,
};

const SCHEDULE_RULES: [Rule; 8] = [
    Rule::AnyOf(&["in", "at", "every", "every_after", "cron"]),
    Rule::AtMostOne(&["in", "at"]),
    Rule::AtMostOne(&["every", "every_after", "cron"]),
    Rule::Needs("zone", &["cron"]),
    Rule::Needs("repeats", &["every", "every_after", "cron"]),
    Rule::Needs("until", &["every", "every_after", "cron"]),
    Rule::Needs("jitter", &["every", "every_after", "cron"]),
    Rule::Needs("overlap", &["every", "every_after", "cron"]),
];

/// What a timer is beside when it is due.
static TIMER_FIELDS: Shape = Shape {
    name: "TimerFields",
    doc: "What a timer is beside when it is due.",
    with: &[],
    fields: &[
        may(
            "adaptive",
            Kind::Object(&ADAPTIVE),
            "The receiver may say when the next run is, within these bounds.",
        ),
        may(
            "spread",
            DURATION,
            "The timer is due at a time drawn evenly up to this much later, at most a day.",
        ),
        may(
            "target",
            Kind::Object(&TARGET),
            "Where the timer is delivered; required unless the queue has an endpoint or is pulled.",
        )
        .or("the endpoint of the queue"),
        may(
            "body",
            Kind::Any,
            "Any value, delivered as JSON byte for byte; with content_type, a text.",
        )
        .or("empty"),
        may("body_base64", BASE64, "In place of body: bytes, as base64."),
        may(
            "content_type",
            Kind::Text {
                least: 1,
                most: usize::MAX,
                pattern: "",
                format: "media-type",
            },
            "The content-type of the delivery; body is a text then.",
        )
        .or("application/json for a body, application/octet-stream for a body_base64"),
        may("retry", RETRY_POLICY, "The retry policy.")
            .or("that of the endpoint, else that of the queue, else 20 attempts"),
        may(
            "priority",
            PRIORITY,
            "0 is the most urgent of those that wait for one place.",
        )
        .or("that of the queue"),
        may(
            "serial_key",
            KEY,
            "Of the timers with one serial key, one is delivered at a time.",
        ),
        may(
            "tags",
            TAGS,
            "Texts by which lists and jobs find the timer, none of them twice.",
        )
        .or("none"),
    ],
    rules: &[],
    is_open: false,
};

const SET_RULES: [Rule; 14] = {
    let [a, b, c, d, e, f, g, h] = SCHEDULE_RULES;
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        Rule::AtMostOne(&["spread", "every"]),
        Rule::AtMostOne(&["spread", "every_after"]),
        Rule::AtMostOne(&["spread", "cron"]),
        Rule::Needs("adaptive", &["every", "every_after"]),
        Rule::AtMostOne(&["body", "body_base64"]),
        Rule::Needs("content_type", &["body", "body_base64"]),
    ]
};

pub(crate) static SET: Shape = Shape {
    name: "SetTimer",
    doc: "A timer to be set.",
    with: &[&SCHEDULE, &TIMER_FIELDS],
    fields: &[],
    rules: &SET_RULES,
    is_open: false,
};

pub(crate) static MOVE: Shape = Shape {
    name: "Move",
    doc: "Where a deadline is moved.",
    with: &[],
    fields: &[
        may("in", DURATION, "A duration from now."),
        may("at", TIME, "A time."),
        may("by", SHIFT, "A signed duration from the present deadline."),
    ],
    rules: &[Rule::Exactly(&["in", "at", "by"])],
    is_open: false,
};

pub(crate) static REVIVE: Shape = Shape {
    name: "Revive",
    doc: "When a revived timer is due.",
    with: &[],
    fields: &[
        may("in", DURATION, "A duration from now."),
        may("at", TIME, "A time."),
    ],
    rules: &[Rule::Exactly(&["in", "at"])],
    is_open: false,
};

pub(crate) static BACKFILL: Shape = Shape {
    name: "Backfill",
    doc: "For which nominal times of the past runs are made.",
    with: &[],
    fields: &[
        need("from", TIME, "The first."),
        need("until", TIME, "The last, not in the future."),
        may(
            "limit",
            Kind::whole(1, 1_000),
            "How many runs are made at the most.",
        )
        .or("all, if they are at most 1,000"),
        may("dry_run", Kind::Truth, "Nothing is made.").or("false"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static RESEND: Shape = Shape {
    name: "Resend",
    doc: "How a timer is sent again.",
    with: &[],
    fields: &[may(
        "target",
        Kind::Object(&TARGET),
        "Stands in place of the whole stored target.",
    )
    .or("the stored one")],
    rules: &[],
    is_open: false,
};

pub(crate) static RATE: Shape = Shape {
    name: "Rate",
    doc: "How many attempts may start.",
    with: &[],
    fields: &[
        need(
            "per_second",
            Kind::Number {
                least: 0.001,
                most: 1_000_000.0,
            },
            "A second, in the long run.",
        ),
        may("burst", Kind::whole(1, 1_000_000), "At once.").or("per_second, rounded up"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static SECRET: Shape = Shape {
    name: "NewSecret",
    doc: "What signs deliveries. An id without a secret keeps the secret of that id.",
    with: &[],
    fields: &[
        need(
            "id",
            Kind::Text {
                least: 1,
                most: 64,
                pattern: "^[A-Za-z0-9._-]+$",
                format: "",
            },
            "By which the secret is known.",
        ),
        may(
            "secret",
            SECRET_TEXT,
            "whsec_ and the base64 of 24 to 64 bytes.",
        ),
    ],
    rules: &[],
    is_open: false,
};
const SECRET_TEXT: Kind = Kind::Text {
    least: 38,
    most: 94,
    pattern: "^whsec_[A-Za-z0-9+/]+={0,2}$",
    format: "signing-secret",
};

pub(crate) static BREAKER: Shape = Shape {
    name: "NewBreaker",
    doc: "When an endpoint is left alone, and for how long.",
    with: &[],
    fields: &[
        may(
            "failures",
            Kind::whole(1, 10_000),
            "After so many failures in a row.",
        )
        .or("10"),
        may("pause", DURATION, "The first pause: 100 ms to 24 h.").or("5s"),
        may("pause_max", DURATION, "The longest pause: 100 ms to 24 h.").or("5m"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static CERTIFICATE: Shape = Shape {
    name: "NewClientCertificate",
    doc: "What the service shows in TLS.",
    with: &[],
    fields: &[
        need(
            "certificate",
            Kind::text(0, 16 << 10),
            "Certificates in PEM.",
        ),
        may("key", Kind::text(0, 8 << 10), "The key in PEM.").or("the key stays"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static PUT_ENDPOINT: Shape = Shape {
    name: "PutEndpoint",
    doc: "An endpoint: a place for deliveries that has a name.",
    with: &[],
    fields: &[
        need("url", URL, "The URL, http or https."),
        may("headers", HEADERS, "Sent with each delivery.").or("none"),
        may(
            "timeout",
            DURATION,
            "One deadline for a whole attempt: 100 ms to 30 min.",
        )
        .or("that of the queue, else 15 s"),
        may(
            "secrets",
            Kind::List {
                of: &Kind::Either(&[SECRET_TEXT, Kind::Object(&SECRET)]),
                least: 0,
                most: 8,
            },
            "What signs deliveries.",
        )
        .or("none"),
        may(
            "retry",
            RETRY_POLICY,
            "The policy of timers that name none.",
        )
        .or("that of the queue"),
        may(
            "concurrency",
            CONCURRENCY,
            "How many attempts may run at a time.",
        )
        .or("the share"),
        may("rate", Kind::Object(&RATE), "How many attempts may start.").or("no limit"),
        may("disabled", Kind::Truth, "Whether no attempt starts.").or("false"),
        may(
            "auto_disable",
            DURATION,
            "The endpoint is disabled once every attempt failed for so long: 1 min to 30 d.",
        )
        .or("never"),
        may(
            "breaker",
            Kind::Object(&BREAKER),
            "The endpoint is left alone for a while once attempts fail.",
        )
        .or("never"),
        may("statuses", STATUSES, "What statuses of answers mean.").or("those of the queue"),
        may(
            "allow",
            Kind::List {
                of: &Kind::Text {
                    least: 0,
                    most: usize::MAX,
                    pattern: "",
                    format: "allowed-target",
                },
                least: 1,
                most: 64,
            },
            "The only places where deliveries go.",
        )
        .or("wherever the service allows"),
        may(
            "egress_proxy",
            Kind::Text {
                least: 1,
                most: 2_048,
                pattern: "",
                format: "proxy-url",
            },
            "Deliveries leave through this proxy.",
        )
        .or("that of the service"),
        may(
            "http",
            Kind::Words(&["auto", "1.1"]),
            "Whether HTTP/2 is offered.",
        )
        .or("auto"),
        may(
            "ca",
            Kind::text(0, 16 << 10),
            "Certificates in PEM that the endpoint's comes from.",
        )
        .or("those of the service"),
        may(
            "client_certificate",
            Kind::Object(&CERTIFICATE),
            "What the service shows in TLS.",
        )
        .or("none"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static TEST_ENDPOINT: Shape = Shape {
    name: "TestEndpoint",
    doc: "The one request of a test.",
    with: &[],
    fields: &[
        may("method", METHOD, "The method.").or("POST"),
        may("path", PATH, "What follows the URL of the endpoint.").or("nothing"),
        may("body", Kind::Any, "Sent as JSON.").or("empty"),
        may("headers", HEADERS, "Headers of the request.").or("none"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static CLOUDEVENTS: Shape = Shape {
    name: "CloudEvents",
    doc: "Deliveries are events of this source and type.",
    with: &[],
    fields: &[
        need("source", Kind::text(1, 2_048), "A URI reference."),
        need("type", Kind::text(1, 256), "The type of the event."),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static RETENTION: Shape = Shape {
    name: "Retention",
    doc: "How long timers are kept once they have ended.",
    with: &[],
    fields: &[
        may("done", DURATION, "Of timers that are done.").or("--keep-done"),
        may(
            "dead",
            Kind::Nullable(&DURATION),
            "Of dead timers, at most 3,650 days; null for good.",
        )
        .or("for good"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static PUT_QUEUE: Shape = Shape {
    name: "PutQueue",
    doc: "The settings of a queue, for timers that do not say it themselves.",
    with: &[],
    fields: &[
        may("endpoint", ENDPOINT, "Where timers without a place go.").or("none"),
        may("retry", RETRY_POLICY, "The retry policy.").or("20 attempts"),
        may(
            "timeout",
            DURATION,
            "One deadline for a whole attempt: 100 ms to 30 min.",
        )
        .or("15 s"),
        may(
            "concurrency",
            CONCURRENCY,
            "How many attempts may run at a time.",
        )
        .or("no limit"),
        may("rate", Kind::Object(&RATE), "How many attempts may start.").or("no limit"),
        may(
            "payload_limit",
            Kind::whole(0, 16 << 20),
            "How many bytes the body of a timer may have.",
        )
        .or("what has room in a request of 1 MiB"),
        may(
            "retention",
            Kind::Object(&RETENTION),
            "How long timers are kept once they have ended.",
        ),
        may("overlap", OVERLAP, "The rule for runs that overlap.").or("skip"),
        may("missed", MISSED, "The rule for missed timers.").or("fire"),
        may(
            "priority",
            PRIORITY,
            "The priority of timers that name none.",
        )
        .or("0"),
        may(
            "serial",
            Kind::Truth,
            "Whether timers may have a serial_key.",
        )
        .or("false"),
        may("statuses", STATUSES, "What statuses of answers mean.")
            .or("2xx is done, 410 is stop, any other is retry"),
        may(
            "cloudevents",
            Kind::Object(&CLOUDEVENTS),
            "Makes deliveries events.",
        )
        .or("none"),
        may(
            "mode",
            Kind::Words(&["push", "pull"]),
            "Whether timers are delivered, or fetched by workers.",
        )
        .or("push"),
        may(
            "lease",
            DURATION,
            "With mode pull, how long a worker has a timer: 1 s to 12 h.",
        )
        .or("30s"),
        may(
            "placement",
            Kind::Words(&["spread", "one"]),
            "Whether all timers of the queue are in one shard.",
        )
        .or("spread"),
    ],
    rules: &[],
    is_open: false,
};

/// What a call of a worker may say beside its queues.
static LEASE_FIELDS: Shape = Shape {
    name: "LeaseFields",
    doc: "What a call of a worker says beside its queues.",
    with: &[],
    fields: &[
        may("max", Kind::whole(1, 1_000), "How many leases.").or("1"),
        may("lease", DURATION, "For how long: 1 s to 12 h.").or("the lease of the queue"),
        may(
            "wait",
            DURATION,
            "How long to wait if none is due: at most 60 s.",
        )
        .or("0"),
        may("worker", Kind::text(1, 128), "The name of the worker.").or("none"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static LEASE: Shape = Shape {
    name: "LeaseRequest",
    doc: "What a worker asks of one queue.",
    with: &[&LEASE_FIELDS],
    fields: &[],
    rules: &[],
    is_open: false,
};

pub(crate) static LEASE_OF_QUEUES: Shape = Shape {
    name: "LeaseOfQueues",
    doc: "What a worker asks of several queues.",
    with: &[&LEASE_FIELDS],
    fields: &[need(
        "queues",
        Kind::Set {
            of: &QUEUE,
            least: 1,
            most: 64,
        },
        "The queues, none of them twice.",
    )],
    rules: &[],
    is_open: false,
};

/// A lease as its worker names it.
static LEASE_NAME: Shape = Shape {
    name: "LeaseName",
    doc: "A lease as its worker names it.",
    with: &[],
    fields: &[
        need("queue", QUEUE, "The queue of the timer."),
        need("key", KEY, "The key of the timer."),
        need("token", TOKEN, "The token of the lease."),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static ACK: Shape = Shape {
    name: "Ack",
    doc: "The attempt is done.",
    with: &[&LEASE_NAME],
    fields: &[],
    rules: &[],
    is_open: false,
};

static NACK_FIELDS: Shape = Shape {
    name: "NackFields",
    doc: "What follows a failure.",
    with: &[],
    fields: &[
        may(
            "in",
            DURATION,
            "When the next attempt comes: at most 365 days.",
        )
        .or("as the retry policy says"),
        may("dead", Kind::Truth, "Whether no attempt follows.").or("false"),
        may("detail", Kind::text(0, 200), "Why, kept with the attempt.").or("nacked"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static NACK: Shape = Shape {
    name: "Nack",
    doc: "The attempt has failed.",
    with: &[&LEASE_NAME, &NACK_FIELDS],
    fields: &[],
    rules: &[],
    is_open: false,
};

pub(crate) static EXTEND: Shape = Shape {
    name: "Extend",
    doc: "The lease ends this long from now.",
    with: &[&LEASE_NAME],
    fields: &[need("lease", DURATION, "For how long: 1 s to 12 h.")],
    rules: &[],
    is_open: false,
};

/// Several leases at once.
macro_rules! items {
    ($name:ident, $text:literal, $of:ident) => {
        pub(crate) static $name: Shape = Shape {
            name: $text,
            doc: "The same for several leases.",
            with: &[],
            fields: &[need(
                "items",
                Kind::List {
                    of: &Kind::Object(&$of),
                    least: 1,
                    most: 1_000,
                },
                "One for each lease.",
            )],
            rules: &[],
            is_open: false,
        };
    };
}
items!(ACKS, "Acks", ACK);
items!(NACKS, "Nacks", NACK);
items!(EXTENDS, "Extends", EXTEND);

pub(crate) static PAUSE: Shape = Shape {
    name: "Pause",
    doc: "When a pause ends by itself.",
    with: &[],
    fields: &[
        may("in", DURATION, "A duration from now."),
        may("at", TIME, "A time."),
    ],
    rules: &[Rule::AtMostOne(&["in", "at"])],
    is_open: false,
};

pub(crate) static DRAIN: Shape = Shape {
    name: "Drain",
    doc: "How a queue is drained.",
    with: &[],
    fields: &[
        need(
            "mode",
            Kind::Words(&["fire", "hold", "remove"]),
            "What becomes of the timers.",
        ),
        may(
            "in",
            DURATION,
            "With mode fire: nothing starts later than this from now.",
        ),
        may("at", TIME, "With mode fire: nothing starts after this."),
    ],
    rules: &[
        Rule::AtMostOne(&["in", "at"]),
        Rule::NotWith("in", "mode", &["hold", "remove"]),
        Rule::NotWith("at", "mode", &["hold", "remove"]),
    ],
    is_open: false,
};

const STATES: Kind = Kind::Set {
    of: &Kind::Words(&["pending", "done", "dead"]),
    least: 1,
    most: 3,
};

pub(crate) static PURGE: Shape = Shape {
    name: "PurgeFilter",
    doc: "What a purge removes.",
    with: &[],
    fields: &[
        may("states", STATES, "States, each once.").or("all three"),
        may("prefix", PREFIX, "What the key begins with.").or("any key"),
        may("due_after", TIME, "Only timers due then or later.").or("any time"),
        may("due_before", TIME, "Only timers due earlier.").or("any time"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static JOB_FILTER: Shape = Shape {
    name: "JobFilter",
    doc: "Which timers of the queue a job changes.",
    with: &[],
    fields: &[
        may(
            "states",
            STATES,
            "States that the action can change, each once.",
        )
        .or("all that the action can change"),
        may("prefix", PREFIX, "What the key begins with.").or("any key"),
        may("tags", TAGS, "Tags, all of which the timer has.").or("any"),
        may("due_after", TIME, "Only timers due then or later.").or("any time"),
        may("due_before", TIME, "Only timers due earlier.").or("any time"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static CREATE_TOKEN: Shape = Shape {
    name: "CreateToken",
    doc: "A token to be made.",
    with: &[],
    fields: &[
        need(
            "name",
            Kind::text(1, 128),
            "What the token is for: up to 128 bytes.",
        ),
        need(
            "scopes",
            Kind::Set {
                of: &SCOPE,
                least: 1,
                most: 5,
            },
            "What the token opens.",
        ),
        may(
            "namespace",
            Kind::Named(&NAMESPACE_NAME),
            "The namespace that it is of: it opens what is in there.",
        )
        .or("the whole service, or the namespace of the token that makes it"),
        may(
            "certificate",
            Kind::Text {
                least: 4,
                most: 512,
                pattern: "^(dns|uri|cn):[^\\x00-\\x1f]+$",
                format: "",
            },
            "The name of a certificate that stands for the token, such as dns:worker.example. The token has no secret then.",
        )
        .or("a secret"),
        may(
            "expires_in",
            DURATION,
            "After how long the token opens nothing any more: 1 s to 3,650 days.",
        )
        .or("never"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static QUOTAS: Shape = Shape {
    name: "Quotas",
    doc: "How much a namespace may have. Without a quota it may have as much as there is.",
    with: &[],
    fields: &[
        may("timers", QUOTA, "Timers in all states."),
        may(
            "bytes",
            QUOTA,
            "Bytes of the keys of timers, and of what is stored of their bodies, targets, headers and tags.",
        ),
        may(
            "rate",
            Kind::Object(&RATE),
            "Requests under /v1, and lines of batches of its tokens.",
        ),
        may("queues", QUOTA, "Queues with timers or settings."),
        may("endpoints", QUOTA, "Endpoints."),
        may("connections", QUOTA, "Connections of callers."),
    ],
    rules: &[],
    is_open: false,
};
const QUOTA: Kind = Kind::whole(0, 1_000_000_000_000);

pub(crate) static PUT_NAMESPACE: Shape = Shape {
    name: "PutNamespace",
    doc: "A namespace.",
    with: &[],
    fields: &[
        may("quotas", Kind::Object(&QUOTAS), "Its quotas.").or("none"),
        may(
            "audit_timers",
            Kind::Truth,
            "Whether single sets, moves and removals of its timers have entries in the audit log, as others have.",
        )
        .or("false, unless the service notes all of them"),
    ],
    rules: &[],
    is_open: false,
};

pub(crate) static ROTATE_TOKEN: Shape = Shape {
    name: "RotateToken",
    doc: "A token that gets another secret.",
    with: &[],
    fields: &[may(
        "overlap",
        DURATION,
        "For how long the secret before counts still: up to 30 days.",
    )
    .or("0")],
    rules: &[],
    is_open: false,
};

pub(crate) static JOB: Shape = Shape {
    name: "BeginJob",
    doc: "A job: one change of many timers of a queue.",
    with: &[],
    fields: &[
        need("queue", QUEUE, "The queue."),
        need(
            "action",
            Kind::Words(&["remove", "move", "fire", "revive"]),
            "What the job does to each timer.",
        ),
        need(
            "filter",
            Kind::Object(&JOB_FILTER),
            "Which timers it changes.",
        ),
        may(
            "move",
            Kind::Object(&MOVE),
            "With the action move: where to.",
        ),
        may(
            "rate",
            Kind::whole(1, 100_000),
            "How many timers are changed each second at the most.",
        )
        .or("no limit"),
        may(
            "dry_run",
            Kind::Truth,
            "The job counts the timers, and changes none.",
        )
        .or("false"),
    ],
    rules: &[
        Rule::With("move", "action", "move"),
        Rule::NotWith("move", "action", &["remove", "fire", "revive"]),
    ],
    is_open: false,
};

pub(crate) static SIMULATE: Shape = Shape {
    name: "Simulate",
    doc: "A retry policy or a schedule to be gone through.",
    with: &[&SCHEDULE],
    fields: &[
        may(
            "retry",
            RETRY_POLICY,
            "The policy whose attempts are asked for.",
        ),
        may("queue", QUEUE, "The queue that the timer would be in."),
        may(
            "endpoint",
            ENDPOINT,
            "The endpoint that the timer would go to.",
        )
        .or("that of the queue"),
        may("start", TIME, "When the timer is set.").or("now"),
        may(
            "limit",
            Kind::whole(1, 10_000),
            "How many attempts or runs are shown at the most.",
        )
        .or("100"),
    ],
    rules: &SIMULATE_RULES,
    is_open: false,
};

const SIMULATE_RULES: [Rule; 13] = {
    let [_, b, c, d, e, f, g, h] = SCHEDULE_RULES;
    [
        Rule::AnyOf(&["retry", "every", "every_after", "cron", "queue", "endpoint"]),
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        Rule::NotBoth(&["retry", "every"], &["queue", "endpoint"]),
        Rule::NotBoth(&["retry", "every_after"], &["queue", "endpoint"]),
        Rule::NotBoth(&["retry", "cron"], &["queue", "endpoint"]),
        Rule::NotBoth(&["retry", "in"], &["queue", "endpoint"]),
        Rule::NotBoth(&["retry", "at"], &["queue", "endpoint"]),
    ]
};

pub(crate) static SNAPSHOT: Shape = Shape {
    name: "MakeSnapshot",
    doc: "A snapshot of the store.",
    with: &[],
    fields: &[need(
        "name",
        Kind::Text {
            least: 1,
            most: 64,
            pattern: "^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
            format: "",
        },
        "What the snapshot is called.",
    )],
    rules: &[],
    is_open: false,
};

pub(crate) static MOVE_SHARD: Shape = Shape {
    name: "MoveShard",
    doc: "Where a shard goes.",
    with: &[],
    fields: &[need(
        "node",
        Kind::Nullable(&Kind::TEXT),
        "The name of a node, or null to leave the shard to the placement.",
    )],
    rules: &[],
    is_open: false,
};

pub(crate) static REBALANCE: Shape = Shape {
    name: "Rebalance",
    doc: "Whether the shards are moved, or only told.",
    with: &[],
    fields: &[may("dry_run", Kind::Truth, "Nothing is changed.").or("false")],
    rules: &[],
    is_open: false,
};

pub(crate) static MOVE_TO: Shape = Shape {
    name: "MoveToCluster",
    doc: "The database of the cluster that all timers move to.",
    with: &[],
    fields: &[
        need(
            "store",
            Kind::Text {
                least: 0,
                most: usize::MAX,
                pattern: "^postgres(ql)?://",
                format: "database-url",
            },
            "The URL of the database.",
        ),
        may(
            "schema",
            Kind::Text {
                least: 1,
                most: 63,
                pattern: "^[a-z_][a-z0-9_]*$",
                format: "",
            },
            "The schema.",
        )
        .or("countwheel"),
        may(
            "store_ca",
            Kind::TEXT,
            "A file with what the certificate of the database comes from.",
        ),
        may(
            "accept_loss",
            Kind::Truth,
            "As the option of serve of the same name.",
        )
        .or("false"),
    ],
    rules: &[],
    is_open: false,
};

/// What every line of a batch has.
macro_rules! line {
    ($name:ident, $text:literal, $op:literal, $doc:literal, [$($with:expr),*], $fields:expr, $rules:expr) => {
        pub(crate) static $name: Shape = Shape {
            name: $text,
            doc: $doc,
            with: {
                static LINE: Shape = Shape {
                    name: $text,
                    doc: $doc,
                    with: &[],
                    fields: &[
                        need("op", Kind::Words(&[$op]), "The operation."),
                        need("queue", QUEUE, "The queue of the timer."),
                        need("key", KEY, "The key of the timer."),
                    ],
                    rules: &[],
                    is_open: false,
                };
                &[&LINE, $($with),*]
            },
            fields: $fields,
            rules: $rules,
            is_open: false,
        };
    };
}

const REVISION_OF_LINE: Kind = Kind::Either(&[
    Kind::COUNT,
    Kind::Text {
        least: 1,
        most: 20,
        pattern: r"^([0-9]+|\*)$",
        format: "",
    },
]);
const IF_MATCH: Field = may(
    "if_match",
    REVISION_OF_LINE,
    "The revision that the timer has to have, or *.",
);

static LINE_SET_RULES: [Rule; 15] = {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = SET_RULES;
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
        Rule::AtMostOne(&["if_match", "if_none_match"]),
    ]
};
line!(
    LINE_SET,
    "BatchSet",
    "set",
    "Sets a timer.",
    [&SCHEDULE, &TIMER_FIELDS],
    &[
        IF_MATCH,
        may(
            "if_none_match",
            Kind::Words(&["*"]),
            "The timer must not exist.",
        ),
    ],
    &LINE_SET_RULES
);
line!(
    LINE_MOVE,
    "BatchMove",
    "move",
    "Moves a timer.",
    [&MOVE],
    &[IF_MATCH],
    &[
        Rule::AnyOf(&["in", "at", "by"]),
        Rule::AtMostOne(&["in", "at"]),
        Rule::AtMostOne(&["in", "by"]),
        Rule::AtMostOne(&["at", "by"]),
    ]
);
line!(
    LINE_REMOVE,
    "BatchRemove",
    "remove",
    "Removes a timer.",
    [],
    &[
        IF_MATCH,
        may(
            "only",
            Kind::Words(&["pending"]),
            "Only a timer in this state."
        ),
    ],
    &[]
);
line!(
    LINE_FIRE,
    "BatchFire",
    "fire",
    "Makes a timer due now.",
    [],
    &[],
    &[]
);
line!(
    LINE_REVIVE,
    "BatchRevive",
    "revive",
    "Revives a dead timer.",
    [&REVIVE],
    &[],
    &[Rule::AtMostOne(&["in", "at"])]
);
line!(
    LINE_ACK,
    "BatchAck",
    "ack",
    "A leased attempt is done.",
    [],
    &[need("token", TOKEN, "The token of the lease.")],
    &[]
);
line!(
    LINE_NACK,
    "BatchNack",
    "nack",
    "A leased attempt has failed.",
    [&NACK_FIELDS],
    &[need("token", TOKEN, "The token of the lease.")],
    &[]
);

/// The lines of a batch, by what they ask for.
pub(crate) static LINES: [&Shape; 7] = [
    &LINE_SET,
    &LINE_MOVE,
    &LINE_REMOVE,
    &LINE_FIRE,
    &LINE_REVIVE,
    &LINE_ACK,
    &LINE_NACK,
];

/// A line of a trace: a set, a move or a remove with the time of it.
pub(crate) static TRACED: Shape = Shape {
    name: "Traced",
    doc: "A line of a trace.",
    with: &[&SCHEDULE, &TIMER_FIELDS],
    fields: &[
        need("op", Kind::TEXT, "The operation."),
        need("t", TIME, "When it happened."),
        may("queue", QUEUE, "The queue of the timer."),
        need("key", KEY, "The key of the timer."),
    ],
    rules: &[],
    is_open: false,
};

/// The line of a batch that asks for this.
pub(crate) fn line(op: &str) -> Option<&'static Shape> {
    let of_op = |shape: &&&'static Shape| {
        let field = shape.field("op");
        field.is_some_and(|field| matches!(field.kind, Kind::Words(words) if words.contains(&op)))
    };
    LINES.iter().find(of_op).copied()
}
