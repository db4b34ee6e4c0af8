"""Lease machines with one rule broken on purpose: what watches the rules must notice each of them."""

from __future__ import annotations

from narwhal.model.leadership import Remembered
from narwhal.model.lease import LeaseState, LeaseView
from narwhal.policy.candidacy import Candidacy, ElectionSettings
from narwhal.policy.election import Election
from narwhal.policy.intents import Effect, Reply
from narwhal.policy.watch import Watch


class DeadlineFromReply(Election):
    """D counts from the reply instead of from before the send."""

    def _renewed(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        if self.tenure is not None and reply is not None:
            self.tenure.sent = now
        return super()._renewed(reply, now)


class AgainFromRetry(Election):
    """After AGAIN, D counts from the send of the attempt that was answered."""

    def _acquired(self, reply: Reply | None, now: float) -> tuple[Effect, ...]:
        if self.tenure is not None:
            self.tenure.first_sent = self.tenure.sent
        return super()._acquired(reply, now)


class _Candidacy(Election):
    """With a watch of the subclass's choice."""

    watch: type[Watch] = Watch

    def __init__(self, settings: ElectionSettings, remembered: Remembered, *, now: float) -> None:
        super().__init__(settings, remembered, now=now)
        self.candidacy = Candidacy(settings, remembered, now=now)
        self.candidacy.watch = self.watch(
            ttl_s=settings.timings.ttl_s, ttl_s_max=remembered.ttl_ms_max / 1000
        )


class _ServerTimeWatch(Watch):
    """As a key with a TTL: what the server's clock says has expired may be taken."""

    def see(self, view: LeaseView, now: float) -> None:
        super().see(view, now)
        if view.state is LeaseState.HELD and view.now_ms - view.renewed_ms > view.ttl_ms:
            self.since = now - self.span_s


class TtlInsteadOfObservation(_Candidacy):
    watch = _ServerTimeWatch


class _TrustingWatch(Watch):
    """Every released record counts as surely released."""

    def see(self, view: LeaseView, now: float) -> None:
        super().see(view, now)
        self.sure = view.state is LeaseState.RELEASED


class ShortcutAlways(_Candidacy):
    watch = _TrustingWatch


class _OwnTtlWatch(Watch):
    """Only the own TTL counts, whatever the holder wrote."""

    def see(self, view: LeaseView, now: float) -> None:
        own = self.span_s
        super().see(view, now)
        self.span_s = own


class OwnTtlOnly(_Candidacy):
    watch = _OwnTtlWatch


class _HalfWatch(Watch):
    """Half the span is enough."""

    @property
    def ripe_at(self) -> float | None:
        whole = super().ripe_at
        return None if whole is None else whole - 0.5 * self.span_s


class HalfTheWatch(_Candidacy):
    watch = _HalfWatch


BROKEN: dict[str, type[Election]] = {
    machine.__name__: machine
    for machine in (
        *(DeadlineFromReply, AgainFromRetry, TtlInsteadOfObservation),
        *(ShortcutAlways, OwnTtlOnly, HalfTheWatch),
    )
}
