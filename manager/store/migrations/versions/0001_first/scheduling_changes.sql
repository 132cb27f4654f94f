-- Marks of what the leader's scheduler has not taken in yet, set in the commit of the change. A transaction whose
-- changes the scheduler takes in by itself sets none (`retinue.marked`). Rows of `agent` and `resource_group` are marked
-- when columns change that the scheduler reads.

CREATE FUNCTION mark_session_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO scheduling_change (kind, key) SELECT 'session', id::text FROM n WHERE state = 'PENDING';
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
        SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', count(*)
        FROM n WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
        GROUP BY resource_group, owner, project, type = 'SYSTEM';
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO scheduling_change (kind, key)
        SELECT 'session', n.id::text FROM n JOIN o USING (id) WHERE n.state = 'PENDING' OR o.state = 'PENDING';
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
        SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', sum(number) FROM (
            SELECT resource_group, owner, project, type, 1 AS number
            FROM n WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
            UNION ALL SELECT resource_group, owner, project, type, -1
            FROM o WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
        ) AS both_ways GROUP BY resource_group, owner, project, type = 'SYSTEM' HAVING sum(number) <> 0;
    ELSE
        INSERT INTO scheduling_change (kind, key) SELECT 'session', id::text FROM o WHERE state = 'PENDING';
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, amount)
        SELECT 'sessions', NULL, resource_group, owner, project, type = 'SYSTEM', -count(*)
        FROM o WHERE state NOT IN ('PENDING', 'TERMINATED', 'CANCELLED')
        GROUP BY resource_group, owner, project, type = 'SYSTEM';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION mark_attempt_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
    RETURN NULL;
END $$;

CREATE FUNCTION mark_claim_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount)
        SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''),
            coalesce(s.type = 'SYSTEM', FALSE), c.slot, sum(c.amount)
        FROM n c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
        WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6, 7;
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount)
        SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''),
            coalesce(s.type = 'SYSTEM', FALSE), c.slot, sum(c.amount)
        FROM (
            SELECT kernel_id, agent_id, resource_group, owner, slot, amount FROM n WHERE release_time IS NULL
            UNION ALL SELECT kernel_id, agent_id, resource_group, owner, slot, -amount FROM o WHERE release_time IS NULL
        ) AS c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
        GROUP BY 2, 3, 4, 5, 6, 7 HAVING sum(c.amount) <> 0;
    ELSE
        INSERT INTO scheduling_change (kind, key, resource_group, owner, project, system, slot, amount)
        SELECT 'claim', c.agent_id, c.resource_group, c.owner, coalesce(s.project, ''),
            coalesce(s.type = 'SYSTEM', FALSE), c.slot, -sum(c.amount)
        FROM o c LEFT JOIN kernel k ON k.id = c.kernel_id LEFT JOIN session s ON s.id = k.session_id
        WHERE c.release_time IS NULL GROUP BY 2, 3, 4, 5, 6, 7;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION mark_network_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
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
    RETURN NULL;
END $$;

CREATE FUNCTION mark_agent_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO scheduling_change (kind, key)
        SELECT 'agent', n.id FROM n JOIN o USING (id) WHERE (
            n.resource_group, n.state, n.drained, n.revoked, n.blocked, n.architecture, n.capacity, n.backends,
            n.underlay_address, n.underlay_mtu, n.reachable_networks
        ) IS DISTINCT FROM (
            o.resource_group, o.state, o.drained, o.revoked, o.blocked, o.architecture, o.capacity, o.backends,
            o.underlay_address, o.underlay_mtu, o.reachable_networks
        );
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM n;
    ELSE
        INSERT INTO scheduling_change (kind, key) SELECT 'agent', id FROM o;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION mark_resource_group_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        INSERT INTO scheduling_change (kind, key)
        SELECT 'group', n.name FROM n JOIN o USING (name) WHERE (
            n.session_strategy, n.agent_strategy, n.options, n.owner_weights, n.isolations
        ) IS DISTINCT FROM (
            o.session_strategy, o.agent_strategy, o.options, o.owner_weights, o.isolations
        );
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM n;
    ELSE
        INSERT INTO scheduling_change (kind, key) SELECT 'group', name FROM o;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION mark_session_dependency_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM o;
    ELSE
        INSERT INTO scheduling_change (kind, key) SELECT DISTINCT 'session', child_id::text FROM n;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION mark_quota_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM o;
    ELSE
        INSERT INTO scheduling_change (kind, key, slot) SELECT 'quota', name, kind FROM n;
    END IF;
    RETURN NULL;
END $$;

DO $$
DECLARE a record;
BEGIN
    FOR a IN
        SELECT * FROM unnest(ARRAY[
            'session', 'attempt', 'claim', 'network', 'agent', 'resource_group', 'session_dependency', 'quota'
        ]) AS changed CROSS JOIN (VALUES
            ('insert', 'NEW TABLE AS n'), ('update', 'OLD TABLE AS o NEW TABLE AS n'), ('delete', 'OLD TABLE AS o')
        ) AS events (event, tables)
    LOOP
        EXECUTE format(
            'CREATE TRIGGER mark_%1$s AFTER %1$s ON %2$s REFERENCING %3$s FOR EACH STATEMENT '
            'WHEN (current_setting(''retinue.marked'', TRUE) IS DISTINCT FROM ''no'') '
            'EXECUTE FUNCTION mark_%2$s_change()', a.event, a.changed, a.tables
        );
    END LOOP;
END $$;

-- Sessions that agents are found to run wait until they are cleared away.
CREATE FUNCTION mark_orphan_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduling_change (kind, key)
    SELECT DISTINCT 'session', session_id::text FROM changed WHERE session_id IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER mark_insert AFTER INSERT ON orphan REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION mark_orphan_change();
CREATE TRIGGER mark_delete AFTER DELETE ON orphan REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION mark_orphan_change();
