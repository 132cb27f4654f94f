"""Where programs of ours get names in a kernel, by the search path of its command."""

from __future__ import annotations

import pytest

from retinue.agent.inside.provision import PLANTED, places


@pytest.mark.parametrize(
    ("search_path", "first"),
    [
        ("", ["/usr/local/bin"]),
        ("/usr/local/sbin:/usr/local/bin:/usr/bin:/bin", ["/usr/local/bin", "/usr/bin", "/bin"]),
        ("/bin:/usr/bin", ["/usr/bin", "/bin", "/usr/local/bin"]),
        ("/opt/conda/bin:/bin", ["/bin", "/usr/local/bin"]),
        ("/nix/profile/bin//:/opt/bin", ["/nix/profile/bin", "/opt/bin", "/usr/local/bin"]),
        # In memory, in a mount, at odd places: what is there is gone or covered when the command looks.
        ("/tmp/bin:/home/work/bin:/run/x:/data/tools/bin:/opt/bin", ["/opt/bin", "/usr/local/bin"]),  # noqa: S108
        ("/:relative:/opt/../proc:", list(PLANTED)),
    ],
)
def test_places_of_programs(search_path: str, first: list[str]) -> None:
    found = list(places(search_path, ["/data"]))
    assert found[: len(first)] == first
    assert set(PLANTED) <= set(found)
