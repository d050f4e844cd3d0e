"""Prints for each of the configs, given as JSON, why its mesh is refused, or an empty line."""

import json
import sys

from lingua_flax.devices.mesh import check_divides, make_mesh
from lingua_flax.host.errors import UserError
from lingua_flax.options.schema import Config

for config in map(Config.model_validate, json.loads(sys.argv[1])):
    try:
        mesh = make_mesh(config.devices.mesh)
        check_divides(mesh, config, [config.tokenizer.vocab_size])
        print()
    except UserError as error:
        print(error)
