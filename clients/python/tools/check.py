"""Runs the parts of the check beside each other, and shows what those say that fail. See ``check.sh``."""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.test_readme import blocks

HERE = Path(__file__).resolve().parent.parent


def parts() -> dict[str, list[str]]:
    python, cache = sys.executable, HERE / ".mypy_cache"
    cache.mkdir(exist_ok=True)
    readme = cache / "readme.py"
    readme.write_text("\n".join(code for _, code in blocks(HERE / "README.md")), "utf-8")
    found = {path.stem for path in (HERE / "tests").glob("test_*.py")}
    checks = {
        "mypy": [python, "-m", "mypy", "--cache-dir", str(cache), "src", "tools", "tests", str(readme)],
        "generated": [python, "tools/generate.py", "--check"],
    }
    # Those that take longest begin first.
    slow = ["test_worker", "test_hostile", "test_killed", "test_package"]
    others = sorted(found - set(slow))
    groups = [[test] for name in slow for test in classes(name)]
    groups += [[f"tests.{name}" for name in others[start::2]] for start in range(2)]
    for tests in groups:
        title = " ".join(test.removeprefix("tests.") for test in tests)
        checks[title] = [python, "-W", "error::DeprecationWarning", "-m", "unittest", *tests]
    return checks


def classes(module: str) -> list[str]:
    """The classes of tests of a module."""
    tree = ast.parse((HERE / "tests" / f"{module}.py").read_text("utf-8"))
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            functions = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            if any(name.startswith("test_") for name in functions):
                found.append(f"tests.{module}.{node.name}")
    return found


def main() -> int:
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        running = {}
        for name, command in parts().items():
            out = tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)
            process = subprocess.Popen(command, cwd=HERE, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            running[name] = (process, out)
        while running:
            ended = [name for name, (process, _) in running.items() if process.poll() is not None]
            if not ended:
                time.sleep(0.02)
                continue
            name = ended[0]
            process, out = running.pop(name)
            out.seek(0)
            text = out.read().strip()
            out.close()
            last = text.splitlines()[-1] if text else "ok"
            print(f"{name}: {last} ({time.monotonic() - begun:.1f} s)", flush=True)
            if process.returncode != 0:
                failed.append(name)
                print(text, flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
