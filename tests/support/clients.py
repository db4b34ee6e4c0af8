"""A ClientStream and a LegFlow that keep what they were told, for tests of sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from narwhal.errors import EngineError


@dataclass
class KeptStream:
    """`ports.ClientStream` in memory. `writes`: the data of each call that would be a write."""

    started: bool = False
    gone: bool = False
    finished: bool = False
    status: int = 0
    headers: Sequence[tuple[str, str]] = ()
    writes: list[bytes] = field(default_factory=list)
    takes_chunks: bool = False
    on_pause: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None

    @property
    def data(self) -> bytes:
        return b"".join(self.writes)

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return self.writes.append if self.takes_chunks else None

    def watch(self, on_gone: Callable[[], None]) -> None:
        pass

    def pace(self, *, on_pause: Callable[[], None], on_resume: Callable[[], None]) -> None:
        self.on_pause, self.on_resume = on_pause, on_resume

    def start(
        self, status: int, headers: Sequence[tuple[str, str]], *, data: bytes = b"", last: bool = False
    ) -> None:
        self.started, self.status, self.headers, self.finished = True, status, headers, last
        self.writes.append(data)

    def write(self, data: bytes) -> None:
        assert self.started and not self.finished
        self.writes.append(data)

    def finish(self, data: bytes = b"") -> None:
        assert self.started and not self.finished
        self.finished = True
        if data:
            self.writes.append(data)


@dataclass
class KeptFlow:
    """`ports.LegFlow` in memory."""

    passed: int = 0
    paused: bool = False
    pauses: int = 0
    error: EngineError | None = None
    writer: Callable[[bytes], None] | None = None

    def pause(self) -> None:
        self.pauses += not self.paused
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def pass_chunks(self, write: Callable[[bytes], None]) -> None:
        self.writer = write

    def fail(self, error: EngineError) -> None:
        self.error = self.error or error
