package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// crashes is how often a test crashes something: few times for everyday use, more
// where PGAPPLY_TEST_CRASHES says so.
func crashes(t *testing.T, few int) int {
	t.Helper()
	value := os.Getenv("PGAPPLY_TEST_CRASHES")
	if value == "" {
		return few
	}
	n, err := strconv.Atoi(value)
	require.NoError(t, err, "PGAPPLY_TEST_CRASHES=%q is not a number", value)
	return n
}

// load is a workload that shows every change which is lost or repeated: a table
// without a key, to which each writer appends rows with numbers of its own, and
// counters, which go up by one in all with each unit of work. It does as much as it
// is given by issue, and no more, so that no test has to wait for what it did not
// need.
type load struct {
	t       *testing.T
	source  string
	do      func(ctx context.Context, conn *pgconn.PgConn, random *rand.Rand, writer int, number *int) error
	units   chan struct{}
	writers sync.WaitGroup
	issued  int

	// outage counts the times that the publisher was taken down; while it is down,
	// back is a channel that will be closed when it is up again.
	outage struct {
		sync.Mutex
		count int
		back  chan struct{}
	}
	rows     atomic.Int64
	streamed atomic.Int64 // transactions large enough to be streamed
}

// loadTables makes the tables of a load, on both ends, and the publication. What
// the publisher decodes does not fit its memory if it is more than a few hundred rows.
func (l *link) loadTables() {
	l.t.Helper()
	l.both(
		`CREATE TABLE entry (writer int, number int, text text)`,
		`CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL)`,
		`INSERT INTO counter SELECT g, 0 FROM generate_series(0, 7) g`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE entry, counter`)
	l.streamEarly()
}

// streamEarly makes the publisher stream transactions from 64 kB on. It reaches the
// sessions that begin afterwards.
func (l *link) streamEarly() {
	l.t.Helper()
	if pgtest.Query(l.t, l.source, `SELECT count(*) FROM pg_settings WHERE name = 'logical_decoding_work_mem'`) == "1" {
		database := pgtest.Query(l.t, l.source, `SELECT quote_ident(current_database())`)
		l.onSource(`ALTER DATABASE ` + database + ` SET logical_decoding_work_mem = '64kB'`)
	}
}

// startLoad starts the writers of a load on the publisher. They end with the test.
func (l *link) startLoad(writers int) *load {
	l.t.Helper()
	w := &load{t: l.t, source: l.source, units: make(chan struct{}, 1<<20)}
	w.do = w.unit
	w.start(writers)
	return w
}

// start lets the writers begin with what was issued.
func (w *load) start(writers int) {
	ctx, cancel := context.WithCancel(context.Background())
	for writer := range writers {
		w.writers.Go(func() { w.write(ctx, writer) })
	}
	w.t.Cleanup(func() {
		cancel()
		w.writers.Wait()
	})
}

// issue gives the writers more units of work.
func (w *load) issue(units int) {
	w.t.Helper()
	w.issued += units
	for range units {
		w.units <- struct{}{}
	}
}

// finish waits until all that was issued is done.
func (w *load) finish() {
	w.t.Helper()
	close(w.units)
	w.writers.Wait()
}

// publisherDown tells the writers that errors are to be expected from now on, and
// publisherUp that the publisher is back.
func (w *load) publisherDown() {
	w.outage.Lock()
	defer w.outage.Unlock()
	w.outage.count++
	w.outage.back = make(chan struct{})
}

func (w *load) publisherUp() {
	w.outage.Lock()
	defer w.outage.Unlock()
	close(w.outage.back)
	w.outage.back = nil
}

func (w *load) outages() (count int, back <-chan struct{}) {
	w.outage.Lock()
	defer w.outage.Unlock()
	return w.outage.count, w.outage.back
}

// write is one writer. A unit that the publisher's crash interrupts is done again:
// whether it was committed does not matter, since both ends are compared.
func (w *load) write(ctx context.Context, writer int) {
	random := rand.New(rand.NewPCG(uint64(writer), 1))
	number := 0
	var conn *pgconn.PgConn
	born := 0 // outages when conn was made
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
			<-conn.CleanupDone()
		}
	}()
	for {
		select {
		case _, more := <-w.units:
			if !more {
				return
			}
		case <-ctx.Done():
			return
		}
		for {
			var err error
			if conn == nil || conn.IsClosed() {
				born, _ = w.outages()
				conn, err = pgconn.Connect(ctx, w.source)
			}
			if err == nil {
				err = w.do(ctx, conn, random, writer, &number)
			}
			if err == nil || ctx.Err() != nil {
				break
			}
			if conn != nil {
				_ = conn.Close(ctx)
				<-conn.CleanupDone()
			}
			count, back := w.outages()
			if count == born && back == nil {
				w.t.Errorf("writer %d of the workload: %v", writer, err)
				return
			}
			if back != nil {
				select {
				case <-back:
				case <-ctx.Done():
				}
			}
		}
	}
}

// unit is one unit of work. Each kind ends with one transaction that is committed
// and adds one to the sum of the counters.
func (w *load) unit(ctx context.Context, conn *pgconn.PgConn, random *rand.Rand, writer int, number *int) error {
	before := *number
	rows := func(n int) string {
		first := *number + 1
		*number += n
		return fmt.Sprintf(`INSERT INTO entry SELECT %d, g, md5(g::text) FROM generate_series(%d, %d) g`, writer, first, *number)
	}
	count := fmt.Sprintf(`UPDATE counter SET n = n + 1 WHERE id = %d`, random.IntN(8))
	few, many := 1+random.IntN(5), 2000+random.IntN(4000)
	var script []string
	switch kind := random.IntN(40); {
	case kind == 0: // streamed
		script = []string{`BEGIN`, rows(many / 2), rows(many / 2), count, `COMMIT`}
	case kind == 1: // streamed, with subtransactions that are lost and kept
		script = []string{
			`BEGIN`, rows(many / 4), `SAVEPOINT a`, rows(many / 2), `SAVEPOINT b`, rows(many / 4), `ROLLBACK TO a`,
			rows(many / 4), `SAVEPOINT c`, rows(many / 4), `RELEASE c`, count, `COMMIT`,
		}
	case kind == 2: // streamed for nothing
		script = []string{`BEGIN`, rows(many), count, `ROLLBACK`, rows(few) + `; ` + count}
	case kind < 8: // neither small nor streamed
		script = []string{rows(300) + `; ` + count}
	default:
		script = []string{rows(few) + `; ` + count}
	}
	if len(script) > 1 {
		w.streamed.Add(1)
	}
	for _, sql := range script {
		if _, err := conn.Exec(ctx, sql).ReadAll(); err != nil {
			return err
		}
	}
	w.rows.Add(int64(*number - before))
	return nil
}

// done is how many units a database shows as done.
func done(t *testing.T, uri string) int {
	t.Helper()
	n, err := strconv.Atoi(pgtest.Query(t, uri, `SELECT sum(n) FROM counter`))
	require.NoError(t, err)
	return n
}

// awaitDone waits until a database shows at least n units as done.
func awaitDone(t *testing.T, uri string, n int) {
	t.Helper()
	pgtest.WaitFor(t, uri, `SELECT sum(n) >= $1 FROM counter`, "t", n)
}

// sameLoad proves that both ends have the same rows, none of them twice.
func (l *link) sameLoad() {
	l.t.Helper()
	l.same(`SELECT * FROM counter ORDER BY id`)
	l.same(`SELECT writer, count(*), count(DISTINCT number), sum(number), md5(string_agg(text, ',' ORDER BY number)) FROM entry GROUP BY 1 ORDER BY 1`)
}
