"""Checks where an installation has its modules and configs; prints the command that installs the extra serve."""

import importlib.util

from lingua_flax.host.installation import install_command
from lingua_flax.options.config_files import packaged_configs

for name in ("lingua_flax.data.batch", "lingua_flax.model.masks"):
    importlib.import_module(name)
for name in ("model", "data"):
    assert not importlib.util.find_spec(name)
assert "tiny" in packaged_configs()
print(install_command("serve"))
