-- The capacity of a resource group is the sum over its agents that were heard of, are not lost and not revoked. The
-- commit that changes an agent adds the difference. It locks the group's row first, so that the sum begins with the one
-- that was committed last.

CREATE FUNCTION count_agent_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE change record;
BEGIN
    FOR change IN
        SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
            SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
            FROM (
                SELECT resource_group, capacity, 1 AS sign FROM n WHERE state IN ('ALIVE', 'SUSPECT') AND NOT revoked
            ) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
            GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
        ) AS differences GROUP BY resource_group ORDER BY resource_group
    LOOP
        PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
        UPDATE resource_group SET capacity = (
            SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
                SELECT key, sum(value::numeric) AS total FROM (
                    SELECT * FROM jsonb_each_text(resource_group.capacity)
                    UNION ALL SELECT * FROM jsonb_each_text(change.amounts)
                ) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
            ) AS sums
        ) WHERE name = change.name;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER count_insert AFTER INSERT ON agent REFERENCING NEW TABLE AS n
    FOR EACH STATEMENT EXECUTE FUNCTION count_agent_insert();

CREATE FUNCTION count_agent_update() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE change record;
BEGIN
    FOR change IN
        SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
            SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
            FROM (
                SELECT n.resource_group, n.capacity, 1 AS sign FROM n JOIN o USING (id)
                WHERE n.state IN ('ALIVE', 'SUSPECT') AND NOT n.revoked
                    AND (n.resource_group, n.state, n.revoked, n.capacity)
                        <> (o.resource_group, o.state, o.revoked, o.capacity)
                UNION ALL SELECT o.resource_group, o.capacity, -1 FROM o JOIN n USING (id)
                WHERE o.state IN ('ALIVE', 'SUSPECT') AND NOT o.revoked
                    AND (n.resource_group, n.state, n.revoked, n.capacity)
                        <> (o.resource_group, o.state, o.revoked, o.capacity)
            ) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
            GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
        ) AS differences GROUP BY resource_group ORDER BY resource_group
    LOOP
        PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
        UPDATE resource_group SET capacity = (
            SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
                SELECT key, sum(value::numeric) AS total FROM (
                    SELECT * FROM jsonb_each_text(resource_group.capacity)
                    UNION ALL SELECT * FROM jsonb_each_text(change.amounts)
                ) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
            ) AS sums
        ) WHERE name = change.name;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER count_update AFTER UPDATE ON agent REFERENCING OLD TABLE AS o NEW TABLE AS n
    FOR EACH STATEMENT EXECUTE FUNCTION count_agent_update();

CREATE FUNCTION count_agent_delete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE change record;
BEGIN
    FOR change IN
        SELECT resource_group AS name, jsonb_object_agg(key, amount) AS amounts FROM (
            SELECT resource_group, slot.key, sum(sign * slot.value::numeric) AS amount
            FROM (
                SELECT resource_group, capacity, -1 AS sign FROM o WHERE state IN ('ALIVE', 'SUSPECT') AND NOT revoked
            ) AS side CROSS JOIN LATERAL jsonb_each_text(side.capacity) AS slot
            GROUP BY resource_group, slot.key HAVING sum(sign * slot.value::numeric) <> 0
        ) AS differences GROUP BY resource_group ORDER BY resource_group
    LOOP
        PERFORM FROM resource_group WHERE name = change.name FOR NO KEY UPDATE;
        UPDATE resource_group SET capacity = (
            SELECT coalesce(jsonb_object_agg(key, total), '{}') FROM (
                SELECT key, sum(value::numeric) AS total FROM (
                    SELECT * FROM jsonb_each_text(resource_group.capacity)
                    UNION ALL SELECT * FROM jsonb_each_text(change.amounts)
                ) AS parts GROUP BY key HAVING sum(value::numeric) <> 0
            ) AS sums
        ) WHERE name = change.name;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER count_delete AFTER DELETE ON agent REFERENCING OLD TABLE AS o
    FOR EACH STATEMENT EXECUTE FUNCTION count_agent_delete();
