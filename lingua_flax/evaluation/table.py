"""Printing an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from lingua_flax.evaluation.evaluate import EvaluationSet, sample_indices
from lingua_flax.evaluation.multi30k_protocol import comparability_note
from lingua_flax.host.terminal import print_table

NUM_SAMPLES = 5  # translations to print


def print_evaluation(
    workdirs: str,
    data: EvaluationSet,
    translations: Sequence[str],
    record: Mapping[str, Any],
    perturbed: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """Prints a table of what `evaluate` returned, and a few translations, to stdout."""
    table = Table(title=escape(f"{workdirs}: {data.title}"), title_justify="left", show_header=False)
    lowercase = record["bleu_signature"] == record["bleu_lowercase_signature"]
    case = ", lower case" if lowercase else ""
    interval = "{bleu:.2f}  (95%: {bleu_low:.2f} to {bleu_high:.2f})".format(**record)
    table.add_row(f"BLEU{case}", interval, record["bleu_signature"])
    for label, name in (("BLEU, lower case", "bleu_lowercase"), (f"chrF{case}", "chrf"), (f"TER{case}", "ter")):
        if name in record and not (lowercase and name == "bleu_lowercase"):
            table.add_row(label, f"{record[name]:.2f}", record[f"{name}_signature"])
    if data.multi30k:
        comparable = comparability_note(record["published_reference_length"], *data.multi30k)
        table.add_row("BLEU, published protocol", f"{record['published_bleu']:.2f}", comparable)
    if "compare_signature" in record:
        shown = "{:.2f}  (paired bootstrap: p = {:.4f})"
        bleu = shown.format(record["baseline_bleu"], record["bleu_p_value"])
        table.add_row("BLEU, baseline", bleu, record["compare_signature"])
        table.add_row("chrF, baseline", shown.format(record["baseline_chrf"], record["chrf_p_value"]), "")
    for name, scores in perturbed.items():
        values = "BLEU {bleu:.2f}, chrF {chrf:.2f}".format(**scores)
        table.add_row(f"sources {name.replace('_', ' ')}", values, "without regard to case and final punctuation")
    for label, name, of in (
        ("contrast pairs right", "contrast_right", "contrast_pairs"),
        ("flipped by hiding the deciding word", "contrast_flipped", "contrast_masked_pairs"),
        ("flipped by hiding another word", "contrast_flipped_control", "contrast_masked_pairs"),
    ):
        if total := record.get(of):
            table.add_row(label, f"{record[name]} of {total}  ({record[name] / total:.1%})", "")
    speed = "{seconds:.1f} s, {sentences_per_second:.1f} a second".format(**record)
    table.add_row("sentences", f"{len(translations):,}", speed)
    table.add_row("compilation", f"{record['compile_seconds']:.1f} s", "")
    names = ("beam_size", "temperature", "top_k", "top_p", "seed")
    decoding = (f"{name.removesuffix('_size')} {record[name]}" for name in names if name in record)
    table.add_row("checkpoint", ", ".join([f"step {record['checkpoint_step']:,}", *decoding]), "")
    print_table(table)
    for i in sample_indices(len(data.sources), NUM_SAMPLES):
        print(f"\nsource       {data.sources[i]}\nreference    {data.references[i]}")
        print(f"translation  {translations[i]}")
