"""What the scheduler imports before it logs `starting`: modules, not seconds, which depend on the machine."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

#: Runs the command of users up to the construction of the service, and prints the names of all modules.
_START = """
import json, sys
sys.argv[1:] = ["run", "--kubeconfig", sys.argv[1]]
import capcard_sched.cli.main as main
import importlib

async def run(self):
    print(json.dumps(sorted(sys.modules)))

imported = importlib.import_module

def import_module(name, package=None):
    module = imported(name, package)
    if name == "capcard_sched.daemon.service":
        module.Service.run = run
    return module

importlib.import_module = import_module
main.main()
"""
#: Third-party packages that a start needs; greenlet: structlog imports it where sqlalchemy is installed.
THIRD_PARTY = {
    "aiohappyeyeballs",
    "httptools",
    "idna",
    "msgspec",
    "multidict",
    "numpy",
    "prometheus_client",
    "propcache",
}
THIRD_PARTY |= {"greenlet", "structlog", "typing_extensions", "uvloop", "yaml", "yarl"}
#: Packages of other commands, and of questions that come later.
OTHERS = {"admission", "controllers", "insight", "reports", "simulation", "testing", "web"}


def test_a_start_imports_no_more_than_it_uses(tmp_path: Path) -> None:
    """Not `kubernetes`, `aiohttp`, `rich` and `cyclopts`: more than half of the CPU time of a start with them."""
    config = tmp_path / "kubeconfig"
    document = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [sys.executable, "-c", _START, str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    names = [name for name in json.loads(done.stdout.splitlines()[-1]) if not name.startswith("_")]
    packages = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert {name for name in packages if name in _distributed()} - {"capcard_sched"} <= THIRD_PARTY
    assert not {name.split(".")[1] for name in names if name.startswith("capcard_sched.")} & OTHERS


def _distributed() -> set[str]:
    """Import names of installed distributions."""
    from importlib.metadata import packages_distributions

    return set(packages_distributions())
