"""What --dry-run prints and writes."""

import re

COSTS = {"flops", "bytes_accessed", "argument_bytes", "temporary_bytes"}
JSON_KEYS = {*COSTS, "device_memory_bytes", "fits", "kernels", "compile_seconds", "compiled_for", "attention"}


def table_rows(printed: str) -> dict[str, str]:
    """Returns the names and values in the printed tables."""
    return dict(re.findall(r"^│ ([^│]+?) +│ +([^│]+?) +│", printed, re.MULTILINE))


def megabytes(text: str) -> float:
    """Returns the size in a table, in MB."""
    number, unit = text.split()
    return float(number) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]
