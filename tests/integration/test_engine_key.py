"""Engines that want a key get it from the router, and never the client's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import engine_process
from tests.support.router import fleet_document, router_process
from tests.support.wire import ask, play

BODY = {"prompt": "locked", "max_tokens": 2}


@pytest.mark.parametrize(("with_key", "status"), [(True, 200), (False, 502)])
def test_the_routers_key_opens_the_engines_and_the_clients_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_key: bool, status: int
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "opens")
    with engine_process(2, "--prefill", "0", "--api-key-env", "ENGINE_KEY") as engines:
        section = {"engine_api_key_env": "ENGINE_KEY"} if with_key else {}
        fleet = fleet_document(engines.engines, engine=section)
        with router_process(tmp_path / "router", fleet) as router:
            asked = ask(router.url, "/v1/completions", body=BODY, authorization="Bearer opens")
            answer = play(asked)
            assert answer.status == status, answer.body
            assert "opens" not in answer.body.decode()
            if with_key:
                for engine in engines.engines:
                    seen = engine.stats(requests=True)["requests"][-1]
                    assert seen["headers"]["authorization"] == "Bearer opens"
            wanted = "engine-credential" if with_key else "boundary"
            assert router.state()["admission"]["engine_auth"] == wanted
            assert "opens" not in router.process.output
