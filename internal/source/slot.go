package source

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/lsn"
)

// plugin is the only output plugin that this package asks for.
const plugin = "pgoutput"

// Slot is a row of pg_replication_slots. What the publisher's major does not
// have is zero.
type Slot struct {
	Name     string
	Plugin   string // "pgoutput"
	Type     string // "logical" or "physical"
	Database string
	// Temporary slots end with their session.
	Temporary bool
	// Active is whether a session streams from it, ActivePID which one.
	Active    bool
	ActivePID int
	// Restart is from where the publisher keeps its log.
	Restart lsn.LSN
	// ConfirmedFlush is the point below which the publisher sends no more commits.
	ConfirmedFlush lsn.LSN
	// WALStatus is reserved, extended, unreserved or lost (13 and later).
	WALStatus string
	// SafeWALSize is how many bytes may still be written before the publisher may remove
	// what the slot needs; nil without max_slot_wal_keep_size, for a slot that is lost,
	// and before 13.
	SafeWALSize *int64
	// TwoPhase slots send prepared transactions at PREPARE (14 and later).
	TwoPhase bool
	// Failover slots are copied to standbys; Synced ones are such a copy (17 and later).
	Failover, Synced bool
	// Conflicting slots of a standby were invalidated by recovery (16 and later).
	Conflicting bool
	// InvalidationReason is why the slot can never be used again (17 and later).
	InvalidationReason string
	// InactiveSince is zero while the slot is in use (17 and later).
	InactiveSince time.Time
}

// Lost returns why the slot can never be used again, or the empty string.
func (s *Slot) Lost() string {
	switch {
	case s.InvalidationReason != "":
		return s.InvalidationReason
	case s.Conflicting:
		return "conflict with recovery"
	case s.WALStatus == "lost":
		return "wal_removed"
	}
	return ""
}

// Slot reads one slot of the publisher's cluster, nil when there is none of that name.
func (c *Conn) Slot(ctx context.Context, name string) (*Slot, error) {
	// Columns that this major lacks are read as constants, so that every
	// answer has one shape.
	since := func(major int, expression, absent string) string {
		if c.major() >= major {
			return expression
		}
		return absent
	}
	rows, err := c.Query(ctx, strings.Join([]string{
		"SELECT slot_name", "plugin", "slot_type", "database", "temporary", "active", "active_pid", "restart_lsn", "confirmed_flush_lsn",
		since(13, "wal_status", "''"),
		since(14, "two_phase", "false"),
		since(17, "failover", "false"),
		since(17, "synced", "false"),
		since(16, "conflicting", "false"),
		since(17, "invalidation_reason", "''"),
		since(17, "(EXTRACT(epoch FROM inactive_since) * 1000000)::pg_catalog.int8", "NULL"),
		since(13, "safe_wal_size", "NULL"),
	}, ", ")+" FROM pg_catalog.pg_replication_slots WHERE slot_name = "+literal(name))
	if err != nil {
		return nil, fmt.Errorf("read replication slot %q: %w", name, err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	field := func(column int) string { return text(rows, 0, column) }
	slot := &Slot{
		Name: field(0), Plugin: field(1), Type: field(2), Database: field(3),
		Temporary: field(4) == "t", Active: field(5) == "t",
		WALStatus: field(9), TwoPhase: field(10) == "t", Failover: field(11) == "t", Synced: field(12) == "t",
		Conflicting: field(13) == "t", InvalidationReason: field(14),
	}
	slot.ActivePID, _ = strconv.Atoi(field(6)) // NULL while nobody uses it
	if slot.Restart, err = optionalLSN(field(7)); err != nil {
		return nil, fmt.Errorf("read replication slot %q: restart_lsn: %w", name, err)
	}
	if slot.ConfirmedFlush, err = optionalLSN(field(8)); err != nil {
		return nil, fmt.Errorf("read replication slot %q: confirmed_flush_lsn: %w", name, err)
	}
	if safe, err := strconv.ParseInt(field(16), 10, 64); err == nil {
		slot.SafeWALSize = &safe
	}
	if micros, err := strconv.ParseInt(field(15), 10, 64); err == nil {
		slot.InactiveSince = time.UnixMicro(micros).UTC()
	}
	return slot, nil
}

func optionalLSN(field string) (lsn.LSN, error) {
	if field == "" {
		return 0, nil
	}
	return lsn.Parse(field)
}

// Snapshots that CreateSlot can take.
const (
	SnapshotNothing = "nothing"
	SnapshotExport  = "export"
)

// SlotOptions say how to create a slot.
type SlotOptions struct {
	Name      string
	Temporary bool
	// TwoPhase makes the slot send prepared transactions at PREPARE. Publishers
	// before 14 cannot.
	TwoPhase bool
	// Failover makes standbys of the publisher keep the slot too. Publishers
	// before 17 cannot.
	Failover bool
	// Snapshot is SnapshotNothing, or SnapshotExport for a snapshot that shows
	// the tables as of the consistent point. Empty means nothing.
	Snapshot string
}

// CreatedSlot is what the publisher answers.
type CreatedSlot struct {
	// ConsistentPoint is where the slot's stream begins.
	ConsistentPoint lsn.LSN
	// SnapshotName is for SET TRANSACTION SNAPSHOT in other sessions. It is
	// valid until the next command on this connection.
	SnapshotName string
}

// CreateSlot makes a logical slot for pgoutput. It waits until every
// transaction that runs now, prepared ones included, has ended, which may take
// hours: let ctx bound it. When ctx ends, the connection is lost and the
// publisher gives up too.
func (c *Conn) CreateSlot(ctx context.Context, options SlotOptions) (CreatedSlot, error) {
	sql, err := c.createSlotCommand(options)
	if err != nil {
		return CreatedSlot{}, err
	}
	rows, err := c.Query(ctx, sql)
	if err != nil {
		return CreatedSlot{}, c.createSlotError(options.Name, err)
	}
	point, err := lsn.Parse(text(rows, 0, 1))
	if err != nil {
		return CreatedSlot{}, fmt.Errorf("create replication slot %q: consistent point: %w", options.Name, err)
	}
	return CreatedSlot{ConsistentPoint: point, SnapshotName: text(rows, 0, 2)}, nil
}

func (c *Conn) createSlotCommand(options SlotOptions) (string, error) {
	export := options.Snapshot == SnapshotExport
	refuse := func(format string, arguments ...any) (string, error) {
		return "", &ConfigurationError{Reason: fmt.Sprintf("create replication slot %q: ", options.Name) + fmt.Sprintf(format, arguments...)}
	}
	switch {
	case options.Name == "":
		return refuse("the name is empty")
	case !export && options.Snapshot != SnapshotNothing && options.Snapshot != "":
		return refuse("snapshot %q is not one of %q", options.Snapshot, []string{SnapshotNothing, SnapshotExport})
	case options.Failover && c.major() < 17:
		return refuse("a failover slot needs a publisher of major 17 or later, this is %d", c.major())
	case options.TwoPhase && c.major() < 14:
		return refuse("a two-phase slot needs a publisher of major 14 or later, this is %d", c.major())
	case options.TwoPhase && c.major() == 14 && export:
		return refuse("a publisher of major 14 cannot make a two-phase slot together with a snapshot: leave out one of them")
	case options.TwoPhase && c.major() == 14:
		// The command of 14 has no such option, only the function has it.
		return fmt.Sprintf("SELECT slot_name, lsn, NULL FROM pg_catalog.pg_create_logical_replication_slot(%s, %s, %t, true)",
			literal(options.Name), literal(plugin), options.Temporary), nil
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, "CREATE_REPLICATION_SLOT %s ", identifier(options.Name))
	if options.Temporary {
		sql.WriteString("TEMPORARY ")
	}
	sql.WriteString("LOGICAL " + plugin + " ")
	switch {
	case c.major() < 15 && export:
		sql.WriteString("EXPORT_SNAPSHOT")
	case c.major() < 15:
		sql.WriteString("NOEXPORT_SNAPSHOT")
	default:
		snapshot := SnapshotNothing
		if export {
			snapshot = SnapshotExport
		}
		fmt.Fprintf(&sql, "(SNAPSHOT %s, TWO_PHASE %t", commandLiteral(snapshot), options.TwoPhase)
		if c.major() >= 17 {
			fmt.Fprintf(&sql, ", FAILOVER %t", options.Failover)
		}
		sql.WriteString(")")
	}
	return sql.String(), nil
}

func (c *Conn) createSlotError(name string, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && server.Code == "53400":
		return &ConfigurationError{Reason: fmt.Sprintf("create replication slot %q: raise max_replication_slots on the publisher or drop a slot", name), Err: err}
	case ok && server.Code == "55000":
		return &ConfigurationError{Reason: fmt.Sprintf("create replication slot %q: logical decoding is not possible on the publisher", name), Err: err}
	case ok && server.Code == "42501":
		return &ConfigurationError{Reason: fmt.Sprintf("create replication slot %q: give the role the REPLICATION attribute", name), Err: err}
	}
	return fmt.Errorf("create replication slot %q: %w", name, err)
}

// SetTwoPhase makes a slot send prepared transactions at PREPARE, or at COMMIT PREPARED,
// and waits until nobody uses it any more. Only publishers from 18 on have the command.
func (c *Conn) SetTwoPhase(ctx context.Context, name string, twoPhase bool) error {
	return c.alterSlot(ctx, name, fmt.Sprintf("TWO_PHASE %t", twoPhase), 18)
}

// SetFailover makes a slot one that standbys of the publisher keep too, or no more, and
// waits until nobody uses it any more. Publishers before 17 cannot, nor does a standby
// for slots of its own.
func (c *Conn) SetFailover(ctx context.Context, name string, failover bool) error {
	return c.alterSlot(ctx, name, fmt.Sprintf("FAILOVER %t", failover), 17)
}

func (c *Conn) alterSlot(ctx context.Context, name, option string, since int) error {
	if c.major() < since {
		return &ConfigurationError{Reason: fmt.Sprintf("alter replication slot %q: that needs a publisher of major %d or later, this is %d", name, since, c.major())}
	}
	_, err := c.Query(ctx, fmt.Sprintf("ALTER_REPLICATION_SLOT %s (%s)", identifier(name), option))
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "42704" {
		return &SlotMissingError{Slot: name, Err: err}
	}
	if err != nil {
		return fmt.Errorf("alter replication slot %q: %w", name, err)
	}
	return nil
}

// DropSlot drops a slot, and waits until nobody uses it any more. A slot that
// is not there is a SlotMissingError.
func (c *Conn) DropSlot(ctx context.Context, name string) error {
	_, err := c.Query(ctx, "DROP_REPLICATION_SLOT "+identifier(name)+" WAIT")
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == "42704" {
		return &SlotMissingError{Slot: name, Err: err}
	}
	if err != nil {
		return fmt.Errorf("drop replication slot %q: %w", name, err)
	}
	return nil
}

// Holder is the session that uses a slot.
type Holder struct {
	PID             int
	ApplicationName string
	// Address is empty for a local socket, or when our role may not see it.
	Address string
	User    string
}

// String names the holder in a sentence.
func (h *Holder) String() string {
	name := fmt.Sprintf("pid %d", h.PID)
	if h.ApplicationName != "" {
		name = fmt.Sprintf("%q (pid %d)", h.ApplicationName, h.PID)
	}
	if h.User != "" {
		name += fmt.Sprintf(", user %q", h.User)
	}
	if h.Address != "" {
		name += ", from " + h.Address
	}
	return name
}

// SlotHolder returns who uses a slot, nil when nobody does.
func (c *Conn) SlotHolder(ctx context.Context, name string) (*Holder, error) {
	rows, err := c.Query(ctx, `SELECT s.active_pid, a.application_name, pg_catalog.host(a.client_addr), a.usename
		FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
		WHERE s.active_pid IS NOT NULL AND s.slot_name = `+literal(name))
	if err != nil {
		return nil, fmt.Errorf("ask who holds replication slot %q: %w", name, err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	pid, err := strconv.Atoi(text(rows, 0, 0))
	if err != nil {
		return nil, fmt.Errorf("ask who holds replication slot %q: %w", name, err)
	}
	return &Holder{PID: pid, ApplicationName: text(rows, 0, 1), Address: text(rows, 0, 2), User: text(rows, 0, 3)}, nil
}

// EndHolder terminates the session that uses a slot, if it is our own role's and has that
// application name.
func (c *Conn) EndHolder(ctx context.Context, name, application string) error {
	_, err := c.Query(ctx, `SELECT pg_catalog.pg_terminate_backend(a.pid)
		FROM pg_catalog.pg_replication_slots s JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
		WHERE a.usename = current_user AND a.application_name = `+literal(application)+` AND s.slot_name = `+literal(name))
	if err != nil {
		return fmt.Errorf("end the session that holds replication slot %q: %w", name, err)
	}
	return nil
}
