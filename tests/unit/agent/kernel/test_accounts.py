"""Users that images name: found as container engines find them, in texts that may hold anything."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.kernel.core.accounts import (
    MAX_GROUPS,
    MAX_ID,
    Account,
    AccountError,
    find_account,
    login_variables,
    profile,
    with_shell,
)

USERS = """\
root:x:0:0:root:/root:/bin/sh
# a comment:of:no:user
broken:x:many:1
app:x:1234:99:An App:/app:/bin/sh
app:x:4321:98::/:/bin/sh
toor:x:0:0::/:/bin/sh
none:x:55:0::/:/bin/sh
1000:x:77:77::/:/bin/sh
short:x:66
huge:x:4294967294:1::/:/bin/sh
"""
GROUPS = """\
root:x:0:
web:x:99:
video:x:44:other,app
audio:x:29:app
odd:x:y:app
more:x:4294967294:app
apps:x:30:apple
"""


@pytest.mark.parametrize(
    ("user", "account"),
    [
        ("app", Account(1234, 99, "app", (44, 29))),
        # The number is the user's with all that goes with it.
        ("1234", Account(1234, 99, "app", (44, 29))),
        # A group that is named is the only one.
        ("app:video", Account(1234, 44, "app")),
        ("app:7", Account(1234, 7, "app")),
        # A number that no user has; one that is another's name.
        ("5", Account(5, 0)),
        ("5:6", Account(5, 6)),
        ("1000", Account(1000, 0)),
        # The group of root, as of images that are made for any user.
        ("app:0", Account(1234, 0, "app")),
        ("app:root", Account(1234, 0, "app")),
        ("none", Account(55, 0, "none")),
        ("short", Account(66, 0, "short")),
    ],
)
def test_the_user_of_an_image(user: str, account: Account) -> None:
    assert find_account(user, USERS, GROUPS) == account


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("missing", "no user 'missing'"),
        ("broken", "no user 'broken'"),
        ("app:missing", "no group 'missing'"),
        ("app:odd", "no group 'odd'"),
        ("toor", "root by another name"),
        ("toor:web", "root by another name"),
        ("00", "root by another name"),
        ("huge", f"above {MAX_ID}"),
        ("app:more", f"above {MAX_ID}"),
        # No number, for all that Python takes it for one.
        ("\N{FULLWIDTH DIGIT FIVE}", "no user"),
    ],
)
def test_who_no_kernel_runs_as(user: str, words: str) -> None:
    with pytest.raises(AccountError, match=words):
        find_account(user, USERS, GROUPS)


def test_the_groups_of_a_user_are_bounded() -> None:
    groups = "".join(f"g{number}:x:{number}:app\n" for number in range(MAX_GROUPS + 1))
    with pytest.raises(AccountError, match=str(MAX_GROUPS)):
        find_account("app", USERS, groups)


TEXTS = st.text(st.sampled_from("app:0123456789x,\n\r\x0c\udc80\u0663"), max_size=200)


@given(user=st.one_of(st.just("app"), st.just("1234"), TEXTS), users=TEXTS, groups=TEXTS)
def test_whatever_an_image_holds_is_a_user_or_none(user: str, users: str, groups: str) -> None:
    with contextlib.suppress(AccountError):
        account = find_account(user, f"app:x:1:1\n{users}", groups)
        assert 0 < account.uid <= MAX_ID
        assert 0 <= account.gid <= MAX_ID
        assert all(0 <= group <= MAX_ID for group in account.groups)


def test_a_search_path_is_quoted_for_shells_of_a_login() -> None:
    lines = profile("/opt/my tools/bin:/bin").splitlines()
    assert lines[1:] == [
        'case ":$PATH" in',
        "':/opt/my tools/bin:/bin'|':/opt/my tools/bin:/bin:'*) ;;",
        "*) PATH='/opt/my tools/bin:/bin':$PATH ;;",
        "esac",
    ]


@pytest.mark.parametrize(
    ("shells", "shell", "expected"),
    [
        # An image with bash, and no list of shells.
        ("", "/bin/bash", "/bin/sh\n/bin/bash\n"),
        ("", "/bin/sh", ""),
        ("# valid\n/bin/sh\n/bin/bash\n", "/bin/bash", "# valid\n/bin/sh\n/bin/bash\n"),
        ("/bin/sh", "/bin/bash", "/bin/sh\n/bin/bash\n"),
        ("/bin/bashful\n", "/bin/bash", "/bin/bashful\n/bin/bash\n"),
        ("/bin/zsh\n", "/bin/sh", "/bin/zsh\n/bin/sh\n"),
    ],
)
def test_a_server_takes_the_shell_of_the_account(shells: str, shell: str, expected: str) -> None:
    assert with_shell(shells, shell) == expected


@pytest.mark.parametrize(
    ("environment", "user", "logname"),
    [
        ({}, "work", "work"),
        ({"USER": "ann"}, "ann", "ann"),
        ({"LOGNAME": "ann"}, "ann", "ann"),
        ({"USER": "ann", "LOGNAME": "ben"}, "ann", "ben"),
        ({"USER": ""}, "", ""),
    ],
)
def test_variables_of_a_login(environment: dict[str, str], user: str, logname: str) -> None:
    assert login_variables("work", environment) == {"USER": user, "LOGNAME": logname}
