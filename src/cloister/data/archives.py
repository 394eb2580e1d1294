"""Archives, unpacked so that nothing in them can reach outside its folder; and files, packed."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from cloister.data.checksums import checksum, wrong_checksum
from cloister.data.registry import File, Member
from cloister.errors import Corrupted


def unpack(archive: Path, file: File, root: Path, wanted: list[Member]) -> None:
    """Unpack beside, check, and move what is wanted: all of it has been unpacked before any of it is moved."""
    names = {inside(piece.name) for piece in wanted}
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=archive.parent) as folder:
        try:
            extract = _from_zip if file.path.endswith(".zip") else _from_tar
            extract(archive, Path(folder), names)
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's; what gzip and bzip2 say of damaged data is an OSError too, without a number
            raise Corrupted(
                f"Expected {file.url} to be an archive that can be read, found {str(error)!r}: try again later."
            ) from None
        for piece in wanted:
            unpacked = Path(folder) / inside(piece.name)
            if not unpacked.is_file():
                raise Corrupted(f"Expected {piece.name!r} in {file.url}, found no such file: the archive has changed.")
            found = wrong_checksum(unpacked, piece)
            if found:
                raise Corrupted(
                    f"Expected {checksum(piece)} of {piece.name!r} in {file.url}, found {found}: "
                    "the archive has changed."
                )
        for piece in wanted:
            place = root / inside(piece.path)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(folder) / inside(piece.name), place)


def _from_zip(archive: Path, folder: Path, names: set[PurePosixPath]) -> None:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            name = _checked(info.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            if name in names and not info.is_dir():
                opened.extract(info, folder)


def _from_tar(archive: Path, folder: Path, names: set[PurePosixPath]) -> None:
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)  # missing in the first releases of 3.11
        for info in opened:
            name = _checked(info.name, info.isreg() or info.isdir())
            if name in names and info.isreg():
                opened.extract(info, folder)


def _checked(name: str, plain: bool) -> PurePosixPath:
    """A name in an archive, if it names a plain file or folder below the folder it is unpacked into."""
    if not plain:
        raise Corrupted(
            f"Expected only files and folders in an archive, found {name!r}, a link or a device: distrust its source."
        )
    return inside(name)


def inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or PureWindowsPath(name).drive or "\0" in name:
        raise Corrupted(
            f"Expected only names that stay inside their folder, found {name!r}: distrust the archive's source."
        )
    return path


def compress(part: Path, target: Path) -> None:
    """Store what was sent, gzip-compressed (without a time, so that the same bytes give the same file)."""
    beside = target.with_name(target.name + ".gz.part")
    try:
        with (
            part.open("rb") as plain,
            beside.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        ):
            shutil.copyfileobj(plain, packed)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
