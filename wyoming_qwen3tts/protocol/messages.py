"""Reads the data of Wyoming events, with every field checked, and makes ``info`` and ``error``.

The data is read directly: the wyoming classes drop the language where there is a name and the
speaker where there is none, and raise anything from KeyError to AttributeError on wrong types.
"""

import reprlib
from collections.abc import Sequence
from typing import Any, Final

from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Attribution, Info, TtsProgram, TtsVoice, TtsVoiceSpeaker

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.protocol.backend import SpeechRequest, VoiceInfo

# Home Assistant makes the entity's id and title from it: never change it.
PROGRAM_NAME: Final = "qwen3-tts"
_ATTRIBUTION: Final = Attribution(name="Qwen", url="https://github.com/QwenLM/Qwen3-TTS")
MAX_NAME_CHARS: Final = 2_000  # a speaker may be an instruction
_MAX_ERROR_CHARS: Final = 1_000


def read_request(event: Event) -> SpeechRequest:
    """Return the voice that an event asks for; raises RequestError for wrong fields."""
    what = {"voice": "an object with name, language and speaker", "context": "an object"}
    for key, kind in what.items():
        if not isinstance(value := event.data.get(key), dict | None):
            raise RequestError(f"{key} must be {kind}, not {reprlib.repr(value)}")
    voice = event.data.get("voice") or {}
    name, language, speaker = (_read_name(voice, key) for key in ("name", "language", "speaker"))
    return SpeechRequest(name, language, speaker)


def _read_name(voice: dict[str, Any], key: str) -> str | None:
    if (value := voice.get(key)) is None:
        return None
    if not isinstance(value, str):
        raise RequestError(f"the {key} of a voice must be a text, not {reprlib.repr(value)}")
    if len(value) > MAX_NAME_CHARS:
        length = f"{len(value)} characters; the limit is {MAX_NAME_CHARS}"
        raise RequestError(f"the {key} of a voice has {length}")
    return without_surrogates(value)


def read_text(event: Event) -> str:
    """Return the text of an event; raises RequestError if it has none."""
    text = event.data.get("text")
    if not isinstance(text, str):
        raise RequestError(f"the text of {event.type} must be a text, not {reprlib.repr(text)}")
    return without_surrogates(text)


def without_surrogates(text: str) -> str:
    """Return text that UTF-8 and tokenizers accept; JSON may carry lone surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def make_info(voices: Sequence[VoiceInfo], *, supports_streaming: bool) -> Event:
    """Return the answer to ``describe``: one program with these voices."""
    program = TtsProgram(
        name=PROGRAM_NAME,
        description="Qwen3-TTS, spoken locally with onnxruntime",
        attribution=_ATTRIBUTION,
        installed=True,
        version=__version__,
        voices=[
            TtsVoice(
                # Home Assistant sends a voice's name and never a language.
                name=f"{voice.name}-{code}" if len(voice.languages) > 1 else voice.name,
                description=voice.description,
                attribution=_ATTRIBUTION,
                installed=True,
                version=__version__,
                languages=[code],
                speakers=[TtsVoiceSpeaker(name=speaker) for speaker in voice.speakers] or None,
            )
            for voice in voices
            for code in voice.languages
        ],
        supports_synthesize_streaming=supports_streaming,
    )
    return Info(tts=[program]).event()


def make_error(error: Exception) -> Event:
    """Return the error event: never without text, the class name as code."""
    code = type(error).__name__
    text = without_surrogates(str(error))[:_MAX_ERROR_CHARS].strip()
    return Error(text=text or code, code=code).event()
