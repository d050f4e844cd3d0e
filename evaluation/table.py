"""An evaluation shown to people."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from evaluation.evaluate import Evaluation, EvaluationSet, sample_indices
from evaluation.published_protocol import comparability
from host.terminal import print_table

SAMPLES = 5


def show_evaluation(workdirs: str, data: EvaluationSet, found: Evaluation) -> None:
    """Prints scores and a few translations on stdout."""
    scores = found.scores
    table = Table(title=escape(f"{workdirs}: {data.title}"), title_justify="left", show_header=False)
    interval = f"{scores.bleu_low:.2f} to {scores.bleu_high:.2f}"
    lowercase = scores.bleu_signature == scores.bleu_lowercase_signature
    case = ", lower case" if lowercase else ""
    table.add_row(f"BLEU{case}", f"{scores.bleu:.2f}  (95%: {interval})", scores.bleu_signature)
    if not lowercase:
        table.add_row("BLEU, lower case", f"{scores.bleu_lowercase:.2f}", scores.bleu_lowercase_signature)
    table.add_row(f"chrF{case}", f"{scores.chrf:.2f}", scores.chrf_signature)
    if found.published and data.multi30k:
        comparable = comparability(found.published.published_reference_length, *data.multi30k)
        table.add_row("BLEU, published protocol", f"{found.published.published_bleu:.2f}", comparable)
    if found.comparison:
        compared = found.comparison
        for name, bleu, p_value in (
            ("BLEU", compared.baseline_bleu, compared.bleu_p_value),
            ("chrF", compared.baseline_chrf, compared.chrf_p_value),
        ):
            signature = compared.compare_signature if name == "BLEU" else ""
            table.add_row(f"{name} of the other", f"{bleu:.2f}  (difference by chance: p = {p_value:.4f})", signature)
    if found.contrast_pairs:
        share = found.contrast_right / found.contrast_pairs if found.contrast_right else 0.0
        table.add_row("contrast pairs right", f"{found.contrast_right} of {found.contrast_pairs}  ({share:.1%})", "")
    if found.flips and found.flips.pairs:
        for hidden, flipped in (
            ("the deciding word", found.flips.flipped),
            ("another word", found.flips.flipped_control),
        ):
            rate = f"{flipped} of {found.flips.pairs}  ({flipped / found.flips.pairs:.1%})"
            table.add_row(f"flipped by hiding {hidden}", rate, "")
    pace = f"{scores.sentences / found.seconds:.1f} a second"
    table.add_row("sentences", f"{scores.sentences:,}", f"{found.seconds:.1f} s, {pace}")
    table.add_row("compilation", f"{found.compile_seconds:.1f} s", "")
    table.add_row("checkpoint", f"step {found.checkpoint_step:,}, {found.decoding_shown()}", "")
    print_table(table)
    for i in sample_indices(len(data.sources), SAMPLES):
        print(f"\nsource       {data.sources[i]}\nreference    {data.references[i]}")
        print(f"translation  {found.translations[i]}")
