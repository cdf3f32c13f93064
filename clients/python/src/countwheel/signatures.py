"""Verifies the signatures of deliveries: Standard Webhooks 1.0.0, ``v1`` (HMAC with SHA-256)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Union

from ._errors import CountwheelError

#: How far ``webhook-timestamp`` may be from the receiver's clock by default, in seconds.
TOLERANCE = 300.0
PREFIX = "whsec_"


class BadSignature(CountwheelError):
    """A request that no secret has signed, or one that is too old or too new."""


class Verifier:
    """Says whether a delivery was signed with one of the secrets.

    Several secrets are given while one takes the place of another: a delivery counts if one of them has signed it.
    """

    def __init__(
        self,
        secrets: Union[str, Iterable[str]],
        *,
        tolerance: float = TOLERANCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        named = [secrets] if isinstance(secrets, str) else [*secrets]
        if not named:
            raise ValueError("a verifier needs a secret")
        self._keys = [_key(secret) for secret in named]
        self._tolerance = tolerance
        self._clock = clock

    def verify(self, headers: Mapping[str, str], body: bytes) -> None:
        """Raises :class:`BadSignature` unless the request is signed. The names of headers may have any case."""
        found = {name.lower(): value for name, value in headers.items()}
        try:
            id, stamp = found["webhook-id"], found["webhook-timestamp"]
            signatures = found["webhook-signature"]
        except KeyError as error:
            raise BadSignature(f"the request has no {error.args[0]}") from None
        if not id:
            raise BadSignature("webhook-id is empty")
        if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
            raise BadSignature("webhook-timestamp is no number of seconds")
        signed = b"%b.%b.%b" % (id.encode("latin-1", "replace"), stamp.encode("ascii"), body)
        expected = [hmac.new(key, signed, hashlib.sha256).digest() for key in self._keys]
        is_right = False
        # All are compared, so the time that this takes does not say which one is right.
        for signature in signatures.split(" "):
            version, comma, text = signature.partition(",")
            if version != "v1" or not comma:
                continue
            try:
                given = base64.b64decode(text.encode("ascii"), validate=True)
            except (binascii.Error, ValueError):
                continue
            for right in expected:
                is_right |= hmac.compare_digest(right, given)
        if not is_right:
            raise BadSignature("no signature is that of a secret")
        if abs(self._clock() - int(stamp)) > self._tolerance:
            raise BadSignature(f"webhook-timestamp is more than {self._tolerance:g} s from the clock of the receiver")


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The ``webhook-signature`` of a request, as the service makes it. For tests of receivers."""
    signed = b"%b.%d.%b" % (id.encode("latin-1"), timestamp, body)
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def _key(secret: str) -> bytes:
    try:
        if not secret.startswith(PREFIX):
            raise ValueError
        key = base64.b64decode(secret[len(PREFIX) :].encode("ascii"), validate=True)
        if not 24 <= len(key) <= 64:
            raise ValueError
    except ValueError:
        raise ValueError(f"a secret is {PREFIX} and the base64 of 24 to 64 bytes") from None
    return key
