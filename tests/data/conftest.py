"""Fixtures of the tests of corpora."""

from pathlib import Path

import pytest

from tests.helpers.pairs import TextFiles


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> TextFiles:
    return TextFiles(tmp_path)
