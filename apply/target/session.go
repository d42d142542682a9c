// Package target is one connection to the target database: it applies whole
// transactions of the publisher, in order, each exactly once.
//
//	[]*txn.Transaction ──► Apply ──► BEGIN; rows...; origin position; COMMIT
//	                          │
//	                          └─ on an error: roll back, then one by one, exactly
//
// A group of transactions first goes out as one target transaction, through a
// pipeline that waits for nothing. Whatever does not go as expected rolls all of
// it back, and the transactions are applied one after the other, until the one
// that fails is found. Rows and the origin's position commit together (invariant
// I2), so a lost connection loses or repeats nothing.
//
// The package knows one connection. Which transactions form a group, when to
// retry and what the publisher is told are decided above it.
package target

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/conninfo"
	"pgapply/internal/lsn"
	"pgapply/internal/pgpipe"
	"pgapply/origin"
)

// Options of a session.
type Options struct {
	// URI is a libpq connection URI or keyword string.
	URI string
	// Passfile names a password file, empty for the usual one.
	Passfile string
	// ApplicationName is what the target's pg_stat_activity shows.
	ApplicationName string
	// SynchronousCommit is the session's setting of that name.
	SynchronousCommit string
	// Binary says that the publisher sends values in binary form where it can.
	Binary bool
	// Subscription names it in what is recorded.
	Subscription string
	// DatabaseOID is the target database's.
	DatabaseOID uint32
	// Fence keeps the session from writing beside a later runner's.
	Fence Fence
	// MaxBatch bounds, in bytes, the changes that wait to be sent as one statement for
	// each table and kind. With 0 each change is a statement of its own.
	MaxBatch int
	// Policies decide conflicts.
	Policies conflict.Policies
	// Node and PublisherNode are the system identifiers of the two servers.
	Node, PublisherNode string
	// SkipMissingTables leaves out changes of tables that the target does not have.
	SkipMissingTables bool
	// KeepMessages writes logical messages into the state, in their transactions.
	KeepMessages bool
	// LogRows lets rows of conflicts appear in the log.
	LogRows bool
	// Member tells whether a table belongs to the subscription. Changes of other
	// tables are left out, and counted. With an error the change waits for another
	// attempt.
	Member func(schema, table string) (bool, error)
	Log    *zap.Logger
}

// Fence is an advisory lock that every session which writes for a subscription holds
// shared, from before its first write on, and the epoch that it writes under. Who has
// raised the epoch, and has then had the lock alone, knows that no earlier session
// writes any more.
type Fence struct {
	Class, Object int32
	Epoch         int64
}

// settings are forced at connection start, where they win over what is set for
// the role or the database. They make the session read values as the publisher
// wrote them and keep it free of timeouts and of surprises by search_path; the
// native apply worker has most of them by nature.
func settings(synchronousCommit string) map[string]string {
	return map[string]string{
		"session_replication_role":            "replica",
		"search_path":                         "",
		"datestyle":                           "ISO",
		"intervalstyle":                       "postgres",
		"extra_float_digits":                  "3",
		"array_nulls":                         "on",
		"xmloption":                           "content",
		"lc_monetary":                         "C", // as on the publisher's side
		"standard_conforming_strings":         "on",
		"row_security":                        "off",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": "0",
		"idle_session_timeout":                "0",
		"default_transaction_isolation":       "read committed",
		"default_transaction_read_only":       "off",
		"default_transaction_deferrable":      "off",
		"synchronous_commit":                  synchronousCommit,
		"client_min_messages":                 "warning",
		// One plan for each statement: it must not depend on the first values.
		"plan_cache_mode": "force_generic_plan",
		"jit":             "off",
		// It must not depend on how large tables were when it was made either: what has
		// a key is found by it.
		"enable_seqscan":   "off",
		"enable_hashjoin":  "off",
		"enable_mergejoin": "off",
		// 18 forgets that for the only partition of a table, but not what pages cost.
		"seq_page_cost": "1000",
		// A backend of a lost connection must give up the origin soon.
		"tcp_keepalives_idle":     "10",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3",
	}
}

// Session is one connection to the target. It is not safe for concurrent use,
// except for Interrupt and Close.
type Session struct {
	options Options
	conn    *pgconn.PgConn
	pipe    *pgpipe.Pipe[token]
	log     *zap.Logger

	// origin is the name of the acquired origin.
	origin string
	// ours is a condition on a row: that no other origin, and nobody on the target,
	// wrote it last. It is nil where commit timestamps are not tracked.
	ours condition
	// own holds the numbers of the subscription's origins, as text.
	own []string
	// tables by the publisher's relation ID.
	tables map[uint32]*table
	// statements counts the prepared statements ever made, which are named by their
	// numbers, and confirmed those up to which the server is known to have them: after an
	// error it has skipped the later ones.
	statements, confirmed int
	// exact: the transaction in work is applied alone, and what is known of its
	// suspects counts.
	exact bool
	// suspects are the changes of each transaction, by their number in it, that did
	// not have the expected outcome when they were sent without waiting.
	suspects map[*txn.Transaction]map[int]bool
	// doubt: this try has found some, so it must not commit.
	doubt bool
	// stale: the tables may not be what they were bound to.
	stale bool
	// current is the transaction whose changes are being sent, ordinal the number of
	// the change in it.
	current *txn.Transaction
	ordinal int
	// begun counts the target transactions, to know which tables one has pinned.
	begun int
	// receive is what Deliver has set, announced the transactions whose messages it
	// is to get before the target transaction in work commits.
	receive   func(*txn.Transaction, *decoder.LogicalMessage) error
	announced []*txn.Transaction
	// outcome of the group in work; what is not committed yet counts in it too.
	outcome Outcome
	// records are the conflicts that were recorded in it and are not logged yet.
	records []record
	// looks is for how many more changes of a relation, by the publisher's ID, to look
	// who wrote the row; kept says that the last look decided for the local row.
	looks map[uint32]int
	kept  bool
	// batches are the changes that wait to be sent, and rowByRow the tables that have none.
	batches  batches
	rowByRow rowByRow
	// running is the transaction that is applied while it arrives, if one is.
	running running

	// Scratch buffers of the row path.
	values  [][]byte
	formats []int16
	shape   shape
}

// Open connects and prepares the session. The error is a *conninfo.Error or wraps
// the one of pgconn.
func Open(ctx context.Context, options Options) (*Session, error) {
	forced := settings(options.SynchronousCommit)
	forced["application_name"] = options.ApplicationName
	config, err := conninfo.Parse("target", options.URI, options.Passfile, forced)
	if err != nil {
		return nil, err
	}
	config.DialFunc = conninfo.KeepAlive(config.DialFunc)
	pgpipe.Configure(&config.Config)
	conn, err := pgconn.ConnectConfig(ctx, &config.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to the target: %w", conninfo.ConnectError(err))
	}
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	s := &Session{
		options: options, conn: conn, log: options.Log,
		tables: make(map[uint32]*table),
		pipe:   pgpipe.New[token](conn),
	}
	defer context.AfterFunc(ctx, s.Close)()
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare the session on the target: %w", err)
	}
	if err := s.enlist(); err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare the session on the target: %w", err)
	}
	return s, nil
}

// enlist takes the fence's lock and proves that the epoch is still ours. A subscription
// that is about to begin has none yet: that is epoch 0. A session that writes nothing
// has no fence.
func (s *Session) enlist() error {
	fence := s.options.Fence
	if fence == (Fence{}) {
		return nil
	}
	if _, err := s.Query(`SELECT pg_catalog.pg_advisory_lock_shared($1, $2)`, strconv.Itoa(int(fence.Class)), strconv.Itoa(int(fence.Object))); err != nil {
		return err
	}
	rows, err := s.Query(`SELECT coalesce((SELECT epoch FROM pgapply.subscription WHERE name = $1), 0)`, s.options.Subscription)
	if err != nil {
		return err
	}
	if epoch := string(rows[0][0]); epoch != strconv.FormatInt(fence.Epoch, 10) {
		return fmt.Errorf("a later runner of subscription %q has begun (epoch %s, ours is %d)", s.options.Subscription, epoch, fence.Epoch)
	}
	return nil
}

// Names of the statements that every session has.
const (
	beginStatement      = "begin"
	commitStatement     = "commit"
	rollbackStatement   = "rollback"
	recordStatement     = "record"
	checkStatement      = "check"
	resetStatement      = "reset"
	pinStatement        = "pin"
	pinBatchesStatement = "pin_batches"
	messageStatement    = "message"
	// For prepared transactions.
	recordPreparedStatement = "record_prepared"
	forgetStatement         = "forget"
)

func (s *Session) prepare() error {
	// Values pass through as the publisher's walsender converted them, in the
	// encoding of this database.
	encoding := s.conn.ParameterStatus("server_encoding")
	if _, err := s.pipe.Query(`SELECT pg_catalog.set_config('client_encoding', $1, false)`, encoding); err != nil {
		return err
	}
	if version, err := s.pipe.Query(`SELECT pg_catalog.current_setting('server_version_num')`); err != nil {
		return err
	} else if number, _ := strconv.Atoi(string(version[0][0])); number >= 17_00_00 {
		if _, err := s.pipe.Query(`SELECT pg_catalog.set_config('transaction_timeout', '0', false)`); err != nil {
			return err
		}
	}
	// A backend that waits for a lock notices then that we are gone, and gives up
	// the origin. Servers on platforms that cannot tell refuse it: they do without.
	_, err := s.Query(`SELECT pg_catalog.set_config('client_connection_check_interval', '2s', false)`)
	if _, gone := errors.AsType[*ConnectionError](err); gone {
		return err
	}
	statements := map[string]string{
		beginStatement:      "BEGIN",
		commitStatement:     "COMMIT",
		rollbackStatement:   "ROLLBACK",
		checkStatement:      "SET CONSTRAINTS ALL IMMEDIATE",
		resetStatement:      origin.ResetSQL,
		pinStatement:        catalog.PinSQL,
		pinBatchesStatement: catalog.PinBatchesSQL,
	}
	for name, sql := range statements {
		s.pipe.Prepare(token{}, name, sql, nil)
	}
	return s.finish()
}

// Encoding is the target database's encoding, in which values must arrive.
func (s *Session) Encoding() string { return s.conn.ParameterStatus("server_encoding") }

// Query runs one statement of its own outside of a transaction.
func (s *Session) Query(sql string, parameters ...string) ([][][]byte, error) {
	rows, err := s.pipe.Query(sql, parameters...)
	if err != nil {
		if lost(err) {
			return nil, verdict(err)
		}
		if recovered := s.pipe.Recover(); recovered != nil {
			return nil, recovered
		}
		return nil, err
	}
	return rows, s.finish()
}

// finish ends a unit of work and reads everything up to there.
func (s *Session) finish() error {
	s.pipe.Sync()
	return s.drain(0)
}

// AcquireOrigin makes the origin the session's own and returns the end of the last
// transaction that committed under it, or floor where none has left a position. own
// are the numbers of all origins that the subscription ever had: what they wrote is
// ours.
func (s *Session) AcquireOrigin(name string, own []uint32, floor lsn.LSN) (lsn.LSN, error) {
	if err := origin.Acquire(s, name); err != nil {
		return 0, err
	}
	// Only now is it sure that the state is there.
	s.pipe.Prepare(token{}, recordStatement, origin.RecordSQL, nil)
	s.pipe.Prepare(token{}, recordPreparedStatement, origin.RecordPreparedSQL, nil)
	s.pipe.Prepare(token{}, forgetStatement, origin.ForgetPreparedSQL, nil)
	s.pipe.Prepare(token{}, messageStatement, messageSQL, nil)
	if err := s.finish(); err != nil {
		return 0, fmt.Errorf("prepare the session on the target: %w", err)
	}
	s.origin = name
	s.own = s.own[:0]
	for _, number := range own {
		s.own = append(s.own, strconv.FormatUint(uint64(number), 10))
	}
	rows, err := s.Query(`SELECT pg_catalog.current_setting('track_commit_timestamp')`)
	if err != nil {
		return 0, err
	}
	if string(rows[0][0]) == "on" {
		ours := s.oursSQL()
		s.ours = func(b *builder) { b.WriteString(" AND " + ours) }
	}
	return origin.Resume(s, name, s.options.Subscription, floor)
}

// Interrupt makes the target cancel what the session waits for, such as a lock.
// It may be called from any goroutine; the transaction in work fails then.
func (s *Session) Interrupt(ctx context.Context) error { return s.conn.CancelRequest(ctx) }

// PID is the session's backend on the target.
func (s *Session) PID() uint32 { return s.conn.PID() }

// Close ends the connection at once. The target rolls back what was open. It may
// be called from any goroutine, to free one that waits for the target.
func (s *Session) Close() {
	// Not conn.Close: it shares the connection's buffers with whoever is using it.
	if socket := s.conn.Conn(); socket != nil {
		_ = socket.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = socket.Write(terminate)
		_ = socket.Close()
	}
}

// terminate is the protocol's Terminate message. It makes the backend end at once
// instead of when it next reads.
var terminate = []byte{'X', 0, 0, 0, 4}

func timestamp(t decoder.Timestamp) string {
	return t.Time().Format("2006-01-02 15:04:05.000000+00")
}
