"""Each verb, with either client, against the real service."""

from __future__ import annotations

import json
import threading
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

from countwheel import Client, Op, Problem, Unauthorized, read_time

from .support import SOON, BothClients, Service, Stub, answer, read_request, until

#: Nothing listens there.
URL = "http://127.0.0.1:9/hook"


class Verbs(BothClients):
    service: Service

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.service = Service("--allow-private-targets")
        cls.addClassCleanup(cls.service.close)

    def asked(self) -> Any:
        return self.each(self.service.url, retries=SOON)

    def refused(self, code: str, what: Any, *given: Any, **named: Any) -> Problem:
        with self.assertRaises(Problem) as caught:
            what(*given, **named)
        self.assertEqual(caught.exception.code, code)
        return caught.exception

    def test_a_timer_is_set_got_moved_and_removed(self) -> None:
        for queue, client in self.asked():
            for key in ("k", "a/b c", "..", ".", "ä:fire", "100%", "a?b#c", "x;y=z"):
                was = client.set(queue, key, in_="2h", url=URL, body={"n": [1, None, "ü"]})
                self.assertEqual((was["key"], was["replaced"]), (key, None))
                timer = client.get(queue, key)
                self.assertEqual((timer["key"], timer["state"], timer["revision"]), (key, "pending", was["revision"]))
                moved = client.move(queue, key, by=timedelta(hours=-1))
                self.assertEqual(moved["old_due"], was["due"])
                self.assertEqual(read_time(moved["old_due"]) - read_time(moved["due"]), timedelta(hours=1))
                self.assertEqual(client.remove(queue, key)["was"], "pending")
                self.refused("not_found", client.get, queue, key)

    def test_what_is_said_by_objects_of_python_arrives(self) -> None:
        at = datetime(2031, 5, 17, 12, 0, 0, 250_001, tzinfo=timezone(timedelta(hours=2)))
        for queue, client in self.asked():
            was = client.set(queue, "at", at=at, url=URL, body=b"\xff\x00", content_type="x/y", tags=["eu"])
            self.assertEqual(read_time(was["due"]), at)
            listed = [*client.list(queue, tags=["eu"], due_after=at, bodies=True)]
            self.assertEqual([(timer["key"], timer["body_base64"]) for timer in listed], [("at", "/wA=")])
            client.set(queue, "in", in_=timedelta(microseconds=1_500_500), url=URL)
            client.set(queue, "cron", cron="0 9 * * MON-FRI", zone="Europe/Berlin", url=URL, repeats=3)
            self.assertEqual(client.get(queue, "cron")["recurring"]["repeats"], 3)
            with self.assertRaises(ValueError):
                client.set(queue, "x", at=datetime(2031, 1, 1), url=URL)
            with self.assertRaises(ValueError):
                client.set(queue, "x", in_="1s", url=URL, target={"url": URL})
            with self.assertRaises(ValueError):
                client.set(queue, "x", in_="1s", url=URL, body=float("nan"))
            with self.assertRaises(TypeError):
                client.set(queue, "x", in_="1s", url=URL, body={"at": at})

    def test_preconditions_hold_and_say_what_is_there(self) -> None:
        for queue, client in self.asked():
            queue = f"if-{queue}"
            first = client.set(queue, "k", in_="1h", url=URL, if_none_match="*")
            problem = self.refused("exists", client.set, queue, "k", in_="1h", url=URL, if_none_match="*")
            self.assertEqual((problem.status, problem.state), (412, "pending"))
            second = client.set(queue, "k", in_="2h", url=URL, if_match=first["revision"])
            problem = self.refused("revision_mismatch", client.move, queue, "k", in_="1h", if_match=first["revision"])
            self.assertEqual(problem.revision, second["revision"])
            self.refused("revision_mismatch", client.remove, queue, "k", if_match=first["revision"])
            self.assertEqual(client.set(queue, "k", in_="2h", url=URL, if_match="*")["replaced"], "pending")
            self.assertEqual(client.remove(queue, "k", only_pending=True)["was"], "pending")

    def test_a_post_is_repeated_by_its_idempotency_key(self) -> None:
        for queue, client in self.asked():
            named = 'order "7" \\ ~'
            first = client.post(queue, in_="1h", url=URL, body={"n": 1}, idempotency_key=f"{queue} {named}")
            again = client.post(queue, in_="1h", url=URL, body={"n": 1}, idempotency_key=f"{queue} {named}")
            self.assertEqual(first, again)
            self.refused(
                "idempotency_mismatch", client.post, queue, in_="2h", url=URL, idempotency_key=f"{queue} {named}"
            )
            self.assertNotEqual(client.post(queue, in_="1h", url=URL)["key"], first["key"])
            with self.assertRaises(ValueError):
                client.post(queue, in_="1h", url=URL, idempotency_key="a\r\nb: c")

    def test_all_pages_of_a_list_come_in_order(self) -> None:
        for queue, client in self.asked():
            queue = f"pages-{queue}"
            operations = (Op.set(queue, f"k{n:03}", in_=f"{n + 1}h", url=URL) for n in range(25))
            self.assertEqual({result["status"] for result in client.batch(operations)}, {201})
            keys = [timer["key"] for timer in client.list(queue, limit=4)]
            self.assertEqual(keys, [f"k{n:03}" for n in range(25)])
            self.assertEqual([timer["key"] for timer in client.list(queue, prefix="k01", limit=3)], keys[10:20])
            page = client.list_page(queue, limit=10, state="pending")
            self.assertEqual((len(page["items"]), page["next"] is None), (10, False))
            counts = {counts["queue"]: counts["pending"] for counts in client.queues()}
            self.assertEqual(counts[queue], 25)

    def test_dead_timers_are_revived_and_sent_again(self) -> None:
        for queue, client in self.asked():
            queue = f"dead-{queue}"
            once = {"schedule": ["1ms"], "max_attempts": 1}
            client.set(queue, "k", in_=0, url=URL, retry=once)
            until(lambda: client.get(queue, "k")["state"] == "dead")
            self.refused("conflict", client.move, queue, "k", in_="1h")
            revived = client.revive(queue, "k", in_="1h")
            self.assertEqual(client.get(queue, "k")["due"], revived["due"])
            client.fire(queue, "k")
            timer = until(lambda: (timer := client.get(queue, "k"))["state"] == "dead" and timer)
            self.assertEqual(timer["dead_reason"], "exhausted")
            sent = client.resend(queue, "k", target={"url": URL + "?again"})
            self.assertEqual(sent["replaced"], "dead")

    def test_queues_are_paused_drained_resumed_and_purged(self) -> None:
        for queue, client in self.asked():
            queue = f"drain-{queue}"
            client.set(queue, "k", in_="1h", url=URL, body={"n": 1})
            self.assertEqual(client.pause(queue, in_="30m")["drain"]["mode"], "pause")
            self.assertEqual(client.drain(queue, "hold")["left"]["pending"], 1)
            self.refused("draining", client.set, queue, "x", in_="1h", url=URL)
            removed = client.drain(queue, "remove")["removed"]
            self.assertEqual([(timer["key"], timer["body"]) for timer in removed], [("k", {"n": 1})])
            self.assertEqual(client.resume(queue)["was"], {"mode": "remove"})
            self.assertIsNone(client.resume(queue)["was"])
            client.set(queue, "k", in_="1h", url=URL)
            client.purge(queue, {"states": ["pending"]})
            until(lambda: client.queue(queue).get("purge", {}).get("ended"))
            self.refused("not_found", client.get, queue, "k")
            self.refused("not_found", client.cancel_purge, queue)

    def test_queues_and_endpoints_have_settings(self) -> None:
        for queue, client in self.asked():
            name = f"shop-{queue}"
            endpoint = client.put_endpoint(name, {"url": URL, "rate": {"per_second": 5}}, if_none_match="*")
            self.assertIn(name, [endpoint["endpoint"] for endpoint in client.endpoints(limit=1)])
            self.assertEqual(client.endpoint(name)["revision"], endpoint["revision"])
            self.assertEqual(client.test_endpoint(name, {"body": 1})["attempt"]["detail"], "connection refused")
            queue = f"set-{queue}"
            put = client.put_queue(queue, {"endpoint": name, "retry": {"fixed": "5s"}})
            self.refused("in_use", client.remove_endpoint, name)
            client.set(queue, "k", in_="1h")
            self.assertEqual(client.get(queue, "k")["from"]["retry"], "queue")
            client.remove(queue, "k")
            self.refused("revision_mismatch", client.remove_queue, queue, if_match=put["revision"] + 1)
            self.assertTrue(client.remove_queue(queue, if_match=put["revision"])["removed"])
            self.assertTrue(client.remove_endpoint(name)["removed"])

    def test_jobs_are_started_watched_and_cancelled(self) -> None:
        for queue, client in self.asked():
            queue = f"jobs-{queue}"
            for n in range(5):
                client.set(queue, f"k{n}", in_="1h", url=URL)
            job = client.start_job({"queue": queue, "action": "move", "move": {"by": "1h"}, "filter": {}})
            ended = until(lambda: (found := client.job(job["id"])).get("ended") and found)
            self.assertEqual((ended["matched"], ended["done"], ended["skipped"]), (5, 5, 0))
            self.assertIn(job["id"], [found["id"] for found in client.jobs()])
            self.assertEqual(client.cancel_job(job["id"])["id"], job["id"])
            self.refused("not_found", client.job, 1 << 40)

    def test_batches_have_a_result_for_each_operation(self) -> None:
        for queue, client in self.asked():
            queue = f"batch-{queue}"
            client.set(queue, "old", in_="1h", url=URL)
            results = [
                *client.batch(
                    [
                        Op.set(queue, "new", in_="1h", url=URL, body=None, if_none_match="*"),
                        Op.set(queue, "old", in_="1h", url=URL, if_none_match="*"),
                        Op.move(queue, "old", by="5m"),
                        Op.fire(queue, "nothing"),
                        Op.revive(queue, "old"),
                        Op.remove(queue, "old", only_pending=True),
                        Op(op="wrong"),
                    ]
                )
            ]
            self.assertEqual([result["i"] for result in results], [*range(7)])
            self.assertEqual([result["status"] for result in results], [201, 412, 200, 404, 409, 200, 400])
            self.assertEqual(results[1]["code"], "exists")
            self.assertEqual([*client.batch([])], [])
            atomic = client.batch_atomic([Op.set(queue, "a", in_="1h", url=URL), Op.remove(queue, "new")])
            self.assertEqual([result["status"] for result in atomic], [201, 200])
            with self.assertRaises(Problem) as caught:
                client.batch_atomic([Op.remove(queue, "a"), Op.remove(queue, "none")])
            self.assertEqual((caught.exception.code, caught.exception.body["item"]), ("not_found", 1))
            self.assertEqual(client.get(queue, "a")["state"], "pending")

    def test_a_batch_longer_than_a_request_is_numbered_through(self) -> None:
        for queue, client in self.asked():
            queue = f"long-{queue}"
            count = 5_003
            operations = (Op.remove(queue, f"k{n}") for n in range(count))
            numbers = [result["i"] for result in client.batch(operations)]
            self.assertEqual(numbers, [*range(count)])

    def test_leases_are_extended_acked_and_nacked(self) -> None:
        for queue, client in self.asked():
            queue = f"pull-{queue}"
            client.put_queue(queue, {"mode": "pull", "lease": "30s"})
            client.put_queue(f"{queue}-2", {"mode": "pull"})
            self.assertEqual(client.lease(queue), [])
            for n in range(4):
                client.set(queue, f"k{n}", in_=0, body={"n": n})
            leases: list[Any] = []

            def all_leased(client: Any = client, queue: str = queue, leases: list[Any] = leases) -> bool:
                leases += client.lease([queue, f"{queue}-2"], max=4, wait=2, worker="w")
                return len(leases) == 4

            until(all_leased)
            one, two, three, four = leases
            self.assertEqual(client.get(queue, one["key"])["worker"], "w")
            self.assertGreater(client.extend(one, "5m")["leased_until"], one["leased_until"])
            self.assertEqual({result["status"] for result in client.extend_many([two, three], timedelta(minutes=1))}, {200})
            self.assertEqual(client.ack(one)["state"], "done")
            self.assertEqual(client.ack(one)["state"], "done")
            self.assertEqual([result["state"] for result in client.ack_many([two])], ["done"])
            self.assertEqual(client.nack(three, dead=True, detail="no")["state"], "dead")
            self.assertEqual(client.nack(four, in_="1h")["state"], "pending")
            self.refused("lease_lost", client.ack, four)
            lost = [*client.batch([Op.ack(three), Op.nack(four, detail="again")])]
            self.assertEqual([result["code"] for result in lost], ["lease_lost", "lease_lost"])
            self.refused("push_queue", client.lease, "default")

    def test_schedules_are_simulated(self) -> None:
        for _, client in self.asked():
            simulated = client.simulate({"retry": {"schedule": ["1s", "2s"]}, "start": "2026-03-01T12:00:00Z"})
            self.assertEqual([attempt["after_ms"] for attempt in simulated["attempts"]], [0, 1000, 3000])
            simulated = client.simulate({"cron": "0 9 * * *", "start": "2026-03-01T12:00:00Z", "limit": 2})
            self.assertEqual(simulated["runs"][1]["at"], "2026-03-03T09:00:00.000000Z")

    def test_a_simulation_takes_the_rules_of_a_queue_or_an_endpoint(self) -> None:
        for queue, client in self.asked():
            endpoint, queue = f"simulated-{queue}", f"simulated-{queue}"
            client.put_endpoint(endpoint, {"url": URL, "retry": {"schedule": ["4s"]}})
            client.put_queue(queue, {"retry": {"schedule": ["2s", "3s"]}})
            there = client.simulate({"queue": queue})
            self.assertEqual([attempt["after_ms"] for attempt in there["attempts"]], [0, 2000, 5000])
            self.assertEqual((there["from"]["retry"], there["retry"]["schedule"]), ("queue", ["2s", "3s"]))
            there = client.simulate({"endpoint": endpoint})
            self.assertEqual([attempt["after_ms"] for attempt in there["attempts"]], [0, 4000])
            self.assertEqual(there["from"]["retry"], "endpoint")
            self.refused("invalid_target", client.simulate, {"endpoint": "there-is-none"})

    def test_a_timer_is_got_with_its_body(self) -> None:
        for queue, client in self.asked():
            client.set(queue, "text", in_="1h", url=URL, body={"n": "ü"})
            client.set(queue, "bytes", in_="1h", url=URL, body=b"\xff\x00")
            self.assertNotIn("body", client.get(queue, "text"))
            self.assertEqual(json.loads(client.get(queue, "text", body=True)["body"]), {"n": "ü"})
            self.assertEqual(client.get(queue, "bytes", body=True)["body_base64"], "/wA=")

    def test_timers_of_all_queues_are_listed_in_order(self) -> None:
        for queue, client in self.asked():
            begin = f"all-{queue}"
            for n in range(7):
                tags = ["odd"] if n % 2 else ["even"]
                client.set(f"{begin}-{n % 3}", f"k{n}", in_=f"{9 - n}h", url=URL, tags=tags)
            client.set(f"other-{queue}", "k", in_="1h", url=URL)
            names = [f"k{n}" for n in range(7)]
            listed = [*client.list(None, queue_prefix=begin, limit=2)]
            self.assertEqual([timer["key"] for timer in listed], names[::-1])
            self.assertEqual(listed[0]["queue"], f"{begin}-0")
            self.assertIn("k", [timer["key"] for timer in client.list(None, limit=5)])
            created = [timer["key"] for timer in client.list(None, queue_prefix=begin, order="created", limit=3)]
            self.assertEqual(created, names)
            odd = [timer["key"] for timer in client.list(None, queue_prefix=begin, tags=["odd"], order="due")]
            self.assertEqual(odd, ["k5", "k3", "k1"])
            page = client.list_page(None, queue_prefix=begin, limit=2)
            self.assertEqual((len(page["items"]), page["next"] is None), (2, False))
            self.assertNotIn("next_attempts", page["items"][0])
            full = client.list_page(f"{begin}-0", next_attempts=True)["items"][0]
            self.assertEqual(full["next_attempts"][0]["at"], full["due"])
            problem = self.refused("malformed", client.list_page, None, after=page["next"], queue_prefix=f"{begin}-0")
            self.assertEqual(problem.status, 400)
            self.refused("malformed", client.list_page, begin, queue_prefix="x")
            self.refused("malformed", client.list_page, None, order="sideways")

    def test_queues_come_page_by_page(self) -> None:
        for queue, client in self.asked():
            begin = f"many-{queue}"
            names = [f"{begin}-{n}" for n in range(5)]
            for name in names:
                client.set(name, "k", in_="1h", url=URL)
            self.assertEqual([counts["queue"] for counts in client.queues(prefix=begin, limit=2)], names)
            page = client.queues_page(prefix=begin, limit=2)
            self.assertEqual([counts["queue"] for counts in page["queues"]], names[:2])
            page = client.queues_page(prefix=begin, limit=3, after=page["next"])
            self.assertEqual(([counts["queue"] for counts in page["queues"]], page["next"]), (names[2:], None))
            self.assertEqual([*client.queues(prefix=begin, state="dead")], [])
            self.assertEqual(len([*client.queues(prefix=begin, state="pending")]), 5)

    def test_runs_to_come_are_told_and_runs_of_the_past_made(self) -> None:
        for queue, client in self.asked():
            queue = f"runs-{queue}"
            client.set(queue, "daily", cron="0 9 * * *", zone="Europe/Berlin", url=URL, repeats=5)
            runs = [*client.runs(queue, "daily", limit=2)]
            self.assertEqual(runs[0]["due"], client.get(queue, "daily")["due"])
            self.assertEqual(len(runs), len({run["nominal"] for run in runs}))
            self.assertEqual(len(runs), 5)
            page = client.runs_page(queue, "daily", limit=2)
            self.assertEqual(page["runs"], runs[:2])
            self.assertEqual(client.runs_page(queue, "daily", limit=2, after=page["next"])["runs"], runs[2:4])
            client.set(queue, "once", in_="1h", url=URL)
            past = {
                "from_": datetime(2026, 3, 1, tzinfo=timezone.utc),
                "until": "2026-03-04T00:00:00Z",
            }
            dry = client.backfill(queue, "daily", dry_run=True, **past)
            self.assertEqual((dry["dry_run"], [run["result"] for run in dry["runs"]]), (True, ["new"] * 3))
            self.assertEqual(dry["runs"][0]["nominal"], "2026-03-01T08:00:00.000000Z")
            made = client.backfill(queue, "daily", limit=2, **past)
            self.assertEqual((made["made"], made["existing"]), (2, 0))
            rest = client.backfill(queue, "daily", from_=made["next"], until=past["until"])
            self.assertEqual((rest["made"], rest["next"]), (1, None))
            again = client.backfill(queue, "daily", **past)
            self.assertEqual((again["made"], again["existing"]), (0, 3))
            self.assertEqual(client.get(queue, made["runs"][0]["key"])["backfill"]["nominal"], dry["runs"][0]["nominal"])

    def test_figures_say_how_many_timers_are_due_when(self) -> None:
        with Service("--allow-private-targets") as service:
            for year, (queue, client) in enumerate(self.each(service.url, retries=SOON), 2040):
                at = datetime(year, 1, 1, tzinfo=timezone.utc)
                before = client.stats()
                for n in range(3):
                    client.set(queue, f"k{n}", at=at + timedelta(days=n), url=URL)
                after = client.stats()
                self.assertEqual(after["timers"]["pending"], before["timers"]["pending"] + 3)
                self.assertEqual(after["due"][-1]["timers"], before["due"][-1]["timers"] + 3)
                for step in ("1d", timedelta(days=1), 86_400_000):
                    figures = client.stats_due(from_=at, to=at + timedelta(days=2), step=step)
                    self.assertEqual([bucket["timers"] for bucket in figures["buckets"]], [1, 1])
                    self.assertEqual(read_time(figures["buckets"][1]["from"]), at + timedelta(days=1))
                self.refused("malformed", client.stats_due, step="1ms")

    def test_events_of_another_start_are_a_gap(self) -> None:
        with Service("--allow-private-targets") as service:
            for queue, client in self.each(service.url, retries=SOON):
                events = client.events(queue=queue, kinds=["set"])
                found: list[Any] = []
                reader = threading.Thread(target=lambda e=events, f=found: f.append(next(e)), daemon=True)
                reader.start()

                def told(client: Any = client, queue: str = queue, reader: threading.Thread = reader) -> bool:
                    client.set(queue, "k", in_="1h", url=URL)
                    reader.join(0.05)
                    return not reader.is_alive()

                until(told)
                self.assertEqual((found[0].kind, found[0].data["key"]), ("set", "k"))
                service.kill()
                service.start()
                # The stream broke off, and is resumed by itself with the id that it has.
                kinds = [next(events).kind]
                while kinds[-1] != "gap":
                    kinds.append(next(events).kind)
                self.assertEqual({*kinds} - {"set"}, {"gap"})
                client.set(queue, "later", in_="1h", url=URL)
                self.assertEqual((event := next(events)).data.get("key"), "later", event)
                events.close()
                late = client.events(queue=queue, after=found[0].id)
                self.assertEqual(next(late).kind, "gap")
                late.close()

    def test_events_after_an_id_of_the_future_are_refused(self) -> None:
        for queue, client in self.asked():
            events = client.events(queue=queue)
            found: list[Any] = []
            reader = threading.Thread(target=lambda e=events, f=found: f.append(next(e)), daemon=True)
            reader.start()

            def told(client: Any = client, queue: str = queue, reader: threading.Thread = reader) -> bool:
                client.set(queue, "future", in_="1h", url=URL)
                reader.join(0.05)
                return not reader.is_alive()

            until(told)
            events.close()
            place, _, number = found[0].id.rpartition(".")
            future = f"{place}.{int(number) + 1_000_000}"
            for named in ({"after": future}, {"after": "x"}, {"kinds": ["nonsense"]}):
                with self.assertRaises(Problem) as caught:
                    next(client.events(queue=queue, **named))
                self.assertEqual((caught.exception.status, caught.exception.code), (400, "malformed"), named)

    def test_a_service_without_a_cluster_says_so(self) -> None:
        for _, client in self.asked():
            for verb in (client.cluster, client.cluster_nodes, client.cluster_shards):
                self.refused("no_cluster", verb)

    def test_events_tell_what_happens(self) -> None:
        for queue, client in self.asked():
            queue = f"events-{queue}"
            found: list[Any] = []
            events = client.events(queue=queue, kinds=["set", "removed"])

            def read(events: Any = events, found: list[Any] = found) -> None:
                try:
                    found.append(next(events))
                    found.append(next(events))
                except Problem as error:
                    found.append(error)

            reader = threading.Thread(target=read, daemon=True)
            reader.start()

            def tell(client: Any = client, queue: str = queue, reader: threading.Thread = reader) -> bool:
                client.set(queue, "k", in_="1h", url=URL)
                client.remove(queue, "k")
                reader.join(0.05)
                return not reader.is_alive()

            until(tell)
            events.close()
            self.assertEqual({event.kind for event in found}, {"set", "removed"})
            again = client.events(queue=queue, kinds=["set", "removed"], after=found[0].id)
            self.assertEqual(next(again), found[1])
            again.close()

    def test_a_fault_names_its_field(self) -> None:
        for queue, client in self.asked():
            problem = self.refused(
                "invalid_retry", client.set, queue, "k", in_="1h", url=URL, retry={"fixed": "400d"}
            )
            self.assertEqual((problem.status, problem.pointer), (422, "/retry/fixed"))
            self.assertTrue(problem.request_id)
            self.assertFalse(problem.outcome_unknown)


class Namespaces(BothClients):
    def refused(self, code: str, what: Any, *given: Any, **named: Any) -> Problem:
        with self.assertRaises(Problem) as caught:
            what(*given, **named)
        self.assertEqual(caught.exception.code, code, (given, named))
        return caught.exception

    def test_a_namespace_is_made_shown_listed_and_removed(self) -> None:
        with Service("--allow-private-targets", token="right") as service:
            for name, client in self.each(service.url, token="right", retries=SOON):
                queue = f"{name}/orders"
                self.refused("not_found", client.set, queue, "k", in_="1h", url=URL)
                first = client.put_namespace(name, {}, if_none_match="*")
                self.assertEqual((first["namespace"], first["quotas"]), (name, {}))
                self.refused("exists", client.put_namespace, name, {}, if_none_match="*")
                rate = {"per_second": 1_000.5, "burst": 2_000}
                quotas = {"timers": 1, "queues": 3, "endpoints": 1, "connections": 50, "rate": rate}
                settings = {"quotas": quotas, "audit_timers": True}
                second = client.put_namespace(name, settings, if_match=first["revision"])
                self.assertEqual(second["quotas"], quotas)
                self.refused("revision_mismatch", client.put_namespace, name, {}, if_match=first["revision"])
                for wrong in ("a/b", "ä", "a b"):
                    self.refused("malformed", client.put_namespace, wrong, {})
                for namespace, pointer in (
                    ({"quotas": {"timers": -1}}, "/quotas/timers"),
                    ({"quotas": {"rate": {"per_second": 0}}}, "/quotas/rate/per_second"),
                    ({"quota": {}}, "/quota"),
                ):
                    with self.assertRaises(Problem) as caught:
                        client.put_namespace("x", namespace)
                    self.assertEqual(caught.exception.pointer, pointer)

                client.set(queue, "k", in_="1h", url=URL)
                client.put_endpoint(f"{name}/hook", {"url": URL})
                shown = client.namespace(name)
                self.assertEqual((shown["revision"], shown["quotas"]), (second["revision"], quotas))
                usage = {kind: shown["usage"][kind] for kind in ("timers", "queues", "endpoints")}
                self.assertEqual(usage, {"timers": 1, "queues": 1, "endpoints": 1})
                listed = client.namespaces()
                default: dict[str, object] = {"namespace": "default", "revision": None, "quotas": {}, "audit_timers": False}
                own: dict[str, object] = {"namespace": name, "revision": second["revision"], **settings}
                self.assertEqual(listed, [default, own])

                made = client.create_token(name, ["read", "write"], namespace=name)
                self.assertEqual((made["namespace"], client.token(made["id"])["namespace"]), (name, name))
                self.refused("not_found", client.create_token, name, "read", namespace="nobody")
                with Client(service.url, token=made["token"]) as tenant:
                    self.assertEqual([timer["key"] for timer in tenant.list(queue)], ["k"])
                    for elsewhere in ("orders", "nobody/orders"):
                        self.refused("not_found", tenant.set, elsewhere, "k", in_="1h", url=URL)
                    self.refused("forbidden", tenant.stats)

                self.refused("not_empty", client.remove_namespace, name)
                client.remove(queue, "k")
                client.remove_endpoint(f"{name}/hook")
                client.revoke_token(made["id"])
                self.refused("revision_mismatch", client.remove_namespace, name, if_match=first["revision"])
                gone = client.remove_namespace(name, if_match=second["revision"])
                self.assertEqual(gone, {"namespace": name, "removed": True})
                self.refused("not_found", client.remove_namespace, name)
                self.refused("not_found", client.namespace, name)

    def test_a_quota_refuses_what_is_beyond_it_and_says_which_it_is(self) -> None:
        with Service("--allow-private-targets") as service:
            for name, client in self.each(service.url, retries=SOON):
                queue = f"{name}/orders"
                client.put_namespace(name, {"quotas": {"timers": 1, "endpoints": 0}})
                client.set(queue, "k", in_="1h", url=URL)
                problem = self.refused("quota_exceeded", client.set, queue, "other", in_="1h", url=URL)
                self.assertEqual((problem.status, problem.quota, problem.transient), (507, "timers", False))
                problem = self.refused("quota_exceeded", client.put_endpoint, f"{name}/hook", {"url": URL})
                self.assertEqual(problem.quota, "endpoints")
                (line,) = client.batch([Op.set(queue, "other", in_="1h", url=URL)])
                self.assertEqual((line["status"], line["code"], line["quota"]), (507, "quota_exceeded", "timers"))
                self.assertEqual(client.set(queue, "k", in_="2h", url=URL)["replaced"], "pending")
                problem = self.refused("not_found", client.get, queue, "other")
                self.assertIsNone(problem.quota)

    def test_the_names_of_queues_and_endpoints_are_one_part_of_the_path_in_all_verbs(self) -> None:
        fields = ("attempt", "due", "endpoint", "key", "left", "made", "old_due", "purge", "queue", "removed", "was")
        body: dict[str, Any] = dict.fromkeys(fields, "")
        body |= {"items": [], "leases": [], "next": None, "revision": 1, "runs": [], "state": "pending"}
        text = answer("200 OK", json.dumps(body).encode())
        asked: list[str] = []

        def act(peer: Any, number: int) -> None:
            while request := read_request(peer):
                asked.append(request.split(b" ", 2)[1].decode().partition("?")[0])
                peer.sendall(text)

        queue, endpoint = "tenant-7/orders", "tenant-7/hook"
        of, hook = "/v1/queues/tenant-7%2Forders", "/v1/endpoints/tenant-7%2Fhook"
        key = f"{of}/timers/a%2Fb"
        with Stub(act) as stub:
            for _, client in self.each(stub.url):
                asked.clear()
                client.set(queue, "a/b", in_="1h", url=URL)
                client.post(queue, in_="1h", url=URL)
                client.move(queue, "a/b", in_="1h")
                client.remove(queue, "a/b")
                client.get(queue, "a/b")
                self.assertEqual([*client.list(queue)], [])
                self.assertEqual([*client.runs(queue, "a/b")], [])
                client.backfill(queue, "a/b", from_="2026-03-01T00:00:00Z", until="2026-03-02T00:00:00Z")
                client.fire(queue, "a/b")
                client.revive(queue, "a/b")
                client.resend(queue, "a/b")
                self.assertEqual(asked[:5], [key, f"{of}/timers", key, key, key])
                verbs = ["/runs", ":backfill", ":fire", ":revive", ":resend"]
                self.assertEqual(asked[5:], [f"{of}/timers", *(key + verb for verb in verbs)])
                asked.clear()
                client.queue(queue)
                client.put_queue(queue, {})
                client.remove_queue(queue)
                client.pause(queue)
                client.drain(queue, "hold")
                client.resume(queue)
                client.purge(queue)
                client.cancel_purge(queue)
                client.lease(queue)
                verbs = [":pause", ":drain", ":resume", ":purge", ":cancel-purge", ":lease"]
                self.assertEqual(asked, [of, of, of, *(of + verb for verb in verbs)])
                asked.clear()
                client.put_endpoint(endpoint, {"url": URL})
                client.endpoint(endpoint)
                client.remove_endpoint(endpoint)
                client.test_endpoint(endpoint)
                self.assertEqual(asked, [hook, hook, hook, f"{hook}:test"])


class Tokens(BothClients):
    def refused(self, code: str, what: Any, *given: Any, **named: Any) -> Problem:
        with self.assertRaises(Problem) as caught:
            what(*given, **named)
        self.assertEqual(caught.exception.code, code, (given, named))
        return caught.exception

    def opens(self, url: str, token: str | None) -> bool:
        """Whether a token opens what needs the scope ``read``."""
        with Client(url, token=token) as client:
            try:
                client.stats()
            except Unauthorized:
                return False
            return True

    def test_a_token_is_made_shown_rotated_and_revoked(self) -> None:
        with Service("--allow-private-targets", token="right") as service:
            for name, client in self.each(service.url, token="right"):
                made = client.create_token(name, ["deliver", "read"], expires_in=timedelta(days=90))
                self.assertRegex(made["token"], f"^cwt_{made['id']}_[0-9a-f]{{64}}$")
                self.assertEqual((made["name"], made["scopes"]), (name, ["read", "deliver"]))
                self.assertEqual(read_time(made["expires"]) - read_time(made["created"]), timedelta(days=90))
                self.assertEqual({**client.token(made["id"]), "token": made["token"]}, made)
                shows = client.create_token(name, "metrics", certificate=f"dns:{name}.example")
                self.assertNotIn("token", shows)
                self.refused("conflict", client.rotate_token, shows["id"])
                ids = [token["id"] for token in client.tokens()]
                self.assertEqual(ids, sorted(ids))
                self.assertLessEqual({made["id"], shows["id"]}, {*ids})
                with Client(service.url, token=made["token"]) as worker:
                    self.refused("forbidden", worker.tokens)
                    self.refused("forbidden", worker.audit_page)

                second = client.rotate_token(made["id"], overlap=timedelta(hours=1))
                self.assertIn("before_until", second)
                self.assertTrue(self.opens(service.url, made["token"]) and self.opens(service.url, second["token"]))
                third = client.rotate_token(made["id"])
                for token in (made["token"], second["token"]):
                    self.assertFalse(self.opens(service.url, token))
                self.refused("revision_mismatch", client.revoke_token, made["id"], if_match=made["revision"])
                self.assertTrue(self.opens(service.url, third["token"]))
                gone = client.revoke_token(made["id"], if_match=third["revision"])
                self.assertEqual(gone, {"id": made["id"], "revoked": True})
                self.assertFalse(self.opens(service.url, third["token"]))
                for verb in (client.token, client.rotate_token, client.revoke_token):
                    for unknown in (made["id"], "nobody", "a/b", "x:rotate", "ä", ".."):
                        self.refused("not_found", verb, unknown)
                client.revoke_token(shows["id"])

    def test_a_token_that_cannot_be_is_refused_with_its_field(self) -> None:
        with Service("--allow-private-targets", token="right") as service:
            for _, client in self.each(service.url, token="right"):
                for name, scopes, more, pointer in (
                    ("", ["read"], {}, "/name"),
                    ("a\nb", ["read"], {}, "/name"),
                    ("x", [], {}, "/scopes"),
                    ("x", "all", {}, "/scopes/0"),
                    ("x", "read", {"expires_in": 0}, "/expires_in"),
                    ("x", "read", {"certificate": "worker"}, "/certificate"),
                ):
                    with self.assertRaises(Problem) as caught:
                        client.create_token(name, scopes, **more)
                    self.assertEqual(caught.exception.pointer, pointer)
                made = client.create_token("x", "read")
                with self.assertRaises(Problem) as caught:
                    client.rotate_token(made["id"], overlap="31d")
                self.assertEqual(caught.exception.pointer, "/overlap")

    def test_the_audit_log_says_who_has_changed_what(self) -> None:
        with Service("--allow-private-targets", token="right") as service:
            for name, client in self.each(service.url, token="right"):
                made = client.create_token(name, "admin")
                begun = read_time(made["created"])
                with Client(service.url, token=made["token"]) as other:
                    for number in range(3):
                        other.put_queue(f"{name}-{number}", {"concurrency": 3})
                entries = [*client.audit(who=name, order="oldest", limit=1)]
                self.assertEqual([entry["setting"] for entry in entries], [f"queue/{name}-{n}" for n in range(3)])
                for entry in entries:
                    self.assertEqual((entry["who"]["id"], entry["operation"]), (made["id"], "putQueue"))
                    self.assertIn({"field": "concurrency", "after": 3}, entry["fields"])
                    self.assertIsNone(entry["before"])
                self.assertEqual([*client.audit(who=made["id"], since=begun)], entries[::-1])
                page = client.audit_page(who=name, limit=2)
                self.assertEqual(page["items"], entries[:0:-1])
                rest = client.audit_page(who=name, limit=2, after=page["next"])
                self.assertEqual((rest["items"], rest["next"]), (entries[:1], None))
                self.assertEqual(len([*client.audit(operation="createToken", since=begun)]), 1)
                self.assertEqual([*client.audit(who=name, until=begun)], [])
                for bad in ({"limit": 0}, {"limit": 1_001}, {"since": "yesterday"}, {"order": "due"}, {"after": "x"}):
                    self.refused("malformed", client.audit_page, **bad)

    def test_a_wrong_token_is_an_error_of_its_own(self) -> None:
        with Service("--allow-private-targets", token="right") as service:
            for queue, client in self.each(service.url, token="right"):
                client.set(queue, "k", in_="1h", url=URL)
            for token in ("wrong", None):
                for queue, client in self.each(service.url, token=token):
                    with self.assertRaises(Unauthorized) as caught:
                        client.get(queue, "k")
                    self.assertEqual(caught.exception.status, 401)
        for token in ("", "a b", "ü", "a\nb"):
            with self.assertRaises(ValueError):
                self.clients(service.url, token=token)


if __name__ == "__main__":
    unittest.main()
