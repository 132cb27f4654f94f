"""Policies merge as fields do, and no session ends that was used, extended, out of sight or not warned."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from retinue.manager.domain.idle.policy import NOTHING, Checker, IdlePolicy, SessionObservation, evaluate
from retinue.manager.domain.idle.utilization import Window
from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.sessions.idle import decode_policy, encode_policy

spans = st.none() | st.integers(0, 1000).map(float)
limits = st.none() | st.integers(1, 1000).map(float)
policies = st.builds(
    IdlePolicy,
    grace=spans,
    warning=spans,
    extension=spans,
    interaction=limits,
    window=limits,
    lifetime=limits,
    thresholds=st.dictionaries(st.sampled_from(["cpu", "mem"]), st.floats(0.1, 100)),
    any_slot=st.none() | st.booleans(),
    any_checker=st.none() | st.booleans(),
    exempt=st.frozensets(st.sampled_from(Checker)),
)


@given(policies, policies, policies)
def test_merging_is_associative_with_an_identity_and_idempotent(a: IdlePolicy, b: IdlePolicy, c: IdlePolicy) -> None:
    assert a.then(b).then(c) == a.then(b.then(c))
    assert a.then(NOTHING) == NOTHING.then(a) == a
    assert a.then(b).then(b) == a.then(b)
    assert decode_policy(orjson.loads(orjson.dumps(encode_policy(a)))) == a


steps = st.lists(
    st.tuples(st.integers(1, 400), st.sampled_from(["nothing", "use", "silent", "extend"])), min_size=1, max_size=30
)


@given(policies, steps)
def test_a_life(policy: IdlePolicy, life: list[tuple[int, str]]) -> None:
    """Looked at now and then, with the clock passed in: an end comes only after its time without use, in sight,
    and after its warning.
    """
    now, interaction, paused, until = 0.0, 0.0, 0.0, 0.0
    warned: dict[Checker, float] = {}
    for pause, what in life:
        now += pause
        if what == "use":
            interaction, paused = now, 0.0
        elif what == "silent":
            paused += pause
        elif what == "extend":
            until = now + 200
        seen = SessionObservation(
            SessionType.INTERACTIVE, 0.0, interaction, paused, what != "silent", until, dict(warned)
        )  # fmt: skip
        verdict = evaluate(policy, seen, now)
        for checker in verdict.take_back:
            del warned[checker]
        for check in verdict.warn:
            assert check.checker not in warned
            warned[check.checker] = now
        assert all(check.remaining is None or check.remaining >= 0 for check in verdict.checks)
        if (end := verdict.end) is None:
            continue
        assert now >= until
        lead = policy.lead(end.limit)
        assert lead == 0 or warned[end.checker] + lead <= now
        assert end.checker not in policy.exempt
        if end.checker is Checker.INTERACTION:
            assert what != "silent"
            assert now - interaction - paused >= end.limit
            assert now >= (policy.grace or 0) + end.limit
            # Nothing says here what it uses: together they would not know.
            assert policy.any_checker or policy.limit(Checker.UTILIZATION) is None
        else:
            assert (end.checker, now >= end.limit) == (Checker.LIFETIME, True)
        return


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0, 100)), min_size=1, max_size=80),
    st.floats(0.5, 99),
)
def test_a_window_agrees_with_an_exact_one(parts: list[tuple[int, float]], threshold: float) -> None:
    """Whenever it says that nothing is left, use over the window, or a sixteenth and a sample more,
    was under the threshold.
    """
    width = 100.0
    window, seconds = Window(0.0, width), list[float]()
    for span, share in parts:
        window.add(span, {"cpu": share})
        seconds += [share] * span
        reading = window.read({"cpu": threshold}, any_slot=False, at=0.0, patience=1.0)
        assert reading is not None
        assert reading.observed == len(seconds)
        if reading.remaining > 0:
            continue
        spans = range(int(width), int(width * 17 / 16) + 21)
        assert len(seconds) >= width
        assert any(sum(seconds[-length:]) / length < threshold + 1e-6 for length in spans)
