"""Streams of events: how they are read, resumed and bounded."""

from __future__ import annotations

import socket
import time
import unittest
from typing import Any

from countwheel import Event, NotCountwheel, Problem, Retries, Unreachable
from countwheel._events import EventReader

from .support import ONCE, SOON, BothClients, Stub, answer, answers, read_request

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    data = text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(id: str, kind: str, data: str = '{"key": "k"}') -> str:
    return f"id: {id}\nevent: {kind}\ndata: {data}\n\n"


class Reading(unittest.TestCase):
    def test_events_are_read_however_the_bytes_are_cut(self) -> None:
        text = (
            "\ufeff: hello\n\nretry: 250\nid: 1\nevent: set\ndata: {\"key\":\ndata: \"ü\"}\n\n"
            "\r\nid:2\rdata:{}\revent:gap\r\r: more\r\nid: 3\r\nevent: done\r\ndata: {\"n\": 1}\r\n\r\ndata: {}"
        ).encode()
        expected = [Event("1", "set", {"key": "ü"}), Event("2", "gap", {}), Event("3", "done", {"n": 1})]
        for size in (1, 2, 3, 7, 1000):
            reader = EventReader()
            found = [
                event for start in range(0, len(text), size) for event in reader.feed(text[start : start + size])
            ]
            self.assertEqual(found, expected, size)
            self.assertEqual(reader.retry, 0.25)

    def test_an_event_is_bounded(self) -> None:
        for part in (b"x" * 65536, b"data: " + b"x" * 65536 + b"\n", b":" + b"x" * 65536):
            reader = EventReader()
            with self.assertRaises(NotCountwheel):
                for _ in range(100):
                    list(reader.feed(part))

    def test_comments_without_end_take_no_memory(self) -> None:
        reader = EventReader()
        for _ in range(100):
            self.assertEqual(list(reader.feed(b": " + b"x" * 65536 + b"\n")), [])

    def test_an_event_that_is_no_object_of_json_is_an_error(self) -> None:
        for data in (b"[1]", b"{", b"x", b"[" * 100_000):
            with self.assertRaises(NotCountwheel):
                list(EventReader().feed(b"data: " + data + b"\n\n"))


class Streams(BothClients):
    def test_a_stream_is_resumed_after_its_last_event(self) -> None:
        asked: list[bytes] = []

        def act(peer: socket.socket, number: int) -> None:
            asked.append(read_request(peer))
            first = number % 3 * 2
            peer.sendall(HEAD + chunk(": hello\n\n" + event(f"a-{first + 1}", "set")))
            peer.sendall(chunk(event(f"a-{first + 2}", "gap" if number % 3 == 1 else "done") + "id: lost\ndata: {"))

        with Stub(act) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                asked.clear()
                events = client.events(queue="a b", prefix="o/", kinds=["set", "done"], after="a-0")
                found = [next(events) for _ in range(6)]
                events.close()
                self.assertEqual([event.id for event in found], [f"a-{n}" for n in range(1, 7)])
                self.assertEqual([event.kind for event in found], ["set", "done", "set", "gap", "set", "done"])
                self.assertTrue(asked[0].startswith(b"GET /v1/events?queue=a%20b&prefix=o%2F&kinds=set%2Cdone HTTP/1.1"))
                last = [
                    line for request in asked for line in request.split(b"\r\n") if line.startswith(b"Last-Event-ID")
                ]
                self.assertEqual(last, [b"Last-Event-ID: a-0", b"Last-Event-ID: a-2", b"Last-Event-ID: a-4"])

    def test_a_stream_without_events_is_resumed_where_it_says(self) -> None:
        asked: list[bytes] = []

        def act(peer: socket.socket, number: int) -> None:
            asked.append(read_request(peer))
            if number % 2:
                peer.sendall(HEAD + chunk(event("b", "set")))
            else:
                peer.sendall(HEAD + chunk(": \nid: a-7\n\nid: a-8\nevent: set\n"))

        with Stub(act) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                asked.clear()
                events = client.events()
                self.assertEqual(next(events).id, "b")
                events.close()
                self.assertNotIn(b"Last-Event-ID", asked[0])
                self.assertIn(b"Last-Event-ID: a-7\r\n", asked[1])

    def test_refusals_and_answers_of_others_end_the_stream(self) -> None:
        body = b'{"code": "malformed", "status": 400, "detail": "an id of the future"}'
        for text, kind in (
            (answer("400 Bad", body, "application/problem+json"), Problem),
            (answer("200 OK", b"<html>", "text/html"), NotCountwheel),
            (HEAD + chunk("data: [1]\n\n"), NotCountwheel),
        ):
            with Stub(answers(text)) as stub:
                for _, client in self.each(stub.url, retries=SOON):
                    with self.assertRaises(kind):
                        next(client.events())

    def test_lines_without_end_end_the_stream(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(HEAD)
            while True:
                peer.sendall(chunk("x" * 60000))

        with Stub(act) as stub:
            for _, client in self.each(stub.url, retries=SOON):
                with self.assertRaises(NotCountwheel):
                    next(client.events())

    def test_a_service_that_stays_away_ends_the_stream(self) -> None:
        def act(peer: socket.socket, number: int) -> None:
            read_request(peer)
            peer.sendall(HEAD + chunk(event("1", "set")))

        for _, client in self.clients("http://127.0.0.1:1", retries=ONCE):
            with self.assertRaises(Unreachable):
                next(client.events())
        with Stub(act) as stub:
            both = self.clients(stub.url, retries=Retries(total=0.3, first=0.01, cap=0.02))
            streams: list[Any] = [client.events() for _, client in both]
            for stream in streams:
                self.assertEqual(next(stream).id, "1")
        for stream in streams:
            begun = time.monotonic()
            with self.assertRaises(Unreachable):
                for _ in range(3):
                    next(stream)
            self.assertLess(time.monotonic() - begun, 15.0)


if __name__ == "__main__":
    unittest.main()
