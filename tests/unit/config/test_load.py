"""Fleet files: strict JSON, every problem in one go, references to variables, warnings, digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from narwhal.config.check import BUILT_IN_CONNECTORS, BUILT_IN_DIALECTS
from narwhal.config.load import load_fleet, read_fleet
from narwhal.config.schema import FIELDS
from narwhal.engine.dialect import DIALECTS
from narwhal.engine.kv_transfer import CONNECTORS
from narwhal.errors import ConfigError
from narwhal.model.engine import Role
from tests.support.fleets import COMPLETE_CONTRACT, contracted, fleet_document, write_fleet


def problems_of(path: Path | str, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_fleet(str(path), env or {})
    return [problem.removeprefix(f"{path}: ") for problem in caught.value.problems]


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "fleet.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# --- reading ------------------------------------------------------------------------------------------


def test_every_problem_is_one_line_with_the_file_first(tmp_path: Path) -> None:
    document = fleet_document(serving={"max_connections": "512", "max_attempts": 7}, modell="x")
    path = write_fleet(tmp_path, document)
    with pytest.raises(ConfigError) as caught:
        load_fleet(path, {})
    assert caught.value.problems == (
        f"{path}: modell is not a known field; did you mean model?",
        f'{path}: serving.max_connections must be an integer, got "512"',
        f"{path}: serving.max_attempts must be ≥ 1 and ≤ 3, got 7",
    )
    assert str(caught.value).count("\n") == 2


def test_a_byte_order_mark_and_carriage_returns_are_fine(tmp_path: Path) -> None:
    text = json.dumps(fleet_document(), indent=1).replace("\n", "\r\n")
    assert load_fleet(str(written(tmp_path, b"\xef\xbb\xbf" + text.encode())), {}).model == "tiny"


def test_annotations_are_free_at_every_depth(tmp_path: Path) -> None:
    document = fleet_document(_note="x", recovery={"_why": [1], "health": {"_": None}}, slo___comment=1)
    document["engines"][0]["_rack"] = {"a": 1}
    assert load_fleet(write_fleet(tmp_path, document), {}).model == "tiny"
    text = json.dumps(fleet_document()).replace('"model"', '"_a": 1, "_a": 2, "model"')
    assert load_fleet(str(written(tmp_path, text)), {}).model == "tiny"


def test_a_duplicate_key_is_told_with_its_place(tmp_path: Path) -> None:
    text = json.dumps(fleet_document()).replace('"ttft_s": 1.0', '"ttft_s": 1.0, "ttft_s": 1.0')
    assert problems_of(written(tmp_path, text)) == ["slo.ttft_s is given twice"]
    text = json.dumps(fleet_document()).replace('"iid": "e1"', '"iid": "e1", "iid": "e9"')
    assert problems_of(written(tmp_path, text)) == ["engines[1].iid is given twice"]


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e999", pytest.param("9" * 5000, id="long")]
)
def test_numbers_that_are_none_are_told_with_their_place(tmp_path: Path, literal: str) -> None:
    text = json.dumps(fleet_document()).replace('"ttft_s": 1.0', f'"ttft_s": {literal}')
    shown = "NaN" if literal == "NaN" else "Infinity"
    assert problems_of(written(tmp_path, text)) == [f"slo.ttft_s must be a finite number, got {shown}"]


def test_oddities_of_the_text_and_of_values_are_told_together(tmp_path: Path) -> None:
    document = fleet_document(engine={"connector": "x", "dialect": "y"})
    text = json.dumps(document).replace('"ttft_s": 1.0', '"ttft_s": NaN')
    assert problems_of(written(tmp_path, text)) == [
        "slo.ttft_s must be a finite number, got NaN",
        'engine.connector must be one of nixl, got "x"',
        'engine.dialect must be one of vllm, got "y"',
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON: line 1 column 1"),
        (b'{"a": 1,}', "not JSON: line 1 column 9"),
        (b"\xff\xfe{}", "not UTF-8: byte 0 is 0xff"),
        pytest.param(b"[" * 200_000, "nested too deeply", id="deep"),
        (b"[]", "the document must be an object, got a list"),
        (b"null", "the document must be an object, got null"),
    ],
)
def test_a_text_that_is_no_document_is_told(tmp_path: Path, text: bytes, words: str) -> None:
    problems = problems_of(written(tmp_path, text))
    assert len(problems) == 1
    assert words in problems[0]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none.json") == ["cannot be read: No such file or directory"]
    assert problems_of(tmp_path) == ["cannot be read: Is a directory"]


def test_strange_keys_and_long_values_stay_on_one_short_line(tmp_path: Path) -> None:
    document = fleet_document(
        **{"a\nb": 1, "\ud800": 2, "": 3}, model=["x" * 900], serving__admission="y" * 900
    )
    problems = problems_of(write_fleet(tmp_path, document))
    assert len(problems) == 5
    assert all("\n" not in problem and len(problem) < 200 and problem.isprintable() for problem in problems)
    "".join(problems).encode()


# --- references and URLs ------------------------------------------------------------------------------


def with_url(url: str) -> dict[str, Any]:
    document = fleet_document()
    document["engines"][0]["url"] = url
    return document


def test_a_url_may_be_a_variable(tmp_path: Path) -> None:
    path = write_fleet(tmp_path, with_url("${E0_URL}"))
    reading = read_fleet(path, {"E0_URL": " http://e0:8000/ "})
    assert reading.config.engines[0].url == "http://e0:8000"
    assert reading.sources["engines[0].url"] == "file, by ${E0_URL}"
    assert reading.variables == {"E0_URL"}


@pytest.mark.parametrize(
    ("url", "env", "words"),
    [
        ("${E0}", {}, "refers to ${E0}, which is not set"),
        ("${E0}", {"E0": "  "}, "refers to ${E0}, which is blank"),
        ("${E0}", {"E0": "${E1}"}, "refers to ${E0}, whose value holds another reference"),
        ("${E0}/v1", {"E0": "http://h"}, "must be a URL or exactly ${NAME}, with nothing around or inside"),
        ("${E0:-http://h}", {}, "must be a URL or exactly ${NAME}, with nothing around or inside"),
        ("${E0", {}, "must be a URL or exactly ${NAME}, with nothing around or inside"),
        ("h:8000", {}, "must be a URL that begins with http:// or https://"),
        ("ftp://h", {}, "must be a URL that begins with http:// or https://"),
        ("http://", {}, "must name a host"),
        ("http://:8000", {}, "must name a host"),
        ("http://h:0", {}, "must have a port from 1 to 65535"),
        ("http://h:65536", {}, "must have a port from 1 to 65535"),
        ("http://h:x", {}, "must have a port from 1 to 65535"),
        ("http://h:", {}, "must have a port from 1 to 65535"),
        ("http://::1:8000", {}, "must write an IPv6 address in brackets"),
        ("http://[::1", {}, "is not a URL (an IPv6 address stands in brackets)"),
        ("http://h h", {}, "must not hold white space or control characters"),
        ("http://h\n", {}, "must not hold white space or control characters"),
        ("http://u:p@h", {}, "must not hold a user name or password"),
        ("http://h/?a=1", {}, "must have no query and no fragment"),
        ("http://h/#a", {}, "must have no query and no fragment"),
        ("http://-h", {}, "must name a host of letters, digits, dots and hyphens"),
        ("http://a..b", {}, "must name a host whose parts have 1 to 63 characters"),
        (f"http://{'a' * 64}.b", {}, "must name a host whose parts have 1 to 63 characters"),
    ],
)
def test_a_wrong_url_is_told(tmp_path: Path, url: str, env: dict[str, str], words: str) -> None:
    assert problems_of(write_fleet(tmp_path, with_url(url)), env) == [f"engines[0].url {words}"]
    document = fleet_document()
    document["engines"][0]["attestation_url"] = url
    problems = problems_of(write_fleet(tmp_path, document), env)
    assert problems == [f"engines[0].attestation_url {words}"]


@pytest.mark.parametrize("url", ["http://[::1]:8000", "https://engine_1.internal/prefix", "HTTP://H:1"])
def test_fine_urls_pass_less_their_trailing_slash(tmp_path: Path, url: str) -> None:
    assert load_fleet(write_fleet(tmp_path, with_url(url + "/")), {}).engines[0].url == url


def test_a_reference_elsewhere_is_literal_text(tmp_path: Path) -> None:
    assert (
        load_fleet(write_fleet(tmp_path, fleet_document(model="${MODEL}")), {"MODEL": "x"}).model
        == "${MODEL}"
    )


# --- what comes out -----------------------------------------------------------------------------------


def test_a_minimal_file_gives_the_documented_defaults(tmp_path: Path) -> None:
    config = load_fleet(write_fleet(tmp_path, fleet_document()), {})
    assert [engine.role for engine in config.engines] == [Role.PREFILL, Role.DECODE, Role.DECODE]
    assert config.serving.admission == "predictive"
    assert config.serving.handoff_timeout_s == 25.0
    assert config.engine.control_connections == 6
    assert config.recovery.state_path == "runs/state.json"
    assert config.controller.reactive.evidence_max_span_s == 120.0
    assert (config.contract, config.hardware, config.contract_complete) == (None, None, False)


def test_every_field_of_the_table_reaches_values_and_sources(tmp_path: Path) -> None:
    document = contracted(hardware={"accelerator": "a", "accelerators_per_engine": 1, "tensor_parallel": 1})
    for engine in document["engines"]:
        engine["shared_device"] = {
            "group": "g", "gpu_uuid": "u", "device_allowance": 1, "gpu_memory_utilization": 0.3,
        }  # fmt: skip
    reading = read_fleet(write_fleet(tmp_path, document), {})
    for field in FIELDS:
        path = field.path.replace("engines[]", "engines[0]")
        assert path in reading.values
        assert path in reading.sources


def test_a_contract_holds_its_set_values_and_knows_when_it_is_complete(tmp_path: Path) -> None:
    config = load_fleet(write_fleet(tmp_path, contracted()), {})
    assert config.contract == {
        **COMPLETE_CONTRACT, "connector": "NixlConnector", "enforce_handshake_compat": True,
    }  # fmt: skip
    assert config.contract_complete
    config = load_fleet(write_fleet(tmp_path, contracted(engine_contract__kv_heads=0)), {})
    assert "kv_heads" not in (config.contract or {})
    assert not config.contract_complete


# --- warnings -----------------------------------------------------------------------------------------


def warnings_of(folder: Path, **changes: Any) -> list[str]:
    path = write_fleet(folder, fleet_document(**{"serving": {"admission": "open"}, **changes}))
    return [warning.removeprefix(f"{path}: ") for warning in read_fleet(path, {}).warnings]


def test_a_plain_open_fleet_has_nothing_to_warn_of(tmp_path: Path) -> None:
    assert warnings_of(tmp_path) == []


def test_fields_of_later_parts_are_named_in_one_line(tmp_path: Path) -> None:
    serving = {"admission": "open", "prefill_concurrency": 8, "decode_concurrency": 2}
    controller = {"reactive": {"step_s": 2}}
    assert warnings_of(tmp_path, serving=serving, controller=controller) == [
        "accepted, but this version does not act on it yet: role control (controller.reactive.step_s)"
    ]


def test_values_that_ask_nothing_of_a_later_part_are_not_named(tmp_path: Path) -> None:
    serving = {"admission": "open", "prefill_concurrency": 0, "admission_margin": 0}
    assert warnings_of(tmp_path, serving=serving) == []


def test_a_contracted_fleet_has_nothing_to_warn_of(tmp_path: Path) -> None:
    path = write_fleet(tmp_path, contracted(serving__admission="open"))
    assert read_fleet(path, {}).warnings == ()


def test_predictive_admission_is_told_even_as_the_default(tmp_path: Path) -> None:
    sentence = "serving.admission is predictive, which this version serves as open"
    assert warnings_of(tmp_path, serving={}) == [sentence]


@pytest.mark.parametrize(
    ("pins", "floors", "warned"),
    [
        ("Pd", (1, 1), []),
        ("PD", (1, 1), []),
        ("PP", (1, 1), ["pins leave no engine for decode: every request will be answered 503"]),
        ("DDD", (1, 1), ["pins leave no engine for prefill: every request will be answered 503"]),
        (
            "PPPD",
            (1, 2),
            ["pins leave 1 for decode, fewer than controller.min_decode (2): that floor is never met"],
        ),
        ("PPpD", (1, 2), []),
        ("P", (1, 1), ["pins leave no engine for decode: every request will be answered 503"]),
    ],
)
def test_pins_that_leave_a_leg_without_its_engines_are_warned_of(
    tmp_path: Path, pins: str, floors: tuple[int, int], warned: list[str]
) -> None:
    """Upper case: pinned."""
    engines = [
        {
            "iid": f"e{n}",
            "url": f"http://h{n}:1",
            "role": "prefill" if letter in "pP" else "decode",
            "pin": letter.isupper(),
        }
        for n, letter in enumerate(pins)
    ]
    controller = dict(zip(("min_prefill", "min_decode"), floors, strict=True))
    assert warnings_of(tmp_path, engines=engines, controller=controller) == warned


# --- digest -------------------------------------------------------------------------------------------


def digest(folder: Path, document: dict[str, Any], env: dict[str, str] | None = None) -> str:
    return load_fleet(write_fleet(folder, document), env or {}).digest


def test_the_digest_is_that_of_effective_shared_values(tmp_path: Path) -> None:
    plain = digest(tmp_path, fleet_document())
    assert plain == digest(tmp_path, fleet_document(serving__max_connections=512, _note="x"))
    assert plain == digest(tmp_path, fleet_document(recovery__state_path="/a", profiles__path="/b"))
    assert plain != digest(tmp_path, fleet_document(serving__max_connections=513))
    turned = fleet_document()
    turned["engines"].reverse()
    assert plain == digest(tmp_path, turned)
    turned["engines"][0]["url"] = "http://elsewhere"
    assert plain != digest(tmp_path, turned)


def test_a_url_from_a_variable_counts_as_its_reference(tmp_path: Path) -> None:
    document = with_url("${E0}")
    here = digest(tmp_path, document, {"E0": "http://10.0.0.1"})
    assert here == digest(tmp_path, document, {"E0": "http://10.0.0.2"})


def test_the_names_that_files_may_use_are_those_of_the_registries() -> None:
    assert set(BUILT_IN_CONNECTORS) == set(CONNECTORS)
    assert set(BUILT_IN_DIALECTS) == set(DIALECTS)
