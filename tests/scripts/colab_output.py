"""Stands in for google.colab.output: as on Colab, but for the address, which is the server's own."""

import urllib.request


def eval_js(code: str) -> str | None:
    return "https://127.0.0.1/" if "proxyPort(8000)" in code else None


def serve_kernel_port_as_iframe(port: int, height: int) -> None:
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/").read().decode()
    print("page:", page[page.index("<title>") : page.index("</title>")])
