"""What a gate's findings add up to, and the document of a run."""

from __future__ import annotations

import json

from narwhal.measure.gates.verdict import Finding, GateReport, Verdict, failed, passed, skipped


def verdict(*findings: Finding) -> Verdict:
    return GateReport("pace", findings).verdict


def test_one_failure_fails_the_gate() -> None:
    assert verdict(passed("e0"), failed("e1", "slow"), skipped("e2", "away")) is Verdict.FAILED


def test_a_gate_is_skipped_only_where_nothing_was_tried() -> None:
    assert verdict(skipped("e0", "away"), skipped("e1", "away")) is Verdict.SKIPPED
    assert verdict(passed("e0"), skipped("e1", "away")) is Verdict.PASSED


def test_a_warning_fails_nothing() -> None:
    assert verdict(passed("e0", warning="other words than before")) is Verdict.PASSED


def test_the_document_is_plain_json() -> None:
    report = GateReport("reach", (passed("e0", "there", measured={"health_s": 0.5}),))
    assert json.loads(json.dumps(report.document())) == {
        "name": "reach",
        "outcome": "passed",
        "findings": [
            {
                "subject": "e0",
                "outcome": "passed",
                "detail": "there",
                "warning": "",
                "measured": {"health_s": 0.5},
            }
        ],
    }
