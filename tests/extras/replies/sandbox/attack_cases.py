"""Programs that mean harm. Each, where it has not been stopped, says that it succeeded.

HOME stands for a folder of the host with a secret, PORT for a port of its loopback device.
"""

import textwrap

# name: (what it does, what comes of it)
ATTACKS = {
    "endless loop": ("while True: pass", "timeout"),
    "endless sleep": ("import time; time.sleep(1e6)", "timeout"),
    "endless recursion": ("def f(): return f()\nf()", "error"),
    "recursion without a limit": (
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "any",
    ),
    "fork bomb": ("import os\nwhile True: os.fork()", "error"),
    "stubborn fork bomb": (
        """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        "timeout",
    ),
    "threads": (
        """
        import threading, time
        while True:
            threading.Thread(target=time.sleep, args=(1e6,)).start()
        """,
        "error",
    ),
    "10 GB at once": ("held = bytearray(10 * 2**30)", "memory"),
    "10 GB gradually": ("held = []\nwhile True: held.append(bytearray(2**24))", "memory"),
    "10 GB in a file of /tmp": (
        "with open('/tmp/big', 'wb') as file:\n    for _ in range(10_000): file.write(bytes(2**20))",
        "error",
    ),
    "10 GB in many files of /tmp": (
        "for n in range(10_000):\n    with open(f'/tmp/{n}', 'wb') as file: file.write(bytes(2**20))",
        "error",
    ),
    "10 GB in files without a name": (
        """
        import os
        held = [os.memfd_create(str(n)) for n in range(10)]
        for file in held:
            os.truncate(file, 2**30)
        """,
        "error",
    ),
    "shared memory": (
        """
        import ctypes
        if ctypes.CDLL(None).shmget(0, ctypes.c_size_t(2**30), 0o1600) < 0:
            raise OSError("no shared memory")
        """,
        "error",
    ),
    "1 GB of output": (
        "import os\nfor _ in range(1000): os.write(1, b'a' * 2**20)",
        "output",
    ),
    "1 GB of errors": (
        "import os\nfor _ in range(1000): os.write(2, b'a' * 2**20)",
        "output",
    ),
    "read the host's files": ("print(open(HOME + '/secret.txt').read())", "error"),
    "write to the host's files": ("open(HOME + '/secret.txt', 'w').write('mine')", "error"),
    "recreate the host's folder and write to it": (
        "import os; os.makedirs(HOME, exist_ok=True); open(HOME + '/secret.txt', 'w').write('mine')",
        "error",
    ),
    "add a file to the system": ("open('/usr/lib/mine.py', 'w')", "error"),
    "add a file to Python": ("import os; open(os.path.dirname(os.__file__) + '/mine.py', 'w')", "error"),
    "add a file to /dev": ("open('/dev/mine', 'w')", "error"),
    "add a file to /": ("open('/mine', 'w')", "error"),
    "change the program": ("open('/program.py', 'a').write('mine')", "error"),
    "delete everything": (
        "import os, shutil\nfor folder in ('/etc', '/dev', os.path.dirname(os.__file__), HOME):\n"
        "    shutil.rmtree(folder)",
        "error",
    ),
    "a symbolic link out": (
        "import os; os.symlink(HOME, '/tmp/out'); open('/tmp/out/secret.txt', 'w').write('mine')",
        "error",
    ),
    "a symbolic link in place of the program": (
        "import os; os.replace('/program.py', '/tmp/was'); os.symlink('/usr', '/program.py')",
        "error",
    ),
    "a hard link": ("import os, sys; os.link(sys.executable, '/tmp/python')", "error"),
    "the host's processes": ("import os; print(os.listdir('/proc'))", "error"),
    "the memory of its parent": (
        "import os; print(open(f'/proc/{os.getppid()}/environ').read())",
        "error",
    ),
    "trace its parent": (
        """
        import ctypes, os
        if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) < 0:
            raise OSError(ctypes.get_errno(), "no tracing")
        """,
        "error",
    ),
    "kill its parent": ("import os, signal; os.kill(os.getppid(), signal.SIGKILL); os.kill(1, 9)", "any"),
    "kill everybody": ("import os, signal; os.kill(-1, signal.SIGKILL)", "any"),
    "kill its group": ("import os, signal; os.killpg(0, signal.SIGKILL)", "error"),
    "a server of the host": ("import socket; socket.create_connection(('127.0.0.1', PORT), 1)", "error"),
    "a server elsewhere": ("import socket; socket.create_connection(('1.1.1.1', 53), 1)", "error"),
    "a socket to the host of a virtual machine": (
        "import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "error",
    ),
    "become root": ("import os; os.setuid(0)", "error"),
    "a user namespace of its own": (
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
            raise OSError(ctypes.get_errno(), "no namespaces")
        """,
        "error",
    ),
    "a process in a user namespace of its own": (
        """
        import ctypes, platform
        number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
        done = ctypes.CDLL(None, use_errno=True).syscall(number, 0x10000000 | 17, 0, 0, 0, 0)
        if done < 0:
            raise OSError(ctypes.get_errno(), "no namespaces")
        """,
        "error",
    ),
    "mount": (
        """
        import ctypes
        if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/tmp", b"tmpfs", 0, None):
            raise OSError(ctypes.get_errno(), "no mounts")
        """,
        "error",
    ),
    "raise its own limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
        "error",
    ),
    "crash": ("import ctypes; ctypes.string_at(0)", "error"),
}  # fmt: skip
# What stops each: seen in what it is told, or in how it ends.
STOPPED_BY = {
    "the wall-clock limit, kept outside of the sandbox": (
        "endless loop", "endless sleep", "stubborn fork bomb",
    ),
    "the wall-clock limit, or its own crash": ("recursion without a limit",),
    "Python's recursion limit": ("endless recursion",),
    "the limit on processes and threads (RLIMIT_NPROC)": ("fork bomb", "threads"),
    "the limit on address space per process (RLIMIT_AS)": ("10 GB at once", "10 GB gradually"),
    "the limit on file size (RLIMIT_FSIZE)": ("10 GB in a file of /tmp",),
    "the size of /tmp, which is in memory": ("10 GB in many files of /tmp",),
    "the system call filter (seccomp)": (
        "10 GB in files without a name", "shared memory", "trace its parent",
        "a socket to the host of a virtual machine", "a user namespace of its own",
        "a process in a user namespace of its own", "mount",
    ),
    "the limit on output": ("1 GB of output", "1 GB of errors"),
    "the host's files are not visible": (
        "read the host's files", "write to the host's files", "a symbolic link out",
    ),
    "what it creates in its own /tmp is deleted with it": (
        "recreate the host's folder and write to it",
    ),
    "system files and its own source are read-only": (
        "add a file to the system", "add a file to Python", "add a file to /dev", "add a file to /",
        "change the program", "delete everything",
    ),
    "its /tmp is a separate file system: nothing can be moved or linked into it": (
        "a symbolic link in place of the program", "a hard link",
    ),
    "there is no /proc": ("the host's processes", "the memory of its parent"),
    "a separate process namespace": (
        "kill its parent", "kill everybody", "kill its group",
    ),
    "an empty network namespace": ("a server of the host", "a server elsewhere"),
    "a user without capabilities": ("become root", "raise its own limits"),
    "nothing: only the program itself ends": ("crash",),
}  # fmt: skip
SUCCEEDED = "\nraise SystemExit('succeeded')\n"
# May succeed: the first in the program's own /tmp, if that is where the host has its folder; the second
# because the first process of a namespace ignores the signals of those inside, and they are not told.
HARMLESS = {"recreate the host's folder and write to it", "kill its parent"}


def attack(name: str) -> tuple[str, str]:
    """Return the text of an attack and the reason that its verdict must give."""
    code, reason = ATTACKS[name]
    return textwrap.dedent(code) + SUCCEEDED, reason


def table() -> str:
    """Return the attacks as docs/sandbox.md shows them: what stops each, and the reason of its verdict."""
    lines = ["| attack | verdict | what stops it |", "|---|---|---|"]
    for stop, names in STOPPED_BY.items():
        reasons = {ATTACKS[name][1] for name in names}
        verdict = reasons.pop() if len(reasons) == 1 and "any" not in reasons else "not passed"
        lines.append(f"| {'; '.join(names)} | {verdict} | {stop} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
