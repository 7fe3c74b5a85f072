"""What a request's text becomes: languages, sampling, silence, delay; told by a scripted worker."""

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.voice_fixtures import FACTS
from wyoming_qwen3tts.audio import AudioChunk
from wyoming_qwen3tts.config import Config
from wyoming_qwen3tts.engine import narration
from wyoming_qwen3tts.engine.narration import Narration, SpeechPlan
from wyoming_qwen3tts.engine.prebuffer import SpeedEstimate
from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.synthesis.request import PresetSpeaker, default_options
from wyoming_qwen3tts.synthesis.timing import SynthesisTiming
from wyoming_qwen3tts.synthesis.utterance import FinishReason
from wyoming_qwen3tts.text.normalize import ALL_RULES

CHUNK = AudioChunk(np.full(2_400, 0.5, np.float32), 24_000)
SYNTHESIZER = SimpleNamespace(
    model=SimpleNamespace(facts=FACTS, name="scripted"), single_lane_rtf=None
)


class ScriptedWorker:
    """Makes a chunk for each word; takes some texts of an open utterance only."""

    def __init__(self, word_s=0.0, refused=(), reason=None, error=None):
        self.word_s = word_s
        self.refused = refused
        self.reason, self.error = reason, error
        self.submitted = []
        self.extended = []

    def submit(self, _synthesizer, request):
        self.submitted.append(request)
        return SimpleNamespace(
            request=request,
            timing=SynthesisTiming(1.0, 1.5, 3.0, num_frames=100, audio_s=1.0),
            finish_reason=self.reason,
        )

    async def extend(self, _utterance, text):
        if text.strip() in self.refused:
            return False
        self.extended.append(text.strip())
        return True

    def close_text(self, _utterance):
        pass

    def release(self, _utterance):
        pass

    async def audio(self, utterance):
        for _ in utterance.request.text.split():
            await asyncio.sleep(self.word_s)
            if self.error is not None:
                raise self.error
            yield CHUNK


def plan_for(*candidates, language=None, usual=None):
    return SpeechPlan(
        "ryan",
        PresetSpeaker("ryan"),
        default_options(FACTS.generation, 1),
        language=language,
        candidates=candidates or ("de", "en", "fr"),
        usual_language=usual,
        rules=ALL_RULES,
    )


async def narrate(worker, plan, *texts, pause_s=0.0, speed=None, **settings):
    """Return the seconds at which chunks came."""

    async def pieces():
        for text in texts:
            yield text
            await asyncio.sleep(pause_s)

    started_s = time.monotonic()
    told = Narration(Config(**settings), worker)
    stream = told.stream(pieces(), SYNTHESIZER, plan, speed or SpeedEstimate())
    async with aclosing(stream) as chunks:
        return [time.monotonic() - started_s async for _ in chunks]


def languages(worker):
    return [request.options.language for request in worker.submitted]


# Language


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Okay. Das Licht im Wohnzimmer ist jetzt an. Gute Nacht.", "german"),
        ("Okay. The light in the living room is on now. Good night.", "english"),
    ],
)
async def test_whole_text_is_judged_as_a_whole(text, language):
    worker = ScriptedWorker()
    await narrate(worker, plan_for(), text)
    assert languages(worker) == [language] * len(worker.submitted)
    assert len(worker.submitted) == 3


async def test_stream_decides_again_with_each_sentence(monkeypatch):
    monkeypatch.setattr(narration, "FLUSH_AFTER_S", 0.01)
    worker = ScriptedWorker()
    texts = ["Okay. ", "Das Licht im Wohnzimmer ist jetzt an. ", "Ja."]
    await narrate(worker, plan_for(usual="en"), *texts, pause_s=0.05)
    assert languages(worker) == ["english", "german", "german"]


@pytest.mark.parametrize(("usual", "language"), [("fr", "french"), (None, None)])
async def test_unsure_text_is_in_the_usual_language(usual, language):
    worker = ScriptedWorker()
    await narrate(worker, plan_for(usual=usual), "42.")
    assert languages(worker) == [language]


async def test_exact_text_is_judged_too():
    worker = ScriptedWorker()
    exact = replace(plan_for(), rules=None)
    await narrate(worker, exact, "Das Licht im Wohnzimmer", " ist *jetzt* an. Gute Nacht.")
    assert languages(worker) == ["german"]
    assert worker.submitted[0].text == "Das Licht im Wohnzimmer ist *jetzt* an. Gute Nacht."


async def test_named_language_is_never_judged():
    worker = ScriptedWorker()
    await narrate(worker, plan_for(language="fr"), "The light in the living room is on now.")
    assert languages(worker) == ["french"]


# Delay


async def test_short_first_sentence_does_not_end_the_delay_of_the_answer():
    worker = ScriptedWorker(word_s=0.01)
    speed = SpeedEstimate(rtf=1.1)
    text = "OK. " + "This sentence is long enough to come late on such a machine. " * 2
    times = await narrate(worker, plan_for(), text, speed=speed)
    # 127 letters are 8.9 s of speech, which end 0.89 s late.
    early = times[0]
    assert 0.2 < early < 5.0
    assert sum(at - early < 0.005 for at in times) > 1


async def test_setting_bounds_the_delay():
    worker = ScriptedWorker(word_s=0.01)
    speed = SpeedEstimate(rtf=3.0)
    times = await narrate(worker, plan_for(), "Hello. " * 200, speed=speed, max_prebuffer=0.3)
    assert 0.3 <= times[0] < 1.0
    times = await narrate(worker, plan_for(), "Hello there.", speed=speed, max_prebuffer=0)
    assert times[0] < 0.3


@pytest.mark.parametrize(
    ("reason", "settings", "rtf"),
    [
        (FinishReason.STOP, {}, 2.0),
        (FinishReason.RETRY, {}, None),
        (FinishReason.LENGTH, {}, None),
        (FinishReason.STOP, {"text_mode": "continuous"}, None),
    ],
)
async def test_speed_is_that_of_speech_that_nothing_held_up(reason, settings, rtf):
    speed = SpeedEstimate()
    await narrate(ScriptedWorker(reason=reason), plan_for(), "Hello.", speed=speed, **settings)
    assert speed.rtf == rtf


# Text in pieces


async def test_text_that_an_ended_utterance_does_not_take_is_spoken_anew():
    worker = ScriptedWorker(refused=["This is lost."])
    texts = ["Hello there. ", "This is more. ", "This is lost. ", "This is the end."]
    await narrate(worker, plan_for(language="en"), *texts, pause_s=0.02, text_mode="continuous")
    assert worker.extended == ["This is more.", "This is the end."]
    assert [request.text.strip() for request in worker.submitted] == [
        "Hello there.",
        "This is lost.",
    ]


async def test_silence_is_where_the_settings_say():
    async def durations(**settings):
        told = Narration(Config(**settings), ScriptedWorker())

        async def text():
            yield "One. Two."

        stream = told.stream(text(), SYNTHESIZER, plan_for(language="en"), SpeedEstimate())
        async with aclosing(stream) as chunks:
            return [chunk.duration_s for chunk in [each async for each in chunks]]

    silences = {"leading_silence": 0.3, "sentence_silence": 0.2, "trailing_silence": 0.4}
    assert await durations() == [0.1, 0.1]
    assert await durations(**silences) == [0.3, 0.1, 0.2, 0.1, 0.4]


async def test_request_that_fails_sends_no_silence_first():
    worker = ScriptedWorker(error=SynthesisError("no sound"))
    told = Narration(Config(leading_silence=0.3, max_prebuffer=0), worker)

    async def text():
        yield "One."

    heard = []

    async def listen():
        async for chunk in told.stream(text(), SYNTHESIZER, plan_for(), SpeedEstimate()):
            heard.append(chunk)

    with pytest.raises(SynthesisError, match="no sound"):
        await listen()
    assert not heard


async def test_request_that_ends_in_the_middle_no_longer_reads_its_text():
    async def text():
        yield "One is here. Two is here. Three is here. Four is here. Five is here. Six is here."
        await asyncio.Event().wait()

    arriving = text()
    told = Narration(Config(), ScriptedWorker(word_s=0.01))
    async with aclosing(
        told.stream(arriving, SYNTHESIZER, plan_for("en"), SpeedEstimate())
    ) as made:
        await anext(made)
    await arriving.aclose()  # an error while somebody reads it
