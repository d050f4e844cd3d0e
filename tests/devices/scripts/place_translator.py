"""Loads the run in a workdir onto default devices and onto a CPU; prints translations."""

import sys

import jax

from lingua_flax.options.schema import ComputeConfig
from lingua_flax.translation.translator import Translator

all_devices = jax.devices
default, cpu = all_devices()
jax.devices = lambda backend=None: all_devices(backend)[1:] if backend else [default]
for devices, expected in [(None, default), (ComputeConfig(platform="cpu"), cpu)]:
    translator = Translator.load(sys.argv[1], devices=devices, ensemble=[sys.argv[1]])
    leaves = [leaf for each in (translator, *translator.others) for leaf in jax.tree.leaves(each.params)]
    places = {place for leaf in leaves for place in leaf.devices()}
    assert places == set(translator.mesh.devices.flat) == {expected}, places
    print(translator.translate(["one two."], beam_size=1)[0].text)
