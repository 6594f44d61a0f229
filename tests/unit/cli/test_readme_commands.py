"""The commands of the README print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```\n\$ (capcard-sched .*)\n((?:(?!```).*\n)*)```", README, re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The examples, and the queue of the README with a mistake in its quota."""
    (tmp_path / "config").symlink_to(ROOT / "config")
    (queue,) = re.findall(r"^```yaml\n(.*?)```", README, re.MULTILINE | re.DOTALL)
    assert '"NVIDIA-H200": 8' in queue
    (tmp_path / "queue.yaml").write_text(queue.replace('"NVIDIA-H200": 8', '"NVIDIA-H200": 2.5'))
    return tmp_path


def test_the_readme_answers_three_questions() -> None:
    assert len([command for command, _ in BLOCKS if command.startswith("capcard-sched explain ")]) == 3


@pytest.mark.parametrize("command, expected", BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_the_output_below_it(command: str, expected: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == expected, done.stderr
