"""What a failed fetch of an image means: by the codes of registries, and the errors that engines have for them. Pure.

Engines repeat a registry's codes in words: `MANIFEST_UNKNOWN` is `manifest unknown`. Both engines' own errors are
constants of their source. Users read only one of the sentences here: what engines and registries say of a fetch may be
anything, of any service that a node reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

from retinue.rpc.core.reasons import AttemptReason


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """Why an image is not fetched: a reason, and a sentence to follow the image's name.

    `may_pass` says that another try on this node, soon, may have it. What is the node's is tried on others by managers.
    """

    reason: AttemptReason
    words: str
    may_pass: bool = False


_NOT_FOUND, _DENIED = AttemptReason.IMAGE_NOT_FOUND, AttemptReason.IMAGE_DENIED
_INVALID, _FAILED = AttemptReason.IMAGE_INVALID, AttemptReason.IMAGE_PULL_FAILED
_LOG = "the agent's log says more"

NOT_FOUND = FetchFailure(_NOT_FOUND, "is not in its registry, or not for the architecture of this node")
DENIED = FetchFailure(_DENIED, "is not there, or its registry does not give it to this node")
NO_IMAGE = FetchFailure(
    _INVALID, "is no image of a container: its registry has something else by that name, such as a chart or a model"
)
MISMATCHED = FetchFailure(_INVALID, "is broken: its manifest, its configuration and its layers do not fit each other")
CORRUPT = FetchFailure(_INVALID, "is broken in its registry: a part is missing there, or is not what its digest says")
UNREADABLE = FetchFailure(_INVALID, "cannot be used: the engine of this node cannot unpack its layers")
TOO_DEEP = FetchFailure(_INVALID, "cannot be used: it has more layers than the engine of this node takes")
OTHER_SYSTEM = FetchFailure(_INVALID, "cannot be used: it is for another operating system")
NO_SPACE = FetchFailure(_FAILED, "cannot be fetched: the node has no space for it")
NOT_UNPACKED = FetchFailure(_FAILED, f"cannot be unpacked on this node; {_LOG}")
NO_CREDENTIALS = FetchFailure(
    _FAILED, f"cannot be fetched: this node's credentials for its registry cannot be read; {_LOG}"
)
LIMITED = FetchFailure(
    _FAILED, "cannot be fetched: its registry has limited how often this node may fetch", may_pass=True
)
# One sentence for whatever is no registry: users must not learn what listens where.
UNREACHED = FetchFailure(
    _FAILED, f"cannot be fetched: its registry is not reached or does not answer as one; {_LOG}", may_pass=True
)

# In this order: an error of a layer quotes the system's, and a name that does not resolve is "not found".
_TABLE: tuple[tuple[FetchFailure, tuple[str, ...]], ...] = (
    (NO_SPACE, ("no space left on device", "disk quota exceeded")),
    (LIMITED, ("toomanyrequests", "429 too many requests")),
    (TOO_DEEP, ("max depth exceeded",)),
    (
        UNREADABLE,
        ("archive/tar", "error processing tar file(exit status 1): unexpected eof", "failed to extract layer"),
    ),
    (NOT_UNPACKED, ("failed to register layer",)),
    (
        CORRUPT,
        (
            "filesystem layer verification failed",
            "manifest verification failed",
            "unexpected commit digest",
            "could not fetch content descriptor",
            "unknown blob",
            "blob unknown",
        ),
    ),
    (NO_IMAGE, ("unsupported media type", "unknown manifest class", "unsupported manifest")),
    (
        MISMATCHED,
        (
            "layers from manifest don't match image configuration",
            "mismatched image rootfs and manifest layers",
            "wrong diff id",
            "failed to resolve rootfs",
            "invalid rootfs in image configuration",
        ),
    ),
    (OTHER_SYSTEM, ("cannot be used on this platform",)),
    (UNREACHED, ("lookup ", "dial ", "net/http: ", "i/o timeout")),
    (
        DENIED,
        (
            "denied",
            "unauthorized",
            "403 forbidden",
            "no basic auth credentials",
            "authentication required",
            "authorization failed",
            "incorrect username",
        ),
    ),
    (
        NOT_FOUND,
        (
            "manifest unknown",
            "name unknown",
            "name invalid",
            "tag invalid",
            "not found",
            "does not exist",
            "no matching manifest",
            "no match for platform",
            "invalid reference format",
            "invalid tag format",
            "invalid checksum digest",
        ),
    ),
)


def failure_of(message: str) -> FetchFailure:
    """Returns what an engine's error on a failed fetch means."""
    text = message.lower()
    return next((failure for failure, words in _TABLE if any(word in text for word in words)), UNREACHED)
