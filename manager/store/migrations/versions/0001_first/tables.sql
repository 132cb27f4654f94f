-- The tables and their indexes, as the classes in `manager/store/tables` were when this migration was made.

-- Accounts: projects, users, their rights and limits, and the calls that are answered once.

CREATE TABLE project (
    name VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE quota (
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    slots JSONB DEFAULT '{}'::jsonb NOT NULL,
    max_sessions INTEGER,
    max_pending_sessions INTEGER,
    max_system_sessions INTEGER,
    highest_priority INTEGER,
    version INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE request (
    principal VARCHAR NOT NULL,
    method VARCHAR NOT NULL,
    request_id UUID NOT NULL,
    body_hash BYTEA NOT NULL,
    answer BYTEA NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (principal, method, request_id)
);

CREATE TABLE retired_name (
    kind VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    retire_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (kind, name)
);

CREATE TABLE user_account (
    name VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    file_uid INTEGER,
    file_gid INTEGER,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE membership (
    user_name VARCHAR NOT NULL,
    project VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    PRIMARY KEY (user_name, project),
    FOREIGN KEY (user_name) REFERENCES user_account (name) ON DELETE CASCADE,
    FOREIGN KEY (project) REFERENCES project (name) ON DELETE CASCADE
);

CREATE TABLE ssh_key (
    fingerprint VARCHAR NOT NULL,
    user_name VARCHAR NOT NULL,
    public_key VARCHAR NOT NULL,
    description VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (fingerprint),
    FOREIGN KEY (user_name) REFERENCES user_account (name) ON DELETE CASCADE
);
CREATE INDEX ix_ssh_key_user_name ON ssh_key (user_name);

CREATE TABLE token (
    id UUID NOT NULL,
    hash BYTEA NOT NULL,
    user_name VARCHAR NOT NULL,
    description VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    parent_id UUID,
    expire_time TIMESTAMPTZ,
    revoke_time TIMESTAMPTZ,
    PRIMARY KEY (id),
    UNIQUE (hash),
    FOREIGN KEY (user_name) REFERENCES user_account (name) ON DELETE CASCADE,
    FOREIGN KEY (parent_id) REFERENCES token (id) ON DELETE CASCADE
);
CREATE INDEX ix_token_parent_id ON token (parent_id);
CREATE INDEX ix_token_user_name ON token (user_name);

CREATE TABLE console_ticket (
    hash BYTEA NOT NULL,
    token_id UUID NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (hash),
    FOREIGN KEY (token_id) REFERENCES token (id) ON DELETE CASCADE
);

-- The fleet: resource groups, agents, routers, their tokens, and the leadership over them.

CREATE TABLE endpoint_token (
    id UUID NOT NULL,
    endpoint_id UUID NOT NULL,
    label VARCHAR NOT NULL,
    creator VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL,
    revoke_time TIMESTAMPTZ,
    PRIMARY KEY (id)
);
CREATE INDEX ix_endpoint_token_creator ON endpoint_token (creator);
CREATE INDEX ix_endpoint_token_endpoint_id ON endpoint_token (endpoint_id);

CREATE TABLE leadership (
    id SMALLINT NOT NULL,
    term BIGINT NOT NULL,
    holder VARCHAR NOT NULL,
    acquire_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE leadership_lease (
    id SMALLINT NOT NULL,
    renewal BIGINT NOT NULL,
    renew_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT leadership_lease_one_row CHECK (id = 1)
);

CREATE TABLE resource_group (
    name VARCHAR NOT NULL,
    session_strategy VARCHAR NOT NULL,
    agent_strategy VARCHAR NOT NULL,
    options JSONB DEFAULT '{}'::jsonb NOT NULL,
    owner_weights JSONB DEFAULT '{}'::jsonb NOT NULL,
    start_timeout_seconds INTEGER NOT NULL,
    max_grace_seconds INTEGER DEFAULT 300 NOT NULL,
    egress VARCHAR DEFAULT 'ALLOW' NOT NULL,
    mount_roots JSONB DEFAULT '[]'::jsonb NOT NULL,
    image_registries JSONB DEFAULT '[]'::jsonb NOT NULL,
    session_types JSONB DEFAULT '[]'::jsonb NOT NULL,
    isolations JSONB DEFAULT '[]'::jsonb NOT NULL,
    default_isolation VARCHAR DEFAULT '' NOT NULL,
    default_pull_policy VARCHAR DEFAULT '' NOT NULL,
    mass_loss_percent INTEGER DEFAULT 50 NOT NULL,
    mass_loss_agents INTEGER DEFAULT 3 NOT NULL,
    mass_loss_window_seconds INTEGER DEFAULT 300 NOT NULL,
    idle_policy JSONB DEFAULT '{}'::jsonb NOT NULL,
    rotation VARCHAR DEFAULT '' NOT NULL,
    capacity JSONB DEFAULT '{}'::jsonb NOT NULL,
    version INTEGER NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE router (
    id VARCHAR NOT NULL,
    revoked BOOLEAN DEFAULT FALSE NOT NULL,
    address VARCHAR DEFAULT '' NOT NULL,
    url VARCHAR DEFAULT '' NOT NULL,
    instance VARCHAR DEFAULT '' NOT NULL,
    software_version VARCHAR DEFAULT '' NOT NULL,
    generation BIGINT DEFAULT 0 NOT NULL,
    certificate VARCHAR DEFAULT '' NOT NULL,
    former_certificate VARCHAR DEFAULT '' NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    announce_time TIMESTAMPTZ,
    heartbeat_time TIMESTAMPTZ,
    PRIMARY KEY (id)
);

CREATE TABLE agent (
    id VARCHAR NOT NULL,
    resource_group VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    drained BOOLEAN NOT NULL,
    drain_deadline_time TIMESTAMPTZ,
    revoked BOOLEAN NOT NULL,
    address VARCHAR NOT NULL,
    instance VARCHAR NOT NULL,
    architecture VARCHAR NOT NULL,
    capacity JSONB DEFAULT '{}'::jsonb NOT NULL,
    backends JSONB DEFAULT '[]'::jsonb NOT NULL,
    past_slots JSONB DEFAULT '[]'::jsonb NOT NULL,
    past_backends JSONB DEFAULT '[]'::jsonb NOT NULL,
    runtimes JSONB DEFAULT '[]'::jsonb NOT NULL,
    software_version VARCHAR NOT NULL,
    underlay_address VARCHAR NOT NULL,
    underlay_mtu INTEGER NOT NULL,
    proves_paths BOOLEAN DEFAULT false NOT NULL,
    reachable_networks JSONB DEFAULT '[]'::jsonb NOT NULL,
    boot_id VARCHAR NOT NULL,
    generation BIGINT DEFAULT 0 NOT NULL,
    certificate VARCHAR DEFAULT '' NOT NULL,
    former_certificate VARCHAR DEFAULT '' NOT NULL,
    reported_conditions JSONB DEFAULT '[]'::jsonb NOT NULL,
    found_conditions JSONB DEFAULT '[]'::jsonb NOT NULL,
    blocked BOOLEAN GENERATED ALWAYS AS (
        reported_conditions @> '[{"blocks": true}]' OR found_conditions @> '[{"blocks": true}]'
    ) STORED NOT NULL,
    incarnation UUID,
    version INTEGER NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    announce_time TIMESTAMPTZ,
    heartbeat_time TIMESTAMPTZ,
    PRIMARY KEY (id),
    FOREIGN KEY (resource_group) REFERENCES resource_group (name)
);
CREATE INDEX ix_agent_resource_group ON agent (resource_group);

CREATE TABLE join_token (
    hash BYTEA NOT NULL,
    resource_group VARCHAR NOT NULL,
    agent_id VARCHAR,
    kind VARCHAR DEFAULT 'AGENT' NOT NULL,
    uses_left INTEGER NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (hash),
    FOREIGN KEY (resource_group) REFERENCES resource_group (name) ON DELETE CASCADE
);

-- Sessions: their kernels, attempts and output, what they wait for, and templates.

CREATE TABLE attempt (
    kernel_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    session_id UUID NOT NULL,
    agent_id VARCHAR NOT NULL,
    goal VARCHAR NOT NULL,
    observed VARCHAR NOT NULL,
    term BIGINT NOT NULL,
    log_pending BOOLEAN NOT NULL,
    log_size BIGINT DEFAULT 0 NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    end_time TIMESTAMPTZ,
    observed_end_time TIMESTAMPTZ,
    usage JSONB DEFAULT '{}'::jsonb NOT NULL,
    PRIMARY KEY (kernel_id, epoch)
) WITH (fillfactor = 50);
CREATE INDEX attempt_live_agent ON attempt (agent_id) WHERE end_time IS NULL OR log_pending;
CREATE INDEX attempt_live_session ON attempt (session_id) WHERE end_time IS NULL;

CREATE TABLE session (
    id UUID NOT NULL,
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    name VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    project VARCHAR NOT NULL,
    resource_group VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    cluster_mode VARCHAR NOT NULL,
    cluster_size INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    spec JSONB DEFAULT '{}'::jsonb NOT NULL,
    spec_bytes INTEGER GENERATED ALWAYS AS (octet_length(spec::text)) STORED NOT NULL,
    state VARCHAR NOT NULL,
    result VARCHAR NOT NULL,
    exit_code INTEGER,
    reason VARCHAR NOT NULL,
    message VARCHAR NOT NULL,
    explanation JSONB DEFAULT '{}'::jsonb NOT NULL,
    conditions JSONB DEFAULT '[]'::jsonb NOT NULL,
    network VARCHAR NOT NULL,
    tries INTEGER NOT NULL,
    failed_starts INTEGER NOT NULL,
    retries INTEGER DEFAULT 0 NOT NULL,
    failed_agents JSONB DEFAULT '[]'::jsonb NOT NULL,
    last_failure VARCHAR NOT NULL,
    endpoint VARCHAR DEFAULT '' NOT NULL,
    nomination JSONB DEFAULT '{}'::jsonb NOT NULL,
    force BOOLEAN NOT NULL,
    version INTEGER NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    evaluate_time TIMESTAMPTZ,
    next_try_time TIMESTAMPTZ,
    schedule_time TIMESTAMPTZ,
    start_time TIMESTAMPTZ,
    pull_time TIMESTAMPTZ,
    state_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    end_time TIMESTAMPTZ,
    expire_time TIMESTAMPTZ,
    PRIMARY KEY (id)
);
CREATE INDEX ix_session_owner ON session (owner);
CREATE INDEX session_ended ON session (end_time) WHERE end_time IS NOT NULL;
CREATE INDEX session_ended_name ON session (owner, name, number) WHERE state IN ('TERMINATED', 'CANCELLED');
CREATE INDEX session_endpoint ON session (project, endpoint)
    WHERE endpoint <> '' AND state NOT IN ('TERMINATED', 'CANCELLED');
CREATE INDEX session_expiry ON session (expire_time) WHERE expire_time IS NOT NULL;
CREATE INDEX session_live ON session (state) WHERE state NOT IN ('TERMINATED', 'CANCELLED');
CREATE UNIQUE INDEX session_live_name ON session (project, owner, name)
    WHERE state NOT IN ('TERMINATED', 'CANCELLED');
CREATE INDEX session_newest ON session (create_time DESC, id DESC);
CREATE UNIQUE INDEX session_number ON session (number);
CREATE INDEX session_pending_owner ON session (owner) WHERE state = 'PENDING';
CREATE INDEX session_pending_project ON session (project) WHERE state = 'PENDING';
CREATE INDEX session_queue ON session (resource_group, number) WHERE state = 'PENDING';

CREATE TABLE kernel (
    id UUID NOT NULL,
    session_id UUID NOT NULL,
    role VARCHAR NOT NULL,
    role_index INTEGER NOT NULL,
    local_rank INTEGER NOT NULL,
    hostname VARCHAR NOT NULL,
    slots JSONB DEFAULT '{}'::jsonb NOT NULL,
    state VARCHAR NOT NULL,
    agent_id VARCHAR,
    epoch INTEGER NOT NULL,
    address VARCHAR NOT NULL,
    exit_code INTEGER,
    reason VARCHAR NOT NULL,
    image_digest VARCHAR DEFAULT '' NOT NULL,
    image_id VARCHAR DEFAULT '' NOT NULL,
    service_ports JSONB DEFAULT '[]'::jsonb NOT NULL,
    pull JSONB DEFAULT '{}'::jsonb NOT NULL,
    PRIMARY KEY (id),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX kernel_place ON kernel (session_id, local_rank);

CREATE TABLE session_dependency (
    child_id UUID NOT NULL,
    parent_id UUID NOT NULL,
    position INTEGER NOT NULL,
    settled BOOLEAN NOT NULL,
    kind VARCHAR DEFAULT 'SUCCESS' NOT NULL,
    PRIMARY KEY (child_id, parent_id),
    FOREIGN KEY (child_id) REFERENCES session (id) ON DELETE CASCADE
);
CREATE INDEX session_dependency_open ON session_dependency (parent_id) WHERE NOT settled;
CREATE INDEX session_dependency_parent ON session_dependency (parent_id);

CREATE TABLE template (
    id UUID NOT NULL,
    project VARCHAR,
    name VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    delete_time TIMESTAMPTZ,
    PRIMARY KEY (id),
    FOREIGN KEY (project) REFERENCES project (name) ON DELETE CASCADE
);
CREATE UNIQUE INDEX template_name ON template (coalesce(project, ''), name) WHERE delete_time IS NULL;

CREATE TABLE kernel_log (
    kernel_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    start_offset BIGINT NOT NULL,
    data BYTEA NOT NULL,
    streams BYTEA DEFAULT ''::bytea NOT NULL,
    PRIMARY KEY (kernel_id, epoch),
    FOREIGN KEY (kernel_id) REFERENCES kernel (id) ON DELETE CASCADE
);

CREATE TABLE template_version (
    template_id UUID NOT NULL,
    version INTEGER NOT NULL,
    description VARCHAR NOT NULL,
    spec JSONB DEFAULT '{}'::jsonb NOT NULL,
    spec_bytes INTEGER GENERATED ALWAYS AS (octet_length(spec::text)) STORED NOT NULL,
    author VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (template_id, version),
    FOREIGN KEY (template_id) REFERENCES template (id) ON DELETE CASCADE
);

-- What belongs to sessions besides: recorded use, access to ports, webhooks.

CREATE TABLE idle_look (
    id SMALLINT NOT NULL,
    time TIMESTAMPTZ,
    PRIMARY KEY (id)
);

CREATE TABLE webhook_cursor (
    id SMALLINT NOT NULL,
    revision BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE idle_override (
    user_name VARCHAR NOT NULL,
    policy JSONB DEFAULT '{}'::jsonb NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (user_name),
    FOREIGN KEY (user_name) REFERENCES user_account (name) ON DELETE CASCADE
);

CREATE TABLE session_idle (
    session_id UUID NOT NULL,
    interaction_time TIMESTAMPTZ,
    paused_seconds FLOAT DEFAULT 0 NOT NULL,
    pause_time TIMESTAMPTZ,
    extension_end_time TIMESTAMPTZ,
    warned JSONB DEFAULT '{}'::jsonb NOT NULL,
    "window" JSONB DEFAULT '{}'::jsonb NOT NULL,
    reading JSONB DEFAULT '{}'::jsonb NOT NULL,
    PRIMARY KEY (session_id),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE
);

CREATE TABLE webhook (
    session_id UUID NOT NULL,
    position INTEGER NOT NULL,
    url VARCHAR NOT NULL,
    events JSONB DEFAULT '[]'::jsonb NOT NULL,
    secret BYTEA NOT NULL,
    PRIMARY KEY (session_id, position),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE
);

CREATE TABLE webhook_delivery (
    session_id UUID NOT NULL,
    position INTEGER NOT NULL,
    revision BIGINT NOT NULL,
    event VARCHAR NOT NULL,
    body VARCHAR NOT NULL,
    tries INTEGER NOT NULL,
    next_try_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (session_id, position, revision),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE
);

CREATE TABLE port_access (
    hash BYTEA NOT NULL,
    session_id UUID NOT NULL,
    port INTEGER NOT NULL,
    user_name VARCHAR NOT NULL,
    token_id UUID NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (hash),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE,
    FOREIGN KEY (token_id) REFERENCES token (id) ON DELETE CASCADE
);

CREATE TABLE port_ticket (
    hash BYTEA NOT NULL,
    session_id UUID NOT NULL,
    port INTEGER NOT NULL,
    user_name VARCHAR NOT NULL,
    token_id UUID NOT NULL,
    path VARCHAR NOT NULL,
    expire_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (hash),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE,
    FOREIGN KEY (token_id) REFERENCES token (id) ON DELETE CASCADE
);

-- Placement: claims, shares, usage, networks.

CREATE TABLE claim (
    kernel_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    slot VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    resource_group VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    amount BIGINT NOT NULL,
    claim_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    release_time TIMESTAMPTZ,
    PRIMARY KEY (kernel_id, epoch, slot)
);
CREATE INDEX claim_live_agent ON claim (agent_id, slot) WHERE release_time IS NULL;
CREATE INDEX claim_live_owner ON claim (resource_group, owner, slot) WHERE release_time IS NULL;

CREATE TABLE drf_share (
    resource_group VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    weight INTEGER NOT NULL,
    held JSONB DEFAULT '{}'::jsonb NOT NULL,
    dominant_slot VARCHAR NOT NULL,
    numerator BIGINT NOT NULL,
    denominator BIGINT NOT NULL,
    PRIMARY KEY (resource_group, owner)
);

CREATE TABLE network (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    session_id UUID,
    vni INTEGER NOT NULL,
    subnet CIDR NOT NULL,
    mtu INTEGER NOT NULL,
    vxlan_port INTEGER DEFAULT 4789 NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (subnet)
);
CREATE UNIQUE INDEX network_session ON network (session_id) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX network_vni ON network (vni) WHERE vni <> 0;

CREATE TABLE usage (
    resource_group VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    slot VARCHAR NOT NULL,
    day DATE NOT NULL,
    amount_seconds NUMERIC NOT NULL,
    PRIMARY KEY (resource_group, owner, slot, day)
);

CREATE TABLE network_site (
    network_id BIGINT NOT NULL,
    agent_id VARCHAR NOT NULL,
    session_id UUID NOT NULL,
    PRIMARY KEY (network_id, agent_id),
    FOREIGN KEY (network_id) REFERENCES network (id) ON DELETE CASCADE
);
CREATE INDEX network_site_agent ON network_site (agent_id);
CREATE INDEX network_site_session ON network_site (session_id);

-- Endpoints: revisions, traffic, rollouts, replicas.

CREATE TABLE endpoint (
    id UUID NOT NULL,
    name VARCHAR NOT NULL,
    project VARCHAR NOT NULL,
    owner VARCHAR NOT NULL,
    resource_group VARCHAR NOT NULL,
    host_label VARCHAR NOT NULL,
    lifecycle VARCHAR NOT NULL,
    settings JSONB DEFAULT '{}'::jsonb NOT NULL,
    version INTEGER NOT NULL,
    newest_revision INTEGER NOT NULL,
    target INTEGER NOT NULL,
    target_reason VARCHAR NOT NULL,
    decision JSONB DEFAULT '{}'::jsonb NOT NULL,
    conditions JSONB DEFAULT '[]'::jsonb NOT NULL,
    first_ready_time TIMESTAMPTZ,
    short_time TIMESTAMPTZ,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    delete_time TIMESTAMPTZ,
    PRIMARY KEY (id),
    UNIQUE (host_label)
);
CREATE INDEX endpoint_live ON endpoint (lifecycle) WHERE lifecycle <> 'DELETED';
CREATE UNIQUE INDEX endpoint_name ON endpoint (project, name) WHERE lifecycle <> 'DELETED';
CREATE INDEX endpoint_newest ON endpoint (create_time DESC, id DESC);
CREATE INDEX ix_endpoint_owner ON endpoint (owner);

CREATE TABLE endpoint_replica (
    session_id UUID NOT NULL,
    endpoint_id UUID NOT NULL,
    revision INTEGER NOT NULL,
    serial BIGINT GENERATED ALWAYS AS IDENTITY,
    state VARCHAR NOT NULL,
    since_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    drain_time TIMESTAMPTZ,
    was_ready BOOLEAN NOT NULL,
    message VARCHAR NOT NULL,
    health VARCHAR NOT NULL,
    health_message VARCHAR NOT NULL,
    address VARCHAR NOT NULL,
    port INTEGER NOT NULL,
    PRIMARY KEY (session_id),
    FOREIGN KEY (session_id) REFERENCES session (id) ON DELETE CASCADE,
    FOREIGN KEY (endpoint_id) REFERENCES endpoint (id) ON DELETE CASCADE
);
CREATE INDEX endpoint_replica_live ON endpoint_replica (endpoint_id) WHERE state <> 'GONE';
CREATE INDEX ix_endpoint_replica_endpoint_id ON endpoint_replica (endpoint_id);

CREATE TABLE endpoint_revision (
    endpoint_id UUID NOT NULL,
    number INTEGER NOT NULL,
    spec JSONB DEFAULT '{}'::jsonb NOT NULL,
    found_images JSONB DEFAULT '{}'::jsonb NOT NULL,
    failures INTEGER NOT NULL,
    retry_time TIMESTAMPTZ,
    serve_time TIMESTAMPTZ,
    author VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (endpoint_id, number),
    FOREIGN KEY (endpoint_id) REFERENCES endpoint (id) ON DELETE CASCADE
);

CREATE TABLE endpoint_traffic (
    endpoint_id UUID NOT NULL,
    revision INTEGER NOT NULL,
    percent INTEGER NOT NULL,
    PRIMARY KEY (endpoint_id, revision),
    FOREIGN KEY (endpoint_id) REFERENCES endpoint (id) ON DELETE CASCADE
);

CREATE TABLE rollout (
    endpoint_id UUID NOT NULL,
    from_revision INTEGER NOT NULL,
    to_revision INTEGER NOT NULL,
    state VARCHAR NOT NULL,
    step INTEGER NOT NULL,
    promoted BOOLEAN NOT NULL,
    message VARCHAR NOT NULL,
    policy JSONB DEFAULT '{}'::jsonb NOT NULL,
    since_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (endpoint_id),
    FOREIGN KEY (endpoint_id) REFERENCES endpoint (id) ON DELETE CASCADE
);

CREATE TABLE scaling_floor (
    endpoint_id UUID NOT NULL,
    replicas INTEGER NOT NULL,
    end_time TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (endpoint_id),
    FOREIGN KEY (endpoint_id) REFERENCES endpoint (id) ON DELETE CASCADE
);

-- The cluster: its identity, its journal and audit, and what the scheduler has not taken in yet.

CREATE TABLE audit_record (
    id UUID NOT NULL,
    category VARCHAR NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    end_time TIMESTAMPTZ,
    principal_kind VARCHAR DEFAULT '' NOT NULL,
    principal VARCHAR DEFAULT '' NOT NULL,
    role VARCHAR DEFAULT '' NOT NULL,
    token_id UUID,
    address VARCHAR DEFAULT '' NOT NULL,
    method VARCHAR NOT NULL,
    object_kind VARCHAR DEFAULT '' NOT NULL,
    object VARCHAR DEFAULT '' NOT NULL,
    summary VARCHAR DEFAULT '' NOT NULL,
    code VARCHAR DEFAULT '' NOT NULL,
    reason VARCHAR DEFAULT '' NOT NULL,
    request_id VARCHAR DEFAULT '' NOT NULL,
    manager VARCHAR DEFAULT '' NOT NULL,
    count BIGINT DEFAULT 1 NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX audit_record_category ON audit_record (category, create_time, id);
CREATE INDEX audit_record_time ON audit_record (create_time, id);

CREATE TABLE cluster (
    id SMALLINT NOT NULL,
    cluster_id UUID NOT NULL,
    incarnation UUID NOT NULL,
    restore_time TIMESTAMPTZ,
    last_epoch INTEGER DEFAULT 0 NOT NULL,
    ca_fingerprint VARCHAR DEFAULT '' NOT NULL,
    ca_certificates VARCHAR DEFAULT '' NOT NULL,
    ca_sealed BYTEA,
    PRIMARY KEY (id),
    CONSTRAINT cluster_one_row CHECK (id = 1)
);

CREATE TABLE journal (
    revision BIGINT NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    session_id UUID NOT NULL,
    owner VARCHAR NOT NULL,
    project VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    payload JSONB DEFAULT '{}'::jsonb NOT NULL,
    PRIMARY KEY (revision)
);
CREATE INDEX journal_session ON journal (session_id, revision);

CREATE TABLE journal_head (
    id SMALLINT NOT NULL,
    revision BIGINT NOT NULL,
    oldest BIGINT NOT NULL,
    PRIMARY KEY (id)
);

CREATE UNLOGGED TABLE scheduling_change (
    kind TEXT NOT NULL,
    key TEXT,
    resource_group TEXT,
    owner TEXT,
    project TEXT,
    system BOOLEAN,
    slot TEXT,
    amount BIGINT
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE orphan (
    agent_id VARCHAR NOT NULL,
    kernel_id UUID NOT NULL,
    epoch INTEGER NOT NULL,
    session_id UUID,
    state VARCHAR NOT NULL,
    end_requested BOOLEAN DEFAULT false NOT NULL,
    create_time TIMESTAMPTZ DEFAULT now() NOT NULL,
    PRIMARY KEY (agent_id, kernel_id, epoch),
    FOREIGN KEY (agent_id) REFERENCES agent (id) ON DELETE CASCADE
);
CREATE INDEX orphan_session ON orphan (session_id);
