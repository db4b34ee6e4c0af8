"""Programs that tests run: found, or the test skips on a laptop and fails in CI."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, *, package: str = "") -> str:
    """The path of an installed program; `package`: the Debian package that brings it (default: the name)."""
    for folder in (None, "/usr/sbin:/usr/local/sbin:/sbin"):
        if found := shutil.which(name, path=folder):
            return found
    missing = f"{name} is not installed (apt-get install {package or name})"
    if os.environ.get("CI"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)
