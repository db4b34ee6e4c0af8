"""How many replicas must have a write before it counts: N of cluster.md section 2.

N follows the *highest* replica count that this router has seen or that the lease record tells: an isolated
master that lost its replicas must not count to zero. A majority is enough only where one Sentinel stands
beside each node, so that a promotion needs a majority too; everywhere else every replica must confirm.
"""

from __future__ import annotations

import threading

from narwhal.model.lease import (
    Acquired,
    AcquireReply,
    Appended,
    AppendReply,
    LeaseView,
    Published,
    PublishReply,
    Reinstated,
    Renewed,
    RenewReply,
    TopIs,
)


class Quorum:
    """Shared by all store connections of one router, on whatever thread they run."""

    def __init__(self, fixed: int | None = None) -> None:
        """`fixed`: `--redis-min-replicas`, N whatever is seen; None: computed."""
        self.fixed = fixed
        self.guarded = False
        """One Sentinel stands beside each node: a majority of the replicas is enough."""
        self._lock = threading.Lock()
        self._highest = 0
        self._deposed = ""

    @property
    def highest(self) -> int:
        """The highest replica count seen or told. What acquire and renew raise the stored count to."""
        return self._highest

    @property
    def needed(self) -> int:
        """N: replicas that must confirm. 0: the server's own answer is enough."""
        if self.fixed is not None:
            return self.fixed
        return (self._highest + 1) // 2 if self.guarded else self._highest

    def saw(self, replicas: int) -> None:
        """Only raises."""
        with self._lock:
            self._highest = max(self._highest, replicas)

    def peeked(self, view: LeaseView) -> None:
        """Takes the stored and the connected count. A record that an operator deposed, under this very
        incarnation, lowers what was seen before, once."""
        version = f"{view.version}@{view.inc}"
        with self._lock:
            if view.deposed and view.record_inc == str(view.inc) and self._deposed != version:
                self._deposed, self._highest = version, 0
            self._highest = max(self._highest, view.replicas, view.connected_replicas)

    def needed_after(self, reply: AcquireReply | RenewReply | AppendReply | PublishReply) -> int:
        """N for the write that `reply` answers; 0 where nothing was written.

        TOP counts as written: an earlier attempt may be what stands there.
        """
        match reply:
            case Acquired() | Renewed() | Reinstated():
                self.saw(reply.replicas)
                return self.needed
            case Published() | Appended() | TopIs():
                return self.needed
        return 0
