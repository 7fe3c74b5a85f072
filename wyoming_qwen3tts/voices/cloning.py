"""A reference clip -> the voice that a Base model clones from it."""

from wyoming_qwen3tts.errors import Qwen3TTSError, VoiceError
from wyoming_qwen3tts.runtime.speech_model import SpeechModel
from wyoming_qwen3tts.synthesis.request import IclVoice, XVectorVoice
from wyoming_qwen3tts.voices.clips import (
    add_continuation_silence,
    check_transcript,
    decode_reference_clip,
    speech_duration_s,
)
from wyoming_qwen3tts.voices.voice_cache import EncodedClip, check


def encode_clip(
    content: bytes, transcript: str | None, model: SpeechModel, *, must_match: bool = True
) -> EncodedClip:
    """Encode the content of an audio file.

    Args:
        content: Bytes of any format that soundfile reads.
        transcript: What the clip says; None for a voice from the timbre alone.
        model: A Base model.
        must_match: Refuse a transcript that cannot be all of what the clip says.

    Raises:
        VoiceError: The clip, the transcript or the model is of no use.
    """
    rate_hz = model.facts.sample_rate_hz
    samples = decode_reference_clip(content, rate_hz)
    if transcript is not None and must_match:
        check_transcript(transcript, speech_duration_s(samples, rate_hz))
    if model.speaker_encoder is None or (transcript is not None and model.codec_encoder is None):
        raise VoiceError(
            f"The model {model.name} has no encoder for reference clips; use a Base model."
        )
    try:
        x_vector = model.speaker_encoder(samples)
        codes = None
        if transcript is not None and model.codec_encoder is not None:
            codes = model.codec_encoder(add_continuation_silence(samples, rate_hz))
    except Qwen3TTSError:
        raise
    except Exception as error:  # graphs raise kinds of their own
        raise VoiceError(f"The model {model.name} failed at the clip: {error}") from error
    encoded = EncodedClip(x_vector, codes)
    check(encoded, model.facts)
    return encoded


def cloned_voice(encoded: EncodedClip, transcript: str | None) -> IclVoice | XVectorVoice:
    """Return the voice of an encoded clip: ICL with a transcript, else from the timbre alone."""
    if transcript is None or encoded.codes is None:
        return XVectorVoice(encoded.x_vector)
    return IclVoice(encoded.x_vector, transcript, encoded.codes)
