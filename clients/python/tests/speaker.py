"""Asks the servers of its arguments what it reads: one object of JSON a line, one answer a line.

    python3 speaker.py http://127.0.0.1:7070 ...

The answers are ``{"ok": …}`` with the answer of the API, ``{"no": code}``, or ``{"error": "kind: text"}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

try:
    import countwheel
except ImportError:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    import countwheel

from countwheel import Client, CountwheelError, Problem, Retries


def precondition(said: Any) -> dict[str, Any]:
    if said is None:
        return {}
    if said == "absent":
        return {"if_none_match": "*"}
    return {"if_match": said["revision"]}


def only_match(said: Any) -> Any:
    return precondition(said).get("if_match")


def answer(client: Client, said: dict[str, Any]) -> Any:
    do, queue, key = said["do"], said.get("queue"), said.get("key", "")
    if do == "drain":
        mode: Literal["fire", "hold", "remove"] = said["mode"]
        return client.drain(queue, mode)
    if do == "resume":
        return client.resume(queue)
    if do == "create_token":
        return client.create_token(said["name"], said["scopes"], namespace=said.get("namespace"))
    if do == "tokens":
        return {"tokens": client.tokens()}
    if do == "token":
        return client.token(said["id"])
    if do == "rotate_token":
        return client.rotate_token(said["id"], overlap=said.get("overlap"))
    if do == "revoke_token":
        return client.revoke_token(said["id"], if_match=only_match(said.get("if")))
    if do == "audit":
        return {"entries": [*client.audit(**said["filter"])]}
    if do == "put_namespace":
        return client.put_namespace(said["name"], {"quotas": said["quotas"]}, **precondition(said.get("if")))
    if do == "namespace":
        return client.namespace(said["name"])
    if do == "namespaces":
        return {"namespaces": client.namespaces()}
    if do == "remove_namespace":
        return client.remove_namespace(said["name"], if_match=only_match(said.get("if")))
    assert isinstance(queue, str)
    if do == "set":
        fields: dict[str, Any] = {"in_": said["in"], **precondition(said.get("if"))}
        for name in ("url", "retry", "body"):
            if said.get(name) is not None:
                fields[name] = said[name]
        return client.set(queue, key, **fields)
    if do == "move":
        return client.move(
            queue, key, in_=said.get("in"), by=said.get("by"), if_match=only_match(said.get("if"))
        )
    if do == "remove":
        return client.remove(
            queue, key, only_pending=bool(said.get("only_pending")), if_match=only_match(said.get("if"))
        )
    if do == "get":
        return client.get(queue, key)
    if do == "list":
        return {"items": [*client.list(queue)], "next": None}
    if do == "fire":
        return client.fire(queue, key)
    if do == "revive":
        return client.revive(queue, key, in_=said.get("in"))
    raise ValueError(f"there is no {do!r}")


def main(servers: list[str]) -> None:
    token = os.environ.get("COUNTWHEEL_TOKEN")
    with Client(servers, token=token, retries=Retries(total=30.0, first=0.02, cap=0.5)) as client:
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                said: dict[str, Any] = {"ok": answer(client, json.loads(line))}
            except Problem as error:
                said = {"no": error.code}
            except (CountwheelError, ValueError, TypeError, KeyError) as error:
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
