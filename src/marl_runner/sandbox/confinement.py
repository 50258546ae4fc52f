"""What a program process does to itself before it runs a line of generated code; none of it can be undone.

Limits of the kernel hold in any case. The layers need no privileges, and each is used where the kernel has it:

- `seccomp`: an allow-list of system calls (by libseccomp): none that makes a process or a connection, signals another
  process, looks into one, or makes a folder or link.
- `landlock`: files: the standard library to read, the working folder to read and write, nothing else.
- `namespaces`: a network of its own with nothing in it; only where seccomp cannot be had.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
from collections.abc import Mapping, Sequence

LAYERS = ("namespaces", "landlock", "seccomp")
"""In the order in which they are put on: each would forbid putting on those before it."""

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CLONE_THREAD = 0x00010000
EPERM = 1
ENOSYS = 38

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_FILE, MAKE_REG = (1 << bit for bit in (0, 1, 2, 3, 5, 8))
RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock version → number of file rights it knows; as many as the last in later ones."""
TRUNCATE = 1 << 14

ACT_ALLOW = 0x7FFF0000
ACT_ERRNO = 0x00050000
OP_EQ, OP_MASKED_EQ = 4, 7
NO_SUCH_CALL = -1

CALLS = """
    read pread64 readv write pwrite64 writev close fstat newfstatat stat lstat statx lseek access faccessat faccessat2
    open openat readlink readlinkat getcwd getdents64 fcntl dup dup2 dup3 pipe pipe2 poll ppoll select pselect6
    epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 ftruncate truncate fallocate fsync fdatasync flock unlink
    unlinkat rename renameat renameat2 chdir fchdir umask utimensat statfs fstatfs fadvise64 copy_file_range
    mmap munmap mprotect mremap brk madvise membarrier rseq
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack pause
    futex futex_waitv set_robust_list get_robust_list set_tid_address restart_syscall sched_yield sched_getaffinity
    clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times getrusage setitimer getitimer alarm
    getpid gettid getppid getpgrp getpgid getsid getuid geteuid getgid getegid getgroups uname sysinfo getrandom
    getrlimit arch_prctl exit exit_group wait4 waitid getcpu getpriority
"""
"""What Python needs for ordinary code; everything else is answered with EPERM."""


class Comparison(ctypes.Structure):
    """libseccomp's `struct scmp_arg_cmp`: a condition on one argument of a system call."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


class RulesetAttributes(ctypes.Structure):
    """The kernel's `struct landlock_ruleset_attr`, as of version 1."""

    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class PathBeneath(ctypes.Structure):
    """The kernel's `struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def limit_resources(limits: Mapping[str, float]) -> None:
    """Puts the kernel's limits on this process; see `jobs.Limits`."""
    mib = 2**20
    memory, disk = (round(limits[name] * mib) for name in ("memory_mib", "disk_mib"))
    cpu_s = math.ceil(limits["cpu_s"])
    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def confine(layers: Sequence[str], readable: Sequence[str], folder: str) -> None:
    """Puts layers on this process, for good.

    Args:
        layers: Some of LAYERS.
        readable: Files and folders that may be read.
        folder: The working folder, the only one that may be written to.

    Raises:
        OSError: The kernel refuses one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if "namespaces" in layers:
        checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare")
    if "seccomp" not in layers:
        # No process, and no thread either, where the kernel counts them at all (not those of root).
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    if "landlock" in layers:
        restrict_files(libc, readable, folder)
    if "seccomp" in layers:
        restrict_calls()


def checked(answer: int, call: str) -> int:
    """What a C function returned.

    Raises:
        OSError: It is negative.
    """
    if answer < 0:
        number = ctypes.get_errno() or -answer
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return answer


def restrict_files(libc: ctypes.CDLL, readable: Sequence[str], folder: str) -> None:
    """Landlock: some files and folders to read, the working folder to read and write, no other file.

    Raises:
        OSError: The kernel has no Landlock.
    """
    version = checked(libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION), "landlock_create_ruleset")
    handled = (1 << RIGHTS_BY_VERSION.get(version, max(RIGHTS_BY_VERSION.values()))) - 1
    attributes = RulesetAttributes(handled)
    ruleset = checked(
        libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0),
        "landlock_create_ruleset",
    )
    writing = READ_FILE | READ_DIR | WRITE_FILE | REMOVE_FILE | MAKE_REG | TRUNCATE
    for path, rights in (*((path, EXECUTE | READ_FILE | READ_DIR) for path in readable), (folder, writing)):
        allow_beneath(libc, ruleset, path, rights & handled)
    checked(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def allow_beneath(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Adds one file or folder to a Landlock ruleset; one that is not there is left out."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    if not os.path.isdir(path):
        rights &= EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
    rule = PathBeneath(rights, descriptor)
    try:
        checked(libc.syscall(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0), "landlock_add_rule")
    finally:
        os.close(descriptor)


def seccomp_library() -> str | None:
    """Name of the libseccomp shared library, or None where there is none."""
    for name in ("libseccomp.so.2", "libseccomp.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def restrict_calls() -> None:
    """seccomp: the CALLS, threads, signals to this process itself, and reading limits; EPERM for the rest.

    Raises:
        OSError: There is no libseccomp, or the kernel refuses the filter.
    """
    name = seccomp_library()
    if name is None:
        raise OSError("no libseccomp")
    library = ctypes.CDLL(name)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ACT_ERRNO | EPERM))
    itself = [Comparison(0, OP_EQ, os.getpid(), 0)]
    rules: list[tuple[str, int, list[Comparison]]] = [(call, ACT_ALLOW, []) for call in CALLS.split()]
    rules += [(call, ACT_ALLOW, itself) for call in ("kill", "tgkill")]
    rules += [
        ("clone", ACT_ALLOW, [Comparison(0, OP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)]),
        # Its flags are behind a pointer, which a filter cannot read: the C library then falls back to clone.
        ("clone3", ACT_ERRNO | ENOSYS, []),
        ("prlimit64", ACT_ALLOW, [Comparison(2, OP_EQ, 0, 0)]),
        ("prctl", ACT_ALLOW, [Comparison(0, OP_EQ, 15, 0)]),  # PR_SET_NAME, of a thread
    ]
    for call, action, conditions in rules:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number == NO_SUCH_CALL:
            continue
        array = (Comparison * len(conditions))(*conditions)
        checked(library.seccomp_rule_add_array(context, action, number, len(conditions), array), f"seccomp {call}")
    checked(library.seccomp_load(context), "seccomp_load")
