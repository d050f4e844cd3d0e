"""The page /docs: Swagger UI from a package, so that it works offline, and the bodies of requests for OpenAPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastapi_offline

DOCS_FILES = Path(fastapi_offline.__file__).parent / "static"
DOCS_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Lingua Flax</title>
<link rel="icon" href="/docs/files/favicon.png">
<link rel="stylesheet" href="/docs/files/swagger-ui.css">
</head>
<body>
<div id="interface"></div>
<script src="/docs/files/swagger-ui-bundle.js"></script>
<script src="/docs/show.js"></script>
</body>
</html>
"""
DOCS_SCRIPT = 'SwaggerUIBundle({url: "/openapi.json", dom_id: "#interface"});\n'

_SCHEMAS: dict[str, dict[str, Any]] = {
    "TranslateRequest": {
        "type": "object",
        "required": ["q", "source", "target"],
        "properties": {
            "q": {
                "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
                "description": "a text, or a list of texts",
                "example": "Two dogs are playing in the snow.",
            },
            "source": {"type": "string", "description": "language code, or auto", "example": "auto"},
            "target": {"type": "string", "description": "language code", "example": "fr"},
            "format": {"type": "string", "enum": ["text"]},
            "alternatives": {"type": "integer", "description": "number of further translations", "default": 0},
            "alignments": {"type": "boolean", "description": "align words, in Pharaoh format", "default": False},
            "api_key": {"type": "string", "description": "accepted and ignored"},
        },
    },
    "InspectRequest": {
        "type": "object",
        "required": ["q"],
        "properties": {
            "q": {"type": "string", "description": "a sentence", "example": "Two dogs are playing in the snow."},
            "target": {"type": "string", "description": "language code; by default the first target language"},
            "prefix": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "token ids that the translation begins with",
            },
            "hidden": {
                "type": "array",
                "items": {"type": "integer"},
                "description": "positions of source tokens that no layer may attend to",
            },
            "heads_off": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["attention", "layer", "head"],
                    "properties": {
                        "attention": {"type": "string", "enum": ["encoder", "decoder", "cross"]},
                        "layer": {"type": "integer"},
                        "head": {"type": "integer"},
                    },
                },
                "description": "heads that are switched off, counted from 0",
            },
            "beam": {"type": "boolean", "description": "record the beam search", "default": False},
            "checkpoint": {"type": "integer", "description": "step; by default the checkpoint that is served"},
        },
    },
    "DetectRequest": {
        "type": "object",
        "required": ["q"],
        "properties": {"q": {"type": "string"}, "api_key": {"type": "string", "description": "accepted and ignored"}},
    },
}


def request_body(name: str, *, forms: bool = True) -> dict[str, Any]:
    """Returns the OpenAPI description of a body that is JSON, or may be a form too."""
    types = ("application/json", "application/x-www-form-urlencoded") if forms else ("application/json",)
    content = {content_type: {"schema": _SCHEMAS[name]} for content_type in types}
    return {"requestBody": {"required": True, "content": content}}
