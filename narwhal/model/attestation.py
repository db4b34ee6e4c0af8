"""The attestation document (`narwhal.attestation` v1) as a sidecar serves it and a router reads it.

    {"schema", "schema_version", "contract": {field: value}, "sources": {field: where it was read},
     "engine": {"vllm_version", "process_start_time_seconds"}, "attestation_digest": "sha256:<64 hex>"}

The digest is over everything else in it. It finds a document that was cut or mended on the way; it is no
signature: the sidecar's address stands on the trusted control network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from narwhal.errors import AttestationInvalid
from narwhal.model.identity import EngineIdentity
from narwhal.model.numbers import unix_time
from narwhal.model.plain_text import is_plain, shown

SCHEMA: Final = "narwhal.attestation"
SCHEMA_VERSION: Final = 1
DIGEST: Final = "attestation_digest"


@dataclass(frozen=True, slots=True)
class Attestation:
    """What a sidecar attests. `contract`: field of `engine_contract` to its value, those that were read.

    `sources` has where each was read. `identity` is the process that the sidecar is bound to.
    """

    contract: Mapping[str, Any]
    sources: Mapping[str, str]
    identity: EngineIdentity

    def document(self) -> dict[str, Any]:
        """As it is served, with its digest."""
        rest = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "contract": dict(self.contract),
            "sources": dict(self.sources),
            "engine": {
                "vllm_version": self.identity.vllm_version,
                "process_start_time_seconds": self.identity.process_start,
            },
        }
        return {**rest, DIGEST: digest_of(rest)}

    @property
    def digest(self) -> str:
        return str(self.document()[DIGEST])


def digest_of(document: Mapping[str, Any]) -> str:
    """`sha256:` and hex over the document without its digest."""
    rest = {name: value for name, value in document.items() if name != DIGEST}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def read_attestation(body: bytes) -> Attestation:
    """A served document. Raises AttestationInvalid naming what is wrong with it."""
    document = _object(body)
    for name, wanted in (("schema", SCHEMA), ("schema_version", SCHEMA_VERSION)):
        if document.get(name) != wanted or isinstance(document.get(name), bool):
            raise AttestationInvalid(f"{name} must be {wanted!r}, got {document.get(name)!r:.80}")
    if document.get(DIGEST) != digest_of(document):
        raise AttestationInvalid(f"{DIGEST} is not the digest of the document")
    contract, sources = _mapping(document, "contract"), _mapping(document, "sources")
    return Attestation(
        contract=contract,
        sources={name: str(source) for name, source in sources.items()},
        identity=_identity(_mapping(document, "engine")),
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise AttestationInvalid("the document is no JSON object")
    return document


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _mapping(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise AttestationInvalid(f"{name} must be an object")
    return value


def _identity(engine: Mapping[str, Any]) -> EngineIdentity:
    version, start = engine.get("vllm_version"), engine.get("process_start_time_seconds")
    if not isinstance(version, str) or not version:
        raise AttestationInvalid("engine.vllm_version must be a nonempty string")
    if not is_plain(version):
        raise AttestationInvalid(f"engine.vllm_version is no version: {shown(version)}")
    if (seconds := unix_time(start)) is None:
        raise AttestationInvalid("engine.process_start_time_seconds must be a time in seconds")
    return EngineIdentity(version, seconds)
