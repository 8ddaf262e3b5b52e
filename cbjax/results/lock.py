"""One writer per folder, by an operating-system lock that dies with its process.

The lock is `flock` on a hidden file beside the folder. The kernel drops it when the process ends,
however it ends, so there is nothing to judge about stale locks; the process id in the file is only
for the message.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUse(RuntimeError):
    """Another process, or another place in this one, is writing the same folder."""


@contextmanager
def only_writer(path: Path, lock_file: Path) -> Iterator[None]:
    """Hold the right to write `path`.

    Args:
        path: the folder to be written, for the message.
        lock_file: the lock beside it; its folder must exist. Left by a dead process it is taken
            over.

    Raises:
        FolderInUse: somebody else holds it.
    """
    descriptor = _locked(path, lock_file)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # Removed while still held: a waiting process that opened this file sees below that it is
        # no longer the one on disk.
        lock_file.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, lock_file: Path) -> int:
    while True:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_on_disk(descriptor, lock_file):
                return descriptor
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            raise FolderInUse(
                f"{path} is being written by process {holder}; wait for it, or change results_dir "
                "or a setting"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_on_disk(descriptor: int, lock_file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock_file))
    except FileNotFoundError:
        return False
