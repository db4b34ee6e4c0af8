"""The options of `narwhal-serve`: one table for parser, environment twins, `config show`, docs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from narwhal.config.rules import (
    ANYTHING,
    AT_LEAST_ONE,
    NOT_BLANK,
    NOT_NEGATIVE,
    POSITIVE,
    OneOf,
    Rule,
    Shaped,
    Span,
)
from narwhal.model.settings import LeaseTimings

ENV_PREFIX: Final = "NARWHAL_"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")

WORD: Final = Shaped(r"[A-Za-z0-9._:-]{1,128}", "1 to 128 of A-Z a-z 0-9 . _ : -")
CLUSTER_NAME: Final = Shaped(r"[A-Za-z0-9._-]{1,128}", "1 to 128 of A-Z a-z 0-9 . _ -")
VOTERS: Final = Shaped(
    r"[A-Za-z0-9._:-]{1,128}(,[A-Za-z0-9._:-]{1,128})+", "two or more router IDs with commas between"
)
VARIABLE: Final = Shaped(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind`: text, integer, number, flag, url or store (a --redis-url).

    `default` is None where there is none or it is computed (`default_words` says how). `fleet_field` is
    the field of the fleet file that stands between environment and default. `needs_store`: an error
    without --redis-url.
    """

    name: str
    kind: str
    default: Any
    doc: str
    rule: Rule = ANYTHING
    default_words: str = ""
    fleet_field: str = ""
    needs_store: bool = False
    required: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def twin(self) -> str:
        """The environment variable that means the same."""
        return ENV_PREFIX + self.name.upper().replace("-", "_")

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


_TIMINGS: Final = LeaseTimings()

OPTIONS: Final = (
    Option("fleet", "text", None, "The fleet file.", rule=NOT_BLANK, required=True),
    Option("host", "text", "127.0.0.1", "Address to listen on; `::` for all.", rule=NOT_BLANK),
    Option(
        "port", "integer", 8000, "Port to listen on; 0 takes a free one and prints it.", rule=Span(0, 65535)
    ),
    Option(
        "control-host",
        "text",
        None,
        "Address of the control listener.",
        rule=NOT_BLANK,
        default_words="as `--host`",
    ),
    Option(
        "control-port",
        "integer",
        None,
        "Port of a second listener, which alone serves /narwhal/ and /metrics then; 0 takes a free one and "
        "prints it.",
        rule=Span(0, 65535),
        default_words="one listener for everything",
    ),
    Option(
        "control-key-env",
        "text",
        None,
        "Variable that holds the key for POSTs below /narwhal/; without it only this host may send them.",
        rule=VARIABLE,
    ),
    Option("log-level", "text", "info", "Least level that is logged.", rule=OneOf(LOG_LEVELS)),
    Option("log-format", "text", "text", "Log lines for people or JSON objects.", rule=OneOf(LOG_FORMATS)),
    Option(
        "state-path",
        "text",
        None,
        "Checkpoint file.",
        rule=NOT_BLANK,
        fleet_field="recovery.state_path",
    ),
    Option(
        "journal",
        "text",
        None,
        "Journal file.",
        rule=NOT_BLANK,
        default_words="`journal.jsonl` beside the checkpoint file",
    ),
    Option(
        "max-concurrent",
        "integer",
        None,
        "Requests in flight at most.",
        rule=AT_LEAST_ONE,
        fleet_field="serving.max_connections",
    ),
    Option(
        "graceful-timeout",
        "number",
        None,
        "Seconds that open streams get at a clean shutdown.",
        rule=NOT_NEGATIVE,
        fleet_field="serving.graceful_timeout_s",
    ),
    Option(
        "resume",
        "flag",
        None,
        "Start from the saved state instead of the configured split.",
        fleet_field="recovery.resume",
    ),
    Option(
        "redis-url",
        "store",
        None,
        "The shared store: redis://, rediss://, unix:// or redis+sentinel://host:port,host:port/service.",
    ),
    Option("redis-password-env", "text", None, "Variable that holds the store's password.", rule=VARIABLE),
    Option(
        "redis-min-replicas",
        "integer",
        None,
        "Replicas of the store that must confirm lease and snapshots (WAIT). 0 is warned about.",
        rule=NOT_NEGATIVE,
        needs_store=True,
        default_words="all that were ever seen; with a Sentinel beside each node ⌊(replicas + 1) / 2⌋",
    ),
    Option(
        "cluster",
        "text",
        None,
        "Name of the cluster in the store.",
        rule=CLUSTER_NAME,
        default_words="the model in lower case, all outside `[a-z0-9._-]` as `-`",
    ),
    Option("router-id", "text", None, "This router's ID.", rule=WORD, default_words="`<hostname>:<port>`"),
    Option(
        "advertise-url",
        "url",
        None,
        "Where clients and other routers reach this router.",
        default_words="`http://<hostname>:<port>`; with a loopback host that address",
    ),
    Option("standby", "flag", False, "Yield precedence to a router that owned before.", needs_store=True),
    Option("standby-of", "url", None, "As --standby, to the router at this URL.", needs_store=True),
    Option(
        "standby-probe-interval",
        "number",
        _TIMINGS.standby_probe_interval_s,
        "Seconds between looks at the lease, P.",
        rule=POSITIVE,
        needs_store=True,
    ),
    Option(
        "standby-takeover-after",
        "integer",
        4,
        "Polls of the owner's /ready in a row without control_ready after which a standby claims the lease.",
        rule=AT_LEAST_ONE,
        needs_store=True,
    ),
    Option(
        "standby-max-handoff-age",
        "number",
        30.0,
        "Seconds; with older state a new owner uses an engine only after a good health check.",
        rule=NOT_NEGATIVE,
        needs_store=True,
    ),
    Option(
        "lease-ttl",
        "number",
        _TIMINGS.ttl_s,
        "Seconds that a lease lasts without renewal, T.",
        rule=POSITIVE,
        needs_store=True,
    ),
    Option(
        "lease-renew-interval",
        "number",
        _TIMINGS.renew_interval_s,
        "Seconds between renewals, R.",
        rule=POSITIVE,
        needs_store=True,
    ),
    Option(
        "lease-safety-margin",
        "number",
        _TIMINGS.safety_margin_s,
        "Seconds that the owner stops before the lease could end, M.",
        rule=POSITIVE,
        needs_store=True,
    ),
    Option(
        "failsafe",
        "text",
        None,
        "IDs of the routers that may own, the same everywhere: while the store is down the owner goes on "
        "if all others pledge not to acquire.",
        rule=VOTERS,
        default_words="off",
        needs_store=True,
    ),
    Option(
        "no-warden",
        "flag",
        False,
        "With --redis-url: no parent process that gives the lease back and flushes the counters of a router "
        "that was killed.",
    ),
)

BY_KEY: Final = {option.key: option for option in OPTIONS}
