"""The samples file: kept as it comes, read back, and never mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from narwhal.config.samples import SamplesFile
from narwhal.errors import ConfigError
from narwhal.model.sample import Phase, Point, Sample

ONE = Sample("e0", Point(Phase.PREFILL, 1, 64), 0, 66, 0.0123, "0.32.0")
TWO = Sample("e1", Point(Phase.DECODE, 8, 128), 1, 1100, 0.021, "0.32.0")


def opened(path: Path, *, model: str = "tiny", engine_auth: str = "boundary") -> SamplesFile:
    return SamplesFile(path, model=model, engine_auth=engine_auth)


def filled(path: Path) -> Path:
    with opened(path) as file:
        file.keep(ONE)
        file.keep(TWO)
    return path


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    path = filled(tmp_path / "made" / "samples.jsonl")
    with opened(path) as file:
        assert file.samples == [ONE, TWO]


def test_a_sample_is_on_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    with opened(path) as file:
        file.keep(ONE)
        assert path.read_text().count("\n") == 2


def test_a_line_that_a_kill_has_cut_is_dropped_and_the_next_stands_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    with opened(path) as file:
        assert file.samples == [ONE]
        file.keep(TWO)
    with opened(path) as file:
        assert file.samples == [ONE, TWO]


def test_a_header_that_a_kill_has_cut_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"schema": "narw')
    with opened(path) as file:
        file.keep(ONE)
    with opened(path) as file:
        assert file.samples == [ONE]


def test_dropped_engines_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.jsonl")
    with opened(path) as file:
        file.drop(["e0"])
        assert file.samples == [TWO]
        file.keep(ONE)
    with opened(path) as file:
        assert file.samples == [TWO, ONE]
    assert [one.name for one in tmp_path.iterdir()] == ["samples.jsonl"]


def test_samples_of_another_model_or_auth_mode_are_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "samples.jsonl")
    with pytest.raises(ConfigError, match=r"model is 'tiny', this run's is 'other': name another --samples"):
        opened(path, model="other")
    with pytest.raises(ConfigError, match="engine_auth is 'boundary'"):
        opened(path, engine_auth="engine-credential")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nothing", "line 4 is no JSON object"),
        ("{}", "line 4 is no sample: 'iid'|line 4 is no sample: 'phase'"),
        (
            '{"iid": "e0", "phase": "prefill", "requests": 1, "about_tokens": 64, "repeat": 0, "tokens": 66, '
            '"seconds": 0, "vllm_version": "1"}',
            "line 4 is no sample: 0 is no positive number of seconds",
        ),
        (
            '{"iid": "e0", "phase": "prefill", "requests": true, "about_tokens": 64, "repeat": 0, '
            '"tokens": 66, "seconds": 1, "vllm_version": "1"}',
            "True is no whole number of at least 1",
        ),
        (
            '{"iid": "e0", "phase": "prefill", "requests": 1, "about_tokens": 64, "repeat": 0, '
            f'"tokens": 1{"0" * 400}, "seconds": 1, "vllm_version": "1"}}',
            "line 4 is no sample: 10* is no whole number of at least 1",
        ),
        (
            '{"iid": "e0", "phase": "prefill", "requests": 1, "about_tokens": 64, "repeat": 0, '
            f'"tokens": 66, "seconds": 1{"0" * 400}, "vllm_version": "1"}}',
            "line 4 is no sample: 10* is no positive number of seconds",
        ),
    ],
)
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = filled(tmp_path / "samples.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=said):
        opened(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        opened(tmp_path / "file" / "samples.jsonl")


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    """Also where the first one has replaced it by a shorter one."""
    path = filled(tmp_path / "samples.jsonl")
    before = path.read_bytes()
    with opened(path) as mine:
        with pytest.raises(ConfigError, match="another narwhal-profile is measuring with it"):
            opened(path)
        assert path.read_bytes() == before
        mine.drop(["e0"])
        with pytest.raises(ConfigError, match="another narwhal-profile is measuring with it"):
            opened(path)
        mine.keep(ONE)
    with opened(path) as later:
        assert later.samples == [TWO, ONE]
