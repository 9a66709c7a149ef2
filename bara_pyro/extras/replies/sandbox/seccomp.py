"""Build a seccomp filter (classic BPF) of the system calls that are refused to an isolated program.

Without it a program could evade the limits in spite of the namespaces: it could create a user namespace and
mount a tmpfs of any size, use detached shared memory, which no process limit counts, or open sockets outside
all network namespaces, such as those to the host of a virtual machine.
"""

import errno
import platform
import struct

from bara_pyro.errors import SandboxError

# From the kernel's asm/unistd.h. The numbers of REFUSED_EVERYWHERE are the same on every machine.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
REFUSED = {
    "x86_64": {
        "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
        "add_key": 248, "request_key": 249, "keyctl": 250,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "syslog": 103, "open_by_handle_at": 304,
        "shmget": 29, "semget": 64, "msgget": 68, "memfd_create": 319,
    },
    "aarch64": {
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
        "add_key": 217, "request_key": 218, "keyctl": 219,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "syslog": 116, "open_by_handle_at": 265,
        "shmget": 194, "semget": 190, "msgget": 186, "memfd_create": 279,
    },
}  # fmt: skip
REFUSED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKET = {"x86_64": 41, "aarch64": 198}
CLONE3 = 435
CLONE_NEWUSER = 0x10000000
X32 = 0x40000000  # x86_64's second set of numbers for the same calls
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET and AF_INET6 of Linux

# Offsets in `struct seccomp_data`: the call's number, the machine, the lower half of its first argument.
NUMBER, MACHINE, FIRST = 0, 4, 16
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def seccomp_filter(machine: str | None = None) -> bytes:
    """Return the filter as `bwrap --seccomp` reads it.

    Args:
        machine: architecture of the processor; None: this machine's.

    Raises:
        SandboxError: the architecture is not supported.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        known = " and ".join(MACHINES)
        raise SandboxError(f"Programs cannot be isolated on {machine}: only {known} are supported.")
    lines = [_line(LOAD, MACHINE), _line(EQUAL, MACHINES[machine], 1, 0), _line(RETURN, KILL)]
    lines += [_line(LOAD, NUMBER), _line(AT_LEAST, X32, 0, 1), _line(RETURN, KILL)]
    for number in (*REFUSED[machine].values(), *REFUSED_EVERYWHERE.values()):
        lines += [_line(EQUAL, number, 0, 1), _fail(errno.EPERM)]
    # A filter cannot read clone3's flags in memory. Refused as on an older kernel, libc falls back to
    # `clone`.
    lines += [_line(EQUAL, CLONE3, 0, 1), _fail(errno.ENOSYS)]
    lines += [_line(EQUAL, CLONE[machine], 0, 4), _line(LOAD, FIRST)]
    lines += [_line(ANY_BIT, CLONE_NEWUSER, 0, 1), _fail(errno.EPERM), _line(RETURN, ALLOW)]
    lines += [_line(EQUAL, SOCKET[machine], 1, 0), _line(RETURN, ALLOW), _line(LOAD, FIRST)]
    for family in FAMILIES:
        lines += [_line(EQUAL, family, 0, 1), _line(RETURN, ALLOW)]
    return b"".join([*lines, _fail(errno.EAFNOSUPPORT)])


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one `struct sock_filter`, with the numbers of lines to skip if a test holds and if not."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(number: int) -> bytes:
    return _line(RETURN, ERROR | number)
