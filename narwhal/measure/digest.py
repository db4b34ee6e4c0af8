"""The generation digest: what an engine says to one fixed prompt. It changes when the model, its weights or
the numerics of the engine do; a profile that was measured before that is one of another engine."""

from __future__ import annotations

import hashlib

from narwhal.measure.legs import Legs

DIGEST_PROMPT = "The narwhal is a small whale of the Arctic seas. Its tusk is"
DIGEST_TOKENS = 16


async def generation_digest(legs: Legs, iid: str) -> str:
    """`sha256:` and hex. Raises the EngineErrors of `Legs.speak`."""
    speech = await legs.speak(iid, DIGEST_PROMPT, tokens=DIGEST_TOKENS)
    return f"sha256:{hashlib.sha256(speech.text.encode()).hexdigest()}"
