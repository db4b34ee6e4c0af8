"""The package as others get it: a wheel and an editable install, each with the Lua scripts in reach."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import site, sys
known = list(sys.path)
site.addsitedir(sys.argv[1])  # reads the .pth file of an editable install
sys.path[:0] = [sys.argv[1], *(path for path in sys.path if path not in known)]
import narwhal
from narwhal.store import scripts
print(narwhal.__file__)
print(scripts.lua_directory())
for path in sorted(scripts.lua_directory().glob("*.lua")):
    scripts.load(path.stem)
    print(path.stem)
"""


def build(kind: str, into: Path) -> Path:
    """Through the build backend's own hook, so that nothing is fetched."""
    hook = f"import sys; from hatchling.build import build_{kind} as build; print(build(sys.argv[1]))"
    command = [sys.executable, "-c", hook, str(into)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120)
    return into / done.stdout.split()[-1]


def install(wheel: Path, target: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def probe(target: Path, folder: Path) -> list[str]:
    """What PROBE prints, run from elsewhere with `target` before everything that is installed here."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", PROBE, str(target)]
    done = subprocess.run(
        command, cwd=folder, env=env, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


@pytest.fixture(scope="module")
def scripts() -> list[str]:
    names = sorted(path.stem for path in (ROOT / "lua").glob("*.lua"))
    assert names
    return names


def test_a_wheel_carries_the_scripts_and_loads_them(tmp_path: Path, scripts: list[str]) -> None:
    wheel = build("wheel", tmp_path)
    install(wheel, tmp_path / "site")
    package, lua, *loaded = probe(tmp_path / "site", tmp_path)
    assert Path(package).is_relative_to(tmp_path / "site")
    assert Path(lua) == tmp_path / "site" / "narwhal" / "lua"
    assert loaded == scripts
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith(("tests", "configs", "docs"))]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_an_editable_install_finds_the_scripts_beside_the_package(tmp_path: Path, scripts: list[str]) -> None:
    install(build("editable", tmp_path), tmp_path / "site")
    package, lua, *loaded = probe(tmp_path / "site", tmp_path)
    assert Path(package) == ROOT / "narwhal" / "__init__.py"
    assert Path(lua) == ROOT / "lua"
    assert loaded == scripts
