package decoder

import "strings"

// capture is one golden file: a workload, and how its changes are read.
type capture struct {
	name     string
	since    int // first major that can do it
	options  func(major int) []string
	twoPhase bool // the slot decodes PREPARE
	late     bool // reading starts when the workload is over
	setup    []step
	workload []step
}

// step is one statement of a workload.
type step struct {
	sql     string
	session string // steps of one session share a connection
	since   int    // skipped below this major
	await   bool   // go on only when the changes so far have been decoded
}

// captures lists what is captured from every major that can do it.
func captures() []capture {
	return []capture{
		{
			name: "rows", since: 10, setup: rowsSetup(), workload: rows(),
			options: func(major int) []string {
				options := []string{"proto_version '1'"}
				if major >= 14 {
					options = append(options, "messages 'on'")
				}
				return options
			},
		},
		{
			name: "binary", since: 14, setup: rowsSetup(), workload: rows(),
			options: func(int) []string { return []string{"proto_version '2'", "messages 'on'", "binary 'on'"} },
		},
		{
			name: "streams", since: 14, setup: streamsSetup(), workload: streams(),
			options: func(int) []string { return []string{"proto_version '2'", "messages 'on'", "streaming 'on'"} },
		},
		{
			name: "parallel", since: 16, setup: streamsSetup(), workload: streams(),
			options: func(int) []string { return []string{"proto_version '4'", "messages 'on'", "streaming 'parallel'"} },
		},
		{
			name: "prepared", since: 15, twoPhase: true, setup: streamsSetup(), workload: prepared(),
			options: func(int) []string {
				return []string{"proto_version '3'", "messages 'on'", "streaming 'on'", "two_phase 'on'"}
			},
		},
		{
			name: "aborted", since: 14, late: true, setup: streamsSetup(), workload: aborted(),
			options: func(int) []string { return []string{"proto_version '1'"} },
		},
	}
}

// rowsSetup creates tables of all replica identities and families of types. It
// runs before the slot exists.
func rowsSetup() []step {
	return []step{
		{sql: `create type mood as enum ('sad', 'happy')`},
		{sql: `create domain positive as int check (value > 0)`},
		{sql: `create type pair as (a int, b text)`},
		{sql: `create table types (
			id int primary key, flag bool, small smallint, big bigint, single real, double double precision,
			amount numeric(10, 2), words text, code varchar(10), fixed char(5), raw bytea,
			day date, clock time, moment timestamp, instant timestamptz, span interval,
			uid uuid, doc json, docb jsonb, address inet, bits bit varying, range int4range,
			numbers int[], feelings mood[], pairs pair[], feeling mood, count positive, pair pair,
			identifier information_schema.sql_identifier)`},
		{sql: `create table by_key (id int primary key, gone int, name text, big text)`},
		{sql: `alter table by_key alter big set storage external`},
		{sql: `alter table by_key drop gone`},
		{sql: `create table by_index (id int not null, code text not null unique, note text)`},
		{sql: `alter table by_index alter code set storage external`},
		{sql: `alter table by_index replica identity using index by_index_code_key`},
		{sql: `create table by_row (a int, b text, big text)`},
		{sql: `alter table by_row alter big set storage external`},
		{sql: `alter table by_row replica identity full`},
		{sql: `create table no_identity (a int)`},
		{sql: `alter table no_identity replica identity nothing`},
		{sql: `create table no_columns ()`},
		{sql: `create schema "Quo""ted"`},
		{sql: `create table "Quo""ted"."ta.ble" ("co lumn" serial primary key)`},
		{sql: `create table child (id serial primary key, parent int references by_key)`},
		{sql: `create table unpublished (a int, b text)`},
		{sql: `create publication p for table types, by_key, by_index, by_row, no_identity, no_columns, child, "Quo""ted"."ta.ble", marker`},

		{since: 12, sql: `create table generated (a int primary key, b int generated always as (a * 2) stored)`},
		{since: 12, sql: `alter publication p add table generated`},
		{since: 13, sql: `create table root (id int, v text, primary key (id)) partition by range (id)`},
		{since: 13, sql: `create table leaf_1 partition of root for values from (0) to (100)`},
		{since: 13, sql: `create table leaf_2 (v text, dropped int, id int primary key)`},
		{since: 13, sql: `alter table leaf_2 drop dropped`},
		{since: 13, sql: `alter table root attach partition leaf_2 for values from (100) to (200)`},
		{since: 13, sql: `alter publication p add table root`},
		{since: 13, sql: `alter publication p set (publish_via_partition_root = true)`},
		{since: 15, sql: `create table filtered (id int primary key, hidden text, shown text)`},
		{since: 15, sql: `alter table filtered alter shown set storage external`},
		{since: 15, sql: `alter publication p add table filtered (id, shown) where (id > 10)`},
		{since: 18, sql: `alter publication p set (publish_generated_columns = stored)`},
	}
}

// rows changes them in ordinary transactions.
func rows() []step {
	return []step{
		// All families of types, empty values and NULL.
		{sql: `insert into types values (
			1, true, -2, 9000000000, 1.5, -0.1, 12.30, 'täxt', 'code', 'abc', '\x00ff', '2024-02-29', '12:34:56.789',
			'2024-02-29 12:34:56', '2024-02-29 12:34:56.000001+02', '1 mon -3 days 04:05:06',
			'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', '{"a": [1, null]}', '10.1.2.3/24', '1011', '[1,5)',
			'{1,NULL,3}', '{sad,happy}', array[row(1, 'x'), row(2, null)]::pair[], 'happy', 5, row(3, 'a "b"'), 'name')`},
		{sql: `insert into types (id, words, raw) values (2, '', '')`},

		// Replica identity: primary key. Unchanged TOAST, a changed key, a deleted row.
		{sql: `insert into by_key values (1, 'one', repeat('x', 2100)), (2, 'two', null)`},
		{sql: `update by_key set name = 'eins' where id = 1`},
		{sql: `update by_key set big = 'small', name = null where id = 1`},
		{sql: `update by_key set id = 3 where id = 2`},
		{sql: `delete from by_key where id = 3`},

		// USING INDEX. A key stored out of line is sent although it did not change.
		{sql: `insert into by_index values (1, 'a', 'note'), (2, repeat('k', 2100), null)`},
		{sql: `update by_index set note = 'changed'`},
		{sql: `update by_index set code = 'b' where id = 1`},
		{sql: `delete from by_index`},

		// FULL, with duplicates and an unchanged large value.
		{sql: `insert into by_row values (1, 'x', null), (1, 'x', null), (null, null, repeat('y', 2100))`},
		{sql: `update by_row set b = 'z'`},
		{sql: `delete from by_row`},

		{sql: `insert into no_identity values (1), (null)`},
		{sql: `insert into no_columns default values`},
		{sql: `insert into "Quo""ted"."ta.ble" default values`},
		{sql: `insert into unpublished values (1, 'nobody sees this')`},

		// Subtransactions leave no trace in ordinary transactions.
		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into no_identity values (10)`},
		{session: "a", sql: `savepoint s`},
		{session: "a", sql: `insert into no_identity values (11)`},
		{session: "a", sql: `rollback to s`},
		{session: "a", sql: `insert into no_identity values (12)`},
		{session: "a", sql: `commit`},
		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into no_identity values (13)`},
		{session: "a", sql: `rollback`},

		// A transaction that came from elsewhere.
		{session: "a", sql: `select pg_replication_origin_create('upstream')`},
		{session: "a", sql: `select pg_replication_origin_session_setup('upstream')`},
		{session: "a", sql: `begin`},
		{session: "a", sql: `select pg_replication_origin_xact_setup('A/BCDEF', '2020-01-01 00:00:00+00')`},
		{session: "a", sql: `insert into no_identity values (14)`},
		{session: "a", sql: `commit`},
		{session: "a", sql: `select pg_replication_origin_session_reset()`},

		// The same table after every kind of change of its definition.
		{sql: `alter table by_key add extra int default 7`},
		{sql: `insert into by_key (id) values (20)`},
		{sql: `alter table by_key rename to renamed`},
		{sql: `alter table renamed rename name to title`},
		{sql: `insert into renamed (id) values (21)`},
		{sql: `alter table renamed set schema "Quo""ted"`},
		{sql: `insert into "Quo""ted".renamed (id) values (22)`},
		{sql: `alter table "Quo""ted".renamed replica identity full`},
		{sql: `delete from "Quo""ted".renamed where id = 22`},

		{since: 11, sql: `truncate no_identity`},
		{since: 11, sql: `truncate no_identity, "Quo""ted"."ta.ble" restart identity`},
		{since: 11, sql: `truncate "Quo""ted".renamed cascade`},
		{since: 11, sql: `truncate "Quo""ted".renamed restart identity cascade`},

		{since: 12, sql: `insert into generated values (4)`},

		{since: 13, sql: `insert into root values (1, 'a'), (101, 'b')`},
		{since: 13, sql: `update root set v = v || v`},
		{since: 13, sql: `update root set id = id + 50 where id in (1, 101)`},
		{since: 13, sql: `delete from root where id > 100`},
		{since: 13, sql: `truncate leaf_1`},
		{since: 13, sql: `truncate root`},

		{since: 14, sql: `select pg_logical_emit_message(true, 'prefix', 'alone in its transaction')`},
		{since: 14, sql: `select pg_logical_emit_message(false, '', '\x00ff'::bytea)`},
		{since: 14, session: "a", sql: `begin`},
		{since: 14, session: "a", sql: `select pg_logical_emit_message(false, 'prefix', 'survives the rollback')`},
		{since: 14, session: "a", sql: `select pg_logical_emit_message(true, 'prefix', 'does not')`},
		{since: 14, session: "a", sql: `rollback`},

		// A row filter makes inserts and deletes of updates, and the insert does not
		// have the large value.
		{since: 15, sql: `insert into filtered values (1, 'h', repeat('s', 2100)), (20, 'h', 'visible')`},
		{since: 15, sql: `update filtered set id = 11 where id = 1`},
		{since: 15, sql: `update filtered set id = 2 where id = 20`},
	}
}

// fill is enough changes of a table that is not published to make the server
// stream the transaction: the golden file does not grow by them.
const fill = `insert into unpublished select g, repeat('x', 100) from generate_series(1, 600) g`

func streamsSetup() []step {
	return []step{
		{sql: `create type mood as enum ('sad', 'happy')`},
		{sql: `create table t (id int primary key, name text)`},
		{sql: `create table moods (id int primary key, mood mood)`},
		{sql: `create table log (line text)`},
		{sql: `create table emptied (id serial)`},
		{sql: `create table unpublished (a int, b text)`},
		{sql: `create publication p for table t, moods, log, emptied, marker`},
	}
}

// streams runs transactions that are larger than the decoder's memory. What is
// aborted is awaited first: a server does not stream what it knows as aborted.
func streams() []step {
	return []step{
		// One transaction with changes, definitions and subtransactions, and another
		// one between its blocks.
		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into t values (1, 'one'), (2, 'two')`},
		{session: "a", sql: fill, await: true},
		{session: "b", sql: `begin`},
		{session: "b", sql: `insert into log values ('from b')`},
		{session: "b", sql: fill, await: true},
		{session: "a", sql: `update t set name = 'eins' where id = 1`},
		{session: "a", sql: `update t set id = 3 where id = 2`},
		{session: "a", sql: `delete from t where id = 3`},
		{session: "a", sql: `insert into moods values (1, 'happy')`},
		{session: "a", sql: `alter table t add extra int default 7`},
		{session: "a", sql: `insert into t values (4, 'four', 4)`},
		{session: "a", sql: `savepoint kept`},
		{session: "a", sql: `insert into t values (5, 'five', 5)`},
		{session: "a", sql: `release kept`},
		{session: "a", sql: `select pg_logical_emit_message(true, 'prefix', 'in a stream')`},
		{session: "a", sql: `select pg_logical_emit_message(false, 'prefix', 'not in a stream')`},
		{session: "a", sql: `savepoint undone`},
		{session: "a", sql: `alter table t add undone int`},
		{session: "a", sql: `insert into t values (6, 'six', 6, 6)`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `rollback to undone`},
		{session: "a", sql: `insert into t values (7, 'seven', 7)`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `truncate emptied, moods restart identity cascade`},
		{session: "a", sql: `commit`, await: true},
		{session: "b", sql: `insert into log values ('from b again')`},
		{session: "b", sql: `savepoint s`},
		{session: "b", sql: `insert into log values ('from b, nested')`},
		{session: "b", sql: `release s`},
		{session: "b", sql: fill, await: true},
		{session: "b", sql: `rollback`, await: true},

		// An ordinary transaction of a table that the streamed one has altered.
		{sql: `insert into t values (8, 'eight', 8)`},

		// Nothing of it is published, yet it is streamed.
		{sql: fill, await: true},

		// A streamed transaction that came from elsewhere.
		{session: "a", sql: `select pg_replication_origin_create('upstream')`},
		{session: "a", sql: `select pg_replication_origin_session_setup('upstream')`},
		{session: "a", sql: `begin`},
		{session: "a", sql: `select pg_replication_origin_xact_setup('A/BCDEF', '2020-01-01 00:00:00+00')`},
		{session: "a", sql: `insert into log values ('from upstream')`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `insert into log values ('from upstream again')`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `commit`},
		{session: "a", sql: `select pg_replication_origin_session_reset()`},

		// An ordinary one relies on what the streamed one has said of log.
		{sql: `insert into log values ('after the stream')`},
	}
}

// prepared decides prepared transactions in both ways, ordinary and streamed.
func prepared() []step {
	longestName := strings.Repeat("gid ", 49) + "gid" // 199 bytes
	return []step{
		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into t values (1, 'one')`},
		{session: "a", sql: `prepare transaction 'committed'`, await: true},
		{session: "a", sql: `insert into log values ('before the decision')`},
		{session: "a", sql: `commit prepared 'committed'`},

		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into moods values (1, 'sad')`},
		{session: "a", sql: `savepoint s`},
		{session: "a", sql: `insert into t values (2, 'undone')`},
		{session: "a", sql: `rollback to s`},
		{session: "a", sql: `prepare transaction 'rolled back'`, await: true},
		{session: "a", sql: `rollback prepared 'rolled back'`},

		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into t values (3, 'streamed')`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `insert into t values (4, 'streamed')`},
		{session: "a", sql: `prepare transaction 'streamed'`, await: true},
		{session: "a", sql: `commit prepared 'streamed'`},

		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into t values (5, 'streamed away')`},
		{session: "a", sql: fill, await: true},
		{session: "a", sql: `prepare transaction 'streamed away'`, await: true},
		{session: "a", sql: `rollback prepared 'streamed away'`},

		// Nothing of it is published; the name is as long as names can be.
		{session: "a", sql: `begin`},
		{session: "a", sql: `insert into unpublished values (1, 'nobody sees this')`},
		{session: "a", sql: `prepare transaction '` + longestName + `'`, await: true},
		{session: "a", sql: `commit prepared '` + longestName + `'`},

		{session: "a", sql: `select pg_replication_origin_create('upstream')`},
		{session: "a", sql: `select pg_replication_origin_session_setup('upstream')`},
		{session: "a", sql: `begin`},
		{session: "a", sql: `select pg_replication_origin_xact_setup('A/BCDEF', '2020-01-01 00:00:00+00')`},
		{session: "a", sql: `insert into log values ('from upstream')`},
		{session: "a", sql: `prepare transaction 'it''s from "upstream"'`, await: true},
		{session: "a", sql: `commit prepared 'it''s from "upstream"'`},
		{session: "a", sql: `select pg_replication_origin_session_reset()`},
	}
}

// aborted is decoded when its transaction has long failed. PostgreSQL 18 marks
// the subtransaction as streamed when it runs out of memory for it, and sends
// its abort although nothing is streamed under protocol 1
// (ReorderBufferTruncateTXN in reorderbuffer.c).
func aborted() []step {
	return []step{
		{session: "a", sql: `begin`},
		{session: "a", sql: `savepoint s`},
		{session: "a", sql: `insert into log values ('never seen')`},
		{session: "a", sql: `release s`},
		{session: "a", sql: fill},
		{session: "a", sql: `rollback`},
	}
}
