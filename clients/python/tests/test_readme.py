"""The code of the README runs, from top to bottom, and mypy takes it: see check.sh."""

from __future__ import annotations

import contextlib
import io
import re
import unittest
from pathlib import Path
from typing import Any

from .support import ROOT, Service

BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[bool, str]]:
    """The blocks of Python of a page, and whether they run."""
    return [(not mark, text) for mark, text in BLOCK.findall(path.read_text("utf-8"))]


class Readme(unittest.TestCase):
    def test_its_code_runs(self) -> None:
        names: dict[str, Any] = {"__name__": "readme"}
        out = io.StringIO()
        found = blocks(ROOT / "README.md")
        with Service("--allow-private-targets") as service:
            for runs, text in found:
                code = compile(text.replace("http://127.0.0.1:7070", service.url), "README.md", "exec")
                if runs:
                    with contextlib.redirect_stdout(out):
                        exec(code, names)
        names["server"].server_close()
        said = out.getvalue().splitlines()
        self.assertGreaterEqual(len(found), 8)
        self.assertTrue(said[0].startswith("pending 20"), said)
        self.assertEqual(said[1:3], ["order-42", "pending"])
        self.assertEqual(said[3].split()[:2], ["revision_mismatch", "412"])
        self.assertIn('{"order":41}', said)
        self.assertIn("orders 3", said)
        self.assertIn("['2026-03-01T08:00:00.000000Z', '2026-03-02T08:00:00.000000Z', '2026-03-03T08:00:00.000000Z']", said)
        self.assertIn("order-50", said)
        self.assertIn("job-1 1 b'{\"n\":7}'", said)


if __name__ == "__main__":
    unittest.main()
