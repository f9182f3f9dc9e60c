"""Confines a process that runs code of others on files of unknown origin. It imports no solar.

libhdf5 may have faults that a file can use, and it runs filter plug-ins. What runs in a confined process can read files
and compute, and answer its caller. It can neither change a file nor start a program, reach a network, or touch another
process. Two means of the kernel each forbid most of that, so one suffices where the other is missing: Landlock, by what
is accessed, and seccomp, by system calls. Both last until the process ends, and hold for its threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Iterator

NO_NEW_PRIVS, SET_SECCOMP, FILTER_MODE = 38, 22, 2  # of prctl
CREATE_RULESET, RESTRICT_SELF = 444, 446  # of Landlock, on all machines
# What Landlock forbids, by the version that knows it: executing, writing, making, removing and moving files (1 to 5),
# TCP (4), abstract sockets and signals to others (6). Reading is not in it.
FORBIDDEN = {1: 0b1_1111_1111_0011, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
TCP, SCOPES = 0b11, 0b11

ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # as audit calls them; and their column below
DENIED = {  # the numbers of system calls, on x86-64 and aarch64
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "setpriority": (141, 140),
    "creat": (85, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "mknod": (133, None), "mknodat": (259, 33),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "open_by_handle_at": (304, 265),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "reboot": (169, 142),
}  # fmt: skip
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}  # whose arguments lie in memory; the C library goes without them
OPEN, OPENAT, CLONE, TGKILL, PRLIMIT, IOCTL = (2, None), (257, 56), (56, 220), (234, 131), (302, 261), (16, 29)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_TMPFILE & ~os.O_DIRECTORY
THREAD, TYPING = 0x10000, (0x5412, 0x541C)  # CLONE_THREAD; what types into a terminal

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of classic BPF
ALLOW, FAIL = 0x7FFF0000, 0x00050000
Instruction = tuple[int, int, int, int]  # what, how many to skip if true, if false, a number


def confine() -> list[str]:
    """Confines this process for good. Returns by which means. It must have one thread: others would not be confined."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        return []
    means = ["no new privileges"]
    if version := _restrict(libc):
        means.append(f"Landlock {version}")
    if _filter(libc):
        means.append("seccomp")
    return means


def _restrict(libc: ctypes.CDLL) -> int:
    """Restricts this process by Landlock. Returns the version that the kernel has; 0: none."""
    version = int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    if version < 1:
        return 0
    files = sum(bits for since, bits in FORBIDDEN.items() if version >= since)
    words = [files, *([TCP] if version >= 4 else []), *([SCOPES] if version >= 6 else [])]
    rules = (ctypes.c_uint64 * len(words))(*words)
    made = libc.syscall(CREATE_RULESET, rules, ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    if made < 0:
        return 0
    try:
        return version if libc.syscall(RESTRICT_SELF, made, 0) == 0 else 0
    finally:
        os.close(made)


def _filter(libc: ctypes.CDLL) -> bool:
    """Has the kernel refuse system calls that reading does not need. Returns whether it does."""
    if platform.machine() not in ARCHES:
        return False
    code = b"".join(struct.pack("=HBBI", *one) for one in instructions(platform.machine(), os.getpid()))
    program = ctypes.create_string_buffer(code)
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(program)))
    return bool(libc.prctl(SET_SECCOMP, FILTER_MODE, head, 0, 0) == 0)


def instructions(machine: str, process: int) -> Iterator[Instruction]:
    """Yields the filter of system calls for this process."""
    arch, column = ARCHES[machine]

    def refuse(code: int) -> Instruction:
        return RETURN, 0, 0, FAIL | code

    def argument(number: int) -> Instruction:
        return LOAD, 0, 0, 16 + 8 * number  # its lower half

    allow = (RETURN, 0, 0, ALLOW)
    yield from ((LOAD, 0, 0, 4), (EQUAL, 1, 0, arch), refuse(errno.EPERM), (LOAD, 0, 0, 0))
    yield from ((AT_LEAST, 0, 1, 0x40000000), refuse(errno.ENOSYS))  # the calls of x32
    for calls, code in ((DENIED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                yield from ((EQUAL, 0, 1, number), refuse(code))
    # Of some calls it depends on an argument: the file is opened for writing, the process is another one.
    own = ((EQUAL, 1, 0, process), refuse(errno.EPERM))
    checked = (
        (OPEN, (argument(1), (ANY_BIT, 0, 1, WRITING), refuse(errno.EACCES))),
        (OPENAT, (argument(2), (ANY_BIT, 0, 1, WRITING), refuse(errno.EACCES))),
        (CLONE, (argument(0), (ANY_BIT, 1, 0, THREAD), refuse(errno.EPERM))),
        (TGKILL, (argument(0), *own)),
        (PRLIMIT, (argument(0), (EQUAL, 2, 0, 0), *own)),
        (IOCTL, (argument(1), (EQUAL, 1, 0, TYPING[0]), (EQUAL, 0, 1, TYPING[1]), refuse(errno.EPERM))),
    )
    for numbers, rest in checked:
        if (number := numbers[column]) is not None:
            yield from ((EQUAL, 0, len(rest) + 1, number), *rest, allow)
    yield allow
