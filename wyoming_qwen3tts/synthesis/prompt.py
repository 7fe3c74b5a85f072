"""The prompt: what the talker reads before the first frame, and the text that follows.

Every vector of the prompt is a sum of a text embedding and a codec embedding (one of the two may be
missing). The order is::

    instruction (optional) | role | language tag, speaker | text, and the reference of an ICL voice

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/models/modeling_qwen3_tts.py,
``Qwen3TTSForConditionalGeneration.generate`` and ``generate_icl_prompt``.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.errors import BundleError, RequestError
from wyoming_qwen3tts.runtime.manifest import GenerationDefaults, ModelFacts
from wyoming_qwen3tts.runtime.speech_model import CodecState, SpeechModel
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisOptions,
    TextLayout,
    Voice,
    XVectorVoice,
)

_ROLE = "<|im_start|>assistant\n"
_NUM_ROLE_TOKENS = 3
_INSTRUCTION = ("<|im_start|>user\n", "<|im_end|>\n")


@dataclass(frozen=True)
class Prompt:
    """What the talker starts from."""

    embeddings: Float32Array  # (T, D): the prefill
    trailing: Float32Array  # (N, D): text embeddings that are added later, one per frame
    text_pad: Float32Array  # (D,): added to every frame after the text
    prefix_length: int  # first positions that depend on voice and options, not on the text
    reference_codes: Int64Array | None  # (F, G): frames that the codec must decode first (ICL)
    reference_state: CodecState | None  # the codec's after them, if the voice has it


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, model: SpeechModel) -> None:
        """Look up the vectors of every prompt; a tokenizer of another model is a BundleError."""
        self._facts = model.facts
        self._embeddings = model.embeddings
        self._tokenizer = model.tokenizer
        ids = model.facts.text_ids
        role = self._tokenizer.encode_template(_ROLE)
        if role[:2] != [ids.im_start, ids.assistant] or len(role) != _NUM_ROLE_TOKENS:
            raise BundleError(
                f"The tokenizer of {model.name} reads the prompt's template as {role}; "
                "it belongs to another model. Build or download the bundle again."
            )
        self._role = self._embeddings.text(role)  # (3, D)
        specials = self._embeddings.text([ids.tts_bos, ids.tts_eos, ids.tts_pad])
        self._tts_bos, self._tts_eos, self._tts_pad = specials[:, None]  # (1, D) each
        self._no_text = np.zeros((0, model.facts.hidden_size), np.float32)
        codec = self._facts.codec_ids
        pad_and_bos = self._embeddings.codec([codec.pad, codec.bos])
        self._codec_pad, self._codec_bos = pad_and_bos[:, None]  # (1, D) each

    def build(self, text: str, voice: Voice, options: SynthesisOptions) -> Prompt:
        """Build the prompt of an utterance with its whole text."""
        return self._assemble(self._tokenizer.encode(text.strip()), voice, options)

    def open(self, ids: Sequence[int], voice: Voice, options: SynthesisOptions) -> Prompt:
        """Build the prompt of an utterance whose text goes on after ids (one at least).

        The layout is streaming, and the trailing text has no end mark.
        """
        if isinstance(voice, IclVoice):
            raise RequestError(
                "A voice cloned with a transcript needs its whole text first; use text_mode "
                "sentences."
            )
        options = replace(options, layout=TextLayout.STREAMING)
        prompt = self._assemble(list(ids), voice, options)
        return replace(prompt, trailing=prompt.trailing[:-1])

    def text_vectors(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): the embeddings of text ids."""
        return self._embeddings.text(ids) if ids else self._no_text

    def _assemble(self, body: list[int], voice: Voice, options: SynthesisOptions) -> Prompt:
        prefix = self._prefix(voice, options)
        layout = options.layout or default_layout(voice, self._facts.generation)
        num_shared, codes, state = 0, None, None
        if isinstance(voice, IclVoice):
            tail, trailing, num_shared = self._icl_tail(body, voice, layout)
            codes, state = voice.reference_codes, voice.codec_state
        else:
            tail, trailing = self._text_tail(body, layout)
        embeddings, num_shared = np.concatenate([prefix, tail]), len(prefix) + num_shared
        return Prompt(embeddings, trailing, self._tts_pad[0], num_shared, codes, state)

    def _prefix(self, voice: Voice, options: SynthesisOptions) -> Float32Array:
        """Return (T, D): instruction, role, language tag and speaker."""
        codec_ids = self._facts.codec_ids
        language_id = language_tag_id(self._facts, voice, options.language)
        if language_id is None:
            tag = [codec_ids.nothink, codec_ids.think_bos, codec_ids.think_eos]
        else:
            tag = [codec_ids.think, codec_ids.think_bos, language_id, codec_ids.think_eos]
        announced = [self._embeddings.codec(tag)]
        instruction = options.instruction if self._facts.follows_instructions else None
        match voice:
            case PresetSpeaker(name=name):
                announced.append(self._embeddings.codec([self._facts.speakers[name.lower()]]))
            case XVectorVoice(x_vector=x_vector) | IclVoice(x_vector=x_vector):
                announced.append(x_vector[None].astype(np.float32))
            case DesignedVoice(description=description):
                instruction = description
        # The last codec vector (codec bos) belongs to the tail: the first frame follows it.
        codec = np.concatenate([*announced, self._codec_pad])  # (n - 1, D)
        pads = np.repeat(self._tts_pad, len(codec) - 1, axis=0)
        parts = [self._role, np.concatenate([pads, self._tts_bos]) + codec]
        if instruction and instruction.strip():
            # Special tokens in the user's text are plain text.
            body = self._tokenizer.encode(instruction.strip())
            before, after = map(self._tokenizer.encode_template, _INSTRUCTION)
            parts.insert(0, self._embeddings.text([*before, *body, *after]))
        return np.concatenate(parts)

    def _text_tail(self, body: list[int], layout: TextLayout) -> tuple[Float32Array, Float32Array]:
        """Return the tail (T, D) and the trailing text (N, D) of a voice without reference."""
        if layout is TextLayout.NON_STREAMING:
            text = np.concatenate([self.text_vectors(body), self._tts_eos])
            tail = np.concatenate([text + self._codec_pad, self._tts_pad + self._codec_bos])
            return tail, self._no_text
        # The official code feeds the token behind the role first: for an empty text that is im_end.
        first, *rest = body or [self._facts.text_ids.im_end]
        tail = self.text_vectors([first]) + self._codec_bos
        return tail, np.concatenate([self.text_vectors(rest), self._tts_eos])

    def _icl_tail(
        self, body: list[int], voice: IclVoice, layout: TextLayout
    ) -> tuple[Float32Array, Float32Array, int]:
        """Return tail (T, D), trailing text (N, D) and the number of shared tail positions."""
        reference = self._tokenizer.encode(voice.reference_text.strip())
        text = np.concatenate([self.text_vectors([*reference, *body]), self._tts_eos])
        frames = self._embeddings.frames(voice.reference_codes)
        codec = np.concatenate([self._codec_bos, frames])
        if layout is TextLayout.NON_STREAMING:
            tail = np.concatenate([text + self._codec_pad, codec + self._tts_pad])
            return tail, self._no_text, len(reference)
        # One position always remains: the first frame is sampled from its output.
        num_shared = min(len(reference), len(codec) - 1)
        if len(text) > len(codec):
            return text[: len(codec)] + codec, text[len(codec) :], num_shared
        pads = np.repeat(self._tts_pad, len(codec) - len(text), axis=0)
        return np.concatenate([text, pads]) + codec, self._no_text, num_shared


def default_layout(voice: Voice, defaults: GenerationDefaults) -> TextLayout:
    """Return the checkpoint's layout, else the official one: streaming for cloned voices only."""
    if defaults.non_streaming_mode is not None:
        return TextLayout.NON_STREAMING if defaults.non_streaming_mode else TextLayout.STREAMING
    if isinstance(voice, XVectorVoice | IclVoice):
        return TextLayout.STREAMING
    return TextLayout.NON_STREAMING


def language_tag_id(facts: ModelFacts, voice: Voice, language: str | None) -> int | None:
    """Return the codec id of the language, None for auto; dialect speakers keep their dialect.

    Raises:
        RequestError: The model does not speak the language.
    """
    name = (language or "auto").lower()
    if isinstance(voice, PresetSpeaker) and name in ("auto", "chinese"):
        dialect = facts.dialects.get(voice.name.lower())
        if dialect:
            return facts.languages[dialect]
    if name == "auto":
        return None
    if name not in facts.spoken_languages:
        raise RequestError(
            f"Unknown language {name[:100]!r}: this model speaks "
            f"{', '.join(facts.spoken_languages)}, or auto."
        )
    return facts.languages[name]


class IncrementalTokenizer:
    """Tokenises one text piece by piece; the ids together are those of the whole text.

    The tokenizer splits text into words and runs of punctuation, and merges only within those. A
    run of letters ends where something else follows, so the ids up to there are final.
    """

    def __init__(self, tokenizer: BpeTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = ""

    def push(self, text: str) -> list[int]:
        """Add text and return the ids that have become final."""
        pending = self._pending + text
        end = _stable_end(pending)
        self._pending = pending[end:]
        return self._tokenizer.encode(pending[:end])

    def flush(self) -> list[int]:
        """Return the ids of the rest; later text starts a new word."""
        rest, self._pending = self._pending, ""
        return self._tokenizer.encode(rest)

    def finish(self) -> list[int]:
        """Return the ids of the rest; the official layout has no space before the end of text."""
        self._pending = self._pending.rstrip()
        return self.flush()


def _stable_end(text: str) -> int:
    """Return the end of the last run of letters, or last digit, that something else follows."""
    kinds = [unicodedata.category(character)[0] for character in text]
    for index in range(len(text) - 1, 0, -1):
        # Never cut before a mark: composition may join it with the letter before; if not, the
        # tokenizer counts it among the punctuation that follows.
        if kinds[index - 1] in "LN" and kinds[index] not in "LNM":
            return index
    return 0
