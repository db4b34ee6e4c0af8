"""What the journal's header tells of the running code."""

from __future__ import annotations

from pathlib import Path

import narwhal
from narwhal.telemetry.provenance import git_commit, provenance, source_digest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_header_tells_package_version_and_digest() -> None:
    facts = provenance()
    assert (facts["package"], facts["version"]) == ("narwhal-router", narwhal.__version__)
    assert facts["source_digest"] == source_digest(Path(narwhal.__file__).parent)
    assert set(facts) == {"package", "version", "git_commit", "source_digest"}


def test_the_digest_follows_names_and_bytes_of_sources_only(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "x = 1")
    write(tmp_path / "lua" / "b.lua", "return 1")
    before = source_digest(tmp_path)
    write(tmp_path / "notes.txt", "anything")
    assert source_digest(tmp_path) == before
    write(tmp_path / "lua" / "b.lua", "return 2")
    changed = source_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({before, changed, source_digest(tmp_path)}) == 3


def test_the_commit_is_read_from_a_branch_a_packed_branch_or_a_detached_head(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "HEAD", "ref: refs/heads/main\n")
    write(tmp_path / ".git" / "packed-refs", f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert git_commit(tmp_path) == COMMIT
    write(tmp_path / ".git" / "refs" / "heads" / "main", COMMIT.replace("0", "f") + "\n")
    assert git_commit(tmp_path) == COMMIT.replace("0", "f")
    write(tmp_path / ".git" / "HEAD", COMMIT + "\n")
    assert git_commit(tmp_path) == COMMIT


def test_the_commit_of_a_linked_worktree_is_found(tmp_path: Path) -> None:
    write(tmp_path / "main" / ".git" / "refs" / "heads" / "side", COMMIT + "\n")
    linked = tmp_path / "main" / ".git" / "worktrees" / "side"
    write(linked / "HEAD", "ref: refs/heads/side\n")
    write(linked / "commondir", "../..\n")
    write(tmp_path / "side" / ".git", f"gitdir: {linked}\n")
    assert git_commit(tmp_path / "side") == COMMIT


def test_without_git_the_commit_is_not_known(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    write(tmp_path / ".git" / "HEAD", "ref: refs/heads/none\n")
    assert git_commit(tmp_path) is None
