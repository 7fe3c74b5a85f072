"""Embeddings that are graphs: text with its projection, codec rows, and sums of frames.

The first output is taken, whatever a variant calls it. Memory is that of the graphs: the text table
of the int4 variant is quantised (GatherBlockQuantized), ours is not.
"""

from collections.abc import Sequence

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array, Int64Array
from wyoming_qwen3tts.runtime.facts import ModelFacts
from wyoming_qwen3tts.runtime.onnx_community.graph import PublishedGraph, as_float32


class PublishedEmbeddings:
    """The embeddings of a published bundle."""

    def __init__(
        self,
        text_embed: PublishedGraph,
        codec_embed: PublishedGraph,
        residual_embed: PublishedGraph,
        facts: ModelFacts,
    ) -> None:
        """Wrap the three graphs.

        Raises:
            GraphInterfaceError: They give vectors of another model.
        """
        residual_embed.check_size("codec_ids", 1, facts.num_code_groups)
        self._text_embed = text_embed
        self._codec_embed = codec_embed
        self._residual_embed = residual_embed
        width = self.codec([facts.codec_ids.pad]).shape[-1]
        if width != facts.hidden_size:
            raise codec_embed.contract_error(
                f"gives vectors of width {width}, but the model's are {facts.hidden_size} wide"
            )

    def text(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): projected text embeddings."""
        return self._rows(self._text_embed, "text_ids", ids)

    def codec(self, ids: Sequence[int]) -> Float32Array:
        """Return (T, D): rows of the talker's codec table (codes, special ids, speakers)."""
        return self._rows(self._codec_embed, "codec_ids", ids)

    def frames(self, codes: Int64Array) -> Float32Array:
        """Return (F, D): the sum over groups of the embeddings of codes (F, G)."""
        return self._residual_embed.run_rows("codec_ids", codes, {})

    @staticmethod
    def _rows(graph: PublishedGraph, name: str, ids: Sequence[int]) -> Float32Array:
        return as_float32(graph.run({name: np.asarray([ids], np.int64)})[0][0])
