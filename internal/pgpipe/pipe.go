// Package pgpipe is a thin seam over pgconn's pipeline mode: statements go out
// without waiting for one another and their outcomes come back in the order in
// which they were sent, each with the token that its sender gave it.
//
//	Prepare, Exec ──► buffer ──Flush──► server
//	     token                             │
//	  Result[T]{Token} ◄────── Next ◄─────────┘
//
// After an error the server ignores everything up to the next Sync: Recover
// sends it and reads on to the end. The package knows nothing of transactions,
// tables or replication.
package pgpipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// flushAt is how many bytes may wait in the write buffer. Large enough for few
// system calls, small enough that neither side's socket buffer fills up for long.
const flushAt = 128 << 10

// Result is the outcome of one statement.
type Result[T any] struct {
	// Token is what was given to Exec.
	Token T
	// Tag is the command tag, such as "UPDATE 1".
	Tag pgconn.CommandTag
	// Rows are the rows that it returned, in text form.
	Rows [][][]byte
}

// request is something that was sent and whose outcome was not read yet.
type request[T any] struct{ token T }

// Pipe is one connection in pipeline mode. It is not safe for concurrent use. T is
// what a sender wants to know a statement by when its outcome comes.
type Pipe[T any] struct {
	conn     *pgconn.PgConn
	pipeline *pgconn.Pipeline
	// sent[head:] are the requests whose outcomes are still to be read, in order.
	sent []request[T]
	head int
	// unflushed counts the bytes that were queued since the last flush.
	unflushed int
	// syncs counts the Syncs that were sent and not answered yet.
	syncs int
	// lost is the error with which the connection broke. pgconn then writes its farewell
	// from a goroutine of its own, so nothing may touch the connection any more.
	lost error
}

// New puts the connection into pipeline mode. The connection belongs to the pipe
// from then on. There is no context: a pipe is stopped by closing its connection.
func New[T any](conn *pgconn.PgConn) *Pipe[T] {
	return &Pipe[T]{conn: conn, pipeline: conn.StartPipeline(context.Background())}
}

// Prepare queues the preparation of a named statement. Next returns its token only
// with an error.
func (p *Pipe[T]) Prepare(token T, name, sql string, types []uint32) {
	if p.lost != nil {
		return // Flush says it
	}
	p.pipeline.SendPrepare(name, sql, types)
	p.push(request[T]{token}, len(name)+len(sql))
}

// Deallocate queues the removal of a prepared statement.
func (p *Pipe[T]) Deallocate(name string) {
	if p.lost != nil {
		return
	}
	p.pipeline.SendDeallocate(name)
	p.push(request[T]{}, len(name))
}

// Exec queues one execution of a prepared statement. Nil values are NULL; formats
// are those of pgconn (none: all text). The values are copied before it returns.
func (p *Pipe[T]) Exec(token T, name string, values [][]byte, formats []int16) error {
	if p.lost != nil {
		return p.lost
	}
	p.pipeline.SendQueryPrepared(name, values, formats, nil)
	size := 32
	for _, value := range values {
		size += len(value) + 4
	}
	p.push(request[T]{token}, size)
	if p.unflushed >= flushAt {
		return p.Flush()
	}
	return nil
}

// Sync queues the end of a unit of work: the server forgets an error there and,
// outside of a transaction block, commits. Its answer is read by Next on the way.
func (p *Pipe[T]) Sync() {
	if p.lost != nil {
		return
	}
	p.pipeline.SendPipelineSync()
	p.syncs++
	p.push(request[T]{}, 5)
}

func (p *Pipe[T]) push(r request[T], size int) {
	if p.head == len(p.sent) {
		p.sent, p.head = p.sent[:0], 0
	}
	p.sent = append(p.sent, r)
	p.unflushed += size
}

// Waiting returns how many outcomes are still to be read.
func (p *Pipe[T]) Waiting() int { return len(p.sent) - p.head }

// Awaits tells whether the outcome of a statement like this is still to be read.
func (p *Pipe[T]) Awaits(like func(T) bool) bool {
	for _, r := range p.sent[p.head:] {
		if like(r.token) {
			return true
		}
	}
	return false
}

// Flush sends what is queued and asks the server to send all outcomes.
func (p *Pipe[T]) Flush() error {
	switch {
	case p.lost != nil:
		return p.lost
	case p.unflushed == 0:
		return nil
	}
	p.pipeline.SendFlushRequest()
	return p.flush()
}

// flush sends what is queued.
func (p *Pipe[T]) flush() error {
	p.unflushed = 0
	if err := p.pipeline.Flush(); err != nil {
		return p.noted(fmt.Errorf("send to the target: %w", err))
	}
	return nil
}

// noted returns err, and keeps it if the connection is gone with it.
func (p *Pipe[T]) noted(err error) error {
	if err != nil && p.conn.IsClosed() {
		p.lost = err
	}
	return err
}

// Next reads the outcome of the oldest statement whose outcome was not read yet;
// outcomes of Prepare and Deallocate are read on the way. It reports false when
// there is none left. After a *pgconn.PgError only Recover may follow.
func (p *Pipe[T]) Next() (Result[T], bool, error) {
	for p.head < len(p.sent) {
		if err := p.Flush(); err != nil {
			return Result[T]{}, false, err
		}
		r := p.sent[p.head]
		p.head++
		outcome, err := p.pipeline.GetResults()
		if err != nil {
			return Result[T]{Token: r.token}, true, p.noted(err)
		}
		switch outcome := outcome.(type) {
		case *pgconn.ResultReader:
			rows := readRows(outcome)
			tag, err := outcome.Close()
			return Result[T]{Token: r.token, Tag: tag, Rows: rows}, true, p.noted(err)
		case *pgconn.PipelineSync:
			p.syncs--
		case nil:
			return Result[T]{}, false, errors.New("read from the target: no outcome for a statement that was sent")
		}
	}
	return Result[T]{}, false, nil
}

// readRows copies the rows of a result; it allocates nothing where there are none.
func readRows(reader *pgconn.ResultReader) (rows [][][]byte) {
	for reader.NextRow() {
		row := make([][]byte, len(reader.Values()))
		for i, value := range reader.Values() {
			row[i] = bytes.Clone(value)
		}
		rows = append(rows, row)
	}
	return rows
}

// Parameter is one value of a Run.
type Parameter struct {
	Value  []byte // nil is NULL
	Type   uint32 // zero lets the server infer it
	Binary bool
}

// Query runs one statement by itself, with text parameters whose types the server
// infers, and returns its rows as text; a nil field is NULL. All earlier outcomes
// must have been read. After a *pgconn.PgError only Recover may follow.
func (p *Pipe[T]) Query(sql string, parameters ...string) ([][][]byte, error) {
	typed := make([]Parameter, len(parameters))
	for i, parameter := range parameters {
		typed[i].Value = []byte(parameter)
	}
	result, err := p.Run(sql, typed)
	if err != nil {
		return nil, err
	}
	return result.Rows, nil
}

// QueryAll runs several queries with the same parameters, like Query, in one round trip.
func (p *Pipe[T]) QueryAll(sql []string, parameters ...string) ([][][][]byte, error) {
	if p.Waiting() > 0 {
		return nil, errUnread
	}
	values := make([][]byte, len(parameters))
	for i, parameter := range parameters {
		values[i] = []byte(parameter)
	}
	var none T
	for _, query := range sql {
		p.Prepare(none, "", query, nil)
		if err := p.Exec(none, "", values, nil); err != nil {
			return nil, err
		}
	}
	answers := make([][][][]byte, 0, len(sql))
	for p.Waiting() > 0 {
		result, some, err := p.Next()
		if err != nil {
			return nil, err
		}
		if some {
			answers = append(answers, result.Rows)
		}
	}
	return answers, nil
}

var errUnread = errors.New("query on the target while outcomes of earlier statements are unread")

// Run is Query with parameters of given types and formats, and tells the command
// tag too.
func (p *Pipe[T]) Run(sql string, parameters []Parameter) (*pgconn.Result, error) {
	switch {
	case p.lost != nil:
		return nil, p.lost
	case p.Waiting() > 0:
		return nil, errUnread
	}
	values := make([][]byte, len(parameters))
	types := make([]uint32, len(parameters))
	formats := make([]int16, len(parameters))
	for i, parameter := range parameters {
		values[i], types[i] = parameter.Value, parameter.Type
		if parameter.Binary {
			formats[i] = 1
		}
	}
	p.pipeline.SendQueryParams(sql, values, types, formats, nil)
	p.pipeline.SendFlushRequest()
	if err := p.flush(); err != nil {
		return nil, err
	}
	outcome, err := p.pipeline.GetResults()
	if err != nil {
		return nil, p.noted(err)
	}
	reader, ok := outcome.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("read from the target: unexpected outcome %T of a query", outcome)
	}
	result := reader.Read()
	return result, p.noted(result.Err)
}

// Recover leaves the ignored state after an error: it sends a Sync, unless one is
// on its way already, and reads everything up to it. A transaction block that was
// open is a failed one then.
func (p *Pipe[T]) Recover() error {
	if p.syncs == 0 {
		p.Sync()
	}
	p.sent, p.head = p.sent[:0], 0
	if err := p.Flush(); err != nil {
		return err
	}
	for p.syncs > 0 {
		outcome, err := p.pipeline.GetResults()
		if err != nil {
			if _, ok := errors.AsType[*pgconn.PgError](p.noted(err)); ok && p.lost == nil {
				continue
			}
			return fmt.Errorf("read from the target: %w", err)
		}
		switch outcome := outcome.(type) {
		case *pgconn.PipelineSync:
			p.syncs--
		case *pgconn.ResultReader:
			// The outcome of a statement that ran before the error. Its own
			// error, if it has one, leads to the same Sync.
			if _, err := outcome.Close(); p.noted(err) != nil && p.lost != nil {
				return fmt.Errorf("read from the target: %w", err)
			}
		case nil:
			return errors.New("read from the target: the pipeline ended before its Sync")
		}
	}
	return nil
}

// TxStatus is the transaction status as of the last Sync: 'I', 'T' or 'E'.
func (p *Pipe[T]) TxStatus() byte { return p.conn.TxStatus() }
