-- A small bank. Run on both servers; only the publisher then gets rows, some before
-- replication begins, which are copied, and the others while it goes on.

CREATE TABLE branches (
    id      int PRIMARY KEY,
    name    text NOT NULL,
    balance numeric(14,2) NOT NULL DEFAULT 0
);

CREATE TABLE accounts (
    id      int PRIMARY KEY,
    branch  int NOT NULL REFERENCES branches,
    owner   text NOT NULL,
    balance numeric(14,2) NOT NULL DEFAULT 0,
    opened  timestamptz NOT NULL DEFAULT now()
);

-- What an account holder signed: long values, stored out of line. An UPDATE that
-- leaves the text alone does not send it.
CREATE TABLE contracts (
    account  int PRIMARY KEY,
    revision int NOT NULL DEFAULT 1,
    text     text NOT NULL,
    tags     text[] NOT NULL DEFAULT '{}'
);
ALTER TABLE contracts ALTER text SET STORAGE EXTERNAL;

CREATE TABLE transfers (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    debit   int NOT NULL,
    credit  int NOT NULL,
    amount  numeric(14,2) NOT NULL,
    details jsonb,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No key at all: rows can only be added.
CREATE TABLE history (
    account int NOT NULL,
    delta   numeric(14,2) NOT NULL,
    note    text,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- No key, but the whole row as identity: rows can be changed and removed, too.
CREATE TABLE audit (
    teller  int,
    action  text NOT NULL,
    subject inet,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE INDEX ON audit (teller);
