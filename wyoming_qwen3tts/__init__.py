"""Text to speech with the Qwen3-TTS models and onnxruntime: a library and a Wyoming server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wyoming_qwen3tts.audio import AudioChunk
    from wyoming_qwen3tts.errors import Qwen3TTSError
    from wyoming_qwen3tts.tts import TTS

__all__ = ["TTS", "AudioChunk", "Qwen3TTSError"]
__version__ = "0.1.0"

_HOMES = {"TTS": "tts", "AudioChunk": "audio", "Qwen3TTSError": "errors"}


def __getattr__(name: str) -> Any:
    """Import the library on first use: onnxruntime takes a second to load."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
