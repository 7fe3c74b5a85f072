import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wyoming.tts import Synthesize, SynthesizeVoice

from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.protocol.messages import read_request, read_text, without_surrogates
from wyoming_qwen3tts.protocol.response import IncomingText

NAMES = st.none() | st.text(max_size=20)


@given(st.text(max_size=50), NAMES, NAMES, NAMES)
def test_what_the_wyoming_package_writes_is_read(text, name, language, speaker):
    event = Synthesize(text, SynthesizeVoice(name, language, speaker)).event()
    request = read_request(event)
    assert read_text(event) == text
    assert request.voice == name
    assert request.speaker == (None if name is None else speaker)
    assert request.language == (language if name is None else None)  # the package leaves it out


@given(st.text())
def test_text_without_surrogates_stays(text):
    assert without_surrogates(text) == text


@given(st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010, exclude_categories=())))
def test_text_can_always_be_encoded(text):
    without_surrogates(text).encode()


@given(st.lists(st.text(max_size=5), max_size=8), st.integers(0, 8))
def test_no_letter_is_lost_whenever_the_text_is_taken(pieces, num_before):
    async def run() -> str:
        text = IncomingText(1_000)
        for piece in pieces[:num_before]:
            text.add(piece)
        taking = asyncio.create_task(take(text))
        for piece in pieces[num_before:]:
            await asyncio.sleep(0)
            text.add(piece)
        text.end()
        return await taking

    async def take(text: IncomingText) -> str:
        return "".join([piece async for piece in text])

    assert asyncio.run(run()) == "".join(pieces)


def test_text_is_limited_in_all():
    async def run() -> None:
        text = IncomingText(5)
        text.add("abc")
        assert await anext(text) == "abc"
        text.add("de")
        with pytest.raises(RequestError, match="more than 5 characters"):
            text.add("f")

    asyncio.run(run())
