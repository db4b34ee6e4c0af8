"""Resident work of one engine and what one more leg would cost there (control.md section 2).

With profiles the prefill cost is in seconds and the decode cost in shares of the KV tokens that keep the
TPOT target. Without profiles both are plain tokens: the neutral coefficients make every formula below
"resident work plus this request's", with no target to violate.

A penalty (probation) is added to what placement compares, never to resident work: it orders engines, it
predicts nothing. Its seconds weigh on decode as they do on prefill, in shares of the target of the latter.

KV blocks that an engine holds for decodes elsewhere are a penalty of its prefill too: the predicted work of
the prefills that filled them, times the share of the KV cache that they take. Few blocks weigh nothing, not
even between idle engines, of which the least penalty would choose: whoever computed them is done. With a full
cache the next prompt waits for all of them.
"""

from __future__ import annotations

from math import inf

from narwhal.model.engine import EngineProfile

NEUTRAL = EngineProfile(
    iid="", ttft_a=0.0, ttft_b=1.0, ttft_c=0.0, tpot_slope=1.0, tpot_request_slope=0.0, tpot_intercept=0.0
)
"""Coefficients of an engine nobody has measured: one token is one unit of work."""

NEUTRAL_TPOT = 1.0
"""With the neutral profile the decode budget is then one token, so decode cost counts tokens."""

NEUTRAL_TOKENS_PER_S = 10_000.0
"""What a second of penalty weighs where nobody has measured: about what one engine prefills in it."""

NEUTRAL_CACHE_TOKENS = 100_000.0
"""KV cache of an engine whose `kv_capacity_tokens` nobody has measured, for the weight of held blocks."""

FEW_SHARE = 0.05
"""Held blocks that take a smaller share of the cache delay nobody."""

NO_ROOM = 1e-9
"""Tokens of room where not even one sequence alone keeps the target: behind all that can, yet ordered."""


class EngineLoad:
    """Mutable account of one engine; the hot object of placement. Owned and changed by `Fleet` alone.

    `prefill_work` is seconds (tokens when neutral), `kv_tokens` tokens, `decodes` and `prefills` legs.
    `last_chosen` is the ticket of the newest reservation, 0 before the first. `placed_c` and `placed_kv` are
    `c` and `kv_tokens` with the penalty in them, for placement to compare at no extra cost.
    `held` is what `hold` was told last.
    """

    __slots__ = (
        "_held",
        "_kv_capacity",
        "_kv_room",
        "_mixed",
        "_per_request",
        "_probation",
        "a",
        "b",
        "c",
        "decode_penalty",
        "decodes",
        "held",
        "iid",
        "kv_tokens",
        "last_chosen",
        "placed_c",
        "placed_kv",
        "prefill_penalty",
        "prefill_work",
        "prefills",
        "room",
    )

    def __init__(self, iid: str, profile: EngineProfile, *, tpot_s: float) -> None:
        self.iid = iid
        self.a, self.b, self.c = profile.ttft_a, profile.ttft_b, profile.ttft_c
        self._kv_room = (tpot_s - profile.tpot_intercept) / profile.tpot_slope
        self._per_request = profile.tpot_request_slope / profile.tpot_slope
        self._kv_capacity = float(profile.kv_capacity_tokens or "inf")
        self.prefills = self.decodes = self.kv_tokens = self.last_chosen = 0
        self.prefill_work = self._held = 0.0
        self.held = (0, 0.0)
        self._mixed = False
        self.room = 0.0
        self.penalise(0.0, 0.0)

    def prefill_seconds(self, tokens: int) -> float:
        """Predicted seconds of one prefill of `tokens` on the idle engine."""
        return (self.a * tokens + self.b) * tokens + self.c

    def prefill_begins(self, tokens: int) -> float:
        """One more prefill is resident; its work, predicted as in `prefill_seconds`."""
        work = (self.a * tokens + self.b) * tokens + self.c
        self.prefills += 1
        self.prefill_work += work
        self._mixed = True
        return work

    def prefill_ends(self, work: float) -> None:
        """That prefill is over."""
        self.prefills -= 1
        # Sums of floats drift; an idle engine has exactly no work.
        self.prefill_work = max(0.0, self.prefill_work - work) if self.prefills else 0.0

    def mix(self) -> None:
        """Prefill work that is not resident here: a probe's."""
        self._mixed = True

    def end_interval(self) -> bool:
        """Was a prefill resident at any time since the last call, also one that has ended meanwhile."""
        mixed, self._mixed = self._mixed, self.prefills > 0
        return mixed

    def decode_changed(self, sequences: int, kv_tokens: int) -> None:
        """Adds to the resident decode work (negative: takes back) and sets `room` anew.

        `room` is the KV tokens that keep the TPOT target and fit the cache with one more sequence. It is
        kept, not computed per request: placement looks at every engine, but only one changes.
        """
        self.decodes += sequences
        self.kv_tokens += kv_tokens
        room = min(self._kv_room - self._per_request * (self.decodes + 1), self._kv_capacity)
        self.room = max(room, NO_ROOM)
        self.placed_kv = self.kv_tokens + self.decode_penalty * self.room

    def penalise(self, prefill: float, decode: float) -> None:
        """What placement adds to the costs of the two legs from now on, in their own units; 0 = nothing."""
        self._probation, self.decode_penalty = prefill, decode
        self._order_prefill()
        self.decode_changed(0, 0)

    def hold(self, kv_tokens: int, work: float) -> None:
        """KV of so many tokens is held for others; `work`: the predicted prefills that made it."""
        capacity = NEUTRAL_CACHE_TOKENS if self._kv_capacity == inf else self._kv_capacity
        self.held = (kv_tokens, work)
        share = kv_tokens / capacity
        self._held = work * min(1.0, share) if share >= FEW_SHARE else 0.0
        self._order_prefill()

    def _order_prefill(self) -> None:
        self.prefill_penalty = self._probation + self._held
        self.placed_c = self.c + self.prefill_penalty

    def decode_share(self, kv_tokens: int) -> float:
        """Resident and new KV tokens ÷ `room`. Above 1.0 the target is missed or the cache too small."""
        return (self.kv_tokens + kv_tokens) / self.room
