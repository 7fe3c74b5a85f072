"""What the tests of the voice library share: folders of voices, and a model that only encodes."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.speech_clip import encode_clip, speech_clip
from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.manifest import CodecIds, GenerationDefaults, ModelFacts, TextIds
from wyoming_qwen3tts.runtime.speech_model import SpeechModel

WIDTH, NUM_GROUPS, CODEBOOK_SIZE = 8, 4, 64
TRANSCRIPT = "Good morning to you all, my friends."
"""About as long as the two seconds of the clip."""

FACTS = ModelFacts(
    model_type="base",
    model_size="0.6B",
    hidden_size=WIDTH,
    num_code_groups=NUM_GROUPS,
    codebook_size=CODEBOOK_SIZE,
    max_positions=100,
    sample_rate_hz=24_000,
    samples_per_frame=1_920,
    text_ids=TextIds(0, 1, 2, 3, 4, 5),
    codec_ids=CodecIds(0, 1, 2, 3, 4, 5, 6),
    languages={"english": 7},
    speakers={},
    dialects={},
    generation=GenerationDefaults(True, 0.9, 50, 1.0, 1.05, True, 0.9, 50, 1.0, 8192),
)


class CountingEncoders:
    """Encode any clip to numbers that depend on it, and count how often."""

    def __init__(self) -> None:
        self.num_embedded = 0
        self.num_encoded = 0
        self.last_num_samples = 0
        self.error: Exception | None = None
        self.is_broken = False

    def embed(self, samples: Float32Array) -> Float32Array:
        if self.error is not None:
            raise self.error
        self.num_embedded += 1
        levels = np.array([part.std() for part in np.array_split(samples, WIDTH)], np.float32)
        return levels * np.nan if self.is_broken else levels

    def encode(self, samples: Float32Array) -> Int64Array:
        self.num_encoded += 1
        self.last_num_samples = len(samples)
        num_frames = -(-len(samples) // FACTS.samples_per_frame)
        codes = np.arange(num_frames * NUM_GROUPS).reshape(num_frames, NUM_GROUPS)
        return (codes + int(1e4 * samples.std())) % CODEBOOK_SIZE


def encoding_model(encoders: CountingEncoders | None, name: str = "base") -> SpeechModel:
    """Return a model with these encoders and nothing else."""
    nothing: Any = None
    return SpeechModel(
        name=name,
        facts=FACTS,
        tokenizer=nothing,
        embeddings=nothing,
        talker=nothing,
        code_predictor=nothing,
        codec_decoder=nothing,
        codec_encoder=encoders.encode if encoders else None,
        speaker_encoder=encoders.embed if encoders else None,
    )


def write_voice(data_dir: Path, place: str, **files: str | bytes) -> Path:
    """Write a voice folder ``voices/<place>``; ``ref_wav`` names the file ref.wav."""
    directory = data_dir / "voices" / place
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / ".".join(name.rsplit("_", 1))
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


def clip_bytes(seed: int = 1, container: str = "WAV") -> bytes:
    """Return a good clip of two seconds."""
    return encode_clip(speech_clip(seed=seed), container=container, subtype=None)
