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
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
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
	// Progress is the name under which the position is kept, where that is not the
	// subscription's.
	Progress string
	// DatabaseOID is the target database's.
	DatabaseOID uint32
	// Fires is that of Connection.
	Fires bool
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
	// Apart, unless nil, tells of a table that is no Member whether it belongs to the
	// subscription all the same, and its changes come another way.
	Apart func(schema, table string) bool
	// Whole, unless nil, hears the name of each transaction that was prepared without any
	// change being left out.
	Whole func(name string)
	Log   *zap.Logger
}

// planning makes every statement have one plan, which must not depend on the first
// values, nor on how large tables were when it was made: what has a key is found by it.
func planning() map[string]string {
	return map[string]string{
		"plan_cache_mode": "force_generic_plan",
		"jit":             "off",
		"enable_seqscan":  "off",
		// The rows of a batch are a bitmap at most: the server reads their pages ahead then,
		// where they are not in memory, and must have the room to know them one by one.
		"work_mem": "8MB",
		// Hash joins are for what says so, see netStatement.
		"enable_nestloop":  "off",
		"enable_mergejoin": "off",
		// 18 forgets that for the only partition of a table, but not what pages cost.
		"seq_page_cost": "1000",
	}
}

// Session is one connection to the target. It is not safe for concurrent use,
// except for Interrupt and Close.
type Session struct {
	options Options
	conn    *pgconn.PgConn
	pipe    *pgpipe.Pipe[token]
	log     *zap.Logger
	// trip is the shortest time in which the target has answered, and farAway the one from
	// which on not to wait for an answer is worth what it costs.
	trip, farAway time.Duration

	// origin is the name of the acquired origin, empty where transactions are not stamped.
	origin string
	// ours is a condition on a row: that no other origin, and nobody on the target,
	// wrote it last. It is nil where commit timestamps are not tracked.
	ours condition
	// own holds the numbers of the subscription's origins, as text, and unstampedUntil is
	// that of Ours.
	own            []string
	unstampedUntil *time.Time
	// tables by the publisher's relation ID, and those of a group that is applied ahead.
	tables map[uint32]*table
	keyed  []KeyedTable
	// answers are what the catalogs have said, see Session.catalogs, and foreseen what they
	// have said of tables of the group in work, see foresee.go.
	answers  [][][][]byte
	group    []*txn.Transaction
	foreseen map[*decoder.Relation][][][][]byte
	// questions are statements that the catalogs are asked with, by their text.
	questions map[string]*prepared
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
	// unconfirmed is the group whose COMMIT is on its way, and sent the one behind it, see
	// submit.go; synced is when the last Sync was sent.
	unconfirmed unconfirmed
	sent        sent
	synced      time.Time
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
	conn, err := Connect(ctx, Connection{
		URI: options.URI, Passfile: options.Passfile, ApplicationName: options.ApplicationName,
		SynchronousCommit: options.SynchronousCommit, Fires: options.Fires, Settings: planning(), Adjust: pgpipe.Configure,
		Subscription: options.Subscription, Fence: options.Fence,
	})
	if err != nil {
		return nil, err
	}
	if options.Log == nil {
		options.Log = zap.NewNop()
	}
	s := &Session{
		options: options, conn: conn, log: options.Log,
		tables: make(map[uint32]*table), questions: make(map[string]*prepared),
		pipe: pgpipe.New[token](conn), trip: math.MaxInt64, farAway: farAway,
	}
	defer context.AfterFunc(ctx, s.Close)()
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("prepare the session on the target: %w", err)
	}
	return s, nil
}

// Names of the statements that every session has.
const (
	beginStatement        = "begin"
	commitStatement       = "commit"
	rollbackStatement     = "rollback"
	recordStatement       = "record"
	checkStatement        = "check"
	resetStatement        = "reset"
	pinStatement          = "pin"
	pinBatchesStatement   = "pin_batches"
	pinUnnoticedStatement = "pin_unnoticed"
	messageStatement      = "message"
	// For prepared transactions.
	recordPreparedStatement = "record_prepared"
	forgetStatement         = "forget"
)

func (s *Session) prepare() error {
	statements := map[string]string{
		beginStatement:        "BEGIN",
		commitStatement:       "COMMIT",
		rollbackStatement:     "ROLLBACK",
		checkStatement:        "SET CONSTRAINTS ALL IMMEDIATE",
		resetStatement:        origin.ResetSQL,
		pinStatement:          catalog.PinSQL,
		pinBatchesStatement:   catalog.PinBatchesSQL,
		pinUnnoticedStatement: catalog.PinUnnoticedSQL,
	}
	for name, sql := range statements {
		s.pipe.Prepare(token{}, name, sql, nil)
	}
	return s.finish()
}

// farAway is that of every session.
const farAway = 5 * time.Millisecond

func (s *Session) far() bool { return s.trip > s.farAway }

// Encoding is the target database's encoding, in which values must arrive.
func (s *Session) Encoding() string { return s.conn.ParameterStatus("server_encoding") }

// Query runs one statement of its own outside of a transaction.
func (s *Session) Query(sql string, parameters ...string) ([][][]byte, error) {
	s.answers = nil
	s.pipe.Prepare(s.token(opAsk, nil), "", sql, nil)
	err := s.control(opAsk, "", parameters...)
	if err == nil {
		err = s.finish()
	}
	if err == nil {
		return s.answers[0], nil
	}
	if connection, gone := errors.AsType[*ConnectionError](err); gone {
		return nil, connection
	}
	if recovered := s.pipe.Recover(); recovered != nil {
		return nil, recovered
	}
	return nil, err
}

// finish ends a unit of work and reads everything up to there.
func (s *Session) finish() error {
	s.sync()
	err := s.drain(0)
	s.trip = min(s.trip, time.Since(s.synced))
	return err
}

func (s *Session) sync() {
	s.synced = time.Now()
	s.pipe.Sync()
}

// Ours says what of the rows on the target the subscription has written.
type Ours struct {
	// Origins are the numbers of all that the subscription ever had.
	Origins []uint32
	// UnstampedUntil, unless nil, is when it began to stamp its transactions: rows without
	// an origin that were committed before that count as ours.
	UnstampedUntil *time.Time
	// Tracked tells that the target keeps who wrote a row (track_commit_timestamp).
	Tracked bool
}

// TakeOrigin makes the origin the session's own, whose transactions are stamped with it from
// then on. The error may be an *origin.HeldError.
func (s *Session) TakeOrigin(name string, ours Ours) error {
	if err := origin.Acquire(s, name); err != nil {
		return err
	}
	s.origin = name
	s.own, s.unstampedUntil = s.own[:0], ours.UnstampedUntil
	for _, number := range ours.Origins {
		s.own = append(s.own, strconv.FormatUint(uint64(number), 10))
	}
	if ours.Tracked {
		ours := s.oursSQL()
		s.ours = func(b *builder) { b.WriteString(" AND " + ours) }
	}
	return nil
}

// Resume returns the end of the last transaction that committed on the target, or floor
// where none has left a position. Without an origin the session's transactions are not
// stamped, and who wrote a row is not known.
func (s *Session) Resume(floor lsn.LSN) (lsn.LSN, error) {
	if s.origin == "" {
		s.prepareRecords(origin.RecordSQL, origin.RecordPreparedSQL)
		return origin.ResumeRecorded(s, s.progressName(), floor)
	}
	s.prepareRecords(origin.RecordStampSQL, origin.RecordStampPreparedSQL)
	return origin.Resume(s, s.origin, s.progressName(), floor)
}

// prepareRecords prepares what writes into the state, which is sure to be there only now.
func (s *Session) prepareRecords(record, recordPrepared string) {
	s.pipe.Prepare(token{}, recordStatement, record, nil)
	s.pipe.Prepare(token{}, recordPreparedStatement, recordPrepared, nil)
	s.pipe.Prepare(token{}, forgetStatement, origin.ForgetPreparedSQL, nil)
	s.pipe.Prepare(token{}, messageStatement, messageSQL, nil)
}

// writePosition sends the statement that writes the end position of a transaction, and stamps
// the commit.
func (s *Session) writePosition(statement string, t *txn.Transaction, parameters ...string) error {
	parameters = append([]string{t.EndLSN.String()}, parameters...)
	if s.origin != "" {
		parameters = append(parameters, timestamp(t.Time))
	}
	return s.control(opOther, statement, parameters...)
}

// progressName is whose position the session's transactions move.
func (s *Session) progressName() string { return cmp.Or(s.options.Progress, s.options.Subscription) }

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
