-- The rows that every database begins with.
INSERT INTO cluster (id, cluster_id, incarnation) VALUES (1, gen_random_uuid(), gen_random_uuid());
INSERT INTO leadership (id, term, holder) VALUES (1, 0, '');
INSERT INTO leadership_lease (id, renewal) VALUES (1, 0);
INSERT INTO journal_head (id, revision, oldest) VALUES (1, 0, 0);
INSERT INTO webhook_cursor (id, revision) VALUES (1, 0);
INSERT INTO idle_look (id) VALUES (1);
INSERT INTO project (name) VALUES ('default');
INSERT INTO resource_group (name, session_strategy, agent_strategy, start_timeout_seconds, version)
    VALUES ('default', 'drf', 'concentrated', 600, 1);
