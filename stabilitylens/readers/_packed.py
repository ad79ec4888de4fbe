"""Lays a log that comes compressed or from a pipe into a temporary file, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from stabilitylens.errors import BadInput
from stabilitylens.readers._large import room

PIPE = Path("-")
#: what is standard input where that is no file
_STDIN = Path("/dev/stdin")
_CHUNK = 1 << 20
#: a damaged file is gone through again in pieces of this size, of which the last is lost
_SMALL = 256
#: a compressed file that holds more than this is refused: none of the logs that we know of is near it
_MOST = 1 << 36
_PACKED = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ\0": "xz"}


@contextmanager
def plain(path: Path, notes: list[str]) -> Iterator[Path]:
    """A path whose bytes are a log's: the same one, or, for a pipe or a compressed file, a temporary one.

    Pipes are standard input, a FIFO, ``/dev/stdin`` and what a shell's ``<(command)`` names.

    Args:
        path: the path.
        notes: gets a sentence where the end of a compressed file is missing.

    Raises:
        BadInput: a compressed file is damaged before anything came out of it, or its format cannot be opened here; or
            the path is a device.
    """
    kind = "pipe" if path == PIPE or _is_pipe(path) else _packed(path)
    if kind is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="stabilitylens-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / (path.stem if kind != "pipe" and path.suffix else path.name)
        if kind == "pipe":
            _fill(out, path)
            with plain(out, notes) as inner:
                yield inner
            return
        with path.open("rb") as file, _unpacked(kind, file, path) as stream:
            if not _copy(stream, out, path):
                notes.append(f"the compressed file is cut or damaged: the {_filled(path, kind, out)} bytes before that were read")
        yield out


def _is_pipe(path: Path) -> bool:
    """Whether a path can be read only once.

    Raises:
        BadInput: it is a device, which holds no log or has no end.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and path != _STDIN):
        raise BadInput(f"{path} is a device and holds no log; give a training run's log, or - for standard input")
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _fill(out: Path, path: Path) -> None:
    if path == PIPE:
        _copy(cast(io.BufferedReader, sys.stdin.buffer), out, path)
        return
    with path.open("rb") as pipe:
        _copy(pipe, out, path)


def _packed(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(6)
    return next((kind for magic, kind in _PACKED.items() if begin.startswith(magic)), None)


def _unpacked(kind: str, file: io.BufferedIOBase, path: Path) -> io.BufferedIOBase:
    if kind == "gz":
        return gzip.GzipFile(fileobj=file)
    if kind == "bz2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return lzma.LZMAFile(cast(IO[bytes], file))
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            import zstandard  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise BadInput(f"{path} is compressed with zstd, which is not installed; pip install 'stabilitylens[zstd]', or unpack it first") from error
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(cast(IO[bytes], file), read_across_frames=True))
    return zstd.ZstdFile(file)  # type: ignore[no-any-return, unused-ignore]


def _copy(stream: io.BufferedIOBase, out: Path, path: Path) -> bool:
    """Copy what can be unpacked; returns whether that was all."""
    with out.open("wb") as file:
        try:
            while chunk := stream.read1(_CHUNK):  # read() would lose what came before an error
                with room():
                    file.write(chunk)
                if file.tell() > _MOST:
                    raise BadInput(f"{path} unpacks to more than {_MOST >> 30} GiB; unpack and cut it first")
        except (EOFError, zlib.error, lzma.LZMAError, OSError):
            return False
        except Exception as error:
            if isinstance(error, BadInput) or type(error).__module__.partition(".")[0] not in ("zstandard", "compression"):
                raise
            return False
    return True


def _filled(path: Path, kind: str, out: Path) -> int:
    """How many bytes came out of a damaged file; of gzip, small pieces give what comes up to the damage itself."""
    if kind == "gz":
        with path.open("rb") as file, out.open("wb") as copy:
            unpacker = zlib.decompressobj(wbits=31)
            try:
                while small := file.read(_SMALL):
                    copy.write(unpacker.decompress(small))
                    while unpacker.eof:  # another member may follow, after zeros
                        rest, unpacker = unpacker.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits=31)
                        copy.write(unpacker.decompress(rest))
            except zlib.error:
                pass
    found = out.stat().st_size
    if not found:
        raise BadInput(f"{path} is compressed and damaged from its beginning; make the archive again")
    return found
