"""Prompt, greedy frame loop and code predictor.

Ported from: QwenLM/Qwen3-TTS modeling_qwen3_tts.py Qwen3TTSForConditionalGeneration.generate and
Qwen3TTSTalkerForConditionalGeneration.forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.oracle.checkpoint import OracleCheckpoint, Weights
from tests.oracle.layers import as_float32, attend, rms_norm, rotate, silu, split_heads
from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.tokenizer import BpeTokenizer

# The official package bans end of speech for the first two tokens, whatever is asked for.
MIN_TOKENS = 2
NUM_SPECIAL_CODEC_IDS = 1024


@dataclass(frozen=True)
class OracleRequest:
    """What shall be spoken, and how."""

    text: str
    language: str = "auto"
    speaker: str | None = None
    instruction: str | None = None
    whole_text_first: bool = True
    """The official "non-streaming" layout; otherwise one text token is fed with each frame."""
    x_vector: Float32Array | None = None
    reference_text: str | None = None
    reference_codes: Int64Array | None = None
    """(F, G); makes the prompt an ICL prompt, together with ``reference_text``."""


class Prompt(NamedTuple):
    """Talker inputs that condition the speech."""

    prefill: Float32Array
    """(T, D)."""
    trailing_text: Float32Array
    """(n, D): added to the first n frames."""
    text_pad: Float32Array
    """(D,): added to every later frame."""


class DecoderStack:
    """Qwen3 decoder layers with a growing key/value cache."""

    def __init__(self, weights: Weights, prefix: str, config: dict[str, Any]) -> None:
        """Take the layers below ``prefix``."""
        self._weights = weights
        self._prefix = prefix
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Empty the cache."""
        self._cache: dict[int, tuple[Float32Array, Float32Array]] = {}
        self._length = 0

    def __call__(self, inputs: Float32Array) -> Float32Array:
        """Append inputs (T, D) and return post-norm hidden vectors (T, D)."""
        positions = np.arange(self._length, self._length + len(inputs))
        hidden = inputs
        for layer in range(self._config["num_hidden_layers"]):
            hidden = self._layer(layer, hidden, positions)
        self._length += len(inputs)
        return self._norm(f"{self._prefix}.norm", hidden)

    def _layer(self, layer: int, hidden: Float32Array, positions: Int64Array) -> Float32Array:
        name = f"{self._prefix}.layers.{layer}"
        normed = self._norm(f"{name}.input_layernorm", hidden)
        hidden = hidden + self._attention(layer, f"{name}.self_attn", normed, positions)
        normed = self._norm(f"{name}.post_attention_layernorm", hidden)
        gate = silu(self._linear(f"{name}.mlp.gate_proj", normed))
        up = self._linear(f"{name}.mlp.up_proj", normed)
        return hidden + self._linear(f"{name}.mlp.down_proj", gate * up)

    def _attention(
        self, layer: int, name: str, normed: Float32Array, positions: Int64Array
    ) -> Float32Array:
        theta, kv_heads = self._config["rope_theta"], self._config["num_key_value_heads"]
        query = split_heads(
            self._linear(f"{name}.q_proj", normed), self._config["num_attention_heads"]
        )
        key = split_heads(self._linear(f"{name}.k_proj", normed), kv_heads)
        value = split_heads(self._linear(f"{name}.v_proj", normed), kv_heads)
        query = rotate(self._norm(f"{name}.q_norm", query), positions, theta)
        key = rotate(self._norm(f"{name}.k_norm", key), positions, theta)
        if layer in self._cache:
            past_key, past_value = self._cache[layer]
            key = np.concatenate([past_key, key], axis=1)
            value = np.concatenate([past_value, value], axis=1)
        self._cache[layer] = key, value
        return self._linear(f"{name}.o_proj", attend(query, key, value, past=self._length))

    def _linear(self, name: str, values: Float32Array) -> Float32Array:
        return values @ self._weights[f"{name}.weight"].T

    def _norm(self, name: str, values: Float32Array) -> Float32Array:
        return rms_norm(values, self._weights[f"{name}.weight"], self._config["rms_norm_eps"])


class OracleLanguageModel:
    """Text to codes, greedily."""

    def __init__(self, directory: Path) -> None:
        """Read a checkpoint."""
        checkpoint = OracleCheckpoint(directory)
        self.config = checkpoint.config
        self.talker_config: dict[str, Any] = self.config["talker_config"]
        self.weights = checkpoint.weights
        self.num_code_groups: int = self.talker_config["num_code_groups"]
        self.codebook_size: int = self.talker_config["vocab_size"] - NUM_SPECIAL_CODEC_IDS
        self._tokenizer = BpeTokenizer(directory)
        self._predictor_config = self.talker_config["code_predictor_config"]
        self._talker = DecoderStack(self.weights, "talker.model", self.talker_config)
        self._predictor = DecoderStack(
            self.weights, "talker.code_predictor.model", self._predictor_config
        )

    def text_embeddings(self, ids: Sequence[int]) -> Float32Array:
        """Return projected text embeddings (T, D)."""
        rows = self.weights["talker.model.text_embedding.weight"][np.asarray(ids, np.int64)]
        hidden = silu(self._projected("talker.text_projection.linear_fc1", rows))
        return self._projected("talker.text_projection.linear_fc2", hidden)

    def codec_embeddings(self, ids: Sequence[int]) -> Float32Array:
        """Return rows (T, D) of the talker's codec table."""
        return self.weights["talker.model.codec_embedding.weight"][np.asarray(ids, np.int64)]

    def frame_embedding(self, codes: Sequence[int] | Int64Array) -> Float32Array:
        """Return the sum (D,) of the embeddings of one frame's codes (G,)."""
        rows = [self.codec_embeddings([int(codes[0])])[0]]
        rows.extend(self._group_table(group)[int(codes[group])] for group in range(1, len(codes)))
        return as_float32(np.sum(rows, axis=0))

    def prompt(self, request: OracleRequest) -> Prompt:
        """Assemble the prefill of a request."""
        bos, eos, pad = self.text_embeddings(
            [self.config[f"tts_{name}_token_id"] for name in ("bos", "eos", "pad")]
        )
        template = f"<|im_start|>assistant\n{request.text}<|im_end|>\n<|im_start|>assistant\n"
        ids = self._tokenizer.encode_template(template)
        role, body = ids[:3], ids[3:-5]
        codec = self._codec_prefix(request)
        paired = np.concatenate([np.repeat(pad[None], len(codec) - 2, axis=0), bos[None]])
        head = [self.text_embeddings(role), paired + codec[:-1]]
        if request.instruction:
            instruction = f"<|im_start|>user\n{request.instruction}<|im_end|>\n"
            head.insert(0, self.text_embeddings(self._tokenizer.encode_template(instruction)))
        if request.reference_codes is not None:
            tail, trailing = self._icl_tail(request, body, eos, pad)
        elif request.whole_text_first:
            text = np.concatenate([self.text_embeddings(body), eos[None]])
            codec_pad, codec_bos = self._codec_pad_and_bos()
            tail, trailing = np.concatenate([text + codec_pad, (pad + codec_bos)[None]]), pad[None]
        else:
            # The official code feeds the token after the role, which is im_end for an empty text.
            first, rest = ids[3:4], ids[4:-5]
            tail = self.text_embeddings(first) + self._codec_pad_and_bos()[1]
            trailing = np.concatenate([self.text_embeddings(rest), eos[None]])
        return Prompt(np.concatenate([*head, tail]).astype(np.float32), trailing, pad)

    def greedy_codes(
        self,
        request: OracleRequest,
        *,
        max_new_tokens: int = 40,
        repetition_penalty: float = 1.05,
    ) -> Int64Array:
        """Speak a request and return its codes (F, G); F < ``max_new_tokens``."""
        prompt = self.prompt(request)
        self._talker.reset()
        hidden = self._talker(prompt.prefill)[-1]
        tokens: list[int] = []
        frames: list[list[int]] = []
        while True:
            token = self._next_token(hidden, tokens, repetition_penalty)
            tokens.append(token)
            # The last token never becomes a frame, whether it ends the speech or the budget.
            if token == self.talker_config["codec_eos_token_id"] or len(tokens) == max_new_tokens:
                return np.array(frames, np.int64).reshape(-1, self.num_code_groups)
            frames.append(self.predict_frame(hidden, token))
            index = len(frames) - 1
            has_text = index < len(prompt.trailing_text)
            text = prompt.trailing_text[index] if has_text else prompt.text_pad
            hidden = self._talker((self.frame_embedding(frames[-1]) + text)[None])[-1]

    def talker_outputs(self, inputs: Float32Array) -> tuple[Float32Array, Float32Array]:
        """Run the talker over fresh inputs (T, D).

        Returns:
            Logits (T, codec ids) and post-norm hidden vectors (T, D) of every position.
        """
        self._talker.reset()
        hidden = self._talker(inputs)
        return hidden @ self.weights["talker.codec_head.weight"].T, hidden

    def predict_frame(self, hidden: Float32Array, code0: int) -> list[int]:
        """Return all codes (G,) of a frame from the talker's hidden (D,) and group 0's code."""
        return self._predict(hidden, code0, None)[0]

    def predictor_logits(self, hidden: Float32Array, codes: Int64Array) -> Float32Array:
        """Return the logits (G - 1, C) of each group when the codes (G,) before it are given."""
        return self._predict(hidden, int(codes[0]), codes)[1]

    def _predict(
        self, hidden: Float32Array, code0: int, forced: Int64Array | None
    ) -> tuple[list[int], Float32Array]:
        self._predictor.reset()
        inputs = np.stack([hidden, self.codec_embeddings([code0])[0]])
        codes, all_logits = [code0], []
        for group in range(1, self.num_code_groups):
            outputs = self._predictor(self._predictor_inputs(inputs))
            head = self.weights[f"talker.code_predictor.lm_head.{group - 1}.weight"]
            logits = head @ outputs[-1]
            code = int(np.argmax(logits)) if forced is None else int(forced[group])
            codes.append(code)
            all_logits.append(logits)
            inputs = self._group_table(group)[code][None]
        return codes, np.stack(all_logits)

    def _next_token(self, hidden: Float32Array, tokens: Sequence[int], penalty: float) -> int:
        scores = self.weights["talker.codec_head.weight"] @ hidden
        for token in set(tokens):
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
        eos = self.talker_config["codec_eos_token_id"]
        eos_score = scores[eos] if len(tokens) >= MIN_TOKENS else -np.inf
        scores[self.codebook_size :] = -np.inf
        scores[eos] = eos_score
        return int(np.argmax(scores))

    def _codec_prefix(self, request: OracleRequest) -> Float32Array:
        """Return language tag, speaker, codec pad and codec bos as embeddings (n, D)."""
        talker = self.talker_config
        language_id = self._language_id(request)
        begin, end = talker["codec_think_bos_id"], talker["codec_think_eos_id"]
        if language_id is None:
            tag = [talker["codec_nothink_id"], begin, end]
        else:
            tag = [talker["codec_think_id"], begin, language_id, end]
        parts = [self.codec_embeddings(tag)]
        if request.speaker:
            parts.append(self.codec_embeddings([talker["spk_id"][request.speaker.lower()]]))
        elif request.x_vector is not None:
            parts.append(request.x_vector[None])
        parts.append(np.stack(self._codec_pad_and_bos()))
        return np.concatenate(parts)

    def _language_id(self, request: OracleRequest) -> int | None:
        languages: dict[str, int] = self.talker_config["codec_language_id"]
        language = request.language.lower()
        if language in {"auto", "chinese"} and request.speaker:
            dialect = self.talker_config["spk_is_dialect"][request.speaker.lower()]
            if dialect:
                return languages[dialect]
        return None if language == "auto" else languages[language]

    def _icl_tail(
        self, request: OracleRequest, body: list[int], eos: Float32Array, pad: Float32Array
    ) -> tuple[Float32Array, Float32Array]:
        if request.reference_codes is None:
            raise ValueError("an ICL prompt needs reference codes")
        template = f"<|im_start|>assistant\n{request.reference_text}<|im_end|>\n"
        reference_body = self._tokenizer.encode_template(template)[3:-2]
        text = np.concatenate([self.text_embeddings([*reference_body, *body]), eos[None]])
        codec_pad, codec_bos = self._codec_pad_and_bos()
        frames = [self.frame_embedding(codes) for codes in request.reference_codes]
        codec = np.stack([codec_bos, *frames])
        if request.whole_text_first:
            return np.concatenate([text + codec_pad, codec + pad]), pad[None]
        if len(text) > len(codec):
            return text[: len(codec)] + codec, text[len(codec) :]
        padding = np.repeat(pad[None], len(codec) - len(text), axis=0)
        return np.concatenate([text, padding]) + codec, pad[None]

    def _codec_pad_and_bos(self) -> tuple[Float32Array, Float32Array]:
        pad, bos = self.codec_embeddings(
            [self.talker_config["codec_pad_id"], self.talker_config["codec_bos_id"]]
        )
        return pad, bos

    def _predictor_inputs(self, inputs: Float32Array) -> Float32Array:
        projection = "talker.code_predictor.small_to_mtp_projection"
        if f"{projection}.weight" not in self.weights:
            return inputs
        return self._projected(projection, inputs)

    def _projected(self, name: str, values: Float32Array) -> Float32Array:
        return values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _group_table(self, group: int) -> Float32Array:
        return self.weights[f"talker.code_predictor.model.codec_embedding.{group - 1}.weight"]
