"""The stages of making the demo voice; each resumes where it was stopped."""

import argparse
import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from script._demo_voice.export import export
from script._demo_voice.language_training import predict_shards, train_language
from script._demo_voice.quantizer import FeatureExtractor, Quantizer, train_quantizer
from script._demo_voice.recipe import RECIPE, read_recipe
from script._demo_voice.speech import (
    SAMPLE_RATE_HZ,
    VALIDATION,
    Shard,
    SourceVoice,
    make_speech,
    padded,
    training_shards,
)
from script._demo_voice.texts import all_test_phrases, spoken
from script._demo_voice.training import decode, train_codec
from tests.support.listening import (
    Listener,
    Measurement,
    Spoken,
    measure,
    speak_all,
    write_sample,
)
from wyoming_qwen3tts.builder.build import BuildOptions, build_bundle
from wyoming_qwen3tts.builder.recipe import load_recipe

ROOT: Final = Path(__file__).resolve().parents[2]
SHIPPED: Final = ROOT / "wyoming_qwen3tts" / "demo_voice"
_HERE: Final = Path(__file__).parent
_WORST_SHIPPED: Final = 0.20
_NUM_SAMPLES: Final = 6


class Pipeline:
    """The recipe, and the directory that holds everything; every method is a stage."""

    def __init__(self, recipe: Any, directory: Path) -> None:
        self._recipe, self._directory = recipe, directory

    def speech(self) -> None:
        """Let the source voice speak the training texts."""
        make_speech(self._directory / "speech", self._recipe.speech, self._recipe.seed)

    def source(self) -> None:
        """Measure the source voice."""
        voice = SourceVoice(self._recipe.speech.voice)
        said = [
            Spoken(text, voice.speak(spoken(text)), SAMPLE_RATE_HZ) for text in all_test_phrases()
        ]
        self._report("source", measure(said, Listener()))

    def codes(self) -> None:
        """Train the quantizer on the first shards, and turn all speech into codes."""
        torch.manual_seed(self._recipe.seed)
        speech, codes = self._directory / "speech", self._directory / "codes"
        shards = [*training_shards(speech)]
        path, extractor = self._directory / "quantizer.pt", FeatureExtractor()
        codec = self._recipe.codec
        if not path.exists():
            first = [extractor.shard(shard) for shard in shards[: codec.encoder_shards]]
            torch.save(train_quantizer(codec, torch.cat(first).half()).state_dict(), path)
        quantizer = Quantizer.load(codec, path)
        codes.mkdir(exist_ok=True)
        for shard in [Shard.open(speech / f"{VALIDATION}.npy"), *shards]:
            if not (output := codes / shard.path.name).exists():
                np.save(output, quantizer.encode(extractor.shard(shard)).to(torch.int16).numpy())

    def language(self) -> None:
        """Train talker and code predictor."""
        train_language(self._recipe, self._directory)

    def predict(self) -> None:
        """Write the code predictor's codes, for the codec to train on."""
        torch.manual_seed(self._recipe.seed)
        predict_shards(self._recipe, self._directory)

    def codec(self) -> None:
        """Train the codec's decoder."""
        train_codec(self._recipe, self._directory)

    def resynthesis(self) -> None:
        """Measure the codec alone: the source voice through codes and back."""
        recipe = self._recipe
        voice, extractor = SourceVoice(recipe.speech.voice), FeatureExtractor()
        quantizer = Quantizer.load(recipe.codec, self._directory / "quantizer.pt")
        said = []
        for text in all_test_phrases():
            samples = padded(voice.speak(spoken(text)), recipe.speech.lead_frames)
            made = decode(recipe, self._directory, quantizer.encode(extractor(samples)))
            said.append(Spoken(text, made.numpy(), SAMPLE_RATE_HZ))
        self._report("resynthesis", measure(said, Listener()))

    def bundle(self) -> None:
        """Export the checkpoint and build the bundle."""
        checkpoint = self._directory / "checkpoint"
        export(self._recipe, self._directory, checkpoint)
        recipe = load_recipe(_HERE / "demo_int8.yaml")
        options = BuildOptions(recipe=recipe, name="embedded-demo", force=True)
        build_bundle(checkpoint, self._directory / "bundle", options)

    def measure(self) -> None:
        """Measure the bundle through the server, whole texts and word by word."""
        listener, texts = Listener(), all_test_phrases()
        arguments = ["--model", str(self._directory / "bundle"), "--threads", "1"]
        self._report("whole", measure(asyncio.run(speak_all(texts, arguments)), listener))
        arguments += ["--text-mode", "continuous"]
        said = asyncio.run(speak_all(texts, arguments, in_pieces=True))
        self._report("continuous", measure(said, listener))

    def sample(self) -> None:
        """Write the sample in the documentation."""
        texts = all_test_phrases()
        chosen = texts[:: len(texts) // _NUM_SAMPLES][:_NUM_SAMPLES]
        arguments = ["--model", str(self._directory / "bundle")]
        said = asyncio.run(speak_all(sorted(chosen, key=len, reverse=True), arguments))
        write_sample(said, ROOT / "docs" / "demo-voice.ogg", ROOT / "docs" / "demo-voice.png")

    def ship(self) -> None:
        """Copy the bundle into the package.

        Raises:
            ValueError: Its word error rate is too high.
        """
        for name in ("whole", "continuous"):
            path = self._directory / f"measured-{name}.json"
            rate = json.loads(path.read_text(encoding="utf-8"))["word_error_rate"]
            if rate > _WORST_SHIPPED:
                raise ValueError(f"{path}: word error rate {rate:.1%}, above {_WORST_SHIPPED:.0%}")
        shutil.copytree(self._directory / "bundle", SHIPPED, dirs_exist_ok=True)
        shutil.copy(_HERE / "NOTICE.txt", SHIPPED)

    def _report(self, name: str, result: Measurement) -> None:
        result.write(self._directory / f"measured-{name}.json")
        for phrase in result.phrases:
            if phrase.num_errors:
                print(f"  {phrase.num_errors}/{phrase.num_words} {phrase.text} | {phrase.heard}")
        print(f"{name}: {replace(result, phrases=())}", flush=True)


STAGES: Final[dict[str, Callable[[Pipeline], None]]] = {
    name: stage for name, stage in vars(Pipeline).items() if not name.startswith("_")
}


def main() -> None:
    """Run the named stages, or all of them in order."""
    parser = argparse.ArgumentParser(prog="script/demo_voice", description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--directory", type=Path, default=ROOT / "data" / "demo_voice")
    parser.add_argument("--threads", type=int, default=1, help="of every training")
    arguments = parser.parse_args()
    if unknown := set(arguments.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}")
    torch.set_num_threads(arguments.threads)
    pipeline = Pipeline(read_recipe(arguments.recipe), arguments.directory)
    for name in arguments.stages or STAGES:
        print(f"== {name}", flush=True)
        STAGES[name](pipeline)


if __name__ == "__main__":
    main()
