package state

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// migrations[n] brings the schema from version n to n+1. A published entry
// never changes; what has to change gets an entry of its own.
//
// There are no foreign keys: roles that apply changes often run with
// session_replication_role=replica by default, which turns them off.
func migrations() []string {
	return []string{version1, version2, version3, version4, version5, version6, version7}
}

// Version is the version of the schema that this program reads and writes.
func Version() int { return len(migrations()) }

const version1 = `
CREATE TABLE pgapply.version (
	version     int4 NOT NULL,
	migrated_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX version_has_one_row ON pgapply.version ((true));

CREATE TABLE pgapply.subscription (
	name                text PRIMARY KEY,
	enabled             bool NOT NULL DEFAULT true,
	source_system_id    text NOT NULL,
	source_timeline     int4 NOT NULL,
	source_database     text NOT NULL,
	target_system_id    text NOT NULL,
	target_database_oid oid NOT NULL,
	slot_name           text NOT NULL,
	slot_state          text NOT NULL CHECK (slot_state IN ('creating', 'created', 'adopted')),
	consistent_point    pg_lsn,
	publications        text[] NOT NULL,
	ack_lsn             pg_lsn,
	epoch               int8 NOT NULL DEFAULT 0,
	settings            jsonb NOT NULL DEFAULT '{}',
	last_error          text,
	last_error_hint     text,
	last_error_at       timestamptz,
	created_at          timestamptz NOT NULL DEFAULT pg_catalog.now(),
	updated_at          timestamptz NOT NULL DEFAULT pg_catalog.now(),
	CHECK ((slot_state = 'creating') = (consistent_point IS NULL))
);

CREATE TABLE pgapply.subscription_table (
	subscription text NOT NULL,
	schema_name  text NOT NULL,
	table_name   text NOT NULL,
	state        "char" NOT NULL CHECK (state IN ('i', 'd', 'f', 's', 'r')),
	state_lsn    pg_lsn,
	rows_copied  int8 NOT NULL DEFAULT 0,
	bytes_copied int8 NOT NULL DEFAULT 0,
	last_error   text,
	PRIMARY KEY (subscription, schema_name, table_name)
);

CREATE TABLE pgapply.origin (
	subscription text NOT NULL,
	origin_name  text NOT NULL UNIQUE,
	roident      oid,
	worker       int4 NOT NULL,
	PRIMARY KEY (subscription, origin_name)
);

CREATE TABLE pgapply.runner (
	subscription    text PRIMARY KEY,
	pid             int4 NOT NULL,
	host            text NOT NULL,
	version         text NOT NULL,
	started_at      timestamptz NOT NULL,
	heartbeat       timestamptz NOT NULL,
	last_error      text,
	last_error_hint text,
	status          jsonb
);
`

// version2: the columns of table conflict are those of the conflict log table
// that PostgreSQL 20 brings, so that tools can move from one to the other, and
// below them what we know beyond it. A failing transaction is tried over and over,
// and a message outside of transactions may arrive again after a reconnect: the
// unique indexes keep one record of each. Table progress gets a row from each
// transaction on the target; the highest is how far the subscription is applied.
const version2 = `
ALTER TABLE pgapply.subscription
	ADD COLUMN skip_lsn     pg_lsn,
	ADD COLUMN paused_at    timestamptz,
	ADD COLUMN pause_reason text;

CREATE TABLE pgapply.conflict (
	id                int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	subscription      text NOT NULL,
	schemaname        text NOT NULL,
	relname           text NOT NULL,
	conflict_type     text NOT NULL,
	remote_xid        int8 NOT NULL,
	remote_commit_lsn pg_lsn NOT NULL,
	remote_commit_ts  timestamptz,
	remote_origin     text,
	replica_identity  jsonb,
	remote_tuple      jsonb,
	local_conflicts   jsonb NOT NULL DEFAULT '[]',
	operation         text,
	policy            text,
	resolution        text NOT NULL CHECK (resolution IN ('applied', 'skipped', 'kept', 'failed', 'skipped_transaction')),
	at                timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE INDEX conflict_by_time ON pgapply.conflict (subscription, at);
CREATE UNIQUE INDEX conflict_fails_once ON pgapply.conflict (subscription, remote_commit_lsn, schemaname, relname, conflict_type,
	pg_catalog.jsonb_hash_extended(coalesce(replica_identity, 'null'), 0), pg_catalog.jsonb_hash_extended(coalesce(remote_tuple, 'null'), 0))
	WHERE resolution = 'failed';

CREATE TABLE pgapply.message (
	id               int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	subscription     text NOT NULL,
	prefix           text NOT NULL,
	content          bytea NOT NULL,
	transactional    bool NOT NULL,
	remote_xid       int8,
	remote_lsn       pg_lsn NOT NULL,
	remote_commit_ts timestamptz,
	at               timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE TABLE pgapply.progress (
	subscription text NOT NULL,
	position     pg_lsn NOT NULL
);
CREATE UNIQUE INDEX message_arrives_once ON pgapply.message (subscription, remote_lsn) WHERE NOT transactional;
`

// version3: a prepared transaction leaves its row in table progress under its own
// name. It shows itself once the transaction is committed, and says nothing of how far
// the subscription is.
const version3 = `
ALTER TABLE pgapply.progress ADD COLUMN gid text;
`

// version4: tables are copied. sync_slot names the slot of the copy set in work, from
// before it is created on, and sync_lsn up to where its tables have the publisher's
// changes. Whoever changes from outside which tables there are, or wants one copied
// again, raises tables_version. existing_rows says what becomes of the rows that the
// target's table holds when its copy begins. Indexes that were dropped for the time of a
// copy are in deferred_index from the transaction that drops them to the one that makes
// them again; they outlive the subscription.
const version4 = `
ALTER TABLE pgapply.subscription
	ADD COLUMN tables_version int8 NOT NULL DEFAULT 0,
	ADD COLUMN sync_slot      text,
	ADD COLUMN sync_lsn       pg_lsn;
ALTER TABLE pgapply.subscription_table
	ADD COLUMN existing_rows text NOT NULL DEFAULT 'refuse' CHECK (existing_rows IN ('refuse', 'remove', 'keep', 'kept')),
	ADD COLUMN copy_seconds  float8 NOT NULL DEFAULT 0;
CREATE TABLE pgapply.deferred_index (
	subscription text NOT NULL,
	schema_name  text NOT NULL,
	table_name   text NOT NULL,
	index_name   text NOT NULL,
	definition   text NOT NULL,
	PRIMARY KEY (subscription, schema_name, table_name, index_name)
);
`

// version5: where a publication is FOR ALL TABLES, ours are published too, and rows of
// those without a primary key could be neither changed nor deleted. Nobody applies them.
const version5 = `
ALTER TABLE pgapply.version REPLICA IDENTITY FULL;
ALTER TABLE pgapply.progress REPLICA IDENTITY FULL;
`

// version6: the progress need not be in replication origins. progress_in says where it
// is; unstamped_until is when it came into origins, where it had been in the table before:
// rows that were written until then look as if somebody on the target had.
const version6 = `
ALTER TABLE pgapply.subscription
	ADD COLUMN progress_in     text NOT NULL DEFAULT 'origin' CHECK (progress_in IN ('origin', 'table')),
	ADD COLUMN unstamped_until timestamptz;
`

// version7: what tells whether the publisher's log is the one that was followed.
const version7 = `
ALTER TABLE pgapply.subscription
	ADD COLUMN source_history     text NOT NULL DEFAULT '',
	ADD COLUMN source_in_recovery bool NOT NULL DEFAULT false;
`

// migrationLock serialises those who create, migrate or drop the schema. The
// schema's OID cannot serve, since it may not exist yet: the letters "pgapply".
const migrationLock = int64(0x0070676170706c79)

// migrate brings the schema to the last of the given steps, in one transaction,
// and creates it where it is missing. It is safe to be called by several
// sessions at once.
func migrate(ctx context.Context, conn *pgx.Conn, steps []string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.pg_advisory_xact_lock($1)`, migrationLock); err != nil {
			return fmt.Errorf("wait for others who set up schema pgapply: %w", err)
		}
		// Again, now that nobody else can change it.
		var found Found
		if err := found.look(ctx, tx); err != nil {
			return err
		}
		have := found.version
		if have > len(steps) {
			return &VersionError{Have: have, Want: len(steps)}
		}
		if have == len(steps) {
			return nil
		}
		// Asked first: CREATE SCHEMA IF NOT EXISTS wants the privilege to create even where
		// an administrator has made the schema ahead of time.
		if found.schema == 0 {
			if _, err := tx.Exec(ctx, `CREATE SCHEMA pgapply`); err != nil {
				return fmt.Errorf("create schema pgapply: %w", err)
			}
		}
		for n := have; n < len(steps); n++ {
			if _, err := tx.Exec(ctx, steps[n], pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("bring schema pgapply to version %d: %w", n+1, err)
			}
		}
		if _, err := tx.Exec(ctx, recordVersionSQL(len(steps))); err != nil {
			return fmt.Errorf("record version %d of schema pgapply: %w", len(steps), err)
		}
		return nil
	})
}

func recordVersionSQL(version int) string {
	return fmt.Sprintf(`INSERT INTO pgapply.version AS v (version, migrated_at) VALUES (%d, pg_catalog.now())
	ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, migrated_at = EXCLUDED.migrated_at`, version)
}

// querier is what a connection and a transaction have in common.
type querier interface {
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}
