"""A file that records are appended to, each handed to the operating system before the call returns."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from stabilitylens.tfrecord import frame

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


class Appender:
    """A new file of framed records.

    What was appended survives the death of the process; a record that could not be written whole is
    cut off again.

    Raises:
        FileExistsError: the file is there already.
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.path = Path(os.path.abspath(path))  # wherever the process goes
        self._file = os.open(path, flags, 0o666)
        self._links = os.fstat(self._file).st_nlink  # 0 on some network file systems

    def append(self, data: bytes) -> None:
        """Append one record.

        Raises:
            OSError: e.g. the disk is full; the file is as before.
        """
        record, written = frame(data), 0
        begin = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while written < len(record):
                written += os.write(self._file, record[written:] if written else record)
        except BaseException:
            # a failed cut leaves a torn record, which readers skip by its checksum
            with suppress(OSError):
                os.ftruncate(self._file, begin)
            raise

    def in_place(self) -> bool:
        """Whether the file can still be found under its name: not deleted, moved, or its disk unmounted.

        Where that can't be told, as without permission to look, it is.
        """
        try:
            os.stat(self.path)
        except OSError as error:
            return error.errno not in _GONE
        return not self._links or os.fstat(self._file).st_nlink > 0

    def close(self) -> None:
        """Close the file; what is appended later raises OSError."""
        number, self._file = self._file, -1
        os.close(number)
