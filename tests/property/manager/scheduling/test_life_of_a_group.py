"""A resource group lives on, pass after pass, with everything that can happen to it;
what must always hold is checked each time.

After every step: no agent holds more than it has because of a pass, what is held is the sum of what was placed, and no
pass goes beyond a quota (invariant 2 of the design); a gang is placed whole or holds nothing (7); whatever waits has a
reason from this very pass, and the reason is true of the group as the pass left it (11).
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from tests.property.manager.scheduling.living_group import Group

TestGroup = Group.TestCase
TestGroup.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    stateful_step_count=20,
    database=None,
    # A failure is shown as it was found: to make it smaller takes longer than anything else here.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
