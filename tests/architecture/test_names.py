"""Names of test modules, and words that the product does not use."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = (ROOT / "capcard_sched", ROOT / "plugins", ROOT / "actions", ROOT / "distributions", ROOT / "benchmarks")
MIRRORS = ("unit", "kube", "daemon")
#: Verbs of speech, people for objects, and other words for which the field has its own.
WORDS = re.compile(
    r"\b(asks?|asked|tells?|told|says?|said|answers?|answered|nobody|somebody|whoever|bury|buried|doomed|stands? for"
    r"|looks? at|looked at)\b",
    re.IGNORECASE,
)
#: Names in code, and text that a program prints.
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")


def test_a_test_module_is_named_after_a_module_or_package_of_the_product() -> None:
    """`test_<module>.py` or `test_<module>_<subject>.py`; end-to-end tests and scenarios are named for behavior."""
    sources = [path for root in PRODUCT for path in root.rglob("*.py")]
    names = {path.stem for path in sources} | {path.parent.name for path in sources}
    unnamed = []
    for folder in MIRRORS:
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            words = path.stem.split("_")[1:]
            if not any("_".join(words[:count]) in names for count in range(1, len(words) + 1)):
                unnamed.append(str(path.relative_to(ROOT)))
    assert sorted(unnamed) == []


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Comments and docstrings, by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def test_prose_of_the_product_has_the_words_of_the_field() -> None:
    found = []
    for path in sorted(path for root in PRODUCT for path in root.rglob("*.py")):
        for line, text in prose(path.read_text("utf-8")):
            words = WORDS.findall(QUOTED.sub("", text))
            found += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in words]
    assert found == []


def test_the_check_of_words_reads_comments_and_docstrings_but_no_code() -> None:
    source = '"""Says x."""\nasks = "told"  # asks `tell` for "nobody"\n'
    assert [WORDS.findall(QUOTED.sub("", text)) for _, text in prose(source)] == [["asks"], ["Says"]]
