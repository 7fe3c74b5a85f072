"""Name, shape and kind of values of every tensor of a checkpoint, from its configuration.

Source of the names: QwenLM/Qwen3-TTS modeling_qwen3_tts.py and
modeling_qwen3_tts_tokenizer_v2.py; transformers modeling_mimi.py.
"""

from collections.abc import Iterator
from typing import Any

from tests.support.random_checkpoint.values import TensorSpec, Values
from wyoming_qwen3tts.builder.config import SPEAKER_ENCODER_DEFAULTS

Specs = Iterator[TensorSpec]


def model_tensors(config: dict[str, Any]) -> list[TensorSpec]:
    """Return the tensors of ``model.safetensors`` for a ``config.json``."""
    specs = [*_talker(config["talker_config"]), *_code_predictor(config["talker_config"])]
    if "speaker_encoder_config" in config:
        specs.extend(_speaker_encoder(SPEAKER_ENCODER_DEFAULTS | config["speaker_encoder_config"]))
    return specs


def codec_tensors(config: dict[str, Any]) -> list[TensorSpec]:
    """Return the tensors of ``speech_tokenizer/model.safetensors`` for its ``config.json``."""
    decoder, encoder = config["decoder_config"], config["encoder_config"]
    return [
        *_decoder_transformer(decoder),
        *_decoder_quantizers(decoder),
        *_decoder_upsampler(decoder),
        *_decoder_blocks(decoder),
        *_encoder_convolutions(encoder),
        *_encoder_transformer(encoder),
        *_encoder_quantizers(encoder),
    ]


def _talker(talker: dict[str, Any]) -> Specs:
    width, text_width = talker["hidden_size"], talker["text_hidden_size"]
    yield TensorSpec(
        "talker.model.codec_embedding.weight", (talker["vocab_size"], width), Values.EMBEDDING
    )
    yield TensorSpec(
        "talker.model.text_embedding.weight",
        (talker["text_vocab_size"], text_width),
        Values.TEXT_EMBEDDING,
    )
    yield from _qwen3_layers("talker.model", talker)
    yield from _linear("talker.text_projection.linear_fc1", text_width, text_width)
    yield from _linear("talker.text_projection.linear_fc2", width, text_width)
    yield TensorSpec("talker.codec_head.weight", (talker["vocab_size"], width), Values.HEAD)


def _code_predictor(talker: dict[str, Any]) -> Specs:
    predictor = talker["code_predictor_config"]
    prefix = "talker.code_predictor"
    size, width = predictor["vocab_size"], predictor["hidden_size"]
    for group in range(talker["num_code_groups"] - 1):
        yield TensorSpec(
            f"{prefix}.model.codec_embedding.{group}.weight",
            (size, talker["hidden_size"]),
            Values.EMBEDDING,
        )
        yield TensorSpec(f"{prefix}.lm_head.{group}.weight", (size, width), Values.HEAD)
    yield from _qwen3_layers(f"{prefix}.model", predictor)
    if width != talker["hidden_size"]:
        yield from _linear(f"{prefix}.small_to_mtp_projection", width, talker["hidden_size"])


def _qwen3_layers(prefix: str, config: dict[str, Any]) -> Specs:
    width = config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        name = f"{prefix}.layers.{layer}"
        yield from _attention(f"{name}.self_attn", config)
        for norm in ("q_norm", "k_norm"):
            yield TensorSpec(f"{name}.self_attn.{norm}.weight", (config["head_dim"],), Values.NORM)
        yield from _swiglu(f"{name}.mlp", width, config["intermediate_size"])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield TensorSpec(f"{name}.{norm}.weight", (width,), Values.NORM)
    yield TensorSpec(f"{prefix}.norm.weight", (width,), Values.NORM)


def _speaker_encoder(config: dict[str, Any]) -> Specs:
    channels, kernels = config["enc_channels"], config["enc_kernel_sizes"]
    scale, squeezed = config["enc_res2net_scale"], config["enc_se_channels"]
    attended = config["enc_attention_channels"]
    prefix = "speaker_encoder"
    yield from _conv(f"{prefix}.blocks.0.conv", channels[0], config["mel_dim"], kernels[0])
    for block in range(1, len(channels) - 1):
        name = f"{prefix}.blocks.{block}"
        split = channels[block] // scale
        yield from _conv(f"{name}.tdnn1.conv", channels[block], channels[block - 1], 1)
        for part in range(scale - 1):
            yield from _conv(
                f"{name}.res2net_block.blocks.{part}.conv", split, split, kernels[block]
            )
        yield from _conv(f"{name}.tdnn2.conv", channels[block], channels[block], 1)
        yield from _conv(f"{name}.se_block.conv1", squeezed, channels[block], 1)
        yield from _conv(f"{name}.se_block.conv2", channels[block], squeezed, 1)
    last = channels[-1]
    yield from _conv(f"{prefix}.mfa.conv", last, last, kernels[-1])
    yield from _conv(f"{prefix}.asp.tdnn.conv", attended, 3 * last, 1)
    yield from _conv(f"{prefix}.asp.conv", last, attended, 1)
    yield from _conv(f"{prefix}.fc", config["enc_dim"], 2 * last, 1)


def _decoder_transformer(config: dict[str, Any]) -> Specs:
    width, latent = config["hidden_size"], config["latent_dim"]
    prefix = "decoder.pre_transformer"
    for layer in range(config["num_hidden_layers"]):
        name = f"{prefix}.layers.{layer}"
        yield from _attention(f"{name}.self_attn", config)
        yield from _swiglu(f"{name}.mlp", width, config["intermediate_size"])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield TensorSpec(f"{name}.{norm}.weight", (width,), Values.NORM)
        yield from _layer_scales(name, width)
    yield TensorSpec(f"{prefix}.norm.weight", (width,), Values.NORM)
    yield from _linear(f"{prefix}.input_proj", width, latent)
    yield from _linear(f"{prefix}.output_proj", latent, width)


def _decoder_quantizers(config: dict[str, Any]) -> Specs:
    width, size = config["codebook_dim"], config["codebook_size"]
    for part, count in (("rvq_first", 1), ("rvq_rest", config["num_quantizers"] - 1)):
        prefix = f"decoder.quantizer.{part}"
        # input_proj belongs to the layout, though no decoder ever uses it.
        yield from _conv(f"{prefix}.input_proj", width // 2, width, 1, bias=False)
        yield from _conv(f"{prefix}.output_proj", width, width // 2, 1, bias=False)
        for layer in range(count):
            name = f"{prefix}.vq.layers.{layer}._codebook"
            yield TensorSpec(f"{name}.cluster_usage", (size,), Values.CLUSTER_USAGE)
            yield TensorSpec(f"{name}.embedding_sum", (size, width // 2), Values.CODEBOOK_SUM)


def _decoder_upsampler(config: dict[str, Any]) -> Specs:
    width = config["latent_dim"]
    yield from _conv("decoder.pre_conv.conv", width, config["codebook_dim"], 3)
    for stage, ratio in enumerate(config["upsampling_ratios"]):
        yield from _transposed_conv(f"decoder.upsample.{stage}.0.conv", width, width, ratio)
        name = f"decoder.upsample.{stage}.1"
        yield TensorSpec(f"{name}.gamma", (width,), Values.LAYER_SCALE)
        yield from _conv(f"{name}.dwconv.conv", width, 1, 7)
        yield from _layer_norm(f"{name}.norm", width)
        yield from _linear(f"{name}.pwconv1", 4 * width, width)
        yield from _linear(f"{name}.pwconv2", width, 4 * width)


def _decoder_blocks(config: dict[str, Any]) -> Specs:
    channels = config["decoder_dim"]
    yield from _conv("decoder.decoder.0.conv", channels, config["latent_dim"], 7)
    num_blocks = len(config["upsample_rates"])
    for block, ratio in enumerate(config["upsample_rates"], start=1):
        name = f"decoder.decoder.{block}.block"
        yield from _snake(f"{name}.0", channels)
        yield from _transposed_conv(f"{name}.1.conv", channels, channels // 2, 2 * ratio)
        channels //= 2
        for unit in (2, 3, 4):
            yield from _snake(f"{name}.{unit}.act1", channels)
            yield from _conv(f"{name}.{unit}.conv1.conv", channels, channels, 7)
            yield from _snake(f"{name}.{unit}.act2", channels)
            yield TensorSpec(
                f"{name}.{unit}.conv2.conv.weight", (channels, channels, 1), Values.RESIDUAL
            )
            yield TensorSpec(f"{name}.{unit}.conv2.conv.bias", (channels,), Values.BIAS)
    yield from _snake(f"decoder.decoder.{num_blocks + 1}", channels)
    last = f"decoder.decoder.{num_blocks + 2}.conv"
    yield TensorSpec(f"{last}.weight", (1, channels, 7), Values.OUTPUT)
    yield TensorSpec(f"{last}.bias", (1,), Values.BIAS)


def _encoder_convolutions(config: dict[str, Any]) -> Specs:
    prefix = "encoder.encoder.layers"
    channels, kernel = config["num_filters"], config["residual_kernel_size"]
    yield from _conv(f"{prefix}.0.conv", channels, config["audio_channels"], config["kernel_size"])
    layer = 1
    for ratio in reversed(config["upsampling_ratios"]):
        inner = channels // config["compress"]
        yield from _conv(f"{prefix}.{layer}.block.1.conv", inner, channels, kernel)
        yield from _conv(f"{prefix}.{layer}.block.3.conv", channels, inner, 1)
        yield from _conv(f"{prefix}.{layer + 2}.conv", 2 * channels, channels, 2 * ratio)
        layer, channels = layer + 3, 2 * channels
    last = f"{prefix}.{layer + 1}.conv"
    yield from _conv(last, config["hidden_size"], channels, config["last_kernel_size"])


def _encoder_transformer(config: dict[str, Any]) -> Specs:
    width, intermediate = config["hidden_size"], config["intermediate_size"]
    for layer in range(config["num_hidden_layers"]):
        name = f"encoder.encoder_transformer.layers.{layer}"
        yield from _attention(f"{name}.self_attn", config)
        yield TensorSpec(f"{name}.mlp.fc1.weight", (intermediate, width), Values.LINEAR)
        yield TensorSpec(f"{name}.mlp.fc2.weight", (width, intermediate), Values.LINEAR)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield from _layer_norm(f"{name}.{norm}", width)
        yield from _layer_scales(name, width)
    yield from _conv("encoder.downsample.conv", width, width, 4, bias=False)


def _encoder_quantizers(config: dict[str, Any]) -> Specs:
    inner, size = config["vector_quantization_hidden_dimension"], config["codebook_size"]
    num_semantic = config["num_semantic_quantizers"]
    counts = {"semantic": num_semantic, "acoustic": config["num_quantizers"] - num_semantic}
    for part, count in counts.items():
        prefix = f"encoder.quantizer.{part}_residual_vector_quantizer"
        yield from _conv(f"{prefix}.input_proj", inner, config["hidden_size"], 1, bias=False)
        yield from _conv(f"{prefix}.output_proj", config["hidden_size"], inner, 1, bias=False)
        for layer in range(count):
            name = f"{prefix}.layers.{layer}.codebook"
            yield TensorSpec(f"{name}.initialized", (1,), Values.FLAG)
            yield TensorSpec(f"{name}.cluster_usage", (size,), Values.CLUSTER_USAGE)
            yield TensorSpec(
                f"{name}.embed_sum", (size, config["codebook_dim"]), Values.CODEBOOK_SUM
            )


def _attention(name: str, config: dict[str, Any]) -> Specs:
    width, head_width = config["hidden_size"], config["head_dim"]
    query_width = config["num_attention_heads"] * head_width
    kv_width = config["num_key_value_heads"] * head_width
    yield TensorSpec(f"{name}.q_proj.weight", (query_width, width), Values.LINEAR)
    yield TensorSpec(f"{name}.k_proj.weight", (kv_width, width), Values.LINEAR)
    yield TensorSpec(f"{name}.v_proj.weight", (kv_width, width), Values.LINEAR)
    yield TensorSpec(f"{name}.o_proj.weight", (width, query_width), Values.LINEAR)


def _swiglu(name: str, width: int, intermediate: int) -> Specs:
    yield TensorSpec(f"{name}.gate_proj.weight", (intermediate, width), Values.LINEAR)
    yield TensorSpec(f"{name}.up_proj.weight", (intermediate, width), Values.LINEAR)
    yield TensorSpec(f"{name}.down_proj.weight", (width, intermediate), Values.LINEAR)


def _linear(name: str, out_width: int, in_width: int) -> Specs:
    yield TensorSpec(f"{name}.weight", (out_width, in_width), Values.LINEAR)
    yield TensorSpec(f"{name}.bias", (out_width,), Values.BIAS)


def _conv(
    name: str, out_channels: int, in_channels: int, kernel: int, *, bias: bool = True
) -> Specs:
    yield TensorSpec(f"{name}.weight", (out_channels, in_channels, kernel), Values.LINEAR)
    if bias:
        yield TensorSpec(f"{name}.bias", (out_channels,), Values.BIAS)


def _transposed_conv(name: str, in_channels: int, out_channels: int, kernel: int) -> Specs:
    yield TensorSpec(f"{name}.weight", (in_channels, out_channels, kernel), Values.TRANSPOSED)
    yield TensorSpec(f"{name}.bias", (out_channels,), Values.BIAS)


def _layer_norm(name: str, width: int) -> Specs:
    yield TensorSpec(f"{name}.weight", (width,), Values.NORM)
    yield TensorSpec(f"{name}.bias", (width,), Values.BIAS)


def _layer_scales(name: str, width: int) -> Specs:
    for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
        yield TensorSpec(f"{name}.{scale}.scale", (width,), Values.LAYER_SCALE)


def _snake(name: str, channels: int) -> Specs:
    for parameter in ("alpha", "beta"):
        yield TensorSpec(f"{name}.{parameter}", (channels,), Values.SNAKE)
