from __future__ import annotations

from pathlib import Path

from narwhal.sim.faults import HANDOFF_VARIANTS, KINDS, LEGS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "simulated-engine.md").read_text(encoding="utf-8")


def test_every_fault_is_documented_with_its_fields() -> None:
    for name, kind in KINDS.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        assert kind.about in row
        assert all(f"`{param}`" in row for param in kind.params)


def test_every_leg_and_variant_is_documented() -> None:
    assert [name for name in (*LEGS[1:], *HANDOFF_VARIANTS) if f"`{name}`" not in PAGE] == []
