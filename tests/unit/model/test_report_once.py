"""Reports are made once while they hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capcard_sched.model.report_once import ReportOnce

_SUBJECTS = st.sampled_from("abc")
_REPORTS = st.lists(st.integers(0, 3), unique=True)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), _SUBJECTS, _REPORTS),
        st.tuples(st.just("forget"), _SUBJECTS),
        st.tuples(st.just("keep"), st.sets(_SUBJECTS)),
    )
)


@given(_STEPS)
def test_only_reports_that_did_not_hold_before_are_new_and_only_subjects_with_reports_are_kept(
    steps: list[tuple[object, ...]],
) -> None:
    once: ReportOnce[str, int] = ReportOnce()
    holding: set[tuple[str, int]] = set()
    for step in steps:
        match step:
            case ("update", str(subject), list(reports)):
                assert once.update(subject, reports) == [each for each in reports if (subject, each) not in holding]
                holding = {pair for pair in holding if pair[0] != subject} | {(subject, each) for each in reports}
            case ("forget", str(subject)):
                assert once.forget(subject) == any(pair[0] == subject for pair in holding)
                holding = {pair for pair in holding if pair[0] != subject}
            case ("keep", set(subjects)):
                once.keep(subjects)
                holding = {pair for pair in holding if pair[0] in subjects}
        assert set(once) == {subject for subject, _ in holding}
