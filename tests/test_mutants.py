"""The list of mutants: every replacement still fits the code, so that `make mutants` can run."""

from tests.conftest import ROOT
from tests.mutants import read_mutants


def test_every_mutant_fits_the_code():
    mutants = read_mutants(ROOT / "tests" / "mutants.toml")
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    assert all((ROOT / test.split("::")[0]).exists() for mutant in mutants for test in mutant.tests)
