"""How commands ask routers: one JSON exchange, the control key, what a refusal says and whom it names.

The key goes to the router that the user (or the lease record) names and to the owner that a 503 of such a
router names: whoever names one has been sent the key already. It never follows from https to plain http.
What a router tells is for a terminal: what is not printable in it arrives here as its escape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

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

Document = dict[str, Any]


class CommandFailed(NarwhalError):
    """What was asked for did not come about; the message says why (exit status 1)."""


class NoAnswer(CommandFailed):
    """Nobody was heard: what was ordered may or may not have been done."""


@dataclass(frozen=True, slots=True)
class Order:
    """A POST. `timeout_s`: until its answer."""

    path: str
    body: Mapping[str, Any]
    timeout_s: float = ORDER_S


@dataclass(frozen=True, slots=True)
class Answer:
    """`url`: the router that gave it. `body` is empty where it was no JSON object."""

    url: str
    status: int
    body: Document

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
                return "the control key is wrong or missing: name its variable with --control-key-env"
            case 403:
                return "without a control key it takes orders from its own host only"
            case 404 | 405:
                return "this router knows no such order (an older version, or its control port is another)"
        error = self.body.get("error")
        return str(error.get("message")) if isinstance(error, dict) else str(error or "no reason given")


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


async def router_document(url: str, path: str, *, timeout_s: float = ROUTER_S) -> Document:
    """One JSON document of a router. Raises CommandFailed, NoAnswer where nobody was heard."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=timeout_s) as client:
            answer = await client.get(f"{url}{path}")
        body = answer.json()
    except httpx.HTTPError as error:
        raise NoAnswer(f"{url} gives no answer: {_words(error)}") from None
    except ValueError:
        raise CommandFailed(f"{url}{path} answered {answer.status_code} without JSON: no router?") from None
    if answer.status_code != 200 or not isinstance(body, dict):
        raise CommandFailed(f"{url}{path} answered {answer.status_code}: no router of a cluster?")
    told: Document = escaped_document(body)
    return told


async def order(url: str, given: Order, *, key: str) -> Answer:
    """The answer, whatever its status. Raises NoAnswer."""
    headers = {b"authorization": f"Bearer {key}".encode()} if key else {}
    timeout = httpx.Timeout(given.timeout_s, connect=ROUTER_S)
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=timeout) as client:
            answer = await client.post(f"{url}{given.path}", json=dict(given.body), headers=headers)
    except httpx.HTTPError as error:
        raise NoAnswer(f"{url} gives no answer: {_words(error)}") from None
    try:
        found = answer.json()
    except ValueError:
        found = None
    return Answer(url, answer.status_code, escaped_document(found) if isinstance(found, dict) else {})


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
