"""What looks at engines apart from traffic, made for tests: legs of probes, and a prober for health alone."""

from __future__ import annotations

from collections.abc import Callable

from narwhal.engine.dialect import make_dialect
from narwhal.model.settings import SloSettings
from narwhal.monitor.identity import CheckedProcesses, Questions
from narwhal.monitor.probe_legs import Probed, ProbeLegs
from narwhal.monitor.prober import Prober
from narwhal.monitor.validation import Checking, Validation
from narwhal.policy.accounts import Accounts
from narwhal.policy.readmission import TransferPeers
from narwhal.ports import ControlClient, ControlGate, EvidenceSink
from narwhal.runtime.probing import ProbeBooks
from tests.support.settings import serving_settings


def accounts_of_probes() -> Accounts:
    """Of engines e0 to e7, none of which is profiled."""
    return Accounts([f"e{n}" for n in range(8)], {}, slo=SloSettings(1.0, 1.0), serving=serving_settings())


def legs_of(
    control: ControlClient,
    gate: ControlGate,
    *,
    budget_s: float,
    accounts: Accounts | None = None,
    late: Callable[[float], bool] = lambda since: False,
) -> ProbeLegs:
    """Of the model `simulated`; `budget_s` bounds a health check and a leg, `late` knows too old KV."""
    probed = Probed("simulated", budget_s, budget_s)
    dialect = make_dialect("vllm", "nixl")
    books = ProbeBooks(accounts or accounts_of_probes(), taken=lambda iid: False, late=late)
    return ProbeLegs(control, dialect, gate=gate, probed=probed, books=books)


def checking_with(
    legs: ProbeLegs, ask: Questions, *, peers: Callable[[str], TransferPeers] = lambda iid: TransferPeers()
) -> Checking:
    """Of the model `simulated`. Without `peers` nobody lives to exchange KV with."""
    return Checking(legs, CheckedProcesses(ask), "simulated", peers)


def prober_of(legs: ProbeLegs, sink: EvidenceSink) -> Prober:
    """Owes no readmission check and knows no stream."""
    return Prober(legs, Validation(()), sink=sink, streaming=lambda iid: False)
