package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/apply/tablesync"
	"pgapply/internal/source"
)

// publisherRoom are limits of the publisher and what is taken of them.
type publisherRoom struct {
	senders  int // walsenders
	sessions []sessionLimit
}

// sessionLimit is one of the limits of sessions; allowed is -1 where there is none.
type sessionLimit struct {
	name           string
	allowed, inUse int
	// ofSenders tells that walsenders count too.
	ofSenders bool
}

// gatherPublisherRoom counts without this check's own session.
func gatherPublisherRoom(ctx context.Context, conn *source.Conn) (*publisherRoom, error) {
	// Walsenders have places of their own from 12 on, and no limit of a role or a database
	// counts them from 18 on (InitializeSessionUserId in miscinit.c, CheckMyDatabase in postinit.c).
	places, limits := conn.Version() < 12_00_00, conn.Version() < 18_00_00
	rows, err := conn.Query(ctx, fmt.Sprintf(`
		WITH sessions AS (
			SELECT a.usename, a.datname, s.pid IS NOT NULL AS sends
			FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_replication s ON s.pid = a.pid
			WHERE (a.datid IS NOT NULL OR s.pid IS NOT NULL) AND a.pid <> pg_catalog.pg_backend_pid()
		)
		SELECT (SELECT pg_catalog.count(*) FROM sessions WHERE sends),
			(SELECT setting::int4 FROM pg_catalog.pg_settings WHERE name = 'max_connections') - CASE WHEN r.rolsuper THEN 0 ELSE
				(SELECT pg_catalog.sum(setting::int4) FROM pg_catalog.pg_settings WHERE name IN ('superuser_reserved_connections', 'reserved_connections')) END,
			(SELECT pg_catalog.count(*) FROM sessions WHERE NOT sends OR %[1]t),
			CASE WHEN r.rolsuper THEN -1 ELSE r.rolconnlimit END,
			(SELECT pg_catalog.count(*) FROM sessions WHERE usename = r.rolname AND (NOT sends OR %[2]t)),
			CASE WHEN r.rolsuper THEN -1 ELSE d.datconnlimit END,
			(SELECT pg_catalog.count(*) FROM sessions WHERE datname = d.datname AND (NOT sends OR %[2]t))
		FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
		WHERE r.rolname = current_user AND d.datname = pg_catalog.current_database()`, places, limits))
	if err != nil {
		return nil, fmt.Errorf("read the limits of the publisher: %w", err)
	}
	room := &publisherRoom{sessions: []sessionLimit{
		{name: "max_connections", ofSenders: places},
		{name: "the role's CONNECTION LIMIT", ofSenders: limits},
		{name: "the database's CONNECTION LIMIT", ofSenders: limits},
	}}
	numbers := []*int{&room.senders}
	for i := range room.sessions {
		numbers = append(numbers, &room.sessions[i].allowed, &room.sessions[i].inUse)
	}
	for i, number := range numbers {
		if *number, err = strconv.Atoi(string(rows[0][i])); err != nil {
			return nil, fmt.Errorf("read the limits of the publisher: %w", err)
		}
	}
	return room, nil
}

// checkCopyRoom looks for what a copy takes on the publisher: beside the stream a
// walsender and a slot, and ordinary sessions that read.
func checkCopyRoom(f *facts) []Finding {
	if !f.options.CopyData || f.target.holder != nil {
		return nil
	}
	p := f.publisher
	var findings []Finding
	const senders = 2
	if free := p.ready.MaxSenders - p.room.senders; free < senders {
		findings = append(findings, warning("publisher", "raise max_wal_senders and restart the publisher, or end a session that is not needed",
			"tables are copied beside %s in all, and max_wal_senders leaves %d of %d", counted(senders, "walsender"), max(0, free), p.ready.MaxSenders)...)
	}
	slots := 1 // of a set that is copied later
	if p.slot == nil {
		slots++
	}
	if free := p.ready.MaxSlots - p.slotsInUse; free >= slots-1 && free < slots {
		findings = append(findings, warning("publisher", "raise max_replication_slots and restart the publisher, or drop a slot that is not needed",
			"tables that are copied later take a slot for that time, and max_replication_slots, %d, leaves none", p.ready.MaxSlots)...)
	}
	for _, limit := range p.room.sessions {
		wanted, which := f.options.TableJobs, ""
		if limit.ofSenders {
			wanted, which = wanted+senders, ", walsenders among them"
		}
		if free := limit.allowed - limit.inUse; limit.allowed >= 0 && free < wanted {
			findings = append(findings, warning("publisher", "raise it, end sessions that are not needed, or give fewer --table-jobs",
				"tables are copied with %s%s, and %s leaves %d of %d", counted(int64(wanted), "connection"), which, limit.name, max(0, free), limit.allowed)...)
		}
	}
	return findings
}

// copyJobs are the sessions and origins that a copy takes on the target, beside those
// that apply.
func copyJobs(f *facts) int {
	if !f.options.CopyData {
		return 0
	}
	return f.options.TableJobs
}

// gatherFilled looks for rows in the tables that a start would copy.
func (f *facts) gatherFilled(ctx context.Context, session *targetSession) error {
	if !f.options.CopyData || f.options.IfNotEmpty == "append" || f.target.stateErr != nil {
		return nil
	}
	var tables []tablesync.Table
	for i := range f.tables {
		name, local := f.tables[i].Table, f.tables[i].local
		// What rights are missing is said about the table.
		if local != nil && local.UsesSchema && len(local.MissingRights) == 0 && !slices.Contains(f.target.known, state.Member(name)) {
			tables = append(tables, tablesync.Table{Schema: name.Schema, Name: name.Name})
		}
	}
	var err error
	f.filled, err = tablesync.NotEmpty(querier(ctx, session.conn), tables)
	const insufficientPrivilege = "42501"
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code == insufficientPrivilege {
		f.filledErr = err
		return nil
	}
	return err
}

// checkFilled says what becomes of the rows that the target has.
func checkFilled(f *facts) []Finding {
	const subject = "rows"
	if f.filledErr != nil {
		return failed(subject, apply.TargetError(f.filledErr))
	}
	if len(f.filled) == 0 {
		return nil
	}
	var names []string
	for _, table := range f.filled {
		names = append(names, fmt.Sprintf("%s (about %s)", table.Table, counted(table.Rows, "row")))
	}
	list := strings.Join(names, ", ")
	sub := f.target.subscription
	begins := (sub == nil || sub.SlotState == state.SlotCreating) && f.options.CreateSlot
	switch {
	case f.options.IfNotEmpty == "truncate" && f.options.Confirmed:
		return warning(subject, "", "--if-not-empty truncate removes what the target has in %s", list)
	case begins:
		return failure(subject, "empty them, or give --if-not-empty truncate --yes, --if-not-empty append, or --copy-data=false if they hold the publisher's rows already",
			"tables that are to be copied are not empty on the target: %s", list)
	}
	return warning(subject, "empty them, or `pgapply resync` them, which removes their rows", "tables are not copied, since they are not empty on the target: %s", list)
}
