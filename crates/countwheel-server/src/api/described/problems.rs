//! What each code of a problem means, for whoever follows the `type` of one.

use crate::api::problem::Code;

impl Code {
    /// The code of that name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.name() == name)
    }

    /// When it is answered, and what to do about it.
    pub(crate) const fn advice(self) -> (&'static str, &'static str) {
        match self {
            Self::Malformed => (
                "The request is not in due form: its body is not JSON, a field is unknown, doubled, missing or of the wrong \
                 type, a query or a header is bad, or its framing leaves doubt.",
                "The request needs a change: detail says which, and errors points to the field.",
            ),
            Self::InvalidKey => (
                "The key breaks its rule: 1 to 256 bytes of UTF-8 without control characters.",
                "The caller names another key, percent-encoded in the path.",
            ),
            Self::InvalidQueue => (
                "The name of the queue breaks its rule: 1 to 128 ASCII letters, digits and . _ : -, with that of its namespace and / in \
                 front of it unless that is default.",
                "The caller names another queue.",
            ),
            Self::InvalidEndpoint => (
                "The name of the endpoint breaks its rule: 1 to 128 ASCII letters, digits and . _ : -, with that of its namespace and / \
                 in front of it unless that is default.",
                "The caller names another endpoint.",
            ),
            Self::Unauthorized => (
                "The token is missing or wrong, was revoked or has expired.",
                "The caller sends a token as authorization: Bearer <token>.",
            ),
            Self::Forbidden => (
                "The token lacks the scope of the operation, or is of a namespace and the operation of the whole service. Or no token is configured, and the request came under another name \
                 than this machine's or from a web page of another origin.",
                "The caller shows a token with the scope. The operator configures a token, or the caller asks from this machine.",
            ),
            Self::NotFound => (
                "There is no timer, endpoint, queue, namespace, job or shard of that name, or no such path.",
                "The caller looks at the name and the path. A timer that was done is forgotten after a while.",
            ),
            Self::NoCluster => (
                "The service has a data directory, and is no node of a cluster.",
                "The request is for services on a database.",
            ),
            Self::UnknownNode => (
                "No node of that name has joined the cluster, or its lease is over.",
                "GET /v1/cluster/nodes lists the nodes.",
            ),
            Self::MethodNotAllowed => (
                "The path does not take the method.",
                "The header Allow names the methods that the path takes.",
            ),
            Self::Timeout => (
                "The body did not arrive in time.",
                "The caller sends the request again, faster.",
            ),
            Self::Conflict => (
                "The state of the timer forbids the request, and state names that state; or a snapshot of that name exists, \
                 or one is being made.",
                "The caller asks for what the state allows.",
            ),
            Self::Gone => (
                "The timer is done.",
                "Nothing is left to change. A set of the same name makes a new timer.",
            ),
            Self::InUse => (
                "Timers or queues name the endpoint.",
                "The caller changes or removes those first: detail says how many there are.",
            ),
            Self::LeaseLost => (
                "The token is not that of the present lease of the timer.",
                "The worker drops what it did: the timer was leased anew, or is not there any more. leased_until and worker \
                 tell of another lease.",
            ),
            Self::IdempotencyInProgress => (
                "A request with this Idempotency-Key is under way.",
                "The caller asks again after Retry-After.",
            ),
            Self::IdempotencyMismatch => (
                "A request with this Idempotency-Key had another body.",
                "The caller draws another key, or sends the same body byte by byte.",
            ),
            Self::PushQueue => (
                "Leases are asked of a queue whose mode is not pull.",
                "The queue is put with the mode pull first.",
            ),
            Self::PullQueue => (
                "The queue is pulled, and the target of the timer has more than headers.",
                "The target has headers alone, or is left out: workers fetch the timers of such a queue.",
            ),
            Self::PlacementFixed => (
                "The queue has timers, and another placement would need them elsewhere.",
                "The placement is changed while the queue is empty.",
            ),
            Self::NotEmpty => (
                "The queue has timers that wait, are delivered or are dead.",
                "The timers are removed first, by a purge for instance.",
            ),
            Self::Draining => (
                "The queue, or all queues, are drained: a set is refused until a resume.",
                "The caller sets the timer after the resume, or in another queue.",
            ),
            Self::Purging => (
                "The queue is being purged already; purge is the purge that runs.",
                "The caller waits for the end of that purge, or cancels it.",
            ),
            Self::TooManyJobs => (
                "16 jobs run already.",
                "The caller waits for the end of a job, or cancels one.",
            ),
            Self::NodeDraining => (
                "The node is drained, and gets no shard.",
                "The caller names another node, or undrains this one.",
            ),
            Self::LastNode => (
                "Without the node, nobody could have its shards.",
                "Another node is started first.",
            ),
            Self::RevisionMismatch => (
                "The precondition does not hold: revision is the current revision.",
                "The caller reads the timer, the endpoint or the queue again, and decides anew.",
            ),
            Self::Exists => (
                "Something of that name exists, and If-None-Match: * forbids that.",
                "The caller takes what is there, or replaces it without the precondition.",
            ),
            Self::TooLarge => (
                "The request, its body, a line or what is stored of it is too long.",
                "The caller sends less, or the queue is put with a higher payload_limit.",
            ),
            Self::UriTooLong => (
                "The path and the query have more than 8 KiB.",
                "The caller sends a shorter one.",
            ),
            Self::UnsupportedMediaType => (
                "The body is not of the media type that the operation takes, or has a content-encoding.",
                "The caller sends application/json, or application/x-ndjson for a batch.",
            ),
            Self::ExpectationFailed => (
                "The request expects something other than 100-continue.",
                "The caller sends no other Expect.",
            ),
            Self::Unschedulable => (
                "The delay or the time cannot be waited for, or the schedule breaks a rule or has no run.",
                "The caller names another time, at most 36,525 days ahead.",
            ),
            Self::TooBroad => (
                "The list matches more timers than may be looked at for it.",
                "The caller narrows it: by a queue, a state, a prefix, times or tags.",
            ),
            Self::InvalidRetry => (
                "The retry policy breaks a rule.",
                "detail names the rule, and errors points to the field.",
            ),
            Self::InvalidTarget => (
                "The URL, its port or address, the endpoint, the path, a header, the timeout or the content type is not \
                 allowed.",
                "detail names the rule. The operator may allow an address with --allow-target.",
            ),
            Self::InvalidSetting => (
                "A field of an endpoint, a queue or a call of a worker breaks a rule.",
                "detail names the rule, and errors points to the field.",
            ),
            Self::AboveCeiling => (
                "A field is within its rule, and above a ceiling of the service.",
                "The caller stays within ceiling, or the operator starts the service with a higher one.",
            ),
            Self::SecretKeyRequired => (
                "The service can be reached from other machines and has no key to seal secrets with.",
                "The operator starts the service with --secret-key-file.",
            ),
            Self::BatchSpansShards => (
                "An atomic batch is about timers of two shards of a cluster; detail names two of them.",
                "Keys with one tag, such as {order-7}/a, are in one shard.",
            ),
            Self::Overloaded => (
                "Too many requests wait, too many connections are open, the memory for bodies is taken, or what was asked \
                 about kept changing.",
                "The caller asks again after Retry-After, and later each time.",
            ),
            Self::OverRate => (
                "The namespace has its quota of requests a second, or of connections; quota says which.",
                "The caller asks again after Retry-After. The operator gives the namespace a larger quota.",
            ),
            Self::HeadTooLarge => (
                "The head has more than 24 KiB or more than 64 headers.",
                "The caller sends fewer and shorter headers.",
            ),
            Self::Internal => (
                "A bug of the service.",
                "The operator looks into the log of the service, which has the cause under the id in X-Request-Id.",
            ),
            Self::Unreadable => (
                "What is stored of the timer, the endpoint or the queue cannot be read.",
                "DELETE or PUT without a precondition makes the name of a timer usable again. An endpoint or a queue was \
                 stored by a later version of the program.",
            ),
            Self::NotImplemented => (
                "The request asks for a transfer coding other than chunked, or for something that this service does not do.",
                "The caller sends the body as it is.",
            ),
            Self::Unavailable => (
                "The service is shutting down or starting, or its store failed. Nothing was done.",
                "The caller asks again later. GET /healthz tells the operator of a store that failed.",
            ),
            Self::Unknown => (
                "No answer came in time: what was asked is done whole or not at all.",
                "GET shows which. A PUT, and a POST with an Idempotency-Key, may be repeated.",
            ),
            Self::ShardUnavailable => (
                "No node has the shard of the timer, or the one that has it cannot be reached. Nothing was done.",
                "The caller asks again after Retry-After.",
            ),
            Self::StoreUnavailable => (
                "The database that has the timers is away. Nothing was done.",
                "The caller asks again after Retry-After.",
            ),
            Self::StorageFull => (
                "The disk is full, or too many files are open. The service still takes removals and outcomes.",
                "The operator makes room; the service recovers by itself. The caller asks again after Retry-After.",
            ),
            Self::QuotaExceeded => (
                "The namespace has its quota of timers, bytes, queues or endpoints; quota says which.",
                "The caller removes some, or waits until some are done and forgotten. The operator gives the namespace a \
                 larger quota.",
            ),
        }
    }
}
