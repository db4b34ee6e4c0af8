"""Journal rows of finished requests, for tests."""

from __future__ import annotations

from typing import Any

from narwhal.model.request import RequestRow


def finished_row(rid: str = "r1", **changes: Any) -> RequestRow:
    values: dict[str, Any] = {
        "rid": rid,
        "client_rid": None,
        "arrived": 1_780_000_000.0,
        "input_len": 128,
        "output_len": 32,
        "token_accounting": "usage",
        "ttft_s": 0.25,
        "tpot_s": 0.02,
        "first_byte_s": 0.26,
        "prefill_iid": "e0",
        "decode_iid": "e1",
        "attempts": 1,
        "prefill_rid": "r1-p",
        "decode_rid": "r1-d",
        "kv_wait_s": 0.001,
        "duration_s": 0.9,
        "terminal": "served",
        "epoch": 7,
    }
    return RequestRow(**{**values, **changes})
