"""What a viewer of some namespaces reads of the others."""

import msgspec
import pytest

from capcard_sched.model.diagnosis import JobDiagnosis
from capcard_sched.model.trials import EndedPods, FixSearch, SuggestedChange, SuggestedFix
from capcard_sched.web.redaction import Redactor

HIDDEN = "(another namespace)"


@pytest.mark.parametrize(
    "text, shown",
    [
        ("held by team-b/job/big (8), mine/job/own (2)", f"held by {HIDDEN} (8), mine/job/own (2)"),
        ("evicted for team-b/big-0 of queue q", f"evicted for {HIDDEN} of queue q"),
        ("team/job/a; team-b/job/b, xteam/job/c", f"{HIDDEN}; {HIDDEN}, xteam/job/c"),
        ("NVIDIA-H200/mig-1g.18gb-mixed of queue team", "NVIDIA-H200/mig-1g.18gb-mixed of queue team"),
        ("team-b/chat-*", HIDDEN),
        ("mine/team/x", "mine/team/x"),
    ],
)
def test_a_text_has_no_name_of_a_hidden_namespace(text: str, shown: str) -> None:
    assert Redactor({"team", "team-b"}).text(text) == shown
    assert Redactor(()).text(text) == text


def fix(*lines: str, ended: tuple[EndedPods, ...] = ()) -> SuggestedFix:
    change = SuggestedChange(kind="quota", object="Queue q", text="quota of q: 4 -> 6")
    return SuggestedFix(changes=(change,), lines=lines, ended=ended, delayed=("team-b/job/late",))


def test_a_diagnosis_has_no_fix_that_changes_a_hidden_object() -> None:
    own = fix("kubectl annotate queue q a=b", "kubectl -n mine scale deployment chat --replicas=2")
    others = fix("kubectl -n team-b scale deployment chat --replicas=2")
    ending = fix("capcard-sched job suspend big", ended=(EndedPods(workload="team-b/job/big", queue="q", pods=("p",)),))
    found = JobDiagnosis(
        namespace="mine",
        workload="job/own",
        stage="OverQuota",
        summary="over quota: used by team-b/job/big (4)",
        fixes=FixSearch(goal="the job starts", fixes=(own, others, ending), trials=3),
    )
    shown = Redactor({"team-b"}).diagnosis(found)
    assert b"team-b/" not in msgspec.json.encode(shown)
    assert shown.summary == f"over quota: used by {HIDDEN} (4)"
    assert shown.fixes is not None
    assert [one.lines for one in shown.fixes.fixes] == [own.lines]
    assert shown.fixes.fixes[0].delayed == (HIDDEN,)
    assert Redactor(()).diagnosis(found) is found
