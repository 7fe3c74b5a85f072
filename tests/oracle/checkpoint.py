"""Read a checkpoint for the oracle."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from wyoming_qwen3tts.arrays import Float32Array

Weights = dict[str, Float32Array]


def read_safetensors(path: Path) -> Weights:
    """Read every tensor of a file as float32."""
    content = path.read_bytes()
    (header_size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + header_size])
    header.pop("__metadata__", None)
    values = memoryview(content)[8 + header_size :]
    return {name: _tensor(entry, values) for name, entry in header.items()}


def _tensor(entry: dict[str, Any], values: memoryview) -> Float32Array:
    start, end = entry["data_offsets"]
    if entry["dtype"] == "BF16":  # the upper half of a float32
        bits = np.frombuffer(values[start:end], "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).reshape(entry["shape"])
    return np.frombuffer(values[start:end], "<f4").reshape(entry["shape"]).astype(np.float32)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


class OracleCheckpoint:
    """Configurations and weights of one checkpoint."""

    def __init__(self, directory: Path) -> None:
        """Read everything."""
        self.directory = directory
        self.config = read_json(directory / "config.json")
        self.weights = read_safetensors(directory / "model.safetensors")
        self.codec_config = read_json(directory / "speech_tokenizer" / "config.json")
        self.codec_weights = read_safetensors(directory / "speech_tokenizer" / "model.safetensors")
