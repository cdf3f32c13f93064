"""Signatures, and the middleware for ASGI and WSGI: alone, and with deliveries of the real service."""

from __future__ import annotations

import base64
import os
import threading
import unittest
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from io import BytesIO
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import anyio

from countwheel import ASGIReceiver, BadSignature, Client, Delivery, MemorySeen, Verifier, WSGIReceiver
from countwheel.receiver import DELIVERY
from countwheel.signatures import sign

from .support import SOON, Service, until

SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 64).decode()
NOW = 1_772_366_405


def headers(id: str = "tmr-1", body: bytes = b"{}", secret: str = SECRET, at: int = NOW, **more: str) -> dict[str, str]:
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, id, at, body),
        "timer-queue": "orders",
        "timer-key": "a%2Fb%C3%BC",
        "timer-attempt": "2",
        "timer-due": "2026-03-01T12:00:00.000000Z",
        "timer-late-us": "1500",
        "timer-held-us": "0",
        "timer-fence": "17",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def verifier(*secrets: str) -> Verifier:
    return Verifier(secrets or (SECRET,), clock=lambda: float(NOW))


class Signatures(unittest.TestCase):
    def test_the_example_of_standard_webhooks_is_right(self) -> None:
        """The vector of the libraries of Standard Webhooks."""
        secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        body = b'{"test": 2432232314}'
        signed = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        self.assertEqual(sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body), signed)
        given = {
            "Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "Webhook-Timestamp": "1614265330",
            "Webhook-Signature": signed,
        }
        Verifier(secret, clock=lambda: 1614265330.0).verify(given, body)

    def test_one_of_several_secrets_is_enough(self) -> None:
        both = headers()["webhook-signature"] + " " + headers(secret=OTHER)["webhook-signature"]
        for secrets in ((SECRET,), (OTHER,), (OTHER, SECRET)):
            verifier(*secrets).verify({**headers(), "webhook-signature": both}, b"{}")
        verifier(OTHER, SECRET).verify(headers(), b"{}")

    def test_what_was_changed_is_refused(self) -> None:
        right = headers()
        signature = right["webhook-signature"]
        for changed, body in (
            ({}, b"{} "),
            ({"webhook-id": "tmr-2"}, b"{}"),
            ({"webhook-timestamp": str(NOW + 1)}, b"{}"),
            ({"webhook-signature": signature.replace("v1,", "v2,")}, b"{}"),
            ({"webhook-signature": signature[:-4]}, b"{}"),
            ({"webhook-signature": "v1,"}, b"{}"),
            ({"webhook-signature": ""}, b"{}"),
            ({"webhook-signature": "v1,ü"}, b"{}"),
            ({"webhook-signature": signature.replace("v1,", "v1a,")}, b"{}"),
            ({"webhook-timestamp": "-1"}, b"{}"),
            ({"webhook-timestamp": "1e9"}, b"{}"),
            ({"webhook-timestamp": "9" * 5000}, b"{}"),
            ({"webhook-id": ""}, b"{}"),
        ):
            with self.assertRaises(BadSignature, msg=str(changed)):
                verifier().verify({**right, **changed}, body)
        for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
            with self.assertRaises(BadSignature):
                verifier().verify({other: value for other, value in right.items() if other != name}, b"{}")
        with self.assertRaises(BadSignature):
            verifier(OTHER).verify(right, b"{}")

    def test_an_old_or_a_new_request_is_refused(self) -> None:
        for at in (NOW - 300, NOW + 300):
            verifier().verify(headers(at=at), b"{}")
        for at in (NOW - 301, NOW + 301):
            with self.assertRaises(BadSignature):
                verifier().verify(headers(at=at), b"{}")

    def test_a_secret_that_is_none_is_refused(self) -> None:
        for secret in ("", "k" * 32, "whsec_", "whsec_!!!", "whsec_" + base64.b64encode(b"k" * 23).decode()):
            with self.assertRaises(ValueError):
                Verifier(secret)
        with self.assertRaises(ValueError):
            Verifier([])


Answer = tuple[int, dict[str, str], bytes]
Handler = Callable[[Delivery, bytes], int]


class Asgi:
    """An application for ASGI behind the middleware, called without a server."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = (await receive())["body"]
            status = handler(scope[DELIVERY], body)
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            await send({"type": "http.response.body", "body": b"k"})

        self._app = ASGIReceiver(app, **options)

    def ask(self, given: dict[str, str], body: bytes = b"{}", path: str = "/hooks") -> Answer:
        sent: list[Any] = []
        parts = [body[:1], body[1:]]

        async def receive() -> Any:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "path": path,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
        }
        anyio.run(self._app, scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(message["body"] for message in sent[1:])


class Wsgi:
    """An application for WSGI behind the middleware, called without a server."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        def app(environ: Any, start_response: Any) -> Iterable[bytes]:
            body = environ["wsgi.input"].read()
            status = handler(environ[DELIVERY], body)
            write = start_response(f"{status} So", [])
            write(b"o")
            yield b"k"

        self._app = WSGIReceiver(app, **options)

    def ask(self, given: dict[str, str], body: bytes = b"{}", path: str = "/hooks") -> Answer:
        answer: list[Any] = []

        def start_response(status: str, found: Any, exc_info: Any = None) -> Any:
            answer.extend([int(status[:3]), dict(found)])

        environ = {
            "PATH_INFO": path,
            "wsgi.input": BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
            **{"HTTP_" + name.upper().replace("-", "_"): value for name, value in given.items()},
        }
        text = b"".join(self._app(environ, start_response))
        return answer[0], answer[1], text


def noting(calls: list[Any], status: int) -> Handler:
    """A handler that notes its calls."""

    def handle(delivery: Delivery, body: bytes) -> int:
        calls.append((delivery, body))
        return status

    return handle


class Middleware(unittest.TestCase):
    kinds: tuple[Any, ...] = (Asgi, Wsgi)

    def test_a_delivery_reaches_the_application_once(self) -> None:
        for kind in self.kinds:
            calls: list[tuple[Delivery, bytes]] = []
            app = kind(noting(calls, 204), verifier=verifier())
            self.assertEqual(app.ask(headers()), (204, {}, b"ok"))
            self.assertEqual(app.ask(headers(timer_attempt="3"))[0], 200)
            self.assertEqual(len(calls), 1)
            delivery, body = calls[0]
            self.assertEqual(body, b"{}")
            self.assertEqual((delivery.queue, delivery.key, delivery.attempt), ("orders", "a/bü", 2))
            self.assertEqual(delivery.due, datetime(2026, 3, 1, 12, tzinfo=timezone.utc))
            self.assertEqual((delivery.late, delivery.held), (timedelta(microseconds=1500), timedelta()))
            self.assertEqual((delivery.fence, delivery.run, delivery.nominal, delivery.is_test), (17, None, None, False))
            app.ask(headers("tmr-1-r2", timer_run="2", timer_nominal="2026-03-01T13:00:00+01:00"))
            self.assertEqual((calls[1][0].run, calls[1][0].nominal), (2, delivery.due))

    def test_a_handler_that_failed_is_called_again(self) -> None:
        for kind in self.kinds:
            statuses: list[Any] = [500, 410, RuntimeError("no"), 200]

            def handle(delivery: Delivery, body: bytes, statuses: list[Any] = statuses) -> int:
                status = statuses.pop(0)
                if isinstance(status, Exception):
                    raise status
                return int(status)

            app = kind(handle, verifier=verifier())
            self.assertEqual([app.ask(headers())[0] for _ in range(2)], [500, 410])
            with self.assertRaises(RuntimeError):
                app.ask(headers())
            self.assertEqual([app.ask(headers())[0] for _ in range(3)], [200, 200, 200])
            self.assertEqual(statuses, [])

    def test_of_two_at_a_time_one_is_put_off(self) -> None:
        for kind in self.kinds:
            inside: list[Answer] = []
            app: Any = None

            def handle(delivery: Delivery, body: bytes) -> int:
                # In a thread of its own, since a loop is running here.
                other = threading.Thread(target=lambda: inside.append(app.ask(headers())))
                other.start()
                other.join()
                return 200

            app = kind(handle, verifier=verifier())
            self.assertEqual(app.ask(headers())[0], 200)
            self.assertEqual((inside[0][0], inside[0][1]["retry-after"]), (503, "1"))
            self.assertEqual(app.ask(headers())[0], 200)
            self.assertEqual(len(inside), 1)

    def test_what_is_no_delivery_does_not_reach_the_application(self) -> None:
        for kind in self.kinds:
            app = kind(lambda *given: self.fail("called"), verifier=verifier(), max_body=100)
            self.assertEqual(app.ask(headers(), b"[]")[0], 401)
            self.assertEqual(app.ask({})[0], 401)
            self.assertEqual(app.ask(headers(timer_attempt="x"))[0], 400)
            self.assertEqual(app.ask(headers(timer_attempt="9" * 5000))[0], 400)
            self.assertEqual(app.ask(headers(timer_late_us="9" * 20))[0], 400)
            self.assertEqual(app.ask(headers(timer_due="soon"))[0], 400)
            self.assertEqual(app.ask(headers(), b"x" * 101)[0], 413)
            open_app = kind(lambda *given: self.fail("called"), verifier=None)
            self.assertEqual(open_app.ask({})[0], 400)

    def test_other_paths_go_by(self) -> None:
        for kind in self.kinds:
            app = kind(lambda *given: 200, verifier=verifier(), path="/hooks/")
            self.assertEqual([app.ask({}, path=path)[0] for path in ("/hooks", "/hooks/a")], [401, 401])
            with self.assertRaises(KeyError):
                app.ask({}, path="/hooksx")

    def test_a_store_with_coroutines_serves_asgi(self) -> None:
        inner = MemorySeen()

        class Slow:
            async def begin(self, id: str) -> Any:
                return inner.begin(id)

            async def done(self, id: str) -> None:
                inner.done(id)

            async def failed(self, id: str) -> None:
                inner.failed(id)

        calls: list[Any] = []
        app = Asgi(noting(calls, 200), verifier=verifier(), seen=Slow())
        self.assertEqual([app.ask(headers())[0] for _ in range(2)], [200, 200])
        self.assertEqual(len(calls), 1)

    def test_the_memory_is_bounded(self) -> None:
        seen = MemorySeen(most=3)
        for n in range(5):
            self.assertEqual(seen.begin(str(n)), "new")
            seen.done(str(n))
        self.assertEqual([seen.begin(str(n)) for n in (4, 3, 2, 1)], ["done", "done", "done", "new"])

    def test_a_caller_that_goes_is_no_delivery(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.fail("called")

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.fail("sent")

        receiver = ASGIReceiver(app, verifier=verifier())
        anyio.run(receiver, {"type": "http", "path": "/", "headers": []}, receive, send)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Delivered(unittest.TestCase):
    def test_deliveries_of_the_service_are_verified_and_handled_once(self) -> None:
        """The first answer of each timer is lost on purpose, so each is delivered twice and handled once."""
        handled: list[Delivery] = []
        dropped: set[str] = set()
        lock = threading.Lock()

        def app(environ: Any, start_response: Any) -> Iterable[bytes]:
            with lock:
                handled.append(environ[DELIVERY])
            start_response("200 OK", [])
            return [b""]

        secret = "whsec_" + base64.b64encode(os.urandom(32)).decode()
        receiver = WSGIReceiver(app, verifier=Verifier([OTHER, secret]))

        def losing(environ: Any, start_response: Any) -> Iterable[bytes]:
            status: list[Any] = []
            parts = [*receiver(environ, lambda *given: status.extend(given))]
            with lock:
                is_first = environ["HTTP_WEBHOOK_ID"] not in dropped
                dropped.add(environ["HTTP_WEBHOOK_ID"])
            if is_first and not environ.get("HTTP_TIMER_TEST"):
                start_response("500 Lost", [])
                return [b""]
            start_response(*status)
            return parts

        server = make_server("127.0.0.1", 0, losing, server_class=Server, handler_class=Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        with Service("--allow-private-targets") as service, Client(service.url, retries=SOON) as client:
            url = f"http://127.0.0.1:{server.server_port}/hooks"
            client.put_endpoint("shop", {"url": url, "secrets": [secret], "retry": {"fixed": "10ms"}})
            client.put_queue("orders", {"endpoint": "shop"})
            tested = client.test_endpoint("shop", {"body": 1})["attempt"]
            self.assertEqual((tested.get("result"), tested.get("detail")), ("done", "200"))
            self.assertTrue(handled[0].is_test)
            keys = [f"k/{n}ü" for n in range(20)]
            for key in keys:
                client.set("orders", key, in_=0, body={"key": key})
            until(lambda: client.queue("orders")["done"] == len(keys))
            self.assertEqual(sorted(delivery.key or "" for delivery in handled[1:]), sorted(keys))
            self.assertEqual({delivery.attempt for delivery in handled[1:]}, {1})
            timer = client.get("orders", keys[0])
            self.assertEqual(timer["attempt"], 2)
            of_timer = next(delivery for delivery in handled if delivery.key == keys[0])
            self.assertEqual(of_timer.id, timer["id"])


if __name__ == "__main__":
    unittest.main()
