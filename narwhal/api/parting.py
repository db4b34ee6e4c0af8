"""How a connection ends when its server does: what came before is answered, and nobody is reset.

Closing a socket with unread bytes resets it: a request that had just come would be lost without a word, and
on a busy machine one always has just come. So from the moment the server leaves every response says
`connection: close`; at the end a connection that is silent gets our end of stream first, is read a little
longer, and only then goes. A client that looks before it writes finds the end; HTTP/1.1 has no better word
for an idle one.
"""

from __future__ import annotations

from narwhal.api.request_head import CheckedHeads

SILENT_S = 0.1
"""Time for what is in the kernel, or on its way to it, to be read."""
PART_S = 0.2
"""Between our end of stream and the end: what crosses it meets an open socket."""
HEAD_S = 0.5
"""A head that has begun may take so long to be complete."""


class Parting(CheckedHeads):
    """Uvicorn's `shutdown` of one connection."""

    leaving = False
    """Of the class that one server makes its connections of: set once, for all of them."""
    _refused = False
    """What comes is dropped."""
    _head_begun = False

    def _answering(self) -> bool:
        raise NotImplementedError

    def leave(self) -> None:
        """The response under way, if its head is not written yet, is the last one here."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False

    def shutdown(self) -> None:
        """What is under way ends first, and closes by itself."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        self._part_at(self.loop.time() + HEAD_S)

    def _part_at(self, until: float) -> None:
        self.loop.call_later(SILENT_S, self._part, until)

    def _part(self, until: float) -> None:
        cycle = self.cycle
        busy = self._answering() or (cycle is not None and not cycle.response_complete)
        if busy or self._refused or self.transport.is_closing():
            return
        if self._head_begun and self.loop.time() < until:
            self._part_at(until)
            return
        self._refused = True
        self.transport.write_eof()
        self.loop.call_later(PART_S, self.transport.abort)
