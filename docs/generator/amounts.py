"""Makes the page about amounts from the parser itself."""

from __future__ import annotations

from docs.generator.markdown import table
from retinue.rpc.core.amounts import (
    DEVICE_SUFFIX,
    DISK,
    MAX_SLOT_NAME,
    MEMORY,
    MIN_DISK,
    MIN_MEMORY,
    AmountError,
    format_amount,
    parse_amount,
)

_EXAMPLES = (
    ("cpu", "2"),
    ("cpu", "0.5"),
    ("cpu", "500m"),
    ("cpu", ".5"),
    ("cpu", "1.500"),
    ("cpu", "0.0005"),
    ("cpu", "2k"),
    (MEMORY, "4g"),
    (MEMORY, "4GiB"),
    (MEMORY, "1.5g"),
    (MEMORY, "1024m"),
    (MEMORY, "1000"),
    (MEMORY, "128e6"),
    (MEMORY, "0.5"),
    (DISK, "20g"),
    ("cuda.device", "1"),
    ("cuda.device", "0.5"),
    ("licences", "0.25"),
    ("cuda_x", "1"),
)


def page() -> str:
    """Returns the whole page."""
    return f"""# Amounts

Slots of a session (`KernelSpec.slots`), quotas, `retinue-agent --slots` and `--reserve`, and the labels of images all write an amount in
one form.

* The name of a slot begins with a letter; letters `a-z`, digits, `.` and `-` may follow, at most {MAX_SLOT_NAME} characters in all.
* `{MEMORY}` and `{DISK}` are numbers of bytes. The suffixes k, m, g, t and p are powers of 1,024; an optional `b`, `i` or `ib` may
  follow, in any case. A fraction such as `1.5g` must come to a whole number of bytes.
* All other slots are decimals with at most three places, or thousandths with the suffix m: `500m` is `0.5`, as in Kubernetes.
* Slots whose names end in `{DEVICE_SUFFIX}` are whole numbers.
* There is no sign and no space. An exponent is taken, as `2e3`.
* Kubernetes is different in them: there `M` and `G` are powers of 1,000, and `m` is a thousandth of a byte.
* The largest amount is 2⁵³ bytes, or 2⁵³ thousandths of any other slot. A session asks for more than 0; quotas, `--slots` and labels may
  say 0.
* Sessions and quotas refuse less than `{format_amount(MEMORY, MIN_MEMORY)}` of `{MEMORY}` and `{format_amount(DISK, MIN_DISK)}` of `{DISK}`:
  `8` is 8 bytes, and its suffix was forgotten.

Replies write the canonical form, and bytes with the largest suffix that leaves a whole number.

{table(["slot", "text", "canonical form"], [(f"`{slot}`", f"`{text}`", _canonical(slot, text)) for slot, text in _EXAMPLES])}"""


def _canonical(slot: str, text: str) -> str:
    try:
        return f"`{format_amount(slot, parse_amount(slot, text))}`"
    except AmountError as error:
        return f"invalid: {error}"
