"""A program of the user's, beside packages data and model of their own: translates with the run in the folder w."""

import importlib

import lingua_flax
from lingua_flax import Translator

for name in ("data", "model"):
    assert importlib.import_module(name).mine
print(lingua_flax.__file__)
(translation,) = Translator.load("w").translate(["I swam across the river."], beam_size=1)
print(translation.text)
