"""A spec as a message is what it was when it has been a value."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from retinue.manager.api.sessions.spec_convert import spec_message, to_spec
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.v1 import session_pb2 as pb
from retinue.types.v1 import isolation_pb2, port_pb2, pull_policy_pb2

KERNEL = pb.KernelSpec(
    image="i",
    command=["a", ""],
    environment={"A": "b"},
    slots={"cpu": "1"},
    shared_memory="64m",
    isolation=isolation_pb2.ISOLATION_VM,
    working_directory="/data",
    pull_policy=pull_policy_pb2.PULL_POLICY_ALWAYS,
)
FULL = pb.SessionSpec(
    name="n",
    project="p",
    resource_group="g",
    type=pb.SESSION_TYPE_BATCH,
    cluster_mode=pb.CLUSTER_MODE_MULTI_NODE,
    cluster_size=3,
    priority=0,
    kernel=KERNEL,
    roles=[pb.RoleSpec(role="main", kernel=KERNEL, count=1), pb.RoleSpec(role="sub", kernel=KERNEL, count=2)],
    labels={"a": "b"},
    termination_grace=Duration(seconds=1, nanos=500_000_000),
    agents=["n1"],
    agent_choice=pb.AGENT_CHOICE_STRICT,
    architecture="aarch64",
    endpoint="e",
    replica_placement=pb.REPLICA_PLACEMENT_PACK,
    time_limit=Duration(seconds=60),
    preemptible=True,
    bootstrap_script="true",
    earliest_start_time=Timestamp(seconds=1_000_000_000),
    depends_on=["a"],
    retry=pb.RetryPolicy(max_attempts=3, on_failure=True, backoff=Duration(seconds=1), max_backoff=Duration(seconds=2)),
    mounts=[pb.Mount(source="/s", target="/t", writable=True)],
    webhooks=[pb.Webhook(url="http://x/", events=[pb.WebhookEvent.values()[1]])],
    service_ports=[port_pb2.ServicePort(name="web", protocol="http", ports=[80, 81], host="localhost")],
    preopen_ports=[pb.PortRange(first=1, last=2)],
    template=pb.TemplateReference(id="id", name="t", project="p", version=7),
    apps=[
        pb.AppDefinition(
            name="a",
            command=["x"],
            environment={"A": "b"},
            working_directory="/w",
            allowed_arguments=["--a"],
            allowed_environment=["A"],
        )
    ],
    system=pb.SystemSpec(sftp=pb.SftpSpec(authorized_keys=["key"], max_file_bytes=7, umask="022")),
    hold=True,
    runs_after=["b"],
    runs_after_failure=["c"],
    runs_after_label="a",
    stop_signal="INT",
    time_warning=pb.TimeWarning(signal="USR1", before=Duration(seconds=7), started_only=True),
    description="why",
)


def test_every_field_comes_back() -> None:
    assert {field.name for field, _ in FULL.ListFields()} == {field.name for field in pb.SessionSpec.DESCRIPTOR.fields}
    spec = to_spec(FULL, default_name="other", default_project="other")
    assert spec_message(spec, SpecView.FULL) == FULL


@pytest.mark.parametrize(("view", "shown"), [(SpecView.BASIC, {}), (SpecView.NAMES, {"A": ""})])
def test_other_views_have_no_values_of_variables(view: SpecView, shown: dict[str, str]) -> None:
    spec = to_spec(FULL, default_name="", default_project="")
    message = spec_message(spec, view)
    assert [dict(kernel.environment) for kernel in (message.kernel, *(role.kernel for role in message.roles))] == [
        shown
    ] * 3
    assert dict(message.apps[0].environment) == shown
    assert bool(message.bootstrap_script) is (view is SpecView.NAMES)
    # What the journal keeps is what lists show.
    assert spec_message(spec.basic(), SpecView.FULL) == spec_message(spec, SpecView.BASIC)
