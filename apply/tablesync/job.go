package tablesync

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"pgapply/internal/source"
	"pgapply/origin"
)

// job copies one part after the other, with a session on either end.
type job struct {
	*copying
	number  int
	reader  *source.TableReader
	session *session
	// buffers for what is read ahead, while no part is in work.
	buffers [][]byte
}

// open connects what is not connected.
func (j *job) open(ctx context.Context) (err error) {
	if j.session == nil {
		if j.session, err = j.openSession(ctx, j.number); err != nil {
			return err
		}
	}
	if j.reader == nil {
		// Values pass through in the encoding of the target's database.
		j.reader, err = source.OpenTableReader(ctx, j.source(j.session.conn.ParameterStatus("server_encoding")))
	}
	return err
}

// while breaks both connections off when ctx ends, until the returned func is called.
func (j *job) while(ctx context.Context) (stop func() bool) {
	reader, session := j.reader, j.session
	return context.AfterFunc(ctx, func() {
		if reader != nil {
			reader.Abort()
		}
		if session != nil {
			session.abort()
		}
	})
}

// close ends both sessions.
func (j *job) close() {
	j.closeReader()
	j.closeSession()
}

func (j *job) closeReader() {
	if j.reader != nil {
		j.reader.Close()
		j.reader = nil
	}
}

func (j *job) closeSession() {
	if j.session != nil {
		j.session.close()
		j.session = nil
	}
}

// run copies parts until there are none, or something concerns all tables.
func (j *job) run(ctx context.Context) error {
	if err := j.open(ctx); err != nil && j.number > 0 && full(err) {
		j.Log.Warn("tables are copied by fewer jobs: a server has no room for another session", zap.Error(err))
		return nil
	}
	for ctx.Err() == nil {
		next, more := j.queue.next()
		if !more {
			return nil
		}
		if err := j.open(ctx); err != nil {
			return err
		}
		if err := j.do(ctx, next); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// full tells that a server has no room for another session or origin.
func full(err error) bool {
	if _, ok := errors.AsType[*origin.LimitError](err); ok {
		return true
	}
	const tooManyConnections = "53300"
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == tooManyConnections
}

// do copies a part and sees to what its outcome means for the table.
func (j *job) do(ctx context.Context, w work) error {
	t := w.table
	if !t.enter() {
		return j.leave(ctx, t, nil)
	}
	fault := j.attempt(ctx, w)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if serious(fault) {
		return fault
	}
	if fault != nil {
		if err := j.mend(ctx); err != nil {
			return err
		}
	}
	return j.leave(ctx, t, fault)
}

// attempt copies a part while ctx lasts.
func (j *job) attempt(ctx context.Context, w work) error {
	defer j.while(ctx)()
	if err := j.prepareTable(ctx, w); err != nil {
		return err
	}
	return j.copyPart(ctx, w)
}

// mend makes both sessions fit for the next part. When one of them was lost, another
// must be had, and the snapshot with it: else it was no matter of one table.
func (j *job) mend(ctx context.Context) error {
	stop := j.while(ctx)
	if j.session.rollback() != nil || !j.session.usable() {
		j.closeSession()
	}
	if j.reader.End() != nil {
		j.closeReader()
	}
	stop()
	if j.session != nil && j.reader != nil {
		return nil
	}
	if err := j.open(ctx); err != nil {
		return err
	}
	defer j.while(ctx)()
	if err := j.reader.Begin(j.Snapshot); err != nil {
		return err
	}
	return j.reader.End()
}

// enter begins a part of the table, unless the table is given up.
func (t *table) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running++
	return t.fault == nil
}

// leave ends a part. The last one to leave a table that failed tells the Recorder, and
// the last part of one that came in several says that it is complete.
func (j *job) leave(ctx context.Context, t *table, fault error) error {
	t.mu.Lock()
	t.running--
	if t.fault == nil {
		t.fault = fault
	}
	if t.fault == nil {
		t.open--
	}
	fault = t.fault
	over := !t.told && (fault != nil && t.running == 0 || fault == nil && t.open == 0)
	t.told = t.told || over
	t.mu.Unlock()
	switch {
	case !over:
		return nil
	case fault != nil:
		return j.giveUp(ctx, t, fault)
	}
	return j.finish(ctx, t)
}

// prepareTable does once for each table what comes before its rows.
func (j *job) prepareTable(ctx context.Context, w work) error {
	t := w.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun || t.fault != nil {
		return t.fault
	}
	t.progress.update(func(p *TableProgress) { p.Started = time.Now() })
	if err := j.State.Starting(ctx, t.Table, t.parts); err != nil {
		return &RecorderError{Err: err}
	}
	if j.Indexes != nil {
		if err := j.deferIndexes(ctx, t); err != nil {
			return tableFault(t, err)
		}
	}
	if t.clean && t.parts > 1 {
		if err := j.empty(t); err != nil {
			return tableFault(t, err)
		}
		t.clean = false
	}
	t.begun = true
	return nil
}

// tableFault leaves errors that concern all tables as they are.
func tableFault(t *table, err error) error {
	if serious(err) {
		return err
	}
	return failed(t.Table, nil, Target, err)
}

// empty removes the rows of a table in a transaction of its own.
func (j *job) empty(t *table) error {
	if err := j.session.begin(); err != nil {
		return err
	}
	if err := j.session.exec(t.cleanSQL()); err != nil {
		return err
	}
	return j.session.commit(false)
}

// cleanSQL removes all rows. A foreign key of another table forbids TRUNCATE, and is not
// checked for DELETE in a session that replicates. Either waits for prepared transactions
// that have written to the table: their rows would come afterwards.
func (t *table) cleanSQL() string {
	only := "ONLY "
	if t.local.kind == "p" {
		only = ""
	}
	if t.local.referenced {
		name := only + quote(t.Schema, t.Name)
		return "LOCK TABLE " + name + " IN SHARE ROW EXCLUSIVE MODE; DELETE FROM " + name
	}
	return "TRUNCATE " + only + quote(t.Schema, t.Name)
}

// copyPart copies a part in a transaction on either end. That of a table in one part
// also says that it is complete.
func (j *job) copyPart(ctx context.Context, w work) error {
	t, p := w.table, w.part
	if err := j.reader.Begin(j.Snapshot); err != nil {
		if serious(err) {
			return err
		}
		return failed(t.Table, &p, Publisher, err)
	}
	if err := j.reader.Pin(p.table, p.oid, p.partitioned); err != nil {
		return failed(t.Table, &p, Publisher, err)
	}
	if err := j.session.begin(); err != nil {
		return failed(t.Table, &p, Target, err)
	}
	if t.clean {
		if err := j.session.exec(t.cleanSQL()); err != nil {
			return failed(t.Table, &p, Target, err)
		}
	}
	carry := j.pipe
	if len(t.published.Columns) == 0 {
		carry = j.repeat
	}
	rows, bytes, err := carry(t, &p)
	if err != nil {
		return err
	}
	if err := j.reader.End(); err != nil {
		return failed(t.Table, &p, Publisher, err)
	}
	t.mu.Lock()
	t.rows += rows
	t.bytes += bytes
	t.mu.Unlock()
	if t.parts == 1 {
		if err := j.copied(ctx, t); err != nil {
			return err
		}
	}
	if err := j.session.commit(t.parts == 1); err != nil {
		return failed(t.Table, &p, Target, err)
	}
	t.progress.update(func(p *TableProgress) { p.PartsDone++ })
	return nil
}

// pipe carries the rows over. What failed first is the reason, whatever it brought about
// at the other end.
func (j *job) pipe(t *table, p *part) (rows, bytes int64, err error) {
	if err := j.reader.Copy(p.copyOut(t.published, t.binary)); err != nil {
		return 0, 0, failed(t.Table, p, Publisher, err)
	}
	var counted int64 // like bytes, under the lock of the progress
	data := readAhead(j.reader, j.buffers, func(rows, n int64) {
		t.progress.update(func(p *TableProgress) {
			counted, bytes = counted+rows, bytes+n
			p.Rows, p.Bytes = p.Rows+rows, p.Bytes+n
		})
	})
	taken, err := j.session.copyFrom(copyIn(t.published, t.binary), data, data.giveUp)
	cause := data.finish(err == nil)
	j.buffers = nil
	if err != nil {
		t.progress.update(func(p *TableProgress) { p.Rows, p.Bytes = p.Rows-counted, p.Bytes-bytes })
		if !errors.Is(cause, errNoMore) && !errors.Is(cause, io.EOF) {
			return 0, 0, failed(t.Table, p, Publisher, cause)
		}
		return 0, 0, failed(t.Table, p, Target, err)
	}
	j.buffers = data.buffers()
	rows = j.reader.Rows()
	t.progress.update(func(p *TableProgress) { p.Rows += rows - counted })
	if taken != rows {
		j.Log.Warn("the target has taken another number of rows than the publisher sent: a trigger may leave some out",
			zap.String("schema", t.Schema), zap.String("table", t.Name), zap.Int64("sent", rows), zap.Int64("taken", taken))
	}
	return rows, bytes, nil
}

// repeat makes as many rows as there are, of a table that is published without columns.
func (j *job) repeat(t *table, p *part) (rows, bytes int64, err error) {
	answer, err := j.reader.Query(p.count(t.published))
	if err != nil {
		return 0, 0, failed(t.Table, p, Publisher, err)
	}
	if rows, err = strconv.ParseInt(string(answer[0][0]), 10, 64); err != nil {
		return 0, 0, failed(t.Table, p, Publisher, err)
	}
	if err := j.session.exec(insert(t.published, rows)); err != nil {
		return 0, 0, failed(t.Table, p, Target, err)
	}
	t.progress.update(func(p *TableProgress) { p.Rows += rows })
	return rows, 0, nil
}

// copied tells the Recorder within the open transaction.
func (j *job) copied(ctx context.Context, t *table) error {
	t.mu.Lock()
	rows, bytes := t.rows, t.bytes
	t.mu.Unlock()
	err := j.record(func(exec Exec) error { return j.State.Copied(ctx, t.Table, rows, bytes, exec) })
	if err != nil {
		return tableFault(t, err)
	}
	return nil
}

// finish does what comes after the rows of a table.
func (j *job) finish(ctx context.Context, t *table) error {
	if t.parts > 1 {
		if err := j.complete(ctx, t); err != nil {
			return j.incomplete(ctx, t, err)
		}
	}
	if j.Analyze {
		j.analyze(ctx, t)
	}
	t.progress.update(func(p *TableProgress) { p.Finished = time.Now() })
	return nil
}

// incomplete: all rows are there, and that could not be recorded.
func (j *job) incomplete(ctx context.Context, t *table, fault error) error {
	if err := ctx.Err(); err != nil || serious(fault) {
		t.mu.Lock()
		t.told = false
		t.mu.Unlock()
		return cmp.Or(context.Cause(ctx), fault)
	}
	if err := j.mend(ctx); err != nil {
		return err
	}
	return j.giveUp(ctx, t, failed(t.Table, nil, Target, fault))
}

// analyze does no harm where it fails: autovacuum will do it.
func (j *job) analyze(ctx context.Context, t *table) {
	defer j.while(ctx)()
	err := j.session.exec("ANALYZE " + quote(t.Schema, t.Name))
	if err == nil || ctx.Err() != nil {
		return
	}
	if !j.session.usable() {
		j.closeSession()
	}
	j.Log.Warn("a table was copied and not analyzed", zap.String("schema", t.Schema), zap.String("table", t.Name), zap.Error(err))
}

// complete records that all parts of a table are there.
func (j *job) complete(ctx context.Context, t *table) error {
	defer j.while(ctx)()
	if err := j.session.begin(); err != nil {
		return err
	}
	if err := j.copied(ctx, t); err != nil {
		return err
	}
	return j.session.commit(true)
}
