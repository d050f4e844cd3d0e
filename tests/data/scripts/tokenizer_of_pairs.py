"""Trains a tokenizer on pairs with options, both from standard input as JSON, and writes its model."""

import json
import sys

from lingua_flax.data.tokenizer import train_tokenizer
from lingua_flax.options.schema import TokenizerConfig

pairs, options = json.load(sys.stdin)
(model,) = train_tokenizer(pairs, TokenizerConfig(**options))
sys.stdout.buffer.write(model)
