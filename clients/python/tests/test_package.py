"""The wheel is built, and is of use in an environment that has nothing but what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile
from pathlib import Path

from .support import ROOT, Service

TRY = """
import asyncio, sys
from countwheel import AsyncClient, Client

with Client(sys.argv[1]) as client:
    client.set("q", "k", in_="1h", url="http://127.0.0.1:9/")

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        print((await client.get("q", "k"))["state"])

asyncio.run(main())
"""


class Package(unittest.TestCase):
    def test_the_wheel_works_in_an_empty_environment(self) -> None:
        tools = os.environ.get("COUNTWHEEL_PYTHON_TOOLS")
        assert tools, "check.sh says where the tools are"
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            self._run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", text, cwd=ROOT)
            [wheel] = folder.glob("*.whl")
            with zipfile.ZipFile(wheel) as opened:
                names = set(opened.namelist())
                [metadata] = [opened.read(name).decode() for name in names if name.endswith("/METADATA")]
            self.assertTrue({"countwheel/py.typed", "countwheel/_sync/client.py"} <= names)
            self.assertEqual([name for name in names if not name.startswith(("countwheel/", "countwheel-"))], [])
            self.assertEqual(len([name for name in names if "/licenses/" in name]), 2)
            self.assertIn("License-Expression: MIT OR Apache-2.0", metadata)
            self.assertIn("Requires-Python: >=3.10", metadata)

            venv.create(folder / "empty", with_pip=False)
            python = str(folder / "empty" / "bin" / "python")
            self._run(
                *(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"),
                *("--quiet", "--no-index", "--find-links", f"{tools}/wheels", str(wheel)),
            )
            with Service("--allow-private-targets") as service:
                self.assertEqual(self._run(python, "-I", "-c", TRY, service.url, cwd=folder).strip(), "pending")

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        environment = dict(os.environ)
        if "--python" in command:
            # What is on the path of this process is not in the empty environment.
            del environment["PYTHONPATH"]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
