"""The code predictor of our own bundles: a lane with broken numbers is told, the others go on."""

import numpy as np
import pytest

from wyoming_qwen3tts.runtime.speech_model import PredictorSampling


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_lanes_whose_scores_are_not_finite_are_marked(broken, tiny_model):
    model = tiny_model("1.7B-custom_voice")
    hidden = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32)
    sampling = PredictorSampling(
        np.full((3, 15), 0.5, np.float32),
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
