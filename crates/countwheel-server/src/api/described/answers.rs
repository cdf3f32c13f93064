//! The objects that answers have.

use super::requests::{
    CLOUDEVENTS, HEADERS, METHOD, MISSED, NAMESPACE_NAME, OVERLAP, PRIORITY, QUOTAS, RETRY_POLICY,
    SCOPE, SPAN_TEXT, STATUSES, TAGS, TIME,
};
use super::{Kind, Named, Shape, may, need};
use crate::api::events::KINDS;

/// An object of answers.
macro_rules! shape {
    ($name:ident, $text:literal, $doc:literal, $fields:expr) => {
        shape!($name, $text, $doc, &[], $fields);
    };
    ($name:ident, $text:literal, $doc:literal, $with:expr, $fields:expr) => {
        pub(crate) static $name: Shape = Shape {
            name: $text,
            doc: $doc,
            with: $with,
            fields: $fields,
            rules: &[],
            is_open: true,
        };
    };
}

const SPAN: Kind = Kind::Named(&SPAN_TEXT);
const REVISION: Kind = Kind::COUNT;
const TEXT: Kind = Kind::TEXT;
const COUNT: Kind = Kind::COUNT;
const SIGNED: Kind = Kind::whole(i64::MIN, i64::MAX.unsigned_abs());
const STATUS: Kind = Kind::whole(100, 599);

pub(crate) static STATE_KIND: Named = Named {
    name: "State",
    doc: "The state of a timer. A timer that a worker has is leased.",
    kind: Kind::Words(&["pending", "delivering", "leased", "done", "dead"]),
};
const STATE: Kind = Kind::Named(&STATE_KIND);
const RESULT: Kind = Kind::Words(&["done", "failed", "stopped", "interrupted", "lost"]);
const DEAD_REASON: Kind = Kind::Words(&[
    "exhausted",
    "too_old",
    "stopped",
    "interrupted",
    "missed",
    "lease_lost",
]);
/// Those that are counted and stored.
const STORED_STATE: Kind = Kind::Words(&["pending", "delivering", "done", "dead"]);

/// The names of quotas, as a refusal says them.
const QUOTA_NAME: Kind = Kind::Words(&[
    "timers",
    "bytes",
    "queues",
    "endpoints",
    "rate",
    "connections",
]);

shape!(
    WAS_SET,
    "WasSet",
    "What a set did.",
    &[
        need("queue", TEXT, "The queue of the timer."),
        need("key", TEXT, "The key of the timer."),
        need(
            "id",
            TEXT,
            "The id that every delivery of the timer carries."
        ),
        need("revision", REVISION, "The revision of the timer."),
        need("due", TIME, "When the timer is due."),
        need(
            "replaced",
            Kind::Nullable(&STORED_STATE),
            "The state of the timer that was replaced, or null.",
        ),
    ]
);

shape!(
    MOVED,
    "Moved",
    "What a move did.",
    &[
        need("revision", REVISION, "The revision of the timer."),
        need("old_due", TIME, "When the timer was due."),
        need("due", TIME, "When the timer is due now."),
    ]
);

shape!(
    REMOVED,
    "Removed",
    "What a removed timer was doing.",
    &[
        need(
            "was",
            Kind::Words(&["pending", "delivering", "leased", "dead", "unreadable"]),
            "What the timer was doing.",
        ),
        may("due", TIME, "Of a pending timer: when it was due."),
        may(
            "attempt",
            COUNT,
            "Of a timer in delivery: the number of the attempt that may still arrive.",
        ),
    ]
);

shape!(
    TIMER_TARGET,
    "TimerTarget",
    "Where a timer is delivered.",
    &[
        may("method", METHOD, "The method, unless it is POST."),
        may("url", TEXT, "The URL."),
        may(
            "endpoint",
            TEXT,
            "The endpoint, unless it is that of the queue."
        ),
        may("path", TEXT, "What follows the URL of the endpoint."),
        need("headers", HEADERS, "Sent with each delivery."),
        may(
            "timeout",
            SPAN,
            "The deadline of an attempt that holds now."
        ),
    ]
);

shape!(
    TIMES,
    "PhaseTimes",
    "How long the phases of an attempt took, in microseconds.",
    &[
        may("resolve", COUNT, "The look-up of the name."),
        may("connect", COUNT, "The connection."),
        may("tls", COUNT, "The handshake of TLS."),
        need(
            "first_byte",
            COUNT,
            "From the head of the request to the head of the answer.",
        ),
    ]
);

shape!(
    TARGET_ANSWER,
    "TargetAnswer",
    "What a target answered.",
    &[
        need("status", STATUS, "The status."),
        may("body", TEXT, "The first 1 KiB of the body."),
        may("body_base64", TEXT, "The same if the body is no UTF-8."),
        need("body_bytes", COUNT, "How much of the body was read."),
        need(
            "truncated",
            Kind::Truth,
            "Whether the body is longer than what is shown.",
        ),
        need(
            "times_us",
            Kind::Object(&TIMES),
            "How long the phases took, in microseconds.",
        ),
        may(
            "ignored",
            Kind::List {
                of: &TEXT,
                least: 0,
                most: usize::MAX,
            },
            "Headers of the answer that did not count.",
        ),
    ]
);

shape!(
    ATTEMPT,
    "Attempt",
    "One attempt of a timer.",
    &[
        need("number", COUNT, "The number of the attempt."),
        may("run", COUNT, "Of a recurring timer: the number of its run."),
        need("due", TIME, "When the attempt was due."),
        need("started", TIME, "When the attempt started."),
        may(
            "late_us",
            COUNT,
            "How late the attempt was, in microseconds."
        ),
        need(
            "held_us",
            COUNT,
            "For how long the attempt was held, in microseconds.",
        ),
        may("ended", TIME, "When the attempt ended."),
        may("result", RESULT, "What came of the attempt.",),
        may(
            "detail",
            TEXT,
            "The status of the answer, or why there was none."
        ),
        may(
            "answer",
            Kind::Object(&TARGET_ANSWER),
            "What the target answered."
        ),
    ]
);

shape!(
    NEXT_ATTEMPT,
    "NextAttempt",
    "An attempt to come.",
    &[
        need("attempt", COUNT, "The number of the attempt."),
        need("at", TIME, "When the attempt would come."),
    ]
);

shape!(
    SHOWN_ADAPTIVE,
    "AdaptiveBounds",
    "Between which delays the receiver may choose the next run.",
    &[
        need("min", SPAN, "The shortest."),
        need("max", SPAN, "The longest."),
    ]
);

shape!(
    RECURRING,
    "Recurring",
    "The schedule of a recurring timer, and its position.",
    &[
        may("every", SPAN, "The interval of a fixed rate."),
        may("at", TIME, "A point of the grid of a fixed rate."),
        may("every_after", SPAN, "The delay after each run."),
        may("cron", TEXT, "The expression."),
        may("zone", TEXT, "The time zone of the expression."),
        may("repeats", COUNT, "How many runs are made in all."),
        may("until", TIME, "No run has a nominal time after this."),
        may("jitter", SPAN, "How far each run is spread."),
        need(
            "overlap",
            OVERLAP,
            "The rule for runs that overlap, as it holds now."
        ),
        may(
            "adaptive",
            Kind::Object(&SHOWN_ADAPTIVE),
            "The bounds of what the receiver may ask for.",
        ),
        need(
            "run",
            COUNT,
            "The number of the run that is next, under way or was the last."
        ),
        need("nominal", TIME, "The nominal time of that run."),
        need("missed_runs", COUNT, "How many runs were missed."),
        need(
            "overlapped_runs",
            COUNT,
            "How many runs were skipped as overlapped."
        ),
        need("dead_runs", COUNT, "How many runs were given up."),
        need(
            "next_runs",
            Kind::List {
                of: &TIME,
                least: 0,
                most: 20,
            },
            "The nominal times of the runs after it.",
        ),
    ]
);

const ORIGIN: Kind = Kind::Words(&["endpoint", "queue", "default"]);
shape!(
    ORIGINS,
    "Origins",
    "Who says the rules that the timer has left open.",
    &[
        may("retry", ORIGIN, "Who says the retry policy."),
        may("missed", ORIGIN, "Who says the rule for missed timers."),
        may(
            "overlap",
            ORIGIN,
            "Who says the rule for runs that overlap."
        ),
        may("timeout", ORIGIN, "Who says the timeout."),
    ]
);

shape!(
    TIMER_PARTS,
    "TimerParts",
    "A timer without its body.",
    &[
        need("queue", TEXT, "The queue of the timer."),
        need("key", TEXT, "The key of the timer."),
        need(
            "id",
            TEXT,
            "The id that every delivery of the timer carries."
        ),
        need("revision", REVISION, "The revision of the timer."),
        need("state", STATE, "The state."),
        may(
            "leased_until",
            TIME,
            "When the lease of a leased timer ends."
        ),
        may("worker", TEXT, "Who has the lease, where that is known."),
        may("done_at", TIME, "When the timer was done."),
        may("keep_until", TIME, "Until when an ended timer is kept."),
        may("dead_at", TIME, "When the timer was given up."),
        may("dead_reason", DEAD_REASON, "Why the timer was given up.",),
        need("created", TIME, "When the timer was set."),
        need("due", TIME, "When the timer is due."),
        need(
            "target",
            Kind::Nullable(&Kind::Object(&TIMER_TARGET)),
            "Where the timer is delivered; null if what is stored is no request.",
        ),
        need(
            "content_type",
            Kind::Nullable(&TEXT),
            "The content-type of the delivery, null without a body.",
        ),
        need("body_bytes", COUNT, "How many bytes the body has."),
        need("retry", RETRY_POLICY, "The retry policy that holds now."),
        may(
            "missed",
            MISSED,
            "The rule for missed timers, unless it is fire."
        ),
        may(
            "recurring",
            Kind::Object(&RECURRING),
            "Of a recurring timer."
        ),
        may(
            "from",
            Kind::Object(&ORIGINS),
            "Who says the rules that the timer has left open.",
        ),
        may(
            "spread",
            SPAN,
            "How much later than asked for the timer might be due."
        ),
        may("spread_drawn", SPAN, "How much of that was drawn."),
        may("serial_key", TEXT, "The serial key."),
        may(
            "priority",
            PRIORITY,
            "The priority, if the timer names one."
        ),
        may("tags", TAGS, "The tags."),
        may("trace_id", TEXT, "The trace that the set came with."),
        need(
            "failures",
            COUNT,
            "Failures that count in the retry policy."
        ),
        need("attempt", COUNT, "How many attempts were made."),
        need(
            "attempts",
            Kind::List {
                of: &Kind::Object(&ATTEMPT),
                least: 0,
                most: 32,
            },
            "The last attempts, oldest first.",
        ),
        may(
            "next_attempts",
            Kind::List {
                of: &Kind::Object(&NEXT_ATTEMPT),
                least: 0,
                most: 20,
            },
            "Of a pending timer: the attempts to come if each failed at once.",
        ),
        may(
            "backfill",
            Kind::Object(&OF_RUN),
            "Of a run that a backfill has made.",
        ),
        may(
            "held_by",
            TEXT,
            "Why no attempt is made of a timer that is due."
        ),
    ]
);

shape!(
    TIMER,
    "Timer",
    "A timer as it stands.",
    &[&TIMER_PARTS],
    &[
        may("body", TEXT, "With bodies=text: exactly what is delivered."),
        may("body_base64", TEXT, "The same if the body is no UTF-8."),
    ]
);

shape!(
    DUE_BUCKET,
    "DueBucket",
    "How many timers pend that are due within a span of time.",
    &[
        need("from", TIME, "The first moment of the span."),
        need(
            "until",
            Kind::Nullable(&TIME),
            "The first moment behind the span; null for whenever later.",
        ),
        need("timers", COUNT, "How many there are."),
    ]
);

shape!(
    OVERDUE,
    "Overdue",
    "How many timers pend of which the time has come.",
    &[
        need("until", Kind::Nullable(&TIME), "They were due before this."),
        need("timers", COUNT, "How many there are."),
        may("exact", Kind::Truth, "false if the count may be too low."),
        may("oldest", TIME, "When the first of them was due."),
    ]
);

shape!(
    DRIFT,
    "DelaysDrift",
    "How far the buckets of delays are from where the wall clock shows them now, in microseconds.",
    &[
        need("least", SIGNED, "The least."),
        need("most", SIGNED, "The most."),
    ]
);

shape!(
    DONE_SO_FAR,
    "DoneSoFar",
    "What was done.",
    &[
        need("set", COUNT, "Timers that were set."),
        need("moved", COUNT, "Timers that were moved."),
        need("removed", COUNT, "Timers that were removed."),
        need("attempts", COUNT, "Attempts that were started."),
        need("done", COUNT, "Attempts that are done."),
        need("failed", COUNT, "Attempts that failed."),
        need("dead", COUNT, "Timers that were given up."),
    ]
);

shape!(
    RECENT,
    "DoneRecently",
    "What was done between two moments.",
    &[&DONE_SO_FAR],
    &[
        need("from", TIME, "The first moment."),
        need("until", TIME, "The first moment behind it."),
    ]
);

shape!(
    TIMER_COUNTS,
    "TimerCounts",
    "How many timers there are.",
    &[
        need("pending", COUNT, "Timers that wait."),
        need("delivering", COUNT, "Timers that are delivered or leased."),
        need("done", COUNT, "Timers that are done and kept."),
        need("dead", COUNT, "Timers that were given up."),
        need("queues", COUNT, "Queues with timers."),
        may("exact", Kind::Truth, "false if a count may be too low."),
    ]
);

const DUE_BUCKETS: Kind = Kind::List {
    of: &Kind::Object(&DUE_BUCKET),
    least: 0,
    most: 4_096,
};

shape!(
    STATS,
    "Stats",
    "The figures of all nodes.",
    &[
        need("as_of", TIME, "When they were taken."),
        need(
            "timers",
            Kind::Object(&TIMER_COUNTS),
            "How many timers there are."
        ),
        need(
            "overdue",
            Kind::Nullable(&Kind::Object(&OVERDUE)),
            "How many of them are overdue.",
        ),
        need(
            "due",
            DUE_BUCKETS,
            "Within the next minute, hour, day and year, and in all."
        ),
        need(
            "delays_drift_micros",
            Kind::Object(&DRIFT),
            "How far the clocks are apart."
        ),
        need("in_flight", COUNT, "Attempts that run."),
        need("leased", COUNT, "Timers that workers have."),
        need("waiting_for_limits", COUNT, "Timers that wait for a place."),
        need(
            "since_start",
            Kind::Object(&DONE_SO_FAR),
            "What was done since the processes started.",
        ),
        need(
            "recent",
            Kind::Nullable(&Kind::Object(&RECENT)),
            "What was done lately.",
        ),
        need("nodes", COUNT, "How many nodes the figures are of."),
        may("exact", Kind::Truth, "false if a figure may be wrong."),
    ]
);

shape!(
    DUE_STATS,
    "DueStats",
    "How many timers are due when.",
    &[
        need("as_of", TIME, "When they were counted."),
        need(
            "overdue",
            Kind::Nullable(&Kind::Object(&OVERDUE)),
            "Those before the first bucket.",
        ),
        need(
            "buckets",
            DUE_BUCKETS,
            "In order of time, those with timers."
        ),
        need(
            "next",
            Kind::Nullable(&TIME),
            "Where to go on; null at the end."
        ),
        need(
            "delays_drift_micros",
            Kind::Object(&DRIFT),
            "How far the clocks are apart."
        ),
        need("nodes", COUNT, "How many nodes the figures are of."),
        may("exact", Kind::Truth, "false if a count may be wrong."),
    ]
);

shape!(
    EVENT,
    "Event",
    "What a commit did, as the data of an event.",
    &[
        need("kind", Kind::Words(&KINDS), "What happened."),
        need("at", TIME, "When it happened."),
        may("queue", TEXT, "The queue."),
        may("key", TEXT, "The key of the timer."),
        may("endpoint", TEXT, "The endpoint that was changed."),
        may("removed", Kind::Truth, "Whether the settings were removed."),
        may("id", TEXT, "The id of the timer."),
        may("revision", REVISION, "The revision of the timer."),
        may("state", STATE, "The state of the timer behind the event."),
        may("due", TIME, "When the timer is due next."),
        may("leased_until", TIME, "When the lease ends."),
        may("attempt", COUNT, "The number of the attempt."),
        may("result", RESULT, "What came of the attempt."),
        may(
            "late_us",
            COUNT,
            "How late the attempt was, in microseconds."
        ),
        may(
            "detail",
            TEXT,
            "The status of the answer, or why there was none."
        ),
        may("dead_reason", DEAD_REASON, "Why the timer was given up."),
        need("shard", COUNT, "The shard that the event is of."),
        need("term", COUNT, "The term of the owner of the shard."),
        need("number", COUNT, "The number of the event in the term."),
    ]
);

shape!(
    GAP,
    "Gap",
    "Events of a shard that are not known any more, or never were.",
    &[need("shard", COUNT, "The shard.")]
);

shape!(
    NEXT_RUN,
    "NextRun",
    "A run to come.",
    &[
        need("nominal", TIME, "The nominal time."),
        need("due", TIME, "When the run is due."),
        may(
            "local",
            TEXT,
            "The nominal time in the zone of the expression."
        ),
    ]
);

shape!(
    NEXT_RUNS,
    "NextRuns",
    "A page of runs to come.",
    &[
        need(
            "runs",
            Kind::List {
                of: &Kind::Object(&NEXT_RUN),
                least: 0,
                most: 1_000,
            },
            "The runs, if each is made on time.",
        ),
        need(
            "next",
            Kind::Nullable(&TIME),
            "The after of the next page; null at the end.",
        ),
    ]
);

shape!(
    MADE_RUN,
    "BackfilledRun",
    "A run of the past.",
    &[
        need("key", TEXT, "The key of its timer."),
        need("nominal", TIME, "The nominal time."),
        need(
            "result",
            Kind::Words(&["made", "exists", "new"]),
            "What became of it; new in a dry run.",
        ),
    ]
);

shape!(
    BACKFILLED,
    "Backfilled",
    "What a backfill has made.",
    &[
        need("dry_run", Kind::Truth, "Whether nothing was made."),
        need("made", COUNT, "How many runs were made."),
        need("existing", COUNT, "How many runs were there."),
        need(
            "runs",
            Kind::List {
                of: &Kind::Object(&MADE_RUN),
                least: 0,
                most: 1_000,
            },
            "The runs.",
        ),
        need(
            "next",
            Kind::Nullable(&TIME),
            "From where to go on; null at the end.",
        ),
    ]
);

shape!(
    OF_RUN,
    "RunOf",
    "Of which run of which timer a timer is.",
    &[
        need("of", TEXT, "The key of the recurring timer."),
        need("nominal", TIME, "The nominal time of the run."),
    ]
);

shape!(
    SIMULATED_THERE,
    "SimulatedThere",
    "The attempts of a timer of a queue or to an endpoint, and the rules that hold there.",
    &[&SIMULATED_ATTEMPTS],
    &[
        need("retry", RETRY_POLICY, "The retry policy."),
        need("missed", MISSED, "The rule for missed timers."),
        may("overlap", OVERLAP, "The rule for runs that overlap."),
        need(
            "timeout",
            Kind::Nullable(&SPAN),
            "The deadline of an attempt."
        ),
        need("from", Kind::Object(&ORIGINS), "Who says each rule."),
    ]
);

shape!(
    HANDED_BACK,
    "HandedBack",
    "A timer that a drain has removed: the only copy.",
    &[&TIMER_PARTS],
    &[
        may("body", Kind::Any, "The value of a JSON body, else a text."),
        may("body_base64", TEXT, "The body if it is no UTF-8."),
    ]
);

shape!(
    AUDIT_WHO,
    "AuditWho",
    "Who has asked.",
    &[
        need(
            "kind",
            Kind::Words(&["token", "configured", "anyone", "service", "directory"]),
            "Whoever had a token that is stored, or that was given to the program; anyone, where no token was needed; the \
             service itself; whoever has made a token in the data directory.",
        ),
        may("id", TEXT, "The id of the token."),
        may("name", TEXT, "The name that the token had."),
        may(
            "session",
            Kind::Truth,
            "Whether it was somebody at the pages."
        ),
    ]
);

shape!(
    AUDIT_STOOD,
    "AuditStood",
    "How a timer or a setting stood.",
    &[
        may(
            "state",
            Kind::Words(&["pending", "delivering", "done", "dead", "unreadable"]),
            "The state of a timer.",
        ),
        may("due", TIME, "When a timer was due."),
        may("revision", REVISION, "The revision."),
        may("attempts", COUNT, "How many attempts of a timer had begun."),
    ]
);

shape!(
    AUDIT_FIELD,
    "AuditField",
    "A field of a setting that is another than before. A value that is long or could be a secret is left out.",
    &[
        need("field", TEXT, "The name of the field."),
        may("before", Kind::Any, "The value before, if it is shown."),
        may("after", Kind::Any, "The value after, if it is shown."),
    ]
);

shape!(
    AUDIT_ENTRY,
    "AuditEntry",
    "A change, and who has asked for it.",
    &[
        need("id", TEXT, "The id of the entry."),
        need("at", TIME, "When."),
        need("kept_until", TIME, "Until when the entry is kept."),
        need("who", Kind::Object(&AUDIT_WHO), "Who has asked."),
        may(
            "from",
            TEXT,
            "The address of the caller, a /64 of IPv6, or the user at a socket."
        ),
        may(
            "certificate",
            TEXT,
            "The names of the certificate that the caller has shown."
        ),
        may("operation", TEXT, "The operationId of the request."),
        may("request", TEXT, "The X-Request-Id of the request."),
        may(
            "action",
            Kind::Words(&["set", "move", "remove", "fire", "revive"]),
            "What was done to a timer.",
        ),
        may("queue", TEXT, "The queue of the timer."),
        may("key", TEXT, "The key of the timer."),
        may("setting", TEXT, "The setting: its kind, / and its name."),
        need(
            "before",
            Kind::Nullable(&Kind::Object(&AUDIT_STOOD)),
            "How it stood before; null if there was none."
        ),
        need(
            "after",
            Kind::Nullable(&Kind::Object(&AUDIT_STOOD)),
            "How it stood after; null if there was none any more."
        ),
        need(
            "fields",
            Kind::List {
                of: &Kind::Object(&AUDIT_FIELD),
                least: 0,
                most: 100,
            },
            "The fields of a setting that changed.",
        ),
        may(
            "details",
            Kind::Any,
            "What was asked for, of a job, a purge and a drain."
        ),
    ]
);

shape!(
    AUDIT_PAGE,
    "AuditPage",
    "A page of the audit log.",
    &[
        need(
            "items",
            Kind::List {
                of: &Kind::Object(&AUDIT_ENTRY),
                least: 0,
                most: 1_000,
            },
            "The entries.",
        ),
        need(
            "next",
            Kind::Nullable(&TEXT),
            "The cursor of the next page; null at the end. A page with fewer entries than it may have can have one behind it.",
        ),
        may(
            "unreadable",
            COUNT,
            "How many entries of the page cannot be read."
        ),
    ]
);

shape!(
    TIMER_PAGE,
    "TimerPage",
    "A page of timers.",
    &[
        need(
            "items",
            Kind::List {
                of: &Kind::Object(&TIMER),
                least: 0,
                most: 1_000,
            },
            "Timers in order of their due times.",
        ),
        need(
            "next",
            Kind::Nullable(&TEXT),
            "The cursor of the next page; null at the end.",
        ),
        may(
            "bound_reached",
            Kind::Truth,
            "Whether the page ends because it looks no further.",
        ),
        may("exact", Kind::Truth, "false if timers may be missing."),
        may(
            "unreadable",
            COUNT,
            "How many timers are left out that cannot be read.",
        ),
    ]
);

shape!(
    DRAIN,
    "DrainState",
    "How a queue is drained or paused.",
    &[
        need(
            "mode",
            Kind::Words(&["pause", "fire", "hold", "remove"]),
            "The mode.",
        ),
        may("until", TIME, "When it ends, or nothing starts any more."),
    ]
);

shape!(
    PURGE,
    "Purge",
    "A purge as it stands.",
    &[
        need("id", COUNT, "The number of the purge."),
        need(
            "states",
            Kind::List {
                of: &STORED_STATE,
                least: 1,
                most: 4,
            },
            "The states that are removed.",
        ),
        may("prefix", TEXT, "What the key begins with."),
        may("due_after", TIME, "Only timers due then or later."),
        may("due_before", TIME, "Only timers due earlier."),
        need("since", TIME, "When the purge was asked for."),
        need("removed", COUNT, "How many timers were removed."),
        need("shards_left", COUNT, "How many shards are not through."),
        may("ended", TIME, "When the purge was through."),
    ]
);

shape!(
    QUEUE_PURGE,
    "QueuePurge",
    "The purge of a queue.",
    &[
        need("queue", TEXT, "The queue."),
        need("purge", Kind::Object(&PURGE), "The purge."),
    ]
);

shape!(
    QUEUE_COUNTS,
    "QueueCounts",
    "How many timers a queue has, and whether it is drained.",
    &[
        need("queue", TEXT, "The name of the queue."),
        need("pending", COUNT, "Timers that wait."),
        need("delivering", COUNT, "Timers that are delivered or leased."),
        need("done", COUNT, "Timers that are done and kept."),
        need("dead", COUNT, "Timers that were given up."),
        may(
            "drain",
            Kind::Object(&DRAIN),
            "The pause or drain of the queue."
        ),
        may("purge", Kind::Object(&PURGE), "The purge of the queue."),
    ]
);

shape!(
    QUEUES,
    "Queues",
    "All queues.",
    &[
        need(
            "queues",
            Kind::List {
                of: &Kind::Object(&QUEUE_COUNTS),
                least: 0,
                most: usize::MAX,
            },
            "The queues in order of their names.",
        ),
        need(
            "next",
            Kind::Nullable(&TEXT),
            "The cursor of the next page; null at the end.",
        ),
        may("exact", Kind::Truth, "false if a count may be too low."),
        may(
            "drain",
            Kind::Object(&DRAIN),
            "The pause or drain of all queues."
        ),
    ]
);

shape!(
    SHOWN_RATE,
    "RateLimit",
    "How many attempts may start.",
    &[
        need(
            "per_second",
            Kind::Number {
                least: 0.0,
                most: 1_000_000.0,
            },
            "A second, in the long run.",
        ),
        need("burst", COUNT, "At once."),
    ]
);

shape!(
    SHOWN_RETENTION,
    "RetentionTimes",
    "How long timers are kept once they have ended.",
    &[
        may("done", SPAN, "Of timers that are done."),
        need(
            "dead",
            Kind::Nullable(&SPAN),
            "Of dead timers; null for good."
        ),
    ]
);

shape!(
    QUEUE,
    "Queue",
    "A queue with its counts and settings.",
    &[&QUEUE_COUNTS],
    &[
        need(
            "revision",
            Kind::Nullable(&REVISION),
            "The revision of the settings; null without any.",
        ),
        may("endpoint", TEXT, "Where timers without a place go."),
        may("retry", RETRY_POLICY, "The retry policy."),
        may("timeout", SPAN, "One deadline for a whole attempt."),
        may("concurrency", COUNT, "How many attempts may run at a time."),
        may(
            "rate",
            Kind::Object(&SHOWN_RATE),
            "How many attempts may start."
        ),
        may(
            "payload_limit",
            COUNT,
            "How many bytes the body of a timer may have."
        ),
        may(
            "retention",
            Kind::Object(&SHOWN_RETENTION),
            "How long timers are kept once they have ended.",
        ),
        may("overlap", OVERLAP, "The rule for runs that overlap."),
        may("missed", MISSED, "The rule for missed timers."),
        may(
            "priority",
            PRIORITY,
            "The priority of timers that name none."
        ),
        may(
            "serial",
            Kind::Truth,
            "Whether timers may have a serial_key."
        ),
        may("statuses", STATUSES, "What statuses of answers mean."),
        may(
            "cloudevents",
            Kind::Object(&CLOUDEVENTS),
            "Makes deliveries events."
        ),
        may(
            "mode",
            Kind::Words(&["push", "pull"]),
            "The mode, unless it is push."
        ),
        may("lease", SPAN, "How long a worker has a timer."),
        may(
            "placement",
            Kind::Words(&["spread", "one"]),
            "The placement, unless it is spread.",
        ),
    ]
);

shape!(
    QUEUE_REMOVED,
    "QueueRemoved",
    "The settings of a queue are removed.",
    &[
        need("queue", TEXT, "The queue."),
        need("removed", Kind::Truth, "true."),
    ]
);

shape!(
    LEFT,
    "Left",
    "How many timers are left.",
    &[
        need("pending", COUNT, "Timers that wait."),
        need("delivering", COUNT, "Timers that are delivered or leased."),
        need("dead", COUNT, "Timers that were given up."),
    ]
);

shape!(
    DRAINED,
    "Drained",
    "A queue, or all of them, that was paused or drained.",
    &[
        need("queue", Kind::Nullable(&TEXT), "The queue; null for all."),
        need("drain", Kind::Object(&DRAIN), "The pause or drain."),
        may(
            "removed",
            Kind::List {
                of: &Kind::Object(&HANDED_BACK),
                least: 0,
                most: 1_000,
            },
            "With mode remove: the timers, which are nowhere else.",
        ),
        need("left", Kind::Object(&LEFT), "How many timers are left."),
    ]
);

shape!(
    RESUMED,
    "Resumed",
    "A queue, or all of them, that goes on.",
    &[
        need("queue", Kind::Nullable(&TEXT), "The queue; null for all."),
        need(
            "was",
            Kind::Nullable(&Kind::Object(&DRAIN)),
            "The pause or drain that ended; null if there was none.",
        ),
        need("left", Kind::Object(&LEFT), "How many timers there are."),
    ]
);

shape!(
    LEASE,
    "Lease",
    "A timer that a worker has for a while.",
    &[
        need("queue", TEXT, "The queue of the timer."),
        need("key", TEXT, "The key of the timer."),
        need("id", TEXT, "The id of the timer, or of its run."),
        need("token", TEXT, "The token of the lease."),
        need("attempt", COUNT, "The number of the attempt."),
        may("run", COUNT, "Of a recurring timer: the number of the run."),
        need("due", TIME, "When the attempt was due."),
        need("leased_until", TIME, "When the lease ends."),
        need(
            "late_us",
            COUNT,
            "How late the attempt is, in microseconds."
        ),
        need(
            "held_us",
            COUNT,
            "For how long the attempt was held, in microseconds.",
        ),
        may(
            "headers",
            HEADERS,
            "The headers that the timer was set with."
        ),
        may("traceparent", TEXT, "The trace of the set."),
        may("content_type", TEXT, "The content-type of the body."),
        may("body", TEXT, "The body."),
        may("body_base64", TEXT, "The body if it is no UTF-8."),
    ]
);

shape!(
    LEASES,
    "Leases",
    "What a worker got.",
    &[need(
        "leases",
        Kind::List {
            of: &Kind::Object(&LEASE),
            least: 0,
            most: 1_000,
        },
        "The leases.",
    )]
);

shape!(
    SETTLED,
    "LeaseResult",
    "What became of one lease.",
    &[
        need("queue", TEXT, "The queue of the timer."),
        need("key", TEXT, "The key of the timer."),
        need("status", STATUS, "The status of this lease alone."),
        may("state", STATE, "The state of the timer."),
        may("due", TIME, "When the timer is due next."),
        may(
            "leased_until",
            TIME,
            "When the lease ends, or that of another worker."
        ),
        may("worker", TEXT, "Who has the lease by now."),
        may("code", TEXT, "Why it was refused."),
        may("detail", TEXT, "The same in words."),
    ]
);

shape!(
    SETTLED_ALL,
    "LeaseResults",
    "What became of several leases.",
    &[need(
        "results",
        Kind::List {
            of: &Kind::Object(&SETTLED),
            least: 1,
            most: 1_000,
        },
        "In the order of the items.",
    )]
);

shape!(
    SHOWN_SECRET,
    "Secret",
    "A secret, of which nothing secret is shown.",
    &[
        need("id", TEXT, "By which the secret is known."),
        need("created", TIME, "When the secret was put."),
    ]
);

shape!(
    SHOWN_BREAKER,
    "Breaker",
    "When an endpoint is left alone, and for how long.",
    &[
        need("failures", COUNT, "After so many failures in a row."),
        need("pause", SPAN, "The first pause."),
        need("pause_max", SPAN, "The longest pause."),
    ]
);

shape!(
    FAILURE,
    "LastFailure",
    "The last failure of an endpoint.",
    &[
        need("at", TIME, "When it was."),
        need("detail", TEXT, "What it was."),
    ]
);

shape!(
    HEALTH,
    "EndpointHealth",
    "How an endpoint does, as the node that answers sees it.",
    &[
        need(
            "state",
            Kind::Words(&["healthy", "degraded", "paused", "probing", "disabled"]),
            "The state.",
        ),
        need("failures", COUNT, "How many failures there were in a row."),
        may("last_failure", Kind::Object(&FAILURE), "The last failure."),
        may("until", TIME, "Until when nothing is sent."),
    ]
);

shape!(
    SHOWN_CERTIFICATE,
    "ClientCertificate",
    "What the service shows in TLS.",
    &[need("certificate", TEXT, "Certificates in PEM.")]
);

shape!(
    ENDPOINT,
    "Endpoint",
    "An endpoint, of which nothing secret is shown.",
    &[
        need("endpoint", TEXT, "The name."),
        need("revision", REVISION, "The revision."),
        need("url", TEXT, "The URL."),
        need("headers", HEADERS, "Sent with each delivery."),
        may("timeout", SPAN, "One deadline for a whole attempt."),
        need(
            "secrets",
            Kind::List {
                of: &Kind::Object(&SHOWN_SECRET),
                least: 0,
                most: 8,
            },
            "What signs deliveries.",
        ),
        may(
            "sealed",
            Kind::Truth,
            "Whether what is secret is sealed in the store."
        ),
        may(
            "retry",
            RETRY_POLICY,
            "The policy of timers that name none."
        ),
        may("concurrency", COUNT, "How many attempts may run at a time."),
        may(
            "rate",
            Kind::Object(&SHOWN_RATE),
            "How many attempts may start."
        ),
        need("disabled", Kind::Truth, "Whether no attempt starts."),
        may(
            "auto_disable",
            SPAN,
            "After how long without a success it is disabled."
        ),
        may("disabled_reason", TEXT, "Why the service has disabled it."),
        may("disabled_at", TIME, "When the service has disabled it."),
        may("statuses", STATUSES, "What statuses of answers mean."),
        may(
            "allow",
            Kind::List {
                of: &TEXT,
                least: 1,
                most: 64,
            },
            "The only places where deliveries go.",
        ),
        may("egress_proxy", TEXT, "The proxy of its deliveries."),
        may(
            "http",
            Kind::Words(&["auto", "1.1"]),
            "The HTTP, unless it is auto."
        ),
        may(
            "breaker",
            Kind::Object(&SHOWN_BREAKER),
            "When it is left alone."
        ),
        need("health", Kind::Object(&HEALTH), "How it does."),
        may(
            "ca",
            TEXT,
            "Certificates in PEM that the endpoint's comes from."
        ),
        may(
            "client_certificate",
            Kind::Object(&SHOWN_CERTIFICATE),
            "What the service shows in TLS.",
        ),
        may("fault", TEXT, "Why no attempt is made."),
    ]
);

shape!(
    ENDPOINT_CHANGED,
    "EndpointChanged",
    "An endpoint that another caller has changed before the answer was written.",
    &[
        need("endpoint", TEXT, "The name."),
        need("revision", REVISION, "The revision of this change."),
    ]
);

shape!(
    ENDPOINTS,
    "Endpoints",
    "A page of endpoints.",
    &[
        need(
            "endpoints",
            Kind::List {
                of: &Kind::Object(&ENDPOINT),
                least: 0,
                most: 1_000,
            },
            "The endpoints in order of their names.",
        ),
        need(
            "next",
            Kind::Nullable(&TEXT),
            "The cursor of the next page; null at the end.",
        ),
        may(
            "unreadable",
            COUNT,
            "How many are left out that cannot be read."
        ),
    ]
);

shape!(
    ENDPOINT_REMOVED,
    "EndpointRemoved",
    "An endpoint is removed.",
    &[
        need("endpoint", TEXT, "The name."),
        need("removed", Kind::Truth, "true."),
    ]
);

shape!(
    TOKEN,
    "Token",
    "A token, without its secret.",
    &[
        need("id", TEXT, "The id."),
        need("revision", REVISION, "The revision of the token."),
        need("name", TEXT, "What it is for."),
        may(
            "namespace",
            Kind::Named(&NAMESPACE_NAME),
            "The namespace that it is of. A token without one is of the whole service."
        ),
        need(
            "scopes",
            Kind::Set {
                of: &SCOPE,
                least: 1,
                most: 5,
            },
            "What it opens.",
        ),
        may(
            "certificate",
            TEXT,
            "The name of the certificate that stands for its secret."
        ),
        need("created", TIME, "When it was made."),
        may("expires", TIME, "When it ends."),
        may(
            "before_until",
            TIME,
            "Until when the secret before the last rotation counts."
        ),
    ]
);

shape!(
    TOKEN_MADE,
    "TokenMade",
    "A token with its secret.",
    &[&TOKEN],
    &[may(
        "token",
        TEXT,
        "The token: cwt_, the id, _ and the secret. The service does not know it later. A token that a certificate stands for has \
         none."
    )]
);

shape!(
    TOKENS,
    "Tokens",
    "All tokens.",
    &[need(
        "tokens",
        Kind::List {
            of: &Kind::Object(&TOKEN),
            least: 0,
            most: 1_000,
        },
        "The tokens in order of their ids.",
    )]
);

shape!(
    TOKEN_REVOKED,
    "TokenRevoked",
    "A token is revoked.",
    &[
        need("id", TEXT, "The id."),
        need("revoked", Kind::Truth, "true."),
    ]
);

shape!(
    NAMESPACE_USAGE,
    "NamespaceUsage",
    "What a namespace has.",
    &[
        need("timers", COUNT, "Timers in all states."),
        may(
            "bytes",
            COUNT,
            "With a quota of bytes: what was counted last, and what was set since. Absent until it was counted."
        ),
        need("queues", COUNT, "Queues with timers or settings."),
        need("endpoints", COUNT, "Endpoints."),
        need(
            "connections",
            COUNT,
            "Connections of callers to this node that count for the namespace."
        ),
    ]
);

shape!(
    NAMESPACE,
    "NamespaceAnswer",
    "A namespace with its quotas.",
    &[
        need("namespace", Kind::Named(&NAMESPACE_NAME), "The name."),
        need(
            "revision",
            Kind::Nullable(&REVISION),
            "The revision of the quotas; null of default if none were put."
        ),
        need("quotas", Kind::Object(&QUOTAS), "The quotas."),
        need(
            "audit_timers",
            Kind::Truth,
            "Whether single sets, moves and removals of its timers are in the audit log."
        ),
        may(
            "usage",
            Kind::Object(&NAMESPACE_USAGE),
            "What the namespace has."
        ),
    ]
);

shape!(
    NAMESPACES,
    "Namespaces",
    "All namespaces.",
    &[need(
        "namespaces",
        Kind::List {
            of: &Kind::Object(&NAMESPACE),
            least: 0,
            most: 1_001,
        },
        "The namespaces in order of name.",
    )]
);

shape!(
    NAMESPACE_REMOVED,
    "NamespaceRemoved",
    "A namespace is removed.",
    &[
        need("namespace", Kind::Named(&NAMESPACE_NAME), "The name."),
        need("removed", Kind::Truth, "true."),
    ]
);

shape!(
    TESTED,
    "EndpointTested",
    "What came of a test.",
    &[
        need("endpoint", TEXT, "The name."),
        need("revision", REVISION, "The revision of the endpoint."),
        need("attempt", Kind::Object(&ATTEMPT), "The attempt."),
    ]
);

shape!(
    SHOWN_FILTER,
    "JobFilterShown",
    "Which timers a job changes.",
    &[
        need(
            "states",
            Kind::List {
                of: &STORED_STATE,
                least: 1,
                most: 4,
            },
            "The states.",
        ),
        may("prefix", TEXT, "What the key begins with."),
        may("tags", TAGS, "Tags, all of which the timer has."),
        may("due_after", TIME, "Only timers due then or later."),
        may("due_before", TIME, "Only timers due earlier."),
    ]
);

shape!(
    SHOWN_MOVE,
    "JobMove",
    "Where a job moves timers.",
    &[
        may(
            "in",
            SPAN,
            "A duration from when the job comes to the timer."
        ),
        may("at", TIME, "A time."),
        may("by", SPAN, "A signed duration from the present deadline."),
    ]
);

shape!(
    JOB,
    "Job",
    "A job as it stands.",
    &[
        need("id", COUNT, "The number of the job."),
        need("queue", TEXT, "The queue."),
        need(
            "action",
            Kind::Words(&["remove", "move", "fire", "revive"]),
            "What the job does to each timer.",
        ),
        need(
            "filter",
            Kind::Object(&SHOWN_FILTER),
            "Which timers it changes."
        ),
        may("move", Kind::Object(&SHOWN_MOVE), "Where it moves them."),
        may(
            "rate",
            COUNT,
            "How many timers are changed each second at the most."
        ),
        need("dry_run", Kind::Truth, "Whether the job only counts."),
        need("since", TIME, "When the job was asked for."),
        need("matched", COUNT, "How many timers the filter selects."),
        need("done", COUNT, "How many timers were changed."),
        need("skipped", COUNT, "How many timers were left alone."),
        need("shards_left", COUNT, "How many shards are not through."),
        may("cancelled", Kind::Truth, "Whether the job was cancelled."),
        may("ended", TIME, "When the job ended."),
    ]
);

shape!(
    JOBS,
    "Jobs",
    "All jobs that are shown.",
    &[need(
        "jobs",
        Kind::List {
            of: &Kind::Object(&JOB),
            least: 0,
            most: 16,
        },
        "In the order in which they were asked for.",
    )]
);

shape!(
    BATCH_RESULT,
    "BatchResult",
    "What came of one operation of a batch: of its own request, or the refusal.",
    &[
        need("status", STATUS, "The status of the operation."),
        may("id", TEXT, "The id of a timer that was set."),
        may("revision", REVISION, "The revision of the timer."),
        may("old_due", TIME, "When the timer was due."),
        may(
            "due",
            TIME,
            "When the timer is due now, or was when it was removed."
        ),
        may(
            "replaced",
            Kind::Nullable(&STORED_STATE),
            "The state of the timer that a set replaced.",
        ),
        may("was", TEXT, "What a removed timer was doing."),
        may(
            "attempt",
            COUNT,
            "The attempt of a removed timer that may still arrive."
        ),
        may("state", STATE, "The state of the timer."),
        may("code", TEXT, "Why the operation was refused."),
        may("detail", TEXT, "The same in words."),
        may(
            "ceiling",
            Kind::Either(&[TEXT, COUNT]),
            "The ceiling that forbids the operation."
        ),
        may("quota", QUOTA_NAME, "The quota that forbids the operation."),
        may(
            "errors",
            Kind::List {
                of: &Kind::Object(&FAULT),
                least: 1,
                most: 1,
            },
            "The field at fault.",
        ),
        may("queue", TEXT, "Of a lost lease: the queue of the timer."),
        may("key", TEXT, "Of a lost lease: the key of the timer."),
        may(
            "leased_until",
            TIME,
            "When the lease of another worker ends."
        ),
        may("worker", TEXT, "Who has the lease by now."),
    ]
);

shape!(
    BATCH_LINE,
    "BatchLine",
    "The result of one operation of a batch.",
    &[&BATCH_RESULT],
    &[need("i", COUNT, "The number of the operation, from 0.")]
);

shape!(
    BATCH_END,
    "BatchEnd",
    "The last line of a batch.",
    &[
        need("end", Kind::Truth, "Whether the batch was read to its end."),
        may(
            "reason",
            Kind::Words(&[
                "too_many",
                "timeout",
                "unauthorized",
                "shutdown",
                "broken",
                "moved",
                "gone"
            ]),
            "Why it was not.",
        ),
        need("operations", COUNT, "How many operations were begun."),
        need("succeeded", COUNT, "How many of them succeeded."),
        need("failed", COUNT, "How many of them were refused."),
    ]
);

shape!(
    BATCH_RESULTS,
    "BatchResults",
    "What came of an atomic batch.",
    &[need(
        "results",
        Kind::List {
            of: &Kind::Object(&BATCH_RESULT),
            least: 0,
            most: 10_000,
        },
        "In the order of the operations.",
    )]
);

shape!(
    SIMULATED_ATTEMPT,
    "SimulatedAttempt",
    "An attempt of a retry policy.",
    &[
        need("attempt", COUNT, "The number of the attempt."),
        need("at", TIME, "When it starts with jitter taking nothing off."),
        need(
            "earliest",
            TIME,
            "When it starts with jitter taking off all it can."
        ),
        need(
            "delay_ms",
            COUNT,
            "The time since the attempt before, in milliseconds."
        ),
        need(
            "after_ms",
            COUNT,
            "The time since the first attempt, in milliseconds."
        ),
    ]
);

shape!(
    SIMULATED_ATTEMPTS,
    "SimulatedAttempts",
    "The attempts of a retry policy.",
    &[
        need(
            "attempts",
            Kind::List {
                of: &Kind::Object(&SIMULATED_ATTEMPT),
                least: 0,
                most: 10_000,
            },
            "The attempts.",
        ),
        need(
            "total_ms",
            COUNT,
            "The time from the first to the last, in milliseconds."
        ),
        need("truncated", Kind::Truth, "Whether more would follow."),
        need(
            "then",
            Kind::Nullable(&Kind::Words(&["dead"])),
            "What becomes of the timer; null if it was cut.",
        ),
    ]
);

shape!(
    SIMULATED_RUN,
    "SimulatedRun",
    "A run of a schedule.",
    &[
        need("run", COUNT, "The number of the run."),
        need("at", TIME, "Its nominal time."),
        need("latest", TIME, "The end of its jitter."),
        may("local", TEXT, "The time in the zone of the expression."),
    ]
);

shape!(
    SIMULATED_RUNS,
    "SimulatedRuns",
    "The runs of a schedule.",
    &[
        need(
            "runs",
            Kind::List {
                of: &Kind::Object(&SIMULATED_RUN),
                least: 0,
                most: 10_000,
            },
            "The runs.",
        ),
        need("truncated", Kind::Truth, "Whether more would follow."),
        need(
            "then",
            Kind::Nullable(&Kind::Words(&["done"])),
            "What becomes of the timer; null if it was cut.",
        ),
    ]
);

shape!(
    SNAPSHOT,
    "Snapshot",
    "A snapshot that was made.",
    &[
        need("name", TEXT, "What it is called."),
        need("commit", COUNT, "The last commit in it."),
        need("files", COUNT, "How many files it has."),
        need("bytes", COUNT, "How many bytes they have."),
        need("copied_bytes", COUNT, "How many of them were copied."),
    ]
);

shape!(
    NODE_COUNTS,
    "NodeCounts",
    "How many nodes there are.",
    &[
        need("live", COUNT, "Nodes that live."),
        need("draining", COUNT, "Nodes that give all their shards away."),
        need("over", COUNT, "Nodes whose lease has ended."),
    ]
);

shape!(
    SHARD_COUNTS,
    "ShardCounts",
    "How many shards there are.",
    &[
        need("owned", COUNT, "Shards whose owner lives."),
        need("taking", COUNT, "Shards that their node has yet to load."),
        need("handing_over", COUNT, "Shards that go to another node."),
        need("overdue", COUNT, "Shards whose owner is gone."),
        need("free", COUNT, "Shards that nobody has."),
    ]
);

shape!(
    DATABASE,
    "Database",
    "The database of a cluster.",
    &[
        need("reachable", Kind::Truth, "Whether it answers."),
        need(
            "server",
            Kind::Nullable(&TEXT),
            "The database with its major version."
        ),
        need(
            "sync",
            Kind::Nullable(&Kind::List {
                of: &TEXT,
                least: 0,
                most: usize::MAX,
            }),
            "The synchronous standbys that are connected.",
        ),
        need(
            "durability",
            Kind::Nullable(&TEXT),
            "How durable a commit is."
        ),
        need(
            "oldest_snapshot_ms",
            Kind::Nullable(&COUNT),
            "The age of the oldest snapshot, in milliseconds.",
        ),
    ]
);

shape!(
    CLUSTER_EVENT,
    "ClusterEvent",
    "What happened to a shard or to this node.",
    &[
        need("at", TIME, "When it happened."),
        need("event", TEXT, "What happened."),
        need("shard", Kind::Nullable(&COUNT), "The shard."),
        need("detail", TEXT, "More of it."),
    ]
);

shape!(
    CLUSTER,
    "Cluster",
    "The cluster at a glance.",
    &[
        need("node", TEXT, "The node that answers."),
        need(
            "as_of",
            TIME,
            "When it looked, by the clock of the database."
        ),
        need(
            "nodes",
            Kind::Object(&NODE_COUNTS),
            "How many nodes there are."
        ),
        need(
            "shards",
            Kind::Object(&SHARD_COUNTS),
            "How many shards there are."
        ),
        need(
            "lease_left_ms",
            COUNT,
            "What is left of its lease, in milliseconds."
        ),
        need(
            "clock_offset_ms",
            SIGNED,
            "How far its clock is ahead of that of the database, in milliseconds.",
        ),
        need("database", Kind::Object(&DATABASE), "The database."),
        need(
            "events",
            Kind::List {
                of: &Kind::Object(&CLUSTER_EVENT),
                least: 0,
                most: 100,
            },
            "What happened, the latest first.",
        ),
    ]
);

shape!(
    NODE,
    "Node",
    "A node of the cluster.",
    &[
        need("node", TEXT, "The name."),
        need("id", TEXT, "Drawn at each start."),
        need(
            "state",
            Kind::Words(&["live", "draining", "over"]),
            "The state."
        ),
        need("here", Kind::Truth, "Whether it is the node that answers."),
        need(
            "lease_left_ms",
            COUNT,
            "What is left of its lease, in milliseconds."
        ),
        need("shards", COUNT, "How many shards it has."),
        need("weight", COUNT, "Its weight."),
        need("api", TEXT, "Where callers reach it."),
        need(
            "peers",
            Kind::Nullable(&TEXT),
            "Where other nodes reach it."
        ),
        need("version", TEXT, "The version of the program."),
        need("zones", TEXT, "The version of its time-zone rules."),
    ]
);

shape!(
    NODES,
    "Nodes",
    "All nodes that have joined and not left.",
    &[
        need("as_of", TIME, "When the node looked that answers."),
        need(
            "nodes",
            Kind::List {
                of: &Kind::Object(&NODE),
                least: 0,
                most: usize::MAX,
            },
            "The nodes.",
        ),
    ]
);

shape!(
    SHARD,
    "Shard",
    "A shard of the cluster.",
    &[
        need("shard", COUNT, "The number of the shard."),
        need(
            "state",
            Kind::Words(&["owned", "taking", "handing_over", "overdue", "free"]),
            "The state.",
        ),
        need("owner", Kind::Nullable(&TEXT), "The node that has it."),
        need(
            "wanted",
            Kind::Nullable(&TEXT),
            "The node that a move has asked for."
        ),
        need("fence", COUNT, "The number under which it was taken last."),
        need("since", TIME, "When it was taken last."),
        need(
            "pending",
            Kind::Nullable(&COUNT),
            "Timers that wait or are delivered.",
        ),
        may("overdue", COUNT, "Timers that are overdue."),
        may("in_flight", COUNT, "Attempts that run."),
        may(
            "late_p99_us",
            COUNT,
            "An upper bound of the lateness, in microseconds."
        ),
        may("commits", COUNT, "Commits since the node took it."),
    ]
);

shape!(
    SHARDS,
    "Shards",
    "All shards.",
    &[
        need("as_of", TIME, "When the node looked that answers."),
        need(
            "shards",
            Kind::List {
                of: &Kind::Object(&SHARD),
                least: 0,
                most: usize::MAX,
            },
            "The shards.",
        ),
    ]
);

shape!(
    NODE_MARKED,
    "NodeMarked",
    "A node that is drained, or is so no more.",
    &[
        need("node", TEXT, "The name."),
        need("state", TEXT, "The state."),
        need("shards", COUNT, "How many shards it still has."),
    ]
);

shape!(
    SHARD_MOVED,
    "ShardMoved",
    "Where a shard goes.",
    &[
        need("shard", COUNT, "The number of the shard."),
        need("owner", Kind::Nullable(&TEXT), "The node that has it."),
        need("wanted", Kind::Nullable(&TEXT), "The node that gets it."),
    ]
);

shape!(
    SHARD_MOVE,
    "ShardMove",
    "A move of one shard.",
    &[
        need("shard", COUNT, "The number of the shard."),
        need("from", Kind::Nullable(&TEXT), "The node that has it."),
        need("to", TEXT, "The node that gets it."),
    ]
);

shape!(
    REBALANCED,
    "Rebalanced",
    "Where shards go.",
    &[
        need("dry_run", Kind::Truth, "Whether nothing was changed."),
        need(
            "moves",
            Kind::List {
                of: &Kind::Object(&SHARD_MOVE),
                least: 0,
                most: usize::MAX,
            },
            "The moves.",
        ),
    ]
);

shape!(
    MOVE_PROGRESS,
    "MoveProgress",
    "How far the move of all timers has come.",
    &[
        need(
            "state",
            Kind::Words(&[
                "none",
                "copying",
                "following",
                "holding",
                "taking",
                "moved",
                "given_up"
            ]),
            "The state.",
        ),
        need("target", Kind::Nullable(&TEXT), "Where the timers go."),
        need("copied", COUNT, "Timers that were written."),
        need("left", COUNT, "Timers that were changed since."),
        need(
            "took_ms",
            COUNT,
            "How long the move has taken, in milliseconds."
        ),
        need(
            "held_ms",
            Kind::Nullable(&COUNT),
            "How long requests waited, in milliseconds.",
        ),
        need("interrupted", COUNT, "Deliveries that are made again."),
        need(
            "reason",
            Kind::Nullable(&TEXT),
            "Why the move was given up, or what it waits for."
        ),
    ]
);

shape!(
    DEGRADED,
    "Degraded",
    "What cannot be read or done, while everything else goes on.",
    &[
        need("reason", TEXT, "The reason in one word."),
        may("file", TEXT, "The file of the store."),
        may("detail", TEXT, "The reason in words."),
        may("since", TIME, "When it was seen first."),
    ]
);

shape!(
    HEALTHY,
    "Health",
    "How the service does.",
    &[
        need(
            "status",
            Kind::Words(&["ok", "ready", "started", "degraded"]),
            "In one word."
        ),
        may(
            "durability",
            TEXT,
            "On a database: how durable a commit is."
        ),
        may(
            "degraded",
            Kind::List {
                of: &Kind::Object(&DEGRADED),
                least: 1,
                most: usize::MAX,
            },
            "What is degraded.",
        ),
    ]
);

shape!(
    FAULT,
    "FieldError",
    "A field at fault.",
    &[
        need("pointer", TEXT, "The field, as a JSON pointer."),
        need("detail", TEXT, "What is wrong."),
    ]
);

shape!(
    PROBLEM,
    "Problem",
    "A refusal (RFC 9457). It changes nothing, unless the code is unknown.",
    &[
        need(
            "type",
            TEXT,
            "/problems/ and the code: a page that tells more."
        ),
        need("title", TEXT, "The code in words."),
        need("status", STATUS, "The status of the answer."),
        need("code", TEXT, "The code, for programs."),
        need("detail", TEXT, "What is wrong, for people."),
        may(
            "state",
            STATE,
            "The state of the timer, which forbids the request."
        ),
        may("revision", REVISION, "The current revision."),
        may(
            "ceiling",
            Kind::Either(&[TEXT, COUNT]),
            "The ceiling that forbids the request."
        ),
        may("quota", QUOTA_NAME, "The quota that forbids the request."),
        may(
            "errors",
            Kind::List {
                of: &Kind::Object(&FAULT),
                least: 1,
                most: 1,
            },
            "The field at fault.",
        ),
        may("queue", TEXT, "Of a lost lease: the queue of the timer."),
        may("key", TEXT, "Of a lost lease: the key of the timer."),
        may(
            "leased_until",
            TIME,
            "When the lease of another worker ends."
        ),
        may("worker", TEXT, "Who has the lease by now."),
        may("purge", Kind::Object(&PURGE), "The purge that runs."),
        may(
            "item",
            COUNT,
            "Of an atomic batch: the operation that is refused."
        ),
    ]
);

shape!(
    PROBLEM_PAGE,
    "ProblemType",
    "What a code of a problem means.",
    &[
        need("type", TEXT, "/problems/ and the code."),
        need("code", TEXT, "The code."),
        need("status", STATUS, "The status of answers with it."),
        need("title", TEXT, "The code in words."),
        need("when", TEXT, "When it is answered."),
        need("do", TEXT, "What to do about it."),
    ]
);

shape!(
    PROBLEM_PAGES,
    "ProblemTypes",
    "All codes of problems.",
    &[need(
        "problems",
        Kind::List {
            of: &Kind::Object(&PROBLEM_PAGE),
            least: 1,
            most: usize::MAX,
        },
        "In order of their statuses.",
    )]
);
