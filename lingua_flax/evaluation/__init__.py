"""Evaluating translations: BLEU and chrF, contrast pairs, and the protocol of published Multi30k scores."""
