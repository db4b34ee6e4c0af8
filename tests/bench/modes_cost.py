"""CPU modes: per relayed frame, per request, and flatness over the number of streams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tests.bench.contenders import (
    Contender,
    Pace,
    Rig,
    bare_relay,
    byte_relay,
    httpx_relay,
    narwhal,
    rig,
    smg,
    vllm_router,
)
from tests.bench.load import Cost, Load, LostFrames, Spread, cost_of_run, cost_of_window, warm
from tests.bench.results import Figure, Section, Verdict

STREAM_TOKENS = 256


def in_turn(
    contenders: Sequence[Contender], rounds: int, measure: Callable[[Rig], float], *, pace: Pace | None = None
) -> dict[str, list[float]]:
    """Each contender once, then all again: a slow minute of the machine hits everybody. One value a round."""
    found: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(rounds):
        for one in contenders:
            found[one.name].append(measured(one, measure, pace=pace or Pace()))
    return found


def measured(contender: Contender, measure: Callable[[Rig], float], *, pace: Pace) -> float:
    """One value. Ours may not lose a frame; a yardstick that does is measured again, and it is said."""
    for left in reversed(range(1 if contender.name.startswith("narwhal") else 3)):
        try:
            with rig(contender, pace) as up:
                warm(up)
                return measure(up)
        except LostFrames as error:
            if not left:
                raise
            print(f"bench: again, {error}", file=sys.stderr, flush=True)
    raise AssertionError("unreachable")


def peers_if(wanted: bool) -> list[Contender]:
    return [vllm_router(), smg()] if wanted else []


def frame(rounds: int, peers: bool) -> Section:
    """256 tokens at 20 ms, about 2,000 frames a second, 512-character prompts, one event a packet."""

    def measure(up: Rig) -> float:
        load = Load(rate=8, duration_s=11, tokens=STREAM_TOKENS)
        cost = cost_of_window(up, load, after_s=5.5, window_s=5)
        return cost.cpu_s / cost.frames * 1e6

    ours, floor = narwhal(tokenize=True), byte_relay()
    found = in_turn([floor, bare_relay(), ours, httpx_relay(), *peers_if(peers)], rounds, measure)
    ratio = ratios(found, floor.name)[ours.name].median
    figures = figures_of(found, "CPU per relayed frame", floor.name)
    verdict = Verdict("CPU per relayed frame, ratio to the C byte relay", ratio, 2.3, 1.7)
    return Section("frame", figures, [verdict])


def request(rounds: int, peers: bool) -> Section:
    """One token a request, 50 requests a second: the price of a request without its frames."""

    def measure(up: Rig) -> float:
        cost: Cost = cost_of_run(up, Load(rate=50, duration_s=6, tokens=1))
        return cost.cpu_s / cost.report["started"] * 1e6

    ours, counting, plain = narwhal(tokenize=False), narwhal(tokenize=True), httpx_relay()
    found = in_turn([byte_relay(), bare_relay(), ours, counting, plain, *peers_if(peers)], rounds, measure)
    ratio = ratios(found, plain.name)[ours.name].median
    figures = figures_of(found, "CPU per request", plain.name)
    verdict = Verdict("CPU per request of two legs, ratio to the plain httpx relay", ratio, 0.3, 0.18)
    note = "with tokenize an engine counts the prompt first: a third call, which no yardstick makes"
    return Section("request", figures, [verdict], [note])


def figures_of(found: dict[str, list[float]], what: str, base: str) -> list[Figure]:
    """Microseconds of each contender, and each one's ratio to `base`, taken round by round."""
    figures = [Figure(what, name, "µs", Spread.of(values)) for name, values in found.items()]
    compared = ratios(found, base).items()
    return figures + [Figure(f"{what}, ratio to {base}", name, "", spread) for name, spread in compared]


def ratios(found: dict[str, list[float]], base: str) -> dict[str, Spread]:
    return {
        name: Spread.of([mine / its for mine, its in zip(values, found[base], strict=True)])
        for name, values in found.items()
        if name != base
    }


def flatness(rounds: int, peers: bool) -> Section:
    """The same 5,000 frames a second from 2,000 streams at 400 ms and from 100 streams at 20 ms a token.

    Both begin at the same rate, so that frames reach the router in the same pattern, 20 every 4 ms: what one
    wake-up carries changes the cost of a frame more than the number of streams. The many are measured between
    two measurements of the few, and compared with the mean of both.
    """

    def per_frame(load: Load) -> Callable[[Rig], float]:
        def measure(up: Rig) -> float:
            cost = cost_of_window(up, load, after_s=load.duration_s + 1, window_s=6)
            return cost.cpu_s / cost.frames * 1e6

        return measure

    ours = narwhal(tokenize=False)
    of_hundred = per_frame(Load(250, 0.4, 650))
    few, many = list[float](), list[float]()
    for _ in range(rounds):
        few += in_turn([ours], 1, of_hundred, pace=Pace(interval_s=0.02))[ours.name]
        many += in_turn([ours], 1, per_frame(Load(250, 8, 42)), pace=Pace(interval_s=0.4))[ours.name]
        # Once more before the next pair: a machine that got slower in between would count as streams.
        few += in_turn([ours], 1, of_hundred, pace=Pace(interval_s=0.02))[ours.name]
    around = [(before + after) / 2 for before, after in zip(few[::2], few[1::2], strict=True)]
    ratio = Spread.of([slow / fast for slow, fast in zip(many, around, strict=True)])
    figures = [
        Figure("CPU per frame, 100 streams at 20 ms", ours.name, "µs", Spread.of(few)),
        Figure("CPU per frame, 2,000 streams at 400 ms", ours.name, "µs", Spread.of(many)),
        Figure("2,000 streams ÷ 100 streams", ours.name, "", ratio),
    ]
    verdict = Verdict("CPU per frame, 2,000 streams ÷ 100 streams", ratio.median, 1.15, 1.0)
    return Section("flatness", figures, [verdict])
