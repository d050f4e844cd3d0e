"""Folders with small MarianMT networks of random numbers, as transformers stores them, made without it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from sentencepiece import sentencepiece_model_pb2 as proto

LAYERS, FEED_FORWARD = {"encoder": 2, "decoder": 1}, 24
SOURCE = [*"▁abcdefghij", "▁the", "▁a", "ab", "▁bad", "face", "<x>"]  # the last one no text has by itself
TARGET = [*"▁fghijklmnü", "▁in", "ün", "ling", "▁a", "ß"]
LINES = [
    "the bad face",
    "a",
    "a cab ü bad",
    "üß face the bad jig",
    "dig ab ab fee ß",
    "jjj",
    "kl the",
    "he had a bad age",
]


def spm(pieces: list[str]) -> bytes:
    """Returns a SentencePiece model with the special ids of OPUS-MT, that normalizes nothing but spaces."""
    model = proto.ModelProto()  # type: ignore[attr-defined]
    kind = model.SentencePiece
    for piece, own in (("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)):
        model.pieces.add(piece=piece, score=0.0, type=own)
    for number, piece in enumerate(pieces):
        model.pieces.add(piece=piece, score=-2.0 - 0.1 * number - (len(piece) < 2) * 3.0, type=kind.NORMAL)
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.pad_id = -1
    model.trainer_spec.vocab_size = len(model.pieces)
    model.normalizer_spec.name = "identity"
    return model.SerializeToString()


def tensors(vocab_size: int, width: int, end: float, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random numbers for everything, biases and norms included; padding is zero."""

    def linear(name: str, outputs: int, inputs: int) -> dict[str, np.ndarray]:
        kernel, bias = draw.normal(0, 3.2 / width**0.5, (outputs, inputs)), draw.normal(0, 0.2, outputs)
        return {f"{name}.weight": kernel, f"{name}.bias": bias}

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": draw.normal(1, 0.2, width), f"{name}.bias": draw.normal(0, 0.2, width)}

    embedding, bias = draw.normal(0, 0.5, (vocab_size, width)), draw.normal(0, 0.5, (1, vocab_size))
    embedding[-1] = bias[0, -1] = 0.0
    bias[0, 0] = end  # so that translations do
    found = {"model.shared.weight": embedding, "final_logits_bias": bias}
    for stack, layers in LAYERS.items():
        for layer in (f"model.{stack}.layers.{number}" for number in range(layers)):
            for attention in ("self_attn", "encoder_attn")[: 1 + (stack == "decoder")]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found |= linear(f"{layer}.{attention}.{part}", width, width)
                found |= norm(f"{layer}.{attention}_layer_norm")
            found |= linear(f"{layer}.fc1", FEED_FORWARD, width) | linear(f"{layer}.fc2", width, FEED_FORWARD)
            found |= norm(f"{layer}.final_layer_norm")
    return {name: array.astype(np.float32) for name, array in found.items()}


def write_folder(
    folder: Path, *, seed: int = 0, width: int = 16, end: float = 1.0, tags: tuple[str, ...] = (), **changes: Any
) -> Path:
    """Writes a folder, with some fields of its config.json changed, and returns it."""
    folder.mkdir(parents=True)
    (folder / "source.spm").write_bytes(spm(SOURCE))
    (folder / "target.spm").write_bytes(spm(TARGET))
    names = ["</s>", "<unk>", *sorted({*SOURCE, *TARGET}), *tags, "<pad>"]
    last = len(names) - 1
    config = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": len(names),
        "decoder_vocab_size": len(names),
        "d_model": width,
        **{f"{stack}_layers": layers for stack, layers in LAYERS.items()},
        **{f"{stack}_attention_heads": 2 for stack in LAYERS},
        **{f"{stack}_ffn_dim": FEED_FORWARD for stack in LAYERS},
        "activation_function": "swish",
        "max_position_embeddings": 64,
        "scale_embedding": True,
        "dropout": 0.1,
        "static_position_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        **{"pad_token_id": last, "eos_token_id": 0, "decoder_start_token_id": last, "forced_eos_token_id": 0},
    }
    search = {"num_beams": 4, "bad_words_ids": [[last]], "renormalize_logits": True, "max_length": 64}
    search |= {name: config[name] for name in config if name.endswith("_token_id")}
    files = {"config": config | changes, "generation_config": search}
    files["vocab"] = {name: number for number, name in enumerate(names)}
    files["tokenizer_config"] = {"source_lang": "eng", "target_lang": "deu", "tokenizer_class": "MarianTokenizer"}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save_file(
        tensors(len(names), width, end, np.random.default_rng(seed)),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "README.md").write_text(
        "---\ntags:\n- translation\nlicense: cc-by-4.0\n---\n\n### opus\n", encoding="utf-8"
    )
    return folder
