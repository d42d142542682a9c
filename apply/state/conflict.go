package state

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgapply/conflict"
	"pgapply/internal/lsn"
)

// RecordConflict records a conflict from the control session, for a transaction
// that was rolled back: what its own session writes would be lost with it. Names and
// values are in the target database's encoding, as sessions that apply have them. The
// record of a failed row is made once, however often its transaction is tried. It
// returns the record's number, and whether it is new.
func (s *Store) RecordConflict(ctx context.Context, c conflict.Conflict) (id int64, fresh bool, err error) {
	local, err := json.Marshal(nonNil(c.Local))
	if err != nil {
		return 0, false, fmt.Errorf("record a conflict (subscription %q): %w", s.name, err)
	}
	type record struct {
		ID    int64
		Fresh bool
	}
	found, err := rows(ctx, s, "record a conflict", pgx.RowToStructByPos[record], `
		WITH given (schemaname, relname, conflict_type, remote_commit_lsn, replica_identity, remote_tuple) AS (
			SELECT `+fromBytes("$2")+`, `+fromBytes("$3")+`, $4::text, $5::text::pg_lsn, `+fromBytes("$6")+`::jsonb, `+fromBytes("$7")+`::jsonb
		), fresh AS (
			INSERT INTO pgapply.conflict (subscription, schemaname, relname, conflict_type, remote_commit_lsn, replica_identity, remote_tuple,
				remote_xid, remote_commit_ts, remote_origin, local_conflicts, policy, resolution)
			SELECT $1, g.*, $8, $9, nullif(`+fromBytes("$10")+`, ''), `+fromBytes("$11")+`::jsonb, $12, $13 FROM given g
			ON CONFLICT DO NOTHING
			RETURNING id
		)
		SELECT id, true FROM fresh
		UNION ALL
		SELECT c.id, false FROM pgapply.conflict c, given g
		WHERE c.subscription = $1 AND c.resolution = 'failed' AND c.remote_commit_lsn = g.remote_commit_lsn
			AND c.schemaname = g.schemaname AND c.relname = g.relname AND c.conflict_type = g.conflict_type
			AND c.replica_identity IS NOT DISTINCT FROM g.replica_identity AND c.remote_tuple IS NOT DISTINCT FROM g.remote_tuple
			AND NOT EXISTS (SELECT FROM fresh)`,
		[]byte(c.Schema), []byte(c.Table), string(c.Type), c.FinishLSN.String(), orNull(c.ReplicaIdentity), orNull(c.RemoteTuple),
		int64(c.RemoteXID), orNil(c.RemoteTime), []byte(c.RemoteOrigin), local, string(c.Policy), string(c.Resolution))
	if err != nil || len(found) == 0 { // none where another row has the same hash
		return 0, false, err
	}
	return found[0].ID, found[0].Fresh, nil
}

// fromBytes makes text of a parameter in the database's encoding, where text itself
// would be taken for the session's.
func fromBytes(parameter string) string {
	return "pg_catalog.convert_from(" + parameter + "::bytea, pg_catalog.getdatabaseencoding())"
}

// toText selects text as bytes of UTF-8. A database in SQL_ASCII knows no encoding, and
// gives what it has, which text would be refused for: [readable] makes text of either.
func toText(expression string) string {
	return "pg_catalog.convert_to(" + expression + ", CASE pg_catalog.getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)"
}

// readable is text for people and for JSON: what is not UTF-8 is replaced.
func readable(text []byte) string { return strings.ToValidUTF8(string(text), "\uFFFD") }

// readableJSON is a JSON value, nil for NULL.
func readableJSON(value []byte) json.RawMessage {
	if value == nil {
		return nil
	}
	return json.RawMessage(readable(value))
}

// orNull makes NULL of the JSON value null.
func orNull(value json.RawMessage) []byte {
	if string(value) == "null" {
		return nil
	}
	return value
}

// orNil makes NULL of the zero time.
func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// RecordedConflict is a row of table conflict.
type RecordedConflict struct {
	ID int64
	At time.Time
	conflict.Conflict
	// Operation is what the publisher did to the row, such as UPDATE; empty where
	// that was not recorded, since the type says it.
	Operation string
}

// ConflictFilter picks records. Its zero value picks all of the subscription.
type ConflictFilter struct {
	// Table is a table's name, or schema.table, either of which may be quoted as in SQL.
	Table string
	Type  string
	// Since leaves out what was recorded earlier.
	Since time.Time
	// Limit is how many of the newest are listed; 0 for all.
	Limit int
}

// condition is the WHERE clause of a filter: $1 is the subscription, and the
// filter's arguments are $2 to $4.
const condition = ` WHERE subscription = $1 AND ($2 IN ('', relname, schemaname || '.' || relname, pg_catalog.quote_ident(relname), pg_catalog.format('%I.%I', schemaname, relname)))
	AND ($3 = '' OR conflict_type = $3) AND ($4::timestamptz IS NULL OR at >= $4)`

func (f *ConflictFilter) arguments() []any { return []any{f.Table, f.Type, orNil(f.Since)} }

// Conflicts lists records, newest first, without the values of rows.
func (s *Store) Conflicts(ctx context.Context, filter ConflictFilter) ([]RecordedConflict, error) {
	return rows(ctx, s, "list the conflicts", func(row pgx.CollectableRow) (RecordedConflict, error) {
		return scanConflict(row)
	}, conflictColumns+condition+` ORDER BY id DESC LIMIT nullif($5::int8, 0)`, append(filter.arguments(), filter.Limit)...)
}

// Conflict returns one record with the values of its rows, or nil.
func (s *Store) Conflict(ctx context.Context, id int64) (*RecordedConflict, error) {
	found, err := rows(ctx, s, "read a conflict", func(row pgx.CollectableRow) (*RecordedConflict, error) {
		var identity, tuple, local []byte
		recorded, err := scanConflict(row, &identity, &tuple, &local)
		if err != nil {
			return nil, err
		}
		recorded.ReplicaIdentity, recorded.RemoteTuple = readableJSON(identity), readableJSON(tuple)
		return &recorded, json.Unmarshal(readableJSON(local), &recorded.Local)
	}, conflictValues+` WHERE subscription = $1 AND id = $2`, id)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// mostValues is how many bytes of a row's values [Store.RecentConflicts] returns.
const mostValues = 8 << 10

// RecentConflicts lists the newest records, newest first, with the values of their rows
// where these are not too long to look at.
func (s *Store) RecentConflicts(ctx context.Context, limit int) ([]RecordedConflict, error) {
	return rows(ctx, s, "list the newest conflicts", func(row pgx.CollectableRow) (RecordedConflict, error) {
		var identity, tuple, local []byte
		recorded, err := scanConflict(row, &identity, &tuple, &local)
		if err != nil {
			return recorded, err
		}
		recorded.ReplicaIdentity, recorded.RemoteTuple = readableJSON(identity), readableJSON(tuple)
		if local != nil {
			err = json.Unmarshal(readableJSON(local), &recorded.Local)
		}
		return recorded, err
	}, plainColumns+short("replica_identity")+short("remote_tuple")+short("local_conflicts")+
		` FROM pgapply.conflict WHERE subscription = $1 ORDER BY id DESC LIMIT $2`, limit)
}

// short selects a column of JSON as text, or NULL where it is long.
func short(column string) string {
	return fmt.Sprintf(", CASE WHEN pg_catalog.octet_length(%[1]s::text) <= %[2]d THEN %[3]s END", column, mostValues, toText(column+"::text"))
}

var (
	plainColumns = `SELECT id, at, ` + toText("schemaname") + `, ` + toText("relname") + `, conflict_type, remote_xid, remote_commit_lsn::text, remote_commit_ts,
		` + toText("coalesce(remote_origin, '')") + `, coalesce(operation, ''), coalesce(policy, ''), resolution`
	conflictColumns = plainColumns + ` FROM pgapply.conflict`
	conflictValues  = plainColumns + `, ` + toText("replica_identity::text") + `, ` + toText("remote_tuple::text") + `, ` + toText("local_conflicts::text") + ` FROM pgapply.conflict`
)

// scanConflict reads plainColumns, and what follows them into values.
func scanConflict(row pgx.CollectableRow, values ...any) (recorded RecordedConflict, err error) {
	var schema, table, origin []byte
	var xid int64
	var finish string
	var committed *time.Time
	err = row.Scan(append([]any{
		&recorded.ID, &recorded.At, &schema, &table, &recorded.Type, &xid, &finish, &committed,
		&origin, &recorded.Operation, &recorded.Policy, &recorded.Resolution,
	}, values...)...)
	if err != nil {
		return recorded, err
	}
	recorded.Schema, recorded.Table, recorded.RemoteOrigin = readable(schema), readable(table), readable(origin)
	recorded.RemoteXID = uint32(xid)
	if committed != nil {
		recorded.RemoteTime = *committed
	}
	recorded.FinishLSN, err = lsn.Parse(finish)
	return recorded, err
}

// CountConflicts counts what [Store.ClearConflicts] would delete.
func (s *Store) CountConflicts(ctx context.Context, filter ConflictFilter) (int64, error) {
	counted, err := rows(ctx, s, "count the conflicts", pgx.RowTo[int64],
		`SELECT pg_catalog.count(*) FROM pgapply.conflict`+condition, filter.arguments()...)
	if err != nil {
		return 0, err
	}
	return counted[0], nil
}

// ClearConflicts deletes the records that the filter picks, whose Limit does not
// count, and returns how many those were.
func (s *Store) ClearConflicts(ctx context.Context, filter ConflictFilter) (int64, error) {
	return s.exec(ctx, "delete conflicts", `DELETE FROM pgapply.conflict`+condition, filter.arguments()...)
}

// PruneLimit is how many records one Prune deletes at most, so that the session is
// not kept from the runner's heartbeat.
const PruneLimit = 10_000

// Prune deletes the oldest records among those that are older than age by the
// target's clock, and returns how many. When that was [PruneLimit], there may be more.
func (s *Store) Prune(ctx context.Context, age time.Duration) (int64, error) {
	return s.exec(ctx, "delete old conflicts", `
		DELETE FROM pgapply.conflict WHERE id IN (
			SELECT id FROM pgapply.conflict
			WHERE subscription = $1 AND at < pg_catalog.now() - pg_catalog.make_interval(secs => $2)
			ORDER BY at LIMIT $3)`, age.Seconds(), PruneLimit)
}

// ConflictStats is what table conflict holds. The JSON names are stable.
type ConflictStats struct {
	// Types counts the subscription's records by their type.
	Types map[string]int64 `json:"types"`
	Total int64            `json:"total"`
	// Last is when the newest was recorded; nil when there is none.
	Last *time.Time `json:"last,omitempty"`
	// Bytes is what the table takes, with the records of other subscriptions.
	Bytes int64 `json:"table_bytes"`
}

// ConflictStats counts the records.
func (s *Store) ConflictStats(ctx context.Context) (ConflictStats, error) {
	type line struct {
		Type  *string // NULL for all of them
		Count int64
		Last  *time.Time
		Bytes int64
	}
	stats := ConflictStats{Types: make(map[string]int64)}
	lines, err := rows(ctx, s, "count the conflicts", pgx.RowToStructByPos[line], `
		SELECT conflict_type, pg_catalog.count(*), pg_catalog.max(at), pg_catalog.pg_total_relation_size('pgapply.conflict')
		FROM pgapply.conflict WHERE subscription = $1 GROUP BY ROLLUP (conflict_type)`)
	for _, line := range lines {
		if line.Type != nil {
			stats.Types[*line.Type] = line.Count
			continue
		}
		stats.Total, stats.Last, stats.Bytes = line.Count, line.Last, line.Bytes
	}
	return stats, err
}
