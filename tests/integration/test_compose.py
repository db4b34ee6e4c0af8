"""docker-compose.yml, and configs/compose.lifecycle.yml over it: valid by the Compose Specification, and
consistent with the files in configs/."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "tests/support/compose_spec/compose-spec.json"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft201909Validator:
    return jsonschema.Draft201909Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def port_of(service: dict[str, Any]) -> str:
    """The port that a service's health check asks for."""
    found = re.search(r"127\.0\.0\.1:(\d+)|\"?-p\"?,? \"?(\d+)", " ".join(service["healthcheck"]["test"]))
    assert found
    return found[1] or found[2]


def test_it_is_a_valid_compose_file(
    compose: dict[str, Any], validator: jsonschema.Draft201909Validator
) -> None:
    assert [error.message for error in validator.iter_errors(compose)] == []


def test_the_schema_refuses_a_wrong_one(
    compose: dict[str, Any], validator: jsonschema.Draft201909Validator
) -> None:
    wrong = json.loads(json.dumps(compose))
    wrong["services"]["redis"]["helthcheck"] = {}
    wrong["services"]["haproxy"]["depends_on"] = {"router-a": {"condition": "sometime"}}
    assert len(list(validator.iter_errors(wrong))) == 2


def test_every_service_has_a_health_check_and_a_port_of_its_own(compose: dict[str, Any]) -> None:
    ports = [port_of(service) for service in compose["services"].values()]
    assert len(set(ports)) == len(compose["services"]) == 8


def test_dependencies_wait_for_health_and_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services
            assert how == {"condition": "service_healthy"}
    assert set(services["haproxy"]["depends_on"]) == {"router-a", "router-b"}


def test_every_mounted_file_is_in_the_repository_and_every_volume_declared(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in compose["volumes"], (
                volume
            )


def test_the_fleet_file_names_the_engines_of_the_compose_file(compose: dict[str, Any]) -> None:
    fleet = json.loads((ROOT / "configs/fleet.json").read_text(encoding="utf-8"))
    services = compose["services"]
    expected = {f"http://{name}:{port_of(services[name])}" for name in services if name.startswith("engine-")}
    assert {engine["url"] for engine in fleet["engines"]} == expected


def test_haproxy_lists_both_routers_in_either_order(compose: dict[str, Any]) -> None:
    text = (ROOT / "configs/haproxy.cfg").read_text(encoding="utf-8")
    routers = [f"{name} {name}:{port_of(compose['services'][name])}" for name in ("router-a", "router-b")]
    listed = re.findall(r"^\s+server (\S+ \S+)$", text, re.MULTILINE)
    assert listed == [*routers, *routers, *reversed(routers)]


# --- configs/compose.lifecycle.yml, over the first one ------------------------------------------------


@pytest.fixture(scope="module")
def over() -> dict[str, Any]:
    text = (ROOT / "configs/compose.lifecycle.yml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def option(service: dict[str, Any], name: str) -> str:
    (found,) = [word.split("=", 1)[1] for word in service["command"] if word.startswith(f"--{name}=")]
    return found


def test_it_adds_a_sidecar_to_each_engine_and_a_shell(compose: dict[str, Any], over: dict[str, Any]) -> None:
    engines = sorted(name for name in compose["services"] if name.startswith("engine-"))
    sidecars = [name.replace("engine", "sidecar") for name in engines]
    assert sorted(over["services"]) == sorted([*sidecars, "router-a", "router-b", "operator"])
    for engine, sidecar in zip(engines, sidecars, strict=True):
        service = over["services"][sidecar]
        assert service["depends_on"] == {engine: {"condition": "service_healthy"}}
        assert option(service, "engine-base") == f"http://{engine}:{port_of(compose['services'][engine])}"
        assert option(service, "port") == port_of(service)
    for router in ("router-a", "router-b"):
        assert set(over["services"][router]["depends_on"]) == set(sidecars)


def test_its_fleet_is_the_first_ones_with_a_contract_that_the_sidecars_attest(over: dict[str, Any]) -> None:
    first, fleet, attested = (
        json.loads((ROOT / "configs" / name).read_text(encoding="utf-8"))
        for name in ("fleet.json", "fleet.lifecycle.json", "attestation.json")
    )
    urls = [engine.pop("attestation_url") for engine in fleet["engines"]]
    assert fleet["engines"] == first["engines"]
    assert fleet["engine_contract"] == attested["contract"]
    sidecars = {name: row for name, row in over["services"].items() if name.startswith("sidecar-")}
    assert urls == [f"http://{name}:{port_of(row)}/v1/attestation" for name, row in sidecars.items()]


def test_its_files_are_in_the_repository_and_replace_those_of_the_first(
    compose: dict[str, Any], over: dict[str, Any]
) -> None:
    for name, service in over["services"].items():
        for volume in service.get("volumes", []):
            source, inside = volume.split(":")[:2]
            assert (ROOT / source).is_file()
            if name in compose["services"]:
                assert inside in [one.split(":")[1] for one in compose["services"][name]["volumes"]]


def test_the_shell_finds_a_routers_control_listener_and_has_its_key(over: dict[str, Any]) -> None:
    shell, router = (over["services"][name]["environment"] for name in ("operator", "router-a"))
    assert shell["NARWHAL_ROUTER"] == f"http://router-a:{router['NARWHAL_CONTROL_PORT']}"
    named = shell["NARWHAL_CONTROL_KEY_ENV"]
    assert router["NARWHAL_CONTROL_KEY_ENV"] == named
    assert shell[named] == router[named] != ""
