"""The house rules as a test: layers, sizes, names, the two broad handlers, Lua headers.

The rules are those of docs/architecture.md; each check yields sentences `file:line what and why`, so that
one run shows every breach. Last, every file in configs/ loads by its kind.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from narwhal.config.attestation import read_document
from narwhal.config.load import load_fleet
from tests.support.services import program

ROOT = Path(__file__).resolve().parents[1]

MODULE_LINES = 600
FUNCTION_LINES = 70
CLASS_LINES = 250
PARAMETERS = 5
POSITIONAL = 2

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

# What each package of narwhal may import from narwhal (itself aside). `*` = everything but cli.
LAYERS: dict[str, set[str]] = {
    "__init__": set(),
    "errors": set(),
    "fence": set(),
    "atomic_file": set(),
    "model": {"errors"},
    "policy": {"model", "errors"},
    "ports": {"model", "errors"},
    "clock": {"model", "errors"},
    "names": set(),
    "engine": {"names", "ports", "clock", "model", "errors"},
    "store": {"atomic_file", "names", "ports", "clock", "model", "errors"},
    "peers": {"names", "ports", "clock", "model", "errors"},
    "telemetry": {"ports", "clock", "model", "errors"},
    # Of policy only the Settings classes: those are in model/settings.py, so nothing of policy is needed.
    "config": {"atomic_file", "model", "errors"},
    "serving": {"policy", "ports", "clock", "model", "errors"},
    "monitor": {"policy", "ports", "clock", "model", "errors"},
    "cluster": {"policy", "ports", "clock", "model", "errors"},
    "measure": {"policy", "ports", "clock", "model", "errors"},
    "api": {"ports", "model", "errors"},
    # The sidecar beside an engine: of the router it knows the document and nothing else.
    "attest": {"model", "errors"},
    "runtime": {"*"},
    "sim": {"fence", "model", "errors"},
    "cli": {"atomic_file", "runtime", "config", "sim", "model", "errors"},
}

IMPURE = {
    "asyncio", "time", "random", "logging", "os", "threading", "socket", "ssl", "secrets",
    "redis", "httpx", "httptools", "uvicorn", "uvloop", "starlette", "tenacity", "prometheus_client", "rich",
}  # fmt: skip

# The only homes of `except Exception`: the stage boundary and the outermost handler, one each.
BROAD_HANDLER_HOMES = {"monitor": 1, "api": 1}


# --- the tree --------------------------------------------------------------------------------------


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return tuple(path for name in sorted(set(names)) if name and (path := ROOT / name).is_file())


def sources(top: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == top]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.AST | None = None) -> str:
    line = getattr(node, "lineno", 1)
    return f"{path.relative_to(ROOT)}:{line}"


def package_of(path: Path) -> str:
    """`narwhal/policy/fleet.py` -> `policy`, `narwhal/ports.py` -> `ports`."""
    return path.relative_to(ROOT / "narwhal").parts[0].removesuffix(".py")


def imported_modules(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Each import with the dotted name it brings, also under TYPE_CHECKING and inside functions."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def holds(breaches: Iterable[str]) -> None:
    """Fails with every breach, one a line."""
    found = list(breaches)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


# --- layers ----------------------------------------------------------------------------------------


def breaches_of_layers(path: Path, module: ast.Module, package: str) -> Iterator[str]:
    if package not in LAYERS:
        yield f"{where(path)} package {package!r} has no row in the layer table"
        return
    allowed = LAYERS[package]
    for node, name in imported_modules(module):
        if name.startswith("."):
            yield f"{where(path, node)} relative import: write narwhal.{package}..."
        if not name.startswith("narwhal."):
            continue
        target = name.split(".")[1]
        if target == package or target in allowed or ("*" in allowed and target != "cli"):
            continue
        if target not in LAYERS and package == "__init__":
            continue
        if target == "__version__":
            continue
        yield f"{where(path, node)} {package} may not import narwhal.{target}"


def breaches_of_purity(path: Path, module: ast.Module, package: str) -> Iterator[str]:
    if package not in {"policy", "model"}:
        return
    for node, name in imported_modules(module):
        if name.split(".")[0] in IMPURE:
            yield f"{where(path, node)} {package} is pure: no {name.split('.')[0]}"


# --- sizes and names -------------------------------------------------------------------------------


def length(node: ast.AST) -> int:
    return int(node.end_lineno) - int(node.lineno) + 1  # type: ignore[attr-defined]


def breaches_of_size(path: Path, module: ast.Module, package: str) -> Iterator[str]:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines >= MODULE_LINES:
        yield f"{where(path)} {lines} lines: {MODULE_LINES} fails, 150 to 300 is a module"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) >= FUNCTION_LINES:
            yield f"{where(path, node)} {node.name} has {length(node)} lines: {FUNCTION_LINES} fails"
        if isinstance(node, ast.ClassDef) and length(node) > CLASS_LINES:
            yield f"{where(path, node)} class {node.name} has {length(node)} lines, over {CLASS_LINES}"


def breaches_of_names(path: Path, module: ast.Module, package: str) -> Iterator[str]:
    for part in path.relative_to(ROOT).parts:
        if part.removesuffix(".py") in FORBIDDEN_NAMES:
            yield f"{where(path)} {part!r} says nothing: name the thing"


def is_foreign_shape(node: ast.FunctionDef | ast.AsyncFunctionDef, names: list[str]) -> bool:
    """Signatures that others dictate: dunders, ASGI applications, @override."""
    dunder = node.name.startswith("__") and node.name.endswith("__") and node.name != "__init__"
    override = any(ast.unparse(one).rsplit(".", 1)[-1] == "override" for one in node.decorator_list)
    return dunder or override or names == ["scope", "receive", "send"]


def breaches_of_parameters(path: Path, module: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = node.args
        positional = [
            one.arg for one in arguments.posonlyargs + arguments.args if one.arg not in {"self", "cls"}
        ]
        if is_foreign_shape(node, positional):
            continue
        total = len(positional) + len(arguments.kwonlyargs)
        if total > PARAMETERS:
            yield f"{where(path, node)} {node.name} has {total} parameters, at most {PARAMETERS}"
        if len(positional) > POSITIONAL:
            yield f"{where(path, node)} {node.name}: keyword-only after {POSITIONAL}, has {len(positional)}"


# --- handlers --------------------------------------------------------------------------------------


def broad_handlers(module: ast.Module) -> Iterator[ast.ExceptHandler]:
    """`except:`, `except Exception` and a BaseException that is not raised again."""
    for node in ast.walk(module):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {ast.unparse(one) for one in caught(node.type)}
        reraises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if not names or "Exception" in names or ("BaseException" in names and not reraises):
            yield node


def caught(kind: ast.expr | None) -> list[ast.expr]:
    if kind is None:
        return []
    return list(kind.elts) if isinstance(kind, ast.Tuple) else [kind]


def breaches_of_handlers() -> Iterator[str]:
    seen: dict[str, int] = {}
    for path in sources("narwhal"):
        for node in broad_handlers(tree(path)):
            package = package_of(path)
            seen[package] = seen.get(package, 0) + 1
            if seen[package] > BROAD_HANDLER_HOMES.get(package, 0):
                yield f"{where(path, node)} broad except: only the stage boundary and the outermost handler"


# --- Lua headers -----------------------------------------------------------------------------------

HEADER = re.compile(r"\A(?:--[^\n]*\n)+")
SLOT = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
STATUS = re.compile(r"return\s*\{\s*['\"]([A-Z]+)['\"]")


def breaches_of_header(name: str, text: str) -> Iterator[str]:
    """What is untrue or missing in a script's header.

    It begins with `-- <name>: what it does`, tells every slot (`-- KEYS[1] lease`, `-- ARGV[2] seq`) and
    ends with `-- Replies` and one line per status word.
    """
    match = HEADER.match(text)
    if match is None:
        yield "no header comment at the top"
        return
    header, body = match.group(0), text[match.end() :]
    if not header.startswith(f"-- {name}: "):
        yield f"the header does not begin with `-- {name}: `"
    if "\n-- Replies\n" not in header:
        yield "the header has no `-- Replies`"
    told, used = set(SLOT.findall(header)), set(SLOT.findall(body))
    yield from (f"{kind}[{n}] is used but not in the header" for kind, n in sorted(used - told))
    yield from (f"{kind}[{n}] is in the header but not used" for kind, n in sorted(told - used))
    statuses = set(STATUS.findall(body))
    yield from (
        f"returns {word}, which the header does not tell" for word in sorted(statuses) if word not in header
    )
    if not told:
        yield "the header names no KEYS or ARGV"


def test_lua_headers_tell_every_slot_and_status() -> None:
    scripts = [path for path in tracked() if path.suffix == ".lua"]
    holds(
        f"{where(path)} {line}"
        for path in scripts
        for line in breaches_of_header(path.stem, path.read_text(encoding="utf-8"))
    )


LUA_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$", re.MULTILINE | re.DOTALL)


def unlike_copies(scripts: dict[str, str]) -> Iterator[str]:
    """Functions that two scripts have under one name and not with the same text.

    Redis runs each script alone, so what several need stands in each: one mended copy must not leave
    another behind.
    """
    first: dict[str, tuple[str, str]] = {}
    for script, text in sorted(scripts.items()):
        for match in LUA_FUNCTION.finditer(text):
            home, body = first.setdefault(match.group(1), (script, match.group(0)))
            if body != match.group(0):
                yield f"{script}: {match.group(1)} is not the one of {home}"


def test_copies_of_a_lua_function_are_alike() -> None:
    holds(
        unlike_copies({where(path): path.read_text("utf-8") for path in tracked() if path.suffix == ".lua"})
    )


# --- configs ----------------------------------------------------------------------------------------


def load_fleet_file(path: Path) -> None:
    load_fleet(str(path), {})


def load_haproxy(path: Path) -> None:
    done = subprocess.run(
        [program("haproxy"), "-c", "-f", str(path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def load_redis(path: Path) -> None:
    """A server starts with the file (its port and the container's folders replaced) and is ready."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        options = ["--port", port, "--bind", "127.0.0.1", "--dir", folder, "--daemonize", "no"]
        if path.suffix == ".acl":
            command = [program("redis-server"), *options, "--aclfile", str(path)]
        else:
            text = path.read_text().replace("/etc/redis/", f"{path.parent}/").replace("/data", folder)
            (Path(folder) / path.name).write_text(text)
            command = [program("redis-server"), str(Path(folder) / path.name), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            assert server.stdout is not None
            told: list[str] = []
            for line in server.stdout:
                told.append(line)
                if "Ready to accept connections" in line:
                    break
            else:
                pytest.fail("".join(told), pytrace=False)
            server.terminate()
            server.stdout.read()


def load_attestation(path: Path) -> None:
    read_document(str(path))


def load_compose(path: Path) -> None:
    schema = json.loads((ROOT / "tests/support/compose_spec/compose-spec.json").read_text("utf-8"))
    errors = jsonschema.Draft201909Validator(schema).iter_errors(yaml.safe_load(path.read_text("utf-8")))
    assert [error.message for error in errors] == []


@cache
def unit_problems(folder: Path) -> str:
    """What systemd says of the units in a folder, "" for nothing, also where there is no systemd. Programs
    that are not here are replaced."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return ""
    with tempfile.TemporaryDirectory() as place:
        units = []
        for path in folder.iterdir():
            unit = Path(place) / path.name.replace("@.", "@e0.")
            unit.write_text(re.sub(r"/usr/bin/[\w-]+", "/bin/true", path.read_text("utf-8")), "utf-8")
            units.append(str(unit))
        command = [analyze, "verify", "--man=no", *units]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr


def load_unit(path: Path) -> None:
    """Its sections are those of its kind, and systemd takes it with the units beside it."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(path.read_text("utf-8"))
    kind = {".service": ["Unit", "Service", "Install"], ".target": ["Unit", "Install"]}[path.suffix]
    assert unit.sections() == kind
    assert unit["Unit"]["Description"] and unit["Install"]["WantedBy"]
    assert unit_problems(path.parent) == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_is_asked_in_earnest(tmp_path: Path) -> None:
    text = (ROOT / "configs/systemd/vllm@.service").read_text("utf-8")
    (tmp_path / "vllm@.service").write_text(text.replace("RestartSec=", "RestartSecs="), "utf-8")
    assert "RestartSecs" in unit_problems(tmp_path)


LOADERS: dict[str, Callable[[Path], None]] = {
    "fleet*.json": load_fleet_file,
    "attestation.json": load_attestation,
    "compose*.yml": load_compose,
    "*.service": load_unit,
    "*.target": load_unit,
    "haproxy.cfg": load_haproxy,
    "redis*.conf": load_redis,
    "redis*.acl": load_redis,
}


CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*") if path.is_file())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_file_in_configs_loads_by_its_kind(path: Path) -> None:
    kinds = [load for pattern, load in LOADERS.items() if path.match(pattern)]
    assert kinds, f"{path.name} is of no known kind: add its loader"
    for load in kinds:
        load(path)


# --- the tests -------------------------------------------------------------------------------------

Check = Callable[[Path, ast.Module, str], Iterator[str]]


@pytest.mark.parametrize(
    "check",
    [breaches_of_layers, breaches_of_purity, breaches_of_parameters],
    ids=lambda check: check.__name__,
)
def test_package_keeps_the_rules(check: Check) -> None:
    holds(line for path in sources("narwhal") for line in check(path, tree(path), package_of(path)))


@pytest.mark.parametrize("check", [breaches_of_size, breaches_of_names], ids=lambda check: check.__name__)
@pytest.mark.parametrize("top", ["narwhal", "tests"])
def test_sources_keep_size_and_names(check: Check, top: str) -> None:
    holds(line for path in sources(top) for line in check(path, tree(path), top))


def test_broad_handlers_stand_in_their_two_places() -> None:
    holds(breaches_of_handlers())


# Built from parts so that this file does not match itself.
MACHINE_TRACES = [
    re.compile(pattern)
    for pattern in (
        "/" + r"work/(?:main|wt|shared|probe|plan|\.library)",
        "/" + r"tmp/\w",
        "file" + "s.pythonhosted",
        "pypi" + r"\.org",
        "registry" + r"\.npmjs",
        "deb" + r"\.debian",
    )
]


def test_no_path_of_a_machine_and_no_registry_host_is_tracked() -> None:
    holds(
        f"{path.relative_to(ROOT)}: {one.pattern}"
        for path in tracked()
        for one in MACHINE_TRACES
        if one.search(path.read_bytes().decode("utf-8", errors="replace"))
    )


LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    holds(
        f"{where(path)} {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    )


# --- the checks can fail ---------------------------------------------------------------------------

BREACHES: list[tuple[Check, str, str]] = [
    (breaches_of_layers, "policy", "from narwhal.engine import client"),
    (breaches_of_layers, "serving", "import narwhal.cluster.gate"),
    (breaches_of_layers, "runtime", "from narwhal.cli import main"),
    (breaches_of_layers, "model", "from . import engine"),
    (breaches_of_layers, "fence", "from narwhal.errors import NarwhalError"),
    (breaches_of_layers, "attic", "x = 1"),
    (breaches_of_purity, "policy", "def f():\n    import time"),
    (breaches_of_purity, "policy", "from redis.asyncio import Redis"),
    (breaches_of_parameters, "api", "def f(a, b, c): ..."),
    (breaches_of_parameters, "api", "def f(a, *, b, c, d, e, f): ..."),
    (breaches_of_size, "api", "class A:\n" + "    x = 1\n" * 260),
    (breaches_of_size, "api", "async def f():\n" + "    x = 1\n" * 80),
]


@pytest.mark.parametrize(("check", "package", "text"), BREACHES)
def test_each_check_sees_a_breach(check: Check, package: str, text: str) -> None:
    assert list(check(Path(__file__), ast.parse(text), package))


@pytest.mark.parametrize("kind", ["", " Exception", " (OSError, Exception)", " BaseException as error"])
def test_broad_handlers_are_recognised(kind: str) -> None:
    assert list(broad_handlers(ast.parse(f"try:\n    x\nexcept{kind}:\n    pass")))


def test_a_base_exception_that_is_raised_again_is_no_broad_handler() -> None:
    assert not list(broad_handlers(ast.parse("try:\n    x\nexcept BaseException:\n    y()\n    raise")))


TRUE_SCRIPT = "-- peek: reads\n-- KEYS[1] lease\n-- Replies\n--   OK\nreturn {'OK', KEYS[1]}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-- peek: reads", "-- claim: reads"),
        ("-- KEYS[1] lease\n", ""),
        ("-- KEYS[1] lease", "-- KEYS[1] lease\n-- ARGV[1] token"),
        ("-- Replies", "-- Answers"),
        ("{'OK', KEYS[1]}", "{'LOST', KEYS[1]}"),
        ("-- peek", "\n-- peek"),
    ],
)
def test_untrue_lua_headers_are_seen(old: str, new: str) -> None:
    assert not list(breaches_of_header("peek", TRUE_SCRIPT))
    assert list(breaches_of_header("peek", TRUE_SCRIPT.replace(old, new)))


def test_an_unlike_copy_of_a_lua_function_is_seen() -> None:
    one = "local function text(n)\n  return string.format('%.0f', n)\nend\n"
    assert not list(unlike_copies({"a": one, "b": "-- more\n" + one}))
    assert list(unlike_copies({"a": one, "b": one.replace("%.0f", "%d")}))
