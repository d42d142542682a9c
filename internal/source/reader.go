package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pgapply/internal/conninfo"
)

// TableReader is an ordinary session of the publisher that reads tables as they were at
// an exported snapshot. It belongs to one goroutine, except for Abort.
//
//	Begin ──► Query, Copy + Read to io.EOF ... ──► End
type TableReader struct {
	pg       *pgconn.PgConn
	messages *messages
	version  int
	// rows is what the publisher counted in the last COPY that ended.
	rows int64
	// begun counts the CopyData messages of the COPY in work.
	begun int64
}

// SnapshotLostError says that an exported snapshot cannot be used: whoever held it is
// gone, or the publisher was restarted.
type SnapshotLostError struct {
	Snapshot string
	Err      error
}

func (e *SnapshotLostError) Error() string {
	return fmt.Sprintf("the exported snapshot %s is lost: %s", e.Snapshot, e.Err)
}

// Unwrap returns the cause.
func (e *SnapshotLostError) Unwrap() error { return e.Err }

// OpenTableReader connects with the settings that Connect forces too, so that COPY
// writes values as the walsender will. When ctx ends, so does the attempt.
func OpenTableReader(ctx context.Context, options Options) (*TableReader, error) {
	config, err := options.config()
	if err != nil {
		return nil, err
	}
	delete(config.RuntimeParams, "replication")
	r := &TableReader{}
	config.DialFunc = conninfo.KeepAlive((&net.Dialer{}).DialContext)
	config.BuildFrontend = func(from io.Reader, to io.Writer) *pgproto3.Frontend {
		r.messages = newMessages(from)
		return pgproto3.NewFrontend(r.messages, to)
	}
	if r.pg, err = pgconn.ConnectConfig(ctx, config); err != nil {
		return nil, connectError(options.server(), config, err)
	}
	defer context.AfterFunc(ctx, r.Abort)()
	if err := r.prepare(); err != nil {
		r.Close()
		return nil, fmt.Errorf("prepare the session on the publisher: %w", err)
	}
	return r, nil
}

// prepare does what Conn.prepare does. A backend that works for nobody ends soon where
// the publisher can notice (client_connection_check_interval, 14 and later).
func (r *TableReader) prepare() error {
	rows, err := r.Query(`SELECT pg_catalog.set_config('search_path', '', false), pg_catalog.current_setting('server_version_num'),
		(SELECT pg_catalog.count(pg_catalog.set_config(name, '0', false)) FROM pg_catalog.pg_settings
			WHERE name IN ('idle_session_timeout', 'transaction_timeout'))`)
	if err != nil {
		return err
	}
	if r.version, err = strconv.Atoi(text(rows, 0, 1)); err != nil {
		return fmt.Errorf("read the publisher's version: %w", err)
	}
	if r.major() < 14 {
		return nil
	}
	_, err = r.Query(`SELECT pg_catalog.set_config('client_connection_check_interval', '2s', false)`)
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Severity == "ERROR" {
		return nil // its platform cannot tell
	}
	return err
}

// Version is the publisher's server_version_num.
func (r *TableReader) Version() int { return r.version }

func (r *TableReader) major() int { return r.version / 10000 }

// Begin begins a transaction that sees what the snapshot shows. It returns a
// *SnapshotLostError when that cannot be had any more.
func (r *TableReader) Begin(snapshot string) error {
	_, err := r.Query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT " + literal(snapshot))
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch refusal.Code {
		case "22023", "42704", "55000": // snapmgr.c, ImportSnapshot; procarray.c, ProcArrayInstallImportedXmin
			return errors.Join(&SnapshotLostError{Snapshot: snapshot, Err: err}, r.End())
		}
	}
	if err != nil {
		return fmt.Errorf("read at snapshot %s on the publisher: %w", snapshot, err)
	}
	return nil
}

// Query runs statements and returns the rows of the last one that has any, in text form.
func (r *TableReader) Query(sql string) ([][][]byte, error) {
	results, err := r.pg.Exec(context.Background(), sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for i := len(results) - 1; i >= 0; i-- {
		if len(results[i].FieldDescriptions) > 0 {
			return results[i].Rows, nil
		}
	}
	return nil, nil
}

// Copy starts a COPY ... TO STDOUT, whose data Read returns. It must be read to its end,
// or the session closed.
func (r *TableReader) Copy(sql string) error {
	r.messages.grow()
	r.rows, r.begun = 0, 0
	r.pg.Frontend().SendQuery(&pgproto3.Query{String: sql})
	if err := r.pg.Frontend().Flush(); err != nil {
		return err
	}
	for {
		message, err := r.pg.ReceiveMessage(context.Background())
		if err != nil {
			return err
		}
		switch message := message.(type) {
		case *pgproto3.CopyOutResponse:
			return nil
		case *pgproto3.ErrorResponse:
			return errors.Join(pgconn.ErrorResponseToPgError(message), r.ready())
		case *pgproto3.ReadyForQuery:
			return errors.New("the publisher did not take the statement for a COPY")
		}
	}
}

// ready reads up to where the publisher waits for the next statement.
func (r *TableReader) ready() error {
	for {
		message, err := r.pg.ReceiveMessage(context.Background())
		if err != nil {
			return err
		}
		if _, ok := message.(*pgproto3.ReadyForQuery); ok {
			return nil
		}
	}
}

// Read fills p, but for the end, and returns io.EOF only when the publisher has said
// that the COPY is complete.
func (r *TableReader) Read(p []byte) (int, error) {
	for {
		n, begun, err := r.messages.data(p)
		r.begun += int64(begun)
		if n > 0 || err != nil {
			return n, unexpected(err)
		}
		message, err := r.pg.ReceiveMessage(context.Background())
		if err != nil {
			return 0, err
		}
		switch message := message.(type) {
		case *pgproto3.CommandComplete:
			r.rows = pgconn.NewCommandTag(string(message.CommandTag)).RowsAffected()
			if err := r.ready(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		case *pgproto3.ErrorResponse:
			return 0, errors.Join(pgconn.ErrorResponseToPgError(message), r.ready())
		case *pgproto3.ReadyForQuery:
			return 0, errors.New("the publisher ended the COPY without a word")
		}
	}
}

// unexpected makes of the end of a connection no end of data.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Messages counts the messages of the COPY in work, of which the publisher sends one for
// each row, and in binary form one more at the end.
func (r *TableReader) Messages() int64 { return r.begun }

// Rows is how many rows the last COPY had, by the publisher's word. It is known once
// Read has returned io.EOF.
func (r *TableReader) Rows() int64 { return r.rows }

// End ends the transaction, whatever became of it.
func (r *TableReader) End() error {
	_, err := r.Query("ROLLBACK")
	return err
}

// Abort breaks the connection off, which ends whatever waits for the publisher. It may
// be called from any goroutine.
func (r *TableReader) Abort() {
	if socket := r.pg.Conn(); socket != nil {
		socket.Close()
	}
}

// Close ends the session and waits until nothing of it is left, for a few seconds at
// most where the publisher does not answer.
func (r *TableReader) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = r.pg.Close(ctx) // the session is over either way
	select {
	case <-r.pg.CleanupDone():
	case <-ctx.Done():
	}
}
