package target

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/internal/pgpipe"
)

// localRow is a row of the target that a change met. It is locked.
type localRow struct {
	tableOID, ctid []byte
	// origin is the number of the origin that wrote it, as text: "0" for a local
	// write, empty where that is not known.
	origin string
	// node names the server that wrote it, see nodeSQL.
	node string
	conflict.Local
}

// rowColumns select what localRow holds of the row named %s. The alias of a table
// must be one that no column has.
func (s *Session) rowColumns(row string) string {
	writer := "NULL, NULL, NULL, NULL"
	if s.ours != nil {
		writer = `(pgapply_written).roident,
			(SELECT roname FROM pg_catalog.pg_replication_origin o WHERE o.roident = (pgapply_written).roident),
			pg_catalog.to_json((pgapply_written).timestamp), ` + s.nodeSQL("pgapply_written")
	}
	return fmt.Sprintf(`%[1]s.tableoid, %[1]s.ctid, %[1]s.tableoid::pg_catalog.regclass, %[1]s.xmin, pg_catalog.to_jsonb(%[1]s.*), %[2]s`, row, writer)
}

// writer joins who wrote the row named %s, where that is tracked.
func (s *Session) writer(row string) string {
	if s.ours == nil {
		return ""
	}
	// Its column stands beside those of the table, so the name of no column will do.
	return fmt.Sprintf(" CROSS JOIN LATERAL (SELECT pg_catalog.pg_xact_commit_timestamp_origin(%s.xmin) AS pgapply_written) pgapply_writer", row)
}

func scanRow(fields [][]byte) *localRow {
	row := &localRow{tableOID: slices.Clone(fields[0]), ctid: slices.Clone(fields[1]), origin: string(fields[5])}
	row.Table, row.XID, row.Tuple = string(fields[2]), string(fields[3]), slices.Clone(fields[4])
	row.Origin, row.node = string(fields[6]), string(fields[8])
	if fields[7] != nil {
		var committed time.Time
		if json.Unmarshal(fields[7], &committed) == nil {
			row.CommitTime = &committed
		}
	}
	return row
}

// rowAlias names the table in queries about a row. No column can have this name
// unless somebody means harm, and then the query fails.
const rowAlias = "pgapply_row"

// findRow finds and locks the row that search means, nil when there is none. Unlike
// a single UPDATE it goes on to the next equal row when a concurrent transaction
// changed the first.
func (s *Session) findRow(t *table, search decoder.Tuple) (*localRow, error) {
	b := builder{table: t.bound}
	b.WriteString("SELECT " + s.rowColumns(rowAlias) + " FROM " + reference(t.bound) + " AS " + rowAlias + s.writer(rowAlias) + " WHERE ")
	b.conditions(search)
	b.WriteString(" LIMIT 1 FOR UPDATE OF " + rowAlias)
	lookup := b.build()
	parameters, err := s.parameters(t, &lookup, search, nil)
	if err != nil {
		return nil, err
	}
	rows, err := s.ask(lookup.sql, parameters)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return scanRow(rows[0]), nil
}

// stamps are the rows in the way that somebody else wrote, for Decide.
func (s *Session) stamps(rows []*localRow) []conflict.Stamp {
	var stamps []conflict.Stamp
	for _, row := range rows {
		if !s.foreign(row) || row.CommitTime == nil {
			continue
		}
		stamps = append(stamps, conflict.Stamp{Time: *row.CommitTime, Node: row.node})
	}
	return stamps
}

func (s *Session) remoteStamp() conflict.Stamp {
	return conflict.Stamp{Time: s.current.Time.Time(), Node: s.options.PublisherNode}
}

// resolveMissing handles a row to change that is not there.
func (s *Session) resolveMissing(t *table, op operation, search, newer decoder.Tuple) error {
	found, verb := conflict.UpdateMissing, "update"
	if op == opDelete {
		found, verb = conflict.DeleteMissing, "delete"
	}
	c, err := s.newConflict(t, found, search, newer, nil)
	if err != nil {
		return err
	}
	c.Resolution = conflict.Decide(c.Policy, s.remoteStamp(), nil)
	if c.Resolution == conflict.Applied {
		for i, value := range newer {
			if value.Kind == decoder.Unchanged {
				return s.fails(t, op, c, unsentError(t.bound.Columns[i].Name, "a row that the target does not have"))
			}
		}
		if err := s.insertOrResolve(t, newer, conflict.InsertExists); err != nil {
			return err
		}
	}
	if c.Resolution == conflict.Failed {
		return s.fails(t, op, c, fmt.Errorf("the row to %s does not exist on the target", verb))
	}
	return s.record(c)
}

// resolveExisting handles a new row, or a changed one, whose place in a unique
// index is taken. found is the type when it is one index; row is the row that is
// being updated, nil for an insert.
func (s *Session) resolveExisting(t *table, op operation, found conflict.Type, refusal *pgconn.PgError, search, newer decoder.Tuple, row *localRow) error {
	taken, indexes, err := s.violated(t, newer, row)
	if err != nil {
		return err
	}
	if len(taken) == 0 {
		// An index that only a partition has, or one that was free again.
		return refusal
	}
	if indexes > 1 {
		found = conflict.MultipleUnique
	}
	c, err := s.newConflict(t, found, search, newer, taken)
	if err != nil {
		return err
	}
	c.Resolution = conflict.Decide(c.Policy, s.remoteStamp(), s.stamps(taken))
	switch c.Resolution {
	case conflict.Failed:
		return s.fails(t, op, c, refusal)
	case conflict.Applied:
		if err := s.replace(t, op, search, newer, row, distinct(taken)); err != nil {
			return err
		}
	}
	return s.record(c)
}

// distinct drops rows that are in the way of more than one index.
func distinct(rows []*localRow) []*localRow {
	var result []*localRow
	for _, row := range rows {
		if !slices.ContainsFunc(result, func(other *localRow) bool {
			return string(other.tableOID) == string(row.tableOID) && string(other.ctid) == string(row.ctid)
		}) {
			result = append(result, row)
		}
	}
	return result
}

// replace makes the target as the publisher says: a single row in the way of an
// insert becomes the new row and keeps its local columns; others give way.
func (s *Session) replace(t *table, op operation, search, newer decoder.Tuple, row *localRow, taken []*localRow) error {
	if op == opInsert && len(taken) == 1 {
		kept, err := s.withoutKeptIdentity(t, newer, taken[0])
		if err != nil {
			return err
		}
		return s.mustChange(t, opUpdate, updateFoundStatement(t.bound, nil, kept), nil, kept, taken[0].tableOID, taken[0].ctid)
	}
	for _, other := range taken {
		if err := s.mustChange(t, opDelete, deleteFoundStatement(t.bound), nil, nil, other.tableOID, other.ctid); err != nil {
			return err
		}
	}
	if op == opInsert {
		return s.mustChange(t, opInsert, insertStatement(t.bound), nil, newer)
	}
	return s.mustChange(t, opUpdate, updateFoundStatement(t.bound, search, newer), search, newer, row.tableOID, row.ctid)
}

func (s *Session) mustChange(t *table, op operation, statement statement, search, newer decoder.Tuple, extra ...[]byte) error {
	rows, refusal, err := s.perform(t, statement, search, newer, extra...)
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return refusal
	}
	switch op {
	case opInsert:
		s.outcome.Inserts += rows
	case opUpdate:
		s.outcome.Updates += rows
	case opDelete:
		s.outcome.Deletes += rows
	}
	return nil
}

// violated finds the rows that have the new row's place in a unique index, locks
// them, and counts the indexes. The new row is what the update makes of row, or
// what the insert makes of nothing: columns that were not sent are NULL then.
func (s *Session) violated(t *table, newer decoder.Tuple, row *localRow) (taken []*localRow, indexes int, err error) {
	if t.unique == nil {
		if t.unique, err = catalog.LoadUniqueIndexes(s.pipe, t.bound); err == nil {
			t.computed, err = catalog.LoadComputed(s.pipe, t.bound)
		}
		if err != nil {
			return nil, 0, verdict(err)
		}
	}
	object, err := s.render(t, newer)
	if err != nil {
		return nil, 0, err
	}
	name := t.bound.QualifiedName()
	base, except := "NULL::"+name, "true"
	parameters := []pgpipe.Parameter{{Value: object, Type: jsonbType}}
	if row != nil {
		base = fmt.Sprintf("(SELECT pgapply_old FROM %s AS pgapply_old WHERE tableoid = $2 AND ctid = $3)", reference(t.bound))
		except = "NOT (" + rowAlias + ".tableoid = $2 AND " + rowAlias + ".ctid = $3)"
		parameters = append(parameters, pgpipe.Parameter{Value: row.tableOID, Type: oidType}, pgpipe.Parameter{Value: row.ctid, Type: tidType})
	}
	newRow := t.newRow(base, row == nil)
	for i := range t.unique {
		index := &t.unique[i]
		rows, err := s.ask(fmt.Sprintf(`
			SELECT %[1]s, %[10]s
			FROM %[2]s AS %[3]s %[4]s
			CROSS JOIN LATERAL (SELECT %[5]s WHERE %[6]s) l
			JOIN (SELECT %[5]s FROM (%[7]s) pgapply_new WHERE %[6]s) n ON %[8]s
			WHERE %[9]s FOR UPDATE OF %[3]s`,
			s.rowColumns(rowAlias), reference(t.bound), rowAlias, s.writer(rowAlias),
			index.Keys(), index.Predicate, newRow, index.Matches("l", "n"), except, index.Key("n")), parameters)
		if err != nil {
			return nil, 0, err
		}
		if len(rows) > 0 {
			indexes++
		}
		for _, fields := range rows {
			found := scanRow(fields)
			found.Index, found.Key = index.Name, slices.Clone(fields[9])
			taken = append(taken, found)
		}
	}
	return taken, indexes, nil
}

// newRow is a query for the row that a change makes of base: the published columns
// from the JSON object $1, generated ones from their expressions, and in a new row
// the others from their defaults.
func (t *table) newRow(base string, inserted bool) string {
	columns := make([]string, 0, len(t.bound.Columns)+len(t.computed))
	for i := range t.bound.Columns {
		columns = append(columns, quote(t.bound.Columns[i].Name))
	}
	for _, column := range t.computed {
		name := quote(column.Name)
		if column.Expression != "" && (column.Generated || inserted) {
			columns = append(columns, "("+column.Expression+") AS "+name)
		} else {
			columns = append(columns, name)
		}
	}
	return "SELECT " + strings.Join(columns, ", ") + " FROM pg_catalog.jsonb_populate_record(" + base + ", $1) AS pgapply_given"
}

// render has the server make a JSON object of the values that were sent.
func (s *Session) render(t *table, tuple decoder.Tuple) (json.RawMessage, error) {
	if tuple == nil {
		return nil, nil
	}
	b := builder{table: t.bound}
	b.WriteString("SELECT ")
	b.object(false, tuple)
	query := b.build()
	parameters, err := s.parameters(t, &query, nil, tuple)
	if err != nil {
		return nil, err
	}
	rows, err := s.ask(query.sql, parameters)
	if err != nil {
		return nil, err
	}
	return slices.Clone(rows[0][0]), nil
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// newConflict describes a conflict of the change in work.
func (s *Session) newConflict(t *table, found conflict.Type, search, newer decoder.Tuple, local []*localRow) (*conflict.Conflict, error) {
	c := &conflict.Conflict{
		Type: found, Schema: t.bound.Schema, Table: t.bound.Name,
		RemoteXID: s.current.XID, FinishLSN: s.current.EndLSN, RemoteTime: s.current.Time.Time(), RemoteOrigin: s.current.Origin,
		Policy: s.options.Policies.For(t.bound.Schema, t.bound.Name, found),
	}
	for _, row := range local {
		c.Local = append(c.Local, row.Local)
	}
	var err error
	if search != nil {
		if c.ReplicaIdentity, err = s.render(t, identity(t, search)); err != nil {
			return nil, err
		}
	}
	c.RemoteTuple, err = s.render(t, newer)
	return c, err
}

// identity leaves of a tuple what the row is searched by.
func identity(t *table, search decoder.Tuple) decoder.Tuple {
	if t.bound.Search != catalog.ByKey {
		return search
	}
	key := slices.Clone(search)
	for i := range key {
		if !t.bound.Columns[i].Key {
			key[i] = decoder.Value{Kind: decoder.Unchanged}
		}
	}
	return key
}

// fails makes the error that stops at a conflict.
func (s *Session) fails(t *table, op operation, c *conflict.Conflict, err error) error {
	c.Resolution = conflict.Failed
	failed := transactionError(s.current, op.message(), t.relation, err)
	failed.Conflict = c
	if _, ours := catalog.AsMismatch(err); !ours {
		failed.Hint = conflictRemedy(c.Type, c.FinishLSN)
	}
	return failed
}

// record writes a resolved conflict into the state, in the transaction that it
// belongs to, and into the log.
func (s *Session) record(c *conflict.Conflict) error {
	local, err := json.Marshal(c.Local)
	if err != nil {
		return err
	}
	if c.Local == nil {
		local = []byte("[]")
	}
	rows, err := s.ask(recordSQL, recordParameters(s.options.Subscription, c, local))
	if err != nil {
		return err
	}
	s.resolved(string(rows[0][0]), c)
	return nil
}

// record is a conflict as it was recorded.
type record struct {
	id string
	*conflict.Conflict
}

// recordsToLog is how many conflicts may wait for their transaction's end.
const recordsToLog = 10_000

// resolved counts a conflict that was recorded under the number id. It is logged
// when its transaction is committed; in a very large one sooner.
func (s *Session) resolved(id string, c *conflict.Conflict) {
	if s.outcome.Conflicts == nil {
		s.outcome.Conflicts = make(map[conflict.Type]int64)
	}
	s.outcome.Conflicts[c.Type]++
	s.records = append(s.records, record{id, c})
	if len(s.records) >= recordsToLog {
		s.logConflicts()
	}
}

func (s *Session) logConflicts() {
	for _, r := range s.records {
		s.logConflict(r.id, r.Conflict)
	}
	s.records = nil
}

// recordSQL inserts a conflict into the state.
const recordSQL = `INSERT INTO pgapply.conflict (subscription, schemaname, relname, conflict_type, remote_xid, remote_commit_lsn, remote_commit_ts,
	remote_origin, replica_identity, remote_tuple, local_conflicts, policy, resolution)
	VALUES ($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9, $10, $11, $12, $13) RETURNING id`

func recordParameters(subscription string, c *conflict.Conflict, local []byte) []pgpipe.Parameter {
	values := [][]byte{
		[]byte(subscription), []byte(c.Schema), []byte(c.Table), []byte(c.Type), fmt.Append(nil, c.RemoteXID),
		[]byte(c.FinishLSN.String()), []byte(c.RemoteTime.UTC().Format("2006-01-02 15:04:05.000000+00")), []byte(c.RemoteOrigin),
		c.ReplicaIdentity, c.RemoteTuple, local, []byte(c.Policy), []byte(c.Resolution),
	}
	parameters := make([]pgpipe.Parameter, len(values))
	for i, value := range values {
		parameters[i].Value = value
	}
	return parameters
}

func (s *Session) logConflict(id string, c *conflict.Conflict) {
	entry := s.log.Check(zap.InfoLevel, "conflict resolved")
	if entry == nil {
		return
	}
	fields := []zap.Field{
		zap.String("conflict", string(c.Type)), zap.String("id", id), zap.String("schema", c.Schema), zap.String("table", c.Table),
		zap.String("policy", string(c.Policy)), zap.String("resolution", string(c.Resolution)),
		zap.Uint32("remote_xid", c.RemoteXID), zap.Stringer("finished_at", c.FinishLSN), zap.Time("remote_commit_ts", c.RemoteTime),
	}
	if c.RemoteOrigin != "" {
		fields = append(fields, zap.String("remote_origin", c.RemoteOrigin))
	}
	for _, local := range c.Local {
		if local.Index != "" {
			fields = append(fields, zap.String("index", local.Index))
		}
		if local.Origin != "" {
			fields = append(fields, zap.String("local_origin", local.Origin))
		}
		if local.CommitTime != nil {
			fields = append(fields, zap.Time("local_commit_ts", *local.CommitTime))
		}
	}
	if s.options.LogRows {
		fields = append(fields, zap.ByteString("replica_identity", c.ReplicaIdentity), zap.ByteString("remote_row", c.RemoteTuple))
		for _, local := range c.Local {
			fields = append(fields, zap.ByteString("local_row", local.Tuple))
		}
	}
	entry.Write(fields...)
}
