"""The TemplateService: versions, who may do what, what sessions are made from, and what is refused."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from sqlalchemy import text

from retinue.manager.store.accounts import accounts
from retinue.manager.v1 import session_pb2 as spb
from retinue.manager.v1 import session_service_pb2 as sessions_pb
from retinue.manager.v1 import session_service_pb2_grpc, template_service_pb2_grpc
from retinue.manager.v1 import template_service_pb2 as pb
from tests.integration.manager.rig import Service, bearer, failure, reasons, status_apart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="session")

Code = grpc.StatusCode


class Rig:
    """The service as people of two projects and an administrator see it."""

    def __init__(self, service: Service, channel: grpc.aio.Channel, tokens: dict[str, str]) -> None:
        self.service = service
        self.stub: template_service_pb2_grpc.TemplateServiceAsyncStub = template_service_pb2_grpc.TemplateServiceStub(
            channel
        )
        self.sessions: session_service_pb2_grpc.SessionServiceAsyncStub = session_service_pb2_grpc.SessionServiceStub(
            channel
        )
        self.metadata = {name: bearer(token) for name, token in tokens.items()}

    async def create(self, caller: str = "ada", **fields: Any) -> pb.Template:
        request = pb.CreateTemplateRequest(template=pb.Template(**fields))
        return (await self.stub.CreateTemplate(request, metadata=self.metadata[caller])).template

    async def get(self, template: str, caller: str = "ada", **fields: Any) -> pb.Template:
        request = pb.GetTemplateRequest(template=template, **fields)
        return (await self.stub.GetTemplate(request, metadata=self.metadata[caller])).template

    async def update(self, template: pb.Template, *paths: str, caller: str = "ada", **fields: Any) -> pb.Template:
        request = pb.UpdateTemplateRequest(template=template, update_mask=FieldMask(paths=paths), **fields)
        return (await self.stub.UpdateTemplate(request, metadata=self.metadata[caller])).template

    async def delete(self, template: str, caller: str = "ada", **fields: Any) -> None:
        await self.stub.DeleteTemplate(
            pb.DeleteTemplateRequest(template=template, **fields), metadata=self.metadata[caller]
        )

    async def names(self, caller: str = "ada", **fields: Any) -> list[tuple[str, int]]:
        found, token = [], ""
        while True:
            request = pb.ListTemplatesRequest(page_token=token, **fields)
            page = await self.stub.ListTemplates(request, metadata=self.metadata[caller])
            found += [(item.name, item.version) for item in page.templates]
            token = page.next_page_token
            if not token:
                return found

    async def render(self, spec: spb.SessionSpec, caller: str = "ada") -> spb.SessionSpec:
        request = pb.RenderTemplateRequest(spec=spec)
        return (await self.stub.RenderTemplate(request, metadata=self.metadata[caller])).spec

    async def session(self, spec: spb.SessionSpec, caller: str = "ada", **fields: Any) -> spb.Session:
        request = sessions_pb.CreateSessionRequest(spec=spec, **fields)
        return (await self.sessions.CreateSession(request, metadata=self.metadata[caller])).session


@pytest_asyncio.fixture(loop_scope="session")
async def rig(service: Service) -> AsyncIterator[Rig]:
    tokens = {
        "ada": await service.user("ada"),
        "bob": await service.user("bob"),
        "eve": await service.user("eve", projects=("other",)),
        "both": await service.user("both", projects=("default", "other")),
        "lead": await service.user("lead"),
        "root": await service.user("root", role="ADMIN", projects=()),
    }
    async with service.database.transaction() as tx:
        await accounts.set_membership(tx, "lead", "default", "ADMIN")
    async with service.channel() as channel:
        yield Rig(service, channel, tokens)


def kernel(**fields: Any) -> spb.KernelSpec:
    return spb.KernelSpec(**fields)


def of(_name: str, version: int = 0, mask: tuple[str, ...] = (), project: str = "", **fields: Any) -> spb.SessionSpec:
    reference = spb.TemplateReference(
        name=_name, version=version, project=project, override_mask=FieldMask(paths=mask) if mask else None
    )
    return spb.SessionSpec(template=reference, **fields)


CLUSTER = spb.SessionSpec(
    type=spb.SESSION_TYPE_INTERACTIVE,
    cluster_mode=spb.CLUSTER_MODE_MULTI_NODE,
    kernel=kernel(environment={"A": "1", "B": "2"}, slots={"cpu": "1", "mem": "64m"}),
    roles=[
        spb.RoleSpec(role="server", kernel=kernel(command=["serve"], slots={"cpu": "2"})),
        spb.RoleSpec(role="worker", count=2, kernel=kernel(command=["work"], environment={"W": "{{7*7}} ${jndi:x}"})),
    ],
)


async def test_versions_are_kept_and_never_change(rig: Rig) -> None:
    first = await rig.create(name="t", description="one", spec=CLUSTER)
    assert (first.project, first.version, first.author, first.for_all_projects) == ("default", 1, "ada", False)
    assert first.spec == CLUSTER
    second = await rig.update(
        pb.Template(name="t", etag=first.etag, spec=spb.SessionSpec(kernel=kernel(slots={"cpu": "4"}))),
        "spec.kernel.slots.cpu",
        "spec.kernel.environment.A",
    )
    assert (second.version, second.description, second.id) == (2, "one", first.id)
    assert dict(second.spec.kernel.slots) == {"cpu": "4", "mem": "64m"}
    assert dict(second.spec.kernel.environment) == {"B": "2"}
    assert second.spec.roles == CLUSTER.roles
    assert (await rig.get("t", version=1)).spec == CLUSTER
    assert await rig.get("t", version=2) == await rig.get("t") == await rig.get(first.id) == second
    # Nothing different: no version. Only checked: none either.
    assert await rig.update(pb.Template(name="t", spec=second.spec)) == second
    shown = await rig.update(pb.Template(id=first.id, description="two"), validate_only=True)
    assert (shown.description, shown.version) == ("two", 2)
    stale = await failure(rig.update(pb.Template(name="t", etag=first.etag, description="x")))
    assert (stale.code, stale.reason, stale.metadata["etag"]) == (Code.ABORTED, "ETAG_MISMATCH", second.etag)
    third = await rig.update(pb.Template(name="t"), "description")
    assert (third.version, third.description, third.spec) == (3, "", second.spec)
    assert await rig.names(versions_of="t", page_size=2) == [("t", 3), ("t", 2), ("t", 1)]
    missing = await failure(rig.get("t", version=4))
    assert (missing.code, missing.reason) == (Code.NOT_FOUND, "NOT_FOUND")


async def test_a_session_is_made_from_a_template_and_remembers_it(rig: Rig) -> None:
    template = await rig.create(name="t", spec=CLUSTER)
    override = of("t", kernel=kernel(slots={"cpu": "3"}), roles=[spb.RoleSpec(role="worker", count=1)], name="mine")
    rendered = await rig.render(override)
    assert dict(rendered.kernel.slots) == {"cpu": "3", "mem": "64m"}
    assert rendered.roles[1].kernel == CLUSTER.roles[1].kernel
    checked = await rig.session(override, validate_only=True)
    request_id = str(uuid.uuid4())
    made = await rig.session(override, request_id=request_id)
    assert checked.spec == made.spec
    assert [item.hostname for item in made.kernels] == ["main1", "server1", "worker1"]
    assert [dict(item.slots)["cpu"] for item in made.kernels] == ["3", "2", "3"]
    assert made.spec.roles[1].kernel.environment["W"] == "{{7*7}} ${jndi:x}"
    origin = spb.TemplateReference(id=template.id, name="t", project="default", version=1)
    assert made.spec.template == origin
    # What it was made from is still shown when it is gone, and so does the first answer.
    await rig.update(pb.Template(name="t", spec=spb.SessionSpec(preemptible=True)))
    await rig.delete("t")
    shown = await rig.sessions.GetSession(sessions_pb.GetSessionRequest(session=made.id), metadata=rig.metadata["ada"])
    assert shown.session.spec == made.spec
    assert await rig.session(override, request_id=request_id) == made
    assert (await rig.get(template.id, version=1)).spec == CLUSTER
    assert (await rig.get(template.id)).HasField("delete_time")
    for gone in (rig.get("t"), rig.session(of("t")), rig.session(of(template.id)), rig.delete(template.id)):
        assert (await failure(gone)).code is Code.NOT_FOUND
    # The name is free again.
    assert (await rig.create(name="t")).id != template.id


async def test_an_older_version_and_removals(rig: Rig) -> None:
    await rig.create(name="t", spec=CLUSTER)
    await rig.update(pb.Template(name="t", spec=spb.SessionSpec(type=spb.SESSION_TYPE_INTERACTIVE)))
    newest = await rig.session(of("t"))
    assert (newest.spec.cluster_size, newest.spec.template.version) == (1, 2)
    mask = ("roles.server", "kernel.environment", "cluster_mode")
    older = await rig.session(of("t", version=1, mask=mask, kernel=kernel(environment={"C": "3"})))
    assert [item.hostname for item in older.kernels] == ["main1", "worker1", "worker2"]
    assert dict(older.spec.kernel.environment) == {"C": "3"}
    assert older.spec.cluster_mode == spb.CLUSTER_MODE_SINGLE_NODE
    contradiction = await failure(rig.session(of("t", version=1, cluster_size=2)))
    assert (contradiction.code, contradiction.fields) == (Code.INVALID_ARGUMENT, ["spec.cluster_size"])


async def test_many_sessions_each_from_its_template(rig: Rig) -> None:
    await rig.create(name="t", spec=spb.SessionSpec(type=spb.SESSION_TYPE_BATCH, kernel=kernel(command=["true"])))
    plain = spb.SessionSpec(type=spb.SESSION_TYPE_BATCH, kernel=kernel(command=["x"]), name="plain")
    specs = [of("t", name="a"), plain, of("none"), of("t", priority=101), of("t", name="z", depends_on=["a"])]
    request = sessions_pb.BatchCreateSessionsRequest(specs=specs, request_id=str(uuid.uuid4()))
    answer = await rig.sessions.BatchCreateSessions(request, metadata=rig.metadata["ada"])
    assert [item.accepted.name for item in answer.results] == ["a", "plain", "", "", "z"]
    assert reasons(answer) == ["", "", "NOT_FOUND", "INVALID_FIELD", ""]
    assert status_apart(answer.results[3].refused).fields == ["specs[3].priority"]
    assert await rig.sessions.BatchCreateSessions(request, metadata=rig.metadata["ada"]) == answer
    # A few bytes ask for much.
    many = [spb.RoleSpec(role="w", count=1000)]
    await rig.create(name="wide", spec=spb.SessionSpec(type=spb.SESSION_TYPE_INTERACTIVE, roles=many))
    await rig.create(name="long", spec=spb.SessionSpec(bootstrap_script="x" * 60_000))
    for specs in ([of("wide")] * 21, [of("long")] * 300, [of(f"n{number}") for number in range(101)]):
        refused = await failure(
            rig.sessions.BatchCreateSessions(
                sessions_pb.BatchCreateSessionsRequest(specs=specs), metadata=rig.metadata["ada"]
            )
        )
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["specs"])


@pytest.mark.attack("templates-of-others")
async def test_who_sees_and_changes_what(rig: Rig) -> None:
    own = await rig.create(name="t", description="default's")
    everyones = await rig.create("root", name="t", for_all_projects=True, description="everyone's")
    others = await rig.create("eve", name="t", description="other's")
    assert (own.project, everyones.project, everyones.for_all_projects, others.project) == (
        "default",
        "",
        True,
        "other",
    )
    assert (await rig.get("t", "bob")).id == own.id
    assert (await rig.get("t", "eve")).id == others.id
    assert [len(await rig.names(who)) for who in ("ada", "eve", "both", "root")] == [2, 2, 3, 3]
    assert await rig.names("both", project="other") == [("t", 1)]
    ambiguous = await failure(rig.get("t", "both"))
    assert (ambiguous.code, ambiguous.fields) == (Code.INVALID_ARGUMENT, ["project"])
    assert (await rig.get("t", "both", project="other")).id == others.id
    session = of("t", type=spb.SESSION_TYPE_INTERACTIVE)
    ambiguous = await failure(rig.session(session, "both"))
    assert (ambiguous.code, ambiguous.fields) == (Code.INVALID_ARGUMENT, ["spec.template.project"])
    session.project = "other"
    assert (await rig.session(session, "both")).spec.template.id == others.id
    session.ClearField("project")
    session.template.project = "other"
    assert (await rig.session(session, "both")).spec.project == "other"
    # Of another project: as if it were not there, by its id and by its name.
    for call in (
        rig.get(others.id),
        rig.render(of(others.id)),
        rig.session(of(others.id)),
        rig.update(pb.Template(id=others.id, description="x")),
        rig.delete(others.id),
        rig.names(versions_of=others.id),
    ):
        assert (await failure(call)).reason == "NOT_FOUND"
    for call in (
        rig.get("t", project="other"),
        rig.get("t", project="nowhere"),
        rig.render(of("t", project="other")),
        rig.session(of("t", project="other")),
        rig.session(of("t", project="default", type=spb.SESSION_TYPE_INTERACTIVE), "eve"),
        rig.names(project="other"),
        rig.create(name="n", project="other"),
        rig.create("root", name="n", project="nowhere"),
    ):
        denied = await failure(call)
        assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "PROJECT_DENIED")
    for call in (
        rig.update(pb.Template(name="t", description="x"), caller="bob"),
        rig.delete("t", "bob"),
        rig.update(pb.Template(id=everyones.id, description="x")),
        rig.delete(everyones.id, "lead"),
        rig.create(name="n", for_all_projects=True),
    ):
        denied = await failure(call)
        assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "METHOD_DENIED")
    assert (await rig.update(pb.Template(name="t", description="x"), caller="lead")).author == "lead"
    await rig.delete("t", "lead")
    assert (await rig.get("t")).id == everyones.id
    await rig.delete(everyones.id, "root")
    await rig.delete(others.id, "root")


async def test_creation_is_checked_done_once_and_names_are_unique(rig: Rig) -> None:
    request = pb.CreateTemplateRequest(template=pb.Template(name="t"), validate_only=True)
    ada = rig.metadata["ada"]
    assert (await rig.stub.CreateTemplate(request, metadata=ada)).template.version == 0
    assert await rig.names() == []
    request.validate_only, request.request_id = False, str(uuid.uuid4())
    made = await rig.stub.CreateTemplate(request, metadata=ada)
    assert await rig.stub.CreateTemplate(request, metadata=ada) == made
    request.template.description = "x"
    assert (await failure(rig.stub.CreateTemplate(request, metadata=ada))).reason == "REQUEST_ID_REUSED"
    request.request_id = ""
    for request.validate_only in (False, True):
        taken = await failure(rig.stub.CreateTemplate(request, metadata=ada))
        assert (taken.code, taken.reason) == (Code.ALREADY_EXISTS, "NAME_TAKEN")
    await rig.create(name="a")
    await rig.create(name="u")
    assert await rig.names(page_size=1) == [("a", 1), ("t", 1), ("u", 1)]


def holding(**fields: Any) -> pb.Template:
    return pb.Template(name="t", spec=spb.SessionSpec(**fields))


WRONG = [
    *((pb.Template(name=name), ["template.name"]) for name in ("", "A", "x" * 64, "../x", "a\0b", "-rf")),
    (pb.Template(name="t", description="x" * 257), ["template.description"]),
    (pb.Template(name="t", description="a\nb"), ["template.description"]),
    (holding(template=spb.TemplateReference(name="t")), ["template.spec.template"]),
    (holding(project="default"), ["template.spec.project"]),
    (
        holding(webhooks=[spb.Webhook(url="http://x/", secret="whsec_" + "A" * 32)]),
        ["template.spec.webhooks[0].secret"],
    ),
    (holding(type=99), ["template.spec.type"]),
    (holding(priority=101), ["template.spec.priority"]),
    (holding(kernel=kernel(slots={"cpu": "-1"})), ["template.spec.kernel.slots['cpu']"]),
    (holding(kernel=kernel(environment={"A=B": ""})), ["template.spec.kernel.environment['A=B']"]),
    (holding(kernel=kernel(environment={"A": "x\0"})), ["template.spec.kernel.environment['A']"]),
    (holding(kernel=kernel(environment={"BACKENDAI_X": ""})), ["template.spec.kernel.environment['BACKENDAI_X']"]),
    (holding(labels={"-": ""}), ["template.spec.labels['-']"]),
    (holding(roles=[spb.RoleSpec(role="w1")]), ["template.spec.roles[0].role"]),
    (holding(roles=[spb.RoleSpec(role="w"), spb.RoleSpec(role="w")]), ["template.spec.roles[1].role"]),
    (holding(roles=[spb.RoleSpec(role="w", count=2)], cluster_size=9), ["template.spec.cluster_size"]),
    (holding(time_limit=Duration(seconds=-1)), ["template.spec.time_limit"]),
    (holding(depends_on=["$(x)"]), ["template.spec.depends_on[0]"]),
    (holding(bootstrap_script="x" * 65_537), ["template.spec.bootstrap_script"]),
    (holding(bootstrap_script="x" * 300_000), ["template.spec"]),
]


@pytest.mark.attack("template-injection")
async def test_what_looks_like_a_program_comes_out_as_it_went_in(rig: Rig) -> None:
    texts = [
        "{{7*7}}",
        "${jndi:ldap://x/y}",
        "$(id)",
        "`id`",
        "{{config}}",
        "{user}",
        "{project}",
        "%(x)s",
        "%s",
        "#{1}",
    ]
    written = kernel(command=["echo", *texts], environment={f"V{number}": text for number, text in enumerate(texts)})
    spec = spb.SessionSpec(type=spb.SESSION_TYPE_BATCH, kernel=written, bootstrap_script="\n".join(texts))
    made = await rig.create(name="t", description=texts[0], spec=spec)
    stored = await rig.get("t")
    session = await rig.session(of("t", labels={"a": "{{7*7}}"}))
    for came in (made.spec, stored.spec, await rig.render(of("t")), session.spec):
        assert list(came.kernel.command) == list(written.command)
        assert dict(came.kernel.environment) == dict(written.environment)
        assert came.bootstrap_script == spec.bootstrap_script
    assert (stored.description, session.spec.labels["a"]) == ("{{7*7}}", "{{7*7}}")


@pytest.mark.attack("templates-of-others")
async def test_what_no_template_holds(rig: Rig) -> None:
    for template, fields in WRONG:
        refused = await failure(
            rig.stub.CreateTemplate(pb.CreateTemplateRequest(template=template), metadata=rig.metadata["ada"])
        )
        assert (refused.code, refused.reason, refused.fields) == (Code.INVALID_ARGUMENT, "INVALID_FIELD", fields)
    assert await rig.names() == []


PARTIAL = [
    spb.SessionSpec(),
    spb.SessionSpec(type=spb.SESSION_TYPE_BATCH),
    spb.SessionSpec(retry=spb.RetryPolicy(on_failure=True)),
    spb.SessionSpec(agent_choice=spb.AGENT_CHOICE_STRICT),
    spb.SessionSpec(replica_placement=spb.REPLICA_PLACEMENT_PACK),
    spb.SessionSpec(kernel=kernel(shared_memory="2g")),
    spb.SessionSpec(name="n", cluster_size=3, priority=0),
]


async def test_what_is_missing_may_be_missing(rig: Rig) -> None:
    for number, spec in enumerate(PARTIAL):
        assert (await rig.create(name=f"t{number}", spec=spec)).spec == spec


async def test_bad_references_and_masks(rig: Rig) -> None:
    await rig.create(name="t", spec=CLUSTER)
    for spec, fields in (
        (of(""), ["spec.template.name"]),
        (of("t", version=-1), ["spec.template.version"]),
        (of("t", mask=("kernel.nothing",)), ["spec.template.override_mask"]),
        (of("t", mask=("template.name",)), ["spec.template.override_mask"]),
        (of("t", roles=[spb.RoleSpec(role="a"), spb.RoleSpec(role="a")]), ["spec.roles[1].role"]),
    ):
        for call in (rig.render(spec), rig.session(spec)):
            refused = await failure(call)
            assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, fields)
    assert (await failure(rig.render(spb.SessionSpec()))).fields == ["spec.template"]
    assert (await failure(rig.session(of("t"), request_id="7"))).fields == ["request_id"]
    assert (await failure(rig.get("a\0b"))).reason == "INVALID_FIELD"
    assert (await failure(rig.get("t", version=-1))).fields == ["version"]
    assert (await failure(rig.names(page_size=-1))).fields == ["page_size"]
    for path in ("name", "spec.", "spec.nothing", "spec.template", "version"):
        assert (await failure(rig.update(pb.Template(name="t"), path))).fields == ["update_mask"]
    wrong = await failure(rig.update(pb.Template(name="t", spec=spb.SessionSpec(priority=101)), "spec.priority"))
    assert wrong.fields == ["template.spec.priority"]
    unfit = await failure(
        rig.update(pb.Template(name="t", spec=spb.SessionSpec(retry=spb.RetryPolicy(max_attempts=2))), "spec.retry")
    )
    assert (unfit.code, unfit.reason) == (Code.FAILED_PRECONDITION, "FEATURE_UNAVAILABLE")
    # Rights are those of the caller, not those of who made the template.
    await rig.create(
        "root", name="high", for_all_projects=True, spec=spb.SessionSpec(mounts=[spb.Mount(source="/etc", target="/x")])
    )
    denied = await failure(rig.session(of("high", type=spb.SESSION_TYPE_INTERACTIVE)))
    assert (denied.code, denied.reason) == (Code.PERMISSION_DENIED, "MOUNT_NOT_ALLOWED")


async def test_a_template_that_cannot_be_read_costs_itself_only(rig: Rig) -> None:
    spec = spb.SessionSpec(type=spb.SESSION_TYPE_INTERACTIVE, kernel=kernel(slots={"cpu": "1"}))
    damaged = await rig.create(name="damaged", description="of old", spec=spec)
    await rig.create(name="sound", spec=spec)
    async with rig.service.database.transaction() as tx:
        change = "UPDATE template_version SET spec = CAST('{\"kernel\": 7}' AS jsonb) WHERE template_id = :id"
        await tx.execute(text(change), {"id": uuid.UUID(damaged.id)})
    assert await rig.names(view=pb.TEMPLATE_VIEW_FULL) == [("damaged", 1), ("sound", 1)]
    shown = await rig.get("damaged")
    assert (shown.description, shown.HasField("spec")) == ("of old", False)
    for call in (rig.session(of("damaged")), rig.render(of("damaged"))):
        refused = await failure(call)
        assert (refused.code, refused.fields) == (Code.INVALID_ARGUMENT, ["spec.template"])
    assert (await rig.session(of("sound"))).spec.kernel.slots["cpu"] == "1"
    # A change of a part would lose the rest of it.
    part = pb.Template(name="damaged", spec=spb.SessionSpec(priority=1))
    assert (await failure(rig.update(part, "spec.priority"))).fields == ["update_mask"]
    mended = await rig.update(pb.Template(name="damaged", spec=spec), "spec")
    assert (mended.version, mended.spec) == (2, spec)
    assert (await rig.session(of("damaged"))).spec.kernel.slots["cpu"] == "1"
