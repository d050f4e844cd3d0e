"""Printing an evaluation."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from lingua_flax.evaluation.bleu import Scores
from lingua_flax.evaluation.evaluate import Evaluation, EvaluationSet, sample_indices
from lingua_flax.evaluation.multi30k_protocol import comparability_note
from lingua_flax.host.terminal import print_table

NUM_SAMPLES = 5  # translations to print


def print_evaluation(workdirs: str, data: EvaluationSet, evaluation: Evaluation, **perturbed: Scores) -> None:
    """Prints a table of the scores and a few translations to stdout."""
    scores = evaluation.scores
    table = Table(title=escape(f"{workdirs}: {data.title}"), title_justify="left", show_header=False)
    interval = f"{scores.bleu_low:.2f} to {scores.bleu_high:.2f}"
    lowercase = scores.bleu_signature == scores.bleu_lowercase_signature
    case = ", lower case" if lowercase else ""
    table.add_row(f"BLEU{case}", f"{scores.bleu:.2f}  (95%: {interval})", scores.bleu_signature)
    if not lowercase:
        table.add_row("BLEU, lower case", f"{scores.bleu_lowercase:.2f}", scores.bleu_lowercase_signature)
    table.add_row(f"chrF{case}", f"{scores.chrf:.2f}", scores.chrf_signature)
    if scores.ter is not None:
        table.add_row(f"TER{case}", f"{scores.ter:.2f}", scores.ter_signature)
    further = evaluation.further
    if data.multi30k:
        comparable = comparability_note(further["published_reference_length"], *data.multi30k)
        table.add_row("BLEU, published protocol", f"{further['published_bleu']:.2f}", comparable)
    if "compare_signature" in further:
        shown = "{:.2f}  (paired bootstrap: p = {:.4f})"
        bleu = shown.format(further["baseline_bleu"], further["bleu_p_value"])
        table.add_row("BLEU, baseline", bleu, further["compare_signature"])
        table.add_row("chrF, baseline", shown.format(further["baseline_chrf"], further["chrf_p_value"]), "")
    for name, of_perturbed in perturbed.items():
        values = f"BLEU {of_perturbed.bleu:.2f}, chrF {of_perturbed.chrf:.2f}"
        table.add_row(f"sources {name.replace('_', ' ')}", values, "without regard to case and final punctuation")
    for label, name, of in (
        ("contrast pairs right", "contrast_right", "contrast_pairs"),
        ("flipped by hiding the deciding word", "contrast_flipped", "contrast_masked_pairs"),
        ("flipped by hiding another word", "contrast_flipped_control", "contrast_masked_pairs"),
    ):
        if total := further.get(of):
            table.add_row(label, f"{further[name]} of {total}  ({further[name] / total:.1%})", "")
    speed = f"{scores.sentences / evaluation.seconds:.1f} a second"
    table.add_row("sentences", f"{scores.sentences:,}", f"{evaluation.seconds:.1f} s, {speed}")
    table.add_row("compilation", f"{evaluation.compile_seconds:.1f} s", "")
    table.add_row("checkpoint", f"step {evaluation.checkpoint_step:,}, {evaluation.decoding_summary()}", "")
    print_table(table)
    for i in sample_indices(len(data.sources), NUM_SAMPLES):
        print(f"\nsource       {data.sources[i]}\nreference    {data.references[i]}")
        print(f"translation  {evaluation.translations[i]}")
