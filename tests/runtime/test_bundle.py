"""Bundles of earlier versions still open and run."""

from pathlib import Path

import numpy as np
import pytest

import wyoming_qwen3tts
from wyoming_qwen3tts.errors import BundleError, ChecksumError
from wyoming_qwen3tts.runtime.bundle import SharedDecoders, check_sizes, open_bundle
from wyoming_qwen3tts.runtime.manifest import read_manifest
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling

NUM_THREADS = 2
DEMO_VOICE = Path(wyoming_qwen3tts.__file__).parent / "demo_voice"


def test_the_demo_voice_runs():
    model = open_bundle(DEMO_VOICE, NUM_THREADS)
    prompt = model.embeddings.text(model.tokenizer.encode("Hello world."))
    output = model.talker.prefill(prompt, model.talker.new_cache(1, 1), 0)
    sampling = PredictorSampling(
        np.zeros((1, model.facts.num_code_groups - 1), np.float32),
        *(np.ones(1, dtype) for dtype in (np.float32, np.int64, np.float32)),
    )
    code0 = output.logits[:, :-1].argmax(axis=1)
    groups = model.code_predictor.predict(output.hidden, code0, sampling)
    codes = np.concatenate([code0[:, None], groups], axis=1)
    assert model.embeddings.frames(codes).shape == (1, model.facts.hidden_size)
    samples, _ = model.codec_decoder.decode(codes, model.codec_decoder.initial_state())
    assert samples.shape == (model.facts.samples_per_frame,)
    assert np.isfinite(samples).all()


def test_models_with_the_same_decoder_share_it(tiny_bundle):
    decoders = SharedDecoders()
    one, other = (
        open_bundle(tiny_bundle(name), NUM_THREADS, decoders)
        for name in ("0.6B-custom_voice", "0.6B-custom_voice")
    )
    assert one.codec_decoder is other.codec_decoder
    assert len(decoders) == 1


def test_files_that_are_missing_or_cut_short_are_named(tiny_bundle, tmp_path):
    manifest = read_manifest(tiny_bundle("0.6B-custom_voice"))
    with pytest.raises(BundleError, match="is missing"):
        check_sizes(tmp_path, manifest)
    for file in manifest.files:
        (tmp_path / file.path).write_bytes(b"")
    with pytest.raises(ChecksumError, match=r"has 0 bytes, the manifest states \d+"):
        check_sizes(tmp_path, manifest)
