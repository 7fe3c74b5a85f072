"""Run the official package over the cases and write what it gives; needs ``.venv-parity``.

    python -m tests.parity.official CHECKPOINTS OUTPUT

Writes ``official.json`` and ``official.npz`` to OUTPUT.
"""

import argparse
import importlib
import json
import logging
import sys
import warnings
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tests.parity import cases
from tests.parity.cases import Case

PACKAGES = ("qwen-tts", "torch", "transformers", "numpy")
_GREEDY = {
    "do_sample": False,
    "subtalker_dosample": False,
    "max_new_tokens": cases.MAX_NEW_TOKENS,
}
# Imported by the package for its 25 Hz models alone; none of these is ever called here.
_STAND_INS = {
    "sox": "Transformer",
    "onnxruntime": "InferenceSession",
    "torchaudio": "",
    "torchaudio.compliance": "",
    "torchaudio.compliance.kaldi": "fbank",
}


def main() -> None:
    """Write the official results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    _install_stand_ins()
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    qwen_tts = importlib.import_module("qwen_tts")
    importlib.import_module("transformers").logging.set_verbosity_error()
    logging.getLogger().setLevel(logging.ERROR)
    results: dict[str, Any] = {
        "versions": {package: version(package) for package in PACKAGES},
        "seed": cases.SEED,
        "cases": [],
        "encoder_codes": {},
    }
    arrays: dict[str, Any] = {}
    checkpoints = list(dict.fromkeys(case.checkpoint for case in cases.all_cases()))
    for name in checkpoints:
        directory = options.checkpoints / name
        model = qwen_tts.Qwen3TTSModel.from_pretrained(str(directory), dtype=torch.float32)
        _speak(OfficialModel(model), name, results, arrays)
        if name.endswith("-base"):
            _measure_encoders(torch, model, name, results, arrays)
    _decode(torch, model, arrays)
    results["tokens"] = _tokens(options.checkpoints / checkpoints[0])
    options.output.mkdir(parents=True, exist_ok=True)
    np.savez(options.output / "official.npz", **arrays)
    (options.output / "official.json").write_text(json.dumps(results), encoding="utf-8")


def _install_stand_ins() -> None:
    for name, attribute in _STAND_INS.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        if attribute:
            setattr(module, attribute, None)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


class OfficialModel:
    """The public calls of the package, with the codes that they pass to the codec."""

    def __init__(self, model: Any) -> None:
        """Listen to the codec of ``model``."""
        self._model = model
        self._codes: list[Any] = []
        self._references: dict[tuple[int, str | None], Any] = {}
        self._decode = model.model.speech_tokenizer.decode
        model.model.speech_tokenizer.decode = self._listen

    def _listen(self, encoded: list[dict[str, Any]]) -> Any:
        self._codes = [np.asarray(entry["audio_codes"]) for entry in encoded]
        return self._decode(encoded)

    def speak(self, case: Case) -> tuple[Any, Any]:
        """Return codes (F, G), without those of the reference, and samples (S,)."""
        layout = {"non_streaming_mode": case.layout == "non_streaming"}
        wishes = {"language": case.language, **layout, **_GREEDY}
        num_reference_frames = 0
        if case.voice == "preset":
            samples, _ = self._model.generate_custom_voice(
                case.text, speaker=case.speaker, instruct=case.instruction, **wishes
            )
        elif case.voice == "designed":
            samples, _ = self._model.generate_voice_design(
                case.text, instruct=case.instruction, **wishes
            )
        else:
            reference = self._reference(case)
            samples, _ = self._model.generate_voice_clone(
                case.text, voice_clone_prompt=reference, **wishes
            )
            if case.voice == "icl":
                num_reference_frames = len(reference[0].ref_code)
        return self._codes[0][num_reference_frames:], np.asarray(samples[0], np.float32)

    def _reference(self, case: Case) -> Any:
        key = case.reference_samples, case.reference_text
        if key not in self._references:
            audio = cases.clip(case.reference_samples), cases.SAMPLE_RATE_HZ
            kind = (
                {"ref_text": case.reference_text}
                if case.voice == "icl"
                else {"x_vector_only_mode": True}
            )
            self._references[key] = self._model.create_voice_clone_prompt(audio, **kind)
        return self._references[key]


def _speak(
    model: OfficialModel, checkpoint: str, results: dict[str, Any], arrays: dict[str, Any]
) -> None:
    for case in cases.all_cases():
        if case.checkpoint == checkpoint:
            codes, samples = model.speak(case)
            arrays[f"audio_{len(results['cases'])}"] = samples
            results["cases"].append({**asdict(case), "codes": codes.tolist()})
    print(f"official {checkpoint}: {len(results['cases'])} cases so far", file=sys.stderr)


def _measure_encoders(
    torch: Any, model: Any, checkpoint: str, results: dict[str, Any], arrays: dict[str, Any]
) -> None:
    tokenizer = model.model.speech_tokenizer
    with torch.inference_mode():
        for num_samples in cases.ENCODER_SAMPLES:
            encoded = tokenizer.encode(cases.clip(num_samples), sr=cases.SAMPLE_RATE_HZ)
            results["encoder_codes"][str(num_samples)] = encoded.audio_codes[0].tolist()
        for num_samples in cases.SPEAKER_SAMPLES:
            vector = model.model.extract_speaker_embedding(
                cases.clip(num_samples), cases.SAMPLE_RATE_HZ
            )
            arrays[f"x_vector_{checkpoint}_{num_samples}"] = vector.float().numpy()


def _decode(torch: Any, model: Any, arrays: dict[str, Any]) -> None:
    codes = torch.tensor(cases.decoder_codes().T[None])
    with torch.inference_mode():
        samples = model.model.speech_tokenizer.model.decoder(codes)
    arrays["decoder_samples"] = samples.numpy()[0, 0]


def _tokens(directory: Path) -> list[dict[str, Any]]:
    """Return texts with their ids; a text on which the two official tokenizers differ is left."""
    transformers = importlib.import_module("transformers")
    slow = transformers.Qwen2Tokenizer.from_pretrained(str(directory))
    fast = transformers.Qwen2TokenizerFast.from_pretrained(str(directory))
    tokens = []
    for text in cases.token_texts():
        ids = fast(text)["input_ids"]
        if ids == slow(text)["input_ids"]:
            tokens.append({"text": text, "ids": ids})
    return tokens


if __name__ == "__main__":
    main()
