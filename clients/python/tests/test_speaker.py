"""The speaker, which asks by lines what the sentences of the vocabulary say."""

from __future__ import annotations

import json
import subprocess
import sys
import unittest
from typing import Any

from .support import ROOT, Service


class Speaks(unittest.TestCase):
    def test_each_line_has_an_answer(self) -> None:
        with Service("--allow-private-targets") as service:
            speaker = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "speaker.py"), "http://127.0.0.1:1", service.url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert speaker.stdin is not None and speaker.stdout is not None
            with speaker, speaker.stdin as lines, speaker.stdout as answers:

                def ask(do: str, **said: Any) -> Any:
                    print(json.dumps({"do": do, "queue": "q", "key": "k", **said}), file=lines, flush=True)
                    return json.loads(answers.readline())

                url = "http://127.0.0.1:9/"
                once = {"schedule": ["1ms"], "max_attempts": 1}
                was = ask("set", **{"in": "2h", "if": "absent", "url": url, "retry": once})["ok"]
                self.assertEqual(ask("set", **{"in": "2h", "if": "absent", "url": url}), {"no": "exists"})
                revision = {"if": {"revision": was["revision"]}}
                moved = ask("move", by="-1h", **revision)["ok"]
                self.assertEqual(moved["old_due"], was["due"])
                self.assertEqual(ask("move", **{"in": "3h"}, **revision), {"no": "revision_mismatch"})
                self.assertEqual(ask("remove", **revision), {"no": "revision_mismatch"})
                self.assertEqual([timer["key"] for timer in ask("list")["ok"]["items"]], ["k"])
                self.assertEqual(ask("revive", **{"in": "2h"}), {"no": "conflict"})
                self.assertEqual(ask("drain", mode="hold")["ok"]["left"]["pending"], 1)
                self.assertEqual(ask("fire")["ok"]["old_due"], moved["due"])
                self.assertEqual(ask("remove", only_pending=True)["ok"]["was"], "pending")
                self.assertEqual(ask("get"), {"no": "not_found"})
                self.assertEqual(ask("resume")["ok"]["was"], {"mode": "hold"})
                self.assertEqual(ask("drain", queue=None, mode="fire")["ok"]["queue"], None)
                self.assertEqual(ask("resume", queue=None)["ok"]["was"], {"mode": "fire"})
                made = ask("put_namespace", name="a", quotas={"timers": 1}, **{"if": "absent"})["ok"]
                self.assertEqual(ask("put_namespace", name="a", quotas={}, **{"if": "absent"}), {"no": "exists"})
                self.assertEqual(ask("namespace", name="a")["ok"]["quotas"], {"timers": 1})
                names = [namespace["namespace"] for namespace in ask("namespaces")["ok"]["namespaces"]]
                self.assertEqual(names, ["a", "default"])
                revision = {"if": {"revision": made["revision"]}}
                self.assertEqual(ask("remove_namespace", name="a", **revision)["ok"]["namespace"], "a")
                self.assertIn("error", ask("dance"))


if __name__ == "__main__":
    unittest.main()
