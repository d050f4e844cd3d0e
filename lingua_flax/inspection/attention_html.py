"""The attention of one sentence as an HTML file that opens without a server."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from string import Template
from typing import Any

PAGE_FILES = Path(__file__).parent.parent / "serving" / "page"  # those of the page that the server shows
# In an order in which each needs only those before it.
_MODULES = ("dom.js", "weights.js", "heatmap.js", "diagram.js", "attention.js", "standalone.js")
_DOCUMENT = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$text</title>
<style>
$style</style>
<script>
$theme</script>
</head>
<body>
<main>
<h1>$text</h1>
<p class="text">$translation</p>
<div id="view"></div>
</main>
<script type="application/json" id="inspection">$inspection</script>
<script type="module">
$modules</script>
</body>
</html>
""")


def attention_html(inspection: dict[str, Any]) -> str:
    """Returns the document for a JSON object that Inspection.as_json has returned."""
    return _DOCUMENT.substitute(
        text=html.escape(inspection["text"]),
        translation=html.escape(inspection["translation"]),
        style=_read("style.css"),
        theme=_read("theme.js"),
        inspection=json.dumps(inspection, ensure_ascii=False).replace("<", "\\u003c"),  # "</script>" would end it
        modules="\n".join(_inlined(_read(name)) for name in _MODULES),
    )


def _read(name: str) -> str:
    return (PAGE_FILES / name).read_text(encoding="utf-8")


def _inlined(module: str) -> str:
    """Returns the code of a module for a script that also contains what it imports."""
    return re.sub(r"^export ", "", re.sub(r"^import [^;]*;\n", "", module, flags=re.MULTILINE), flags=re.MULTILINE)
