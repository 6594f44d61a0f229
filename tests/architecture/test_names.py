"""Names of test modules, and words that the product does not use."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = (ROOT / "capcard_sched", ROOT / "plugins", ROOT / "actions", ROOT / "benchmarks")
MIRRORS = ("unit", "kube", "daemon")


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
