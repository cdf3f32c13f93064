"""Works on the timers of pull queues: leases them, calls a handler, and acks or nacks."""

from __future__ import annotations

import base64
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Union

import anyio

from ._async.client import AsyncClient
from ._encode import Duration
from ._errors import CountwheelError, Problem, Unauthorized
from ._exchange import Retries
from ._sync.client import Client
from ._types import Lease, LeaseResult

logger = logging.getLogger("countwheel.worker")

#: The most bytes of the reason of a nack.
_DETAIL_MAX_BYTES = 200
#: Refusals after which the next call for leases cannot go better.
_FATAL = frozenset({"push_queue", "malformed", "invalid_queue", "forbidden"})


@dataclass(frozen=True)
class Nack:
    """How the lease of a handler ends that has failed."""

    #: When the next attempt comes; as the ``retry`` of the timer says, if ``None``.
    in_: Duration | None = None
    #: Whether there is no next attempt.
    dead: bool = False
    #: What the record of the attempt says; the error, if ``None``.
    detail: str | None = None


class Job:
    """A timer that a worker has for a while."""

    def __init__(self, lease: Lease, ends: float) -> None:
        #: The lease: ``queue``, ``key``, ``id``, ``token``, ``attempt``, ``due``, …
        self.lease = lease
        self._ends = ends
        self._lost = threading.Event()
        self._scope: anyio.CancelScope | None = None
        self._is_settling = False

    @property
    def body(self) -> bytes:
        """The body of the timer."""
        if "body_base64" in self.lease:
            return base64.b64decode(self.lease["body_base64"])
        return self.lease.get("body", "").encode("utf-8")

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended: somebody else may have the timer by now, and no outcome counts."""
        return self._lost.is_set() or time.monotonic() >= self._ends

    def wait_lost(self, timeout: float) -> bool:
        """Waits for the loss of the lease, in a thread. ``True`` if it is lost."""
        return self._lost.wait(timeout) or self.is_lost


@dataclass
class Counts:
    """What a worker has done."""

    #: Handlers that ended well, and whose ack was taken.
    done: int = 0
    #: Handlers that raised an error, or that the end of the worker cut off, and whose nack was taken.
    failed: int = 0
    #: Leases that ended before their outcome was taken.
    lost: int = 0


class _Worker:
    """What both workers have in common."""

    def __init__(
        self,
        queues: Union[str, Sequence[str]],
        *,
        concurrency: int,
        lease: float,
        wait: float,
        name: str | None,
        grace: float,
        on_error: Callable[[BaseException, Job], Nack],
        retries: Retries,
    ) -> None:
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency is from 1 to 1000")
        if not 1 <= lease <= 12 * 3600:
            raise ValueError("a lease is from 1 s to 12 h")
        self._queues = queues
        self._concurrency = concurrency
        self._lease = lease
        self._wait = wait
        self._name = name
        self._grace = grace
        self._on_error = on_error
        self._retries = retries
        self._running: dict[str, Job] = {}
        self._is_stopping = False
        self.counts = Counts()

    def stop(self) -> None:
        """Ends :meth:`run` gracefully: nothing more is leased, and running handlers have ``grace`` seconds.

        The call for leases that is under way comes to its end, since what it brings is leased. May be called from a handler
        of signals, from any thread, and more than once.
        """
        self._is_stopping = True

    def _asked(self, room: int) -> dict[str, Any]:
        return {"max": room, "lease": timedelta(seconds=self._lease), "wait": self._wait, "worker": self._name}

    def _begin(self, lease: Lease) -> tuple[str, Job]:
        """Notes a lease that has just come. The clocks of both machines need not agree, so it counts from now."""
        name = "\0".join((lease["queue"], lease["key"], lease["token"]))
        job = self._running[name] = Job(lease, time.monotonic() + self._lease)
        return name, job

    def _extended(self, jobs: Sequence[tuple[str, Job]], results: Sequence[LeaseResult], began: float) -> None:
        """Takes the results of an extension."""
        for (name, job), result in zip(jobs, results):
            if 200 <= result["status"] < 300:
                job._ends = began + self._lease
            elif result.get("code") == "lease_lost" and self._running.get(name) is job:
                job._lost.set()

    def _nack(self, error: BaseException, job: Job) -> Nack:
        try:
            nack = self._on_error(error, job)
        except Exception:
            logger.exception("on_error has failed")
            nack = Nack()
        text = f"{type(error).__name__}: {error}" if nack.detail is None else nack.detail
        return replace(nack, detail=_cut(text))

    def _settled(self, job: Job, *, is_done: bool) -> None:
        if is_done:
            self.counts.done += 1
        else:
            self.counts.failed += 1

    def _refused(self, job: Job, error: CountwheelError) -> None:
        self.counts.lost += 1
        logger.warning("the outcome of %s was not taken: %s", job.lease["key"], error)

    @staticmethod
    def _is_fatal(error: CountwheelError) -> bool:
        """Whether it does not help to ask again."""
        if isinstance(error, Unauthorized):
            return True
        return isinstance(error, Problem) and error.code in _FATAL


def _retry(error: BaseException, job: Job) -> Nack:
    return Nack()


def _cut(text: str) -> str:
    """As much of a reason as a nack takes."""
    return text.encode("utf-8", "replace")[:_DETAIL_MAX_BYTES].decode("utf-8", "ignore")


_STOPPED = Nack(in_=0, detail="the worker has stopped")


class AsyncWorker(_Worker):
    """Calls a coroutine for each timer of pull queues that is due, as many at a time as ``concurrency`` says.

    A handler that returns acks, and one that raises an error nacks, as ``on_error`` says. Its lease of ``lease`` seconds is
    extended while it runs; a handler whose lease is lost is cancelled. While the service is away, the worker asks again with
    back-off. A wrong token, or a queue that is not pulled, ends :meth:`run` with that error.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: Union[str, Sequence[str]],
        handler: Callable[[Job], Awaitable[object]],
        *,
        concurrency: int = 10,
        lease: float = 30.0,
        wait: float = 5.0,
        name: str | None = None,
        grace: float = 30.0,
        on_error: Callable[[BaseException, Job], Nack] = _retry,
        retries: Retries = Retries(first=0.1, cap=10.0),
    ) -> None:
        super().__init__(
            queues,
            concurrency=concurrency,
            lease=lease,
            wait=wait,
            name=name,
            grace=grace,
            on_error=on_error,
            retries=retries,
        )
        self._client = client
        self._once = client.with_options(retries=Retries(attempts=1))
        self._extending = client.with_options(timeout=lease / 3, retries=Retries(attempts=1))
        self._handler = handler
        self._freed: anyio.Event | None = None

    async def run(self) -> None:
        """Works until :meth:`stop`, or an error that does not pass. May be called once."""
        ended: CountwheelError | None = None
        async with anyio.create_task_group() as extending:
            extending.start_soon(self._extend)
            async with anyio.create_task_group() as handlers:
                try:
                    await self._fetch(handlers)
                except CountwheelError as error:
                    ended = error
                await self._drain()
                handlers.cancel_scope.cancel()
            extending.cancel_scope.cancel()
        if ended is not None:
            raise ended

    async def _fetch(self, handlers: anyio.abc.TaskGroup) -> None:
        failures = 0
        while not self._is_stopping:
            room = self._concurrency - len(self._running)
            if room < 1:
                self._freed = anyio.Event()
                with anyio.move_on_after(0.05):
                    await self._freed.wait()
                continue
            try:
                leases = await self._once.lease(self._queues, **self._asked(room))
                failures = 0
            except CountwheelError as error:
                if self._is_fatal(error):
                    raise
                failures += 1
                logger.warning("no leases: %s; trying again", error)
                await self._pause(self._retries.delay(failures, error.retry_after))
                continue
            for lease in leases:
                handlers.start_soon(self._work, *self._begin(lease))

    async def _pause(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < ends:
            await anyio.sleep(min(0.05, max(0.0, ends - time.monotonic())))

    async def _drain(self) -> None:
        ends = time.monotonic() + self._grace
        while self._running and time.monotonic() < ends:
            await anyio.sleep(0.01)

    async def _work(self, name: str, job: Job) -> None:
        nack: Nack | None = None
        try:
            with anyio.CancelScope() as scope:
                job._scope = scope
                try:
                    result = self._handler(job)
                    if inspect.isawaitable(result):
                        await result
                except Exception as error:
                    nack = self._nack(error, job)
            job._is_settling = True
            if scope.cancelled_caught or job._lost.is_set():
                self.counts.lost += 1
                return
            with anyio.CancelScope(shield=True):
                await self._settle(job, nack)
        except anyio.get_cancelled_exc_class():
            # The grace is over, or the worker was cancelled: the timer goes to the next one.
            if not job._is_settling:
                with anyio.move_on_after(2.0, shield=True):
                    await self._settle(job, _STOPPED)
            raise
        finally:
            self._running.pop(name, None)
            if self._freed is not None:
                self._freed.set()

    async def _settle(self, job: Job, nack: Nack | None) -> None:
        left = max(1.0, job._ends - time.monotonic())
        client = self._client.with_options(retries=replace(self._retries, total=left))
        try:
            if nack is None:
                await client.ack(job.lease)
            else:
                await client.nack(job.lease, in_=nack.in_, dead=nack.dead, detail=nack.detail)
        except CountwheelError as error:
            self._refused(job, error)
        else:
            self._settled(job, is_done=nack is None)

    async def _extend(self) -> None:
        while True:
            await anyio.sleep(self._lease / 3)
            jobs = list(self._running.items())
            began = time.monotonic()
            for start in range(0, len(jobs), 1000):
                some = jobs[start : start + 1000]
                try:
                    results = await self._extending.extend_many(
                        [job.lease for _, job in some], timedelta(seconds=self._lease)
                    )
                except CountwheelError as error:
                    # It may pass before the leases end.
                    logger.warning("leases are not extended: %s", error)
                    continue
                self._extended(some, results, began)
            for _, job in jobs:
                if job.is_lost and job._scope is not None:
                    job._scope.cancel()


class Worker(_Worker):
    """Calls a function for each timer of pull queues that is due, in threads, as many at a time as ``concurrency`` says.

    As :class:`AsyncWorker`, but a handler whose lease is lost is not cut off: it may look at ``job.is_lost``. The threads of
    handlers that still run after the ``grace`` end with the process.
    """

    def __init__(
        self,
        client: Client,
        queues: Union[str, Sequence[str]],
        handler: Callable[[Job], object],
        *,
        concurrency: int = 10,
        lease: float = 30.0,
        wait: float = 5.0,
        name: str | None = None,
        grace: float = 30.0,
        on_error: Callable[[BaseException, Job], Nack] = _retry,
        retries: Retries = Retries(first=0.1, cap=10.0),
    ) -> None:
        super().__init__(
            queues,
            concurrency=concurrency,
            lease=lease,
            wait=wait,
            name=name,
            grace=grace,
            on_error=on_error,
            retries=retries,
        )
        self._client = client
        self._once = client.with_options(retries=Retries(attempts=1))
        self._extending = client.with_options(timeout=lease / 3, retries=Retries(attempts=1))
        self._handler = handler
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._ended = threading.Event()

    def run(self) -> None:
        """Works until :meth:`stop`, or an error that does not pass. May be called once."""
        extending = threading.Thread(target=self._extend, name="countwheel-extend", daemon=True)
        extending.start()
        try:
            self._fetch()
        finally:
            self._drain()
            self._ended.set()
            extending.join()

    def _fetch(self) -> None:
        failures = 0
        while not self._is_stopping:
            with self._freed:
                room = self._concurrency - len(self._running)
                if room < 1:
                    self._freed.wait(0.05)
                    continue
            try:
                leases = self._once.lease(self._queues, **self._asked(room))
                failures = 0
            except CountwheelError as error:
                if self._is_fatal(error):
                    raise
                failures += 1
                logger.warning("no leases: %s; trying again", error)
                self._pause(self._retries.delay(failures, error.retry_after))
                continue
            for lease in leases:
                with self._lock:
                    begun = self._begin(lease)
                threading.Thread(target=self._work, args=begun, daemon=True).start()

    def _pause(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < ends:
            time.sleep(min(0.05, max(0.0, ends - time.monotonic())))

    def _drain(self) -> None:
        ends = time.monotonic() + self._grace
        with self._freed:
            while self._running and time.monotonic() < ends:
                self._freed.wait(0.05)
            left = {name: job for name, job in self._running.items() if not job._is_settling}
            for name in left:
                del self._running[name]
        for job in left.values():
            self._settle(job, _STOPPED)
        # An outcome that is under way ends when its lease does.
        with self._freed:
            while self._running:
                self._freed.wait(0.05)

    def _work(self, name: str, job: Job) -> None:
        nack: Nack | None = None
        try:
            self._handler(job)
        # An exit of the thread is a failure of the handler too.
        except BaseException as error:
            nack = self._nack(error, job)
        with self._lock:
            if name not in self._running:
                # The worker has stopped, and has given the lease back.
                return
            job._is_settling = True
        try:
            if job._lost.is_set():
                self.counts.lost += 1
            else:
                self._settle(job, nack)
        finally:
            with self._freed:
                self._running.pop(name, None)
                self._freed.notify_all()

    def _settle(self, job: Job, nack: Nack | None) -> None:
        left = max(1.0, job._ends - time.monotonic())
        client = self._client.with_options(retries=replace(self._retries, total=left))
        try:
            if nack is None:
                client.ack(job.lease)
            else:
                client.nack(job.lease, in_=nack.in_, dead=nack.dead, detail=nack.detail)
        except CountwheelError as error:
            self._refused(job, error)
        else:
            self._settled(job, is_done=nack is None)

    def _extend(self) -> None:
        while not self._ended.wait(self._lease / 3):
            with self._lock:
                jobs = list(self._running.items())
            began = time.monotonic()
            for start in range(0, len(jobs), 1000):
                some = jobs[start : start + 1000]
                try:
                    results = self._extending.extend_many(
                        [job.lease for _, job in some], timedelta(seconds=self._lease)
                    )
                except CountwheelError as error:
                    # It may pass before the leases end.
                    logger.warning("leases are not extended: %s", error)
                    continue
                self._extended(some, results, began)
