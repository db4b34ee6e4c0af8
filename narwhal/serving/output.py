"""Where a decode leg's output goes, and what the journal row learns from it."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from narwhal.clock import Clock
from narwhal.model.request import RequestRow
from narwhal.ports import StreamSink
from narwhal.serving.assemble import AssemblePlan, Assembler
from narwhal.serving.job import Job
from narwhal.serving.relay import LegTally, Relay, RelayPlan

SSE = "text/event-stream; charset=utf-8"


class Output(Protocol):
    """The receiving end of one decode leg. `sink` takes its events."""

    @property
    def sink(self) -> StreamSink: ...

    @property
    def tally(self) -> LegTally: ...

    def complete(self) -> None:
        """The leg ended well: what has not been sent yet goes to the client. Raises StreamBroken."""


class StreamedOutput:
    """Events go on to the client as they come."""

    def __init__(self, job: Job, clock: Clock, *, limit: int) -> None:
        headers = (
            ("content-type", SSE),
            ("cache-control", "no-cache"),
            ("x-request-id", job.request.rid),
        )
        # Not a method of ours: sink and output would hold each other, one garbage cycle a request.
        begin = partial(_begin, job, clock)
        plan = RelayPlan(headers, job.request.include_usage, begin, job.entry.answered, limit)
        self.sink = Relay(job.stream, plan, clock=clock)
        self.tally = self.sink.tally

    def complete(self) -> None:
        """Everything has left with its read."""


def _begin(job: Job, clock: Clock) -> None:
    """The first output is about to leave: from here on there is no other attempt."""
    entry = job.entry
    entry.row.first_byte_s = clock.now() - entry.began
    job.request.shed()


class WholeOutput:
    """Events become one document, sent when the leg has ended well."""

    def __init__(self, job: Job, clock: Clock, *, limit: int) -> None:
        request = job.request
        self.sink = Assembler(AssemblePlan(request.api, request.return_token_ids, limit), clock=clock)
        self.tally = self.sink.tally
        self._job = job
        self._clock = clock

    def complete(self) -> None:
        """Raises StreamBroken when the document is over the limit."""
        job, body = self._job, self.sink.body()
        job.entry.row.first_byte_s = self._clock.now() - job.entry.began
        headers = (
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("x-request-id", job.request.rid),
        )
        if not job.stream.gone:
            job.entry.answered()
        job.stream.start(200, headers, data=body, last=True)


def note_output(row: RequestRow, tally: LegTally, *, began: float, handed_off_at: float) -> None:
    """Puts lengths and times of one decode leg into the row; also of one that broke off."""
    row.output_len, row.token_accounting = tally.output_tokens
    if tally.usage is not None:
        row.input_len = tally.input_tokens
    first = tally.first_output_at
    if first is None:
        return
    row.ttft_s = first - began
    row.kv_wait_s = first - handed_off_at
    if tally.finished_at is not None and row.output_len > 1:
        row.tpot_s = (tally.finished_at - first) / (row.output_len - 1)


def open_output(job: Job, clock: Clock, *, limit: int) -> Output:
    """A fresh receiving end for one decode leg; `limit` is `serving.max_response_bytes`."""
    return (StreamedOutput if job.request.stream else WholeOutput)(job, clock, limit=limit)
