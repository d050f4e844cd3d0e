"""Export for transformers: a folder that its AutoModelForSeq2SeqLM and AutoTokenizer load.

Networks with pre-norm become a Pegasus model, those with post-norm a Marian model; they compute the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save

from lingua_flax.export.description import NEVER, Export, filled, write_json
from lingua_flax.export.marian_names import BIAS_OF_LOGITS, correspondences, stream_order
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.options.schema import ModelConfig
from lingua_flax.options.special_ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from lingua_flax.translation.decoding import default_max_length
from lingua_flax.translation.translator import Translator

ARCHITECTURES = {"pre": ("pegasus", "PegasusForConditionalGeneration"), "post": ("marian", "MarianMTModel")}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_new", "silu": "swish"}  # ours as transformers calls them
MIN_POSITIONS = 512


def write(export: Export, folder: Path) -> str:
    """Writes model and tokenizer, and returns their use."""
    translator = export.translator
    config, tokenizer = translator.config, translator.tokenizer
    params = params_by_name(jax.device_get(translator.params))
    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in _tensors(config, params)}
    # Not save_file, whose file only its owner may read.
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    model_type, architecture = ARCHITECTURES[config.norm]
    special = {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": BOS_ID}
    sizes = {
        f"{stack}_{name}": value
        for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
        for name, value in (("layers", layers), ("attention_heads", config.num_heads), ("ffn_dim", config.mlp_dim))
    }
    write_json(
        folder / "config.json",
        {
            "model_type": model_type,
            "architectures": [architecture],
            "vocab_size": tokenizer.target_vocab_size,
            "d_model": config.embed_dim,
            **sizes,
            "activation_function": ACTIVATIONS[config.activation],
            "dropout": config.dropout_rate,
            "attention_dropout": 0.0,
            "activation_dropout": config.dropout_rate,
            "max_position_embeddings": max(config.max_length, MIN_POSITIONS),
            "scale_embedding": True,
            "tie_word_embeddings": True,
            **special,
            "forced_eos_token_id": None,
            "dtype": "float32",
        },
    )
    how = translator.decoding  # Wu's penalty is not that of transformers
    penalty = {"length_penalty": how.length_penalty} if how.length_penalty_form == "length" else {}
    write_json(
        folder / "generation_config.json",
        {**special, "num_beams": how.beam_size, "max_length": config.max_length, **penalty},
    )
    tag = f">>{translator.languages[1]}<<" if tokenizer.source_tags else ""  # as MarianTokenizer takes it before a text
    _write_tokenizer(translator, folder, tag)
    return filled("transformers", tag=f"{tag} ".lstrip(), longest=config.max_length - 1)


def _write_tokenizer(translator: Translator, folder: Path, tag: str) -> None:
    tokenizer = translator.tokenizer
    for name, side in (("source.spm", tokenizer.source), ("target.spm", tokenizer.target)):
        (folder / name).write_bytes(side.serialized_model_proto())
    pieces = tokenizer.target_pieces(range(tokenizer.target_vocab_size))
    names = [tag if number in tokenizer.source_tags else piece for number, piece in enumerate(pieces)]
    write_json(folder / "vocab.json", {name: number for number, name in enumerate(names)})
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": translator.languages[0],
        "target_lang": translator.languages[1],
        "model_max_length": translator.max_length,
        "split_special_tokens": True,  # "</s>" in a text is text
        **{f"{name}_token": pieces[number] for name, number in (("pad", PAD_ID), ("eos", EOS_ID), ("unk", UNK_ID))},
    }
    write_json(folder / "tokenizer_config.json", settings)


def _tensors(config: ModelConfig, params: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the parameters by their names in transformers."""
    width, vocab_size = config.embed_dim, len(params["target_embedding"])
    bias = np.array(params.get("output_bias", np.zeros(vocab_size)))[None]
    bias[0, [PAD_ID, BOS_ID, UNK_ID]] = NEVER
    yield BIAS_OF_LOGITS, bias
    positions = np.array(sinusoidal_positions(max(config.max_length, MIN_POSITIONS), width, config.position_base))
    for stack in ("encoder", "decoder"):
        yield f"model.{stack}.embed_positions.weight", positions[:, stream_order(width)]
    for each in correspondences(config):
        yield each.theirs, each.exported(params[each.ours] if each.ours in params else np.zeros(width))


def translate(export: Export, folder: Path, lines: Sequence[str], beam_size: int) -> Iterator[tuple[list[int], float]]:
    """Yields what transformers makes of lines; raises ImportError without that package or torch."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    options = {"length_penalty": 0.0, "output_scores": True, "return_dict_in_generate": True}
    for source in export.translator.tokenizer.encode_source(lines):
        longest = min(default_max_length(len(source)), export.translator.max_length) + 1  # with the start token
        result = model.generate(torch.tensor([source]), num_beams=beam_size, max_length=longest, **options)
        if beam_size == 1:
            scores = model.compute_transition_scores(result.sequences, result.scores, normalize_logits=True)
        else:
            scores = result.sequences_scores[0]
        ids = result.sequences[0, 1:].tolist()
        yield ids[: ids.index(EOS_ID)], scores.sum().item()
