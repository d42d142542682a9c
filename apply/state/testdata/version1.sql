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
