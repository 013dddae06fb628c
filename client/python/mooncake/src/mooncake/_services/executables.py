"""Where the executables of mc-kvcache-server are, and how they are started under another name."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from pathlib import Path


def find(name: str) -> str | None:
    """Path of an executable: beside this interpreter's scripts, or on PATH."""
    folders = [sysconfig.get_path("scripts"), str(Path(sys.argv[0]).parent), str(Path(sys.executable).parent)]
    return shutil.which(name, path=os.pathsep.join(folders)) or shutil.which(name)


def named(path: str, name: str) -> str:
    """A link called `name` to the executable at `path`, or `path` if there can be none.

    The kernel names a process after the file that it was started from, and probes look for upstream's name: `pgrep -x mooncake_master`.
    The link lies in a directory of this user below the one for temporary files, and stays for the next start.
    """
    # One directory for each executable: two installations never share a link.
    digest = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    try:
        own = Path(tempfile.gettempdir()) / f"mc-{os.getuid()}"
        link = own / digest / name
        own.mkdir(mode=0o700, exist_ok=True)
        state = own.lstat()
        # Somebody else's directory could hold somebody else's program.
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
            return path
        link.parent.mkdir(mode=0o700, exist_ok=True)
        if not (link.is_symlink() and os.readlink(link) == os.path.realpath(path)):
            new = link.with_name(f"{name}.{os.getpid()}")
            new.symlink_to(os.path.realpath(path))
            new.replace(link)
    except OSError:
        return path
    return str(link)
