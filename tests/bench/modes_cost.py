"""CPU modes: per relayed frame, per request, and flatness over the number of streams."""

from __future__ import annotations

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
from tests.bench.load import Cost, Load, Spread, cost_of_run, cost_of_window, warm
from tests.bench.results import Figure, Section, Verdict

STREAM_TOKENS = 256


def in_turn(
    contenders: Sequence[Contender], rounds: int, measure: Callable[[Rig], float], *, pace: Pace | None = None
) -> dict[str, Spread]:
    """Each contender once, then all again: a slow minute of the machine hits everybody."""
    found: dict[str, list[float]] = {one.name: [] for one in contenders}
    for _ in range(rounds):
        for one in contenders:
            with rig(one, pace or Pace()) as up:
                warm(up)
                found[one.name].append(measure(up))
    return {name: Spread.of(values) for name, values in found.items()}


def peers_if(wanted: bool) -> list[Contender]:
    return [vllm_router(), smg()] if wanted else []


def frame(rounds: int, peers: bool) -> Section:
    """256 tokens at 20 ms, about 2,000 frames a second, 512-character prompts, one event a packet."""

    def measure(up: Rig) -> float:
        load = Load(rate=8, duration_s=11, tokens=STREAM_TOKENS)
        cost = cost_of_window(up, load, after_s=5.5, window_s=5)
        return cost.cpu_s / cost.frames * 1e6

    ours = narwhal(tokenize=True)
    found = in_turn([byte_relay(), bare_relay(), ours, httpx_relay(), *peers_if(peers)], rounds, measure)
    ratio = found[ours.name].median / found[byte_relay().name].median
    figures = [Figure("CPU per relayed frame", name, "µs", spread) for name, spread in found.items()]
    figures += ratios_to(found, byte_relay().name, "CPU per frame, ratio to the byte relay")
    return Section(
        "frame", figures, [Verdict("CPU per relayed frame, ratio to the C byte relay", ratio, 2.3, 1.7)]
    )


def request(rounds: int, peers: bool) -> Section:
    """One token a request, 50 requests a second: the price of a request without its frames."""

    def measure(up: Rig) -> float:
        cost: Cost = cost_of_run(up, Load(rate=50, duration_s=6, tokens=1))
        return cost.cpu_s / cost.report["started"] * 1e6

    ours, bare = narwhal(tokenize=True), narwhal(tokenize=False)
    yardstick = httpx_relay()
    found = in_turn([byte_relay(), bare_relay(), ours, bare, yardstick, *peers_if(peers)], rounds, measure)
    figures = [Figure("CPU per request", name, "µs", spread) for name, spread in found.items()]
    figures += ratios_to(found, yardstick.name, "CPU per request, ratio to the plain httpx relay")
    base = found[yardstick.name].median
    verdicts = [
        Verdict(
            f"CPU per request, ratio to the plain httpx relay ({one.name})",
            found[one.name].median / base,
            0.3,
            0.18,
        )
        for one in (bare, ours)
    ]
    return Section("request", figures, verdicts)


def ratios_to(found: dict[str, Spread], name: str, what: str) -> list[Figure]:
    base = found[name].median
    scaled = {
        one: Spread(s.median / base, s.low / base, s.high / base) for one, s in found.items() if one != name
    }
    return [Figure(what, one, "", spread) for one, spread in scaled.items()]


def flatness(rounds: int, peers: bool) -> Section:
    """The same 5,000 frames a second from 2,000 streams at 400 ms and from 100 streams at 20 ms a token."""

    def per_frame(load: Load) -> Callable[[Rig], float]:
        def measure(up: Rig) -> float:
            cost = cost_of_window(up, load, after_s=load.duration_s + 1, window_s=6)
            return cost.cpu_s / cost.frames * 1e6

        return measure

    ours = narwhal(tokenize=False)
    few = in_turn([ours], rounds, per_frame(Load(20, 5, 650)), pace=Pace(interval_s=0.02))[ours.name]
    many = in_turn([ours], rounds, per_frame(Load(250, 8, 42)), pace=Pace(interval_s=0.4))[ours.name]
    figures = [
        Figure("CPU per frame, 100 streams at 20 ms", ours.name, "µs", few),
        Figure("CPU per frame, 2,000 streams at 400 ms", ours.name, "µs", many),
    ]
    ratio = many.median / few.median
    return Section(
        "flatness", figures, [Verdict("CPU per frame, 2,000 streams ÷ 100 streams", ratio, 1.15, 1.0)]
    )
