"""A statement that a recipe was verified: in-toto Statement v1 with its test-result predicate, in a DSSE envelope where
a key is given (https://github.com/in-toto/attestation, https://github.com/secure-systems-lab/dsse)."""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import platform
from typing import Any

from . import digests
from .document import Recipe
from .verification import Verdict

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD = "application/vnd.in-toto+json"


def statement(recipe: Recipe, verdict: Verdict, corpus: str | None) -> dict[str, Any]:
    """Of a verdict that holds; ValueError of another."""
    import torch

    from step_oracle import __version__, device

    if not verdict.ok:
        raise ValueError(f"{verdict.kept} of {verdict.total} promises hold: there is nothing to attest")
    if verdict.resumed_from is not None or verdict.first != 0:
        raise ValueError(
            f"the walk went on from the checkpoint after step {verdict.resumed_from}: only a walk of all steps in one "
            "process is attested; give an empty folder, or leave --folder out"
        )
    data = pathlib.Path(recipe.path).read_bytes()
    if digests.of_bytes(data.removesuffix(b"\n")) != recipe.digest:
        raise ValueError(f"{recipe.path} was changed while it was verified: attest it again")
    asked = [s for s in recipe.promises if s <= verdict.last]
    host = device.extension().isas()
    return {
        "_type": STATEMENT,
        "subject": [
            {
                "name": pathlib.Path(recipe.path).name,
                "digest": {"sha256": hashlib.sha256(data).hexdigest(), "blake3": recipe.digest},
            }
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "result": "PASSED",
            "configuration": [] if corpus is None else [
                {"name": pathlib.Path(corpus).name, "digest": {"blake3": recipe.root.block("corpus").raw("blake3")}}
            ],
            "passedTests": [f"state after step {s}: {recipe.promises[s]}" for s in asked],
            "failedTests": [],
            "promises": {"kept": verdict.kept, "total": verdict.total, "of": len(recipe.promises)},
            "losses": verdict.losses,
            "verifier": {"name": "step-oracle", "version": __version__, "torch": str(torch.__version__)},
            "host": {
                "machine": platform.machine(),
                "system": platform.system(),
                "isa": host["active"],
                "threads": host["threads"],
            },
        },
    }


def _pae(payload: bytes) -> bytes:
    """What a DSSE signature signs."""
    kind = PAYLOAD.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise ValueError(
            "signing needs the package cryptography, which is not installed: pip install cryptography"
        ) from None
    return serialization


def sign(value: dict[str, Any], key: str) -> dict[str, Any]:
    """A DSSE envelope, signed with an ed25519 private key (PEM)."""
    serialization = _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(pathlib.Path(key).read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{key} is no private key in PEM without a password: {error}") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError(f"{key} is no ed25519 key; make one with: openssl genpkey -algorithm ed25519 -out {key}")
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    payload = json.dumps(value, sort_keys=True).encode()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD,
        "signatures": [
            {"keyid": hashlib.sha256(public).hexdigest(), "sig": base64.b64encode(private.sign(_pae(payload))).decode()}
        ],
    }


def open_envelope(envelope: dict[str, Any], public_key: str) -> dict[str, Any]:
    """The statement of an envelope whose signature is that of the public key (PEM). ValueError of any other."""
    serialization = _cryptography()
    from cryptography.exceptions import InvalidSignature

    key = serialization.load_pem_public_key(pathlib.Path(public_key).read_bytes())
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        if envelope["payloadType"] != PAYLOAD:
            raise ValueError(f"the envelope holds {envelope['payloadType']!r}, not {PAYLOAD}")
        key.verify(base64.b64decode(envelope["signatures"][0]["sig"], validate=True), _pae(payload))
    except InvalidSignature:
        raise ValueError("the signature is not of this key, or the statement was changed") from None
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"this is no DSSE envelope: {error}") from None
    found: dict[str, Any] = json.loads(payload)
    return found
