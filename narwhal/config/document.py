"""docs/configuration.md from the tables: `python -m narwhal.config.document > docs/configuration.md`.

A test keeps the file equal to this text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from narwhal.config.option_table import ENV_PREFIX, OPTIONS, Option
from narwhal.config.relations import ORDERS, RELATIONS
from narwhal.config.rules import REQUIRED, Field, Kind, Span
from narwhal.config.schema import OPTIONAL_BLOCKS, SECTIONS, fields_of
from narwhal.config.show import SCHEMA as SHOW_SCHEMA

_INTRODUCTION: Final = """\
# Configuration

<!-- Written by `python -m narwhal.config.document`: change the tables in narwhal/config, not this file. -->

One JSON file describes the fleet and is the same on every router. What differs per host is an option of
`narwhal-serve` or its environment twin. `narwhal config show --fleet fleet.json` prints every effective
value and where it came from (`{show}` v1).

A small fleet file:

```json
{{
  "schema": "narwhal.fleet",
  "schema_version": 1,
  "model": "Qwen/Qwen3-8B",
  "slo": {{"ttft_s": 1.0, "tpot_s": 0.05}},
  "engines": [
    {{"iid": "e0", "url": "http://10.0.0.1:8000", "role": "prefill"}},
    {{"iid": "e1", "url": "${{E1_URL}}", "role": "decode"}}
  ],
  "serving": {{"admission": "open"}}
}}
```

## The fleet file: rules

* Every problem is reported in one go, one line each, and ends the start with exit status 2:
  `fleet.json: serving.max_connections must be an integer, got "512"`.
* Unknown keys, wrong types, duplicate keys, NaN and Infinity are errors. A UTF-8 byte order mark and CRLF
  are fine. A key that begins with `_` is an annotation, anywhere. A section that is `null` is absent.
* An integer is a fine number; a float or a boolean is no integer. Durations are seconds.
* An order between two values is an error only when the file gives both; a default gives way:
  `request_timeout_s: 60` makes the prefill and first-token limits at most 60.
* `engines[].url` and `attestation_url` may be exactly `${{NAME}}`. The variable must be set, not blank, and
  hold no further reference. Elsewhere `${{...}}` is literal text. IPv6 addresses stand in brackets, a
  trailing `/` is dropped, two engines may not have one URL.
* A variable that an `*_env` field or `-env` option names is stripped; a control character in it is an error
  that does not show the value.
* Relative paths resolve from the working directory of the process.
* A field whose part this version does not have yet loads, and one warning names it; the tables say so.
* Pins that leave a leg no engine, or fewer than `min_prefill` or `min_decode` asks for, load with a warning.

## The fleet file: fields
"""

_OPTIONS: Final = """
## `narwhal-serve`

Each option has an environment twin; a flag comes before its twin, the twin before the fleet file, the file
before the default. Flags without a value take `true` or `false` as a twin. A blank twin is not given. An
unknown `{prefix}*` variable is warned of. `{prefix}PORT=tcp://...` (a Kubernetes service link;
`{prefix}CONTROL_PORT` likewise) is ignored with a warning: set `enableServiceLinks: false` in the pod's spec.
"""

_TIMINGS: Final = """
The timings must fit each other, with o = 0.8 s for one attempt at the store:
R + 2·o ≤ T − M, T − M ≥ 3·R, M ≥ 0.1·T, P ≤ R.

Options marked *store* are errors without `--redis-url`. Redis Cluster is not supported.

## Signals and exit status

SIGTERM and SIGINT shut down cleanly; SIGHUP reopens journal and log files.

| status | meaning |
| --- | --- |
| 0 | clean |
| 1 | crashed |
| 2 | wrong usage or configuration, port in use, `state_path` held by another live router |
| 3 | saved state of another kind or version, or the cluster serves another fleet |
"""

_TITLES: Final = {"": "Top level", "engines[]": "engines[]: one entry per engine"}


def render() -> str:
    """The whole document."""
    parts = [_INTRODUCTION.format(show=SHOW_SCHEMA)]
    parts += [_section(section) for section in SECTIONS]
    parts.append("\n### Relations\n\n" + "\n".join(f"* {line}" for line in _relations()) + "\n")
    parts.append(_OPTIONS.format(prefix=ENV_PREFIX))
    parts.append("\n" + _table(("option", "twin", "default", "rule", "meaning"), map(_option_row, OPTIONS)))
    parts.append(_TIMINGS)
    return "".join(parts)


def _section(section: str) -> str:
    title = _TITLES.get(section, section)
    optional = ", optional" if section in OPTIONAL_BLOCKS else ""
    rows = (_field_row(field) for field in fields_of(section).values())
    return f"\n### {title}{optional}\n\n" + _table(("field", "type", "default", "rule", "meaning"), rows)


def _table(head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [tuple(head), *rows]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    return "\n".join([lines[0], "|" + " --- |" * len(cells[0]), *lines[1:]]) + "\n"


def _field_row(field: Field) -> tuple[str, ...]:
    later = f" *Not acted on yet: {field.later}.*" if field.later else ""
    default = "required" if field.default is REQUIRED else _value(field.default)
    return f"`{field.name}`", _kind(field.kind), default, _escaped(field.rule.words), field.doc + later


def _kind(kind: Kind) -> str:
    return {
        Kind.INTEGER: "integer",
        Kind.NUMBER: "number",
        Kind.BOOLEAN: "boolean",
        Kind.TEXT: "string",
    }[kind]


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"`{value}`" if isinstance(value, str) and value else (repr(value) if value != "" else '""')


def _escaped(words: str) -> str:
    return words.replace("|", "\\|")


def _option_row(option: Option) -> tuple[str, ...]:
    default = option.default_words or _option_default(option)
    rule = _escaped(option.rule.words) if isinstance(option.rule, Span) or option.rule.words else ""
    store = " *(store)*" if option.needs_store else ""
    return f"`{option.flag}`", f"`{option.twin}`", default, rule, option.doc + store


def _option_default(option: Option) -> str:
    if option.fleet_field:
        return f"`{option.fleet_field}`"
    if option.required:
        return "required"
    return "none" if option.default is None else _value(option.default)


def _relations() -> Iterator[str]:
    for order in ORDERS:
        yield f"`{order.low}` {'<' if order.strict else '≤'} `{order.high}`"
    for relation in RELATIONS[1:]:
        yield (relation.__doc__ or "").strip().replace("\n    ", " ")
    yield ("Engines of one `shared_device.group`: 2 to 8, one GPU and allowance, utilizations sum within it.")
    yield "With an `engine_contract` every engine has its `attestation_url`."
    yield 'A contract is *complete* with all fields set, the image digest aside; "", 0 and null mean not set.'


if __name__ == "__main__":
    sys.stdout.write(render())
