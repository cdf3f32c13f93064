"""The real service is killed and started again all the time, while the clients set, move, get, post and work."""

from __future__ import annotations

import logging
import random
import threading
import time
import unittest
from typing import Any

from countwheel import CountwheelError, Job, OutcomeUnknown, Problem, Retries, TimedOut

from .support import BothClients, Service, until
from .test_worker import Running

#: Nothing is delivered there: the timers are due in hours.
URL = "http://127.0.0.1:9/"
#: How long the service is killed again and again, and how many answers there have to be before that ends.
SECONDS = 4.0
CALLS = 200
KNOWN = 40
PATIENT = Retries(total=30.0, first=0.01, cap=0.1)


class Said:
    """What a caller has got as an answer, of its own timers."""

    def __init__(self) -> None:
        #: The due time that the last answer about a timer has; ``None`` if the last outcome is unknown.
        self.due: dict[str, str | None] = {}
        self.posted: dict[str, Any] = {}
        self.removed: set[str] = set()
        self.jobs: set[str] = set()
        self.unknown = 0
        self.calls = 0
        self.error: BaseException | None = None


class Killed(BothClients):
    def test_nothing_that_was_answered_is_lost(self) -> None:
        logging.getLogger("countwheel").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("countwheel").setLevel, logging.NOTSET)
        with Service("--allow-private-targets") as service:
            clients = self.clients(service.url, retries=PATIENT, timeout=5.0)
            clients[0][1].put_queue("jobs", {"mode": "pull", "lease": "2s", "retry": {"fixed": "10ms"}})
            handled: list[str] = []
            workers = [
                Running(kind, service.url, lambda job: handled.append(_key(job)), lease=2.0)
                for kind, _ in clients
            ]
            enough, begun = threading.Event(), time.monotonic()
            said = [Said() for _ in clients * 2]
            callers = [
                threading.Thread(target=self._call, args=(f"{kind}-{n}", client, said[n], enough))
                for n, (kind, client) in enumerate(clients * 2)
            ]
            for caller in callers:
                caller.start()
            kills = 0
            while True:
                time.sleep(random.uniform(0.05, 0.4))
                service.kill()
                service.start()
                kills += 1
                took = time.monotonic() - begun
                calls = sum(one.calls for one in said)
                known = sum(due is not None for one in said for due in list(one.due.values()))
                if took > 40 or (took > SECONDS and calls > CALLS and known > KNOWN):
                    break
            enough.set()
            for caller in callers:
                caller.join()
            for one in said:
                if one.error is not None:
                    raise one.error
            client = clients[0][1]
            jobs = {key for one in said for key in one.jobs}
            until(lambda: jobs <= set(handled))
            until(lambda: {timer["key"] for timer in client.list("jobs", state="done", limit=1000)} >= jobs)
            for worker in workers:
                worker.stop()
                self.assertIsNone(worker.error)
            known = 0
            found = {timer["key"]: timer["due"] for timer in client.list("orders", limit=1000)}
            for one in said:
                self.assertFalse(one.removed & set(found))
                for key, due in one.due.items():
                    if due is not None:
                        known += 1
                        self.assertEqual(found[key], due, key)
                for name, posted in one.posted.items():
                    self.assertEqual(found[posted["key"]], posted["due"])
                    again = client.post("orders", in_="3h", url=URL, body=name, idempotency_key=name)
                    self.assertEqual(again, posted)
            calls = sum(one.calls for one in said)
            # Without kills, calls and known outcomes there was no proof.
            self.assertGreater(kills, 4)
            self.assertGreater(known, KNOWN // 2)
            self.assertGreater(calls, CALLS)
            unknown = sum(one.unknown for one in said)
            self.assertLess(unknown, calls / 4)

    def _call(self, name: str, client: Any, said: Said, enough: threading.Event) -> None:
        chance = random.Random(name)
        number = 0
        try:
            while not enough.is_set():
                number += 1
                said.calls += 1
                key = f"{name}-{number}"
                choice = chance.random()
                if choice < 0.3 or not said.due:
                    self._note(said, key, lambda: client.set("orders", key, in_="1h", url=URL)["due"])
                elif choice < 0.5:
                    key = chance.choice([*said.due])
                    self._note(said, key, lambda: client.move("orders", key, in_="2h")["due"])
                elif choice < 0.6:
                    key = chance.choice([*said.due])
                    self._note(said, key, lambda: self._move_by(client, key, said.due[key]))
                elif choice < 0.75:
                    key = chance.choice([*said.due])
                    timer = client.get("orders", key) if said.due[key] else None
                    assert timer is None or timer["due"] == said.due[key], (timer, said.due[key])
                elif choice < 0.8:
                    key = chance.choice([*said.due])
                    if said.due.pop(key) is not None:
                        try:
                            assert client.remove("orders", key)["was"] == "pending"
                        except OutcomeUnknown as error:
                            # The repeat says that the first attempt has removed it.
                            assert error.problem is not None and error.problem.code == "not_found", error
                            said.unknown += 1
                        said.removed.add(key)
                elif choice < 0.9:
                    said.posted[key] = client.post("orders", in_="3h", url=URL, body=key, idempotency_key=key)
                else:
                    client.set("jobs", key, in_=0)
                    said.jobs.add(key)
        except BaseException as error:
            said.error = error

    def _move_by(self, client: Any, key: str, known: str | None) -> str:
        """Moves by a minute, and once: the deadline before is the one that is known."""
        moved = client.move("orders", key, by="1m")
        assert known in (None, moved["old_due"]), (moved, known)
        return str(moved["due"])

    def _note(self, said: Said, key: str, what: Any) -> None:
        """Notes the due time that is answered, or that the outcome is unknown."""
        try:
            said.due[key] = what()
        except (OutcomeUnknown, TimedOut) as error:
            assert error.outcome_unknown, error
            said.due[key] = None
            said.unknown += 1
        except Problem as error:
            # Its set had an unknown outcome, and was not done.
            if error.code != "not_found" or said.due.get(key) is not None:
                raise CountwheelError(f"{key}: {error}") from error


def _key(job: Job) -> str:
    return job.lease["key"]


if __name__ == "__main__":
    unittest.main()
