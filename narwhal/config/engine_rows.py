"""Rules over the engine list: URLs, unique IDs, GPUs that engines share, attestation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from narwhal.config import urls
from narwhal.config.relations import Draft
from narwhal.config.rules import shown
from narwhal.config.schema import fields_of

GROUP_SIZES: Final = (2, 8)
ROUNDING: Final = 1e-9


def check_engines(draft: Draft, env: Mapping[str, str]) -> list[str]:
    """Resolves and checks the engines' URLs in place, then the rules between engines. Returns problems."""
    problems: list[str] = []
    for index in range(draft.engines):
        problems += _url(draft, f"engines[{index}].url", env=env)
        problems += _url(draft, f"engines[{index}].attestation_url", env=env)
    problems += _unique(draft, "iid", identity=lambda iid: iid)
    problems += _unique(draft, "url", identity=urls.same_place)
    return problems + _attested(draft) + _shared_devices(draft)


def _url(draft: Draft, path: str, *, env: Mapping[str, str]) -> list[str]:
    text = draft.values.get(path)
    if not text or not draft.sound(path):
        return []
    try:
        draft.values[path] = urls.checked(urls.resolve(text, env))
    except urls.UrlProblem as problem:
        draft.spoiled.add(path)
        return [f"{path} {problem}"]
    if name := urls.reference_in(text):
        draft.references[path] = name
    return []


def _unique(draft: Draft, name: str, *, identity: Any) -> list[str]:
    problems = []
    first: dict[Any, str] = {}
    for index in range(draft.engines):
        path = f"engines[{index}].{name}"
        value = draft.values.get(path)
        if value is None or not draft.sound(path):
            continue
        other = first.setdefault(identity(value), path)
        if other != path:
            problems.append(f"{path} is the same as {other}: {shown(value)}")
    return problems


def _attested(draft: Draft) -> list[str]:
    if "engine_contract" not in draft.blocks:
        return []
    paths = [f"engines[{index}].attestation_url" for index in range(draft.engines)]
    return [
        f"{path} is required with an engine_contract"
        for path in paths
        if draft.sound(path) and not draft.values.get(path)
    ]


def _shared_devices(draft: Draft) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for index in range(draft.engines):
        place = f"engines[{index}].shared_device"
        paths = [f"{place}.{name}" for name in fields_of("engines[].shared_device")]
        if place in draft.blocks and draft.sound(*paths):
            groups[draft.values[f"{place}.group"]].append(place)
    problems = []
    for group, places in groups.items():
        problems += [f"shared_device group {shown(group)} {fault}" for fault in _group_faults(draft, places)]
    return problems


def _group_faults(draft: Draft, places: list[str]) -> list[str]:
    low, high = GROUP_SIZES
    faults = []
    if not low <= len(places) <= high:
        faults.append(f"must have {low} to {high} engines, got {len(places)}")
    for name in ("gpu_uuid", "device_allowance"):
        found = list(dict.fromkeys(draft.values[f"{place}.{name}"] for place in places))
        if len(found) > 1:
            faults.append(f"must have one {name}, got {', '.join(shown(value) for value in found)}")
    used = sum(draft.values[f"{place}.gpu_memory_utilization"] for place in places)
    allowance = draft.values[f"{places[0]}.device_allowance"]
    if used > allowance + ROUNDING:
        faults.append(f"must sum gpu_memory_utilization to ≤ {allowance:g} (its allowance), got {used:g}")
    return faults
