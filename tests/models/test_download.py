"""Every way in which a transfer can fail, against the stand-in hub."""

import errno
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.support.hub import COMMIT, Repository
from wyoming_qwen3tts.errors import DownloadError, UnavailableError
from wyoming_qwen3tts.models import download
from wyoming_qwen3tts.models.checkpoint_store import CheckpointStore, sha256_of
from wyoming_qwen3tts.models.download import Fetcher, WantedFile
from wyoming_qwen3tts.models.provision_state import CancelledError

REPO, OTHER = "owner/model", "owner/sibling"
BIG, SMALL = "weights/model.safetensors", "config.json"
CONTENT = {SMALL: b'{"small": true}', BIG: bytes(range(256)) * 1600}
HASHES = {path: hashlib.sha256(content).hexdigest() for path, content in CONTENT.items()}
PLAIN = [WantedFile(SMALL), WantedFile(BIG)]
KNOWN = [WantedFile(path, len(CONTENT[path]), HASHES[path]) for path in CONTENT]


class Scene:
    """A data directory, and a hub with two repositories of the same files."""

    def __init__(self, hub, options, data_dir: Path) -> None:
        self.hub = hub
        for repo in (REPO, OTHER):
            hub.repositories[repo] = Repository(dict(CONTENT))
        self.options = options
        self.store = CheckpointStore(data_dir)
        self.cancelled = threading.Event()
        self.progress: list[tuple[float, str]] = []

    def fetch(self, files=PLAIN, repo=REPO, extra_bytes=0, **changes) -> Path:
        self.progress = []
        fetcher = Fetcher(
            self.store,
            replace(self.options, **changes),
            self.cancelled,
            lambda fraction, message: self.progress.append((fraction, message)),
        )
        return fetcher.fetch(repo, fetcher.commit_of(repo, "main"), files, extra_bytes)

    def check(self, directory: Path) -> None:
        for path, content in CONTENT.items():
            assert (directory / path).read_bytes() == content
        assert not [path for path in (self.store.root / "partial").rglob("*") if path.is_file()]

    @property
    def partial(self) -> Path:
        return self.store.partial(REPO, COMMIT, BIG, HASHES[BIG])

    def ranges(self) -> list[str | None]:
        return [request.range for request in self.hub.gets(BIG)]


@pytest.fixture
def scene(hub, options, tmp_path):
    return Scene(hub, options, tmp_path / "data")


@pytest.mark.parametrize("files", [PLAIN, KNOWN], ids=["plain", "known"])
def test_files_arrive(scene, files):
    directory = scene.fetch(files)
    scene.check(directory)
    assert directory == scene.store.root / f"models--owner--model/snapshots/{COMMIT}"
    assert scene.progress[-1][0] == 1.0
    fractions = [fraction for fraction, _ in scene.progress]
    assert fractions == sorted(fractions)


def test_with_everything_there_the_network_is_left_alone(scene):
    scene.fetch()
    scene.hub.requests.clear()
    scene.check(scene.fetch(local_files_only=True))
    assert scene.hub.requests == []


def test_what_is_fetched_twice_is_stored_once_and_sent_once(scene):
    first, second = scene.fetch(KNOWN), scene.fetch(KNOWN, repo=OTHER)
    scene.check(second)
    assert (first / BIG).samefile(second / BIG)
    assert len(scene.hub.gets(BIG)) == 1


def test_content_known_to_the_hub_alone_is_shared_too(scene):
    scene.fetch()
    scene.check(scene.fetch(repo=OTHER))
    assert len(scene.hub.gets(BIG)) == 1


def test_removing_one_of_two_leaves_what_they_share(scene):
    scene.fetch()
    second = scene.fetch(repo=OTHER)
    scene.store.remove_snapshot(REPO, COMMIT)
    assert scene.store.sweep(with_partial=True) == 0
    scene.check(second)
    scene.store.remove_snapshot(OTHER, COMMIT)
    assert scene.store.sweep(with_partial=True) == len(CONTENT[BIG])
    assert not any(path.is_file() for path in scene.store.root.rglob("*"))


@pytest.mark.parametrize("links", ["symlink", "copy"])
def test_file_systems_without_hard_links(scene, monkeypatch, links):
    def refuse(*_arguments):
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    if links == "copy":
        monkeypatch.setattr(Path, "symlink_to", refuse)
    directory = scene.fetch(KNOWN)
    scene.check(directory)
    scene.store.sweep(with_partial=False)
    scene.check(scene.fetch(KNOWN, local_files_only=True))


def test_connection_that_breaks_goes_on_where_it_stopped(scene):
    scene.hub.fail(BIG, cut=True, after_bytes=100_000)
    scene.hub.fail(BIG, reset=True, after_bytes=50_000)
    scene.hub.fail(BIG, stall_s=1.0, after_bytes=50_000)
    scene.check(scene.fetch(timeout_s=0.3))
    starts = [0 if each is None else int(each[6:-1]) for each in scene.ranges()]
    assert starts[:2] == [0, 100_000]
    assert starts == sorted(starts)
    assert scene.hub.bytes_sent < 1.3 * sum(map(len, CONTENT.values()))


def test_what_an_earlier_run_left_is_gone_on_with(scene):
    scene.partial.parent.mkdir(parents=True)
    scene.partial.write_bytes(CONTENT[BIG][:300_000])
    scene.check(scene.fetch())
    assert scene.ranges() == ["bytes=300000-"]


@pytest.mark.parametrize("rest", [b"", b"too much"], ids=["whole", "too long"])
def test_part_that_is_whole_already(scene, rest):
    scene.partial.parent.mkdir(parents=True)
    scene.partial.write_bytes(CONTENT[BIG] + rest)
    scene.check(scene.fetch())
    assert len(scene.ranges()) == (1 if rest else 0)


def test_damaged_part_of_an_earlier_run_is_fetched_again(scene, caplog):
    scene.partial.parent.mkdir(parents=True)
    scene.partial.write_bytes(b"\0" * 300_000)
    scene.check(scene.fetch())
    assert scene.ranges() == ["bytes=300000-", None]
    assert f"{BIG} of {REPO} has wrong bytes" in caplog.text


def test_server_that_cannot_go_on_in_the_middle(scene):
    scene.hub.fail(BIG, cut=True, after_bytes=100_000)
    scene.hub.fail(BIG, ignore_range=True)
    scene.check(scene.fetch())


def test_server_that_always_starts_anew_and_breaks_is_given_up(scene):
    scene.hub.fail(BIG, cut=True, after_bytes=100_000, ignore_range=True, times=-1)
    with pytest.raises(UnavailableError, match="check the network"):
        scene.fetch()
    assert len(scene.ranges()) == 1 + scene.options.num_retries


def test_wrong_bytes_are_named_and_fetched_again(scene, caplog):
    scene.hub.fail(BIG, flip=True)
    scene.hub.fail(SMALL, flip=True)
    scene.check(scene.fetch())
    assert f"{BIG} of {REPO} has wrong bytes (sha256" in caplog.text
    assert f"{SMALL} of {REPO} has wrong bytes (git hash" in caplog.text


def test_bytes_that_stay_wrong_are_an_error(scene):
    scene.hub.fail(BIG, flip=True, times=-1)
    with pytest.raises(DownloadError, match=r"wrong bytes 2 times .* a mirror or proxy"):
        scene.fetch()
    assert not scene.partial.exists()
    scene.hub.faults.clear()
    scene.check(scene.fetch())


def test_hub_with_another_file_than_the_known_one_is_refused(scene):
    other = [replace(file, sha256="0" * 64) for file in KNOWN]
    with pytest.raises(DownloadError, match=r"has another weights/.* than the published one"):
        scene.fetch(other[1:])
    assert scene.hub.gets() == []


def test_start_of_a_hash_is_enough_to_refuse(scene):
    start = HASHES[SMALL][:16]
    scene.fetch([replace(KNOWN[0], sha256=start)])
    with pytest.raises(DownloadError, match="wrong bytes"):
        scene.fetch([replace(KNOWN[0], sha256="0" + start[1:])], repo=OTHER)


@pytest.mark.parametrize("path", [BIG, SMALL])
@pytest.mark.parametrize("files", [PLAIN, KNOWN], ids=["plain", "known"])
def test_file_that_was_damaged_on_disk_is_named_and_fetched_again(scene, files, path, caplog):
    directory = scene.fetch(files)
    damaged = bytearray(CONTENT[path])
    damaged[3] ^= 1
    (directory / path).write_bytes(damaged)
    with pytest.raises(DownloadError, match=f"{path} of {REPO} is not on this machine"):
        scene.fetch(files, local_files_only=True)
    assert f"{path} is damaged" in caplog.text
    scene.check(scene.fetch(files))


def test_file_whose_arrival_was_cut_short_is_not_trusted(scene):
    directory = scene.fetch()
    (scene.store.root / f"models--owner--model/fetched/{COMMIT}.json").unlink()
    (directory / SMALL).write_bytes(b"half")
    scene.check(scene.fetch())


STATUSES = [
    (401, {"X-Error-Code": "GatedRepo"}, "accept them on"),
    (403, {"X-Error-Code": "GatedRepo"}, "accept them on"),
    (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "your token"),
    (403, {}, "does not exist on .* or is private"),
    (404, {"X-Error-Code": "RepoNotFound"}, "does not exist on .* or is private"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "has no revision"),
    (404, {"X-Error-Code": "EntryNotFound"}, "has no file"),
    (410, {}, "refuses .* with status 410"),
]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("status", "headers", "message"), STATUSES)
def test_refusal_is_one_sentence_and_not_repeated(scene, method, status, headers, message):
    scene.hub.fail(BIG, status=status, headers=headers, method=method)
    with pytest.raises(DownloadError, match=message) as caught:
        scene.fetch()
    assert not isinstance(caught.value, UnavailableError)
    assert "\n" not in str(caught.value)
    scene.check(scene.fetch())


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_hub_that_is_busy_is_asked_again(scene, method, status):
    scene.hub.fail(BIG, status=status, method=method, times=2)
    scene.check(scene.fetch())


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "0"}, {"ratelimit": '"resolvers";r=0;t=0'}], ids=["after", "limit"]
)
def test_hub_that_stays_busy_is_given_up_and_gone_on_with_later(scene, headers):
    scene.fetch([WantedFile(SMALL)])
    scene.hub.fail(BIG, status=429, headers=headers, times=-1)
    with pytest.raises(UnavailableError, match=r"\(status 429\); it asks to wait 0 s"):
        scene.fetch()
    scene.hub.faults.clear()
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    assert scene.hub.gets(SMALL) == []


def test_hub_that_asks_to_wait_too_long_is_given_up_at_once(scene):
    scene.hub.fail(BIG, status=429, headers={"Retry-After": "3000"})
    with pytest.raises(UnavailableError, match="asks to wait 3000 s"):
        scene.fetch()


def test_silence_is_named(scene):
    scene.hub.fail(BIG, stall_s=0.5, times=-1)
    with pytest.raises(UnavailableError, match=r"sent nothing of weights/.* for 0\.1 s"):
        scene.fetch(timeout_s=0.1, num_retries=1)


def test_no_network_is_named(scene):
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9 cannot be reached .* HF_ENDPOINT"):
        scene.fetch(endpoint="http://127.0.0.1:9")


def test_network_that_was_lost_leaves_what_came(scene):
    scene.hub.fail(BIG, cut=True, after_bytes=200_000)
    scene.hub.fail(BIG, reset=True, times=-1)
    with pytest.raises(UnavailableError):
        scene.fetch()
    assert scene.partial.stat().st_size >= 200_000
    scene.hub.faults.clear()
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    assert scene.ranges()[0] is not None


def test_proxy_that_is_not_there_is_named(scene, fresh_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(UnavailableError, match="127"):
        scene.fetch(num_retries=0)


def test_proxy_is_used(scene, fresh_client, monkeypatch):
    """The stand-in answers what a proxy is asked for: an absolute address."""
    monkeypatch.setenv("HTTP_PROXY", scene.hub.endpoint)
    scene.fetch([WantedFile(SMALL)], endpoint="http://hub.invalid")
    assert scene.hub.gets(SMALL)


PASSWORD = "let-me-in"  # noqa: S105 - of the stand-in


def test_token_goes_to_the_hub_and_to_nobody_else(scene, monkeypatch):
    scene.hub.repositories[REPO].token = PASSWORD
    with pytest.raises(DownloadError, match=r"does not exist on .* or is private"):
        scene.fetch()
    monkeypatch.setenv("HF_TOKEN", PASSWORD)
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    for request in scene.hub.requests:
        assert (request.authorization == f"Bearer {PASSWORD}") == (request.server == "hub")


def test_gated_repository_says_what_to_accept(scene):
    scene.hub.repositories[REPO].token = PASSWORD
    scene.hub.repositories[REPO].is_gated = True
    with pytest.raises(DownloadError, match=f"accept them on {scene.hub.endpoint}/{REPO}"):
        scene.fetch()


def test_repository_that_does_not_exist(scene):
    with pytest.raises(DownloadError, match="nobody/nothing does not exist"):
        scene.fetch(repo="nobody/nothing")


@pytest.mark.parametrize("switch", ["flag", "environment"])
def test_offline_with_something_missing(scene, monkeypatch, switch):
    scene.fetch([WantedFile(SMALL)])
    scene.hub.requests.clear()
    changes = {"local_files_only": True} if switch == "flag" else {}
    if switch == "environment":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=f"{BIG} of {REPO} is not on this machine"):
        scene.fetch(**changes)
    assert scene.hub.requests == []


def test_branch_is_what_it_was_last_while_the_hub_is_away(scene, caplog):
    directory = scene.fetch()
    assert scene.fetch(endpoint="http://127.0.0.1:9", num_retries=0) == directory
    assert f"Taking what main of {REPO} was last" in caplog.text


def test_branch_that_moved_is_fetched_anew(scene):
    old = scene.fetch()
    scene.hub.repositories[REPO].commit = "f" * 40
    new = scene.fetch()
    assert new != old
    assert len(scene.hub.gets(BIG)) == 1


def cache_file(repo: str, path: str, content: bytes) -> Path:
    """Put a file into huggingface_hub's own cache."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    pointer = folder / "snapshots" / COMMIT / path
    for each in (blob, pointer, folder / "refs" / "main"):
        each.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    (folder / "refs" / "main").write_text(COMMIT)
    return blob


def test_what_another_program_fetched_is_used_and_left_alone(scene):
    blobs = [cache_file(REPO, path, content) for path, content in CONTENT.items()]
    scene.check(scene.fetch(KNOWN, local_files_only=True))
    assert scene.hub.requests == []
    scene.store.remove_snapshot(REPO, COMMIT)
    scene.store.sweep(with_partial=True)
    assert all(blob.is_file() for blob in blobs)


def test_shared_file_is_found_in_the_cache_of_a_sibling(scene):
    cache_file(OTHER, BIG, CONTENT[BIG])
    scene.check(scene.fetch([KNOWN[0], replace(KNOWN[1], also_in=((OTHER, COMMIT),))]))
    assert scene.hub.gets(BIG) == []


def test_damaged_file_in_the_cache_of_others_is_left_alone_and_not_used(scene, caplog):
    blob = cache_file(REPO, BIG, CONTENT[BIG][:-1] + b"x")
    scene.check(scene.fetch(KNOWN))
    assert sha256_of(blob) != HASHES[BIG]
    assert "is damaged" in caplog.text


def test_space_is_checked_before_the_first_byte(scene, monkeypatch):
    monkeypatch.setattr(download, "free_disk_bytes", lambda _path: 1_000_000)
    scene.fetch([WantedFile(SMALL)])
    scene.hub.requests.clear()
    with pytest.raises(DownloadError, match=r"needs 0 MB and 5 MB for the bundle, .* has 1 MB"):
        scene.fetch(extra_bytes=5_000_000)
    assert scene.hub.gets() == []


def test_full_disk_is_named_and_what_came_is_kept(scene, monkeypatch):
    real_open = Path.open

    def limited(path: Path, mode: str = "r", **options):
        file = real_open(path, mode, **options)
        return FullDisk(file, 150_000) if path == scene.partial else file

    monkeypatch.setattr(Path, "open", limited)
    with pytest.raises(DownloadError, match=r"The disk is full: .* what has arrived is kept"):
        scene.fetch()
    monkeypatch.undo()
    scene.hub.requests.clear()
    scene.check(scene.fetch())
    assert scene.ranges()[0] is not None


class FullDisk:
    """A file on a disk that takes so many bytes more."""

    def __init__(self, file, room: int) -> None:
        self._file = file
        self._room = room

    def write(self, data: bytes) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._file.close()


def test_directory_that_cannot_be_written_is_named(scene):
    scene.store.root.parent.mkdir(parents=True)
    scene.store.root.write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot be written or read .* --data-dir"):
        scene.fetch()


def test_cancelling_ends_a_transfer_and_a_wait(scene):
    scene.hub.fail(BIG, status=503, times=-1)
    timer = threading.Timer(0.2, scene.cancelled.set)
    timer.start()
    with pytest.raises(CancelledError):
        scene.fetch(first_wait_s=30.0)
    timer.join()
