package target

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgapply/conflict"
	"pgapply/decoder"
)

// Rows that somebody else wrote last: another origin, or nobody that replicates.
// They are known where the target tracks commit timestamps. A row from before the
// tracking, or written by the transaction in work, counts as ours.
//
//	seldom: the change carries the condition "ours"; 0 rows ──► exact replay
//	often:  look (lock the row, record the conflict where it is foreign), change
//
// The first costs next to nothing while rows are ours, and much for each that is not.
// So after a foreign row was met, the table's next changes go out in the second form,
// in the pipeline like everything else, until there were none for a while.

// lookAhead is for how many changes of a table a foreign row makes us look: about as
// many as could be sent in the time that a replay costs.
const lookAhead = 4096

// foreignSQL is a condition on who wrote a row, NULL where that is not known.
func (s *Session) foreignSQL(written string) string {
	foreign := "(" + written + ").roident <> ALL ('{" + strings.Join(s.own, ",") + "}'::pg_catalog.oid[])"
	if until := s.unstampedUntil; until != nil {
		foreign = fmt.Sprintf("(%s AND NOT ((%s).roident = 0 AND (%[2]s).timestamp <= %s::pg_catalog.timestamptz))", foreign, written, literal(until.UTC().Format(time.RFC3339Nano)))
	}
	return foreign
}

// oursSQL is a condition on the row itself.
func (s *Session) oursSQL() string {
	return "coalesce(NOT (" + s.foreignSQL("pg_catalog.pg_xact_commit_timestamp_origin(xmin)") + "), true)"
}

// nodeSQL names the node that wrote a row, such that all nodes call it alike: by the
// system identifier of its server, where a subscription of ours brought it.
func (s *Session) nodeSQL(written string) string {
	return fmt.Sprintf(`CASE WHEN (%[1]s).roident = 0 THEN %[2]s ELSE coalesce(
		(SELECT source_system_id FROM pgapply.subscription JOIN pgapply.origin ON subscription = name WHERE roident = (%[1]s).roident),
		(SELECT roname FROM pg_catalog.pg_replication_origin o WHERE o.roident = (%[1]s).roident)) END`, written, literal(s.options.Node))
}

// laterSQL says that the publisher's change, of the given time, is later than the
// row: what conflict.Decide computes for last_update_wins.
func (s *Session) laterSQL(written, committed string) string {
	return fmt.Sprintf(`(%[1]s).timestamp < %[2]s OR (%[1]s).timestamp = %[2]s AND coalesce(%[3]s, '') COLLATE pg_catalog."C" < %[4]s`,
		written, committed, s.nodeSQL(written), literal(s.options.PublisherNode))
}

// watched tells whether the table's changes are sent with a look, and under which
// policy, and counts one.
func (s *Session) watched(t *table, op operation) (conflict.Policy, bool) {
	left := s.looks[t.relation.ID]
	if left == 0 || s.running.open { // out of turn there is no commit to record a conflict of
		return "", false
	}
	s.looks[t.relation.ID] = left - 1
	policy := s.options.Policies.For(t.bound.Schema, t.bound.Name, foreignType(op))
	return policy, policy != conflict.Error
}

// watch is called where a foreign row was met.
func (s *Session) watch(t *table) {
	if s.looks == nil {
		s.looks = make(map[uint32]int)
	}
	s.looks[t.relation.ID] = lookAhead
}

func foreignType(op operation) conflict.Type {
	if op == opDelete {
		return conflict.DeleteOriginDiffers
	}
	return conflict.UpdateOriginDiffers
}

// condition is what the row must meet for the change that follows a look.
func (s *Session) condition(policy conflict.Policy) condition {
	switch policy {
	case conflict.KeepLocal:
		return s.ours
	case conflict.LastUpdateWins:
		return func(b *builder) {
			const written = "pgapply_written"
			b.WriteString(" AND (SELECT coalesce(NOT (" + s.foreignSQL(written) + ") OR " + s.laterSQL(written, b.extra(timestamptzType)) +
				", true) FROM (SELECT pg_catalog.pg_xact_commit_timestamp_origin(xmin) AS " + written + ") pgapply_writer)")
		}
	case conflict.ApplyRemote, conflict.Error, conflict.Skip:
	}
	return nil
}

// lookStatement locks the row that search means and, where it is foreign, records
// the conflict and how it is resolved. Its last parameters are those of look.
func (s *Session) lookStatement(t *table, op operation, policy conflict.Policy, search, newer decoder.Tuple) statement {
	const written = "pgapply_written"
	b := builder{table: t.bound}
	b.WriteString("WITH pgapply_found AS (SELECT " + written + ", " + rowAlias + " AS pgapply_tuple, " +
		rowAlias + ".tableoid AS pgapply_table, " + rowAlias + ".xmin AS pgapply_xid FROM " + reference(t.bound) + " AS " + rowAlias + s.writer(rowAlias) + " WHERE ")
	b.conditions(search)
	b.WriteString(" LIMIT 1 FOR UPDATE OF " + rowAlias + `)
		INSERT INTO pgapply.conflict (replica_identity, remote_tuple, remote_xid, remote_commit_lsn, remote_commit_ts, remote_origin,
			subscription, schemaname, relname, conflict_type, policy, local_conflicts, resolution)
		SELECT `)
	b.object(true, identity(t, search))
	b.WriteString(", ")
	b.object(false, newer)
	b.WriteString(", " + b.extra(int8Type) + ", " + b.extra(lsnType) + ", ")
	committed := b.extra(timestamptzType)
	b.WriteString(committed + ", nullif(" + b.extra(textType) + ", '')")
	for _, text := range []string{s.options.Subscription, t.bound.Schema, t.bound.Name, string(foreignType(op)), string(policy)} {
		b.WriteString(", " + literal(text))
	}
	resolution := literal(string(conflict.Decide(policy, conflict.Stamp{}, nil)))
	if policy == conflict.LastUpdateWins {
		resolution = "CASE WHEN " + s.laterSQL(written, committed) + " THEN " + resolution + " ELSE " + literal(string(conflict.Kept)) + " END"
	}
	fmt.Fprintf(&b, `,
			pg_catalog.jsonb_build_array(pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
				'table', pgapply_table::pg_catalog.regclass, 'xid', pgapply_xid::pg_catalog.text, 'commit_ts', (%[1]s).timestamp,
				'origin', (SELECT roname FROM pg_catalog.pg_replication_origin o WHERE o.roident = (%[1]s).roident)
			)) || pg_catalog.jsonb_build_object('tuple', pg_catalog.to_jsonb(pgapply_tuple))),
			%[2]s
		FROM pgapply_found WHERE %[3]s
		RETURNING id, conflict_type, policy, resolution, `, written, resolution, s.foreignSQL(written))
	if s.options.LogRows {
		b.WriteString("local_conflicts, replica_identity, remote_tuple")
	} else {
		b.WriteString("local_conflicts #- '{0,tuple}'")
	}
	return b.build()
}

// look sends a look at the row that a change is about to change.
func (s *Session) look(t *table, p *prepared, search, newer decoder.Tuple) error {
	current := s.current
	return s.execute(t, opLook, p, search, newer, strconv.AppendUint(nil, uint64(current.XID), 10), []byte(current.EndLSN.String()),
		[]byte(timestamp(current.Time)), []byte(current.Origin))
}

// looked takes the outcome of a look: no row where the row is ours, or is not there.
func (s *Session) looked(token token, rows [][][]byte) error {
	s.kept = false
	if len(rows) == 0 {
		return nil
	}
	t, fields := token.table, rows[0]
	s.watch(t)
	c := &conflict.Conflict{
		Type: conflict.Type(fields[1]), Schema: t.bound.Schema, Table: t.bound.Name,
		RemoteXID: token.transaction.XID, FinishLSN: token.transaction.EndLSN,
		RemoteTime: token.transaction.Time.Time(), RemoteOrigin: token.transaction.Origin,
		Policy: conflict.Policy(fields[2]), Resolution: conflict.Resolution(fields[3]),
	}
	if err := json.Unmarshal(fields[4], &c.Local); err != nil {
		return transactionError(token.transaction, decoder.TypeCommit, t.relation, fmt.Errorf("read a recorded conflict: %w", err))
	}
	if len(fields) > 5 {
		c.ReplicaIdentity, c.RemoteTuple = slices.Clone(fields[5]), slices.Clone(fields[6])
	}
	s.kept = c.Resolution == conflict.Kept
	s.resolved(string(fields[0]), c)
	return nil
}

// foreign tells whether somebody else wrote the row: another origin, or nobody
// that replicates. Where it is not known, the row counts as ours.
func (s *Session) foreign(row *localRow) bool {
	if until := s.unstampedUntil; until != nil && row.origin == "0" && row.CommitTime != nil && !row.CommitTime.After(*until) {
		return false
	}
	return row.origin != "" && !slices.Contains(s.own, row.origin)
}

// resolveForeign handles a row that somebody else wrote last, and tells whether it
// is to be changed.
func (s *Session) resolveForeign(t *table, op operation, search, newer decoder.Tuple, row *localRow) (proceed bool, err error) {
	s.watch(t)
	c, err := s.newConflict(t, foreignType(op), search, newer, []*localRow{row})
	if err != nil {
		return false, err
	}
	c.Resolution = conflict.Decide(c.Policy, s.remoteStamp(), s.stamps([]*localRow{row}))
	if c.Resolution == conflict.Failed {
		return false, s.fails(t, op, c, fmt.Errorf("the row was last written by %s", writerName(row)))
	}
	return c.Resolution == conflict.Applied, s.record(c)
}

func writerName(row *localRow) string {
	switch {
	case row.Origin != "":
		return fmt.Sprintf("origin %q", row.Origin)
	case row.origin == "0":
		return "somebody on the target"
	}
	return "an origin that does not exist any more"
}
