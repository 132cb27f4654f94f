-- A cluster with one session, made by the last program before the first release (revision 0055), as `pg_dump` has it, but
-- for indexes on states, whose conditions `pg_dump` writes in other words.
CREATE FUNCTION public.count_agent_delete() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
            DECLARE change record;
            BEGIN
                FOR change IN
                    SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
                        SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
                        FROM (SELECT resource_group, capacity, -1 AS sign FROM o WHERE state IN ('ALIVE', 'SUSPECT') AND NOT revoked) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
                        GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
                    ) AS differences GROUP BY resource_group ORDER BY resource_group
                LOOP
                    PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
                    UPDATE resource_group SET capacity = (
    SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
        SELECT key, sum(value::numeric) AS total FROM (SELECT * FROM jsonb_each_text(resource_group.capacity) UNION ALL SELECT * FROM jsonb_each_text(change.amounts)) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
    ) AS sums
) WHERE name = change.name;
                END LOOP;
                RETURN NULL;
            END $$;
CREATE FUNCTION public.count_agent_insert() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
            DECLARE change record;
            BEGIN
                FOR change IN
                    SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
                        SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
                        FROM (SELECT resource_group, capacity, 1 AS sign FROM n WHERE state IN ('ALIVE', 'SUSPECT') AND NOT revoked) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
                        GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
                    ) AS differences GROUP BY resource_group ORDER BY resource_group
                LOOP
                    PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
                    UPDATE resource_group SET capacity = (
    SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
        SELECT key, sum(value::numeric) AS total FROM (SELECT * FROM jsonb_each_text(resource_group.capacity) UNION ALL SELECT * FROM jsonb_each_text(change.amounts)) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
    ) AS sums
) WHERE name = change.name;
                END LOOP;
                RETURN NULL;
            END $$;
CREATE FUNCTION public.count_agent_update() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
            DECLARE change record;
            BEGIN
                FOR change IN
                    SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
                        SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
                        FROM (
            SELECT n.resource_group, n.capacity, 1 AS sign FROM n JOIN o USING (id)
            WHERE n.state IN ('ALIVE', 'SUSPECT') AND NOT n.revoked AND (n.resource_group, n.state, n.revoked, n.capacity) <> (o.resource_group, o.state, o.revoked, o.capacity)
            UNION ALL SELECT o.resource_group, o.capacity, -1 FROM o JOIN n USING (id)
            WHERE o.state IN ('ALIVE', 'SUSPECT') AND NOT o.revoked AND (n.resource_group, n.state, n.revoked, n.capacity) <> (o.resource_group, o.state, o.revoked, o.capacity)
        ) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
                        GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
                    ) AS differences GROUP BY resource_group ORDER BY resource_group
                LOOP
                    PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
                    UPDATE resource_group SET capacity = (
    SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
        SELECT key, sum(value::numeric) AS total FROM (SELECT * FROM jsonb_each_text(resource_group.capacity) UNION ALL SELECT * FROM jsonb_each_text(change.amounts)) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
    ) AS sums
) WHERE name = change.name;
                END LOOP;
                RETURN NULL;
            END $$;
CREATE FUNCTION public.forget_attempts() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN DELETE FROM attempt USING o WHERE attempt.kernel_id = o.id; RETURN NULL; END $$;
CREATE FUNCTION public.mark_agent_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
            IF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key)
                SELECT 'agent', n.id FROM n JOIN o USING (id) WHERE (n.resource_group, n.state, n.drained, n.revoked, n.blocked, n.architecture, n.capacity, n.backends, n.underlay_address, n.underlay_mtu, n.reachable_networks) IS DISTINCT FROM (o.resource_group, o.state, o.drained, o.revoked, o.blocked, o.architecture, o.capacity, o.backends, o.underlay_address, o.underlay_mtu, o.reachable_networks);
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM n;
            ELSE
                INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM o;
            END IF;
            RETURN NULL;
        END $$;
CREATE FUNCTION public.mark_attempt_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, count(*) FROM n WHERE end_time IS NULL GROUP BY agent_id
            UNION ALL SELECT DISTINCT 'session', session_id::text, NULL::bigint FROM n;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, sum(number) FROM (
                SELECT agent_id, 1 AS number FROM n WHERE end_time IS NULL
                UNION ALL SELECT agent_id, -1 FROM o WHERE end_time IS NULL
            ) AS both_ways GROUP BY agent_id HAVING sum(number) <> 0
            UNION ALL
            SELECT DISTINCT 'session', n.session_id::text, NULL::bigint FROM n JOIN o USING (kernel_id, epoch)
            WHERE (n.end_time IS NULL, n.log_pending) <> (o.end_time IS NULL, o.log_pending);
        ELSE
            INSERT INTO scheduling_change (kind, key, amount)
            SELECT 'kernels', agent_id, -count(*) FROM o WHERE end_time IS NULL GROUP BY agent_id
            UNION ALL SELECT DISTINCT 'session', session_id::text, NULL::bigint FROM o;
        END IF;
     RETURN NULL; END $$;
CREATE FUNCTION public.mark_claim_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
            IF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount) SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), coalesce(s.type = 'SYSTEM', FALSE), c.slot, sum(c.amount) FROM n c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6, 7;
            ELSIF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount) SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), coalesce(s.type = 'SYSTEM', FALSE), c.slot, sum(c.amount) FROM (
                    SELECT kernel_id, agent_id, resource_group, owner, slot, amount FROM n WHERE release_time IS NULL
                    UNION ALL SELECT kernel_id, agent_id, resource_group, owner, slot, -amount FROM o WHERE release_time IS NULL
                ) AS c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id GROUP BY 2, 3, 4, 5, 6, 7 HAVING sum(c.amount) <> 0;
            ELSE
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount) SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''), coalesce(s.type = 'SYSTEM', FALSE), c.slot, -sum(c.amount) FROM o c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6, 7;
            END IF;
         RETURN NULL; END $$;
CREATE FUNCTION public.mark_network_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO scheduling_change (kind, key, slot, amount)
            SELECT 'session', session_id::text, NULL, NULL::bigint FROM n WHERE session_id IS NOT NULL
            UNION ALL SELECT 'network taken', NULL, subnet::text, vni FROM n;
        ELSIF TG_OP = 'UPDATE' THEN
            INSERT INTO scheduling_change (kind, key)
            SELECT 'session', o.session_id::text FROM o JOIN n USING (id)
            WHERE o.session_id IS NOT NULL AND o.session_id IS DISTINCT FROM n.session_id;
        ELSE
            INSERT INTO scheduling_change (kind, key, slot, amount)
            SELECT 'session', session_id::text, NULL, NULL::bigint FROM o WHERE session_id IS NOT NULL
            UNION ALL SELECT 'network freed', NULL, subnet::text, vni FROM o;
        END IF;
     RETURN NULL; END $$;
CREATE FUNCTION public.mark_orphan_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', session_id::text FROM changed WHERE session_id IS NOT NULL; RETURN NULL; END $$;
CREATE FUNCTION public.mark_quota_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM o;
        ELSE
            INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM n;
        END IF;
     RETURN NULL; END $$;
CREATE FUNCTION public.mark_resource_group_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
            IF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key)
                SELECT 'group', n.name FROM n JOIN o USING (name) WHERE (n.session_strategy, n.agent_strategy, n.options, n.owner_weights, n.isolations) IS DISTINCT FROM (o.session_strategy, o.agent_strategy, o.options, o.owner_weights, o.isolations);
            ELSIF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM n;
            ELSE
                INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM o;
            END IF;
            RETURN NULL;
        END $$;
CREATE FUNCTION public.mark_session_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
            IF TG_OP = 'INSERT' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'session', id::text FROM n WHERE state = 'PENDING';
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
                SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', count(*) FROM n WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED') GROUP BY resource_group, owner, project, type = 'SYSTEM';
            ELSIF TG_OP = 'UPDATE' THEN
                INSERT INTO scheduling_change (kind, key) SELECT 'session', n.id::text FROM n JOIN o USING (id) WHERE n.state = 'PENDING' OR o.state = 'PENDING';
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
                SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', sum(number) FROM (
                    SELECT resource_group, owner, project, type, 1 AS number FROM n WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
                    UNION ALL SELECT resource_group, owner, project, type, -1 FROM o WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
                ) AS both_ways GROUP BY resource_group, owner, project, type = 'SYSTEM' HAVING sum(number) <> 0;
            ELSE
                INSERT INTO scheduling_change (kind, key) SELECT 'session', id::text FROM o WHERE state = 'PENDING';
                INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
                SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', -count(*) FROM o WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED') GROUP BY resource_group, owner, project, type = 'SYSTEM';
            END IF;
         RETURN NULL; END $$;
CREATE FUNCTION public.mark_session_dependency_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM o;
        ELSE
            INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM n;
        END IF;
     RETURN NULL; END $$;
CREATE FUNCTION public.take_session_numbers(amount bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
    DECLARE first bigint;
    BEGIN
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtext('take_session_numbers'));
            first := nextval('session_number_seq');
            IF amount > 1 THEN PERFORM setval('session_number_seq', first + amount - 1); END IF;
            RAISE EXCEPTION USING ERRCODE = 'RNTKN';
        EXCEPTION WHEN SQLSTATE 'RNTKN' THEN
            RETURN first;
        END;
    END $$;
CREATE TABLE public.agent (
    id character varying NOT NULL,
    resource_group character varying NOT NULL,
    state character varying NOT NULL,
    drained boolean NOT NULL,
    revoked boolean NOT NULL,
    address character varying NOT NULL,
    instance character varying NOT NULL,
    architecture character varying NOT NULL,
    capacity jsonb DEFAULT '{}'::jsonb NOT NULL,
    backends jsonb DEFAULT '[]'::jsonb NOT NULL,
    software_version character varying NOT NULL,
    underlay_address character varying NOT NULL,
    underlay_mtu integer NOT NULL,
    boot_id character varying NOT NULL,
    version integer NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    announce_time timestamp with time zone,
    heartbeat_time timestamp with time zone,
    reported_conditions jsonb DEFAULT '[]'::jsonb NOT NULL,
    found_conditions jsonb DEFAULT '[]'::jsonb NOT NULL,
    blocked boolean GENERATED ALWAYS AS (((reported_conditions @> '[{"blocks": true}]'::jsonb) OR (found_conditions @> '[{"blocks": true}]'::jsonb))) STORED NOT NULL,
    incarnation uuid,
    generation bigint DEFAULT 0 NOT NULL,
    certificate character varying DEFAULT ''::character varying NOT NULL,
    runtimes jsonb DEFAULT '[]'::jsonb NOT NULL,
    drain_deadline_time timestamp with time zone,
    past_slots jsonb DEFAULT '[]'::jsonb NOT NULL,
    past_backends jsonb DEFAULT '[]'::jsonb NOT NULL,
    former_certificate character varying DEFAULT ''::character varying NOT NULL,
    reachable_networks jsonb DEFAULT '[]'::jsonb NOT NULL,
    proves_paths boolean DEFAULT false NOT NULL
);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.attempt (
    kernel_id uuid NOT NULL,
    epoch integer NOT NULL,
    session_id uuid NOT NULL,
    agent_id character varying NOT NULL,
    goal character varying NOT NULL,
    observed character varying NOT NULL,
    term bigint NOT NULL,
    log_pending boolean NOT NULL,
    log_size bigint DEFAULT 0 NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    end_time timestamp with time zone,
    observed_end_time timestamp with time zone,
    usage jsonb DEFAULT '{}'::jsonb NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.audit_record (
    id uuid NOT NULL,
    category character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    end_time timestamp with time zone,
    principal_kind character varying DEFAULT ''::character varying NOT NULL,
    principal character varying DEFAULT ''::character varying NOT NULL,
    role character varying DEFAULT ''::character varying NOT NULL,
    token_id uuid,
    address character varying DEFAULT ''::character varying NOT NULL,
    method character varying NOT NULL,
    object_kind character varying DEFAULT ''::character varying NOT NULL,
    object character varying DEFAULT ''::character varying NOT NULL,
    summary character varying DEFAULT ''::character varying NOT NULL,
    code character varying DEFAULT ''::character varying NOT NULL,
    reason character varying DEFAULT ''::character varying NOT NULL,
    request_id character varying DEFAULT ''::character varying NOT NULL,
    manager character varying DEFAULT ''::character varying NOT NULL,
    count bigint DEFAULT 1 NOT NULL
);
CREATE TABLE public.claim (
    kernel_id uuid NOT NULL,
    epoch integer NOT NULL,
    slot character varying NOT NULL,
    agent_id character varying NOT NULL,
    resource_group character varying NOT NULL,
    owner character varying NOT NULL,
    amount bigint NOT NULL,
    claim_time timestamp with time zone DEFAULT now() NOT NULL,
    release_time timestamp with time zone
);
CREATE TABLE public.cluster (
    id smallint NOT NULL,
    cluster_id uuid NOT NULL,
    incarnation uuid NOT NULL,
    restore_time timestamp with time zone,
    ca_fingerprint character varying DEFAULT ''::character varying NOT NULL,
    ca_sealed bytea,
    last_epoch integer DEFAULT 0 NOT NULL,
    ca_certificates character varying DEFAULT ''::character varying NOT NULL,
    CONSTRAINT cluster_one_row CHECK ((id = 1))
);
CREATE TABLE public.console_ticket (
    hash bytea NOT NULL,
    token_id uuid NOT NULL,
    expire_time timestamp with time zone NOT NULL
);
CREATE TABLE public.drf_share (
    resource_group character varying NOT NULL,
    owner character varying NOT NULL,
    weight integer NOT NULL,
    held jsonb DEFAULT '{}'::jsonb NOT NULL,
    dominant_slot character varying NOT NULL,
    numerator bigint NOT NULL,
    denominator bigint NOT NULL
);
CREATE TABLE public.endpoint (
    id uuid NOT NULL,
    name character varying NOT NULL,
    project character varying NOT NULL,
    owner character varying NOT NULL,
    resource_group character varying NOT NULL,
    host_label character varying NOT NULL,
    lifecycle character varying NOT NULL,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    version integer NOT NULL,
    newest_revision integer NOT NULL,
    target integer NOT NULL,
    target_reason character varying NOT NULL,
    decision jsonb DEFAULT '{}'::jsonb NOT NULL,
    conditions jsonb DEFAULT '[]'::jsonb NOT NULL,
    first_ready_time timestamp with time zone,
    short_time timestamp with time zone,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    delete_time timestamp with time zone
);
CREATE TABLE public.endpoint_replica (
    session_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    revision integer NOT NULL,
    serial bigint NOT NULL,
    state character varying NOT NULL,
    since_time timestamp with time zone DEFAULT now() NOT NULL,
    drain_time timestamp with time zone,
    was_ready boolean NOT NULL,
    message character varying NOT NULL,
    health character varying NOT NULL,
    health_message character varying NOT NULL,
    address character varying NOT NULL,
    port integer NOT NULL
);
ALTER TABLE public.endpoint_replica ALTER COLUMN serial ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.endpoint_replica_serial_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.endpoint_revision (
    endpoint_id uuid NOT NULL,
    number integer NOT NULL,
    spec jsonb DEFAULT '{}'::jsonb NOT NULL,
    found_images jsonb DEFAULT '{}'::jsonb NOT NULL,
    failures integer NOT NULL,
    retry_time timestamp with time zone,
    author character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    serve_time timestamp with time zone
);
CREATE TABLE public.endpoint_token (
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    label character varying NOT NULL,
    creator character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    expire_time timestamp with time zone NOT NULL,
    revoke_time timestamp with time zone
);
CREATE TABLE public.endpoint_traffic (
    endpoint_id uuid NOT NULL,
    revision integer NOT NULL,
    percent integer NOT NULL
);
CREATE TABLE public.idle_look (
    id smallint NOT NULL,
    "time" timestamp with time zone
);
CREATE TABLE public.idle_override (
    user_name character varying NOT NULL,
    policy jsonb DEFAULT '{}'::jsonb NOT NULL,
    version integer NOT NULL
);
CREATE TABLE public.join_token (
    hash bytea NOT NULL,
    resource_group character varying NOT NULL,
    agent_id character varying,
    uses_left integer NOT NULL,
    expire_time timestamp with time zone NOT NULL,
    kind character varying DEFAULT 'AGENT'::character varying NOT NULL
);
CREATE TABLE public.journal (
    revision bigint NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    session_id uuid NOT NULL,
    owner character varying NOT NULL,
    project character varying NOT NULL,
    kind character varying NOT NULL,
    payload jsonb DEFAULT '{}'::jsonb NOT NULL
);
CREATE TABLE public.journal_head (
    id smallint NOT NULL,
    revision bigint NOT NULL,
    oldest bigint NOT NULL
);
CREATE TABLE public.kernel (
    id uuid NOT NULL,
    session_id uuid NOT NULL,
    role character varying NOT NULL,
    role_index integer NOT NULL,
    local_rank integer NOT NULL,
    hostname character varying NOT NULL,
    slots jsonb DEFAULT '{}'::jsonb NOT NULL,
    state character varying NOT NULL,
    agent_id character varying,
    epoch integer NOT NULL,
    address character varying NOT NULL,
    exit_code integer,
    reason character varying NOT NULL,
    image_digest character varying DEFAULT ''::character varying NOT NULL,
    image_id character varying DEFAULT ''::character varying NOT NULL,
    service_ports jsonb DEFAULT '[]'::jsonb NOT NULL,
    pull jsonb DEFAULT '{}'::jsonb NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.kernel_log (
    kernel_id uuid NOT NULL,
    start_offset bigint NOT NULL,
    data bytea NOT NULL,
    epoch integer NOT NULL,
    streams bytea DEFAULT '\x'::bytea NOT NULL
);
CREATE TABLE public.leadership (
    id smallint NOT NULL,
    term bigint NOT NULL,
    holder character varying NOT NULL,
    acquire_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.leadership_lease (
    id smallint NOT NULL,
    renewal bigint NOT NULL,
    renew_time timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT leadership_lease_one_row CHECK ((id = 1))
);
CREATE TABLE public.membership (
    user_name character varying NOT NULL,
    project character varying NOT NULL,
    role character varying NOT NULL
);
CREATE TABLE public.network (
    id bigint NOT NULL,
    session_id uuid,
    vni integer NOT NULL,
    subnet cidr NOT NULL,
    mtu integer NOT NULL,
    vxlan_port integer DEFAULT 4789 NOT NULL
);
ALTER TABLE public.network ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.network_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.network_site (
    network_id bigint NOT NULL,
    agent_id character varying NOT NULL,
    session_id uuid NOT NULL
);
CREATE TABLE public.orphan (
    agent_id character varying NOT NULL,
    kernel_id uuid NOT NULL,
    epoch integer NOT NULL,
    session_id uuid,
    state character varying NOT NULL,
    end_requested boolean DEFAULT false NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.port_access (
    hash bytea NOT NULL,
    session_id uuid NOT NULL,
    port integer NOT NULL,
    user_name character varying NOT NULL,
    token_id uuid NOT NULL,
    expire_time timestamp with time zone NOT NULL
);
CREATE TABLE public.port_ticket (
    hash bytea NOT NULL,
    session_id uuid NOT NULL,
    port integer NOT NULL,
    user_name character varying NOT NULL,
    token_id uuid NOT NULL,
    path character varying NOT NULL,
    expire_time timestamp with time zone NOT NULL
);
CREATE TABLE public.project (
    name character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.quota (
    kind character varying NOT NULL,
    name character varying NOT NULL,
    slots jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_sessions integer,
    max_pending_sessions integer,
    highest_priority integer,
    version integer NOT NULL,
    max_system_sessions integer
);
CREATE TABLE public.request (
    principal character varying NOT NULL,
    method character varying NOT NULL,
    request_id uuid NOT NULL,
    body_hash bytea NOT NULL,
    answer bytea NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.resource_group (
    name character varying NOT NULL,
    session_strategy character varying NOT NULL,
    agent_strategy character varying NOT NULL,
    options jsonb DEFAULT '{}'::jsonb NOT NULL,
    owner_weights jsonb DEFAULT '{}'::jsonb NOT NULL,
    start_timeout_seconds integer NOT NULL,
    rotation character varying DEFAULT ''::character varying NOT NULL,
    version integer NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    egress character varying DEFAULT 'ALLOW'::character varying NOT NULL,
    mount_roots jsonb DEFAULT '[]'::jsonb NOT NULL,
    capacity jsonb DEFAULT '{}'::jsonb NOT NULL,
    idle_policy jsonb DEFAULT '{}'::jsonb NOT NULL,
    image_registries jsonb DEFAULT '[]'::jsonb NOT NULL,
    session_types jsonb DEFAULT '[]'::jsonb NOT NULL,
    isolations jsonb DEFAULT '[]'::jsonb NOT NULL,
    default_isolation character varying DEFAULT ''::character varying NOT NULL,
    max_grace_seconds integer DEFAULT 300 NOT NULL,
    default_pull_policy character varying DEFAULT ''::character varying NOT NULL,
    mass_loss_percent integer DEFAULT 50 NOT NULL,
    mass_loss_agents integer DEFAULT 3 NOT NULL,
    mass_loss_window_seconds integer DEFAULT 300 NOT NULL
);
CREATE TABLE public.retired_name (
    kind character varying NOT NULL,
    name character varying NOT NULL,
    retire_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.rollout (
    endpoint_id uuid NOT NULL,
    from_revision integer NOT NULL,
    to_revision integer NOT NULL,
    state character varying NOT NULL,
    step integer NOT NULL,
    promoted boolean NOT NULL,
    message character varying NOT NULL,
    policy jsonb DEFAULT '{}'::jsonb NOT NULL,
    since_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.router (
    id character varying NOT NULL,
    revoked boolean DEFAULT false NOT NULL,
    address character varying DEFAULT ''::character varying NOT NULL,
    url character varying DEFAULT ''::character varying NOT NULL,
    instance character varying DEFAULT ''::character varying NOT NULL,
    software_version character varying DEFAULT ''::character varying NOT NULL,
    generation bigint DEFAULT 0 NOT NULL,
    certificate character varying DEFAULT ''::character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    announce_time timestamp with time zone,
    heartbeat_time timestamp with time zone,
    former_certificate character varying DEFAULT ''::character varying NOT NULL
);
CREATE TABLE public.scaling_floor (
    endpoint_id uuid NOT NULL,
    replicas integer NOT NULL,
    end_time timestamp with time zone NOT NULL
);
CREATE UNLOGGED TABLE public.scheduling_change (
    kind text NOT NULL,
    key text,
    resource_group text,
    owner text,
    project text,
    slot text,
    amount bigint,
    system boolean
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE public.session (
    id uuid NOT NULL,
    number bigint NOT NULL,
    name character varying NOT NULL,
    owner character varying NOT NULL,
    project character varying NOT NULL,
    resource_group character varying NOT NULL,
    type character varying NOT NULL,
    cluster_mode character varying NOT NULL,
    cluster_size integer NOT NULL,
    priority integer NOT NULL,
    spec jsonb DEFAULT '{}'::jsonb NOT NULL,
    state character varying NOT NULL,
    result character varying NOT NULL,
    exit_code integer,
    reason character varying NOT NULL,
    message character varying NOT NULL,
    explanation jsonb DEFAULT '{}'::jsonb NOT NULL,
    conditions jsonb DEFAULT '[]'::jsonb NOT NULL,
    network character varying NOT NULL,
    tries integer NOT NULL,
    failed_starts integer NOT NULL,
    failed_agents jsonb DEFAULT '[]'::jsonb NOT NULL,
    last_failure character varying NOT NULL,
    force boolean NOT NULL,
    version integer NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    evaluate_time timestamp with time zone,
    next_try_time timestamp with time zone,
    schedule_time timestamp with time zone,
    start_time timestamp with time zone,
    state_time timestamp with time zone DEFAULT now() NOT NULL,
    end_time timestamp with time zone,
    endpoint character varying DEFAULT ''::character varying NOT NULL,
    expire_time timestamp with time zone,
    nomination jsonb DEFAULT '{}'::jsonb NOT NULL,
    pull_time timestamp with time zone,
    retries integer DEFAULT 0 NOT NULL,
    spec_bytes integer GENERATED ALWAYS AS (octet_length((spec)::text)) STORED NOT NULL
);
CREATE TABLE public.session_dependency (
    child_id uuid NOT NULL,
    parent_id uuid NOT NULL,
    "position" integer NOT NULL,
    settled boolean NOT NULL,
    kind character varying DEFAULT 'SUCCESS'::character varying NOT NULL
);
CREATE TABLE public.session_idle (
    session_id uuid NOT NULL,
    interaction_time timestamp with time zone,
    paused_seconds double precision DEFAULT 0 NOT NULL,
    pause_time timestamp with time zone,
    extension_end_time timestamp with time zone,
    warned jsonb DEFAULT '{}'::jsonb NOT NULL,
    "window" jsonb DEFAULT '{}'::jsonb NOT NULL,
    reading jsonb DEFAULT '{}'::jsonb NOT NULL
);
ALTER TABLE public.session ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.session_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.ssh_key (
    fingerprint character varying NOT NULL,
    user_name character varying NOT NULL,
    public_key character varying NOT NULL,
    description character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.template (
    id uuid NOT NULL,
    project character varying,
    name character varying NOT NULL,
    owner character varying NOT NULL,
    version integer NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    delete_time timestamp with time zone
);
CREATE TABLE public.template_version (
    template_id uuid NOT NULL,
    version integer NOT NULL,
    description character varying NOT NULL,
    spec jsonb DEFAULT '{}'::jsonb NOT NULL,
    author character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    spec_bytes integer GENERATED ALWAYS AS (octet_length((spec)::text)) STORED NOT NULL
);
CREATE TABLE public.token (
    id uuid NOT NULL,
    hash bytea NOT NULL,
    user_name character varying NOT NULL,
    description character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    expire_time timestamp with time zone,
    revoke_time timestamp with time zone,
    parent_id uuid
);
CREATE TABLE public.usage (
    resource_group character varying NOT NULL,
    owner character varying NOT NULL,
    slot character varying NOT NULL,
    day date NOT NULL,
    amount_seconds numeric NOT NULL
);
CREATE TABLE public.user_account (
    name character varying NOT NULL,
    role character varying NOT NULL,
    create_time timestamp with time zone DEFAULT now() NOT NULL,
    file_uid integer,
    file_gid integer
);
CREATE TABLE public.webhook (
    session_id uuid NOT NULL,
    "position" integer NOT NULL,
    url character varying NOT NULL,
    events jsonb DEFAULT '[]'::jsonb NOT NULL,
    secret bytea NOT NULL
);
CREATE TABLE public.webhook_cursor (
    id smallint NOT NULL,
    revision bigint NOT NULL
);
CREATE TABLE public.webhook_delivery (
    session_id uuid NOT NULL,
    "position" integer NOT NULL,
    revision bigint NOT NULL,
    event character varying NOT NULL,
    body character varying NOT NULL,
    tries integer NOT NULL,
    next_try_time timestamp with time zone NOT NULL
);
INSERT INTO public.alembic_version VALUES ('0055');
INSERT INTO public.cluster VALUES (1, '2db0cd46-87e2-4d54-8150-d78c9849fc61', 'bcf1945c-d631-44d7-acbc-32ad790d04a5', NULL, '', NULL, 0, '');
INSERT INTO public.idle_look VALUES (1, NULL);
INSERT INTO public.journal VALUES (1, '2026-11-29 07:44:39.794992+00', '11281039-8b8d-4b0d-8b46-6f7ddbdac5c4', 'ann', 'default', 'CREATED', '{"reason": "QUEUED", "kernels": [{"id": "11281039-8b8d-4b0d-8b46-6f7ddbdac5c4", "role": "main", "slots": {"cpu": 1000, "mem": 268435456}, "hostname": "main1", "local_rank": 0, "role_index": 1, "session_id": "11281039-8b8d-4b0d-8b46-6f7ddbdac5c4"}], "message": "no pass of the scheduler has evaluated it yet", "session": {"id": "11281039-8b8d-4b0d-8b46-6f7ddbdac5c4", "name": "old", "spec": {"apps": [], "name": "old", "sftp": null, "type": "BATCH", "retry": null, "roles": {}, "agents": [], "counts": [], "kernel": {"image": "", "slots": {"cpu": "1", "mem": "256m"}, "command": ["x"], "isolation": null, "pull_policy": null, "shared_memory": "", "working_directory": ""}, "labels": {}, "mounts": [], "project": "default", "endpoint": "", "priority": 10, "template": null, "webhooks": [], "depends_on": [], "preemptible": false, "single_node": true, "architecture": "", "cluster_size": 1, "agents_strict": false, "grace_seconds": 10.0, "preopen_ports": [], "service_ports": [], "resource_group": "default", "replica_placement": "", "time_limit_seconds": null, "earliest_start_time": null}, "type": "BATCH", "owner": "ann", "number": 1, "project": "default", "endpoint": "", "priority": 10, "cluster_mode": "SINGLE_NODE", "cluster_size": 1, "resource_group": "default"}}');
INSERT INTO public.journal_head VALUES (1, 1, 0);
INSERT INTO public.kernel VALUES ('11281039-8b8d-4b0d-8b46-6f7ddbdac5c4', '11281039-8b8d-4b0d-8b46-6f7ddbdac5c4', 'main', 1, 0, 'main1', '{"cpu": 1000, "mem": 268435456}', 'PENDING', NULL, 0, '', NULL, '', '', '', '[]', '{}');
INSERT INTO public.leadership VALUES (1, 0, '', '2026-11-29 07:44:39.16881+00');
INSERT INTO public.leadership_lease VALUES (1, 0, '2026-11-29 07:44:39.591177+00');
INSERT INTO public.project VALUES ('default', '2026-11-29 07:44:39.16881+00');
INSERT INTO public.resource_group VALUES ('default', 'drf', 'concentrated', '{}', '{}', 600, '', 1, '2026-11-29 07:44:39.16881+00', 'ALLOW', '[]', '{}', '{}', '[]', '[]', '[]', '', 300, '', 50, 3, 300);
INSERT INTO public.scheduling_change VALUES ('session', '11281039-8b8d-4b0d-8b46-6f7ddbdac5c4', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.session OVERRIDING SYSTEM VALUE VALUES ('11281039-8b8d-4b0d-8b46-6f7ddbdac5c4', 1, 'old', 'ann', 'default', 'default', 'BATCH', 'SINGLE_NODE', 1, 10, '{"apps": [], "name": "old", "sftp": null, "type": "BATCH", "retry": null, "roles": {}, "agents": [], "counts": [], "kernel": {"image": "", "slots": {"cpu": "1", "mem": "256m"}, "command": ["x"], "isolation": null, "environment": {}, "pull_policy": null, "shared_memory": "", "working_directory": ""}, "labels": {}, "mounts": [], "project": "default", "endpoint": "", "priority": 10, "template": null, "webhooks": [], "depends_on": [], "preemptible": false, "single_node": true, "architecture": "", "cluster_size": 1, "agents_strict": false, "grace_seconds": 10.0, "preopen_ports": [], "service_ports": [], "resource_group": "default", "bootstrap_script": "", "replica_placement": "", "time_limit_seconds": null, "earliest_start_time": null}', 'PENDING', 'UNDEFINED', NULL, 'QUEUED', 'no pass of the scheduler has evaluated it yet', '{}', '[]', '', 0, 0, '[]', '', false, 1, '2026-11-29 07:44:39.785874+00', NULL, NULL, NULL, NULL, '2026-11-29 07:44:39.785874+00', NULL, '', NULL, '{}', NULL, 0, DEFAULT);
INSERT INTO public.webhook_cursor VALUES (1, 0);
SELECT pg_catalog.setval('public.endpoint_replica_serial_seq', 1, false);
SELECT pg_catalog.setval('public.network_id_seq', 1, false);
SELECT pg_catalog.setval('public.session_number_seq', 1, true);
ALTER TABLE ONLY public.agent
    ADD CONSTRAINT agent_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (kernel_id, epoch);
ALTER TABLE ONLY public.audit_record
    ADD CONSTRAINT audit_record_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.claim
    ADD CONSTRAINT claim_pkey PRIMARY KEY (kernel_id, epoch, slot);
ALTER TABLE ONLY public.cluster
    ADD CONSTRAINT cluster_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.console_ticket
    ADD CONSTRAINT console_ticket_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.drf_share
    ADD CONSTRAINT drf_share_pkey PRIMARY KEY (resource_group, owner);
ALTER TABLE ONLY public.endpoint
    ADD CONSTRAINT endpoint_host_label_key UNIQUE (host_label);
ALTER TABLE ONLY public.endpoint
    ADD CONSTRAINT endpoint_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.endpoint_replica
    ADD CONSTRAINT endpoint_replica_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY public.endpoint_revision
    ADD CONSTRAINT endpoint_revision_pkey PRIMARY KEY (endpoint_id, number);
ALTER TABLE ONLY public.endpoint_token
    ADD CONSTRAINT endpoint_token_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.endpoint_traffic
    ADD CONSTRAINT endpoint_traffic_pkey PRIMARY KEY (endpoint_id, revision);
ALTER TABLE ONLY public.idle_look
    ADD CONSTRAINT idle_look_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.idle_override
    ADD CONSTRAINT idle_override_pkey PRIMARY KEY (user_name);
ALTER TABLE ONLY public.join_token
    ADD CONSTRAINT join_token_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.journal_head
    ADD CONSTRAINT journal_head_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (revision);
ALTER TABLE ONLY public.kernel_log
    ADD CONSTRAINT kernel_log_pkey PRIMARY KEY (kernel_id, epoch);
ALTER TABLE ONLY public.kernel
    ADD CONSTRAINT kernel_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.leadership_lease
    ADD CONSTRAINT leadership_lease_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.leadership
    ADD CONSTRAINT leadership_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.membership
    ADD CONSTRAINT membership_pkey PRIMARY KEY (user_name, project);
ALTER TABLE ONLY public.network
    ADD CONSTRAINT network_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.network_site
    ADD CONSTRAINT network_site_pkey PRIMARY KEY (network_id, agent_id);
ALTER TABLE ONLY public.network
    ADD CONSTRAINT network_subnet_key UNIQUE (subnet);
ALTER TABLE ONLY public.orphan
    ADD CONSTRAINT orphan_pkey PRIMARY KEY (agent_id, kernel_id, epoch);
ALTER TABLE ONLY public.port_access
    ADD CONSTRAINT port_access_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.port_ticket
    ADD CONSTRAINT port_ticket_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY public.project
    ADD CONSTRAINT project_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.quota
    ADD CONSTRAINT quota_pkey PRIMARY KEY (kind, name);
ALTER TABLE ONLY public.request
    ADD CONSTRAINT request_pkey PRIMARY KEY (principal, method, request_id);
ALTER TABLE ONLY public.resource_group
    ADD CONSTRAINT resource_group_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.retired_name
    ADD CONSTRAINT retired_name_pkey PRIMARY KEY (kind, name);
ALTER TABLE ONLY public.rollout
    ADD CONSTRAINT rollout_pkey PRIMARY KEY (endpoint_id);
ALTER TABLE ONLY public.router
    ADD CONSTRAINT router_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.scaling_floor
    ADD CONSTRAINT scaling_floor_pkey PRIMARY KEY (endpoint_id);
ALTER TABLE ONLY public.session_dependency
    ADD CONSTRAINT session_dependency_pkey PRIMARY KEY (child_id, parent_id);
ALTER TABLE ONLY public.session_idle
    ADD CONSTRAINT session_idle_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY public.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.ssh_key
    ADD CONSTRAINT ssh_key_pkey PRIMARY KEY (fingerprint);
ALTER TABLE ONLY public.template
    ADD CONSTRAINT template_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.template_version
    ADD CONSTRAINT template_version_pkey PRIMARY KEY (template_id, version);
ALTER TABLE ONLY public.token
    ADD CONSTRAINT token_hash_key UNIQUE (hash);
ALTER TABLE ONLY public.token
    ADD CONSTRAINT token_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.usage
    ADD CONSTRAINT usage_pkey PRIMARY KEY (resource_group, owner, slot, day);
ALTER TABLE ONLY public.user_account
    ADD CONSTRAINT user_account_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.webhook_cursor
    ADD CONSTRAINT webhook_cursor_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.webhook_delivery
    ADD CONSTRAINT webhook_delivery_pkey PRIMARY KEY (session_id, "position", revision);
ALTER TABLE ONLY public.webhook
    ADD CONSTRAINT webhook_pkey PRIMARY KEY (session_id, "position");
CREATE INDEX attempt_live_agent ON public.attempt USING btree (agent_id) WHERE ((end_time IS NULL) OR log_pending);
CREATE INDEX attempt_live_session ON public.attempt USING btree (session_id) WHERE (end_time IS NULL);
CREATE INDEX audit_record_category ON public.audit_record USING btree (category, create_time, id);
CREATE INDEX audit_record_time ON public.audit_record USING btree (create_time, id);
CREATE INDEX claim_live_agent ON public.claim USING btree (agent_id, slot) WHERE (release_time IS NULL);
CREATE INDEX claim_live_owner ON public.claim USING btree (resource_group, owner, slot) WHERE (release_time IS NULL);
CREATE INDEX endpoint_live ON public.endpoint USING btree (lifecycle) WHERE ((lifecycle)::text <> 'DELETED'::text);
CREATE UNIQUE INDEX endpoint_name ON public.endpoint USING btree (project, name) WHERE ((lifecycle)::text <> 'DELETED'::text);
CREATE INDEX endpoint_newest ON public.endpoint USING btree (create_time DESC, id DESC);
CREATE INDEX endpoint_replica_live ON public.endpoint_replica USING btree (endpoint_id) WHERE ((state)::text <> 'GONE'::text);
CREATE INDEX ix_agent_resource_group ON public.agent USING btree (resource_group);
CREATE INDEX ix_endpoint_owner ON public.endpoint USING btree (owner);
CREATE INDEX ix_endpoint_replica_endpoint_id ON public.endpoint_replica USING btree (endpoint_id);
CREATE INDEX ix_endpoint_token_creator ON public.endpoint_token USING btree (creator);
CREATE INDEX ix_endpoint_token_endpoint_id ON public.endpoint_token USING btree (endpoint_id);
CREATE INDEX ix_session_owner ON public.session USING btree (owner);
CREATE INDEX ix_ssh_key_user_name ON public.ssh_key USING btree (user_name);
CREATE INDEX ix_token_parent_id ON public.token USING btree (parent_id);
CREATE INDEX ix_token_user_name ON public.token USING btree (user_name);
CREATE INDEX journal_session ON public.journal USING btree (session_id, revision);
CREATE UNIQUE INDEX kernel_place ON public.kernel USING btree (session_id, local_rank);
CREATE UNIQUE INDEX network_session ON public.network USING btree (session_id) WHERE (session_id IS NOT NULL);
CREATE INDEX network_site_agent ON public.network_site USING btree (agent_id);
CREATE INDEX network_site_session ON public.network_site USING btree (session_id);
CREATE UNIQUE INDEX network_vni ON public.network USING btree (vni) WHERE (vni <> 0);
CREATE INDEX orphan_session ON public.orphan USING btree (session_id);
CREATE INDEX session_dependency_open ON public.session_dependency USING btree (parent_id) WHERE (NOT settled);
CREATE INDEX session_dependency_parent ON public.session_dependency USING btree (parent_id);
CREATE INDEX session_ended ON public.session USING btree (end_time) WHERE (end_time IS NOT NULL);
CREATE INDEX session_ended_name ON public.session USING btree (owner, name, number) WHERE (state IN ('TERMINATED', 'CANCELLED'));
CREATE INDEX session_endpoint ON public.session USING btree (project, endpoint) WHERE (((endpoint)::text <> ''::text) AND (state NOT IN ('TERMINATED', 'CANCELLED')));
CREATE INDEX session_expiry ON public.session USING btree (expire_time) WHERE (expire_time IS NOT NULL);
CREATE INDEX session_live ON public.session USING btree (state) WHERE (state NOT IN ('TERMINATED', 'CANCELLED'));
CREATE UNIQUE INDEX session_live_name ON public.session USING btree (project, owner, name) WHERE (state NOT IN ('TERMINATED', 'CANCELLED'));
CREATE INDEX session_newest ON public.session USING btree (create_time DESC, id DESC);
CREATE UNIQUE INDEX session_number ON public.session USING btree (number);
CREATE INDEX session_pending_owner ON public.session USING btree (owner) WHERE ((state)::text = 'PENDING'::text);
CREATE INDEX session_pending_project ON public.session USING btree (project) WHERE ((state)::text = 'PENDING'::text);
CREATE INDEX session_queue ON public.session USING btree (resource_group, number) WHERE ((state)::text = 'PENDING'::text);
CREATE UNIQUE INDEX template_name ON public.template USING btree (COALESCE(project, ''::character varying), name) WHERE (delete_time IS NULL);
CREATE TRIGGER count_delete AFTER DELETE ON public.agent REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION public.count_agent_delete();
CREATE TRIGGER count_insert AFTER INSERT ON public.agent REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION public.count_agent_insert();
CREATE TRIGGER count_update AFTER UPDATE ON public.agent REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION public.count_agent_update();
CREATE TRIGGER forget_attempts AFTER DELETE ON public.kernel REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION public.forget_attempts();
CREATE TRIGGER mark_delete AFTER DELETE ON public.agent REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_agent_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.attempt REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_attempt_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.claim REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_claim_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.network REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_network_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.orphan REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.mark_orphan_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.quota REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_quota_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.resource_group REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_resource_group_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.session REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_change();
CREATE TRIGGER mark_delete AFTER DELETE ON public.session_dependency REFERENCING OLD TABLE AS o FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_dependency_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.agent REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_agent_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.attempt REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_attempt_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.claim REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_claim_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.network REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_network_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.orphan REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION public.mark_orphan_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.quota REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_quota_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.resource_group REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_resource_group_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.session REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_change();
CREATE TRIGGER mark_insert AFTER INSERT ON public.session_dependency REFERENCING NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_dependency_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.agent REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_agent_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.attempt REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_attempt_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.claim REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_claim_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.network REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_network_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.quota REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_quota_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.resource_group REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_resource_group_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.session REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_change();
CREATE TRIGGER mark_update AFTER UPDATE ON public.session_dependency REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT WHEN ((current_setting('retinue.marked'::text, true) IS DISTINCT FROM 'no'::text)) EXECUTE FUNCTION public.mark_session_dependency_change();
ALTER TABLE ONLY public.agent
    ADD CONSTRAINT agent_resource_group_fkey FOREIGN KEY (resource_group) REFERENCES public.resource_group(name);
ALTER TABLE ONLY public.console_ticket
    ADD CONSTRAINT console_ticket_token_id_fkey FOREIGN KEY (token_id) REFERENCES public.token(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.endpoint_replica
    ADD CONSTRAINT endpoint_replica_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.endpoint(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.endpoint_replica
    ADD CONSTRAINT endpoint_replica_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.endpoint_revision
    ADD CONSTRAINT endpoint_revision_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.endpoint(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.endpoint_traffic
    ADD CONSTRAINT endpoint_traffic_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.endpoint(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.idle_override
    ADD CONSTRAINT idle_override_user_name_fkey FOREIGN KEY (user_name) REFERENCES public.user_account(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.join_token
    ADD CONSTRAINT join_token_resource_group_fkey FOREIGN KEY (resource_group) REFERENCES public.resource_group(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.kernel_log
    ADD CONSTRAINT kernel_log_kernel_id_fkey FOREIGN KEY (kernel_id) REFERENCES public.kernel(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.kernel
    ADD CONSTRAINT kernel_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.membership
    ADD CONSTRAINT membership_project_fkey FOREIGN KEY (project) REFERENCES public.project(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.membership
    ADD CONSTRAINT membership_user_name_fkey FOREIGN KEY (user_name) REFERENCES public.user_account(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.network_site
    ADD CONSTRAINT network_site_network_id_fkey FOREIGN KEY (network_id) REFERENCES public.network(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.orphan
    ADD CONSTRAINT orphan_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES public.agent(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.port_access
    ADD CONSTRAINT port_access_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.port_access
    ADD CONSTRAINT port_access_token_id_fkey FOREIGN KEY (token_id) REFERENCES public.token(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.port_ticket
    ADD CONSTRAINT port_ticket_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.port_ticket
    ADD CONSTRAINT port_ticket_token_id_fkey FOREIGN KEY (token_id) REFERENCES public.token(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.rollout
    ADD CONSTRAINT rollout_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.endpoint(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.scaling_floor
    ADD CONSTRAINT scaling_floor_endpoint_id_fkey FOREIGN KEY (endpoint_id) REFERENCES public.endpoint(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.session_dependency
    ADD CONSTRAINT session_dependency_child_id_fkey FOREIGN KEY (child_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.session_idle
    ADD CONSTRAINT session_idle_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.ssh_key
    ADD CONSTRAINT ssh_key_user_name_fkey FOREIGN KEY (user_name) REFERENCES public.user_account(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.template
    ADD CONSTRAINT template_project_fkey FOREIGN KEY (project) REFERENCES public.project(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.template_version
    ADD CONSTRAINT template_version_template_id_fkey FOREIGN KEY (template_id) REFERENCES public.template(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.token
    ADD CONSTRAINT token_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES public.token(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.token
    ADD CONSTRAINT token_user_name_fkey FOREIGN KEY (user_name) REFERENCES public.user_account(name) ON DELETE CASCADE;
ALTER TABLE ONLY public.webhook_delivery
    ADD CONSTRAINT webhook_delivery_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.webhook
    ADD CONSTRAINT webhook_session_id_fkey FOREIGN KEY (session_id) REFERENCES public.session(id) ON DELETE CASCADE;
