"""Servers that are no Countwheel, are away, are slow, break off, or send too much."""

from __future__ import annotations

import json
import socket
import threading
import time
import unittest
from typing import Any, Callable

from countwheel import (
    Client,
    CountwheelError,
    InvalidURL,
    NotCountwheel,
    Op,
    OutcomeUnknown,
    Problem,
    Retries,
    TimedOut,
    Unauthorized,
    Unreachable,
)

from .support import ONCE, SOON, BothClients, Stub, answer, answers, closed_port, read_request

TIMER = json.dumps({"revision": 1, "state": "pending", "key": "k"}).encode()
WAS_SET = json.dumps({"revision": 1, "due": "2026-03-01T12:00:00.000000Z", "key": "k", "replaced": None}).encode()
MOVED = json.dumps({"revision": 2, "old_due": "…", "due": "…"}).encode()


def problem(status: str, code: str, *headers: str, **more: Any) -> bytes:
    body = json.dumps({"code": code, "status": int(status.split()[0]), "detail": "so it is", **more})
    return answer(status, body.encode(), "application/problem+json", *headers)


class Asked(BothClients):
    def fails(
        self,
        kind: type[CountwheelError],
        act: Callable[[socket.socket, int], None],
        what: Callable[[Any], Any] = lambda client: client.get("q", "k"),
        within: float = 15.0,
        **options: Any,
    ) -> list[CountwheelError]:
        """The errors that both clients have with such a server."""
        errors = []
        options.setdefault("retries", ONCE)
        with Stub(act) as stub:
            for name, client in self.each(stub.url, **options):
                begun = time.monotonic()
                with self.assertRaises(CountwheelError) as caught:
                    what(client)
                self.assertIs(type(caught.exception), kind, f"{name}: {caught.exception!r}")
                self.assertLess(time.monotonic() - begun, within, name)
                errors.append(caught.exception)
        return errors


class Hostile(Asked):
    def test_a_url_that_is_none_is_refused_at_once(self) -> None:
        for url in (
            "127.0.0.1:7070",
            "ftp://x",
            "http://",
            "http://x:99999",
            "http://a b/",
            "http://x/?q",
            "http://u:p@x/",
            "http://x/#f",
            "http://x/v1",
            "http://x/base/v1/",
            "",
        ):
            with self.assertRaises(InvalidURL, msg=url):
                Client(url)
        with self.assertRaises(InvalidURL):
            Client(None)  # type: ignore[arg-type]
        with self.assertRaisesRegex(InvalidURL, "did you mean http://127.0.0.1:7070?"):
            Client("127.0.0.1:7070")
        with self.assertRaises(ValueError):
            Client([])

    def test_nobody_there_is_unreachable(self) -> None:
        for _, client in self.each(closed_port(), retries=ONCE):
            with self.assertRaises(Unreachable) as caught:
                client.set("q", "k", in_="1h")
            self.assertFalse(caught.exception.outcome_unknown)

    def test_no_tls_where_it_is_expected_is_unreachable(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            peer.recv(10)
            peer.sendall(answer("400 Bad Request", b""))

        with Stub(act) as stub:
            for _, client in self.each(stub.url.replace("http:", "https:"), retries=ONCE):
                with self.assertRaises(Unreachable):
                    client.get("q", "k")

    def test_what_speaks_no_http_is_no_countwheel(self) -> None:
        for banner in (b"SSH-2.0-OpenSSH_9.6\r\n", b"-ERR unknown command\r\n", b"\x15\x03\x01\x00\x02\x02", b"HT", b"HTTP!"):

            def act(peer: socket.socket, number: int, banner: bytes = banner) -> None:
                peer.sendall(banner)
                read_request(peer)

            kind = Unreachable if banner == b"HT" else NotCountwheel
            for error in self.fails(kind, act):
                if kind is NotCountwheel:
                    self.assertIsNone(getattr(error, "status"))
                    self.assertIn("no HTTP", str(error))

    def test_answers_of_others_are_no_countwheel(self) -> None:
        deep = b"[" * 200_000
        for text in (
            answer("200 OK", b"<html>hello</html>", "text/html"),
            answer("404 Not Found", b"<html>none</html>", "text/html"),
            answer("401 Unauthorized", b"<html>log in</html>", "text/html"),
            answer("500 Oh", b'{"error": "x"}'),
            answer("200 OK", TIMER, "text/plain"),
            answer("200 OK", b"{", "application/json"),
            answer("200 OK", b"[]", "application/json"),
            answer("200 OK", b'{"hello": 1}', "application/json; charset=utf-8"),
            answer("200 OK", b"\xff\xfe", "application/json"),
            answer("200 OK", b"", "application/json"),
            answer("200 OK", deep, "application/json"),
            answer("204 No Content", b""),
            answer("301 Moved", b"", "text/html", "location: https://elsewhere.example/"),
            answer("400 Bad", deep, "application/problem+json"),
        ):
            errors = self.fails(NotCountwheel, answers(text))
            self.assertEqual([getattr(error, "status") for error in errors], [int(text[9:12])] * 2)

    def test_a_long_answer_is_not_read_to_its_end(self) -> None:
        sent = []

        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            total = 0
            try:
                while total < 1 << 30:
                    peer.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                    total += 65536
            finally:
                sent.append(total)

        self.fails(NotCountwheel, act, max_answer=1 << 20)
        self.assertTrue(all(total < 64 << 20 for total in sent), sent)

        def length(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n")
            while True:
                peer.sendall(b" " * 65536)

        self.fails(NotCountwheel, length, max_answer=1 << 20)

    def test_a_head_without_an_end_is_no_countwheel(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            while True:
                peer.sendall(b"x-more: " + b"y" * 1000 + b"\r\n")

        self.fails(NotCountwheel, act)

    def test_an_answer_that_never_comes_is_a_timeout(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            read_request(peer)

        for error in self.fails(TimedOut, act, timeout=0.2):
            self.assertTrue(error.outcome_unknown)

    def test_an_answer_that_comes_byte_by_byte_is_a_timeout(self) -> None:
        for head in (b"", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"):

            def act(peer: socket.socket, number: int, head: bytes = head) -> None:
                read_request(peer)
                peer.sendall(head or b"HTTP/1.1 200 OK\r\nx-slow: ")
                while True:
                    peer.sendall(b"1")
                    time.sleep(0.02)

            self.fails(TimedOut, act, timeout=0.3)

    def test_a_server_that_reads_nothing_is_a_timeout(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            time.sleep(20.0)

        body = "x" * (16 << 20)
        self.fails(TimedOut, act, lambda client: client.set("q", "k", in_="1h", body=body), timeout=0.3)


class Repeats(Asked):
    def test_nobody_there_is_asked_again_for_the_whole_time(self) -> None:
        for _, client in self.each(closed_port(), retries=Retries(total=0.4, first=0.01, cap=0.02)):
            begun = time.monotonic()
            with self.assertRaises(Unreachable):
                client.move("q", "k", by="1h")
            self.assertGreater(time.monotonic() - begun, 0.3)

    def test_all_attempts_end_within_the_total(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            read_request(peer)

        self.fails(TimedOut, act, timeout=0.2, retries=Retries(total=0.7, first=0.01))

    def test_what_is_safe_is_repeated_after_a_cut(self) -> None:
        for keep in (0, 30, 110):

            def act(peer: socket.socket, number: int, keep: int = keep) -> None:
                request = read_request(peer)
                body = WAS_SET if request.startswith(b"PUT") else TIMER
                text = answer("200 OK", body)
                peer.sendall(text if number % 3 == 2 else text[:keep])

            with Stub(act) as stub:
                for _, client in self.each(stub.url, retries=SOON):
                    self.assertEqual(client.get("q", "k")["revision"], 1)
                    self.assertEqual(client.set("q", "k", in_="1h")["revision"], 1)
                self.assertEqual(stub.connections, 12)

    def test_tokens_are_revoked_and_read_again_and_namespaces_changed_after_a_cut(self) -> None:
        said = {"id": "x", "revision": 1, "revoked": True, "tokens": [], "items": [], "next": None}
        body = json.dumps({**said, "namespace": "a", "namespaces": [], "removed": True}).encode()

        def act(peer: socket.socket, number: int) -> None:
            if read_request(peer) and number % 2 == 1:
                peer.sendall(answer("200 OK", body))

        for what in (
            lambda client: client.revoke_token("x", if_match=1),
            lambda client: client.token("x"),
            lambda client: client.tokens(),
            lambda client: [*client.audit()],
            lambda client: client.put_namespace("a", {"quotas": {"timers": 1}}, if_none_match="*"),
            lambda client: client.namespace("a"),
            lambda client: client.namespaces(),
            lambda client: client.remove_namespace("a", if_match=1),
        ):
            with Stub(act) as stub:
                for _, client in self.each(stub.url, retries=SOON):
                    what(client)
                self.assertEqual(stub.connections, 4)

    def test_what_is_not_safe_is_not_repeated_after_a_cut(self) -> None:
        for what in (
            lambda client: client.move("q", "k", by="1h"),
            lambda client: client.post("q", in_="1h"),
            lambda client: client.fire("q", "k"),
            lambda client: client.revive("q", "k"),
            lambda client: client.drain("q", "remove"),
            lambda client: client.lease("q"),
            lambda client: client.start_job({"queue": "q", "action": "fire", "filter": {}}),
            lambda client: client.create_token("x", "read"),
            lambda client: client.rotate_token("9f3c51d20ab7"),
            lambda client: client.batch_atomic([Op.fire("q", "k")]),
            lambda client: [*client.batch([Op.fire("q", "k")])],
        ):
            asked = []

            def act(peer: socket.socket, number: int) -> None:
                asked.append(read_request(peer))

            for error in self.fails(OutcomeUnknown, act, what, retries=SOON):
                self.assertTrue(error.outcome_unknown)
                self.assertIsNotNone(error.__cause__)
            self.assertEqual(len(asked), 2)

    def test_no_answer_of_the_store_is_repeated_where_that_is_safe(self) -> None:
        unknown = problem("503 No", "unknown")
        with Stub(answers(unknown, unknown, answer("200 OK", WAS_SET))) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                self.assertEqual(client.set("q", "k", in_="1h")["revision"], 1)
        for error in self.fails(
            OutcomeUnknown, answers(unknown), lambda client: client.move("q", "k", by="1h"), retries=SOON
        ):
            assert isinstance(error, OutcomeUnknown) and error.problem is not None
            self.assertEqual(error.problem.code, "unknown")

    def test_what_was_not_done_is_repeated_whatever_it_is(self) -> None:
        for refused in (
            problem("429 Later", "overloaded", "retry-after: 0"),
            problem("429 Later", "over_rate", "retry-after: 0", quota="rate"),
            problem("503 No", "unavailable"),
            problem("503 No", "shard_unavailable"),
            problem("503 No", "store_unavailable"),
            problem("507 Full", "storage_full"),
        ):
            with Stub(answers(refused, answer("200 OK", MOVED), refused, answer("200 OK", MOVED))) as stub:
                for _, client in self.each(stub.url, retries=SOON):
                    self.assertEqual(client.move("q", "k", by="1h")["revision"], 2)

    def test_a_repeat_that_is_refused_is_an_unknown_outcome(self) -> None:
        """A remove that was done, and whose answer was lost, finds no timer when it is repeated."""

        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            if number % 2:
                peer.sendall(problem("404 None", "not_found"))

        for error in self.fails(OutcomeUnknown, act, lambda client: client.remove("q", "k"), retries=SOON):
            assert isinstance(error, OutcomeUnknown) and error.problem is not None
            self.assertEqual(error.problem.code, "not_found")

    def test_a_refused_repeat_with_an_idempotency_key_was_not_done(self) -> None:
        """The answer of the first would have come, so the refusal is of the first too."""

        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            if number % 2:
                peer.sendall(problem("409 No", "draining"))

        what = lambda client: client.post("q", in_="1h", idempotency_key="a")  # noqa: E731
        for error in self.fails(Problem, act, what, retries=SOON):
            self.assertFalse(error.outcome_unknown)

    def test_a_refusal_is_not_repeated(self) -> None:
        for text, kind in (
            (problem("500 Bug", "internal"), Problem),
            (problem("409 No", "conflict", state="dead"), Problem),
            (problem("401 Who", "unauthorized"), Unauthorized),
            (problem("507 Full", "quota_exceeded", quota="timers"), Problem),
        ):
            with Stub(answers(text, answer("200 OK", TIMER))) as stub:
                client = self.clients(stub.url, retries=SOON)[0][1]
                with self.assertRaises(kind):
                    client.get("q", "k")
                self.assertEqual(client.get("q", "k")["revision"], 1)

    def test_the_wait_that_the_service_asks_for_is_kept(self) -> None:
        late = [problem("429 Later", code, "retry-after: 1") for code in ("overloaded", "over_rate")]
        with Stub(answers(late[0], answer("200 OK", TIMER), late[1], answer("200 OK", TIMER))) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                begun = time.monotonic()
                client.get("q", "k")
                self.assertGreaterEqual(time.monotonic() - begun, 1.0)
        long = problem("429 Later", "overloaded", "retry-after: 3600")
        self.fails(Problem, answers(long), retries=SOON)

    def test_a_proxy_without_its_service_is_asked_again(self) -> None:
        html = answer("502 Bad Gateway", b"<html>", "text/html")
        with Stub(answers(html, answer("200 OK", TIMER), html, answer("200 OK", TIMER))) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                self.assertEqual(client.get("q", "k")["revision"], 1)
        for error in self.fails(
            NotCountwheel, answers(html), lambda client: client.move("q", "k", by="1h"), retries=SOON
        ):
            self.assertTrue(error.outcome_unknown)

    def test_other_nodes_are_asked_in_turn(self) -> None:
        with Stub(answers(answer("200 OK", MOVED))) as stub:
            for _, client in self.each([closed_port(), stub.url], retries=SOON):
                for _ in range(3):
                    self.assertEqual(client.move("q", "k", by="1h")["revision"], 2)

    def test_a_refusal_that_comes_before_the_body_was_read_is_heard(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            peer.recv(1000)
            peer.sendall(problem("413 Long", "too_large", "connection: close"))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 20):
                pass

        for error in self.fails(Problem, act, lambda client: client.set("q", "k", in_="1h", body="x" * (8 << 20))):
            self.assertEqual(getattr(error, "code"), "too_large")

    def test_a_kept_connection_that_was_closed_is_replaced(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(answer("200 OK", MOVED))

        with Stub(act) as stub:
            for _, client in self.each(stub.url, retries=ONCE):
                for _ in range(5):
                    client.move("q", "k", by="1h")
                    time.sleep(0.02)

    def test_batches_that_break_off_say_where(self) -> None:
        line = b'{"i":0,"status":200}\n'
        end = b'{"end":true,"operations":1,"succeeded":1,"failed":0}\n'
        kind = "application/x-ndjson"
        read = lambda client: [*client.batch([Op.fire("q", "a"), Op.fire("q", "b")])]  # noqa: E731
        for error in self.fails(OutcomeUnknown, answers(answer("200 OK", line, kind)), read):
            self.assertEqual(getattr(error, "operations_done"), 1)

        def cut(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(answer("200 OK", line + line + end, kind)[:-10])

        for error in self.fails(OutcomeUnknown, cut, read):
            self.assertEqual(getattr(error, "operations_done"), 2)
        from countwheel import BatchEnded

        over = b'{"end":false,"reason":"shutdown","operations":1,"succeeded":1,"failed":0}\n'
        for error in self.fails(BatchEnded, answers(answer("200 OK", line + over, kind)), read):
            self.assertEqual((getattr(error, "reason"), getattr(error, "done")), ("shutdown", 1))
        self.fails(NotCountwheel, answers(answer("200 OK", b"<html>\n" + end, kind)), read)
        self.fails(NotCountwheel, answers(answer("200 OK", b"<html>\n" + end, "text/html")), read)
        self.fails(NotCountwheel, answers(answer("200 OK", b"[1]\n" + end, kind)), read)
        self.fails(NotCountwheel, answers(answer("200 OK", b"{" + b" " * (4 << 20), kind)), read)


class Cancelled(BothClients):
    def test_a_cancelled_task_ends_at_once(self) -> None:
        import anyio

        from countwheel import AsyncClient

        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            read_request(peer)

        async def ask(url: str) -> float:
            begun = time.monotonic()
            async with AsyncClient(url) as client:
                with anyio.move_on_after(0.1) as scope:
                    await client.get("q", "k")
            assert scope.cancelled_caught
            return time.monotonic() - begun

        with Stub(act) as stub:
            self.assertLess(self.portal.call(ask, stub.url), 8.0)

    def test_many_threads_share_a_client(self) -> None:
        with Stub(answers(answer("200 OK", TIMER))) as stub, Client(stub.url, retries=ONCE) as client:
            got: list[Any] = []
            threads = [
                threading.Thread(target=lambda: got.extend(client.get("q", "k")["revision"] for _ in range(10)))
                for _ in range(16)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(got, [1] * 160)


if __name__ == "__main__":
    unittest.main()
