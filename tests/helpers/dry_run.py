"""What --dry-run prints and writes."""

import re

JSON_KEYS = {
    *("compiled_for", "attention", "mesh", "dtype", "memory_by_use", "device_memory_bytes", "fits", "shortage"),
    *("compile_seconds", "flops", "bytes_accessed", "sent_bytes", "kernels"),
}


def table_rows(printed: str) -> dict[str, str]:
    """Returns the names and values in the printed tables."""
    return dict(re.findall(r"^│ ([^│]+?) +│ +([^│]+?) +│", printed, re.MULTILINE))


def megabytes(text: str) -> float:
    """Returns the size in a table, in MB."""
    number, unit = text.split()
    return float(number) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[unit]
