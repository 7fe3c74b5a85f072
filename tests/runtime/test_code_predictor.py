"""The code predictor of our own bundles: a lane with broken numbers is told, the others go on."""

import numpy as np
import pytest

from tests.conftest import NUM_THREADS
from wyoming_qwen3tts.models.bundles import demo_voice_bundle
from wyoming_qwen3tts.runtime.bundle import open_bundle
from wyoming_qwen3tts.runtime.speech_model import PredictorSampling


@pytest.fixture(params=["new", "shipped"])
def model(request, tiny_model):
    """A new bundle, and the demo voice, whose graphs are of revision 1."""
    if request.param == "new":
        return tiny_model("1.7B-custom_voice")
    return open_bundle(demo_voice_bundle().directory, NUM_THREADS)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_lanes_whose_scores_are_not_finite_are_marked(broken, model):
    facts = model.facts
    hidden = np.random.default_rng(0).standard_normal((3, facts.hidden_size)).astype(np.float32)
    sampling = PredictorSampling(
        np.full((3, facts.num_code_groups - 1), 0.5, np.float32),
        np.full(3, 0.9, np.float32),
        np.full(3, 50, np.int64),
        np.ones(3, np.float32),
    )
    wanted = model.code_predictor.predict(hidden, np.array([1, 2, 3]), sampling)
    assert wanted.min() >= 0
    hidden[1] = broken
    codes = model.code_predictor.predict(hidden, np.array([1, 2, 3]), sampling)
    assert np.array_equal(codes[[0, 2]], wanted[[0, 2]])
    assert np.all(codes[1] == -1)
