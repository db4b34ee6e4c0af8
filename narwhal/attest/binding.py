"""What the sidecar is bound to. Pure: one look at the engine in, a refusal or none out.

| bound to | seen | with `rebind` | then |
| --- | --- | --- | --- |
| nothing | the document's version | | bound to it |
| nothing | another version | | refused, still bound to nothing |
| A | A | | vouches |
| A | another start or version | no | lost: refuses for good |
| A | another start, the document's version | yes | bound to it, vouches |
| A | another version | yes | refused, bound to nothing |
| lost | anything, A too | no | refuses: what came between is not known |

An engine that does not answer is not seen: that one request is refused and nothing changes.
"""

from __future__ import annotations

from narwhal.model.identity import EngineIdentity


class Binding:
    """`version`: the document's; `rebind`: whether to follow the engine to its next process."""

    def __init__(self, version: str, *, rebind: bool = False) -> None:
        self._version = version
        self._rebind = rebind
        self.identity: EngineIdentity | None = None
        self._lost = ""

    def judge(self, seen: EngineIdentity) -> str:
        """Why the sidecar may not vouch for what it sees; "": it may."""
        if self._lost:
            return self._lost
        bound = self.identity
        if bound is not None and seen == bound:
            return ""
        if bound is not None and not self._rebind:
            self.identity = None
            self._lost = f"the engine is {seen.words} and was {bound.words}: restart this sidecar"
            return self._lost
        return self._bind(seen)

    def _bind(self, seen: EngineIdentity) -> str:
        if seen.vllm_version != self._version:
            self.identity = None
            return f"the engine runs vLLM {seen.vllm_version}, the document is about {self._version}"
        self.identity = seen
        return ""

    def check_invariants(self) -> None:
        assert not (self._lost and self.identity is not None)
        assert self.identity is None or self.identity.vllm_version == self._version
