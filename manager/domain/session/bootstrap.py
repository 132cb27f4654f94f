"""The script that a kernel runs before its command: how both become one command that any kernel with a shell can run.
Pure.

The script travels in the environment and not among the arguments, which a process list would show. It is run from a
file, so that it keeps standard input, and so that its first line may name its interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.reasons import SessionReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Exit code of a kernel whose script failed: the command was not started.
# What the script itself exited with is in the output.
FAILED_EXIT_CODE = 213
REASON = SessionReason.BOOTSTRAP_FAILED
_VARIABLE = "RETINUE_BOOTSTRAP_SCRIPT"

_RUN = f"""\
f=$(mktemp "${{TMPDIR:-/tmp}}/bootstrap.XXXXXX" 2>/dev/null || mktemp "${{HOME:-.}}/bootstrap.XXXXXX") &&
printf '%s\\n' "${_VARIABLE}" >"$f" || {{ echo "retinue: there is no space for the bootstrap script" >&2; exit {FAILED_EXIT_CODE}; }}
first=${_VARIABLE}; unset {_VARIABLE}
case $first in
'#!'*) chmod 700 "$f"; "$f" ;;
*) /bin/sh "$f" ;;
esac
code=$?; rm -f "$f"; unset f first
if [ "$code" -ne 0 ]; then echo "retinue: the bootstrap script failed with exit code $code" >&2; exit {FAILED_EXIT_CODE}; fi
unset code
[ "$#" -gt 0 ] && exec "$@"
while :; do sleep 3600; done
"""


def with_bootstrap(
    command: Sequence[str], environment: Mapping[str, str], script: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment that run `script` before `command`; an empty command idles after the script.
    No script changes nothing.
    """
    if not script:
        return tuple(command), dict(environment)
    return ("/bin/sh", "-c", _RUN, "bootstrap", *command), {**environment, _VARIABLE: script}
