"""What schemathesis has to know of the service that the document does not say.

Texts of formats of our own, names of what the proof has made beforehand, and lines of a batch.
"""

import json
import os
import random
import urllib.request

import schemathesis
from hypothesis import strategies as st

TIME_SPANS = ["30m", "1h 30m", "250ms", "7d", "PT30M", "15s", "2 hours", "0s"]
# The answer of a call that leases waits so long at the most.
SHORT_WAITS = {"0s", "250ms"}

schemathesis.openapi.format("duration-text", st.sampled_from(TIME_SPANS))
schemathesis.openapi.format(
    "signed-duration-text", st.sampled_from(TIME_SPANS + ["-5m", "-1h 30m"])
)
# Nothing answers there: a delivery is refused at once.
schemathesis.openapi.format(
    "target-url",
    st.sampled_from(["http://127.0.0.1:9/hook", "http://localhost:9/", "https://127.0.0.1:9/a?b=c"]),
)
schemathesis.openapi.format("target-path", st.sampled_from(["", "/a", "/a/b?c=d", "?e=%2F"]))
schemathesis.openapi.format(
    "signing-secret", st.sampled_from(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
)
schemathesis.openapi.format(
    "timer-key",
    st.one_of(
        st.sampled_from(["order-1", "order-2", "{one}/a", "a b", "ä/ö%2F:fire"]),
        st.text(
            st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=64
        ),
    ),
)

schemathesis.openapi.format("cron-expression", st.sampled_from(["0 9 * * MON-FRI", "@daily", "*/5 * * * *"]))
schemathesis.openapi.format("time-zone", st.sampled_from(["UTC", "Europe/Berlin", "Asia/Shanghai"]))
schemathesis.openapi.format("step-text", st.sampled_from(["1s", "5m", "1h", "1d"]))
schemathesis.openapi.format("media-type", st.sampled_from(["text/plain", "application/xml; charset=utf-8"]))
schemathesis.openapi.format("proxy-url", st.just("http://127.0.0.1:9"))
schemathesis.openapi.format("allowed-target", st.sampled_from(["127.0.0.0/8", "localhost", "*.lan:8443"]))
# Nothing listens there.
schemathesis.openapi.format("database-url", st.just("postgres://nobody@127.0.0.1:9/none"))

OPERATIONS = [
    {"op": "set", "queue": "orders", "key": "batch-1", "in": "30m", "target": {"url": "http://127.0.0.1:9/"}},
    {"op": "set", "queue": "orders", "key": "batch-2", "cron": "0 9 * * *", "target": {"endpoint": "shop"}},
    {"op": "move", "queue": "orders", "key": "batch-1", "by": "-5m"},
    {"op": "remove", "queue": "orders", "key": "batch-2", "only": "pending"},
    {"op": "fire", "queue": "orders", "key": "order-1"},
    {"op": "revive", "queue": "orders", "key": "order-2", "in": 1000},
    {"op": "ack", "queue": "jobs", "key": "job-1", "token": "000000000000000700000001"},
    {"op": "nack", "queue": "jobs", "key": "job-2", "token": "000000000000000700000001", "dead": True},
    {"op": "nothing", "queue": "jobs", "key": "job-2"},
    {"op": "set", "queue": "orders", "key": "batch-1"},
]
schemathesis.openapi.media_type(
    "application/x-ndjson",
    st.lists(st.sampled_from(OPERATIONS), max_size=5).map(
        lambda lines: "".join(json.dumps(line) + "\n" for line in lines).encode()
    ),
)


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.deserializer("application/x-ndjson")
def answered_lines(context, response):
    text = response.content.decode()
    for line in text.splitlines():
        json.loads(line)
    return text


# What the proof has made: names that lead to something.
KNOWN = {
    "queue": ["orders", "jobs", "empty"],
    "key": ["order-1", "order-2", "order-3", "series-1"],
    "name": ["shop", "gone"],
}


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Every other name is one that is there, drawn by the name that was to be."""
    if not path_parameters:
        return path_parameters
    changed = dict(path_parameters)
    for name, known in KNOWN.items():
        value = changed.get(name)
        # What is to be refused stays as it is.
        if isinstance(value, str) and value.isascii() and value.isalnum():
            drawn = random.Random(value)
            if drawn.random() < 0.7:
                changed[name] = drawn.choice(known)
    return changed


@schemathesis.hook
def map_case(context, case):
    """Of what is in due form: no headers that exclude each other, and sets in a queue that has an endpoint."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    headers = case.headers if case.headers is not None else {}
    # schemathesis has an empty one in the template of its boundary values, which the pattern forbids.
    if headers.get("If-Match") == "":
        del headers["If-Match"]
    if "If-Match" in headers and "If-None-Match" in headers:
        del headers["If-None-Match"]
    body = case.body
    is_set = case.operation.method.upper() in ("PUT", "POST") and "/timers" in case.operation.path
    if is_set and isinstance(body, dict) and "url" not in (body.get("target") or {}):
        case.path_parameters["queue"] = "orders"
    return case


@schemathesis.hook
def filter_body(context, body):
    """A call that would wait for leases for seconds is none for a proof."""
    wait = body.get("wait") if isinstance(body, dict) else None
    if isinstance(wait, int) and not isinstance(wait, bool):
        return not 250 < wait <= 60_000
    return wait not in TIME_SPANS or wait in SHORT_WAITS


# Refusals of requests in due form with 400, each for what a document cannot say.
NOT_DESCRIBED = [
    # What a queue is decides about what its timers need.
    'the field "target" is missing',
    "one of url, endpoint is needed",
    "a path needs an endpoint",
    "the queue is not serial",
    # A field forbids values of another object.
    "a request by GET has no body",
    "a request by HEAD has no body",
    "a request by OPTIONS has no body",
    "with a content_type, the body must be a text",
    'the action "',
    # A cursor is of one list, which the document cannot know.
    "is the cursor of another list",
    "must be the cursor of the page before",
    # One parameter bounds another.
    "must be later than",
    # Lengths are bytes, and a schema counts characters.
    "has at most 256 bytes",
]


def is_key(text):
    """Whether a text is a key in due form, which the document says as well as it can."""
    controls = any(ord(it) < 32 or 127 <= ord(it) < 160 for it in text)
    return 0 < len(text.encode(errors="replace")) <= 256 and not controls


def negates_format_of_key(mutation):
    is_key_of_body = bool(mutation.path) and mutation.path[-1] == "key"
    return set(mutation.keywords) == {"format"} and (mutation.parameter == "key" or is_key_of_body)


def negates_format_of_keys_alone(case):
    """Whether all that was to be wrong with a request is the format of its key, and the key is in due form.

    schemathesis cannot ask a format of our own what belongs to it, and takes every text for one that does not.
    """
    mutations = getattr(case.meta.phase.data, "mutations", None) if case.meta else None
    if not mutations or not all(negates_format_of_key(mutation) for mutation in mutations):
        return False
    keys = [values.get("key") for values in (case.path_parameters, case.query) if values]
    if isinstance(case.body, dict):
        keys.append(case.body.get("key"))
    keys = [key for key in keys if key is not None]
    return bool(keys) and all(isinstance(key, str) and is_key(key) for key in keys)


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Whether a failure is one: ST201 says that a wrong request was taken, ST202 that one in due form was refused."""
    if failure.code == "ST201":
        return not negates_format_of_keys_alone(case)
    if failure.code != "ST202" or response.status_code != 400:
        return True
    problem = response.json()
    # Lines of a batch are text to the document.
    return "item" not in problem and not any(known in problem["detail"] for known in NOT_DESCRIBED)


@schemathesis.hook
def after_call(context, case, response):
    """All queues go on: what is asked of one of them later is to be done."""
    if case.operation.path in ("/v1/queues:pause", "/v1/queues:drain"):
        base = os.environ["COUNTWHEEL_SERVER"]
        request = urllib.request.Request(base + "/v1/queues:resume", method="POST")
        urllib.request.urlopen(request).close()
