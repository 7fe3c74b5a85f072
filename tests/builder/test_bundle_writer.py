import errno
import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest

from wyoming_qwen3tts.builder import bundle_writer
from wyoming_qwen3tts.builder.bundle_writer import (
    bundle_directory,
    finish_bundle,
    remove_leftovers,
    sha256_of,
)
from wyoming_qwen3tts.errors import BuildError


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_the_directory_appears_when_the_block_ends(tmp_path):
    target = tmp_path / "model" / "cpu_int8"
    with bundle_directory(target, 1) as directory:
        (directory / "a").write_text("new")
        assert not target.exists()
        assert directory.parent == target.parent
    assert (target / "a").read_text() == "new"
    assert names(target.parent) == ["cpu_int8"]
    assert target.stat().st_mode & 0o777 == 0o755


def test_an_error_leaves_nothing(tmp_path):
    target = tmp_path / "cpu_int8"
    with pytest.raises(ZeroDivisionError), bundle_directory(target, 1) as directory:
        (directory / "a").write_text(f"half {1 / 0}")
    assert names(tmp_path) == []


def test_an_existing_bundle_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "cpu_int8"
    target.mkdir()
    (target / "old").write_text("old")
    with bundle_directory(target, 1) as directory:
        (directory / "new").write_text("new")
        assert names(target) == ["old"]
    assert names(target) == ["new"]
    assert names(tmp_path) == ["cpu_int8"]


def test_an_error_keeps_the_existing_bundle(tmp_path):
    target = tmp_path / "cpu_int8"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(ZeroDivisionError), bundle_directory(target, 1):
        _ = 1 / 0
    assert names(target) == ["old"]
    assert names(tmp_path) == ["cpu_int8"]


def test_failures_of_the_file_system_are_build_errors(tmp_path):
    target = tmp_path / "cpu_int8"
    with (
        pytest.raises(BuildError, match=r"cpu_int8.*No space left"),
        bundle_directory(target, 1),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []


def test_leftovers_of_dead_builds_go_and_living_ones_stay(tmp_path):
    target = tmp_path / "cpu_int8"
    dead = tmp_path / ".cpu_int8.building-dead"
    other = tmp_path / ".cpu_int4.building-other"
    dead.mkdir()
    other.mkdir()
    with bundle_directory(target, 1) as living:
        assert not dead.exists()
        remove_leftovers(target)
        assert living.exists()
    assert other.exists()


def test_a_replacement_that_was_cut_short_is_undone(tmp_path):
    target = tmp_path / "cpu_int8"
    moved = tmp_path / ".cpu_int8.replaced-1"
    moved.mkdir()
    (moved / "a").write_text("old")
    remove_leftovers(target)
    assert (target / "a").read_text() == "old"
    moved.mkdir()
    remove_leftovers(target)
    assert names(tmp_path) == ["cpu_int8"]


def test_too_little_space_is_told_in_numbers(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=800_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    target = tmp_path / "cpu_int8"
    with (
        pytest.raises(BuildError, match=r"about 1200 MB.*800 MB free"),
        bundle_directory(target, 1_200_000_000),
    ):
        pytest.fail("must not begin")
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "cpu_int8"
    with pytest.raises(BuildError, match="--output"), bundle_directory(target, 1):
        pytest.fail("must not begin")


def test_file_systems_without_locks_keep_leftovers(tmp_path, monkeypatch):
    def refuse(_descriptor, _operation):
        raise OSError(95, "not supported")

    monkeypatch.setattr(bundle_writer.fcntl, "flock", refuse)
    leftover = tmp_path / ".cpu_int8.building-maybe-alive"
    leftover.mkdir()
    with bundle_directory(tmp_path / "cpu_int8", 1) as directory:
        (directory / "a").write_text("")
    assert leftover.exists()
    assert names(tmp_path / "cpu_int8") == ["a"]


def test_every_file_is_hashed_into_the_manifest(tmp_path):
    (tmp_path / "b").write_bytes(b"second")
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "manifest.json").write_text("old")

    class Listing:
        def __init__(self, files):
            self.files = files

        def to_json(self):
            return json.dumps([[file.path, file.bytes, file.sha256] for file in self.files])

    finish_bundle(tmp_path, Listing)
    assert json.loads((tmp_path / "manifest.json").read_text()) == [
        ["a", 3_000_000, hashlib.sha256(b"x" * 3_000_000).hexdigest()],
        ["b", 6, hashlib.sha256(b"second").hexdigest()],
    ]


def test_hashing_tells_how_far_it_is(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 2_500_000)
    seen = []
    sha256_of(path, seen.append)
    assert sum(seen) == 2_500_000
    assert len(seen) > 1
