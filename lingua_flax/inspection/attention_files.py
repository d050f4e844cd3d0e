"""Files that show the attention of a translation, or the position encodings of a network."""

import json
import logging
from pathlib import Path

import numpy as np
from flax import nnx

from lingua_flax.devices.processes import is_first_process
from lingua_flax.host.errors import UserError
from lingua_flax.host.figures import save_figure
from lingua_flax.inspection.attention_figures import attention_figure, positions_figure
from lingua_flax.inspection.attention_maps import attention_maps
from lingua_flax.inspection.interventions import inspection_of
from lingua_flax.page.documents import attention_html
from lingua_flax.translation.hypotheses import Translation
from lingua_flax.translation.translator import Translator

log = logging.getLogger(__name__)


def position_table(translator: Translator) -> np.ndarray:
    """Returns the model's position encodings, [max_length, D]; raises UserError if none are added."""
    table = nnx.merge(translator.graphdef, translator.params).position_table()
    if table is None:
        raise UserError(f"this model's positions are {translator.config.positions}, which are not added to embeddings")
    return np.asarray(table)


def write_attention(translator: Translator, translation: Translation, path: Path) -> None:
    """Writes the weights as JSON, pictures or HTML, depending on the ending, and logs the file and a summary."""
    inspection = inspection_of(translator, translation)
    if not is_first_process():
        return
    maps = attention_maps(inspection, translator.tokenizer)
    match path.suffix.lower():
        case ".json":
            path.write_text(json.dumps(maps.as_json(), ensure_ascii=False) + "\n", encoding="utf-8")
        case ".html":
            path.write_text(attention_html(inspection.as_json(translator.tokenizer)), encoding="utf-8")
        case _:
            save_figure(attention_figure(maps), path)
    log.info("attention: %s", path)
    log.info("what each word looked at, by the mean cross-attention of all layers and heads:")
    for line in maps.table():
        log.info("  %s", line)


def draw_positions(translator: Translator, path: Path) -> None:
    """Draws the position encodings and logs the file."""
    if not is_first_process():
        return
    save_figure(positions_figure(position_table(translator), translator.config.positions), path)
    log.info("position encodings: %s", path)
