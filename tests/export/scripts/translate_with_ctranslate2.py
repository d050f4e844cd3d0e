"""Translates standard input with the exported model in the current folder, as its README.md shows."""

import sys

import ctranslate2
import sentencepiece

tokenizer = sentencepiece.SentencePieceProcessor(model_file="tokenizer.model")
translator = ctranslate2.Translator(".")
for line in sys.stdin.read().splitlines():
    pieces = [*tokenizer.encode(line, out_type=str), "</s>"]
    (result,) = translator.translate_batch([pieces], beam_size=1, max_decoding_length=31)
    print(tokenizer.decode(result.hypotheses[0]) if line else "")
