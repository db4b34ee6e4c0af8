"""Resident work of one engine and what one more leg would cost there (control.md section 2).

With profiles the prefill cost is in seconds and the decode cost in shares of the KV tokens that keep the
TPOT target. Without profiles both are plain tokens: the neutral coefficients make every formula below
"resident work plus this request's", with no target to violate.
"""

from __future__ import annotations

from narwhal.model.engine import EngineProfile

NEUTRAL = EngineProfile(
    iid="", ttft_a=0.0, ttft_b=1.0, ttft_c=0.0, tpot_slope=1.0, tpot_request_slope=0.0, tpot_intercept=0.0
)
"""Coefficients of an engine nobody has measured: one token is one unit of work."""

NEUTRAL_TPOT = 1.0
"""With the neutral profile the decode budget is then one token, so decode cost counts tokens."""

NO_ROOM = 1e9
"""Added where not even one sequence alone keeps the TPOT target: behind all that can, yet ordered."""


class EngineLoad:
    """Mutable account of one engine; the hot object of placement. Owned and changed by `Fleet` alone.

    `prefill_work` is seconds (tokens when neutral), `kv_tokens` tokens. `last_chosen` is the ticket of
    the newest reservation, 0 before the first.
    """

    __slots__ = (
        "a",
        "b",
        "c",
        "decodes",
        "iid",
        "kv_capacity",
        "kv_room",
        "kv_tokens",
        "last_chosen",
        "per_request",
        "prefill_work",
        "prefills",
    )

    def __init__(self, iid: str, profile: EngineProfile, tpot_s: float) -> None:
        self.iid = iid
        self.a, self.b, self.c = profile.ttft_a, profile.ttft_b, profile.ttft_c
        self.kv_room = (tpot_s - profile.tpot_intercept) / profile.tpot_slope
        self.per_request = profile.tpot_request_slope / profile.tpot_slope
        self.kv_capacity = float(profile.kv_capacity_tokens or "inf")
        self.prefills = self.decodes = self.kv_tokens = self.last_chosen = 0
        self.prefill_work = 0.0

    def prefill_seconds(self, tokens: int) -> float:
        """Predicted seconds of one prefill of `tokens` on the idle engine."""
        return (self.a * tokens + self.b) * tokens + self.c

    def decode_share(self, kv_tokens: int) -> float:
        """Resident and new KV tokens ÷ the tokens that keep the TPOT target with one more sequence.

        Above 1.0 the target is missed, or the KV cache is too small.
        """
        wanted = self.kv_tokens + kv_tokens
        room = min(self.kv_room - self.per_request * (self.decodes + 1), self.kv_capacity)
        return wanted / room if room > 0.0 else NO_ROOM + wanted
