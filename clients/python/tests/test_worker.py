"""The workers, against the real service and against one that is away."""

from __future__ import annotations

import logging
import socket
import threading
import time
import unittest
from functools import partial
from typing import Any

import anyio

from countwheel import AsyncClient, AsyncWorker, Client, Job, Nack, Problem, Retries, Unauthorized, Worker

from .support import PATIENCE, SOON, BothClients, Service, Stub, answer, answers, closed_port, read_request, until


class Running:
    """A worker of either kind in a thread of its own. The handler is a function, which runs in a thread in both."""

    def __init__(self, kind: str, url: str, handler: Any, **options: Any) -> None:
        self.error: BaseException | None = None
        self.worker: Any = None
        self._ready = threading.Event()
        options.setdefault("wait", 0.5)
        options.setdefault("retries", Retries(first=0.01, cap=0.1))
        run = partial(anyio.run, self._tasks) if kind == "tasks" else self._threads
        self._args = (url, handler, options)
        self._thread = threading.Thread(target=self._guard, args=(run,), daemon=True)
        self._thread.start()
        self._ready.wait(PATIENCE)

    def _guard(self, run: Any) -> None:
        try:
            run()
        except BaseException as error:
            self.error = error

    def _threads(self) -> None:
        url, handler, options = self._args
        with Client(url, retries=SOON) as client:
            self.worker = Worker(client, "jobs", handler, **options)
            self._ready.set()
            self.worker.run()

    async def _tasks(self) -> None:
        url, handler, options = self._args

        async def handle(job: Job) -> None:
            await anyio.to_thread.run_sync(handler, job, abandon_on_cancel=True)

        async with AsyncClient(url, retries=SOON) as client:
            self.worker = AsyncWorker(client, ["jobs"], handle, **options)
            self._ready.set()
            await self.worker.run()

    def stop(self, within: float = 20.0) -> None:
        self.worker.stop()
        self.join(within)

    def join(self, within: float = 20.0) -> None:
        self._thread.join(within)
        assert not self._thread.is_alive(), "the worker has not stopped"


KINDS = ("threads", "tasks")


class AtWork(unittest.TestCase):
    """With a service that has a pull queue."""

    service: Service
    client: Client

    @classmethod
    def setUpClass(cls) -> None:
        logging.getLogger("countwheel").setLevel(logging.CRITICAL)
        cls.addClassCleanup(logging.getLogger("countwheel").setLevel, logging.NOTSET)

    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        self.client = Client(self.service.url, retries=SOON)
        self.addCleanup(self.client.close)
        self.client.put_queue("jobs", {"mode": "pull", "retry": {"fixed": "10ms", "max_attempts": 3}})


class Workers(AtWork):
    def states(self) -> dict[str, str]:
        return {timer["key"]: timer["state"] for timer in self.client.list("jobs")}

    def test_each_timer_is_handled_by_as_many_at_a_time_as_allowed(self) -> None:
        for kind in KINDS:
            running, most, seen, lock = [0], [0], set(), threading.Lock()

            def handle(job: Job) -> None:
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                    seen.add((job.lease["key"], job.body))
                time.sleep(0.02)
                with lock:
                    running[0] -= 1

            for n in range(20):
                self.client.set("jobs", f"{kind}-{n}", in_=0, body={"n": n})
            worker = Running(kind, self.service.url, handle, concurrency=4)
            until(lambda: worker.worker.counts.done == 20)
            worker.stop()
            self.assertIsNone(worker.error)
            self.assertEqual(seen, {(f"{kind}-{n}", b'{"n":%d}' % n) for n in range(20)})
            self.assertLessEqual(most[0], 4)
            self.assertGreater(most[0], 1)
        self.assertEqual(set(self.states().values()), {"done"})

    def test_a_handler_that_fails_nacks_as_the_policy_says(self) -> None:
        class Never(Exception):
            pass

        def policy(error: BaseException, job: Job) -> Nack:
            return Nack(dead=True, detail="never") if isinstance(error, Never) else Nack()

        def handle(job: Job) -> None:
            if job.lease["key"].endswith("never"):
                raise Never
            if job.lease["attempt"] < 3:
                raise ValueError("ü" * 200)

        for kind in KINDS:
            self.client.set("jobs", f"{kind}-never", in_=0)
            self.client.set("jobs", f"{kind}-thrice", in_=0)
            worker = Running(kind, self.service.url, handle, on_error=policy)
            until(lambda: worker.worker.counts.done == 1)
            until(lambda: self.client.get("jobs", f"{kind}-never")["state"] == "dead")
            worker.stop()
            self.assertEqual(worker.worker.counts.failed, 3)
            timer = self.client.get("jobs", f"{kind}-thrice")
            self.assertEqual((timer["state"], timer["attempt"]), ("done", 3))
            self.assertTrue(timer["attempts"][0].get("detail", "").startswith("ValueError: üü"))
            self.assertEqual(self.client.get("jobs", f"{kind}-never")["attempts"][0].get("detail"), "never")


class Leases(AtWork):
    def test_a_lease_is_extended_while_its_handler_runs(self) -> None:
        ran = dict.fromkeys(KINDS, 0)

        def handle(job: Job) -> None:
            ran[job.lease["key"]] += 1
            time.sleep(2.5)

        for kind in KINDS:
            self.client.set("jobs", kind, in_=0)
        workers = [Running(kind, self.service.url, handle, lease=1.0, concurrency=1) for kind in KINDS]
        until(lambda: sum(worker.worker.counts.done for worker in workers) == 2)
        for worker in workers:
            worker.stop()
        self.assertEqual(ran, dict.fromkeys(KINDS, 1))
        self.assertEqual([self.client.get("jobs", kind)["attempt"] for kind in KINDS], [1, 1])

    def test_a_handler_hears_that_its_lease_is_lost(self) -> None:
        heard: list[str] = []

        def handle(job: Job) -> None:
            # A set ends the lease.
            self.client.set("jobs", job.lease["key"], in_="1h")
            if job.wait_lost(10):
                heard.append(job.lease["key"])

        for kind in KINDS:
            self.client.set("jobs", kind, in_=0)
            worker = Running(kind, self.service.url, handle, lease=1.0)
            until(lambda: worker.worker.counts.lost == 1)
            worker.stop()
            until(lambda: kind in heard)
            self.assertEqual(self.client.get("jobs", kind)["state"], "pending")

    def test_a_stop_waits_for_handlers_and_gives_back_the_rest(self) -> None:
        for kind in KINDS:
            begun, release = threading.Semaphore(0), threading.Event()

            def handle(job: Job) -> None:
                begun.release()
                if job.lease["key"].endswith("short"):
                    time.sleep(0.6)
                else:
                    release.wait(20)

            self.client.set("jobs", f"{kind}-short", in_=0)
            self.client.set("jobs", f"{kind}-long", in_=0)
            worker = Running(kind, self.service.url, handle, wait=0.2, grace=1.2)
            for _ in range(2):
                self.assertTrue(begun.acquire(timeout=10))
            worker.worker.stop()
            self.client.set("jobs", f"{kind}-later", in_="3s")
            worker.join()
            self.assertIsNone(worker.error)
            self.assertEqual((worker.worker.counts.done, worker.worker.counts.failed), (1, 1))
            timer = self.client.get("jobs", f"{kind}-long")
            self.assertEqual((timer["state"], timer["attempts"][0].get("detail")), ("pending", "the worker has stopped"))
            release.set()
            for key in ("long", "later"):
                self.client.remove("jobs", f"{kind}-{key}")

    def test_a_queue_that_is_not_pulled_ends_the_worker(self) -> None:
        self.client.put_queue("jobs", {"mode": "push"})
        for kind in KINDS:
            worker = Running(kind, self.service.url, lambda job: None)
            worker.join()
            self.assertIsInstance(worker.error, Problem)


class Away(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        logging.getLogger("countwheel").setLevel(logging.CRITICAL)
        cls.addClassCleanup(logging.getLogger("countwheel").setLevel, logging.NOTSET)

    def test_a_service_that_is_away_is_asked_with_back_off(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)

        for kind in KINDS:
            with Stub(act) as stub:
                worker = Running(kind, stub.url, lambda job: None, retries=Retries(first=0.05, cap=0.2))
                time.sleep(1.0)
                until(lambda: stub.connections > 2)
                worker.stop()
                self.assertIsNone(worker.error)
                self.assertLess(stub.connections, 40)
            worker = Running(kind, closed_port(), lambda job: None)
            time.sleep(0.1)
            worker.stop()
            self.assertIsNone(worker.error)

    def test_a_wrong_token_ends_the_worker(self) -> None:
        body = b'{"code": "unauthorized", "status": 401, "detail": "who?"}'
        with Stub(answers(answer("401 Who", body, "application/problem+json"))) as stub:
            for kind in KINDS:
                worker = Running(kind, stub.url, lambda job: None)
                worker.join()
                self.assertIsInstance(worker.error, Unauthorized)


class Cancelled(BothClients):
    def test_a_cancelled_worker_gives_its_leases_back(self) -> None:
        async def work(url: str) -> None:
            async def handle(job: Job) -> None:
                begun.set()
                await anyio.sleep_forever()

            begun = anyio.Event()
            async with AsyncClient(url, retries=SOON) as client:
                await client.put_queue("jobs", {"mode": "pull", "retry": {"fixed": "1h"}})
                await client.set("jobs", "k", in_=0)
                async with anyio.create_task_group() as group:
                    group.start_soon(AsyncWorker(client, "jobs", handle, wait=0.2).run)
                    await begun.wait()
                    group.cancel_scope.cancel()
                timer = await client.get("jobs", "k")
                self.assertEqual((timer["state"], timer["attempts"][0].get("result")), ("pending", "failed"))

        with Service() as service:
            self.portal.call(work, service.url)


if __name__ == "__main__":
    unittest.main()
