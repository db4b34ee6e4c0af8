"""What exactly is running: version, Git commit when known, digest of the installed source."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, Final

import narwhal

PACKAGE: Final = "narwhal-router"
SOURCES: Final = ("*.py", "*.lua")


def provenance(root: Path | None = None) -> dict[str, Any]:
    """Fields of the journal's header. `root`: the package's folder, by default where it is installed."""
    folder = root or Path(narwhal.__file__).parent
    return {
        "package": PACKAGE,
        "version": narwhal.__version__,
        "git_commit": git_commit(folder.parent),
        "source_digest": source_digest(folder),
    }


def source_digest(folder: Path) -> str:
    """`sha256:` over relative names and bytes of the package's sources, in name order."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in folder.rglob(pattern)):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def git_commit(checkout: Path) -> str | None:
    """The commit that `checkout` (a folder with `.git`) has checked out, None when that is not known."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        folder = _git_folder(checkout / ".git")
        head = (folder / "HEAD").read_text().strip()
        return _resolved(folder, head.removeprefix("ref: ")) if head.startswith("ref: ") else head or None
    return None


def _git_folder(dot_git: Path) -> Path:
    """A linked worktree has a file that names the folder."""
    if dot_git.is_dir():
        return dot_git
    named = dot_git.read_text().strip().removeprefix("gitdir: ")
    return dot_git.parent / named


def _resolved(folder: Path, ref: str) -> str | None:
    shared = folder / "commondir"
    common = folder / shared.read_text().strip() if shared.is_file() else folder
    loose = common / ref
    if loose.is_file():
        return loose.read_text().strip()
    packed = common / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return None
