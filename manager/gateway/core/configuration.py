"""Builds Caddy's configuration: whom to ask about each request, and where to send it then. Pure.

All of it is known at the start: where a request goes is in the manager's answer about it. Caddy keeps nothing, and has no port for
administration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.manager.gateway.core.rules import OPEN_PATH

# Set here for the manager, over whatever a client sends under these names.
HOST, METHOD, STEP = "X-Retinue-Host", "X-Retinue-Method", "X-Retinue-Step"
CHECK, OPEN = "check", "open"
# What a browser says of where a request comes from, as it came: a client may name these headers in `Connection`, and then the proxy
# takes them away before the manager could look.
SOURCES = {name: f"X-Retinue-{name}" for name in ("Origin", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")}
# Set by the manager for requests that are forwarded to the kernel.
SOCKET, COOKIE = "X-Retinue-Socket", "X-Retinue-Cookie"

# Of a Set-Cookie, as browsers read it: there may be spaces around the name.
DOMAIN_OF_COOKIE = r"(?i);\s*domain\s*=[^;]*"
_ANSWERED = "http.reverse_proxy.header"
_LONGEST_HEADERS = 32 * 1024
_BUFFER = 64 * 1024


def configuration(
    descriptor: int, manager_socket: str, failure: bytes, certificate: tuple[bytes, bytes] | None
) -> Mapping[str, Any]:
    """For a listening socket that Caddy gets as a descriptor, the manager's socket (a name in the abstract namespace, without its zero), the
    page for when that is not there, and, for TLS, certificate chain and key in PEM.
    """
    server: dict[str, Any] = {
        "listen": [f"fd/{descriptor}"],
        # HTTP/3 needs a port for datagrams too, and browsers speak HTTP/2 over TLS only.
        "protocols": ["h1"] if certificate is None else ["h1", "h2"],
        "automatic_https": {"disable": True},
        "read_header_timeout": "10s",
        "idle_timeout": "2m",
        "max_header_bytes": _LONGEST_HEADERS,
        "routes": [_opening(manager_socket), _checked(manager_socket)],
        "errors": {"routes": [_failed(failure)]},
    }
    applications: dict[str, Any] = {"http": {"grace_period": "1s", "servers": {"gateway": server}}}
    if certificate is not None:
        chain, key = (part.decode() for part in certificate)
        server["tls_connection_policies"] = [{}]
        applications["tls"] = {
            "certificates": {"load_pem": [{"certificate": chain, "key": key}]},
            "disable_storage_clean": True,
            "disable_ocsp_stapling": True,
        }
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": {"level": "WARN", "exclude": ["admin"], "encoder": _without_secrets()}}},
        "apps": applications,
    }


def _opening(manager_socket: str) -> Mapping[str, Any]:
    """The gateway's own pages."""
    asking = _asking(manager_socket, OPEN)
    return {"match": [{"path": [OPEN_PATH, "/.retinue/*"]}], "handle": [asking], "terminal": True}


def _checked(manager_socket: str) -> Mapping[str, Any]:
    """Everything else: the manager says where it goes, or what it is refused with."""
    asking = {
        **_asking(manager_socket, CHECK),
        "rewrite": {"method": "GET", "uri": "/"},
        "handle_response": [{"match": {"status_code": [2]}, "routes": _passing_on()}],
    }
    relay = {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": "unix/@{http.vars.retinue_socket}"}],
        "headers": {
            # A cookie for the whole domain would go to all other hosts of it.
            "response": {"replace": {"Set-Cookie": [{"search_regexp": DOMAIN_OF_COOKIE, "replace": ""}]}}
        },
        "transport": {
            "protocol": "http",
            "dial_timeout": "3s",
            "compression": False,
            "keep_alive": {"idle_timeout": "30s", "max_idle_conns_per_host": 16},
            "read_buffer_size": _BUFFER,
            "write_buffer_size": _BUFFER,
        },
    }
    return {"handle": [asking, relay]}


def _asking(manager_socket: str, step: str) -> dict[str, Any]:
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/@{manager_socket}"}],
        # A manager that does not respond is reported, and connections to it are dropped here before it drops them.
        "transport": {
            "protocol": "http",
            "dial_timeout": "3s",
            "response_header_timeout": "20s",
            "keep_alive": {"idle_timeout": "30s"},
        },
        "headers": {
            "request": {
                # The question itself is no upgrade.
                "delete": ["Connection", "Upgrade", "Sec-Websocket-*"],
                "set": {
                    STEP: [step],
                    HOST: ["{http.request.hostport}"],
                    METHOD: ["{http.request.method}"],
                    **{ours: [f"{{http.request.header.{name}}}"] for name, ours in SOURCES.items()},
                },
            }
        },
    }


def _passing_on() -> list[Mapping[str, Any]]:
    """Returns the handlers for the manager's answer: the upstream socket, and the cookies that are the program's."""
    rest = f"{{{_ANSWERED}.{COOKIE}}}"
    return [
        {"handle": [{"handler": "vars", "retinue_socket": f"{{{_ANSWERED}.{SOCKET}}}"}]},
        {"handle": [{"handler": "headers", "request": {"delete": ["Cookie", "X-Retinue-*"]}}]},
        {
            "match": [{"not": [{"vars": {rest: [""]}}]}],
            "handle": [{"handler": "headers", "request": {"set": {"Cookie": [rest]}}}],
        },
    ]


def _failed(page: bytes) -> Mapping[str, Any]:
    # In a page, braces would be places to fill in.
    body = page.decode().replace("{", r"\{")
    headers = {"Content-Type": ["text/html; charset=utf-8"], "Cache-Control": ["no-store"]}
    return {
        "match": [{"vars": {"{http.error.status_code}": ["502", "503", "504"]}}],
        "handle": [{"handler": "static_response", "status_code": "502", "headers": headers, "body": body}],
    }


def _without_secrets() -> Mapping[str, Any]:
    """Lines for people, without what may hold a ticket or a cookie."""
    hidden = ("request>uri", "request>headers", "resp_headers", "uri", "headers")
    return {
        "format": "filter",
        "wrap": {"format": "console", "level_format": "upper"},
        "fields": {name: {"filter": "delete"} for name in hidden},
    }
