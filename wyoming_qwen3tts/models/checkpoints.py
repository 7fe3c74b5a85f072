"""Downloaded checkpoints of a data directory, in the layout of huggingface_hub's cache.

``.checkpoints/models--<owner>--<name>/snapshots/<commit>/`` holds the files; one that is still
arriving ends in ``.part``. ``refs/<branch>`` holds the commit that a branch had.
"""

import shutil
from pathlib import Path
from typing import Final

from filelock import FileLock

from wyoming_qwen3tts.models.references import WORK_NAME

STORE_NAME: Final = ".checkpoints"
PART_SUFFIX: Final = ".part"
_PREFIX: Final = "models--"


def repo_directory(data_dir: Path, repo: str) -> Path:
    """Return the directory of everything that was downloaded of a repository."""
    return data_dir / STORE_NAME / f"{_PREFIX}{repo.replace('/', '--')}"


def downloaded_repos(data_dir: Path) -> list[str]:
    """Return the repositories of which something was downloaded."""
    found = sorted((data_dir / STORE_NAME).glob(f"{_PREFIX}*"))
    return [path.name.removeprefix(_PREFIX).replace("--", "/") for path in found]


def remove_checkpoint(data_dir: Path, repo: str) -> None:
    """Remove what was downloaded of a repository."""
    shutil.rmtree(repo_directory(data_dir, repo), ignore_errors=True)
    if not downloaded_repos(data_dir):
        shutil.rmtree(data_dir / STORE_NAME, ignore_errors=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        target.hardlink_to(source.resolve())
    except OSError:
        partial = target.with_name(f"{target.name}{PART_SUFFIX}")
        shutil.copyfile(source, partial)
        partial.replace(target)


def data_lock(data_dir: Path) -> FileLock:
    """Return the lock under which a data directory's models change.

    Raises:
        OSError: The data directory cannot be written.
    """
    work = data_dir / WORK_NAME
    work.mkdir(parents=True, exist_ok=True)
    return FileLock(work / "lock")


def size_of(directory: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
