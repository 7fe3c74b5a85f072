"""Writes a bundle's directory so that it is there as a whole or not at all.

Everything goes into a hidden directory beside the target, which is renamed at the end. The hidden
directory is locked while its build lives; one that nobody locks was left by a killed build, and the
next build at the same place removes it.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from wyoming_qwen3tts.errors import BuildError
from wyoming_qwen3tts.runtime.manifest import MANIFEST_NAME, BundleFile, Manifest

_BUILDING = ".building-"
_REPLACED = ".replaced-"
_HASH_CHUNK_BYTES = 1 << 20
_MEGABYTE = 1_000_000


@contextlib.contextmanager
def bundle_directory(target: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield an empty directory that becomes ``target`` when the block ends without an error.

    An existing ``target`` is replaced.

    Args:
        target: The bundle's directory.
        needed_bytes: Estimated size, checked against the free space.

    Raises:
        BuildError: There is too little space, or reading or writing fails.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        check_free_space(target.parent, needed_bytes)
        building = Path(tempfile.mkdtemp(prefix=f".{target.name}{_BUILDING}", dir=target.parent))
    except OSError as error:
        raise BuildError(
            f"{target} cannot be written ({error.strerror}); choose another place with --output."
        ) from error
    lock = _lock(building)
    try:
        yield building
        building.chmod(0o755)
        _replace(target, building)
    except OSError as error:
        raise BuildError(f"The bundle {target} cannot be built: {error}") from error
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(building, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Remove what killed builds of ``target`` left, and finish a replacement that was cut short."""
    for path in target.parent.glob(f".{target.name}{_REPLACED}*"):
        if target.exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.rename(target)
    for path in target.parent.glob(f".{target.name}{_BUILDING}*"):
        lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def check_free_space(directory: Path, needed_bytes: int) -> None:
    """Raise an error if the file system of ``directory`` has less than ``needed_bytes`` free.

    Raises:
        BuildError: Both numbers are in the message.
    """
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < needed_bytes:
        raise BuildError(
            f"The bundle needs about {needed_bytes // _MEGABYTE} MB, {directory} has "
            f"{free_bytes // _MEGABYTE} MB free; make room or choose another place "
            "(--output, or the environment variable TMPDIR for verify)."
        )


def finish_bundle(
    directory: Path, manifest_of: Callable[[tuple[BundleFile, ...]], Manifest]
) -> None:
    """Hash every file in ``directory`` and write the manifest that is made of them."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = tuple(
        BundleFile(path.relative_to(directory).as_posix(), path.stat().st_size, sha256_of(path))
        for path in paths
        if path.name != MANIFEST_NAME
    )
    (directory / MANIFEST_NAME).write_text(manifest_of(files).to_json(), encoding="utf-8")


def sha256_of(path: Path, progress: Callable[[int], None] = lambda _bytes: None) -> str:
    """Return the hash of a file; ``progress`` is told of every part's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def _lock(directory: Path) -> int | None:
    """Lock a directory until the returned descriptor is closed; None if another build holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also on a file system without locks: then leftovers stay, nothing else
        os.close(descriptor)
        return None
    return descriptor


def _replace(target: Path, building: Path) -> None:
    """Put ``building`` in the place of ``target``."""
    old = target.parent / f".{target.name}{_REPLACED}{os.getpid()}"
    if target.exists():
        target.rename(old)
    building.rename(target)
    shutil.rmtree(old, ignore_errors=True)
