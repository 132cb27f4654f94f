"""Which manager is meant: flags, environment, contexts."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.client.aio import Settings, UsageError
from retinue.client.settings import contexts_path, read_ca, read_contexts, resolve, with_absolute_ca, write_context

if TYPE_CHECKING:
    from tests.unit.client.conftest import Certificate

DEV = Settings("127.0.0.1:7440", "rtn_dev", "/ca.pem")
OTHER = Settings("far.example:7440", "rtn_far", None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "retinue" / "contexts.yaml"
    write_context(path, "dev", DEV)
    write_context(path, "far", OTHER)
    return path


@pytest.fixture
def environment(path: Path) -> dict[str, str]:
    return {"RETINUE_CONTEXTS": str(path)}


def test_contexts_survive_writing_and_are_for_the_owner_only(path: Path) -> None:
    assert read_contexts(path) == ("dev", {"dev": DEV, "far": OTHER})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["contexts.yaml"]


def test_the_current_context_is_used(environment: dict[str, str]) -> None:
    assert resolve(environment) == DEV


def test_a_context_by_name(environment: dict[str, str]) -> None:
    assert resolve(environment, context="far") == OTHER
    assert resolve({**environment, "RETINUE_CONTEXT": "far"}) == OTHER
    assert resolve({**environment, "RETINUE_CONTEXT": "nowhere"}, context="far") == OTHER


def test_the_environment_goes_before_the_context_and_a_flag_before_both(environment: dict[str, str]) -> None:
    environment |= {"RETINUE_ENDPOINT": "env:1", "RETINUE_TOKEN": "t1", "RETINUE_CA": "/env.pem"}
    assert resolve(environment) == Settings("env:1", "t1", "/env.pem")
    assert resolve(environment, endpoint="flag:2", token="t2", ca="/flag.pem") == Settings("flag:2", "t2", "/flag.pem")


def test_a_contexts_token_goes_to_its_own_endpoint_only(environment: dict[str, str]) -> None:
    assert resolve(environment, endpoint="evil:1") == Settings("evil:1", None, None)
    assert resolve(environment, context="dev", endpoint="evil:1") == Settings("evil:1", None, None)
    assert resolve(environment, context="dev", endpoint=DEV.endpoint) == DEV
    assert resolve({**environment, "RETINUE_ENDPOINT": "evil:1", "RETINUE_CONTEXT": "dev"}).token is None


def test_an_endpoint_of_the_context_keeps_its_token_and_ca(environment: dict[str, str]) -> None:
    assert resolve(environment, endpoint=DEV.endpoint) == DEV
    assert resolve({**environment, "RETINUE_ENDPOINT": DEV.endpoint}) == DEV
    assert resolve(environment, endpoint=DEV.endpoint, token="t") == Settings(DEV.endpoint, "t", DEV.ca)
    assert resolve(environment, endpoint=f"{DEV.endpoint},evil:1").token is None
    # It is not the current one.
    assert resolve(environment, endpoint=OTHER.endpoint).token is None
    assert resolve({**environment, "RETINUE_CONTEXT": "far"}, endpoint=OTHER.endpoint) == OTHER


def test_one_of_several_endpoints_of_a_context_keeps_its_token(path: Path, environment: dict[str, str]) -> None:
    write_context(path, "two", Settings("a:1,b:1", "t", "/ca.pem"), make_current=True)
    assert resolve(environment, endpoint="b:1") == Settings("b:1", "t", "/ca.pem")


def test_an_endpoint_needs_no_readable_contexts(path: Path, environment: dict[str, str]) -> None:
    path.write_text("{")
    assert resolve(environment, endpoint="a:1", token="t") == Settings("a:1", "t", None)


def test_a_context_keeps_the_absolute_path_of_a_ca(
    ca_file: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ca_file.parent)
    assert with_absolute_ca(Settings("a:1", "t", "ca.pem")) == Settings("a:1", "t", str(ca_file))
    pem = certificate.certificate.decode()
    assert with_absolute_ca(Settings("a:1", "t", pem)).ca == pem
    assert with_absolute_ca(Settings("a:1", "t", None)).ca is None
    with pytest.raises(UsageError, match="the CA's certificate cannot be read"):
        with_absolute_ca(Settings("a:1", "t", "none.pem"))


def test_a_token_of_the_environment_goes_with_a_context(environment: dict[str, str]) -> None:
    assert resolve({**environment, "RETINUE_TOKEN": "mine"}) == Settings(DEV.endpoint, "mine", DEV.ca)


def test_nothing_known(tmp_path: Path, environment: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no manager is known"):
        resolve({"RETINUE_CONTEXTS": str(tmp_path / "none.yaml")})
    with pytest.raises(UsageError, match=r"no context 'gone'.*dev, far"):
        resolve(environment, context="gone")


def test_a_file_that_others_may_read_is_refused(path: Path) -> None:
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_contexts(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "must hold"),
        ("contexts: [1]", "must hold"),
        ("contexts: {a: {}}", "has no endpoint"),
        ("contexts: {a: {endpoint: 'x', tokn: y}}", "unknown keys: tokn"),
        ("contexts: {a: ", "cannot be read"),
        ("!!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_a_file_that_makes_no_sense(path: Path, content: str, message: str) -> None:
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_contexts(path)


def test_removing_the_current_context(path: Path) -> None:
    write_context(path, "dev", None)
    assert read_contexts(path) == (None, {"far": OTHER})
    write_context(path, "third", DEV, make_current=True)
    assert read_contexts(path)[0] == "third"


def test_an_empty_file(path: Path) -> None:
    path.write_text("")
    assert read_contexts(path) == (None, {})


def test_places() -> None:
    assert contexts_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/retinue/contexts.yaml")
    assert contexts_path({"RETINUE_CONTEXTS": "/y.yaml", "XDG_CONFIG_HOME": "/x"}) == Path("/y.yaml")
    assert contexts_path({}) == Path.home() / ".config/retinue/contexts.yaml"


def test_ca(ca_file: Path, certificate: Certificate) -> None:
    pem = certificate.certificate
    assert read_ca(None) is None
    assert read_ca(pem) == read_ca(pem.decode()) == read_ca(str(ca_file)) == read_ca(ca_file) == pem
    commented = "# für uns\n".encode() + pem
    assert read_ca(commented) == commented


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe\x00", b"-----BEGIN CERTIFICATE-----", None])
def test_a_ca_that_is_none_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"ca\.pem.*RETINUE_CA, or --ca, must name a copy of the manager's ca\.pem"):
        read_ca(file)


def test_the_key_is_no_ca(certificate: Certificate) -> None:
    with pytest.raises(UsageError, match="no certificate in PEM: RETINUE_CA"):
        read_ca(certificate.key)
    with pytest.raises(UsageError, match="no certificate in PEM: RETINUE_CA"):
        read_ca("-----BEGIN CERTIFICATE-----")
    with pytest.raises(UsageError, match="RETINUE_CA"):
        read_ca("a\0b")
