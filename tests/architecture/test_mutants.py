"""The list of mutants fits the product and the tests; `make mutants` applies it."""

import ast
import re

from tests.mutants.mutant import ROOT, load
from tests.vectors.document import FOLDER, read

MUTANTS = load()


def test_every_mutant_changes_a_line_that_occurs_once() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        assert mutant.mutate(text) != text, mutant.id
        compile(mutant.mutate(text), mutant.file, "exec")


def test_every_detecting_test_exists() -> None:
    vectors = {f"{path.stem}: {vector.name}" for path in FOLDER.glob("*.yaml") for vector in read(path)}
    for mutant in MUTANTS:
        file, _, name = mutant.test.partition("::")
        name, _, vector = name.removesuffix("]").partition("[")
        assert not vector or vector in vectors, mutant.id
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in names, mutant.id


def test_mutants_are_distinct_and_cover_incidents_and_rules() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.before, mutant.after) for mutant in MUTANTS}) == len(MUTANTS)
    incidents = {mutant.incident for mutant in MUTANTS if mutant.incident}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", incident) for incident in incidents)
    assert len(incidents) >= 30
    assert sum(not mutant.incident for mutant in MUTANTS) >= 10
