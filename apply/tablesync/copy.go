package tablesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"pgapply/apply/target"
	"pgapply/internal/source"
)

// Summary is what became of the tables, in the order in which they were given.
type Summary struct{ Tables []Result }

// Result is what became of one table.
type Result struct {
	Table Table
	// Copied tells that it is complete, and that the Recorder has heard so.
	Copied bool
	// Rows and Bytes as they came from the publisher, Parts in which they came, and
	// whether in binary form.
	Rows, Bytes int64
	Parts       int
	Binary      bool
	Duration    time.Duration
	// Err is why the table was given up, a *TableError. A table that is neither copied nor
	// given up was not finished when what concerns all of them ended the copy.
	Err error
}

// Copy copies the tables and returns when all are copied or given up. The error is for
// what concerns all tables: the servers cannot be reached, the snapshot is lost
// ([ErrSnapshotLost]), a later runner has taken over (*target.LaterRunnerError), the
// Recorder refuses (*[RecorderError]), or ctx has ended. Nothing half-copied is visible
// then, except of tables that are recorded as started in several parts.
func Copy(ctx context.Context, o Options, tables []Table, progress *Progress) (Summary, error) {
	if err := o.validate(); err != nil {
		return Summary{}, fmt.Errorf("copy tables: %w", err)
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	c := &copying{Options: o}
	for _, t := range tables {
		c.tables = append(c.tables, &table{Table: t, clean: t.Clean == Truncate, progress: progress.add(t)})
	}
	err := c.run(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if _, ok := errors.AsType[*source.SnapshotLostError](err); ok {
		err = fmt.Errorf("%w: %w", ErrSnapshotLost, err)
	}
	return c.summary(), err
}

// copying is one call of Copy.
type copying struct {
	Options
	tables []*table
	queue  queue
}

// table is one that is copied.
type table struct {
	Table
	progress  *progress
	published *source.CopyTable
	local     *local
	binary    bool
	parts     int

	mu sync.Mutex
	// begun is set once the first part has done what comes before all of them, after which
	// clean tells whether the rows that the target has are still to be removed.
	begun, clean bool
	// open counts the parts that are not done, in work or waiting; running those in work.
	open, running int
	rows, bytes   int64
	// fault is why the table is given up: no more parts of it are begun.
	fault error
	// told is set when the Recorder has heard how it ended.
	told bool
}

// queue hands out the parts, those of large tables first: so that the jobs end together.
type queue struct {
	mu    sync.Mutex
	parts []work
}

type work struct {
	table *table
	part  part
}

func (q *queue) next() (work, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.parts) == 0 {
		return work{}, false
	}
	next := q.parts[0]
	q.parts = q.parts[1:]
	return next, true
}

func (c *copying) run(ctx context.Context) error {
	if len(c.tables) == 0 {
		return nil
	}
	first := &job{copying: c}
	defer first.close()
	if err := first.open(ctx); err != nil {
		return err
	}
	if err := c.plan(ctx, first); err != nil {
		return err
	}
	jobs, ctx := errgroup.WithContext(ctx)
	for number := range min(c.Jobs, len(c.queue.parts)) {
		j := first
		if number > 0 {
			j = &job{copying: c, number: number}
		}
		jobs.Go(func() error {
			defer j.close()
			return j.run(ctx)
		})
	}
	return jobs.Wait()
}

// plan describes the tables on both ends and divides them.
func (c *copying) plan(ctx context.Context, j *job) error {
	defer j.while(ctx)()
	wanted := make([]source.Table, len(c.tables))
	names := make([]Table, len(c.tables))
	for i, t := range c.tables {
		wanted[i] = source.Table{Schema: t.Schema, Name: t.Name}
		names[i] = t.Table
	}
	if err := j.reader.Begin(c.Snapshot); err != nil {
		return err
	}
	published, faults, err := j.reader.CopyTables(c.Publications, wanted)
	if err != nil {
		return err
	}
	if err := j.reader.End(); err != nil {
		return fmt.Errorf("describe the published tables: %w", err)
	}
	found, err := locals(j.session, names)
	if err != nil {
		return err
	}
	byName := make(map[source.Table]*source.CopyTable, len(published))
	for _, table := range published {
		byName[table.Table] = table
	}
	for _, t := range c.tables {
		name := source.Table{Schema: t.Schema, Name: t.Name}
		t.published, t.local = byName[name], found[Table{Schema: t.Schema, Name: t.Name}]
		fault := c.prepare(t)
		for _, lists := range faults {
			if lists.Table == name {
				fault = failed(t.Table, nil, Publisher, lists)
			}
		}
		if fault != nil {
			if err := c.giveUp(ctx, t, fault); err != nil {
				return err
			}
		}
	}
	slices.SortStableFunc(c.queue.parts, func(a, b work) int {
		return -cmp.Compare(a.table.published.Bytes, b.table.published.Bytes)
	})
	return nil
}

// prepare queues the parts of a table, or says why it cannot be copied.
func (c *copying) prepare(t *table) error {
	if t.published == nil {
		return &TableError{
			Table: t.Table, Side: Publisher, Err: errors.New("it is not published, or was dropped"),
			Hint: "add it to a publication, then refresh",
		}
	}
	if err := fit(t.Table, t.published, t.local); err != nil {
		return failed(t.Table, nil, Target, err)
	}
	t.binary = c.Binary && sameBinary(t.published, t.local)
	limit := c.SplitLargerThan
	if t.Whole {
		limit = 0
	}
	parts := split(t.published, limit)
	t.parts, t.open = len(parts), len(parts)
	for _, p := range parts {
		c.queue.parts = append(c.queue.parts, work{table: t, part: p})
	}
	t.progress.update(func(p *TableProgress) {
		p.Parts, p.EstimatedRows, p.DiskBytes = t.parts, t.published.Rows, t.published.Bytes
	})
	return nil
}

// giveUp records that a table is not copied.
func (c *copying) giveUp(ctx context.Context, t *table, fault error) error {
	t.mu.Lock()
	t.fault, t.told = fault, true
	t.mu.Unlock()
	t.progress.update(func(p *TableProgress) { p.Err, p.Finished = fault, time.Now() })
	fields := []zap.Field{zap.String("schema", t.Schema), zap.String("table", t.Name), zap.Error(fault)}
	if typed, ok := errors.AsType[*TableError](fault); ok && typed.Hint != "" {
		fields = append(fields, zap.String("hint", typed.Hint))
	}
	c.Log.Error("a table was not copied", fields...)
	if err := c.State.Failed(ctx, t.Table, fault); err != nil {
		return &RecorderError{Err: err}
	}
	return nil
}

func (c *copying) summary() Summary {
	var s Summary
	for _, t := range c.tables {
		t.mu.Lock()
		result := Result{Table: t.Table, Rows: t.rows, Bytes: t.bytes, Parts: t.parts, Binary: t.binary}
		if t.told {
			result.Err, result.Copied = t.fault, t.fault == nil
		}
		t.mu.Unlock()
		t.progress.update(func(p *TableProgress) {
			if !p.Started.IsZero() && !p.Finished.IsZero() {
				result.Duration = p.Finished.Sub(p.Started)
			}
		})
		s.Tables = append(s.Tables, result)
	}
	return s
}

// serious tells errors that concern all tables from those of one. A lost connection is
// of one table as long as another can be had.
func serious(err error) bool {
	_, snapshot := errors.AsType[*source.SnapshotLostError](err)
	_, recorder := errors.AsType[*RecorderError](err)
	_, later := errors.AsType[*target.LaterRunnerError](err)
	return snapshot || recorder || later
}
