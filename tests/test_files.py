"""Files and directories are complete or absent, whatever ends their writer."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wyoming_qwen3tts import files
from wyoming_qwen3tts.files import (
    atomic_directory,
    atomic_file,
    atomic_write,
    leftovers,
    remove_directory,
    restore_replaced,
)


def fill(target: Path, text: str) -> None:
    with atomic_directory(target) as building:
        (building / "a.txt").write_text(text)


def killed(tmp_path: Path, body: str) -> None:
    """Run code in another process that kills itself with ``die()``."""
    code = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from wyoming_qwen3tts.files import atomic_directory
        target = Path(sys.argv[1])
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
    """) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "bundle")], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.json"
    atomic_write(path, "ä")
    assert path.read_bytes() == "ä".encode()
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half %d" % (1 // 0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    assert path.read_bytes() == "ä".encode()


def test_a_written_file_has_the_usual_permissions(tmp_path):
    atomic_write(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "bundle"
    fill(target, "old")
    with atomic_directory(target) as building:
        (building / "a.txt").write_text("new")
        assert (target / "a.txt").read_text() == "old"
    assert (target / "a.txt").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]
    assert target.stat().st_mode & 0o777 == 0o755


def test_a_failed_writer_leaves_the_old_directory(tmp_path):
    target = tmp_path / "bundle"
    fill(target, "old")
    with pytest.raises(ZeroDivisionError), atomic_directory(target) as building:
        (building / "a.txt").write_text(f"half {1 / 0}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]
    assert (target / "a.txt").read_text() == "old"


def test_a_failed_rename_puts_the_old_directory_back(tmp_path, monkeypatch):
    target = tmp_path / "bundle"
    fill(target, "old")
    rename = Path.rename

    def refuse(self, to):
        if ".building-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        fill(target, "new")
    assert (target / "a.txt").read_text() == "old"


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    killed(tmp_path, "with atomic_directory(target) as building: die()")
    assert len(leftovers(tmp_path)) == 1
    fill(tmp_path / "bundle", "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bundle"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    fill(tmp_path / "bundle", "old")
    killed(
        tmp_path,
        """
        rename = Path.rename
        Path.rename = lambda self, to: die() if ".building-" in self.name else rename(self, to)
        with atomic_directory(target) as building:
            (building / "a.txt").write_text("new")
        """,
    )
    assert not (tmp_path / "bundle").exists()
    assert restore_replaced(tmp_path) == [tmp_path / "bundle"]
    assert (tmp_path / "bundle" / "a.txt").read_text() == "old"


def test_a_running_writer_is_left_alone(tmp_path):
    target = tmp_path / "bundle"
    with atomic_directory(target) as building:
        # As between the two renames of this writer.
        (tmp_path / ".bundle.replaced-1").mkdir()
        assert leftovers(tmp_path) == [tmp_path / ".bundle.replaced-1"]
        assert restore_replaced(tmp_path) == []
        assert building.is_dir()
    assert target.is_dir()


def test_without_locks_directories_are_written_and_leftovers_stay(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    (tmp_path / ".bundle.building-x").mkdir()
    fill(tmp_path / "bundle", "new")
    assert (tmp_path / "bundle" / "a.txt").read_text() == "new"
    assert (tmp_path / ".bundle.building-x").is_dir()


def test_a_removed_directory_is_gone(tmp_path):
    fill(tmp_path / "bundle", "old")
    remove_directory(tmp_path / "bundle")
    assert not any(tmp_path.iterdir())
