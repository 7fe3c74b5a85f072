"""The stages of making the demo voice; each goes on where it was stopped."""

import argparse
import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from script._demo_voice.codec_training import load_decoder, load_quantizer, train_codec
from script._demo_voice.dataset import (
    VALIDATION,
    Shard,
    make_speech,
    padded,
    training_shards,
)
from script._demo_voice.export import export
from script._demo_voice.features import FeatureExtractor
from script._demo_voice.hearing import Listener
from script._demo_voice.language_training import train_language
from script._demo_voice.measuring import Measurement, Spoken, measure, speak_all
from script._demo_voice.phrases import read_test_phrases, spoken
from script._demo_voice.prediction import predict_shards
from script._demo_voice.quantizer import encode_shards, features_of, train_quantizer
from script._demo_voice.recipe import RECIPE, Recipe, read_recipe
from script._demo_voice.sample import write_sample
from script._demo_voice.source_voice import SAMPLE_RATE_HZ, SourceVoice
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import load_recipe

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DATA: Final = ROOT / "data" / "demo_voice"
BUNDLE_RECIPE: Final = Path(__file__).with_name("demo_int8.yaml")
BUNDLE_NAME: Final = "embedded-demo"
SHIPPED: Final = ROOT / "wyoming_qwen3tts" / "demo_voice"
NOTICE: Final = Path(__file__).with_name("NOTICE.txt")
_NUM_SAMPLES: Final = 6
_WORST_SHIPPED: Final = 0.20


@dataclass(frozen=True)
class Workplace:
    """The recipe, and where everything is kept."""

    recipe: Recipe
    directory: Path

    def speech(self) -> None:
        """Have the source voice speak the training texts."""
        make_speech(self.directory / "speech", self.recipe.speech, self.recipe.seed)

    def codes(self) -> None:
        """Train the quantizer on the first shards, and turn all speech into codes."""
        torch.manual_seed(self.recipe.seed)
        shards = [*training_shards(self.directory / "speech")]
        path = self.directory / "quantizer.pt"
        if not path.exists():
            extractor = FeatureExtractor()
            first = shards[: self.recipe.codec.encoder_shards]
            features = torch.cat([features_of(shard, extractor) for shard in first]).half()
            quantizer, lines = train_quantizer(self.recipe.codec, features)
            path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            torch.save(quantizer.state_dict(), path)
        codes = self.directory / "codes"
        codes.mkdir(exist_ok=True)
        unseen = Shard.open(self.directory / "speech" / f"{VALIDATION}.npy")
        encode_shards(load_quantizer(self.recipe, self.directory), [unseen, *shards], codes)

    def codec(self) -> None:
        """Train the codec's decoder."""
        train_codec(self.recipe, self.directory)

    def language(self) -> None:
        """Train talker and code predictor."""
        train_language(self.recipe, self.directory)

    def predict(self) -> None:
        """Write down the code predictor's guesses, for the codec to go on with."""
        torch.manual_seed(self.recipe.seed)
        predict_shards(self.recipe, self.directory, self.recipe.codec.predicted_shards)

    def bundle(self) -> None:
        """Export the checkpoint, and build the bundle."""
        checkpoint = self.directory / "checkpoint"
        export(self.recipe, self.directory, checkpoint)
        options = BuildOptions(recipe=load_recipe(BUNDLE_RECIPE), name=BUNDLE_NAME, force=True)
        build_bundle(checkpoint, self.directory / "bundle", options)

    def source(self) -> None:
        """Measure the source voice: nothing can be learnt that it does not say clearly."""
        voice = SourceVoice(self.recipe.speech.voice)
        texts = read_test_phrases().all
        said = [Spoken(text, voice.speak(spoken(text)), SAMPLE_RATE_HZ, 0.0, 0.0) for text in texts]
        self._report("source", measure(said, Listener()))

    def resynthesis(self) -> None:
        """Measure the codec alone: the source voice through codes and back."""
        voice = SourceVoice(self.recipe.speech.voice)
        quantizer, extractor = load_quantizer(self.recipe, self.directory), FeatureExtractor()
        decoder = load_decoder(self.recipe, self.directory)
        said = []
        for text in read_test_phrases().all:
            samples = padded(voice.speak(spoken(text)), self.recipe.speech.lead_frames)
            features = extractor(torch.from_numpy(samples.astype(np.float32) / 32768))
            with torch.no_grad():
                made = decoder(quantizer.encode(features).T[None])[0].numpy()
            said.append(Spoken(text, made, SAMPLE_RATE_HZ, 0.0, 0.0))
        self._report("resynthesis", measure(said, Listener()))

    def measure(self) -> None:
        """Measure the bundle through the whole product, text at once and piece by piece."""
        texts = read_test_phrases().all
        arguments = ["--model", str(self.directory / "bundle"), "--threads", "1"]
        listener = Listener()
        whole = asyncio.run(speak_all(texts, arguments))
        self._report("whole", measure(whole, listener))
        arguments += ["--text-mode", "tokens"]
        pieces = asyncio.run(speak_all(texts, arguments, in_pieces=True))
        self._report("tokens", measure(pieces, listener))

    def sample(self) -> None:
        """Write the sample that the documentation has."""
        arguments = ["--model", str(self.directory / "bundle")]
        texts = read_test_phrases().all[:: len(read_test_phrases().all) // _NUM_SAMPLES]
        longest_first = sorted(texts[:_NUM_SAMPLES], key=len, reverse=True)
        said = asyncio.run(speak_all(longest_first, arguments))
        write_sample(said, ROOT / "docs" / "demo-voice.ogg", ROOT / "docs" / "demo-voice.png")

    def ship(self) -> None:
        """Put the bundle into the package, if it deserves to be called a voice.

        Raises:
            ValueError: It was measured to be worse than what is shipped.
        """
        for name in ("whole", "tokens"):
            path = self.directory / f"measured-{name}.json"
            rate = json.loads(path.read_text(encoding="utf-8"))["word_error_rate"]
            if rate > _WORST_SHIPPED:
                raise ValueError(f"{path}: word error rate {rate:.1%}, above {_WORST_SHIPPED:.0%}")
        SHIPPED.mkdir(exist_ok=True)
        for file in (self.directory / "bundle").iterdir():
            shutil.copy(file, SHIPPED)
        shutil.copy(NOTICE, SHIPPED)

    def _report(self, name: str, result: Measurement) -> None:
        result.write(self.directory / f"measured-{name}.json")
        for phrase in result.phrases:
            if phrase.num_errors:
                print(f"  {phrase.num_errors}/{phrase.num_words} {phrase.text} | {phrase.heard}")
        shown = json.dumps({**vars(replace(result, phrases=())), "phrases": len(result.phrases)})
        print(f"{name}: {shown}", flush=True)


STAGES: Final[dict[str, Callable[[Workplace], None]]] = {
    "speech": Workplace.speech,
    "source": Workplace.source,
    "codes": Workplace.codes,
    "language": Workplace.language,
    "predict": Workplace.predict,
    "codec": Workplace.codec,
    "resynthesis": Workplace.resynthesis,
    "bundle": Workplace.bundle,
    "measure": Workplace.measure,
    "sample": Workplace.sample,
    "ship": Workplace.ship,
}


def main() -> None:
    """Run the stages that are named, or all of them in order."""
    parser = argparse.ArgumentParser(prog="script/demo_voice", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="what the voice becomes")
    parser.add_argument("--directory", type=Path, default=DATA, help="where everything is kept")
    parser.add_argument("--threads", type=int, default=1, help="of every training")
    arguments = parser.parse_args()
    if unknown := set(arguments.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}")
    torch.set_num_threads(arguments.threads)
    workplace = Workplace(read_recipe(arguments.recipe), arguments.directory)
    for name in arguments.stages or STAGES:
        print(f"== {name}", flush=True)
        STAGES[name](workplace)
