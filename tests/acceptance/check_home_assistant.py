"""Drives a real Home Assistant against our server with the model of random weights.

script/check_home_assistant makes the environment that this needs, and calls it.
"""

import argparse
import asyncio
import io
import re
import sys
import tempfile
import time
import traceback
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.acceptance.home_assistant import Answer, HomeAssistant, running_home_assistant
from tests.acceptance.home_assistant_install import install_here, install_in_debian, unmount
from tests.acceptance.server_process import ServerProcess, free_port
from tests.support.tiny_checkpoint import write_tiny_bundle

_LANGUAGES = {"zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it"}
_FIRST_TO_STREAM = (2025, 7)
_FIRST_AUDIO = re.compile(r"Spoke: .* sentences=[2-9] .*first_audio=([\d.]+)s")


class Acceptance:
    """The checks, in the order in which a user meets what they check."""

    def __init__(self, home: HomeAssistant, version: str, server: ServerProcess) -> None:
        self._home = home
        year, month, *_ = version.split(".")
        self._streams = (int(year), int(month)) >= _FIRST_TO_STREAM
        self._server = server
        self._entity = ""
        self.figures: dict[str, str] = {}

    async def set_up(self) -> None:
        """The config flow: a wrong port is said to be wrong, the right one makes an entry."""
        flow = await self._start_flow()
        wrong = await self._answer_flow(flow, {"host": "127.0.0.1", "port": free_port()})
        assert wrong["errors"] == {"base": "cannot_connect"}, wrong
        started_s = time.perf_counter()
        entry = await self._answer_flow(flow, {"host": "127.0.0.1", "port": self._server.port})
        assert entry["type"] == "create_entry", entry
        self.figures["config flow"] = f"{time.perf_counter() - started_s:.2f} s"
        self.figures["entry"] = entry["title"]

    async def find_entity(self) -> None:
        """The entity, its ten languages and the voices of each."""
        states = await self._home.get("/api/states")
        entities = [each["entity_id"] for each in states if each["entity_id"].startswith("tts.")]
        assert len(entities) == 1, entities
        self._entity = entities[0]
        engines = await self._home.ask("tts/engine/list")
        engine = next(each for each in engines["providers"] if each["engine_id"] == self._entity)
        assert set(engine["supported_languages"]) == _LANGUAGES, engine
        for language in _LANGUAGES:
            voices = (await self._voices(language))["voices"]
            assert len(voices) >= 9, (language, voices)
            assert all(voice["voice_id"] and voice["name"] for voice in voices), voices
        self.figures["entity"] = self._entity

    async def match_language(self) -> None:
        """The languages of Home Assistant's own pages (de-DE, pt-BR, zh-Hans) find ours."""
        for code, language in {"de-DE": "de", "pt-BR": "pt", "zh-Hans": "zh"}.items():
            engines = await self._home.ask("tts/engine/list", language=code)
            engine = next(e for e in engines["providers"] if e["engine_id"] == self._entity)
            assert language in engine["supported_languages"], (code, engine)

    async def speak(self) -> None:
        """A message becomes a WAV of the right format, and an MP3 where nothing is asked for."""
        answer = await self._say("The washing machine has finished.", _wav())
        params = _wav_params(answer)
        assert params.getframerate() == 24_000, params.getparams()
        assert (params.getnchannels(), params.getsampwidth()) == (1, 2), params.getparams()
        self.figures["WAV"] = f"{_seconds(answer):.2f} s in {answer.first_byte_s:.2f} s"
        mp3 = await self._say("Dinner is ready.", {})
        assert mp3.content_type == "audio/mpeg", mp3.content_type
        assert len(mp3.body) > 200, len(mp3.body)

    async def choose_voice(self) -> None:
        """A voice and a style from an automation are taken; every voice speaks."""
        voices = (await self._voices("en"))["voices"]
        for voice in voices:
            answer = await self._say("Hello.", _wav(voice=voice["voice_id"]))
            assert answer.status == 200, (voice, answer.status)
            assert _seconds(answer) > 0, voice
        styled = await self._say("Hello.", _wav(voice="vivian", speaker="cheerful"))
        assert _seconds(styled) > 0, styled.status

    async def say_nothing(self) -> None:
        """A text without anything to say is a moment of silence, not a broken file."""
        answer = await self._say("\N{PARTY POPPER}", _wav())
        assert answer.status == 200, answer.status
        assert 0.05 <= _seconds(answer) <= 1, _seconds(answer)

    async def report_errors(self) -> None:
        """A name of another server's voice speaks; a voice that cannot is an error soon."""
        answer = await self._say("Who is speaking?", _wav(voice="nobody"))
        assert _seconds(answer) > 0, answer.status
        assert await self._server_said("nobody"), "the server does not say that another one speaks"
        started_s = time.perf_counter()
        answer = await self._say("Who is speaking now?", _wav(voice="add-a-voice"))
        took_s = time.perf_counter() - started_s
        assert answer.status >= 400 or not answer.body, (answer.status, len(answer.body))
        assert took_s < 10, took_s
        assert await self._server_said("No voice yet"), "the server does not say why"
        self.figures["voice that cannot speak"] = f"HTTP {answer.status} after {took_s:.2f} s"
        assert _seconds(await self._say("I am.", _wav())) > 0

    async def survive_restart(self) -> None:
        """Cached messages need no server; a new one fails soon without, and works again after."""
        said = "The door is open."
        first = await self._say(said, _wav(), cache=True)
        assert _seconds(first) > 0
        self._server.stop()
        again = await self._say(said, _wav(), cache=True)
        assert again.body == first.body, "the cache gave something else"
        started_s = time.perf_counter()
        failed = await self._say("Nobody is at home.", _wav())
        took_s = time.perf_counter() - started_s
        assert failed.status >= 400 or not failed.body, (failed.status, len(failed.body))
        assert took_s < 15, took_s
        self._server.start()
        assert _seconds(await self._say("Somebody is at home.", _wav())) > 0
        await self._home.post("/api/services/tts/clear_cache", {})
        assert _seconds(await self._say(said, _wav(), cache=True)) > 0
        self.figures["without server"] = f"HTTP {failed.status} after {took_s:.2f} s"

    async def survive_crash(self) -> None:
        """A server killed in mid speech ends the request, and the next one after it is served."""
        long = " ".join(["This is a long story that is told to the end."] * 200)
        telling = asyncio.create_task(self._say(long, _wav()))
        await asyncio.sleep(0.5)
        assert not telling.done(), "the story was too short"
        self._server.kill()
        started_s = time.perf_counter()
        await telling
        took_s = time.perf_counter() - started_s
        assert took_s < 15, took_s
        self._server.start()
        assert _seconds(await self._say("Back again.", _wav())) > 0
        self.figures["killed in mid speech"] = f"request over after {took_s:.2f} s"

    async def speak_many(self) -> None:
        """Several rooms speak at once; nobody is refused."""
        started_s = time.perf_counter()
        texts = [f"This is room number {number}." for number in range(8)]
        answers = await asyncio.gather(*(self._say(text, _wav()) for text in texts))
        assert all(_seconds(answer) > 0 for answer in answers), [a.status for a in answers]
        self.figures["8 at once"] = f"{time.perf_counter() - started_s:.2f} s"

    async def stream_an_answer(self) -> None:
        """While a language model still writes, its answer can be heard already."""
        if not self._streams:
            raise SkippedError("this Home Assistant cannot stream text to speech")
        pipeline = await self._home.ask(
            "assist_pipeline/pipeline/create",
            name="Story",
            language="en",
            conversation_engine="conversation.storyteller",
            conversation_language="en",
            stt_engine=None,
            stt_language=None,
            tts_engine=self._entity,
            tts_language="en",
            tts_voice="vivian",
            wake_word_entity=None,
            wake_word_id=None,
        )
        written_s, heard = await self._run_pipeline(pipeline["id"])
        assert heard.body, heard.status
        # When the server spoke, seen from the first text that it got. When that is heard is up to
        # Home Assistant: some versions convert only once they have a few seconds of audio.
        spoken_s = float(_FIRST_AUDIO.findall(self._server.log.read_text())[-1])
        assert spoken_s < 2 < written_s - 2, (spoken_s, written_s)
        self.figures["streamed answer"] = (
            f"server's first audio {spoken_s:.2f} s after the first text, heard "
            f"{heard.first_byte_s:.2f} s and text complete {written_s:.2f} s after the question"
        )

    async def be_discovered(self) -> None:
        """A server that is announced on the network shows up by itself."""
        other = ServerProcess(
            self._server.python, self._server.log, *self._server.flags, "--zeroconf"
        )
        other.start(host="0.0.0.0")
        try:
            for _ in range(60):
                flows = await self._home.ask("config_entries/flow/progress")
                found = [
                    flow
                    for flow in flows
                    if flow["handler"] == "wyoming" and flow["context"]["source"] == "zeroconf"
                ]
                if found:
                    break
                await asyncio.sleep(0.5)
            assert found, "no flow within 30 s"
            entry = await self._answer_flow(found[0]["flow_id"], {})
            assert entry["type"] == "create_entry", entry
        finally:
            other.stop()

    async def _server_said(self, text: str) -> bool:
        # It answers its client first and writes its log then.
        for _ in range(20):
            if text in self._server.log.read_text():
                return True
            await asyncio.sleep(0.1)
        return False

    async def _start_flow(self) -> str:
        flow = await self._home.post(
            "/api/config/config_entries/flow",
            {"handler": "wyoming", "show_advanced_options": False},
        )
        identity: str = flow["flow_id"]
        return identity

    async def _answer_flow(self, identity: str, answer: dict[str, Any]) -> Any:
        return await self._home.post(f"/api/config/config_entries/flow/{identity}", answer)

    async def _voices(self, language: str) -> Any:
        return await self._home.ask("tts/engine/voices", engine_id=self._entity, language=language)

    async def _say(self, message: str, options: dict[str, Any], *, cache: bool = False) -> Answer:
        request = {
            "engine_id": self._entity,
            "message": message,
            "language": "en",
            "cache": cache,
            "options": options,
        }
        try:
            found = await self._home.post("/api/tts_get_url", request)
        except aiohttp.ClientResponseError as error:
            return Answer(error.status, b"", "", 0.0)
        return await self._home.fetch(found["path"])

    async def _run_pipeline(self, identity: str) -> tuple[float, Answer]:
        """Return when the text was complete, in seconds, and what was heard."""
        hearing: asyncio.Task[Answer] | None = None
        async with self._home.web_socket() as connection:
            await connection.ask(
                "assist_pipeline/run",
                start_stage="intent",
                end_stage="tts",
                pipeline=identity,
                input={"text": "Tell me a story."},
            )
            started_s = time.perf_counter()
            async for event in connection.events():
                if event["type"] == "run-start":
                    path = event["data"]["tts_output"]["url"]
                    hearing = asyncio.create_task(self._home.fetch(path))
                if event["type"] == "intent-end":
                    written_s = time.perf_counter() - started_s
                if event["type"] in {"run-end", "error"}:
                    assert event["type"] == "run-end", event
                    break
        assert hearing is not None, "nothing to hear"
        return written_s, await hearing


class SkippedError(Exception):
    """A check that this Home Assistant has no use for."""


def _wav(**options: str) -> dict[str, str]:
    return {"preferred_format": "wav", **options}


def _wav_params(answer: Answer) -> wave.Wave_read:
    return wave.open(io.BytesIO(answer.body), "rb")


def _seconds(answer: Answer) -> float:
    if answer.status != 200 or not answer.body:
        return 0.0
    with _wav_params(answer) as reader:
        bytes_per_s = reader.getframerate() * reader.getsampwidth() * reader.getnchannels()
    # Not what the header says: in a streamed file it does not know how long it will be.
    return (len(answer.body) - answer.body.index(b"data") - 8) / bytes_per_s


async def check(hass: str, server_python: str, directory: Path) -> int:
    """Run every check; returns how many failed.

    Args:
        hass: Command that starts Home Assistant.
        server_python: Interpreter of the environment that has our server.
        directory: Empty one, for both.
    """
    model = str(write_tiny_bundle(directory / "model" / "cpu_fp32"))
    server = ServerProcess(server_python, directory / "server.log", "--model", model)
    server.start()
    try:
        config = directory / "config"
        config.mkdir()
        started_s = time.perf_counter()
        agent = Path(__file__).parent / "storyteller"
        async with running_home_assistant(hass, config, agent) as home:
            version = (await home.get("/api/config"))["version"]
            print(f"Home Assistant {version}, up after {time.perf_counter() - started_s:.0f} s")
            return await _run(Acceptance(home, version, server))
    finally:
        server.stop()


async def _run(acceptance: Acceptance) -> int:
    steps: list[Callable[[], Awaitable[None]]] = [
        acceptance.set_up,
        acceptance.find_entity,
        acceptance.match_language,
        acceptance.speak,
        acceptance.choose_voice,
        acceptance.say_nothing,
        acceptance.report_errors,
        acceptance.speak_many,
        acceptance.stream_an_answer,
        acceptance.survive_restart,
        acceptance.survive_crash,
        acceptance.be_discovered,
    ]
    outcomes = {"passed": 0, "failed": 0, "skipped": 0}
    for step in steps:
        started_s = time.perf_counter()
        try:
            await step()
        except SkippedError as reason:
            outcome, note = "skipped", f" ({reason})"
        except Exception:  # noqa: BLE001 - whatever it was, it is the finding
            outcome, note = "failed", f"\n{traceback.format_exc(limit=-2)}"
        else:
            outcome, note = "passed", ""
        outcomes[outcome] += 1
        line = f"{outcome:8}{time.perf_counter() - started_s:6.1f} s  {step.__name__}{note}"
        print(line, flush=True)
        if outcomes["failed"] and step in steps[:2]:
            break
    for name, figure in acceptance.figures.items():
        print(f"  {name}: {figure}")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    return outcomes["failed"]


def main() -> int:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description="Check our server with a real Home Assistant.")
    parser.add_argument("--version", default="2024.3.3", help="of Home Assistant (%(default)s)")
    parser.add_argument(
        "--debian",
        metavar="SUITE",
        help="install it in a Debian of its own (root and debootstrap): 2026.11.0 needs forky",
    )
    parser.add_argument("--hass", metavar="COMMAND", help="use this Home Assistant instead")
    parser.add_argument("--server-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--directory", type=Path, help="empty directory to keep (default: none)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="acceptance-") as temporary:
        directory = (given.directory or Path(temporary)).resolve()
        directory.mkdir(exist_ok=True)
        if given.hass:
            hass = given.hass
        elif given.debian:
            hass = install_in_debian(given.version, given.debian, directory)
        else:
            hass = install_here(given.version)
        try:
            return min(1, asyncio.run(check(hass, given.server_python, directory)))
        finally:
            if given.debian and not given.hass:
                unmount(given.version, given.debian, directory)


if __name__ == "__main__":
    sys.exit(main())
