"""A sample of the voice for the documentation: sound and spectrogram."""

from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
import soundfile

from script._demo_voice.measuring import Spoken

mpl.use("Agg")

_FFT: Final = 1024
_HIGHEST_HZ: Final = 8000
_PAUSE_S: Final = 0.3


def write_sample(spoken: list[Spoken], sound: Path, picture: Path) -> None:
    """Write the phrases one after the other as Ogg Vorbis, and the first one's spectrogram."""
    from matplotlib import pyplot

    rate_hz = spoken[0].rate_hz
    pause = np.zeros(round(_PAUSE_S * rate_hz), np.float32)
    pieces = [piece for phrase in spoken for piece in (phrase.samples, pause)]
    soundfile.write(sound, np.concatenate(pieces), rate_hz, format="OGG", subtype="VORBIS")
    figure, axes = pyplot.subplots(figsize=(9, 3), layout="constrained")
    axes.specgram(
        spoken[0].samples + 1e-6,
        NFFT=_FFT,
        Fs=rate_hz,
        noverlap=_FFT * 7 // 8,
        vmin=-140,
        cmap="magma",
    )
    axes.set(title=spoken[0].text, xlabel="s", ylabel="Hz", ylim=(0, _HIGHEST_HZ))
    figure.savefig(picture, dpi=90)
