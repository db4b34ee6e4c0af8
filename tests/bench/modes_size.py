"""Memory of a thousand streams, and the work of one placement with two hundred engines."""

from __future__ import annotations

import time

from narwhal.model.engine import EngineProfile, EngineSpec, Role
from narwhal.model.placement import Demand
from narwhal.policy.fleet import Fleet
from tests.bench.contenders import Pace, narwhal, rig
from tests.bench.load import Load, Spread, finish, start, warm
from tests.bench.processes import resident_bytes
from tests.bench.results import Figure, Section, Verdict
from tests.support.settings import fleet_config

MIB = 1024 * 1024


def memory(rounds: int, peers: bool) -> Section:
    """1,000 streams at 200 ms a token: resident memory at their height, over that of the idle router."""
    ours = narwhal(tokenize=False)
    over: list[float] = []
    idle: list[float] = []
    for _ in range(rounds):
        with rig(ours, Pace(interval_s=0.2)) as up:
            warm(up)
            before = resident_bytes(up.pid)
            load = Load(rate=200, duration_s=5, tokens=60)
            process = start(up, load)
            highest = before
            while process.poll() is None and highest is not None:
                highest = max(highest, resident_bytes(up.pid))
                time.sleep(0.2)
            report = finish(up, load, process)
            assert report["max_inflight"] >= 990, report
            idle.append(before / MIB)
            over.append((highest - before) / MIB)
    spread = Spread.of(over)
    figures = [
        Figure("resident, idle", ours.name, "MiB", Spread.of(idle)),
        Figure("1,000 concurrent streams over idle", ours.name, "MiB", spread),
    ]
    return Section(
        "memory", figures, [Verdict("1,000 streams, memory over idle", spread.median, 60, 30, "MiB")]
    )


def placement(rounds: int, peers: bool) -> Section:
    """200 profiled engines, half of them prefill, thousands of legs resident: one leg chosen and reserved."""
    engines = [
        EngineSpec(f"e{n:03}", f"http://e{n}", Role.PREFILL if n % 2 else Role.DECODE) for n in range(200)
    ]
    profiles = {
        spec.iid: EngineProfile(spec.iid, 1e-9, 1e-4, 0.01 + n * 1e-5, tpot_slope=1e-7, tpot_intercept=0.01)
        for n, spec in enumerate(engines)
    }
    fleet = Fleet(fleet_config(*engines), profiles)
    for n in range(2000):
        place(fleet, n)
    took = {"prefill": list[float](), "decode": list[float]()}
    for _ in range(rounds):
        spent = [0.0, 0.0]
        for n in range(2000):
            one, two = place(fleet, n)
            spent[0] += one
            spent[1] += two
        took["prefill"].append(spent[0] / 2000 * 1e6)
        took["decode"].append(spent[1] / 2000 * 1e6)
    figures = [
        Figure(f"placing one {leg} leg", "narwhal", "µs", Spread.of(values)) for leg, values in took.items()
    ]
    worst = max(figure.spread.median for figure in figures)
    return Section("placement", figures, [Verdict("placing one leg, 200 engines", worst, 150, 50, "µs")])


def place(fleet: Fleet, n: int) -> tuple[float, float]:
    """Seconds for each leg of one request of 100 to 1,000 tokens."""
    demand, now = Demand(100 + n % 900, 128), float(n)
    began = time.perf_counter()
    first = fleet.reserve_prefill(demand, now)
    between = time.perf_counter()
    assert first is not None
    second = fleet.reserve_decode(demand, now, producer=first.iid)
    ended = time.perf_counter()
    assert second is not None
    if n % 2:
        fleet.release(first, now)
        fleet.release(second, now)
    return between - began, ended - between
