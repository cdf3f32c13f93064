"""Writes the parts of the package that are made from others.

``_types.py`` comes from the OpenAPI document of the service, and ``_sync`` from ``_async``. With ``--check`` nothing is
written, and a file that differs is an error.
"""

from __future__ import annotations

import ast
import difflib
import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
PACKAGE = HERE / "src" / "countwheel"
DOCUMENT = HERE.parent.parent / "docs" / "openapi.json"

TYPES_HEAD = '''"""The objects of the API. Made from its OpenAPI document by ``tools/generate.py``: change nothing here."""

import sys
from typing import Any, Literal, Union

if sys.version_info >= (3, 11):
    from typing import NotRequired, TypedDict
else:
    from typing_extensions import NotRequired, TypedDict
'''
#: The kinds of JSON.
PRIMITIVES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Types:
    """The schemas of a document as types of Python, each after those that it needs."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas
        self.done: dict[str, str] = {}
        self.under_way: list[str] = []

    def all(self, names: list[str]) -> str:
        """Those of these names, and what they need."""
        for name in names:
            self.define(name)
        parts = [TYPES_HEAD]
        for text in self.done.values():
            is_class = "class " in text or "class " in parts[-1]
            parts.append("\n\n" + text if is_class else "\n" + text)
        return "".join(parts)

    def define(self, name: str) -> None:
        if name in self.done:
            return
        if name in self.under_way:
            raise SystemExit(f"{name} is in itself: {self.under_way}")
        self.under_way.append(name)
        text = self.definition(name, self.schemas[name])
        self.under_way.pop()
        self.done[name] = text

    def definition(self, name: str, schema: dict[str, Any]) -> str:
        doc = " ".join(schema.get("description", "").split())
        if "properties" not in schema:
            comment = f"# {doc}\n" if doc else ""
            return f"{comment}{name} = {self.type(schema)}\n"
        required = set(schema.get("required", ()))
        fields = []
        for field, value in schema["properties"].items():
            text = self.type(value)
            fields.append((field, text if field in required else f"NotRequired[{text}]"))
        if all(field.isidentifier() and not keyword.iskeyword(field) for field, _ in fields):
            lines = [f"    {field}: {text}\n" for field, text in fields]
            return f'class {name}(TypedDict):\n    """{doc}"""\n\n' + "".join(lines)
        lines = [f'        "{field}": {text},\n' for field, text in fields]
        comment = f"\n# {doc}\n" if doc else "\n"
        return f'{comment}{name} = TypedDict(\n    "{name}",\n    {{\n' + "".join(lines) + "    },\n)\n"

    def type(self, schema: dict[str, Any]) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            self.define(name)
            return str(name)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                kinds: list[str] = []
                for one in schema[word]:
                    kind = self.type(one)
                    if kind not in kinds:
                        kinds.append(kind)
                return kinds[0] if len(kinds) == 1 else f"Union[{', '.join(kinds)}]"
        if "const" in schema:
            return f"Literal[{schema['const']!r}]".replace("'", '"')
        if "enum" in schema:
            return f"Literal[{', '.join(json.dumps(word) for word in schema['enum'])}]"
        form = schema.get("type")
        if isinstance(form, list):
            return f"Union[{', '.join(self.type({**schema, 'type': one}) for one in form)}]"
        if form == "array":
            return f"list[{self.type(schema.get('items', {}))}]"
        if form == "object":
            if schema.get("properties"):
                raise SystemExit(f"an object without a name in {self.under_way}")
            values = schema.get("additionalProperties")
            return f"dict[str, {self.type(values) if isinstance(values, dict) else 'Any'}]"
        return PRIMITIVES.get(str(form), "Any")


def names_used() -> list[str]:
    """The types that the package imports."""
    names: set[str] = set()
    for path in [*PACKAGE.glob("*.py"), *(PACKAGE / "_async").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "_types":
                names.update(name.name for name in node.names)
    return sorted(names)


#: Words of the asynchronous client, and what stands for them in the other one.
WORDS = {
    "AsyncClient": "Client",
    "AsyncConnectionPool": "ConnectionPool",
    "AsyncExitStack": "ExitStack",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_stream": "iter_stream",
    "enter_async_context": "enter_context",
    "_async": "_sync",
}


def synchronous(text: str) -> str:
    """The same code for threads."""
    text = re.sub(r"\basync (def|with|for)\b", r"\1", text)
    text = re.sub(r"\bawait ", "", text)
    text = re.sub(r"\b(" + "|".join(WORDS) + r")\b", lambda found: WORDS[found[0]], text)
    text = text.replace("import Iterable, Iterator,", "import Iterator,")
    head, _, rest = text.partition('"""\n')
    return f'{head}"""\n\n# Made from _async by tools/generate.py: change nothing here.\n{rest}'


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    named = [argument for argument in arguments if argument != "--check"]
    document = Path(named[0]) if named else DOCUMENT
    made = {PACKAGE / "_sync" / "client.py": synchronous((PACKAGE / "_async" / "client.py").read_text("utf-8"))}
    if document.exists():
        schemas = json.loads(document.read_text("utf-8"))["components"]["schemas"]
        made[PACKAGE / "_types.py"] = Types(schemas).all(names_used())
    else:
        print(f"{document} is not there: the types stay as they are", file=sys.stderr)
    status = 0
    for path, text in made.items():
        old = path.read_text("utf-8") if path.exists() else ""
        if old == text:
            continue
        if not is_check:
            path.write_text(text, "utf-8")
            continue
        status = 1
        lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "made anew", lineterm="")
        print("\n".join([*lines][:60]), file=sys.stderr)
        print("run python3 tools/generate.py", file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
