"""Export for transformers: a folder that its AutoModelForSeq2SeqLM and AutoTokenizer load.

Networks with pre-norm become a Pegasus model, those with post-norm a Marian model; they compute the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import save

from lingua_flax.data.tokenizer import TAG_START
from lingua_flax.export.description import NEVER, Export, filled, write_json
from lingua_flax.export.marian_names import BIAS_OF_LOGITS, correspondences, stream_order, their_numbers
from lingua_flax.model.parameters import params_by_name
from lingua_flax.model.positions import sinusoidal_positions
from lingua_flax.options.config_files import read_origin
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
    params, numbers = params_by_name(jax.device_get(translator.params)), our_numbers(export)
    tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in _tensors(config, params, numbers)}
    # Not save_file, whose file only its owner may read.
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    model_type, architecture = ARCHITECTURES[config.norm]
    pad, start = (numbers.index(own if own in numbers else BOS_ID) for own in (PAD_ID, BOS_ID))
    special = {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": numbers.index(EOS_ID)}
    special["decoder_start_token_id"] = start
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
            "vocab_size": len(numbers),
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
    _write_tokenizer(translator, folder, numbers)
    return filled("transformers", tag=f"{tag} ".lstrip(), longest=config.max_length - 1)


def our_numbers(export: Export) -> list[int]:
    """Returns our number of each piece of the export; an imported network gets its own numbers back.

    Its padding, with which it also starts, is our start: only that one is ever read. New pieces are last.
    """
    tokenizer, ids = export.translator.tokenizer, read_origin(export.run).get("ids")
    size = tokenizer.target_vocab_size
    if not tokenizer.shares_ids or not ids or ids["start"] != ids["pad"]:
        return list(range(size))
    theirs = their_numbers(ids)
    by_number = {number: own for own, number in enumerate(theirs) if own != PAD_ID}
    return [by_number[number] for number in range(ids["size"])] + list(range(len(theirs), size))


def _write_tokenizer(translator: Translator, folder: Path, numbers: Sequence[int]) -> None:
    tokenizer = translator.tokenizer
    for name, side in (("source.spm", tokenizer.source), ("target.spm", tokenizer.target)):
        (folder / name).write_bytes(side.serialized_model_proto())
    pieces = tokenizer.source_pieces(range(tokenizer.source_vocab_size))
    names = [
        f">>{piece[2:-1]}<<" if tokenizer.source.is_control(own) and piece.startswith(TAG_START) else piece
        for own, piece in enumerate(pieces)
    ]
    if PAD_ID not in numbers:
        names[BOS_ID] = names[PAD_ID]
    write_json(folder / "vocab.json", {names[own]: number for number, own in enumerate(numbers)})
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": translator.languages[0],
        "target_lang": translator.languages[1],
        "model_max_length": translator.max_length,
        "split_special_tokens": True,  # "</s>" in a text is text
        **{f"{name}_token": pieces[number] for name, number in (("pad", PAD_ID), ("eos", EOS_ID), ("unk", UNK_ID))},
    }
    write_json(folder / "tokenizer_config.json", settings)


def _tensors(
    config: ModelConfig, params: Mapping[str, np.ndarray], numbers: Sequence[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the parameters by their names in transformers, with our `numbers` of its pieces."""
    width, vocab_size = config.embed_dim, len(params["target_embedding"])
    bias = np.array(params.get("output_bias", np.zeros(vocab_size)))[None]
    bias[0, [PAD_ID, BOS_ID, UNK_ID]] = NEVER
    yield BIAS_OF_LOGITS, bias[:, numbers]
    positions = np.array(sinusoidal_positions(max(config.max_length, MIN_POSITIONS), width, config.position_base))
    for stack in ("encoder", "decoder"):
        yield f"model.{stack}.embed_positions.weight", positions[:, stream_order(width)]
    for each in correspondences(config):
        array = each.exported(params[each.ours] if each.ours in params else np.zeros(width))
        yield each.theirs, array[numbers] if each.ours == "target_embedding" else array


def translate(export: Export, folder: Path, lines: Sequence[str], beam_size: int) -> Iterator[tuple[list[int], float]]:
    """Yields what transformers makes of lines; raises ImportError without that package or torch."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    options = {"length_penalty": 0.0, "output_scores": True, "return_dict_in_generate": True}
    numbers = our_numbers(export)
    theirs = {own: number for number, own in enumerate(numbers)}
    for source in export.translator.tokenizer.encode_source(lines):
        longest = min(default_max_length(len(source)), export.translator.max_length) + 1  # with the start token
        result = model.generate(
            torch.tensor([[theirs[own] for own in source]]), num_beams=beam_size, max_length=longest, **options
        )
        if beam_size == 1:
            scores = model.compute_transition_scores(result.sequences, result.scores, normalize_logits=True)
        else:
            scores = result.sequences_scores[0]
        ids = [numbers[number] for number in result.sequences[0, 1:].tolist()]
        yield ids[: ids.index(EOS_ID)], scores.sum().item()
