"""Saturated clusters: every scene runs under every scheduler-conf, on a small trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.saturation import CONFS, SCENES, SaturationConf, measure_saturation, saturation_table, traces_in

DATA = Path(__file__).parents[2] / "data" / "openb"


@pytest.mark.parametrize("scene", SCENES)
def test_a_scene_allocates_gpus_under_every_conf(scene: str) -> None:
    runs = [measure_saturation(scene, DATA / "nodes.csv", DATA / "pods.csv", SaturationConf(name), 1) for name in CONFS]
    for run in runs:
        least = 0 if SCENES[scene][1] > 1 else 1  # the nodes are too few for gangs
        assert least <= run.allocated[0] <= run.allocated[-1] <= 100, run
        assert run.stranded >= 0
    assert len({run.pods for run in runs}) == 1
    assert len(saturation_table(runs).rows) == len(CONFS)


def test_a_folder_without_the_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="lacks openb_node_list_gpu_node"):
        traces_in(tmp_path)
