"""One fleet document against the schema table: every problem in one go, or values ready to build from."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from narwhal.config.engine_rows import check_engines
from narwhal.config.json_text import SPOILED, printable
from narwhal.config.relations import RELATIONS, Draft
from narwhal.config.rules import REQUIRED, Field, shown
from narwhal.config.schema import FIELDS, OPTIONAL_BLOCKS, fields_of, subsections_of
from narwhal.errors import ConfigError

BUILT_IN_CONNECTORS: Final = ("nixl",)
BUILT_IN_DIALECTS: Final = ("vllm",)
"""Names known without any plug-in; runtime hands in its registries' names."""


def check(
    doc: Any,
    env: Mapping[str, str],
    *,
    known_connectors: Collection[str],
    known_dialects: Collection[str],
    oddities: Sequence[str] = (),
) -> Draft:
    """Checks a parsed document and lets defaults give way where relations ask for it.

    `env` resolves `${NAME}` in URLs, `oddities` are problems that reading
    the text found. Raises ConfigError with every problem, one sentence each, without the file's name.
    """
    problems = list(oddities)
    draft = _examine(doc, env, problems=problems)
    problems += _registered(draft, "engine.connector", known=known_connectors)
    problems += _registered(draft, "engine.dialect", known=known_dialects)
    if problems:
        raise ConfigError(problems)
    return draft


def _examine(doc: Any, env: Mapping[str, str], *, problems: list[str]) -> Draft:
    """The document's values; problems are appended."""
    walk = _Walk(problems)
    walk.section("", doc, place="")
    draft = walk.draft
    if isinstance(doc, dict):
        _engine_list(walk, doc.get("engines"))
        problems += check_engines(draft, env)
        for relation in RELATIONS:
            problems += relation(draft)
    return draft


def _engine_list(walk: _Walk, value: Any) -> None:
    if value is SPOILED:
        return
    if not isinstance(value, list) or not value:
        fault = "is required" if value is None else f"must be a nonempty list, got {shown(value)}"
        walk.problems.append(f"engines {'must be a nonempty list, got []' if value == [] else fault}")
        return
    walk.draft.engines = len(value)
    for index, entry in enumerate(value):
        walk.section("engines[]", entry, place=f"engines[{index}]")


def _registered(draft: Draft, path: str, *, known: Collection[str]) -> list[str]:
    name = draft.values.get(path)
    if name is None or not draft.sound(path) or name in known:
        return []
    return [f"{path} must be one of {', '.join(sorted(known))}, got {shown(name)}"]


class _Walk:
    """Reads sections into a Draft; collects one sentence per problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self.draft = Draft()

    def section(self, section: str, value: Any, *, place: str) -> None:
        """Reads one section: `section` as the table names it, `place` as the file does (`engines[2]`)."""
        known, inner = fields_of(section), subsections_of(section)
        if value is SPOILED or not isinstance(value, dict):
            if value is not SPOILED:
                self.problems.append(f"{place or 'the document'} must be an object, got {shown(value)}")
            self._spoil(section, place)
            return
        for key in value:
            if key not in known and key not in inner and f"{key}[]" not in inner:
                self.problems.append(_unknown(place, key, section=section))
        for name, field in known.items():
            self._field(field, value, path=_join(place, name))
        for name in inner:
            if not name.endswith("[]"):
                self._subsection(_join(section, name), value.get(name), place=_join(place, name))

    def _spoil(self, section: str, place: str) -> None:
        """Nothing at or beneath `section` can be read: no relation looks at it."""
        prefix = f"{section}." if section else ""
        for field in FIELDS:
            if field.path.startswith(prefix):
                path = _join(place, field.path.removeprefix(prefix))
                self.draft.spoiled.add(path)
                self.draft.values[path] = None

    def _subsection(self, section: str, value: Any, *, place: str) -> None:
        if value is None and section in OPTIONAL_BLOCKS:
            return
        self.draft.blocks.add(place)
        self.section(section, {} if value is None else value, place=place)

    def _field(self, field: Field, holder: Mapping[str, Any], *, path: str) -> None:
        if field.name not in holder or _unset_in_contract(field, holder[field.name]):
            self._absent(field, path)
            return
        value = holder[field.name]
        fault = "" if value is SPOILED else field.problem(value)
        if fault:
            self.problems.append(f"{path} {fault}")
        if fault or value is SPOILED:
            self.draft.spoiled.add(path)
            self.draft.values[path] = None
            return
        self.draft.given.add(path)
        self.draft.values[path] = field.settled(value)

    def _absent(self, field: Field, path: str) -> None:
        if field.default is REQUIRED:
            self.problems.append(f"{path} is required")
            self.draft.spoiled.add(path)
            self.draft.values[path] = None
        else:
            self.draft.values[path] = field.default


def _unset_in_contract(field: Field, value: Any) -> bool:
    """`""` and null in a contract mean not set; 0 is read as a value that does not count as set."""
    return field.section == "engine_contract" and (value is None or value == "")


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _unknown(place: str, key: str, *, section: str) -> str:
    text = f"{_join(place, printable(key))} is not a known field"
    siblings = [*fields_of(section), *(name.removesuffix("[]") for name in subsections_of(section))]
    elsewhere = [field.path for field in FIELDS if field.name == key and "[]" not in field.path]
    near = elsewhere or difflib.get_close_matches(key, siblings, n=1, cutoff=0.7)
    return f"{text}; did you mean {near[0]}?" if near else text
