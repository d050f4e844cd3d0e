"""Rows of spreadsheets (.xlsx), and pairs of PO and XLIFF files, each with its line and what may be wrong with it."""

import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import openpyxl
from lxml import etree

from lingua_flax.data.cleaning import tmx
from lingua_flax.data.cleaning.encodings import Line
from lingua_flax.data.po_files import parse_po
from lingua_flax.data.text_files import unreadable_as_user_error
from lingua_flax.host.errors import UserError

warnings.filterwarnings("ignore", module="openpyxl")  # about what sheets have besides cells
Read = tuple[int, str, str, str]  # a line, both sides, and why they are no pair


def read_xlsx(path: Path) -> Iterator[tuple[Line, list[str]]]:
    """Yields the cells of each row of the first sheet; raises UserError if it cannot be read."""
    with unreadable_as_user_error(path, zipfile.BadZipFile, KeyError, ValueError):
        sheet = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets[0]
        width = 0  # of the first row; the others lack empty cells at their end, or have some too many
        for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
            cells = ["" if value is None else str(value) for value in values]
            while cells and not cells[-1]:
                cells.pop()
            width = width or len(cells)
            if cells:
                cells += [""] * (width - len(cells))
                yield Line(number, "\t".join(cells)), cells


def read_po(lines: Iterable[Line], path: Path) -> Iterator[Read]:
    """Yields the messages of a PO file, plural forms as pairs of their own; raises UserError if it is none."""
    for entry in parse_po("".join(f"{line.text}\n" for line in lines), str(path)):
        fault = "obsolete" if entry.obsolete else "fuzzy" if entry.fuzzy else ""
        forms = sorted(entry.msgstr_plural.items()) or [(0, entry.msgstr)]
        for form, target in forms:
            source = entry.msgid if form == 0 and (len(forms) > 1 or not entry.msgid_plural) else entry.msgid_plural
            yield max(1, entry.linenum), source, target, fault or ("" if target else "not translated")


def read_xliff(lines: Iterable[Line], path: Path) -> Iterator[Read]:
    """Yields the segments of an XLIFF file, without codes of programs; raises UserError if it is none.

    Those before a place that is damaged are yielded, and one that says so.
    """
    parser = etree.XMLParser(recover=True, resolve_entities=False, no_network=True, encoding="utf-8", huge_tree=True)
    root = etree.fromstring("".join(f"{line.text}\n" for line in lines).encode(), parser)
    if root is None or etree.QName(root).localname != "xliff":
        raise UserError(f"{path}: not an XLIFF file, whose first element is xliff")
    for unit in root.iter("{*}trans-unit", "{*}segment"):
        sides = [unit.find("{*}source"), unit.find("{*}target")]
        source, target = ("" if side is None else tmx.plain_text(side) for side in sides)
        yield unit.sourceline, source, target, "" if source and target else "not translated"
    if fatal := [error for error in parser.error_log if error.level == etree.ErrorLevels.FATAL]:
        yield fatal[0].line, "", "", f"not valid XML ({fatal[0].message.strip()})"
