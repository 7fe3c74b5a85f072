"""The frame loop: talker step -> group 0 -> code predictor -> frame, until end of speech.

Several lanes share every read of the weights: a step makes one frame of each.

Ported from: QwenLM/Qwen3-TTS qwen_tts/core/models/modeling_qwen3_tts.py,
``Qwen3TTSTalkerForConditionalGeneration.forward`` and transformers ``generation/utils.py``.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import AnyArray
from wyoming_qwen3tts.errors import SynthesisError
from wyoming_qwen3tts.runtime.kv_cache import CacheSnapshot, KVCache
from wyoming_qwen3tts.runtime.speech_model import (
    CodecDecoder,
    PredictorSampling,
    SpeechModel,
    Talker,
    TalkerOutput,
)
from wyoming_qwen3tts.synthesis.prompt import Prompt
from wyoming_qwen3tts.synthesis.utterance import (
    FinishReason,
    ReadyToSample,
    ReadyToStep,
    Utterance,
)

# Positions that each lane of an idle loop keeps allocated: most utterances fit.
_IDLE_POSITIONS = 512
_PREFIX_CACHE_BYTES = 128 * 2**20
_NOT_FINITE = (
    "The code predictor's scores are not finite numbers; "
    "rebuild the bundle, or use a higher precision such as fp32."
)


class PrefixCache:
    """What prompts of one voice share: talker snapshots, and codec states of reference clips.

    Every prompt is prefilled in two runs, also the first time: the last bits of a result depend on
    the length of the run, and a seed must give the same codes with a warm cache and without.
    """

    def __init__(self) -> None:
        """Keep nothing yet; the entry that was unused longest goes first."""
        self._entries: OrderedDict[bytes, Any] = OrderedDict()
        # The reference clip that is being decoded: its key, the frames done, the state after them.
        self._partial: tuple[bytes, int, Any] | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of all entries."""
        # States without a size hold only a few codes.
        return sum(getattr(entry, "num_bytes", 0) for entry in self._entries.values())

    def prefill(self, talker: Talker, prompt: Prompt, cache: KVCache, lane: int) -> TalkerOutput:
        """Fill an empty lane with the prompt, its shared part from the cache if possible."""
        shared = prompt.embeddings[: prompt.prefix_length]
        key = _digest(shared)
        snapshot: CacheSnapshot | None = self._get(key)
        if snapshot is None:
            talker.prefill(shared, cache, lane)
            snapshot = cache.snapshot(lane, len(shared))
            # Never keep non-finite numbers: one bad run would poison the voice.
            if all(np.isfinite(array).all() for array in snapshot.blocks):
                self._keep(key, snapshot)
        else:
            cache.restore(lane, snapshot, len(shared))
        return talker.prefill(prompt.embeddings[prompt.prefix_length :], cache, lane)

    def codec_state(self, decoder: CodecDecoder, prompt: Prompt, max_frames: int) -> Any | None:
        """Return the codec state after the prompt's reference clip.

        Decodes at most ``max_frames`` of the clip; None means that the rest needs further calls.
        """
        if prompt.reference_codes is None:
            return decoder.initial_state()
        if prompt.reference_state is not None:
            return prompt.reference_state
        codes = prompt.reference_codes
        key = _digest(codes)
        if (known := self._get(key)) is not None:
            return known
        done, state = 0, decoder.initial_state()
        if self._partial is not None and self._partial[0] == key:
            _, done, state = self._partial
        state = decoder.advance(codes[done : done + max_frames], state)
        done += max_frames
        if done < len(codes):
            self._partial = key, done, state
            return None
        self._partial = None
        self._keep(key, state)
        return state

    def _get(self, key: bytes) -> Any | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def _keep(self, key: bytes, entry: Any) -> None:
        self._entries[key] = entry
        while self.num_bytes > _PREFIX_CACHE_BYTES:
            self._entries.popitem(last=False)


def _digest(array: AnyArray) -> bytes:
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


class FrameLoop:
    """Runs up to ``max_lanes`` utterances through one model, a frame of each per step."""

    def __init__(self, model: SpeechModel, *, max_lanes: int = 1) -> None:
        """Prepare a loop; the key/value cache is allocated with the first utterance."""
        self._model = model
        self.max_lanes = max_lanes
        self.utterances: list[Utterance] = []  # in the order of their lanes
        self.prefixes = PrefixCache()
        self._cache = model.talker.new_cache(max_lanes, capacity=1)

    def add(self, utterance: Utterance) -> None:
        """Prefill the utterance's prompt; its first frame comes with the next step."""
        lane = len(self.utterances)
        self._cache.rewind(lane, 0)
        output = self.prefixes.prefill(self._model.talker, utterance.prompt, self._cache, lane)
        utterance.state = ReadyToSample(output.logits[0], output.hidden[0])
        self.utterances.append(utterance)

    def remove(self, utterance: Utterance) -> None:
        """Free the utterance's lane, if it has one; the last lane moves into its place."""
        if utterance not in self.utterances:
            return
        lane = self.utterances.index(utterance)
        last = len(self.utterances) - 1
        self._cache.move(last, lane)
        self.utterances[lane] = self.utterances[last]
        del self.utterances[last]
        self._cache.rewind(last, 0)
        if not self.utterances:
            self._cache.shrink(_IDLE_POSITIONS)

    def clear(self) -> None:
        """Remove every utterance and everything that prompts share, and free the memory."""
        self.utterances.clear()
        self.prefixes = PrefixCache()
        self._cache.clear()

    def step(self, active: Collection[Utterance]) -> list[Utterance]:
        """Make one frame of every active utterance that can go on; return those that got one.

        An utterance that ends leaves the loop with an ``end_reason`` or ``error``.
        """
        for lane in reversed(range(len(self.utterances))):
            if self._cache.lengths[lane] >= self._cache.max_positions:
                self.utterances[lane].end_reason = FinishReason.LENGTH
                self.remove(self.utterances[lane])
        stepped = self.utterances[: self._move_to_front(active)]
        embeddings = np.zeros((len(stepped), self._model.facts.hidden_size), np.float32)
        is_ready = [False] * len(stepped)
        for lane, utterance in enumerate(stepped):
            if isinstance(utterance.state, ReadyToStep) and not utterance.needs_text:
                text = utterance.next_text()
                np.add(utterance.state.embedding, text, out=embeddings[lane])
                is_ready[lane] = True
        if any(is_ready):
            output = self._model.talker.step(embeddings, self._cache, is_ready)
            for lane, utterance in enumerate(stepped):
                if is_ready[lane]:
                    utterance.state = ReadyToSample(output.logits[lane], output.hidden[lane])
        return self._make_frames(stepped)

    def _move_to_front(self, active: Collection[Utterance]) -> int:
        """Give the active utterances the first lanes; return their number."""
        count = 0
        for lane, utterance in enumerate(self.utterances):
            if utterance not in active:
                continue
            if lane != count:
                self._cache.swap(lane, count)
                self.utterances[lane], self.utterances[count] = self.utterances[count], utterance
            count += 1
        return count

    def _make_frames(self, utterances: Sequence[Utterance]) -> list[Utterance]:
        """Sample group 0 of each utterance, then the other groups of all of them at once."""
        facts = self._model.facts
        sampled, code0s, hidden, uniforms = [], [], [], []
        for utterance in utterances:
            state = utterance.state
            if not isinstance(state, ReadyToSample):
                continue
            drawn = utterance.next_uniforms(facts.num_code_groups)
            code0 = utterance.sample_code0(state.logits, float(drawn[0]), facts.codebook_size)
            if code0 is None:
                self.remove(utterance)
                continue
            sampled.append(utterance)
            code0s.append(code0)
            hidden.append(state.hidden)
            uniforms.append(drawn[1:])
        if not sampled:
            return []
        options = [utterance.options.predictor for utterance in sampled]
        sampling = PredictorSampling(
            np.stack(uniforms),
            np.array([option.temperature for option in options], np.float32),
            np.array([option.top_k for option in options], np.int64),
            np.array([option.top_p for option in options], np.float32),
        )
        codes = np.array(code0s, np.int64)
        groups = self._model.code_predictor.predict(np.stack(hidden), codes, sampling)
        frames = np.concatenate([codes[:, None], groups], axis=1)  # (B, G)
        is_whole = (groups >= 0).all(axis=1)
        for lane in np.flatnonzero(~is_whole):
            sampled[lane].error = SynthesisError(_NOT_FINITE)
            self.remove(sampled[lane])
        sampled = [utterance for utterance in sampled if utterance.error is None]
        if sampled:
            frames = frames[is_whole]
            embeddings = self._model.embeddings.frames(frames)
            for utterance, frame, embedding in zip(sampled, frames, embeddings, strict=True):
                utterance.state = ReadyToStep(embedding)
                utterance.add_frame(frame)
        return sampled
