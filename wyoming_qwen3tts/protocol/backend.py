"""What the protocol knows of synthesis."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wyoming_qwen3tts.audio import AudioChunk


@dataclass(frozen=True)
class VoiceInfo:
    """A voice as clients see it; clients send back its name."""

    name: str
    description: str
    languages: tuple[str, ...]  # plain two-letter codes
    speakers: tuple[str, ...] = ()  # names of the styles that the voice offers


@dataclass
class Conversation:
    """What the requests of one connection share."""

    language: str | None = None  # plain code of the last answer


@dataclass(frozen=True)
class SpeechRequest:
    """The voice that a client asks for; nothing of it is looked up yet."""

    voice: str | None = None
    language: str | None = None  # any spelling: "de", "de-DE", "German"
    speaker: str | None = None  # a style name, or an instruction in free words
    is_exact: bool = False  # the model gets the text as it is, in one piece
    address: str | None = None  # of the client; one address takes at most half of the places
    conversation: Conversation = field(default_factory=Conversation)


def half_of(places: int) -> int:
    """Return how many of these places one client address may take."""
    return (places + 1) // 2


class SpeechBackend(Protocol):
    """Turns requests into audio."""

    async def voices(self) -> Sequence[VoiceInfo]:
        """Return the voices that can be asked for now; quick, also while synthesis runs."""

    def stream(
        self, request: SpeechRequest, text: AsyncIterator[str]
    ) -> AsyncGenerator[AudioChunk, None]:
        """Speak text that may still be arriving, in pieces cut anywhere; raises Qwen3TTSError.

        Closing the generator cancels the synthesis within a frame. Text with nothing to say yields
        a short silence. All chunks have the same sample rate. A slow reader must not delay other
        requests.
        """
