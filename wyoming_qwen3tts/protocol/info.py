"""Makes the info event from the voices."""

from collections.abc import Sequence
from typing import Final

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice, TtsVoiceSpeaker

from wyoming_qwen3tts import __version__
from wyoming_qwen3tts.protocol.backend import VoiceInfo

PROGRAM_NAME: Final = "qwen3-tts"
"""Home Assistant makes the entity's id and title from it: never change it."""

_ATTRIBUTION: Final = Attribution(name="Qwen", url="https://github.com/QwenLM/Qwen3-TTS")


def make_info(voices: Sequence[VoiceInfo], *, supports_streaming: bool) -> Info:
    """Return the answer to ``describe``: one program with these voices."""
    program = TtsProgram(
        name=PROGRAM_NAME,
        description="Qwen3-TTS, spoken locally with onnxruntime",
        attribution=_ATTRIBUTION,
        installed=True,
        version=__version__,
        voices=[_make_voice(voice) for voice in voices],
        supports_synthesize_streaming=supports_streaming,
    )
    return Info(tts=[program])


def _make_voice(voice: VoiceInfo) -> TtsVoice:
    return TtsVoice(
        name=voice.name,
        description=voice.description,
        attribution=_ATTRIBUTION,
        installed=True,
        version=voice.version,
        languages=list(voice.languages),
        speakers=[TtsVoiceSpeaker(name=speaker) for speaker in voice.speakers] or None,
    )
