"""The one table of fields that rest: named by the documents, filled by parts that are not built yet.

The documents take their values from here, so a field leaves this table in the change that fills it. Paths
are dotted keys below the document, `rows[]` stands for every row of a list. A test watches every other
field of the documents change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

STATE = "state"
HANDOFF = "handoff"
CLUSTER = "cluster"
STANDBY_READY = "standby ready"


@dataclass(frozen=True, slots=True)
class Resting:
    """One field with its resting value and the part of the program that fills it."""

    path: str
    value: Any
    filled_by: str


RESTING: Mapping[str, tuple[Resting, ...]] = MappingProxyType(
    {
        STATE: (
            Resting("refused", 0, "predictive admission"),
            Resting("admission.mode", "open", "predictive admission"),
        ),
        HANDOFF: (Resting("counters.refused", 0, "predictive admission"),),
        CLUSTER: (),
        STANDBY_READY: (),
    }
)


def with_resting(document: str, body: dict[str, Any]) -> dict[str, Any]:
    """Puts the resting values of `document` into `body`, where it has no value of its own."""
    for field in RESTING[document]:
        _rest(body, field.path.split("."), value=field.value)
    return body


def _rest(place: dict[str, Any], path: Sequence[str], *, value: Any) -> None:
    name, *below = path
    if not below:
        place.setdefault(name, value)
    else:
        _rest(place.setdefault(name, {}), below, value=value)
