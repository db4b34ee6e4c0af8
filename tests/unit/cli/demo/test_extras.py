"""What the demo says before and after its run: missing extras and how to get them, lines to try."""

from __future__ import annotations

import pytest

from narwhal.cli.demo import command
from narwhal.cli.demo.extras import INSTALL, ExtraMissing, redis_server
from narwhal.store.keys import Keys


def test_the_servers_of_the_path_come_first() -> None:
    assert redis_server(lambda name: f"/somewhere/{name}") == "/somewhere/redis-server"


def test_a_wheel_brings_a_server_that_the_path_has_not() -> None:
    found = redis_server(lambda name: None)
    assert found.endswith(("redis-server", "valkey-server"))


def test_a_missing_extra_ends_with_status_2_and_the_pip_line(capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> str:
        raise ExtraMissing("the openai package")

    assert command.main([], extras=missing) == 2
    assert INSTALL in capsys.readouterr().err


def test_the_lines_to_try_name_the_keys_that_are_there() -> None:
    keys = Keys("simulated")
    assert any(f"hgetall '{keys['lease']}'" in line for line in command.store_lines(6379))
