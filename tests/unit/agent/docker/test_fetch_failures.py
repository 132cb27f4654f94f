"""What users read of a failed fetch, and what is tried again."""

from __future__ import annotations

import pytest

from retinue.agent.docker import fetch_failures
from retinue.agent.docker.fetch_failures import FetchFailure, failure_of

ENGINE_AND_CONTAINERD: dict[str, FetchFailure] = {
    "manifest for r/a:b not found: manifest unknown: manifest unknown": fetch_failures.NOT_FOUND,
    "no matching manifest for linux/arm64/v8 in the manifest list entries": fetch_failures.NOT_FOUND,
    "no match for platform in manifest sha256:00: not found": fetch_failures.NOT_FOUND,
    "invalid reference format": fetch_failures.NOT_FOUND,
    'failed to resolve reference "r/a@sha256:00": invalid checksum digest length': fetch_failures.NOT_FOUND,
    "pull access denied for a, repository does not exist or may require 'docker login'": fetch_failures.DENIED,
    "Get https://r/v2/a/manifests/b: unauthorized: authentication required": fetch_failures.DENIED,
    "Head http://r/v2/: no basic auth credentials": fetch_failures.DENIED,
    "pulling from host r failed with status code [manifests 1]: 401 Unauthorized": fetch_failures.DENIED,
    "unsupported media type application/vnd.cncf.helm.config.v1+json": fetch_failures.NO_IMAGE,
    "layers from manifest don't match image configuration": fetch_failures.MISMATCHED,
    "mismatched image rootfs and manifest layers": fetch_failures.MISMATCHED,
    'wrong diff id calculated on extraction "sha256:00"': fetch_failures.MISMATCHED,
    # Of a manifest, or of an answer that is none.
    "invalid character 'o' in literal null (expecting 'u')": fetch_failures.UNREACHED,
    "failed to resolve rootfs: json: cannot unmarshal string into Go struct field": fetch_failures.MISMATCHED,
    "filesystem layer verification failed for digest sha256:00": fetch_failures.CORRUPT,
    "unexpected commit digest sha256:00, expected sha256:11: failed precondition": fetch_failures.CORRUPT,
    "error pulling image configuration: download failed after attempts=1: unknown blob": fetch_failures.CORRUPT,
    "httpReadSeeker: failed open: could not fetch content descriptor sha256:00 (x) from remote: not found": (
        fetch_failures.CORRUPT
    ),
    "failed to register layer: Error processing tar file(exit status 1): archive/tar: invalid tar header": (
        fetch_failures.UNREADABLE
    ),
    "failed to register layer: Error processing tar file(exit status 1): unexpected EOF": fetch_failures.UNREADABLE,
    "failed to register layer: max depth exceeded": fetch_failures.TOO_DEEP,
    'image operating system "windows" cannot be used on this platform': fetch_failures.OTHER_SYSTEM,
    "failed to register layer: write /x: no space left on device": fetch_failures.NO_SPACE,
    "failed to register layer: Error processing tar file(exit status 1): operation not permitted": (
        fetch_failures.NOT_UNPACKED
    ),
    "toomanyrequests: too many requests": fetch_failures.LIMITED,
    "unexpected EOF": fetch_failures.UNREACHED,
    "dial tcp: lookup r on 10.0.0.1:53: no such host: not found": fetch_failures.UNREACHED,
    "received unexpected HTTP status: 503 Service Unavailable": fetch_failures.UNREACHED,
    "": fetch_failures.UNREACHED,
}


@pytest.mark.parametrize(("message", "failure"), ENGINE_AND_CONTAINERD.items())
def test_what_engines_say_of_a_failed_fetch(message: str, failure: FetchFailure) -> None:
    assert failure_of(message) == failure


def test_what_stays_is_not_tried_again_on_the_node() -> None:
    everything = {*ENGINE_AND_CONTAINERD.values(), fetch_failures.NO_CREDENTIALS}
    assert {failure for failure in everything if failure.may_pass} == {fetch_failures.LIMITED, fetch_failures.UNREACHED}
    # One reason is for other nodes to try: this one's disk, engine or credentials are not theirs.
    assert {failure.reason for failure in everything if failure.may_pass} == {"IMAGE_PULL_FAILED"}


def test_what_services_say_is_not_what_users_read() -> None:
    heard = [
        'Get http://10.0.0.1:22/v2/: net/http: HTTP/1.x transport connection broken: malformed HTTP response "SSH-2.0"',
        "Get https://10.0.0.1/v2/: x509: certificate signed by unknown authority",
        "dial tcp 10.0.0.1:1: connect: connection refused",
        "dial tcp 10.0.0.1:2: i/o timeout",
        "Get https://10.0.0.1/v2/: http: server gave HTTP response to HTTPS client",
        "error parsing HTTP 403 response body: internal-banner-secret\0",
    ]
    assert {failure_of(text) for text in heard} == {fetch_failures.UNREACHED}
    assert failure_of("denied: internal-banner-secret") == failure_of("unauthorized: other")
