"""Build the command that runs a Python program in isolation with bubblewrap.

The program sees /usr, the system's libraries, the Python installation of this interpreter (`sys.base_prefix`,
without the packages of a virtual environment), an empty /tmp in memory, and four devices. It sees no other
files, no /proc, no network and no other processes.
"""

import os
import secrets
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from bara_pyro.errors import SandboxError
from bara_pyro.extras.replies.sandbox.limits import Limits

PROGRAM = "/program.py"
ENVIRONMENT = {"PATH": "/usr/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108 - inside the sandbox
DEVICES = ("null", "zero", "random", "urandom")
LIBRARIES = ("/lib", "/lib32", "/lib64", "/libx32")
# User ids that no distribution, directory service or container assigns (see systemd's UIDS-GIDS).
FIRST_UNUSED_UID, UNUSED_UIDS = 0x70000000, 2**28

# Runs in the sandbox before the program: sets limits that bubblewrap would not survive, then changes the
# user.
LAUNCHER = """
import os, resource
for name, pair in limits.items():
    number = getattr(resource, name, None)
    if number is not None:
        most = resource.getrlimit(number)[1]
        if most != resource.RLIM_INFINITY:
            pair = tuple(min(value, most) for value in pair)
        resource.setrlimit(number, pair)
if uid is not None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
os.execv(command[0], command)
"""


def python() -> str:
    """Return the path of the interpreter that runs programs, in `sys.base_prefix`."""
    return os.path.realpath(sys.executable)


def launch(limits: Limits, program: str, uid: int | None = None) -> list[str]:
    """Return the command that sets the limits and runs the program at a path.

    Args:
        limits: limits on the program.
        program: path of the program.
        uid: user id to change to; None: keep the current one.
    """
    command = [python(), "-I", program]
    values = f"limits, uid, command = {limits.resources()!a}, {uid!a}, {command!a}"
    return [python(), "-I", "-S", "-c", values + LAUNCHER]


def bwrap() -> str:
    """Return the path of bubblewrap; a `SandboxError` if it is not installed."""
    if path := shutil.which("bwrap"):
        return path
    raise SandboxError(
        "Programs cannot be isolated without bwrap: install the package bubblewrap (Linux), or pass "
        "unsandboxed=True (--allow-unsandboxed) if you trust the programs."
    )


def isolated(limits: Limits, program: int, seccomp: int) -> list[str]:
    """Return the command that runs a program in isolation.

    `program` and `seccomp` are the file descriptors of the program's text and of the filter of system calls.

    Raises:
        SandboxError: bubblewrap is not installed, or Python is installed directly in the home folder.
    """
    unshare, uid = _user()
    return [
        bwrap(),
        *unshare,
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--seccomp", str(seccomp)),
        *_system(),
        *_folders([Path("/dev"), Path("/etc")]),
        *(word for name in DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        # By this file the loader finds a libpython in /usr/local/lib.
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--perms", "0444", "--ro-bind-data", str(program), PROGRAM),
        *("--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"),  # noqa: S108 - in the sandbox
        *("--remount-ro", "/"),
        *("--chdir", "/tmp", "--"),  # noqa: S108
        *launch(limits, PROGRAM, uid),
    ]


def _user() -> tuple[list[str], int | None]:
    """Return arguments that make the program another user, and the user id for the launcher, if any.

    The kernel exempts root from the limit on processes, also under another name in a user namespace. If root
    calls, the program therefore gets a separate user id, so that two programs do not share the limit.
    """
    if os.geteuid() == 0 and _root_of_the_system():
        uid = FIRST_UNUSED_UID + secrets.randbelow(UNUSED_UIDS)
        return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"], uid
    return ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"], None


def _root_of_the_system() -> bool:
    """Return whether user ids are those of the system, not those of a container."""
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", str(2**32 - 1)]


def _system() -> list[str]:
    """Return arguments for the read-only parts of the system that Python needs."""
    roots = {Path("/usr"), Path(sys.base_prefix), Path(sys.base_exec_prefix)}
    home = Path(os.path.expanduser("~"))
    for root in roots & {home, *home.parents}:
        raise SandboxError(
            f"Programs cannot be isolated, because Python is installed in {root}, which contains {home}: "
            "install Python in a separate folder."
        )
    outermost = [root for root in sorted(roots) if not any(other in root.parents for other in roots)]
    words = _folders(parent for root in outermost for parent in reversed(root.parents[:-1]))
    words += [word for root in outermost for word in ("--ro-bind", str(root), str(root))]
    for library in map(Path, LIBRARIES):
        if library.is_symlink():
            words += ["--symlink", os.readlink(library), str(library)]
        elif library.is_dir():
            words += ["--ro-bind", str(library), str(library)]
    return words


def _folders(paths: Iterable[Path]) -> list[str]:
    """Return arguments that create empty folders which other users may enter."""
    return [word for path in dict.fromkeys(paths) for word in ("--perms", "0755", "--dir", str(path))]
