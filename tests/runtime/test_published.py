"""A bundle of the published layout speaks the codes that our own bundle speaks."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle.language_model import OracleLanguageModel, OracleRequest
from wyoming_qwen3tts.errors import RequestError
from wyoming_qwen3tts.runtime.sampling import SamplingOptions
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling
from wyoming_qwen3tts.synthesis.request import (
    DesignedVoice,
    IclVoice,
    PresetSpeaker,
    SynthesisRequest,
    TextLayout,
    XVectorVoice,
    default_options,
)
from wyoming_qwen3tts.synthesis.synthesizer import Synthesizer

TEXTS = ("Hello world, turn on the light", "It's ten o'clock; 23 degrees 中文。")
MAX_FRAMES = 10
CUSTOM, WIDE_CUSTOM, DESIGN, BASE = (
    "0.6B-custom_voice",
    "1.7B-custom_voice",
    "1.7B-voice_design",
    "0.6B-base",
)
X_VECTOR = np.random.default_rng(3).standard_normal(64).astype(np.float32)
# Checkpoint, voice, what the oracle is told of it.
CASES = {
    "0.6B preset": (CUSTOM, PresetSpeaker("Ryan"), {"speaker": "ryan"}),
    "1.7B preset": (WIDE_CUSTOM, PresetSpeaker("eric"), {"speaker": "eric"}),
    "1.7B design": (DESIGN, DesignedVoice("a warm voice"), {"instruction": "a warm voice"}),
    "0.6B x-vector": (BASE, XVectorVoice(X_VECTOR), {"x_vector": X_VECTOR}),
}


def options_for(model, *, greedy, **wishes):
    options = default_options(model.facts.generation, seed=wishes.pop("seed", 0))
    return replace(options.greedy() if greedy else options, max_frames=MAX_FRAMES, **wishes)


def speak(model, text, voice, *, greedy=True, **wishes):
    """Return the speech of a text after its end."""
    options = options_for(model, greedy=greedy, **wishes)
    synthesizer = Synthesizer(model)
    speech = synthesizer.submit(SynthesisRequest(text, voice, options))
    for _ in synthesizer.follow(speech):
        pass
    return speech


@pytest.mark.parametrize("layout", list(TextLayout))
@pytest.mark.parametrize("case", CASES)
def test_greedy_codes_equal_the_oracles(case, layout, published_model, tiny_checkpoint):
    name, voice, told = CASES[case]
    model, oracle = published_model(name), OracleLanguageModel(tiny_checkpoint(name))
    for text, language in zip(TEXTS, ("english", "auto"), strict=True):
        codes = speak(model, text, voice, language=language, layout=layout).codes
        request = OracleRequest(
            text, language=language, whole_text_first=layout is TextLayout.NON_STREAMING, **told
        )
        wanted = oracle.greedy_codes(request, max_new_tokens=MAX_FRAMES + 1)
        assert np.array_equal(codes, wanted), text


@pytest.mark.parametrize("case", CASES)
def test_sampled_codes_equal_our_own_bundles(case, published_model, tiny_model):
    name, voice, _ = CASES[case]
    for seed in range(2):
        got, wanted = (
            speak(model(name), TEXTS[0], voice, greedy=False, seed=seed).codes
            for model in (published_model, tiny_model)
        )
        assert np.array_equal(got, wanted), seed


def test_codes_do_not_depend_on_the_other_lanes(published_model):
    model = published_model(WIDE_CUSTOM)
    voices = [PresetSpeaker(name) for name in ("ryan", "dylan", "serena")]
    alone = [speak(model, TEXTS[0], voice, greedy=False, seed=5).codes for voice in voices]
    synthesizer = Synthesizer(model, max_lanes=len(voices))
    options = options_for(model, greedy=False, seed=5)
    speeches = [synthesizer.submit(SynthesisRequest(TEXTS[0], voice, options)) for voice in voices]
    while not synthesizer.is_blocked:
        synthesizer.step()
    for speech, wanted in zip(speeches, alone, strict=True):
        assert np.array_equal(speech.codes, wanted)


def test_icl_codes_and_audio_follow_the_reference(published_model, tiny_model):
    rng = np.random.default_rng(1)
    reference = rng.integers(0, 64, (30, 16))
    voice = IclVoice(X_VECTOR, "this is a test", reference)
    got, wanted = (speak(model(BASE), TEXTS[0], voice) for model in (published_model, tiny_model))
    assert np.array_equal(got.codes, wanted.codes)
    decoder = published_model(BASE).codec_decoder
    whole, _ = decoder.decode(np.concatenate([reference, got.codes]), decoder.initial_state())
    assert got.timing.audio_s == pytest.approx((len(whole) - 30 * 1920) / 24_000)


@pytest.mark.parametrize("variant", ["cpu_int8", "cpu_int4", "cpu_fp16"])
def test_variants_speak(variant, published_model):
    model = published_model(WIDE_CUSTOM, variant)
    speech = speak(model, TEXTS[0], PresetSpeaker("ryan"))
    assert speech.error is None
    assert len(speech.codes) >= 2


@pytest.mark.parametrize(
    ("variant", "least"), [("cpu_int8", 0.999), ("cpu_int4", 0.9), ("cpu_fp16", 0.9999)]
)
def test_variants_score_alike(variant, least, published_model):
    full, other = published_model(WIDE_CUSTOM), published_model(WIDE_CUSTOM, variant)
    rng = np.random.default_rng(0)
    embeddings = full.embeddings.text(rng.integers(0, 480, 12))
    talker = [
        model.talker.prefill(embeddings, model.talker.new_cache(1, 1), 0).logits
        for model in (full, other)
    ]
    hidden = rng.standard_normal((2, 96)).astype(np.float32)
    codes = rng.integers(0, 64, (2, 16))
    predictor = [
        model.code_predictor._graph.run(talker_hidden=hidden, codec_ids=codes)[0]
        for model in (full, other)
    ]
    for wanted, got in (talker, predictor):
        assert cosine(got, wanted) > least


def cosine(a, b):
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return a @ b / np.sqrt((a @ a) * (b @ b))


def test_cache_has_the_type_that_the_graph_takes(published_model):
    half = published_model(WIDE_CUSTOM, "cpu_fp16").talker
    assert half.new_cache(1, 1).blocks[0].dtype == np.float16
    assert published_model(WIDE_CUSTOM).talker.new_cache(1, 1).blocks[0].dtype == np.float32


def test_prefill_in_pieces_equals_one(published_model):
    talker = published_model(CUSTOM).talker
    embeddings = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    cache = talker.new_cache(2, 1)
    whole = talker.prefill(embeddings, cache, 0)
    talker.prefill(embeddings[:4], cache, 1)
    pieces = talker.prefill(embeddings[4:], cache, 1)
    np.testing.assert_allclose(pieces.hidden, whole.hidden, atol=1e-5)
    np.testing.assert_allclose(pieces.logits, whole.logits, atol=1e-4)
    cache.rewind(1, 8)
    again = talker.step(embeddings[[8, 8]], cache, [False, True])
    np.testing.assert_allclose(again.hidden[1], whole.hidden[0], atol=1e-5)
    assert cache.lengths.tolist() == [9, 9]


def test_cache_grows_and_refuses_too_many_positions(published_model):
    talker = published_model(CUSTOM).talker
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((300, 64)).astype(np.float32)
    cache = talker.new_cache(1, 1)
    talker.prefill(embeddings[:250], cache, 0)
    grown = talker.prefill(embeddings[250:], cache, 0)
    fresh = talker.prefill(embeddings, talker.new_cache(1, 300), 0)
    np.testing.assert_allclose(grown.hidden, fresh.hidden, atol=1e-4)
    limit = published_model(CUSTOM).facts.max_positions
    with pytest.raises(RequestError, match="positions"):
        talker.prefill(np.zeros((limit, 64), np.float32), cache, 0)


def draws(uniforms, options=None):
    options = options or SamplingOptions()
    lanes = len(uniforms)
    return PredictorSampling(
        np.asarray(uniforms, np.float32),
        np.full(lanes, options.temperature, np.float32),
        np.full(lanes, options.top_k, np.int64),
        np.full(lanes, options.top_p, np.float32),
    )


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(),
        SamplingOptions(temperature=2.0, top_k=0),
        SamplingOptions(top_k=5, top_p=0.7),
        SamplingOptions(top_k=1),
    ],
)
@pytest.mark.parametrize("name", [CUSTOM, WIDE_CUSTOM])
def test_predictor_draws_as_our_own_graph(name, options, published_model, tiny_model):
    rng = np.random.default_rng(0)
    own = tiny_model(name)
    hidden = rng.standard_normal((6, own.facts.hidden_size)).astype(np.float32)
    code0 = rng.integers(0, own.facts.codebook_size, 6)
    sampling = draws(rng.random((6, 15)), options)
    wanted = own.code_predictor.predict(hidden, code0, sampling)
    got = published_model(name).code_predictor.predict(hidden, code0, sampling)
    assert np.array_equal(got, wanted)


def test_predictor_marks_lanes_whose_scores_are_not_finite(published_model):
    predictor = published_model(CUSTOM).code_predictor
    hidden = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    wanted = predictor.predict(hidden, np.array([1, 2, 3]), draws(np.full((3, 15), 0.5)))
    hidden[1] = np.nan
    codes = predictor.predict(hidden, np.array([1, 2, 3]), draws(np.full((3, 15), 0.5)))
    assert np.array_equal(codes[[0, 2]], wanted[[0, 2]])
    assert np.all(codes[1] == -1)


def test_embeddings_equal_our_own_tables(published_model, tiny_model):
    got, own = published_model(WIDE_CUSTOM).embeddings, tiny_model(WIDE_CUSTOM).embeddings
    ids = [0, 5, 300, 479]
    np.testing.assert_allclose(got.text(ids), own.text(ids), atol=1e-5)
    np.testing.assert_array_equal(got.codec(ids), own.codec(ids))
    codes = np.random.default_rng(0).integers(0, 64, (7, 16))
    np.testing.assert_allclose(got.frames(codes), own.frames(codes), atol=1e-5)
