package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/state"
)

// findings are what speaks for and against a cutover now.
func (c *cutover) findings(ctx context.Context) (list []Finding, err error) {
	for _, ask := range []func(context.Context) ([]Finding, error){
		c.askStatus, c.askTables, c.askWriters, c.askReadOnly, c.askTarget, c.askStatistics, c.askSequences, c.askViews, c.askReverse,
	} {
		found, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

// askStatus takes the status' problems over: each would keep changes from being applied.
func (c *cutover) askStatus(ctx context.Context) (list []Finding, err error) {
	report, err := ReadStatus(ctx, c.options.Endpoints)
	if err != nil {
		return nil, err
	}
	for _, problem := range report.Problems {
		list = append(list, failure("subscription", "see `pgapply status`", "%s", problem)...)
	}
	if len(list) == 0 && (report.Status == nil || report.Status.Phase != state.Streaming) {
		list = failure("subscription", "wait until it does: `pgapply wait --for current`", "the runner does not stream yet")
	}
	if len(list) == 0 {
		list = ok("subscription", "process %d on %s streams", report.Runner.PID, report.Runner.Host)
	}
	if report.Prepared > 0 {
		list = append(list, failure("subscription", "commit or roll them back on the publisher", "%s prepared and not finished", are(int64(report.Prepared), "transaction"))...)
	}
	if report.SkipLSN != nil {
		list = append(list, warning("subscription", "pgapply skip --lsn none", "the transaction that finishes at %s is to be skipped", report.SkipLSN)...)
	}
	if report.Conflicts.Total > 0 {
		list = append(list, warning("conflicts", "look at them with `pgapply conflicts list`, and compare rows with `pgapply verify`", "%s recorded", counted(report.Conflicts.Total, "conflict"))...)
	}
	switch behind := c.behind(report); {
	case behind < 0: // the publisher or its slot cannot be asked, which is a problem of the status
	case behind > c.options.MaxLag && c.options.DryRun:
		list = append(list, failure("lag", "wait, or raise --max-lag", "the target is %s behind, more than --max-lag %s", size(behind), size(c.options.MaxLag))...)
	case behind > c.options.MaxLag:
		list = append(list, warning("lag", "", "the target is %s behind, and has to come below %s first", size(behind), size(c.options.MaxLag))...)
	default:
		list = append(list, ok("lag", "the target is %s behind", size(behind))...)
	}
	return list, nil
}

// askTables compares what is published with what is replicated, and with what there is.
func (c *cutover) askTables(ctx context.Context) (list []Finding, err error) {
	tables, err := c.store.Tables(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	known := make(map[state.Member]bool)
	for _, table := range tables {
		known[table.Member] = true
		if table.State != state.TableReady {
			list = append(list, failure(table.Text, "wait until it is ready: `pgapply status --tables`", "it is %s, and does not take part yet", table.State)...)
		}
	}
	published, err := c.publisher.Tables(ctx, c.subscription.Publications)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	for _, table := range published {
		if !known[state.Member(table)] {
			list = append(list, failure(table.Schema+"."+table.Name, "take it in with `pgapply refresh`, or out of the publication", "it is published, and not part of the subscription")...)
		}
	}
	if len(list) == 0 {
		list = ok("tables", "%s ready", are(int64(len(tables)), "table"))
	}
	rows, err := c.publisher.Query(ctx, `SELECT n.nspname, c.relname, EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata) FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgapply')
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class r ON r.oid = i.inhparent WHERE i.inhrelid = c.oid AND r.relkind = 'p')
		UNION ALL SELECT NULL, NULL, EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata) ORDER BY 1, 2`)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	var left []string
	for _, row := range rows {
		if row[0] == nil {
			if string(row[2]) == "t" {
				list = append(list, warning("large objects", "copy them by hand, after writes have stopped", "the publisher's database has large objects, which are not replicated")...)
			}
		} else if table := (state.Member{Schema: string(row[0]), Name: string(row[1])}); !known[table] {
			left = append(left, table.Schema+"."+table.Name)
		}
	}
	if len(left) > 0 {
		list = append(list, warning("tables", "publish and refresh them, or move them by hand", "not replicated are %s of the database: %s", counted(int64(len(left)), "table"), firstOf(left))...)
	}
	return list, nil
}

// firstOf names some of a list, and how many more there are.
func firstOf(list []string) string {
	const shown = 5
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}

// askWriters looks for what could be written after writes were said to have stopped.
func (c *cutover) askWriters(ctx context.Context) ([]Finding, error) {
	rows, err := c.publisher.Query(ctx, `SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database() ORDER BY prepared`)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	if len(rows) > 0 {
		names := make([]string, len(rows))
		for i, row := range rows {
			names[i] = string(row[0])
		}
		return failure("publisher", "commit or roll them back there", "%s prepared and not finished: %s", are(int64(len(rows)), "transaction"), firstOf(names)), nil
	}
	return nil, nil
}

// askReadOnly looks whether writes can be stopped as they are to be.
func (c *cutover) askReadOnly(ctx context.Context) ([]Finding, error) {
	rows, err := c.publisher.Query(ctx, `SELECT pg_catalog.pg_has_role(d.datdba, 'USAGE'), r.rolsuper,
			r.rolsuper OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE'), r.rolname, pg_catalog.pg_is_in_recovery()
		FROM pg_catalog.pg_database d, pg_catalog.pg_roles r WHERE d.datname = pg_catalog.current_database() AND r.rolname = current_user`)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	row := rows[0]
	role := string(row[3])
	switch {
	case string(row[4]) == "t":
		return failure("publisher", "stop writes on the primary, `pgapply wait --for` its pg_current_wal_lsn(), then `pgapply sequences --all` and `pgapply verify`",
			"it is a standby, of which nobody knows whether it has the primary's last change"), nil
	case !c.options.SetReadOnly:
		return warning("publisher", "--set-read-only stops writes by itself", "whoever confirms has to stop the writes"), nil
	case string(row[0]) != "t":
		return failure("publisher", "connect as the owner of the database or a superuser", "role %q may not make database %q read-only", role, c.database), nil
	case string(row[2]) != "t":
		return failure("publisher", fmt.Sprintf("GRANT pg_signal_backend TO %s", quoteIdentifier(role)), "role %q may not end sessions", role), nil
	case string(row[1]) != "t":
		return warning("publisher", "end them by hand, or connect as a superuser", "role %q cannot end sessions of superusers", role), nil
	}
	return ok("publisher", "role %q may make database %q read-only and end its sessions", role, c.database), nil
}

// askTarget looks whether applications could write there.
func (c *cutover) askTarget(ctx context.Context) ([]Finding, error) {
	var readOnly bool
	err := c.target.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) setting
			WHERE s.setrole = 0 AND s.setdatabase IN (0, $1) AND setting IN ('default_transaction_read_only=on', 'default_transaction_read_only=true'))
		OR EXISTS (SELECT FROM pg_catalog.pg_settings WHERE name = 'default_transaction_read_only' AND reset_val = 'on' AND source <> 'client')`, c.target.server.DatabaseOID).Scan(&readOnly)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if readOnly {
		return failure("target", "on the target: "+writableAgain(c.target.server.Database),
			"its database is read-only for applications"), nil
	}
	return ok("target", "PostgreSQL %s, database %s", version(c.target.server.Version), c.target.server.Database), nil
}

// askStatistics looks whether the planner knows the tables: without that the first
// minutes on the target are the worst.
func (c *cutover) askStatistics(ctx context.Context) ([]Finding, error) {
	rows, err := c.target.conn.Query(ctx, `
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM pgapply.subscription_table t
		JOIN pg_catalog.pg_namespace n ON n.nspname = t.schema_name
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.table_name
		WHERE t.subscription = $1 AND CASE WHEN c.relkind = 'p'
				THEN (SELECT pg_catalog.sum(pg_catalog.pg_relation_size(p.relid)) > 0 FROM pg_catalog.pg_partition_tree(c.oid) p WHERE p.isleaf)
				ELSE pg_catalog.pg_relation_size(c.oid) > 0 END
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)
		ORDER BY 1`, c.options.Name)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if len(names) == 0 {
		return ok("statistics", "every table has been analyzed"), nil
	}
	shown := names
	const most = 20
	remedy := "on the target: ANALYZE"
	if len(shown) <= most {
		remedy += " " + strings.Join(shown, ", ")
	}
	return failure("statistics", remedy, "%s without statistics on the target: %s", counted(int64(len(names)), "table"), firstOf(names)), nil
}

// askViews names what no change fills: pg_dump --schema-only leaves materialized views
// empty, and what was written since is in none of them.
func (c *cutover) askViews(ctx context.Context) ([]Finding, error) {
	views, err := materializedViews(ctx, c.target.conn, "true")
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if len(views) == 0 {
		return nil, nil
	}
	return warning("materialized views", "on the target, once the cutover is done: REFRESH MATERIALIZED VIEW, each of them",
		"%s on the target, which replication does not refresh: %s", counted(int64(len(views)), "materialized view"), firstOf(views)), nil
}

// askSequences tries what will be done about them.
func (c *cutover) askSequences(ctx context.Context) (list []Finding, err error) {
	if c.options.Sequences == Nothing {
		return warning("sequences", "", "they are not copied, by --sequences none"), nil
	}
	report, err := Sequences(ctx, c.sequences(true))
	if err != nil {
		return nil, err
	}
	for _, s := range report.Sequences {
		if s.Outcome == SequenceRefused {
			list = append(list, failure(s.Sequence, s.Remedy, "the sequence cannot be set: %s", s.Text)...)
		}
	}
	if len(list) == 0 {
		list = ok("sequences", "%s to copy", counted(int64(len(report.Sequences)), "sequence"))
	}
	return list, nil
}

// askReverse looks whether the way back can be prepared.
func (c *cutover) askReverse(ctx context.Context) (list []Finding, err error) {
	if !c.options.Reverse {
		return nil, nil
	}
	var level string
	var slots, most, walsenders int
	var mayReplicate, mayPublish bool
	err = c.target.conn.QueryRow(ctx, `SELECT pg_catalog.current_setting('wal_level'), (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name <> $1),
			pg_catalog.current_setting('max_replication_slots')::int4, pg_catalog.current_setting('max_wal_senders')::int4, r.rolsuper OR r.rolreplication,
			pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
		FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`, c.options.ReverseName).Scan(&level, &slots, &most, &walsenders, &mayReplicate, &mayPublish)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if level != "logical" && c.target.server.Version < 190000 {
		list = append(list, failure("reverse", "set it to logical and restart the target", "wal_level on the target is %s", level)...)
	}
	if slots >= most || walsenders == 0 {
		list = append(list, failure("reverse", "raise them and restart the target", "max_replication_slots on the target is %d, of which %d are taken, and max_wal_senders is %d", most, slots, walsenders)...)
	}
	if !mayReplicate || !mayPublish {
		list = append(list, failure("reverse", "give it REPLICATION, CREATE on the database, and ownership of the tables", "role %q may not make a publication and a slot on the target", c.target.server.Role)...)
	}
	if c.subscription.ProgressIn == state.InTable {
		list = append(list, failure("reverse", "start `pgapply run` with the origin functions granted first: `pgapply init --role ROLE`",
			"what is replicated carries no replication origin, by which it would be told from what is to go back")...)
	}
	if slot, err := c.reverseSlot(ctx); err != nil {
		return nil, err
	} else if slot != "" {
		list = append(list, failure("reverse", "stop what uses it, or choose another --reverse-name", "%s", slot)...)
	}
	without, err := c.askIdentities(ctx)
	if err != nil {
		return nil, err
	}
	list = append(list, without...)
	if len(list) == 0 {
		list = ok("reverse", "publication and slot %q can be made on the target", c.options.ReverseName)
	}
	if c.target.server.Version < originsTold {
		list = append(list, warning("reverse", "", "the target is older than 16 and sends what came from the publisher too: the subscription must stay paused while changes go back")...)
	}
	return list, nil
}
