"""How one engine of the fleet is started: environment and arguments of `vllm serve`, and of docker around it.

Flags as vLLM 0.32.0 knows them. The key is in neither line: both take it from container.env.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from narwhal.cli.engine.env_files import FILES
from narwhal.config.load import FleetReading
from narwhal.model.settings import FleetConfig

SIDE_PORT: Final = 5600
"""vLLM's default; further engines of one host get the ports behind it."""
FENCE: Final = "narwhal.fence.EpochFence"
KV_ROLE: Final = "kv_both"
"""Roles are labels: every engine can do both legs."""
KEY_FILE: Final = "container.env"
KEY_VARIABLE: Final = FILES[KEY_FILE]
CONTAINER_PATH: Final = "/opt/narwhal"
_PORTS: Final = {"http": 80, "https": 443}
_WIDTH: Final = 100

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """`arguments` follow `vllm serve`; `notes` are sentences for whoever reads the lines, may be empty."""

    iid: str
    env: Mapping[str, str]
    arguments: Words
    image: str
    gpus: str
    keyed: bool
    notes: Words

    def shell(self) -> str:
        """For a POSIX shell, in the folder where container.env is, if the engine wants a key."""
        key = f"set -a; . ./{KEY_FILE}; set +a\n" if self.keyed else ""
        return key + _wrapped(self._shell_words())

    def script(self) -> str:
        """A POSIX shell's, for a supervisor that sets the variables of container.env: it becomes the engine.
        Without its key the engine would serve everybody, so it is not started."""
        unset = f"is not set: it is in {KEY_FILE}"
        key = f': "${{{KEY_VARIABLE}:?{unset}}}"\n' if self.keyed else ""
        return f"#!/bin/sh\n{key}" + _wrapped(["exec env", *self._shell_words()])

    def _shell_words(self) -> list[str]:
        env = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return [*env, *map(shlex.quote, ("vllm", "serve", *self.arguments))]

    def docker(self) -> str:
        return _wrapped([shlex.quote(word) for word in self.docker_words()])

    def docker_words(self) -> list[str]:
        """The fence is mounted from ./fence: the package's __init__.py and fence.py."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", f"narwhal-{self.iid}")
        words = ["docker", "run", "--rm", "--name", name, "--network", "host", "--ipc", "host"]
        words += ["--gpus", self.gpus]
        if self.keyed:
            words += ["--env-file", KEY_FILE]
        for name, value in self.env.items():
            # Docker hands over the GPU itself; inside it is the only one.
            if name != "CUDA_VISIBLE_DEVICES":
                words += ["--env", f"{name}={value}"]
        words += ["--env", f"PYTHONPATH={CONTAINER_PATH}", "--volume", f"./fence:{CONTAINER_PATH}/narwhal:ro"]
        return [*words, "--entrypoint", "vllm", self.image, "serve", *self.arguments]

    def document(self) -> dict[str, Any]:
        """`narwhal.engine-command` v1."""
        return {
            "schema": "narwhal.engine-command",
            "schema_version": 1,
            "iid": self.iid,
            "env": dict(self.env),
            "env_file": KEY_FILE if self.keyed else None,
            "vllm": ["vllm", "serve", *self.arguments],
            "docker": self.docker_words(),
            "notes": list(self.notes),
        }


def launch_of(reading: FleetReading, iid: str) -> Launch:
    """`iid` is an engine of the fleet."""
    config = reading.config
    index = next(index for index, spec in enumerate(config.engines) if spec.iid == iid)
    place = urlsplit(config.engines[index].url)
    device = _shared_device(reading, index)
    gpu = str(device.get("gpu_uuid") or "")
    env = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": place.hostname or "",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(_side_port(config, index)),
    }
    return Launch(
        iid=iid,
        env={**env, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})},
        arguments=(
            config.model,
            *_address(place),
            "--middleware",
            FENCE,
            *_contract(config.contract or {}),
            *_hardware(config.hardware or {}, device),
        ),
        image=_image(config.contract or {}),
        gpus=f"device={gpu}" if gpu else "all",
        keyed=bool(config.engine.engine_api_key_env),
        notes=_notes(config, place),
    )


def _shared_device(reading: FleetReading, index: int) -> dict[str, Any]:
    prefix = f"engines[{index}].shared_device."
    found = {name: value for name, value in reading.values.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in found.items()}


def _side_port(config: FleetConfig, index: int) -> int:
    """Each rank of an older vLLM has a port of its own behind the first."""
    host = urlsplit(config.engines[index].url).hostname
    before = [spec for spec in config.engines[:index] if urlsplit(spec.url).hostname == host]
    return SIDE_PORT + len(before) * int((config.hardware or {}).get("tensor_parallel", 1))


def _address(place: SplitResult) -> Words:
    """An engine that is named by an address listens there only."""
    port = str(place.port or _PORTS[place.scheme])
    host = place.hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return ("--port", port)
    return ("--host", host, "--port", port)


def _contract(contract: Mapping[str, Any]) -> Words:
    words: list[str] = []
    flags = {
        "model_dtype": "--dtype",
        "kv_cache_dtype": "--kv-cache-dtype",
        "attention_backend": "--attention-backend",
    }
    for name, flag in flags.items():
        if name in contract:
            words += [flag, str(contract[name])]
    if "hybrid_kv_cache_manager" in contract:
        off = "" if contract["hybrid_kv_cache_manager"] is False else "no-"
        words.append(f"--{off}disable-hybrid-kv-cache-manager")
    if _is_json(contract.get("speculative_config")):
        words += ["--speculative-config", str(contract["speculative_config"])]
    return (*words, "--kv-transfer-config", json.dumps(_transfer(contract)))


def _transfer(contract: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if contract.get("enforce_handshake_compat") is False:
        extra["enforce_handshake_compat"] = False
    if contract.get("cross_layers_blocks") is True:
        extra["enable_cross_layers_blocks"] = "True"
    transfer = {
        "kv_connector": contract.get("connector", "NixlConnector"),
        "kv_role": contract.get("kv_role", KV_ROLE),
    }
    return {**transfer, **({"kv_connector_extra_config": extra} if extra else {})}


def _is_json(text: Any) -> bool:
    """`none` and other words are for people; an object is what the flag takes."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _hardware(hardware: Mapping[str, Any], device: Mapping[str, Any]) -> Words:
    words: list[str] = []
    if hardware.get("tensor_parallel", 1) > 1:
        words += ["--tensor-parallel-size", str(hardware["tensor_parallel"])]
    if device.get("gpu_memory_utilization"):
        words += ["--gpu-memory-utilization", f"{device['gpu_memory_utilization']:g}"]
    return tuple(words)


def _image(contract: Mapping[str, Any]) -> str:
    if digest := contract.get("image_digest"):
        return f"vllm/vllm-openai@{digest}"
    version = contract.get("vllm_version")
    return f"vllm/vllm-openai:v{version}" if version else "vllm/vllm-openai:latest"


def _notes(config: FleetConfig, place: SplitResult) -> Words:
    notes = ["./fence (docker): narwhal/__init__.py and narwhal/fence.py; without docker: the package"]
    if config.engine.engine_api_key_env:
        notes.append("container.env: narwhal engine env --fleet ... --iid ... --out .")
    if place.scheme == "https":
        notes.append("the URL is https: add --ssl-certfile and --ssl-keyfile, or end TLS in front of it")
    speculative = (config.contract or {}).get("speculative_config", "none")
    if speculative != "none" and not _is_json(speculative):
        notes.append(
            f"speculative_config {speculative!r} is no JSON object: add --speculative-config by hand"
        )
    if not config.contract:
        notes.append("no engine_contract: version, data types and cache settings are vLLM's own")
    return tuple(notes)


def _wrapped(words: list[str]) -> str:
    """Lines of a hundred characters, a flag and its value together."""
    groups: list[str] = []
    for word in words:
        joins = groups and groups[-1].startswith("-") and " " not in groups[-1] and not word.startswith("-")
        if joins:
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines = [groups[0]]
    for group in groups[1:]:
        if len(lines[-1]) + len(group) < _WIDTH:
            lines[-1] += f" {group}"
        else:
            lines.append(f"    {group}")
    return " \\\n".join(lines)
