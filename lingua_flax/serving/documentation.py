"""The page /docs: Swagger UI from a package, so that it works offline, and the bodies of requests for OpenAPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastapi_offline
from pydantic import BaseModel

DOCS_FILES = Path(fastapi_offline.__file__).parent / "static"
DOCS_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Lingua Flax</title>
<link rel="icon" href="docs/files/favicon.png">
<link rel="stylesheet" href="docs/files/swagger-ui.css">
</head>
<body>
<div id="interface"></div>
<script src="docs/files/swagger-ui-bundle.js"></script>
<script src="docs/show.js"></script>
</body>
</html>
"""
DOCS_SCRIPT = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#interface"});\n'


def request_body(model: type[BaseModel], sentence: str | None = None, *, forms: bool = True) -> dict[str, Any]:
    """Returns the OpenAPI description of a body that is JSON, or may be a form too, with an example of `q` if given."""
    schema = model.model_json_schema()
    if sentence:
        schema["properties"]["q"]["examples"] = [sentence]
    types = ("application/json", "application/x-www-form-urlencoded") if forms else ("application/json",)
    content = {content_type: {"schema": schema} for content_type in types}
    return {"requestBody": {"required": True, "content": content}}
