"""The command lines of one engine: what is in them, and what never is."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from narwhal.cli.engine.launch import Launch, launch_of
from narwhal.config.load import read_fleet
from tests.support.fleets import contracted, fleet_document, write_fleet


def launch(folder: Path, document: dict[str, Any], iid: str = "e1") -> Launch:
    return launch_of(read_fleet(write_fleet(folder, document), {}), iid)


def value_of(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_every_engine_has_nixl_both_ways_the_fence_and_its_own_side_channel(tmp_path: Path) -> None:
    plain = launch(tmp_path, fleet_document())
    assert plain.arguments == (
        "tiny", "--host", "127.0.0.1", "--port", "8101", "--middleware", "narwhal.fence.EpochFence",
        "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
    )  # fmt: skip
    assert plain.env == {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "5601",
    }
    assert launch(tmp_path, fleet_document(), "e0").env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


def test_engines_of_different_hosts_have_the_same_side_channel_port(tmp_path: Path) -> None:
    document = fleet_document()
    document["engines"][1]["url"] = "http://engine-1:8000"
    named = launch(tmp_path, document)
    assert named.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "engine-1"
    assert named.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert "--host" not in named.arguments


def test_the_contract_sets_data_types_and_cache(tmp_path: Path) -> None:
    words = launch(tmp_path, contracted()).arguments
    assert value_of(words, "--dtype") == "bfloat16"
    assert value_of(words, "--kv-cache-dtype") == "auto"
    assert value_of(words, "--attention-backend") == "FLASH_ATTN"
    assert "--disable-hybrid-kv-cache-manager" in words
    assert "--speculative-config" not in words


def test_unusual_contracts_reach_the_connector(tmp_path: Path) -> None:
    changes = {
        "engine_contract__enforce_handshake_compat": False,
        "engine_contract__cross_layers_blocks": True,
        "engine_contract__hybrid_kv_cache_manager": True,
        "engine_contract__speculative_config": '{"method": "ngram"}',
    }
    words = launch(tmp_path, contracted(**changes)).arguments
    extra = json.loads(value_of(words, "--kv-transfer-config"))["kv_connector_extra_config"]
    assert extra == {"enforce_handshake_compat": False, "enable_cross_layers_blocks": "True"}
    assert "--no-disable-hybrid-kv-cache-manager" in words
    assert value_of(words, "--speculative-config") == '{"method": "ngram"}'


def test_a_shared_gpu_and_tensor_parallelism_are_named(tmp_path: Path) -> None:
    document = contracted(
        hardware={"accelerator": "H100", "accelerators_per_engine": 2, "tensor_parallel": 2}
    )
    for index, share in ((0, 0.4), (1, 0.5)):
        document["engines"][index]["shared_device"] = {
            "group": "g", "gpu_uuid": "GPU-1", "device_allowance": 0.9, "gpu_memory_utilization": share,
        }  # fmt: skip
    shared = launch(tmp_path, document)
    assert value_of(shared.arguments, "--tensor-parallel-size") == "2"
    assert value_of(shared.arguments, "--gpu-memory-utilization") == "0.5"
    assert shared.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert shared.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5602"
    assert "device=GPU-1" in shared.docker_words()
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in shared.docker_words())


def test_docker_runs_the_contracts_image(tmp_path: Path) -> None:
    assert "vllm/vllm-openai:v0.32.0" in launch(tmp_path, contracted()).docker_words()
    digest = "sha256:" + "a" * 64
    pinned = launch(tmp_path, contracted(engine_contract__image_digest=digest))
    assert f"vllm/vllm-openai@{digest}" in pinned.docker_words()


def test_both_lines_take_the_key_from_the_file(tmp_path: Path) -> None:
    keyed = launch(tmp_path, contracted(engine__engine_api_key_env="ENGINE_KEY"))
    assert keyed.shell().startswith("set -a; . ./container.env; set +a\n")
    words = keyed.docker_words()
    assert words[words.index("--env-file") + 1] == "container.env"
    assert "API_KEY=" not in keyed.shell() + keyed.docker()
    assert "container.env" not in launch(tmp_path, contracted()).shell()


def test_a_shell_reads_back_what_was_meant(tmp_path: Path) -> None:
    odd = launch(tmp_path, fleet_document(model="it's a model"))
    words = shlex.split(odd.shell().replace("\\\n", " "))
    assert words == [f"{name}={value}" for name, value in odd.env.items()] + ["vllm", "serve", *odd.arguments]
    assert shlex.split(odd.docker().replace("\\\n", " ")) == odd.docker_words()


def test_what_the_lines_cannot_hold_is_told(tmp_path: Path) -> None:
    document = contracted(engine_contract__speculative_config="draft of 8 tokens")
    document["engines"][1]["url"] = "https://engine-1"
    told = launch(tmp_path, document)
    assert value_of(told.arguments, "--port") == "443"
    assert any("--ssl-certfile" in note for note in told.notes)
    assert any("draft of 8 tokens" in note for note in told.notes)


def test_a_text_that_is_too_deep_to_be_json_is_no_flag(tmp_path: Path) -> None:
    told = launch(tmp_path, contracted(engine_contract__speculative_config="[" * 100_000))
    assert "--speculative-config" not in told.arguments
