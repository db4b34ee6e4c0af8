"""The simulated vLLM engine (engines.md section 3): real HTTP, real KV handoffs, no GPU.

    Rack        several engines on one event loop, each with its listeners
    SimEngine   one engine: routes, scheduling, identity, faults
    Generation  one request being generated, driven by the timer wheel

It imports nothing of the router: what it knows of the wire is written down here a second time, from
the recorded facts, so that router and engine cannot agree on a mistake by sharing code.
"""
