"""The page as documents that open without a server: with its style, and its modules as one script."""

import base64
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE_FILES = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import (?:\* as )?(\{[^}]*\}|\w+) from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def bundled(*modules: Path) -> str:
    """Returns a script that runs the modules, each as a function of its own, after those that it imports."""
    scripts: dict[Path, str] = {}

    def add(module: Path) -> str:
        variable = f"module_{module.stem}"
        if module not in scripts:
            text = module.read_text(encoding="utf-8")
            code = _IMPORT.sub(lambda found: f"const {found[1]} = {add((module.parent / found[2]).resolve())};", text)
            exported = ", ".join(_EXPORT.findall(code))
            scripts[module] = (
                f"const {variable} = (() => {{\n{_EXPORT.sub('', code)}\nreturn {{ {exported} }};\n}})();\n"
            )
        return variable

    for module in modules:
        add(module.resolve())
    return "".join(scripts.values())


def attention_html(inspection: dict[str, Any]) -> str:
    """Returns a document with the attention of a sentence, given what Inspection.as_json has returned."""
    heading, translation = html.escape(inspection["text"]), html.escape(inspection["translation"])
    body = f'<main>\n<h1>{heading}</h1>\n<p class="text">{translation}</p>\n<div id="view"></div>\n</main>'
    data = {"inspection": in_script(inspection)}
    return document(inspection["text"], body, bundled(PAGE_FILES / "standalone.js"), data)


def page_html(title: str, transport: Path, data: Mapping[str, str]) -> str:
    """Returns the whole page, with a module that answers in the place of the server."""
    page = _read("index.html")
    body = re.sub(r' *<a href="docs">.*\n', "", page[page.index("<body>") + 6 : page.index("</body>")])
    return document(title, body.replace("page/icon.svg", _icon()), bundled(transport, PAGE_FILES / "main.js"), data)


def document(title: str, body: str, script: str, data: Mapping[str, str]) -> str:
    """Returns a document in the style of the page; browsers refuse whatever it would ask of another host.

    `data` are texts for the script, by the ids of their elements. None may contain "</script".
    """
    texts = "\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items())
    parts = {"title": html.escape(title), "icon": _icon(), "body": body, "texts": texts, "script": script}
    files = {"style": _read("style.css"), "theme": _read("theme.js")}
    return _read("document.html").format(**parts, **files)


def in_script(content: Any) -> str:
    """Returns JSON that can stand in an HTML script."""
    return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")


def _icon() -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode((PAGE_FILES / 'icon.svg').read_bytes()).decode()}"


def _read(name: str) -> str:
    return (PAGE_FILES / name).read_text(encoding="utf-8")
