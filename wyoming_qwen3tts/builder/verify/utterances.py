"""What a model speaks without any chance, and everything that led to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.builder.verify.inputs import SEED, TEXTS
from wyoming_qwen3tts.builder.verify.parts import Parts
from wyoming_qwen3tts.runtime.kv_cache import KVCache
from wyoming_qwen3tts.runtime.speech_model import (
    CodePredictor,
    Embeddings,
    SpeechModel,
    Talker,
    TalkerOutput,
    TextTokenizer,
)
from wyoming_qwen3tts.synthesis.frame_loop import FrameLoop, Lane
from wyoming_qwen3tts.synthesis.prompt import Prompt, PromptBuilder
from wyoming_qwen3tts.synthesis.request import SynthesisOptions, Voice, default_options

# Frames are shared out to this many utterances at least, so that voices and languages differ.
_LEAST_UTTERANCES = 2


@dataclass(frozen=True)
class Task:
    """An utterance to speak."""

    text: str
    voice: Voice
    max_frames: int


@dataclass(frozen=True, eq=False)
class Utterance:
    """A spoken task."""

    task: Task
    prompt: Prompt
    step_inputs: Float32Array
    """(n, D): what the talker was fed after the prompt, one position per step."""
    logits: Float32Array
    """(n + 1, C + 1): scores after the prompt and after each step."""
    hidden: Float32Array
    """(n + 1, D)."""
    frames: Int64Array
    """(F, G); F is n + 1, or n where the utterance ended with the last scores."""


class Speaker:
    """Speaks tasks greedily with an opened model, through the code that the server runs."""

    def __init__(
        self,
        parts: Parts,
        tokenizer: TextTokenizer,
        embeddings: Embeddings,
        talker: Talker,
        code_predictor: CodePredictor,
    ) -> None:
        """Take the opened parts of a model.

        Raises:
            BundleError: The tokenizer does not know the prompt's template.
        """
        self._talker = _Recorder(talker)
        self._model = SpeechModel(
            name="the model",
            facts=parts.facts,
            tokenizer=tokenizer,
            embeddings=embeddings,
            talker=self._talker,
            code_predictor=code_predictor,
            codec_decoder=_NoCodec(),
            codec_encoder=None,
            speaker_encoder=None,
        )
        self._prompts = PromptBuilder(self._model)

    def speak(self, task: Task) -> Utterance:
        """Speak one task.

        Raises:
            SynthesisError: The model's scores are no numbers.
        """
        recorder = self._talker
        recorder.inputs.clear()
        recorder.outputs.clear()
        options = self._options(task)
        prompt = self._prompts.build(task.text, task.voice, options)
        lane = Lane(prompt, options)
        # A loop of its own: no prompt may find another one's beginning in the prefix cache.
        loop = FrameLoop(self._model)
        loop.join(lane)
        del recorder.outputs[:-1]  # a prompt is prefilled in pieces, only the last one counts
        frames = []
        while not lane.is_finished:
            frames += [frame for _, frame in loop.step()]
        if lane.error is not None:
            raise lane.error
        width, groups = self._model.facts.hidden_size, self._model.facts.num_code_groups
        return Utterance(
            task=task,
            prompt=prompt,
            step_inputs=np.array(recorder.inputs, np.float32).reshape(-1, width),
            logits=np.concatenate([output.logits for output in recorder.outputs]),
            hidden=np.concatenate([output.hidden for output in recorder.outputs]),
            frames=np.array(frames, np.int64).reshape(-1, groups),
        )

    def _options(self, task: Task) -> SynthesisOptions:
        options = default_options(self._model.facts.generation, SEED).greedy()
        return replace(options, max_frames=task.max_frames)


def speak_frames(speaker: Speaker, voices: Sequence[Voice], num_frames: int) -> list[Utterance]:
    """Speak texts until there are ``num_frames`` frames, or no text is left.

    Raises:
        SynthesisError: The model's scores are no numbers.
    """
    utterances: list[Utterance] = []
    left, at_most = num_frames, -(-num_frames // _LEAST_UTTERANCES)
    for index, text in enumerate(TEXTS):
        if left <= 0:
            break
        task = Task(text, voices[index % len(voices)], min(left, at_most))
        utterances.append(speaker.speak(task))
        left -= len(utterances[-1].frames)
    return utterances


class _Recorder:
    """A talker that remembers what it was fed and what it said."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self.inputs: list[Float32Array] = []
        self.outputs: list[TalkerOutput] = []

    def new_cache(self, num_lanes: int, capacity: int) -> KVCache:
        return self._talker.new_cache(num_lanes, capacity)

    def prefill(self, embeddings: Float32Array, cache: KVCache, lane: int) -> TalkerOutput:
        return self._noted(self._talker.prefill(embeddings, cache, lane))

    def step(
        self, embeddings: Float32Array, cache: KVCache, advance: Sequence[bool]
    ) -> TalkerOutput:
        self.inputs.append(embeddings[0].copy())
        return self._noted(self._talker.step(embeddings, cache, advance))

    def _noted(self, output: TalkerOutput) -> TalkerOutput:
        self.outputs.append(TalkerOutput(output.logits.copy(), output.hidden.copy()))
        return output


class _NoCodec:
    """Stands in where only codes matter."""

    chunk_ramp = (1,)

    def initial_state(self) -> None:
        return None

    def decode(self, codes: Int64Array, state: None) -> tuple[Float32Array, None]:
        return np.zeros(len(codes), np.float32), state

    def advance(self, codes: Int64Array, state: None) -> None:
        del codes
        return state
