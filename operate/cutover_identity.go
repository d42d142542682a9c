package operate

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/state"
)

// askIdentities looks at both ends for tables whose updates and deletes a server refuses
// itself, because it publishes them and could not say of which row they are
// (CheckCmdReplicaIdentity, execReplication.c). On the target that would be those of the
// applications, once the way back is made; on the publisher, those of the way back, where
// a publication of its own has the table, as one FOR ALL TABLES.
func (c *cutover) askIdentities(ctx context.Context) ([]Finding, error) {
	tables, err := c.store.Tables(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	members := make([]state.Member, len(tables))
	for i, table := range tables {
		members[i] = table.Member
	}
	names, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	rows, err := c.target.conn.Query(ctx, withoutIdentitySQL(string(names), false))
	if err != nil {
		return nil, apply.TargetError(err)
	}
	here, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, apply.TargetError(err)
	}
	found, err := c.publisher.Query(ctx, withoutIdentitySQL(string(names), true))
	if err != nil {
		return nil, apply.SourceError(fmt.Errorf("look for tables without a replica identity: %w", err))
	}
	there := make([]string, len(found))
	for i, row := range found {
		there[i] = string(row[0])
	}
	const remedy = "on the publisher and on the target alike: ALTER TABLE ... REPLICA IDENTITY USING INDEX or FULL"
	var list []Finding
	if len(here) > 0 {
		list = append(list, failure("reverse", remedy, "%s without a replica identity on the target, whose updates and deletes would fail once they are published: %s",
			counted(int64(len(here)), "table"), firstOf(here))...)
	}
	if len(there) > 0 {
		list = append(list, failure("reverse", remedy+"; or take them out of the publisher's publications", "%s without a replica identity on the publisher, which its own publications have: it would refuse the updates and deletes that go back: %s",
			counted(int64(len(there)), "table"), firstOf(there))...)
	}
	return list, nil
}

// withoutIdentitySQL lists those of the tables, given as JSON, and of their partitions that
// have no replica identity by the rules of RelationGetIndexList (relcache.c); published:
// and that a publication of the server has with updates or deletes, itself or an ancestor.
func withoutIdentitySQL(names string, published bool) string {
	// A partition is refused what its own identity does not serve, whatever its root has.
	partitions := func(of string) string {
		return `UNION SELECT i.inhrelid FROM ` + of + ` JOIN pg_catalog.pg_class r ON r.oid = ` + of + `.oid AND r.relkind = 'p' JOIN pg_catalog.pg_inherits i ON i.inhparent = r.oid`
	}
	sql := `WITH RECURSIVE ours (oid) AS (
			SELECT c.oid FROM pg_catalog.jsonb_to_recordset(` + literal(names) + `::pg_catalog.jsonb) AS w ("Schema" pg_catalog.text, "Name" pg_catalog.text)
			JOIN pg_catalog.pg_namespace n ON n.nspname = w."Schema" JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w."Name"
			` + partitions("ours") + `
		), published (oid) AS (
			SELECT c.oid FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname AND (p.pubupdate OR p.pubdelete)
			JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
			` + partitions("published") + `
		)
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM ours JOIN pg_catalog.pg_class c ON c.oid = ours.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS (
				SELECT FROM pg_catalog.pg_index i
				WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indisunique AND i.indpred IS NULL
					AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident))`
	if published {
		sql += ` AND c.oid IN (SELECT oid FROM published)`
	}
	return sql + ` ORDER BY 1`
}
