"""Wyoming text-to-speech server that runs the Qwen3-TTS models with onnxruntime, without torch."""

__version__ = "0.1.0"
