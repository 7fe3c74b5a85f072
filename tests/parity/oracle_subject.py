"""The numpy oracle, to be compared with the official package."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.oracle.codec_decoder import OracleCodecDecoder
from tests.oracle.codec_encoder import OracleCodecEncoder
from tests.oracle.language_model import OracleLanguageModel, OracleRequest
from tests.oracle.speaker_encoder import OracleSpeakerEncoder
from tests.parity import cases
from tests.parity.cases import Case
from tests.parity.subject import Utterance
from wyoming_qwen3tts.arrays import Float32Array, Int64Array


class OracleSubject:
    """The numpy oracle."""

    def __init__(self, checkpoint: Path) -> None:
        """Read a checkpoint."""
        self._language_model = OracleLanguageModel(checkpoint)
        self._decoder = OracleCodecDecoder(checkpoint)
        self._encoder = OracleCodecEncoder(checkpoint)
        has_speakers = "speaker_encoder_config" in self._language_model.config
        self._speakers = OracleSpeakerEncoder(checkpoint) if has_speakers else None
        # The official package drops instructions on the small CustomVoice model without a word.
        self._ignores_instructions = self._language_model.config["tts_model_size"] == "0b6"

    def speak(self, batch: Sequence[Case]) -> list[Utterance | None]:
        """Speak cases one after the other."""
        return [self._speak(case) for case in batch]

    def _speak(self, case: Case) -> Utterance:
        codes = self.greedy_codes(case)
        reference = self._reference_codes(case)
        if reference is None:
            return Utterance(codes, self.decode(codes, len(codes)))
        # The codec hears the reference first; its audio is thrown away.
        heard = np.concatenate([reference, codes])
        samples = self.decode(heard, len(heard))
        num_kept = len(samples) * len(codes) // len(heard)
        return Utterance(codes, samples[-num_kept:])

    def greedy_codes(self, case: Case) -> Int64Array:
        """Return the codes (F, G) of a case."""
        x_vector = self.embed(cases.clip(case.reference_samples)) if self._speakers else None
        request = OracleRequest(
            text=case.text,
            language=case.language,
            speaker=case.speaker,
            instruction=None if self._ignores_instructions else case.instruction,
            whole_text_first=case.layout == "non_streaming",
            x_vector=x_vector,
            reference_text=case.reference_text,
            reference_codes=self._reference_codes(case),
        )
        return self._language_model.greedy_codes(request, max_new_tokens=cases.MAX_NEW_TOKENS)

    def _reference_codes(self, case: Case) -> Int64Array | None:
        return self.encode(cases.clip(case.reference_samples)) if case.voice == "icl" else None

    def decode(self, codes: Int64Array, chunk_frames: int) -> Float32Array:
        """Decode codes (F, G) in chunks into samples (S,)."""
        self._decoder.reset()
        starts = range(0, len(codes), chunk_frames)
        chunks = [self._decoder.decode(codes[start : start + chunk_frames]) for start in starts]
        return np.concatenate(chunks)

    def encode(self, samples: Float32Array) -> Int64Array:
        """Encode samples (S,) into codes (F, G)."""
        return self._encoder.encode(samples)

    def embed(self, samples: Float32Array) -> Float32Array:
        """Return the x-vector (D,) of samples (S,)."""
        if self._speakers is None:
            raise ValueError("only Base checkpoints have a speaker encoder")
        return self._speakers.embed(samples)
