"""The table of attacks: what an attacker has and does, and the exact answer.

A test that shows an answer is marked with the name of its row, as `@pytest.mark.attack("wrong-tokens")`; `make attack`
runs the marked tests. `docs/security.md` is made from this table, and tests/unit/test_attacks.py compares both with
the marks.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parent
MARK = "attack"


class Attacker(StrEnum):
    """Who attacks, and what they have."""

    STRANGER = "Anyone who reaches a port, without credentials"
    USER = "A user: a token, and a project"
    PAGE = "A web page that a user's browser shows"
    CODE = "Code in a kernel"
    NODE = "A node: root on it, and the certificate of its agent"


class State(StrEnum):
    """How much of an answer holds."""

    WHOLE = "whole"
    PARTLY = "partly"
    OPEN = "open"
    NO_FEATURE = "no such feature"


@dataclass(frozen=True, slots=True)
class Attack:
    """One row. `name` is what marks and links call it."""

    name: str
    attacker: Attacker
    attempt: str
    # Status, reason and words as they come; of what is open, those that are to come.
    answer: str
    state: State = State.WHOLE
    # What is missing of an answer that is not whole, and why.
    missing: str = ""
    # Where the tests of an open row belong.
    place: str = ""


def _rows(attacker: Attacker, *rows: tuple[str, str, str]) -> list[Attack]:
    return [Attack(name, attacker, attempt, answer) for name, attempt, answer in rows]


def _partly(attacker: Attacker, name: str, attempt: str, answer: str, missing: str) -> Attack:
    return Attack(name, attacker, attempt, answer, State.PARTLY, missing)


def _open(attacker: Attacker, name: str, attempt: str, answer: str, missing: str, place: str) -> Attack:
    return Attack(name, attacker, attempt, answer, State.OPEN, missing, place)


def _no_feature(attacker: Attacker, name: str, attempt: str, why: str) -> Attack:
    return Attack(name, attacker, attempt, why, State.NO_FEATURE)


ATTACKS: tuple[Attack, ...] = (
    # Strangers.
    *_rows(
        Attacker.STRANGER,
        (
            "no-credentials",
            "Calls every method of the contract without credentials, with an empty or an unknown scheme.",
            "`UNAUTHENTICATED`, reason `CREDENTIALS_MISSING`, before the request is read. Anyone may ask for health, "
            "enrol with a join token, and renew an expired certificate with its key.",
        ),
        (
            "wrong-tokens",
            "Sends tokens that are cut, longer, in capitals, SQL, of another kind, twice, or a megabyte long.",
            "`UNAUTHENTICATED`, reason `TOKEN_INVALID`, in the same words for all; two headers are `CREDENTIALS_MISSING`; "
            "metadata beyond the limit are `RESOURCE_EXHAUSTED`. The token is not repeated.",
        ),
        (
            "guessed-tokens",
            "Tries hundreds of tokens of users and of nodes a second.",
            "After a burst, `RESOURCE_EXHAUSTED`, reason `TOO_MANY_WRONG_TOKENS` with `RetryInfo`. Callers with good "
            "tokens, from the same address too, are answered.",
        ),
        (
            "plaintext-and-old-tls",
            "Speaks HTTP/2 without TLS or TLS 1.1, or shows a certificate of another authority or none where one is due.",
            "The handshake fails; a client sees `UNAVAILABLE`.",
        ),
        (
            "wrong-join-tokens",
            "Enrols with a join token that is used, expired, for another node, or made up; many nodes use one at once.",
            "One node gets in for each use, and is answered again for the same key until it announces itself; all others "
            "get `UNAUTHENTICATED`, reason `JOIN_TOKEN_INVALID`, and no row is left. Without a good token nothing else in "
            "the request is answered.",
        ),
        (
            "recovery-of-another-node",
            "Renews a node's expired certificate without its key, with an older, revoked or former one, a swapped request, "
            "or a challenge that was used, changed or is late.",
            "`UNAUTHENTICATED`, reason `AGENT_REVOKED`; whether there is such a node is not told.",
        ),
        (
            "web-tokens-of-users",
            "Makes up a JWT of a user, unsigned or signed with a key of its own.",
            "`UNAUTHENTICATED`, reason `TOKEN_INVALID`: tokens of users are random and looked up.",
        ),
        (
            "sign-up",
            "Makes an account for itself.",
            "`UNAUTHENTICATED`, reason `CREDENTIALS_MISSING`, of `CreateUser`; a method that there is not is "
            "`UNIMPLEMENTED`.",
        ),
        (
            "greedy-certificates",
            "Asks for a certificate with the names of the manager or of another node, as an authority, or for signing.",
            "The certificate has the node's own two names, `CA:FALSE`, and the uses of an agent. A weak key or a broken "
            "request is `INVALID_ARGUMENT`.",
        ),
        (
            "unfinished-requests",
            "Begins large requests on many streams of many connections and never ends them.",
            "The connections are ended, and the manager holds a bounded amount of memory. Others are answered meanwhile.",
        ),
        (
            "idle-connections",
            "Holds connections open without a handshake, or without a request after it.",
            "They are closed.",
        ),
        (
            "streams-without-a-name",
            "Opens streams of `Health.Watch` without end.",
            "From the 65th on, `RESOURCE_EXHAUSTED`, reason `STREAM_LIMIT`. Authenticated callers are answered.",
        ),
        (
            "no-grpc",
            "Speaks HTTP/1.1, headers without an end, or bytes without a meaning; calls methods that there are not.",
            "That connection ends, and no other; an unknown method is `UNIMPLEMENTED`.",
        ),
        (
            "reflection",
            "Asks by reflection what there is to call.",
            "`UNAUTHENTICATED`, reason `CREDENTIALS_MISSING`.",
        ),
        (
            "slow-metrics",
            "Sends requests for metrics byte by byte on many connections.",
            "A few are served at a time, each for a bounded time, and metrics are read meanwhile.",
        ),
        (
            "silent-ssh-connections",
            "Holds connections to the port for SSH and SFTP of a node or manager, without a ticket.",
            "They are bounded in number and time; a user with a ticket gets in.",
        ),
        (
            "read-tickets",
            "Reads the ticket of a direct connection on its way, and connects with it first.",
            "TLS lets in who has the key of that one connection, which went by the API: no byte is exchanged, and the "
            "stream says that the connection was reset.",
        ),
        (
            "slow-console",
            "Sends bodies to the console that never come, that are too long, or WebSockets, without a log-in.",
            "Strangers are answered before their body is read; bodies are 408 after a time and 413 beyond the limit; "
            "log-ins are 429 beyond 10 a minute with one token and 100 of an address; sockets get `UNAUTHENTICATED` and begin no call.",
        ),
        (
            "tickets-of-the-console",
            "Uses a link to the console twice, many times at once, or late.",
            "One 204, all others 401.",
        ),
        (
            "tokens-of-endpoints",
            "Calls an endpoint with no token, one of another endpoint, revoked, expired, with `alg: none`, or with a "
            "symmetric signature; upgrades without one.",
            "401 `NO_TOKEN` without, 403 `FORBIDDEN` with another's or a revoked one, 401 with a made-up one. "
            "No replica gets a byte.",
        ),
        (
            "hosts-of-endpoints",
            "Names another endpoint by a second `Host`, an absolute address, `X-Forwarded-Host` or `CONNECT`.",
            "403: the token counts where the request goes; 404 for two hosts and for `CONNECT`.",
        ),
        (
            "smuggled-requests",
            "Hides a request in another one, by lengths, encodings, or what HTTP/2 allows, at a router.",
            "No replica gets a request that its router would have refused.",
        ),
        (
            "floods-at-routers",
            "Takes 5,000 requests back at once, sends headers byte by byte or without end, bodies that stop, wrong frames.",
            "That connection ends; slow headers are 408, large ones 431, and no request of others is lost.",
        ),
    ),
    _partly(
        Attacker.STRANGER,
        "timing-of-tokens",
        "Measures how long tokens take that are nearly right.",
        "The digest of a token is looked up, and compared in constant time.",
        "Time is not measured: a test of it would depend on the machine.",
    ),
    _partly(
        Attacker.STRANGER,
        "certificates-of-a-former-authority",
        "Shows a certificate of a former authority.",
        "An authority's former certificate counts as long as it lives, the new one beside it; another authority's is "
        "refused by TLS.",
        "An authority's key cannot be replaced while its agents run.",
    ),
    _partly(
        Attacker.STRANGER,
        "floods-at-the-manager",
        "Takes requests back at once, sends CONTINUATION, SETTINGS or PING without end, or calls without credentials, at "
        "the port of a manager.",
        "The connection ends, the manager holds a bounded amount of memory, and others are answered meanwhile. Its address "
        "opens no other for a second, and twice as long each further time, unless somebody has authenticated there within "
        "an hour.",
        "Until the manager has noticed, some 50 ms, a connection costs a part of a core, calls of others wait for hundreds "
        "of milliseconds, and some end with `CANCELLED`, when requests are taken back: gRPC's core takes them faster than "
        "it can refuse them. From an address of users, one who opens another connection each time goes on.",
    ),
    *_rows(
        Attacker.STRANGER,
        (
            "many-connections",
            "Opens thousands of connections from one address.",
            "Beyond a number, the oldest without credentials are ended. Connections with credentials stay, and new ones "
            "are answered.",
        ),
    ),
    # Users.
    *_rows(
        Attacker.USER,
        (
            "expired-and-revoked-tokens",
            "Uses a token that has expired or was revoked; holds a watch, a command, a port or a page open meanwhile.",
            "`UNAUTHENTICATED`, reason `TOKEN_INVALID`; streams end within 5 s with the same error.",
        ),
        (
            "tokens-from-tokens",
            "Makes a token that outlives the one it is made with, or tokens without number.",
            "`INVALID_ARGUMENT` for `ttl`; a token ends with the one it was made with; `RESOURCE_EXHAUSTED`, reason "
            "`QUOTA_EXCEEDED`, beyond the limit.",
        ),
        (
            "names-of-former-users",
            "Gets an account or a project of the name of a deleted one.",
            "`ALREADY_EXISTS`, reason `NAME_RETIRED`.",
        ),
        (
            "methods-of-agents",
            "Calls methods of agents with the token of a user or an administrator; calls an agent directly.",
            "`PERMISSION_DENIED`, reason `METHOD_DENIED`; an agent answers managers only.",
        ),
        (
            "sessions-of-others",
            "Calls every method that names a session with the id of another user's.",
            "`NOT_FOUND`, in the very words for a session that there is not; nothing happens to the session.",
        ),
        (
            "names-of-others-sessions",
            "Names another's session by its name, its owner and name, or the beginning of its id.",
            "`NOT_FOUND`; names lead to the caller's own sessions.",
        ),
        (
            "forged-filters",
            "Lists and watches with filters that name secret fields, or add `OR true`.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD` for `filter`; lists hold the caller's own rows.",
        ),
        (
            "page-tokens-of-others",
            "Continues a list with another user's page token, or one that was changed.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD` for `page_token`.",
        ),
        (
            "self-promotion",
            "Makes itself an administrator, joins a project, calls administrators' methods.",
            "`PERMISSION_DENIED`, reason `METHOD_DENIED`.",
        ),
        (
            "sessions-for-others",
            "Creates a session that belongs to another user.",
            "No request of a user has a field for an owner: a session belongs to its creator.",
        ),
        (
            "higher-priority",
            "Raises the priority of a session beyond its quota.",
            "`RESOURCE_EXHAUSTED`, reason `QUOTA_EXCEEDED`.",
        ),
        (
            "reused-request-ids",
            "Sends a `request_id` again with another request.",
            "`INVALID_ARGUMENT`, reason `REQUEST_ID_REUSED`.",
        ),
        (
            "request-ids-of-others",
            "Sends a `request_id` of another user.",
            "Both are independent, and no answer is shared.",
        ),
        (
            "concurrent-creates",
            "Creates 32 times at once with one `request_id`.",
            "One session, and 32 equal answers.",
        ),
        (
            "stale-etags",
            "Changes or ends a session with an old `etag`.",
            "`ABORTED`, reason `ETAG_MISMATCH`.",
        ),
        (
            "odd-names",
            "Names a session, user, project or group `../x`, `-rf`, with NUL, line breaks, capitals or 64 letters.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`, with the path of the field.",
        ),
        (
            "odd-amounts",
            "Asks for 0, negative, infinite or 2^63 units of a slot, or half a device.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`, with the path of the slot.",
        ),
        (
            "beyond-quotas",
            "Asks for more than its quota, or more than the largest node has.",
            "`RESOURCE_EXHAUSTED`, reason `QUOTA_EXCEEDED`, with `QuotaFailure` for each quota; what fits nowhere waits "
            "and says so.",
        ),
        (
            "odd-cluster-sizes",
            "Asks for -1 or 10^9 kernels, or 33 roles.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`.",
        ),
        (
            "odd-durations",
            "Asks for negative times, more than a year, or nanoseconds out of range.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`.",
        ),
        (
            "images-of-forbidden-registries",
            "Asks for an image of a registry that its group does not allow, on loopback, at an address, with a trick in "
            "its reference.",
            "`PERMISSION_DENIED`, reason `IMAGE_NOT_ALLOWED`; no reference is `INVALID_ARGUMENT`.",
        ),
        (
            "registries-on-the-node",
            "Has a node's engine connect to its own loopback interface, however that is spelled.",
            "The attempt fails with `IMAGE_DENIED`; nothing connects.",
        ),
        (
            "moved-tags",
            "Moves a tag after a kernel of the session has begun.",
            "All kernels of a session run the digest that the first one found; another one fails with `IMAGE_DIFFERS`.",
        ),
        (
            "powers-of-containers",
            "Asks for privileges, capabilities, namespaces of the host or another user by an image, a variable or a label.",
            "No field leads there: the engine itself says that there is none of it, and root of an image is refused.",
        ),
        (
            "forbidden-mounts",
            "Mounts `/`, `/etc`, `/proc`, the engine's socket, files of the agent, or a path with `..`.",
            "`PERMISSION_DENIED`, reason `MOUNT_NOT_ALLOWED`; on the node, `MOUNT_REFUSED`.",
        ),
        (
            "links-in-mounts",
            "Mounts a link that leads out, or swaps a directory for one while it is mounted.",
            "The session ends with `MOUNT_REFUSED`; no file outside is ever seen.",
        ),
        (
            "targets-of-mounts",
            "Mounts onto `/`, `/proc`, `/etc/cron.d`, the files of a kernel, twice, or onto a relative path.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`.",
        ),
        (
            "odd-variables",
            "Sets variables with `=` or NUL in their names, of the platform's own prefix, or megabytes of them.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`; beyond 4 MiB `RESOURCE_EXHAUSTED`.",
        ),
        (
            "forged-labels",
            "Gets its words into the labels by which an agent knows its containers; makes a container with these labels.",
            "Labels hold nothing of users; a container of others is neither taken over nor removed.",
        ),
        (
            "template-injection",
            "Writes `{{7*7}}`, `${…}` or `$(…)` into commands, variables and templates.",
            "They come out as they went in: nothing is evaluated.",
        ),
        (
            "templates-of-others",
            "Reads, uses, changes or removes a template of another project by its id or name.",
            "`NOT_FOUND` by id, `PERMISSION_DENIED` by name, reason `PROJECT_DENIED`; a template holds no more than a "
            "request may.",
        ),
        (
            "odd-dependencies",
            "Depends on itself, on a cycle, on a session of another, on an interactive one, on 100,000.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`, with the dependency; cycles are named.",
        ),
        (
            "large-messages",
            "Sends 5 MB, or 64 MiB packed into little; a script of more than 64 KiB.",
            "`RESOURCE_EXHAUSTED`; the script is `INVALID_ARGUMENT`.",
        ),
        (
            "unreadable-messages",
            "Sends bytes that are no message, 50,000 groups in each other, text that is no UTF-8, NUL, enums that there are not.",
            "`INVALID_ARGUMENT`, reason `INVALID_FIELD`, for every method, without a traceback in the log.",
        ),
        (
            "many-heavy-calls",
            "Lists without end, at once.",
            "`RESOURCE_EXHAUSTED` with `RetryInfo` and `QuotaFailure` for the user; others are answered meanwhile.",
        ),
        (
            "many-streams",
            "Opens streams without end: watches, commands in a kernel, sockets of the console.",
            "`RESOURCE_EXHAUSTED`, reason `STREAM_LIMIT`, with the limit; 429 at the console.",
        ),
        (
            "odd-deadlines",
            "Calls without a deadline, with one of 100 years, of nothing, or cancels in the middle of a transaction.",
            "`DEADLINE_EXCEEDED` after the server's own time; the next user of the connection gets right answers.",
        ),
        (
            "odd-pages",
            "Asks for pages of -1 or 2^31 rows, or with a forged token.",
            "`INVALID_ARGUMENT` for -1 and the token; 500 rows at most.",
        ),
        (
            "slow-filters",
            "Sends filters and references that are SQL, 10,000 letters, or made to take long.",
            "`INVALID_ARGUMENT`, or `NOT_FOUND` of a reference, at once; no row is changed.",
        ),
        (
            "commands-where-none-run",
            "Runs commands, code, ports and files in a session that waits, has ended, or is of a type without them.",
            "`FAILED_PRECONDITION`, reason `STATE_FORBIDS` or `FEATURE_UNAVAILABLE`.",
        ),
        (
            "odd-commands",
            "Runs commands with 1,025 arguments, NUL, terminals of no or 65,535 columns, and steps out of order.",
            "`INVALID_ARGUMENT`, with the field.",
        ),
        (
            "ports-of-nodes",
            "Declares or opens ports below 1024, those of the platform, or ports that were not declared.",
            "`INVALID_ARGUMENT` when declared, `NOT_FOUND` when opened.",
        ),
        (
            "other-kernels-from-outside",
            "Reaches a kernel's port by the network of its node.",
            "No connection but from a router to a published port.",
        ),
        (
            "tickets-of-ports",
            "Opens a service port in a browser without a ticket, twice with one, with another session's, after the end.",
            "401 without, 403 for a used or another's ticket; open connections end with the session and the token.",
        ),
        (
            "addresses-of-ports",
            "Sends a service port another session's `Host`, absolute addresses, two lengths, `//` and `..;/`.",
            "421 for an unknown host, 401 for another session's, 400, 431 or 501 for what is no request.",
        ),
        (
            "webhooks-to-inner-addresses",
            "Has the manager send webhooks to loopback or private addresses, in five spellings.",
            "Nothing connects; the address is refused after names are looked up.",
        ),
        (
            "pickers-to-inner-addresses",
            "Has a router connect to its own loopback interface as a picker.",
            "Nothing connects; the endpoint says `is no address that this router connects to (--picker-allow)`.",
        ),
        (
            "hostile-uploads",
            "Uploads to `..`, absolute paths, through links, onto FIFOs, or a petabyte; its kernel exchanges a directory for a "
            "link meanwhile.",
            "`INVALID_ARGUMENT` for the path, `FAILED_PRECONDITION`, reason `FILE_REFUSED`, through a link; nothing is "
            "written outside.",
        ),
        (
            "sftp-escapes",
            "Asks an SFTP server for a shell, a command, a terminal, forwarding, set-id bits, `..`, another's certificate, "
            "a password.",
            "Each is refused; `Permission denied (publickey)` without the session's own certificate.",
        ),
        (
            "sftp-floods",
            "Opens channels without end, sends messages that make no sense, at an SFTP server.",
            "A bounded number of channels; that connection may end, and no other.",
        ),
        (
            "variables-of-others",
            "Reads the variables of a member's session as an administrator of the project.",
            "Names without values, in every view.",
        ),
        (
            "log-injection",
            "Writes line breaks, escape sequences and C1 into names, tokens and requests.",
            "Errors, lines of logs and metadata hold printable text of bounded length.",
        ),
        (
            "slow-readers",
            "Opens watches, commands, ports and downloads, and does not read what comes.",
            "A watch is cut with `RESOURCE_EXHAUSTED`, reason `READER_TOO_SLOW`; a command, a port or a download waits, "
            "with a bounded amount of memory. Others are served.",
        ),
        (
            "unread-tunnels",
            "Opens tunnels and does not read them.",
            "Each holds a bounded amount of memory, and others are served.",
        ),
        (
            "odd-scaling",
            "Sets bounds of endpoints that contradict, of 10^9, `NaN`, or without a pause.",
            "`INVALID_ARGUMENT` with the field; what is accepted, routers take.",
        ),
        (
            "endpoints-of-others",
            "Names another project's endpoint; creates a session in its name.",
            "`NOT_FOUND`; reason `ENDPOINT_MANAGED`.",
        ),
    ),
    _partly(
        Attacker.USER,
        "files-of-others-in-a-mount",
        "Guesses another user's directory below a root that both may mount.",
        "With `{user}` in the root, `PERMISSION_DENIED`, reason `MOUNT_NOT_ALLOWED`.",
        "Below a root without `{user}`, all files belong to one user, unless the root names an owner.",
    ),
    _partly(
        Attacker.USER,
        "bursts-of-one-user",
        "Creates, lists and ends sessions as fast as it can.",
        "Users take turns, each at a pace of their own; calls of others are answered before those that wait.",
        "New sessions of others start several times later meanwhile; that calls of others take at most twice their"
        " time holds in the simulation, and was not reached on a cluster; a request that creates thousands of"
        " sessions holds the event loop for more than 10 ms.",
    ),
    *_rows(
        Attacker.USER,
        (
            "acts-without-a-trace",
            "Does something with rights of an administrator or on an account, or is denied something, and kills the "
            "manager before it is recorded; fills the records with denied calls.",
            "An act is recorded before it begins, or fails with `UNAVAILABLE` and was not done; one whose manager was "
            "killed has a record without an outcome. 10,000 denied calls of a kind are one record a minute.",
        ),
    ),
    _no_feature(
        Attacker.USER,
        "shared-commands",
        "Writes to the input of another's command.",
        "A command belongs to the call that began it, and has no name by which others reach it.",
    ),
    # Pages.
    *_rows(
        Attacker.PAGE,
        (
            "foreign-origins",
            "Posts to the console or opens its WebSockets, from another origin, a sibling, `null`, or with two origins.",
            "403, and no cookie is set.",
        ),
        (
            "paths-of-the-console",
            "Calls methods by other spellings, services that are not passed on, and with bodies that are no one message.",
            "404, 405, 415, 413 or 400, by a table.",
        ),
        (
            "pages-of-ports",
            "Opens WebSockets of a session's port, reads its cookies, or sets cookies for its domain.",
            "401 without the cookie, 403 from another origin; `Domain` is taken off, and the gateway's cookie is passed "
            "to no program.",
        ),
    ),
    # Code.
    *_rows(
        Attacker.CODE,
        (
            "terminals",
            "Opens 80 terminals.",
            "64 open, 16 do not; others of the node have theirs.",
        ),
        (
            "tcp-buffers",
            "Fills buffers of connections to itself, in a kernel of 64 MiB.",
            "Less than 32 MiB are held, or the kernel ends with `OOM_KILLED`.",
        ),
        (
            "connection-tracking",
            "Opens connections until its node tracks no more.",
            "Beyond its part of the table `ECONNREFUSED`; other kernels connect.",
        ),
        (
            "fork-bombs",
            "Starts processes without end.",
            "`fork` fails at the limit inside; the kernel goes on, and its node too.",
        ),
        (
            "memory-bombs",
            "Takes more memory than it has, in files of `/tmp` and `/dev/shm` too.",
            "`ENOSPC` in the file systems, `OOM_KILLED` for the rest.",
        ),
        (
            "endless-output",
            "Prints without end, as a command and as code.",
            "The newest part is kept at its true offset; of code, `events are not kept any more`.",
        ),
        (
            "hostile-code",
            "Kills its first process, takes too much memory, sends messages without end to the agent.",
            "`PermissionError`, `PROCESS_LOST`, and the session goes on; the agent's memory is bounded.",
        ),
        (
            "system-calls",
            "Calls `unshare`, `mount`, `bpf`, `perf_event_open`, `io_uring_setup`, `keyctl` and sockets of rare families.",
            "`EPERM` or the error of a call that there is not, for the command and for what enters later.",
        ),
        (
            "users-of-kernels",
            "Reaches another kernel's processes, files or keys by a user that both have.",
            "Each kernel of a node has a user of its own.",
        ),
        (
            "sockets-of-the-host",
            "Connects to UNIX sockets of the node's daemons.",
            "`ECONNREFUSED`.",
        ),
        (
            "platform-from-a-kernel",
            "Connects to managers, agents, the database, the engine, 169.254.169.254 and nodes.",
            "`ECONNREFUSED`; no packet leaves.",
        ),
        (
            "other-sessions",
            "Sends TCP, ICMP and broadcasts to kernels of other sessions, with their addresses too.",
            "No packet arrives.",
        ),
        (
            "forged-frames",
            "Sends frames with MAC, IP or ARP of others, and the egress link another source.",
            "No peer and no host receives them.",
        ),
        (
            "keys-of-others",
            "Looks for the SSH keys of other sessions.",
            "They are in no file, variable, command line or log; keys differ by session and attempt.",
        ),
        (
            "planted-files",
            "Plants links, FIFOs, sparse files and names that lead out, for who downloads or uploads.",
            "Reason `FILE_REFUSED`, or left out and said so; nothing is written outside the target.",
        ),
        (
            "escape-sequences",
            "Prints sequences that move the cursor, set the title or copy.",
            "`retinue logs` and tables show them as text; colours pass.",
        ),
    ),
    *_rows(
        Attacker.CODE,
        (
            "secrets-in-logs",
            "Reads logs, command lines and files of the node for variables, tickets, tokens and keys.",
            "None is there: a variable is in the environment of its own kernel and in the database.",
        ),
    ),
    _partly(
        Attacker.CODE,
        "forged-vxlan",
        "Sends VXLAN to nodes, with the numbers and sources of others.",
        "Dropped where it leaves and where it arrives: a session's nodes are taken together with its number.",
        "A host in the network of the nodes that forges a node's address is believed: there is no encryption.",
    ),
    _partly(
        Attacker.CODE,
        "fork-bombs-beside-others",
        "Ten kernels of a node start processes without end and use all processors.",
        "Each has its own limits; the processor is shared by weight.",
        "The share of others is not asserted: it would be a test of speed.",
    ),
    _partly(
        Attacker.CODE,
        "disk-of-the-node",
        "Fills the disk or its inodes.",
        "`ENOSPC` in that kernel at the bytes of its slot `disk`, of which no node promises more than it has, and at the files in proportion.",
        "Pods, containers that write "
        "elsewhere, and kernels of agents with the condition `DISK_NOT_BOUNDED` or `ENGINE_APART` are ended with "
        "`DISK_EXCEEDED` when too much is seen.",
    ),
    _partly(
        Attacker.CODE,
        "files-of-the-host",
        "Reads files of the host that anyone there may read, and paths in `/proc/1`, as a native process.",
        "It sees programs, libraries and what the agent's `--show` names. Other paths do not exist, and descriptors of "
        "directories elsewhere lead nowhere where Linux has Landlock.",
        "`/proc/self/mountinfo` has the paths of the output and the mounts on the host: Linux says so of each mount. "
        "Commands that are attached, and code, have no Landlock: debuggers would not reach the command.",
    ),
    # Nodes.
    *_rows(
        Attacker.NODE,
        (
            "reports-about-others",
            "Reports on attempts, networks and use of other nodes' sessions; announces or renews for another node.",
            "Nothing changes, and the node is drained with the condition `OUT_OF_BOUNDS`; `PERMISSION_DENIED`, reason "
            "`METHOD_DENIED`, for methods.",
        ),
        (
            "agents-as-users",
            "Calls methods of users and administrators, with a token beside the certificate too.",
            "`PERMISSION_DENIED`, reason `METHOD_DENIED`.",
        ),
        (
            "agents-as-managers",
            "Calls another agent with its own certificate.",
            "`PERMISSION_DENIED`, reason `METHOD_DENIED`.",
        ),
        (
            "attempts-of-other-nodes",
            "Asks for the specification or the secrets of attempts that were placed elsewhere.",
            "There is no such method: an agent is sent what was placed on it, and no more.",
        ),
        (
            "impossible-capacity",
            "Reports 10^12 processors, negative memory, 65 slots, NUL, or addresses that are none.",
            "The message is rejected with its reason, `BAD_CAPACITY`, `TOO_MANY`, `BAD_WORD` or `BAD_ADDRESS`; the node "
            "is quarantined, and no other.",
        ),
        (
            "revoked-nodes",
            "Comes back after it was revoked, with its own or with a stolen former certificate.",
            "`UNAUTHENTICATED`, reason `AGENT_REVOKED`; its sessions are treated as lost.",
        ),
        (
            "copied-nodes",
            "Runs a second agent with a copy of the state directory.",
            "`ALREADY_EXISTS`, reason `AGENT_ID_IN_USE`.",
        ),
        (
            "message-floods",
            "Sends messages to the manager without end.",
            "They are read at a bounded rate, and others are served; the manager logs it.",
        ),
        (
            "former-commands",
            "Replays a command of a former leader to an agent.",
            "`FAILED_PRECONDITION`, reason `STALE_TERM`, after a restart too.",
        ),
    ),
    _partly(
        Attacker.NODE,
        "agents-that-do-nothing",
        "Answers heartbeats, and neither starts what is placed there nor says why.",
        "After 30 s the node has the condition `NOT_FOLLOWING`, and what has not begun is placed elsewhere; one that says "
        "that it received it, and starts nothing, is avoided with `STARTS_FAILING`.",
        "The latter takes the `start_timeout` of the group, 10 minutes by default.",
    ),
    _partly(
        Attacker.NODE,
        "mass-loss",
        "Cuts off more than half of a group's nodes at once, three at least.",
        "They stay `SUSPECT` with the condition `LOSS_HELD`, over a change of leaders: nothing is ended, run again or "
        "replaced until each is heard, or an administrator confirms that it is lost.",
        "A node without a manager ends by itself what may be run again. Fewer nodes are lost as before.",
    ),
)


def marked() -> dict[str, list[str]]:
    """Returns the ids of the tests that each mark names, by the name in the mark. Raises ValueError for a mark that is
    not on a test.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{MARK}(" in text:
            for name, test in _marks(ast.parse(text), path):
                found.setdefault(name, []).append(f"{path.relative_to(TESTS.parent)}::{test}")
    return found


def _marks(module: ast.Module, path: Path) -> Iterator[tuple[str, str]]:
    placed = 0
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test_"):
            for decorator in filter(_is_mark, statement.decorator_list):
                placed += 1
                for name in decorator.args:
                    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                        raise ValueError(f"{path}:{decorator.lineno}: a mark names rows by literals")
                    yield name.value, statement.name
    if placed != sum(map(_is_mark, ast.walk(module))):
        raise ValueError(f"{path}: a mark is not on a test")


def _is_mark(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{MARK}"
