"""The sidecar's binding: a row of its table each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from narwhal.attest.binding import Binding
from narwhal.model.identity import EngineIdentity

A = EngineIdentity("0.32.0", 1795979050.83)
NEXT = EngineIdentity("0.32.0", 1795979099.01)
NEWER = EngineIdentity("0.33.0", 1795979099.01)


def test_it_binds_to_a_process_of_the_documents_version() -> None:
    binding = Binding("0.32.0")
    assert binding.judge(A) == ""
    assert binding.identity == A
    assert binding.judge(A) == ""


def test_another_version_is_not_bound() -> None:
    binding = Binding("0.32.0")
    assert binding.judge(NEWER) == "the engine runs vLLM 0.33.0, the document is about 0.32.0"
    assert binding.identity is None
    assert binding.judge(A) == ""


def test_another_start_is_lost_for_good_also_when_the_old_one_seems_back() -> None:
    binding = Binding("0.32.0")
    binding.judge(A)
    lost = binding.judge(NEXT)
    assert lost == (
        "the engine is vLLM 0.32.0 started at 1795979099.01 and was vLLM 0.32.0 started at 1795979050.83: "
        "restart this sidecar"
    )
    assert binding.judge(A) == lost
    assert binding.judge(NEXT) == lost


def test_the_same_start_with_another_version_is_another_process() -> None:
    binding = Binding("0.32.0")
    binding.judge(A)
    assert "restart this sidecar" in binding.judge(EngineIdentity("0.33.0", A.process_start))


def test_rebind_follows_to_the_next_process_of_the_version() -> None:
    binding = Binding("0.32.0", rebind=True)
    binding.judge(A)
    assert binding.judge(NEXT) == ""
    assert binding.identity == NEXT


def test_rebind_refuses_another_version_until_the_right_one_is_back() -> None:
    binding = Binding("0.32.0", rebind=True)
    binding.judge(A)
    assert binding.judge(NEWER) == "the engine runs vLLM 0.33.0, the document is about 0.32.0"
    assert binding.identity is None
    assert binding.judge(NEXT) == ""


identities = st.builds(
    EngineIdentity, st.sampled_from(["0.32.0", "0.33.0"]), st.sampled_from([1.0, 2.0, 3.0])
)


@given(st.booleans(), st.lists(identities, max_size=12))
def test_it_vouches_only_for_the_documents_version_and_without_rebind_for_one_process(
    rebind: bool, seen: list[EngineIdentity]
) -> None:
    binding = Binding("0.32.0", rebind=rebind)
    vouched = []
    for one in seen:
        if binding.judge(one) == "":
            vouched.append(one)
            assert binding.identity == one
        binding.check_invariants()
    assert all(one.vllm_version == "0.32.0" for one in vouched)
    if not rebind:
        assert len(set(vouched)) <= 1
