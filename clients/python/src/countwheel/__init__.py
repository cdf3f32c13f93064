"""Client of Countwheel, the service for durable timers.

:class:`Client` and :class:`AsyncClient` have the verbs of the HTTP API by their names, :class:`Worker` and
:class:`AsyncWorker` work on pull queues, :mod:`countwheel.signatures` and :mod:`countwheel.receiver` are for those who receive
deliveries. The answers are those of the API, as typed dictionaries.
"""

from ._async.client import AsyncClient
from ._batch import Op
from ._encode import Duration, Time, TimerFields, read_time
from ._errors import (
    BatchEnded,
    CountwheelError,
    InvalidURL,
    NotCountwheel,
    OutcomeUnknown,
    Problem,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from ._events import Event
from ._exchange import Retries
from ._sync.client import Client
from .receiver import ASGIReceiver, Delivery, MemorySeen, NotADelivery, Seen, WSGIReceiver
from .signatures import BadSignature, Verifier
from .worker import AsyncWorker, Counts, Job, Nack, Worker

__all__ = [
    "ASGIReceiver",
    "AsyncClient",
    "AsyncWorker",
    "BadSignature",
    "BatchEnded",
    "Client",
    "Counts",
    "CountwheelError",
    "Delivery",
    "Duration",
    "Event",
    "InvalidURL",
    "Job",
    "MemorySeen",
    "Nack",
    "NotADelivery",
    "NotCountwheel",
    "Op",
    "OutcomeUnknown",
    "Problem",
    "Retries",
    "Seen",
    "Time",
    "TimedOut",
    "TimerFields",
    "Unauthorized",
    "Unreachable",
    "Verifier",
    "WSGIReceiver",
    "Worker",
    "read_time",
]
__version__ = "0.1.0"
