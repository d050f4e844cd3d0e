"""Samples a segmentation of each text with each model, both from standard input, and prints them as JSON."""

import json
import pickle
import sys

import numpy as np
from sentencepiece import SentencePieceProcessor

from lingua_flax.data.subword_sampling import SubwordSampler

models, texts = pickle.load(sys.stdin.buffer)
samplers = [SubwordSampler(SentencePieceProcessor(model_proto=model), 0.2) for model in models]
rngs = [np.random.Generator(np.random.Philox([0, number])) for number in range(len(texts))]
print(json.dumps([[sampler.sample(*each) for each in zip(texts, rngs, strict=True)] for sampler in samplers]))
