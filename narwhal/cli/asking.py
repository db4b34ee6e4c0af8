"""How commands ask routers: one JSON exchange, the control key, what a refusal says and whom it names.

The key goes to the router that the user (or the lease record) names and to the owner that a 503 of such a
router names: whoever names one has been sent the key already. It never follows from https to plain http.
What a router tells is for a terminal: what is not printable in it arrives here as its escape.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from narwhal.cli.told import LIFECYCLE, Page
from narwhal.config import urls
from narwhal.config.secret import secret
from narwhal.errors import ConfigError, NarwhalError
from narwhal.model.plain_text import escaped_document

DEFAULT_ROUTER: Final = "http://127.0.0.1:8000"
ROUTER_TWIN: Final = "NARWHAL_ROUTER"
KEY_TWIN: Final = "NARWHAL_CONTROL_KEY_ENV"
ROUTER_S: Final = 5.0
"""A document is read from memory: an answer that takes longer is none."""
ORDER_S: Final = 15.0
HOPS: Final = 3
"""Owners that are followed: more changes than these in one order are no hand-over but a mistake."""

MOST_BYTES: Final = 16 * 1024 * 1024
"""Far above the document of the largest fleet."""
NOT_ITSELF: Final = (
    " without a word of a router's: a proxy, or no router of a cluster (--router names one itself)"
)

Document = dict[str, Any]


class CommandFailed(NarwhalError):
    """What was asked for did not come about; the message says why (exit status 1)."""


class NoAnswer(CommandFailed):
    """Nobody was heard: what was ordered may or may not have been done."""


@dataclass(frozen=True, slots=True)
class Order:
    """A POST. `told`: the document of its answer. `timeout_s`: until that answer."""

    path: str
    body: Mapping[str, Any]
    told: Page = LIFECYCLE
    timeout_s: float = ORDER_S


@dataclass(frozen=True, slots=True)
class Answer:
    """`url`: the router that gave it. `body` is empty where it was no JSON object; `document` is the document
    that it tells, None for none."""

    url: str
    status: int
    body: Document
    document: Document | None = None

    @property
    def other_owner(self) -> str:
        """The owner that a refusal names, "" for none or for the router that was asked."""
        owner = self.body.get("owner")
        named = str(owner.get("url") or "") if isinstance(owner, dict) else ""
        return "" if self.status != 503 or named == self.url else named

    @property
    def why(self) -> str:
        """The router's own sentence; for what an operator's command line mends, how."""
        match self.status:
            case 401:
                return (
                    "the control key is wrong or missing: name its variable with --control-key-env (and its "
                    "control listener with --router, where it has one)"
                )
            case 403:
                return "without a control key it takes orders from its own host only"
            case 404 | 405:
                return "this router knows no such order (an older version, or its control port is another)"
        return _sentence(self.body) or f"{self.url} answered {self.status}{NOT_ITSELF}"


def named_router(given: str | None, env: Mapping[str, str]) -> str:
    """The router that --router or its twin names, "" for none. Raises ConfigError for what is no URL."""
    named, by = (given, "--router") if given is not None else (env.get(ROUTER_TWIN, "").strip(), ROUTER_TWIN)
    if not named and given is None:
        return ""
    try:
        return urls.checked(named)
    except urls.UrlProblem as problem:
        raise ConfigError(f"{by} {problem}") from None


def control_key(given: str | None, env: Mapping[str, str]) -> str:
    """The value of the variable that --control-key-env or its twin names, "" where neither was given."""
    if given is not None:
        return secret(env, given, named_by="--control-key-env")
    named = env.get(KEY_TWIN, "").strip()
    return secret(env, named, named_by=KEY_TWIN) if named else ""


async def router_document(url: str, page: Page, *, timeout_s: float = ROUTER_S) -> Document:
    """One JSON document of a router. Raises CommandFailed, NoAnswer where nobody was heard."""
    status, body = await _exchange(url, page.path, within_s=timeout_s)
    if status != 200:
        why = f": {sentence}" if (sentence := _sentence(body)) else NOT_ITSELF
        raise CommandFailed(f"{url}{page.path} answered {status}{why}")
    if wrong := page.wrong(body):
        raise CommandFailed(f"{url}{page.path} answered 200, but not with a {page.schema} document ({wrong})")
    return body


async def order(url: str, given: Order, *, key: str) -> Answer:
    """The answer, whatever its status. Raises NoAnswer; CommandFailed for a 200 that tells no document."""
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    sent = {"json": dict(given.body), "headers": headers}
    status, body = await _exchange(url, given.path, within_s=given.timeout_s, **sent)
    wrong = given.told.wrong(body)
    if status == 200 and wrong:
        raise CommandFailed(
            f"{url}{given.path} answered 200, but not with a {given.told.schema} document ({wrong}): "
            "whether the order was taken is not known"
        )
    return Answer(url, status, body, None if wrong else body)


async def _exchange(url: str, path: str, *, within_s: float, **sent: Any) -> tuple[int, Document]:
    """Status and JSON object of the answer, {} where it has none; `sent` makes it an order. Raises NoAnswer;
    CommandFailed for an answer that is longer than any of a router."""
    body = bytearray()
    connect = httpx.Timeout(within_s, connect=min(ROUTER_S, within_s))
    try:
        async with (
            asyncio.timeout(within_s),
            httpx.AsyncClient(trust_env=False, timeout=connect) as client,
            client.stream("POST" if sent else "GET", f"{url}{path}", **sent) as answer,
        ):
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise CommandFailed(f"{url}{path} answered over {MOST_BYTES} bytes: no router")
    except TimeoutError:
        raise NoAnswer(f"{url} gives no answer within {within_s:g} s") from None
    except httpx.HTTPError as error:
        raise NoAnswer(f"{url} gives no answer: {_words(error)}") from None
    return answer.status_code, _object(bytes(body))


def _object(body: bytes) -> Document:
    """{} for what is no JSON object, or one too deep to be one of a router."""
    try:
        found = escaped_document(json.loads(body))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(body: Document) -> str:
    """A router's own words on what it refuses, "" for none."""
    error = body.get("error")
    return str((error.get("message") if isinstance(error, dict) else error) or "")


async def order_owner(url: str, given: Order, *, key: str) -> Answer:
    """As `order`, of the owner: a 503 that names another router is followed, a few times."""
    answer = await order(url, given, key=key)
    for _ in range(HOPS):
        owner = answer.other_owner
        if not owner:
            break
        answer = await order(followed(answer.url, owner), given, key=key)
    return answer


def followed(asked: str, owner: str) -> str:
    """The URL that `asked` named. Raises CommandFailed where it must not be followed."""
    if asked.startswith("https:") and not owner.startswith("https:"):
        raise CommandFailed(
            f"{asked} names {owner} as owner, which is not encrypted: if that is right, pass it as --router"
        )
    try:
        return urls.checked(owner)
    except urls.UrlProblem as problem:
        raise CommandFailed(f"{asked} names an owner at no usable URL: it {problem}") from None


def _words(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
