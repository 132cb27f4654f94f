-- Takes consecutive numbers for sessions that arrive together. That needs a lock: `nextval` of others may come between
-- `nextval` and `setval`. The exception rolls its block back, which ends the lock before the transaction does; numbers
-- that a sequence has given stay given.
CREATE FUNCTION take_session_numbers(amount bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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

-- Deletes attempts with their kernels. A foreign key would look up the kernel of each new attempt, which is made from
-- the kernel's row.
CREATE FUNCTION forget_attempts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM attempt USING o WHERE attempt.kernel_id = o.id;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_attempts AFTER DELETE ON kernel REFERENCING OLD TABLE AS o
    FOR EACH STATEMENT EXECUTE FUNCTION forget_attempts();
