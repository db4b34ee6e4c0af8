"""One simulated engine: identity, KV blocks, scheduling, life and death. Routes are in `routes.py`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable

from narwhal.fence import Epochs
from narwhal.sim.blocks import BlockPool, HandoffLedger, PrefixCache
from narwhal.sim.faults import Fault, FaultBook
from narwhal.sim.generation import Generation
from narwhal.sim.handoff import RemoteKv, Side, read_descriptor
from narwhal.sim.peers import Find, Peers, Pull
from narwhal.sim.request import Refusal
from narwhal.sim.settings import SimSettings
from narwhal.sim.stats import Stats
from narwhal.sim.text import wrong_seed
from narwhal.sim.timing import Timing
from narwhal.sim.wheel import Timed, Wheel

CORE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_DEAD_HEALTH_S = 0.15
_DEAD_GONE_S = 2.6
_REFUSED_FREES_S = 1.0


class Later(Timed):
    """Calls back once when its time has come."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        super().__init__()
        self._callback = callback

    def fire(self, now: float) -> None:
        self._callback()


class SimEngine:
    """What a vLLM process with NixlConnector (`kv_both`) is to a router.

    `listener` opens (True) and closes (False) the serving port; the owner of the sockets sets it. The
    side channel and `/sim/*` on it stay open, as they are how a refusing engine is told to come back.
    """

    def __init__(self, settings: SimSettings, wheel: Wheel, *, find: Find) -> None:
        self.settings = settings
        self.wheel = wheel
        self.stats = Stats(settings.recorded_requests)
        self.faults = FaultBook()
        self.listener: Callable[[bool], None] = lambda is_open: None
        self.address = ("", 0)
        self._peers = Peers(find, settings, edge=self.faults.edge)
        self._expiry = Later(self._expire)
        self._deaths = [Later(self._fall_ill), Later(lambda: self.listener(False))]
        self._engine_id = ""
        self._running: set[Generation] = set()
        self._waiting: deque[Generation] = deque()
        self._cached = PrefixCache()
        self.begin_anew()

    # --- identity and life --------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """A new process: new engine ID and start time, no blocks held, nobody met, no epoch known."""
        self._engine_id = str(uuid.uuid4())
        self.epochs = Epochs()
        # vLLM's figure comes from /proc and has 10 ms steps.
        self.process_start = round(time.time(), 2)
        self.core_dead = self.core_stopped = self.healthy_no_more = False
        self.pool = BlockPool(self.settings.kv_blocks, self.settings.block_tokens)
        self.ledger = HandoffLedger(self.pool, self.settings.kv_lease_s)
        self._timing = Timing(self.settings)
        for generation in self._work():
            generation.abandon()
        self._running.clear()
        self._waiting.clear()
        self._kv_tokens = 0
        self._cached.clear()
        self._peers.forget()
        for timer in (self._expiry, *self._deaths):
            timer.cancel()

    @property
    def side(self) -> Side:
        return Side(self._engine_id, *self.address)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def die(self) -> None:
        """The core dies: running work breaks now, health says so after 0.15 s, refused after 2.6 s."""
        if self.core_dead:
            return
        self.core_dead = True
        for generation in self._work():
            generation.break_off(CORE_DEAD)
        now = self.wheel.now()
        for timer, delay in zip(self._deaths, (_DEAD_HEALTH_S, _DEAD_GONE_S), strict=True):
            self.wheel.add(timer, now + delay)

    def stop_core(self) -> None:
        """The core stops (SIGSTOP): nothing moves any more, nothing says so."""
        self.core_stopped = True
        for generation in self._work():
            generation.cancel()

    def restart(self, down_s: float) -> None:
        """Die at once and be a new process on the same port after `down_s`."""
        self.vanish()
        self.listener(False)
        self.wheel.add(Later(self._rise), self.wheel.now() + down_s)

    def vanish(self) -> None:
        """kill -9: nothing is said any more, and peers find nobody."""
        self.core_dead = self.healthy_no_more = True
        for generation in self._work():
            generation.cancel()

    def shut_down(self) -> None:
        """SIGTERM: no new connections, running work ends with finish reason abort."""
        self.listener(False)
        for generation in self._work():
            generation.shut_down()
        self._peers.close()

    def order(self, fault: Fault) -> None:
        """Put a fault in force; kinds that concern the whole engine act now."""
        self.faults.add(fault)
        if fault.kind == "refuse":
            self.listener(False)
        elif fault.kind == "core_dead":
            self.die()
        elif fault.kind == "core_stopped":
            self.stop_core()
        elif fault.kind == "restart":
            self.restart(fault["down_s"])

    def recover(self) -> None:
        """Clear every fault: a dead engine is a new process, a stopped one goes on."""
        self.faults.clear()
        if self.core_dead:
            self._rise()
            return
        self.listener(True)
        if self.core_stopped:
            self.core_stopped = False
            for generation in self._running:
                self._start(generation)
            self._admit()

    def _work(self) -> list[Generation]:
        return [*self._running, *self._waiting]

    def _fall_ill(self) -> None:
        self.healthy_no_more = True

    def _rise(self) -> None:
        self.begin_anew()
        self.listener(True)

    # --- scheduling ---------------------------------------------------------------------------------

    def interval_s(self) -> float:
        return self._timing.interval_s(self._kv_tokens, len(self._running))

    def submit(self, generation: Generation) -> None:
        """Queue a request. Raises Refusal when the engine is dead."""
        if self.core_dead:
            raise Refusal(500, CORE_DEAD, type="InternalServerError")
        generation.exchange.on_gone = generation.gone
        self._waiting.append(generation)
        self._admit()

    def _admit(self) -> None:
        """First come, first served: run what has a seat and blocks."""
        while self._waiting and not self.core_stopped and len(self._running) < self.settings.max_num_seqs:
            generation = self._waiting[0]
            needed = self.pool.needed(generation.tokens_at_most)
            blocks = self.pool.allocate(min(needed, self.pool.total), generation.request.prompt.seed)
            if blocks is None:
                return
            self._waiting.popleft()
            generation.blocks = blocks
            self._running.add(generation)
            self._kv_tokens += generation.request.prompt.count
            self._start(generation)

    def prompt_blocks(self, generation: Generation) -> tuple[int, ...]:
        return generation.blocks[: self.pool.needed(generation.request.prompt.count)]

    def retire(self, generation: Generation, *, hold: bool) -> None:
        """A generation is over: free its seat, and its blocks unless they are held for a consumer."""
        if generation in self._running:
            self._running.discard(generation)
            self._kv_tokens -= generation.request.prompt.count
            if hold:
                self._hold(generation)
            else:
                self.pool.release(generation.blocks)
        else:
            self._waiting.remove(generation)
        self._admit()

    def _hold(self, generation: Generation) -> None:
        """Keep the prompt's blocks for the consumer, free those of the answer."""
        kept = self.prompt_blocks(generation)
        self.pool.release(generation.blocks[len(kept) :])
        held = self.ledger.hold(generation.request_id, kept, now=self.wheel.now())
        if self._expiry.slot < 0:
            self.wheel.add(self._expiry, held.expires_at)

    def _expire(self) -> None:
        next_due = self.ledger.expire(self.wheel.now())
        if next_due is not None:
            self.wheel.add(self._expiry, next_due)
        self._admit()

    def _start(self, generation: Generation) -> None:
        request = generation.request
        kv = read_descriptor(request.kv) if request.consumes_kv else None
        if not request.consumes_kv or request.prompt.seed in self._cached:
            if kv is not None:
                self._peers.release(kv)
            self._compute(generation)
            return
        if kv is None or len(kv.blocks) < self.pool.needed(request.prompt.count):
            self.die()
            return
        self._peers.pull(kv, request.prompt.seed, done=lambda pull: self._pulled(generation, pull))

    def _compute(self, generation: Generation) -> None:
        """Prefill here. A cached prompt costs nothing, but a prefill leg always pays its flat delay."""
        request, now = generation.request, self.wheel.now()
        cached = request.prompt.seed in self._cached
        paid = not cached or (request.produces_kv and self.settings.profile is None)
        self._cached.remember(request.prompt.seed)
        generation.begin(self._timing.prefill_done_at(request.prompt.count if paid else 0, now))

    def _pulled(self, generation: Generation, pull: Pull) -> None:
        if generation.over or self.core_stopped:
            return
        right = pull is Pull.RIGHT
        if right or pull is Pull.WRONG:
            self.stats.transfers += 1
            seed = generation.request.prompt.seed
            if right:
                self._cached.remember(seed)
            speech = None if right else generation.speech(wrong_seed(seed))
            generation.begin(self.wheel.now() + self.interval_s(), speech)
            return
        self.stats.failed_transfers += 1
        if self.settings.recompute:
            self._compute(generation)
            return
        port = generation.request.kv.get("remote_port")
        message = f"KV load from {generation.request.kv.get('remote_host')}:{port} failed ({pull.value})"
        generation.break_off(message, inside=pull is Pull.UNMET)

    def reset_prefix_cache(self) -> None:
        self._cached.clear()

    # --- the producer's side ------------------------------------------------------------------------

    def serve_pull(self, kv: RemoteKv, mark: int) -> Pull:
        """A consumer reads blocks and tells that they may be freed."""
        if kv.side.engine_id != self._engine_id:
            return Pull.UNKNOWN_ENGINE
        right = self.pool.hold_mark(kv.blocks, mark)
        if self.ledger.consume(kv.request_id):
            asyncio.get_running_loop().call_soon(self._admit)
        return Pull.RIGHT if right else Pull.WRONG

    def free_refused(self, request_kv: RemoteKv) -> None:
        """A decode that was refused as too long tells the producer too, a little later."""
        self.wheel.add(Later(lambda: self._peers.release(request_kv)), self.wheel.now() + _REFUSED_FREES_S)
