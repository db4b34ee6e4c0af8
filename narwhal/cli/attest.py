"""`narwhal-attest`: the sidecar beside one engine. Exit status 0 clean, 1 the engine is not the document's,
2 wrong usage or document (also: port in use)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from narwhal import __version__
from narwhal.cli.problems import tell_problems
from narwhal.config import urls
from narwhal.config.attestation import AttestedDocument, read_document
from narwhal.config.secret import secret
from narwhal.errors import ConfigError
from narwhal.runtime.attest import AttestOptions, attest

PROGRAM = "narwhal-attest"

_EPILOG = """\
The document says what the engine was built and started with, and where each value was read:

  {"schema": "narwhal.attestation", "schema_version": 1,
   "contract": {"vllm_version": "0.32.0", "kv_heads": 8},
   "sources": {"vllm_version": "pip show vllm", "kv_heads": "config.json"}}

It is served at /v1/attestation with the live process and a digest, and only as long as that process lives.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Problems go to standard error, one line each, without a traceback."""
    try:
        given = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    except SystemExit as ending:
        return int(ending.code or 0)
    try:
        return attest(*_checked(given, os.environ))
    except ConfigError as error:
        tell_problems(PROGRAM, error)
        return 2


def _checked(given: argparse.Namespace, env: Mapping[str, str]) -> tuple[AttestedDocument, AttestOptions]:
    """Raises ConfigError with every problem."""
    problems: list[str] = []
    document, base, key = None, "", ""
    try:
        document = read_document(given.document)
    except ConfigError as error:
        problems += error.problems
    try:
        base = urls.checked(given.engine_base)
    except urls.UrlProblem as problem:
        problems.append(f"--engine-base {problem}")
    try:
        if given.engine_api_key_env:
            key = secret(env, given.engine_api_key_env, named_by="--engine-api-key-env")
    except ConfigError as error:
        problems += error.problems
    if not 0 <= given.port <= 65535:
        problems.append(f"--port must be 0 (any free port) to 65535, got {given.port}")
    if not 0 < given.timeout_s < float("inf"):
        problems.append(f"--timeout-s must be finite seconds > 0, got {given.timeout_s:g}")
    if problems or document is None:
        raise ConfigError(problems)
    host = given.host.removeprefix("[").removesuffix("]")
    return document, AttestOptions(base, host, given.port, given.timeout_s, given.rebind, key)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Vouches for one live engine process: what it is, and that it is still the same one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--document", required=True, metavar="PATH", help="the document to attest")
    add("--engine-base", required=True, metavar="URL", help="the engine's base URL")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=int, default=8010, help="(8010; 0: any free port, printed)")
    add("--timeout-s", type=float, default=5.0, metavar="S", help="bounds one look at the engine (5)")
    add("--rebind", action="store_true",
        help="follow the engine to its next process of that version (else: 503 until restarted)")  # fmt: skip
    add("--engine-api-key-env", default="", metavar="NAME", help="variable with the engine's key")
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
