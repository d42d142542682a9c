package source

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/zap"

	"pgapply/internal/lsn"
)

// Conn is one session with the publisher's walsender. It belongs to one
// goroutine. After StartStream only the Stream may be used, and closing that
// closes the Conn.
type Conn struct {
	pg      *pgconn.PgConn
	dialer  *dialer
	log     *zap.Logger
	version int
	// senderTimeout is wal_sender_timeout: the publisher ends a session that it has not
	// heard of for so long. Zero means never.
	senderTimeout time.Duration
	// config is what the session was opened with, and reaches the end of the publisher's
	// log when it last identified itself.
	config  *pgconn.Config
	reaches lsn.LSN
	stream  *Stream // once started
}

// Identity names the publisher: what must not change between two starts of one
// subscription, and where its log ends.
type Identity struct {
	// SystemID is the system identifier that initdb made.
	SystemID string
	// Timeline changes when a standby is promoted, or a backup restored; History is what
	// came before.
	Timeline int32
	History  History
	Database string
	// Position is the end of the write-ahead log flushed so far, on a standby of what it
	// has received.
	Position lsn.LSN
	// InRecovery is true on a standby.
	InRecovery bool
}

// Connect opens a walsender session in the database that the options name, and
// forces the settings under which values have one text form. A failed attempt
// at every host is one error; ClassOf says whether time can cure it.
func Connect(ctx context.Context, options Options) (*Conn, error) {
	config, err := options.config()
	if err != nil {
		return nil, err
	}
	conn := &Conn{dialer: newDialer(options.wrap), log: options.Log, config: config}
	if conn.log == nil {
		conn.log = zap.NewNop()
	}
	config.DialFunc = conn.dialer.dial
	config.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) { conn.logNotice(notice) }
	conn.pg, err = pgconn.ConnectConfig(ctx, config)
	if err != nil {
		conn.dialer.close()
		return nil, connectError(options.server(), config, err)
	}
	if err := conn.prepare(ctx); err != nil {
		_ = conn.Close() // the reason is err
		return nil, fmt.Errorf("prepare the session on the %s: %w", options.server(), err)
	}
	return conn, nil
}

// prepare settles what a startup packet cannot: an empty search_path, so that
// every name in a value is qualified and no function of a user hides one of the
// system's, and timeouts that not every major has.
func (c *Conn) prepare(ctx context.Context) error {
	// In one query, since a timeout of the role may be short.
	rows, err := c.Query(ctx, `SELECT pg_catalog.set_config('search_path', '', false), pg_catalog.current_setting('server_version_num'),
		(SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
		(SELECT pg_catalog.count(pg_catalog.set_config(name, '0', false)) FROM pg_catalog.pg_settings
			WHERE name IN ('idle_session_timeout', 'transaction_timeout'))`)
	if err != nil {
		return err
	}
	milliseconds, err := strconv.Atoi(text(rows, 0, 2))
	if err != nil {
		return fmt.Errorf("read the publisher's wal_sender_timeout: %w", err)
	}
	c.senderTimeout = time.Duration(milliseconds) * time.Millisecond
	if c.version, err = strconv.Atoi(text(rows, 0, 1)); err != nil {
		return fmt.Errorf("read the publisher's version: %w", err)
	}
	if c.version < 100000 {
		return &ConfigurationError{Reason: fmt.Sprintf("the publisher is PostgreSQL %s: logical replication with pgoutput needs 10 or later", c.pg.ParameterStatus("server_version"))}
	}
	return nil
}

// Version is the publisher's server_version_num, such as 180004.
func (c *Conn) Version() int { return c.version }

// PID is the session's process on the publisher.
func (c *Conn) PID() uint32 { return c.pg.PID() }

func (c *Conn) major() int { return c.version / 10000 }

// Identify asks the walsender who it is (IDENTIFY_SYSTEM, TIMELINE_HISTORY).
func (c *Conn) Identify(ctx context.Context) (Identity, error) {
	// Before the timeline: a server that is no standby by then stays on it.
	answers, err := c.queryEach(ctx, "SELECT pg_catalog.pg_is_in_recovery()", "IDENTIFY_SYSTEM")
	if err != nil {
		return Identity{}, fmt.Errorf("identify the publisher: %w", err)
	}
	recovery, rows := answers[0], answers[1]
	if len(rows) != 1 || len(rows[0]) < 4 {
		return Identity{}, errors.New("identify the publisher: IDENTIFY_SYSTEM did not answer with one row of four columns")
	}
	timeline, err := strconv.ParseInt(text(rows, 0, 1), 10, 32)
	if err != nil {
		return Identity{}, fmt.Errorf("identify the publisher: timeline: %w", err)
	}
	position, err := lsn.Parse(text(rows, 0, 2))
	if err != nil {
		return Identity{}, fmt.Errorf("identify the publisher: %w", err)
	}
	c.reaches = max(c.reaches, position)
	history, err := c.history(ctx, int32(timeline))
	if err != nil {
		return Identity{}, fmt.Errorf("identify the publisher: %w", err)
	}
	return Identity{
		SystemID: text(rows, 0, 0), Timeline: int32(timeline), History: history, Database: text(rows, 0, 3), Position: position,
		InRecovery: text(recovery, 0, 0) == "t",
	}, nil
}

// SQLSTATEs of text that is none in an encoding, and of text that another one lacks.
const invalidText, untranslatable = "22021", "22P05"

// Query runs one statement and returns the rows of its last result: rows of
// columns in text form, nil for NULL. Names must be qualified with their schema,
// since search_path is empty. When ctx ends first, the connection is lost.
func (c *Conn) Query(ctx context.Context, sql string) ([][][]byte, error) {
	if c.stream != nil {
		return nil, errors.New("query the publisher: the connection streams")
	}
	results, err := c.pg.Exec(ctx, sql).ReadAll()
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && (refusal.Code == invalidText || refusal.Code == untranslatable) {
		// Nothing but catalogs is queried.
		return nil, &ConfigurationError{
			Reason: "a name on the publisher cannot be said in this session's encoding: rename it there, in a session with client_encoding = SQL_ASCII", Err: err,
		}
	}
	if err != nil {
		return nil, err
	}
	if len(results) == 0 {
		return nil, nil
	}
	return results[len(results)-1].Rows, nil
}

// queryEach is Query for several statements in one round trip, each of which begins when
// the one before it has ended: a command of the walsender cannot share a Query message with
// anything else.
func (c *Conn) queryEach(ctx context.Context, statements ...string) ([][][][]byte, error) {
	if c.pg.IsClosed() {
		return nil, pgconn.ErrConnClosed // what pgconn does with it then is its own
	}
	for _, sql := range statements {
		c.pg.Frontend().SendQuery(&pgproto3.Query{String: sql})
	}
	if err := c.pg.Frontend().Flush(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	answers := make([][][][]byte, len(statements))
	var refusal error
	for ended := 0; ended < len(statements); {
		message, err := c.pg.ReceiveMessage(ctx)
		if err != nil {
			return nil, errors.Join(cmp.Or(refusal, err), c.Close())
		}
		switch message := message.(type) {
		case *pgproto3.DataRow:
			row := make([][]byte, len(message.Values))
			for i, value := range message.Values {
				row[i] = bytes.Clone(value)
			}
			answers[ended] = append(answers[ended], row)
		case *pgproto3.ErrorResponse:
			refusal = cmp.Or[error](refusal, pgconn.ErrorResponseToPgError(message))
		case *pgproto3.ReadyForQuery:
			ended++
		}
	}
	return answers, refusal
}

// Close ends the session. It waits until nothing of the connection is left,
// for a few seconds at most where the publisher does not answer.
func (c *Conn) Close() error {
	if c.stream != nil {
		return c.stream.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := c.pg.Close(ctx)
	// After a canceled query pgconn cancels it on the server in the background.
	select {
	case <-c.pg.CleanupDone():
		c.dialer.close()
	case <-ctx.Done():
		c.dialer.close()
		<-c.pg.CleanupDone()
	}
	if err != nil {
		return fmt.Errorf("close the connection to the publisher: %w", err)
	}
	return nil
}

func (c *Conn) logNotice(notice *pgconn.Notice) {
	c.log.Warn("publisher says: "+notice.Message, zap.String("severity", notice.Severity), zap.String("sqlstate", notice.Code))
}

// text is a field of a result, empty when it is NULL or not there.
func text(rows [][][]byte, row, column int) string {
	if row >= len(rows) || column >= len(rows[row]) {
		return ""
	}
	return string(rows[row][column])
}
