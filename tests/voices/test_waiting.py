"""What requests wait for: never for another voice's clip, never long for a disk."""

import asyncio
import threading
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest

from tests.support.voice_fixtures import (
    TRANSCRIPT,
    CountingEncoders,
    clip_bytes,
    encoding_model,
    write_voice,
)
from wyoming_qwen3tts.arrays import Float32Array
from wyoming_qwen3tts.voices import library as library_module
from wyoming_qwen3tts.voices.library import VoiceLibrary


class SlowEncoders(CountingEncoders):
    """Encode nothing before they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_encode = threading.Event()
        self.threads: set[str] = set()

    def embed(self, samples: Float32Array) -> Float32Array:
        self.threads.add(threading.current_thread().name)
        assert self.may_encode.wait(10)
        return super().embed(samples)


@pytest.fixture
def encoders() -> SlowEncoders:
    return SlowEncoders()


@pytest.fixture
def library(tmp_path: Path) -> VoiceLibrary:
    for seed, name in enumerate(("anna", "bernd", "clara")):
        write_voice(tmp_path, f"en/{name}", ref_wav=clip_bytes(seed), ref_txt=TRANSCRIPT)
    return VoiceLibrary([tmp_path])


class TestEncoding:
    def test_prepared_voices_do_not_wait_for_a_new_clip(
        self, tmp_path: Path, library: VoiceLibrary, encoders: SlowEncoders
    ) -> None:
        known = encoding_model(CountingEncoders())
        in_memory = library.prepare(library.named("anna")[0], known).result(10)
        VoiceLibrary([tmp_path]).prepare(library.named("bernd")[0], known).result(10)
        model = encoding_model(encoders)
        new = library.prepare(library.named("clara")[0], model)
        try:
            assert library.prepare(library.named("anna")[0], known).result(10) is in_memory
            assert library.prepare(library.named("bernd")[0], known).result(10)
            assert not new.done()
        finally:
            encoders.may_encode.set()
        assert new.result(10)

    def test_a_clip_is_encoded_once_for_all_who_wait_and_one_at_a_time(
        self, library: VoiceLibrary, encoders: SlowEncoders
    ) -> None:
        model = encoding_model(encoders)
        names = ("anna", "anna", "bernd", "anna", "bernd")
        waiting = [library.prepare(library.named(name)[0], model) for name in names]
        encoders.may_encode.set()
        assert all(future.result(10) for future in waiting)
        assert encoders.num_embedded == 2
        assert len(encoders.threads) == 1

    async def test_requests_that_wait_leave_the_common_threads_alone(
        self, library: VoiceLibrary, encoders: SlowEncoders
    ) -> None:
        model = encoding_model(encoders)
        waiting = [
            asyncio.wrap_future(library.prepare(library.named("anna")[0], model)) for _ in range(50)
        ]
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5) == "free"
        encoders.may_encode.set()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 10)

    def test_a_failure_is_not_kept(self, library: VoiceLibrary, encoders: SlowEncoders) -> None:
        encoders.may_encode.set()
        model, voice = encoding_model(encoders), library.named("anna")[0]
        encoders.error = RuntimeError("no memory")
        assert library.prepare(voice, model).exception(10) is not None
        encoders.error = None
        assert library.prepare(voice, model).result(10)


class TestDisk:
    async def test_requests_share_a_scan_for_some_seconds(
        self, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scans: list[str] = []
        scan = library.scan

        def counted() -> Any:
            scans.append(threading.current_thread().name)
            return scan()

        monkeypatch.setattr(library, "scan", counted)
        for _ in range(5):
            await asyncio.gather(*(library.voices() for _ in range(5)))
        assert len(scans) == 1
        assert threading.current_thread().name not in scans
        monkeypatch.setattr(library_module, "_MAX_SCAN_AGE_S", 0.0)
        assert len(await library.voices()) == 3
        assert len(scans) == 2

    async def test_a_dead_mount_delays_a_few_requests_only(
        self,
        tmp_path: Path,
        library: VoiceLibrary,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(library_module, "_MAX_SCAN_AGE_S", 0.0)
        monkeypatch.setattr(library_module, "_SCAN_PATIENCE_S", 0.2)
        assert len(await library.voices()) == 3
        is_back = threading.Event()
        walk = library_module._walk

        def hanging(*arguments: Any) -> Any:
            assert is_back.wait(120)
            return walk(*arguments)

        monkeypatch.setattr(library_module, "_walk", hanging)
        write_voice(tmp_path, "en/denis", ref_wav=clip_bytes(), ref_txt=TRANSCRIPT)
        num_threads = threading.active_count()
        for _ in range(10):
            assert len(await library.voices()) == 3
        assert threading.active_count() <= num_threads + 1
        # Nor does preparing a voice wait for the scan.
        model = encoding_model(CountingEncoders())
        preparing = library.prepare((await library.voices())[0], model)
        assert await asyncio.wait_for(asyncio.wrap_future(preparing), 60)
        assert caplog.text.count("do not answer") == 1
        is_back.set()
        for _ in range(100):
            if len(await library.voices()) == 4:
                break
            await asyncio.sleep(0.05)
        else:
            raise FutureTimeoutError

    async def test_a_scan_that_hangs_does_not_keep_the_process(
        self, library: VoiceLibrary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        is_back, threads = threading.Event(), []

        def hanging() -> Any:
            threads.append(threading.current_thread())
            is_back.wait(120)
            return ()

        monkeypatch.setattr(library_module, "_FIRST_SCAN_PATIENCE_S", 0.01)
        monkeypatch.setattr(library, "scan", hanging)
        assert await library.voices() == ()
        assert threads[0].daemon
        is_back.set()


class TestMisplacedFiles:
    def test_capital_letters_are_fine(self, tmp_path: Path) -> None:
        directory = tmp_path / "voices" / "en" / "anna"
        directory.mkdir(parents=True)
        (directory / "ref.WAV").write_bytes(clip_bytes())
        (directory / "REF.TXT").write_text(TRANSCRIPT)
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert (voice.problem, voice.text) == (None, TRANSCRIPT)
        encoders = CountingEncoders()
        assert VoiceLibrary([tmp_path]).prepare(voice, encoding_model(encoders)).result(10)

    @pytest.mark.parametrize(
        "place", ["grandma.wav", "en/grandma.WAV", "grandma/ref.wav", "grandma/instruct.txt"]
    )
    def test_a_clip_outside_of_a_voice_folder_is_reported(
        self, tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "voices" / place
        path.parent.mkdir(parents=True)
        path.write_bytes(clip_bytes())
        (voice,) = VoiceLibrary([tmp_path]).scan()
        assert voice.name == "grandma"
        assert "not in the folder of a voice" in str(voice.problem)
        assert "voice add NAME --audio" in caplog.text
