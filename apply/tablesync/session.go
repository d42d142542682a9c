package tablesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/target"
	"pgapply/origin"
)

// session is a connection to the target on which rows are written. It belongs to one
// goroutine, except for abort.
type session struct {
	conn *pgconn.PgConn
	// stamps tells that the session has an origin.
	stamps bool
	// refused is called when the server says an error, while it may still be reading data.
	refused func()
}

// openSession connects, enters the fence and takes the origin.
func (o *Options) openSession(ctx context.Context, job int) (*session, error) {
	s := &session{refused: func() {}}
	conn, err := target.Connect(ctx, target.Connection{
		URI: o.Target, Passfile: o.TargetPassfile, ApplicationName: o.ApplicationName,
		Fires: o.Fires, Subscription: o.Subscription, Fence: o.Fence,
		// Only what says that a table is complete must be durable: it lies behind the rows.
		SynchronousCommit: "off",
		Adjust: func(config *pgconn.Config) {
			closes := config.OnPgError
			config.OnPgError = func(conn *pgconn.PgConn, refusal *pgconn.PgError) bool {
				s.refused()
				return closes(conn, refusal)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s.conn = conn
	defer context.AfterFunc(ctx, s.abort)()
	if o.Origin == nil {
		return s, nil
	}
	s.stamps = true
	if err := acquire(s, o.Origin(job)); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// originPatience is how long the backend of a session that was lost or closed may hold
// its origin.
const originPatience = 10 * time.Second

// acquire takes the origin, waiting for one that is still held.
func acquire(s *session, name string) error {
	for started, pause := time.Now(), 10*time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := origin.Acquire(s, name)
		if _, held := errors.AsType[*origin.HeldError](err); !held || time.Since(started) > originPatience {
			return err
		}
		time.Sleep(pause)
	}
}

// Query runs one statement with parameters in text form.
func (s *session) Query(sql string, parameters ...string) ([][][]byte, error) {
	values := make([][]byte, len(parameters))
	for i, parameter := range parameters {
		values[i] = []byte(parameter)
	}
	result := s.conn.ExecParams(context.Background(), sql, values, nil, nil, nil).Read()
	return result.Rows, result.Err
}

// exec runs statements without parameters.
func (s *session) exec(sql string) error {
	_, err := s.conn.Exec(context.Background(), sql).ReadAll()
	return err
}

// begin begins a transaction. What an origin's stamp says of the time would be the last
// one's otherwise.
func (s *session) begin() error {
	if s.stamps {
		return s.exec("BEGIN; " + origin.ResetSQL)
	}
	return s.exec("BEGIN")
}

// commit is not done when the answer is no error: a failed transaction answers ROLLBACK.
// Whether it is to be durable when commit returns is up to the caller.
func (s *session) commit(durable bool) error {
	sql := "COMMIT"
	if durable {
		sql = "SET LOCAL synchronous_commit TO local; COMMIT"
	}
	results, err := s.conn.Exec(context.Background(), sql).ReadAll()
	if err != nil {
		return err
	}
	if tag := results[len(results)-1].CommandTag.String(); tag != "COMMIT" {
		return fmt.Errorf("the target answered COMMIT with %s", tag)
	}
	return nil
}

// rollback ends a transaction that failed. Where it cannot, the connection is lost.
func (s *session) rollback() error {
	if s.conn.IsClosed() || s.conn.TxStatus() == 'I' {
		return nil
	}
	return s.exec("ROLLBACK")
}

// copyFrom runs a COPY FROM STDIN with the data of r and returns how many rows it took.
// giveUp makes a pending read of r return.
func (s *session) copyFrom(sql string, r io.Reader, giveUp func()) (int64, error) {
	s.refused = giveUp
	defer func() { s.refused = func() {} }()
	tag, err := s.conn.CopyFrom(context.Background(), r, sql)
	return tag.RowsAffected(), err
}

// usable tells whether the connection can be used for another transaction.
func (s *session) usable() bool { return !s.conn.IsClosed() && s.conn.TxStatus() == 'I' }

// abort breaks the connection off, which ends whatever waits for the target, and makes
// the target roll back what is open. It may be called from any goroutine.
func (s *session) abort() {
	if socket := s.conn.Conn(); socket != nil {
		socket.Close()
	}
}

// close ends the session. Its origin is free once the backend has gone.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // what it held ends with it either way
	select {
	case <-s.conn.CleanupDone():
	case <-ctx.Done():
	}
}
