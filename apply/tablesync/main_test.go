package tablesync

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
	"pgapply/internal/source"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// recorder keeps what it hears, in words, and what is recorded with the rows in table
// done of the target.
type recorder struct {
	mu    sync.Mutex
	heard []string
	// hooks, called where they are not nil
	starting func(Table) error
	copied   func(Table) error
}

func (r *recorder) say(format string, arguments ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, fmt.Sprintf(format, arguments...))
}

func (r *recorder) Starting(_ context.Context, table Table, parts int) error {
	r.say("starting %s in %d", table, parts)
	if r.starting != nil {
		return r.starting(table)
	}
	return nil
}

func (r *recorder) Copied(_ context.Context, table Table, rows, _ int64, exec Exec) error {
	r.say("copied %s %d rows", table, rows)
	if r.copied != nil {
		if err := r.copied(table); err != nil {
			return err
		}
	}
	return exec(`INSERT INTO public.done VALUES ($1)`, table.String())
}

func (r *recorder) Failed(_ context.Context, table Table, err error) error {
	r.say("failed %s: %s", table, err)
	return nil
}

// words returns what was heard of one table.
func (r *recorder) words(table string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var words []string
	for _, line := range r.heard {
		if strings.Contains(line, " "+table+" ") || strings.Contains(line, " "+table+":") {
			words = append(words, line)
		}
	}
	return words
}

// ends are two databases with one publication, and a snapshot of the publisher's.
type ends struct {
	t                 testing.TB
	publisher, target string
	holder            *source.Conn
	recorder          recorder
	options           Options
}

// twoEnds makes the databases on the shared servers.
func twoEnds(t testing.TB) *ends {
	t.Helper()
	publisher, target := pgtest.Shared(t)
	return endsOf(t, pgtest.Database(t, publisher), pgtest.Database(t, target))
}

func endsOf(t testing.TB, publisher, target string) *ends {
	t.Helper()
	e := &ends{t: t, publisher: publisher, target: target}
	pgtest.Exec(t, e.target, `create table done (name text primary key)`)
	e.options = Options{
		Source: e.publisher, Target: e.target, ApplicationName: "copy", Publications: []string{"p"}, Jobs: 2, State: &e.recorder,
	}
	return e
}

// snapshot takes the snapshot that copies see.
func (e *ends) snapshot() {
	e.t.Helper()
	holder, err := source.Connect(e.t.Context(), source.Options{URI: e.publisher})
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = holder.Close() })
	slot, err := holder.CreateSlot(e.t.Context(), source.SlotOptions{Name: "s" + pgtest.Query(e.t, e.publisher, `select oid from pg_database where datname = current_database()`), Temporary: true, Snapshot: source.SnapshotExport})
	require.NoError(e.t, err)
	e.holder, e.options.Snapshot = holder, slot.SnapshotName
}

// copy copies tables of schema public, or those that are qualified.
func (e *ends) copy(names ...string) (Summary, error) {
	e.t.Helper()
	if e.options.Snapshot == "" {
		e.snapshot()
	}
	var tables []Table
	for _, name := range names {
		schema, table, qualified := strings.Cut(name, ".")
		if !qualified {
			schema, table = "public", name
		}
		tables = append(tables, Table{Schema: schema, Name: table})
	}
	return Copy(e.t.Context(), e.options, tables, &Progress{})
}

// both runs SQL on both ends.
func (e *ends) both(sql ...string) {
	e.t.Helper()
	pgtest.Exec(e.t, e.publisher, sql...)
	pgtest.Exec(e.t, e.target, sql...)
}

// same compares what a query gives on both ends.
func (e *ends) same(sql string) {
	e.t.Helper()
	require.Equal(e.t, pgtest.Query(e.t, e.publisher, sql), pgtest.Query(e.t, e.target, sql), sql)
}

func (e *ends) query(sql string) string {
	e.t.Helper()
	return pgtest.Query(e.t, e.target, sql)
}

// copyAgain copies tables that may have rows.
func (e *ends) copyAgain(names ...string) {
	e.t.Helper()
	if e.options.Snapshot == "" {
		e.snapshot()
	}
	pgtest.Exec(e.t, e.target, `truncate done`)
	var tables []Table
	for _, name := range names {
		tables = append(tables, Table{Schema: "public", Name: name, Clean: Truncate})
	}
	summary, err := Copy(e.t.Context(), e.options, tables, &Progress{})
	require.NoError(e.t, err)
	for _, result := range summary.Tables {
		if result.Table.Name != "child" { // not published
			require.NoError(e.t, result.Err)
		}
	}
}
