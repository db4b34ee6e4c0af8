"""The engines' key in files that only their owner reads: never on a command line, where `ps` shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from narwhal.atomic_file import replace_file
from narwhal.errors import ConfigError

FILES: Final = {"engine.env": "NARWHAL_ENGINE_API_KEY", "container.env": "VLLM_API_KEY"}
"""File → the variable it sets: for the launcher, and for the engine (`docker run --env-file`)."""
MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_PLAIN: Final = re.compile(r"[A-Za-z0-9._+/=:@%,-]+")
"""What docker, systemd and a shell read alike, unquoted."""


def write_env_files(folder: Path, key: str) -> tuple[Path, ...]:
    """Writes both files, replacing older ones whole, whatever their mode was. Returns their paths.

    Raises OSError, and ConfigError for a key that the readers of such files would not read alike.
    """
    if not _PLAIN.fullmatch(key):
        raise ConfigError(
            "the engines' key holds a character that shells, systemd and docker do not read alike in a file "
            "of variables: use letters, digits and . _ + / = : @ % , -"
        )
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for name, variable in FILES.items():
        replace_file(folder / name, f"{variable}={key}\n".encode("ascii"), mode=MODE)
    return tuple(folder / name for name in FILES)
