"""What needs no connection: waits, times, names, and what an answer means."""

from __future__ import annotations

import unittest
from datetime import datetime, timedelta, timezone
from unittest import mock

from countwheel import CountwheelError, NotCountwheel, Problem, Retries, TimedOut, read_time
from countwheel._encode import duration, query, segment, time, to_json
from countwheel._errors import Cut
from countwheel._exchange import Answer, Attempts, Call, retry_after, server_of


class Encoding(unittest.TestCase):
    def test_durations_keep_their_microseconds(self) -> None:
        self.assertEqual(duration(timedelta(seconds=1.5)), 1500)
        self.assertEqual(duration(timedelta(hours=-1)), -3_600_000)
        self.assertEqual(duration(timedelta(microseconds=1_000_001)), "1000001us")
        self.assertEqual(duration(timedelta(microseconds=-1)), "-1us")
        self.assertEqual(duration("1h 30m"), "1h 30m")

    def test_times_are_in_utc(self) -> None:
        at = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        self.assertEqual(time(at), "2026-03-01T06:30:00Z")
        self.assertEqual(read_time("2026-03-01T06:30:00.000001Z"), at + timedelta(microseconds=1))

    def test_names_are_escaped_for_paths_and_queries(self) -> None:
        self.assertEqual(segment("a/b:fire?%ü"), "a%2Fb%3Afire%3F%25%C3%BC")
        self.assertEqual([segment("."), segment(".."), segment("..x")], ["%2E", "%2E%2E", "..x"])
        self.assertEqual(query({"a": "x&y", "b": None, "c": ["d", "e"], "n": 0}), "?a=x%26y&c=d%2Ce&n=0")

    def test_json_is_the_same_each_time(self) -> None:
        self.assertEqual(to_json({"in": timedelta(seconds=1), "b": ["ü"]}), b'{"in":1000,"b":["\\u00fc"]}')


class Servers(unittest.TestCase):
    def test_the_host_is_named_as_the_url_has_it(self) -> None:
        for url, host, port, name in (
            ("http://[::1]:7070", b"::1", 7070, "[::1]:7070"),
            ("HTTPS://Timers.Example/", b"timers.example", 443, "timers.example"),
            ("http://timers.example:80", b"timers.example", 80, "timers.example"),
            ("https://b\u00fccher.example:8443/x/", b"xn--bcher-kva.example", 8443, "xn--bcher-kva.example:8443"),
        ):
            server = server_of(url)
            self.assertEqual((server.host, server.port, server.name), (host, port, name))
        self.assertEqual(server_of("http://x/a/").url("/v1").target, b"/a/v1")


class Waiting(unittest.TestCase):
    def test_waits_are_drawn_between_nothing_and_a_bound_that_doubles(self) -> None:
        retries = Retries(first=0.1, cap=1.0)
        for failures, bound in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (5000, 1.0)):
            drawn = [retries.delay(failures) for _ in range(400)]
            self.assertGreaterEqual(min(drawn), 0.0)
            self.assertLessEqual(max(drawn), bound)
            self.assertGreater(max(drawn), bound * 0.8)
            self.assertLess(min(drawn), bound * 0.2)
        self.assertGreaterEqual(retries.delay(1, 7.0), 7.0)

    def test_retry_after_is_read_in_both_forms(self) -> None:
        def read(text: str) -> float | None:
            return retry_after(Answer(503, {"retry-after": text}))

        self.assertEqual(read("7"), 7.0)
        self.assertIsNone(read("-7"))
        self.assertIsNone(read("soon"))
        with mock.patch("time.time", return_value=784111777.0):
            self.assertEqual(read("Sun, 06 Nov 1994 08:49:47 GMT"), 10.0)
            self.assertEqual(read("Sun, 06 Nov 1994 08:49:27 GMT"), 0.0)
        self.assertIsNone(retry_after(Answer(503, {})))

    def test_attempts_end_with_their_total(self) -> None:
        now = [0.0]
        attempts = Attempts(Call("GET", "/x", changes=False), Retries(total=10.0, first=0.0), lambda: now[0])
        attempts.failed(Cut("cut"))
        now[0] = 10.0
        with self.assertRaises(Exception):
            attempts.failed(Cut("cut"))

    def test_an_attempt_that_the_total_cuts_hides_no_failure_before(self) -> None:
        def last_of(call: Call, before: CountwheelError, at: float) -> BaseException:
            now = [0.0]
            attempts = Attempts(call, Retries(total=10.0, first=0.0), lambda: now[0])
            attempts.failed(before)
            now[0] = at
            try:
                attempts.failed(TimedOut("no answer within 10 s", sent=True))
            except CountwheelError as error:
                return error
            return TimedOut("there is time for another", sent=True)

        proxy = NotCountwheel("502 with no code of Countwheel", status=502)
        busy = Problem(429, {"code": "overloaded"})
        read, change = Call("GET", "/x", changes=False), Call("PUT", "/x", repeatable=True)
        self.assertIsInstance(last_of(read, proxy, 10.0), NotCountwheel)
        self.assertIsInstance(last_of(read, busy, 10.0), Problem)
        self.assertIsInstance(last_of(read, proxy, 5.0), TimedOut)
        # What was refused before is not what became of a change that nobody answered.
        self.assertIsInstance(last_of(change, busy, 10.0), TimedOut)

    def test_a_wait_past_the_total_is_not_begun(self) -> None:
        attempts = Attempts(Call("GET", "/x"), Retries(total=10.0))
        with self.assertRaises(Problem):
            attempts.failed(Problem(429, {"code": "overloaded"}, retry_after=11.0))

    def test_the_number_of_attempts_is_bounded(self) -> None:
        attempts = Attempts(Call("GET", "/x"), Retries(attempts=2))
        attempts.failed(Problem(429, {"code": "overloaded"}))
        with self.assertRaises(Problem):
            attempts.failed(Problem(429, {"code": "overloaded"}))


if __name__ == "__main__":
    unittest.main()
