package state

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

var update = flag.Bool("update", false, "write docs/reference/state.md")

// meanings are those of the tables and columns of schema pgapply.
func meanings() map[string]string {
	return map[string]string{
		"subscription":                     "One row for each subscription of this database.",
		"subscription.name":                "`--name`",
		"subscription.enabled":             "false while it is paused",
		"subscription.source_system_id":    "the publisher's system identifier: another server is refused",
		"subscription.source_timeline":     "its timeline",
		"subscription.source_history":      "where the timelines before it ended",
		"subscription.source_in_recovery":  "whether it was a standby at the last start",
		"subscription.source_database":     "its database",
		"subscription.target_system_id":    "this server's system identifier, by which a copy of it is recognized",
		"subscription.target_database_oid": "and this database's OID",
		"subscription.slot_name":           "the slot on the publisher",
		"subscription.slot_state":          "`creating` before it is made, `created`, or `adopted` from somebody else",
		"subscription.consistent_point":    "where the slot began",
		"subscription.publications":        "`--publication`",
		"subscription.ack_lsn":             "up to where the publisher was told that all is durable here",
		"subscription.epoch":               "rises with each start; sessions of an earlier one write no more",
		"subscription.settings":            "what the last start was given",
		"subscription.last_error":          "the error that has stopped it",
		"subscription.last_error_hint":     "its remedy",
		"subscription.last_error_at":       "when it was",
		"subscription.progress_in":         "`origin` where transactions are stamped with replication origins, `table` where they are not",
		"subscription.unstamped_until":     "when they began to be: rows without an origin from before that are not taken for somebody else's",
		"subscription.created_at":          "the first start",
		"subscription.updated_at":          "when the row was last written",
		"subscription.skip_lsn":            "`pgapply skip --lsn`, until that transaction was skipped",
		"subscription.paused_at":           "when it was paused",
		"subscription.pause_reason":        "and why",
		"subscription.tables_version":      "rises when somebody wants other tables, or one copied again",
		"subscription.sync_slot":           "the slot of the tables that are copied beside the stream",
		"subscription.sync_lsn":            "up to where these have the publisher's changes",

		"subscription_table":               "One row for each table of a subscription.",
		"subscription_table.subscription":  "",
		"subscription_table.schema_name":   "",
		"subscription_table.table_name":    "",
		"subscription_table.state":         "the letters of native's `srsubstate`: `i` to be copied, `d` being copied, `f` copied, `s` synchronized, `r` ready",
		"subscription_table.state_lsn":     "the position at which it came to that state",
		"subscription_table.rows_copied":   "",
		"subscription_table.bytes_copied":  "",
		"subscription_table.last_error":    "why its copy, or its changes, have failed",
		"subscription_table.existing_rows": "what becomes of rows that were here before: `refuse`, `remove`, `keep`; `kept` once it is done",
		"subscription_table.copy_seconds":  "",

		"origin":              "The replication origins that were made. Where the subscription stands is the highest of them and of `progress`.",
		"origin.subscription": "",
		"origin.origin_name":  "as in `pg_replication_origin`",
		"origin.roident":      "its number there; NULL until it is made",
		"origin.worker":       "the worker that uses it",

		"progress":              "A row from each transaction on the target, in it: what is committed is here. The highest counts; the others are removed from time to time.",
		"progress.subscription": "",
		"progress.position":     "where the last of the publisher's transactions in it ends",
		"progress.gid":          "of a prepared transaction, under its name",

		"runner":                 "One row for each subscription with a runner, written when something changes, at most once a second, and every 10 s.",
		"runner.subscription":    "",
		"runner.pid":             "the process",
		"runner.host":            "its machine",
		"runner.version":         "of pgapply",
		"runner.started_at":      "",
		"runner.heartbeat":       "the last sign of life",
		"runner.last_error":      "",
		"runner.last_error_hint": "its remedy",
		"runner.status":          "[Status](../json.md#status) as JSON",

		"conflict":                   "One row for each conflict, and for each row of a skipped transaction. The first columns are those of the conflict log table of PostgreSQL 20.",
		"conflict.id":                "for `pgapply conflicts show`",
		"conflict.subscription":      "",
		"conflict.schemaname":        "",
		"conflict.relname":           "",
		"conflict.conflict_type":     "see [conflicts](../conflicts.md); `skipped` for rows of skipped transactions",
		"conflict.remote_xid":        "the publisher's transaction",
		"conflict.remote_commit_lsn": "where it finishes",
		"conflict.remote_commit_ts":  "when it committed there",
		"conflict.remote_origin":     "from where the publisher had it, if it was replicated there",
		"conflict.replica_identity":  "by what the row was searched",
		"conflict.remote_tuple":      "the publisher's row",
		"conflict.local_conflicts":   "the rows that were met: `xid`, `commit_ts`, `origin`, `index`, `key` (by the names of the index's columns, or the text of its expressions), `tuple`",
		"conflict.operation":         "the change: `INSERT`, `UPDATE`, `DELETE`, `TRUNCATE`",
		"conflict.policy":            "what was to be done",
		"conflict.resolution":        "what was done: `applied`, `skipped`, `kept`, `failed`, `skipped_transaction`",
		"conflict.at":                "when it was recorded",

		"message":                  "Logical messages, under `--messages table`.",
		"message.id":               "",
		"message.subscription":     "",
		"message.prefix":           "",
		"message.content":          "",
		"message.transactional":    "",
		"message.remote_xid":       "the publisher's transaction, for transactional ones",
		"message.remote_lsn":       "",
		"message.remote_commit_ts": "",
		"message.at":               "when it was recorded",

		"deferred_index":              "Indexes that `--defer-indexes` has dropped and that are not made again yet. They outlive the subscription.",
		"deferred_index.subscription": "",
		"deferred_index.schema_name":  "",
		"deferred_index.table_name":   "",
		"deferred_index.index_name":   "",
		"deferred_index.definition":   "the SQL that makes it",

		"version":             "One row: the version of this schema.",
		"version.version":     "",
		"version.migrated_at": "when it came to that",
	}
}

// TestReferenceOfState holds docs/reference/state.md to the schema. Run it with -update to
// write the page.
func TestReferenceOfState(t *testing.T) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	open(t, uri, "orders")
	meaning := meanings()
	take := func(name string) string {
		text, known := meaning[name]
		require.True(t, known, "%s has no meaning", name)
		delete(meaning, name)
		return text
	}
	var text strings.Builder
	fmt.Fprintf(&text, `# The state on the target

Tables of schema `+"`pgapply`"+`, version %d. This page is made from the schema, and a test holds it to that. The tables may be read by anyone who
has the right; they are changed by the commands, and not by hand. `+"`cleanup`"+` removes what belongs to a subscription, and the schema with the last one.
`, Version())
	for table := range strings.SplitSeq("subscription subscription_table conflict runner origin progress message deferred_index version", " ") {
		fmt.Fprintf(&text, "\n## pgapply.%s\n\n%s\n\n| column | type | meaning |\n|---|---|---|\n", table, take(table))
		columns := pgtest.Query(t, uri, `select attname, format_type(atttypid, atttypmod) from pg_attribute
			where attrelid = ('pgapply.' || $1)::regclass and attnum > 0 and not attisdropped order by attnum`, table)
		for line := range strings.SplitSeq(columns, "\n") {
			column, kind, _ := strings.Cut(line, "|")
			fmt.Fprintf(&text, "| `%s` | %s | %s |\n", column, kind, take(table+"."+column))
		}
	}
	require.Empty(t, meaning, "these are not there any more")
	tables := pgtest.Query(t, uri, `select count(*) from pg_class where relnamespace = 'pgapply'::regnamespace and relkind in ('r', 'p', 'v')`)
	require.Equal(t, fmt.Sprint(strings.Count(text.String(), "\n## ")), tables)
	const path = "../../docs/reference/state.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	}
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(written), text.String(), "go test ./apply/state -run TestReferenceOfState -update")
}
