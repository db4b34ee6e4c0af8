"""Key names, and that every script's header tells the keys it is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from narwhal.store.keys import SCRIPT_KEYS, Keys
from narwhal.store.memory import READ_ONLY
from narwhal.store.memory_scripts import SCRIPTS
from narwhal.store.scripts import load, lua_directory


def test_every_key_carries_the_one_hash_tag():
    keys = Keys("llama-3.1")
    assert keys["lease"] == "narwhal:{llama-3.1}:lease"
    assert keys.router("a:1") == "narwhal:{llama-3.1}:router:a:1"
    assert keys.of("lease_renew") == [keys["lease"], keys["epoch"], keys["claims"]]
    assert keys.of("router_announce") == [keys["routers"]]


def test_there_is_a_file_a_model_and_a_key_list_for_each_script():
    files = {path.stem for path in lua_directory().glob("*.lua")}
    assert files == set(SCRIPT_KEYS) == set(SCRIPTS)


def test_the_documentation_tells_every_key():
    text = (Path(__file__).parents[3] / "docs" / "redis.md").read_text(encoding="utf-8")
    told = {
        line.split("`")[1]
        for line in text.splitlines()
        if re.match(r"\| `[^`]+` \| (hash|string|zset|stream) ", line)
    }
    assert told == {name.removesuffix("...") for names in SCRIPT_KEYS.values() for name in names}


@pytest.mark.parametrize("script", sorted(SCRIPT_KEYS))
def test_the_header_names_the_script_and_its_keys_in_order(script):
    body = load(script).body
    assert body.startswith(f"-- {script}: ")
    told = [
        (int(n), name.rstrip(",")) for n, name in re.findall(r"^-- KEYS\[(\d+)\] (\S+)", body, re.MULTILINE)
    ]
    assert told == list(enumerate((name.removesuffix("...") for name in SCRIPT_KEYS[script]), start=1))
    assert "\n-- Replies\n" in body


@pytest.mark.parametrize("script", sorted(SCRIPT_KEYS))
def test_the_first_write_is_an_hdel_and_readers_write_nothing(script):
    calls = re.findall(r"redis\.p?call\('(\w+)'", load(script).body)
    writes = [
        name
        for name in calls
        if name in ("HDEL", "HSET", "SET", "DEL", "XADD", "XTRIM", "PEXPIRE", "ZADD", "ZREM")
    ]
    assert writes[:1] == ([] if script in READ_ONLY else ["HDEL"])


@pytest.mark.parametrize("script", sorted(SCRIPT_KEYS))
def test_keys_come_only_through_keys(script):
    body = load(script).body
    assert "narwhal:" not in body
    first = re.findall(r"redis\.call\('(?!INFO|TIME|XINFO)\w+', ([\w\[\]]+)", body)
    assert set(first) <= {f"KEYS[{n}]" for n in range(1, 6)} | {"key"}
