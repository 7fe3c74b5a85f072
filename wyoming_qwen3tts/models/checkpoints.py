"""Downloaded checkpoints of a data directory, in the layout of huggingface_hub's cache.

::

    .checkpoints/models--<owner>--<name>/
        snapshots/<commit>/...     complete files; one that is still arriving ends in .part
        refs/<branch>              commit of the branch when it was last asked for
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from wyoming_qwen3tts.models.references import WORK_NAME

STORE_NAME: Final = ".checkpoints"
PART_SUFFIX: Final = ".part"
WEIGHTS: Final = "model.safetensors"
CODEC: Final = "speech_tokenizer/model.safetensors"
_PREFIX: Final = "models--"
# Older versions kept second names of all files there.
_OBSOLETE: Final = ("blobs", "partial")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was downloaded, completely or in part."""

    repo: str
    revision: str
    directory: Path

    @property
    def num_bytes(self) -> int:
        """Size of its files."""
        return size_of(self.directory)

    @property
    def is_remnant(self) -> bool:
        """Whether only the codec was kept, for another model."""
        has_weights = any(self.directory.glob(f"{WEIGHTS}*"))
        return (self.directory / CODEC).is_file() and not has_weights


def checkpoint_directory(data_dir: Path, repo: str, commit: str) -> Path:
    """Return the directory of a downloaded checkpoint."""
    return _repo_directory(data_dir, repo) / "snapshots" / commit


def record_commit(data_dir: Path, repo: str, branch: str, commit: str) -> None:
    """Record the commit of a branch, for times without network."""
    file = _repo_directory(data_dir, repo) / "refs" / branch
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(commit)


def downloaded_checkpoints(data_dir: Path) -> list[Checkpoint]:
    """Return the checkpoints of a data directory."""
    return [
        Checkpoint(
            directory.parents[1].name.removeprefix(_PREFIX).replace("--", "/"),
            directory.name,
            directory,
        )
        for directory in sorted((data_dir / STORE_NAME).glob(f"{_PREFIX}*/snapshots/*"))
    ]


def remove_checkpoint(data_dir: Path, repo: str, *, keep_codec: bool = False) -> None:
    """Remove a repository's checkpoints, and codecs that were kept for other models.

    Args:
        data_dir: The data directory.
        repo: The repository.
        keep_codec: Keep the codec, which another model needs next.
    """
    for checkpoint in downloaded_checkpoints(data_dir):
        if checkpoint.repo.lower() == repo.lower() and keep_codec:
            (checkpoint.directory / WEIGHTS).unlink(missing_ok=True)
        elif checkpoint.repo.lower() == repo.lower() or (checkpoint.is_remnant and not keep_codec):
            shutil.rmtree(_repo_directory(data_dir, checkpoint.repo), ignore_errors=True)
    store = data_dir / STORE_NAME
    for name in _OBSOLETE:
        shutil.rmtree(store / name, ignore_errors=True)
    if not downloaded_checkpoints(data_dir):
        shutil.rmtree(store, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    real = source.resolve()
    try:
        target.hardlink_to(real)
    except OSError:
        partial = target.with_name(f"{target.name}{PART_SUFFIX}")
        shutil.copyfile(real, partial)
        partial.replace(target)


@contextmanager
def data_lock(data_dir: Path, timeout_s: float = -1) -> Iterator[None]:
    """Hold the lock under which a data directory's models change.

    Raises:
        Timeout: Another process holds it.
        OSError: The data directory cannot be written.
    """
    work = data_dir / WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    lock = FileLock(work / "lock", timeout=timeout_s)
    try:
        lock.acquire(poll_interval=0.1)
    except NotImplementedError:
        # A file system without locks: a single server works there as well.
        yield
        return
    try:
        yield
    finally:
        lock.release()


def is_locked(data_dir: Path) -> bool:
    """Return whether a process changes the models of a data directory now."""
    if (data_dir / WORK_NAME / "lock").exists():
        try:
            with data_lock(data_dir, timeout_s=0):
                pass
        except Timeout:
            return True
        except OSError:
            pass
    return False


def size_of(directory: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _repo_directory(data_dir: Path, repo: str) -> Path:
    return data_dir / STORE_NAME / f"{_PREFIX}{repo.replace('/', '--')}"
