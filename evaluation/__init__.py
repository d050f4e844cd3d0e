"""Scoring translations: BLEU and chrF, test sets, contrast pairs, the published protocol of Multi30k."""
