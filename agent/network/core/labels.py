"""The agent's part of the names it gives to what it makes on its node. Pure."""

from __future__ import annotations

import hashlib
import re

from retinue.agent.network.errors import InvalidNetworkError

_AGENT_ID = re.compile(r"[a-z0-9-]+")
_LABEL_LENGTH = 20
_DIGEST_LENGTH = 8


def agent_label(agent_id: str) -> str:
    """Returns the agent's part of the names it gives, of 20 characters at most;
    what is longer ends in a digest of the whole.

    Raises InvalidNetworkError unless the id is made of a-z, 0-9 and dashes.
    """
    if not _AGENT_ID.fullmatch(agent_id):
        raise InvalidNetworkError(f"agent id {agent_id!r} is not made of a-z, 0-9 and dashes")
    if len(agent_id) <= _LABEL_LENGTH:
        return agent_id
    digest = hashlib.sha256(agent_id.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{agent_id[: _LABEL_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"
