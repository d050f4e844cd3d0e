"""Configuration of the documentation, which `make docs` builds with Sphinx."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from docs import generate_reference  # noqa: E402
from lingua_flax.host.version import VERSION  # noqa: E402

generate_reference.write()

project = "Lingua Flax"
author = "The Lingua Flax developers"
version = release = VERSION
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # documents are stored with their outputs, which need a trained network

napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_copy_empty_lines = False
copybutton_line_continuation_character = "\\"

html_theme = "sphinx_book_theme"
html_title = f"Lingua Flax {VERSION}"
html_favicon = "../lingua_flax/page/static/icon.svg"
html_static_path: list[str] = []
html_theme_options = {
    "logo": {"text": "Lingua Flax"},
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
