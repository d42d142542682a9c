package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// chaosTables are the tables of a round, on both ends. On the target the ledger has
// columns of its own, which say what wrote each row.
func chaosTables() []string {
	return []string{
		`CREATE TABLE ledger (writer int, number int, kind text)`,
		`CREATE TABLE counter (id int PRIMARY KEY, n bigint)`,
		`CREATE TABLE toasted (id int PRIMARY KEY, n int, big text, other text)`,
		`ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL`,
		`CREATE TABLE whole (a int, b text, c numeric)`,
		`ALTER TABLE whole REPLICA IDENTITY FULL`,
		`CREATE TABLE swap (id int PRIMARY KEY, code int UNIQUE)`,
		`CREATE TABLE moving (id int PRIMARY KEY, v text)`,
		`CREATE TABLE wiped (writer int, number int, PRIMARY KEY (writer, number))`,
		`CREATE TABLE bulk (writer int, number int, n int, text text, PRIMARY KEY (writer, number, n))`,
		`CREATE TABLE parked (id int PRIMARY KEY, n int)`,
		`CREATE TABLE grown (id int PRIMARY KEY, v text)`,
	}
}

// chaosRows are what the publisher's tables hold when a round begins.
func chaosRows() []string {
	return []string{
		`INSERT INTO counter SELECT g, 0 FROM generate_series(0, 3) g`,
		`INSERT INTO toasted SELECT g, 0, repeat(md5(g::text), 200), repeat(md5((-g)::text), 200) FROM generate_series(1, 39) g`,
		`INSERT INTO swap SELECT g, g FROM generate_series(0, 7) g`,
		`INSERT INTO moving SELECT g, md5(g::text) FROM generate_series(8, 71) g`,
		`INSERT INTO whole SELECT g % 8, 'x' || g % 3, 1.0 FROM generate_series(1, 40) g`,
		`INSERT INTO parked SELECT g, 0 FROM generate_series(0, 3) g`,
	}
}

// chaosLoad writes to the publisher whatever becomes of it. Each of its transactions, a
// unit, puts one row into the ledger, which tells it from all others: a unit that a
// crash interrupts is not done again, and the next one has another number.
type chaosLoad struct {
	c       *chaos
	units   chan struct{} // still to be done
	ending  chan struct{}
	writers sync.WaitGroup
	once    sync.Once

	columns atomic.Int32 // that table grown has got
	tables  atomic.Int32 // that were added
	streams atomic.Int32 // units large enough to be streamed
}

// begin starts the load. It ends with the test at the latest.
func (c *chaos) begin() {
	l := &chaosLoad{c: c, units: make(chan struct{}, 1<<16), ending: make(chan struct{})}
	c.load = l
	ctx, cancel := context.WithCancel(context.Background())
	for i := range c.plan.writers {
		w := &chaosWriter{chaosLoad: l, id: i, random: rand.New(rand.NewPCG(c.plan.seed, uint64(1+i)))}
		l.writers.Go(func() { w.run(ctx) })
	}
	l.writers.Go(func() { l.change(ctx, rand.New(rand.NewPCG(c.plan.seed, 100))) })
	c.t.Cleanup(func() {
		cancel()
		l.writers.Wait()
	})
}

// issue gives the writers more to do. They do not go on for as long as something lasts: a
// slow machine would have the more to do.
func (l *chaosLoad) issue(units int) {
	for range units {
		l.units <- struct{}{}
	}
}

// end waits until all has come to an end that was begun.
func (l *chaosLoad) end() {
	l.once.Do(func() { close(l.ending) })
	l.writers.Wait()
}

// rest waits, and reports false when the load is to end.
func (l *chaosLoad) rest(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ending:
		return false
	case <-ctx.Done():
		return false
	}
}

// chaosWriter is one of the load's sessions. The rows that it changes are its own, but
// for the counters.
type chaosWriter struct {
	*chaosLoad
	id, number int
	random     *rand.Rand
	conn       *pgconn.PgConn
	parked     string // the prepared transaction that it has open, if any
}

func (w *chaosWriter) run(ctx context.Context) {
	defer func() { hangUp(w.conn) }()
	for w.rest(ctx, time.Duration(w.random.ExpFloat64()*20)*time.Millisecond) {
		// What is prepared keeps others waiting: it does not wait for work.
		late := make(<-chan time.Time)
		if w.parked != "" {
			late = time.After(200 * time.Millisecond)
		}
		select {
		case <-w.units:
			_ = w.note(w.unit(ctx)) // the next one is another
		case <-late:
			_ = w.note(w.decide(ctx))
		case <-w.ending:
		case <-ctx.Done():
		}
	}
	// What is prepared has to come to an end, too.
	for ctx.Err() == nil && w.note(w.decide(ctx)) != nil {
		pause(ctx, 50*time.Millisecond)
	}
}

// note ends the session after an error. Those of a server that goes down, or of
// sessions that are in each other's way, are to be expected.
func (w *chaosWriter) note(err error) error {
	if err == nil {
		return nil
	}
	hangUp(w.conn)
	w.conn = nil
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains([]string{"57", "08", "40"}, refusal.Code[:2]) {
		w.c.t.Errorf("writer %d: %v", w.id, err)
	}
	return err
}

func (w *chaosWriter) exec(ctx context.Context, sql ...string) (err error) {
	if w.conn == nil {
		if w.conn, err = pgconn.Connect(ctx, w.c.source); err != nil {
			w.conn = nil
			pause(ctx, 50*time.Millisecond)
			return err
		}
		if err := w.lookUp(ctx); err != nil {
			return err
		}
	}
	for _, statement := range sql {
		if _, err := w.conn.Exec(ctx, statement).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// lookUp finds out what became of a PREPARE or of its end when the session was lost.
func (w *chaosWriter) lookUp(ctx context.Context) error {
	rows, err := w.conn.Exec(ctx, fmt.Sprintf(`SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'w%d!_%%' ESCAPE '!'`, w.id)).ReadAll()
	if err != nil {
		return err
	}
	w.parked = ""
	if len(rows[0].Rows) > 0 {
		w.parked = string(rows[0].Rows[0][0])
	}
	return nil
}

// unit is one transaction, or a part of a prepared one.
func (w *chaosWriter) unit(ctx context.Context) error {
	if err := w.exec(ctx); err != nil { // now it is known whether anything is prepared
		return err
	}
	if w.parked != "" && w.random.IntN(4) == 0 {
		return w.decide(ctx)
	}
	w.number++
	switch kind := w.random.IntN(60); {
	case kind == 0:
		return w.exec(ctx, w.streamed()...)
	case kind < 5 && w.parked == "":
		return w.prepare(ctx)
	case kind == 5:
		return w.exec(ctx, fmt.Sprintf(`BEGIN; %s; TRUNCATE wiped; INSERT INTO wiped VALUES (%d, %d); COMMIT`, w.sign("truncate"), w.id, w.number))
	case kind < 10:
		s := w.some()
		return w.exec(ctx, `BEGIN`, w.sign("subtransactions"), `SAVEPOINT a`, s(), `SAVEPOINT b`, s(), pick(w.random, `ROLLBACK TO a`, `ROLLBACK TO b`, `RELEASE b`), s(), `COMMIT`)
	default:
		s := w.some()
		script := []string{`BEGIN`, w.sign("plain")}
		for range 1 + w.random.IntN(3) {
			script = append(script, s())
		}
		return w.exec(ctx, strings.Join(append(script, `COMMIT`), "; "))
	}
}

// sign is what tells the unit from all others.
func (w *chaosWriter) sign(kind string) string {
	return fmt.Sprintf(`INSERT INTO ledger VALUES (%d, %d, '%s')`, w.id, w.number, kind)
}

// some draws changes of few rows.
func (w *chaosWriter) some() func() string {
	n := func(in int) int { return w.random.IntN(in) }
	return func() string {
		toasted := fmt.Sprintf(`abs(id) = %d`, 1+w.id*10+n(9))
		whole := fmt.Sprintf(`ctid = (SELECT ctid FROM whole WHERE a = %d ORDER BY b, c, ctid OFFSET %d LIMIT 1)`, w.id, n(8))
		sum := 4*w.id + 1
		return []func() string{
			func() string { return fmt.Sprintf(`UPDATE counter SET n = n + 1 WHERE id = %d`, n(4)) },
			func() string { return `UPDATE toasted SET n = n + 1 WHERE ` + toasted },
			func() string {
				return fmt.Sprintf(`UPDATE toasted SET big = repeat(md5('%d'), %d) WHERE %s`, w.number, n(300), toasted)
			},
			func() string {
				return `UPDATE toasted SET id = -id, other = CASE WHEN n % 3 = 0 THEN NULL ELSE other END WHERE ` + toasted
			},
			func() string {
				return fmt.Sprintf(`INSERT INTO whole VALUES (%d, %s, %s)`, w.id, pick(w.random, `'x0'`, `'x1'`, `NULL`), pick(w.random, `1.0`, `2.5`, `NULL`))
			},
			func() string {
				return fmt.Sprintf(`UPDATE whole SET b = 'x%d', c = %s WHERE %s`, n(3), pick(w.random, `1.0`, `2.5`, `NULL`), whole)
			},
			func() string { return `DELETE FROM whole WHERE ` + whole },
			func() string { // unique values change places, which costs a batch
				if n(4) > 0 {
					return `SELECT`
				}
				both := fmt.Sprintf(`id IN (%d, %d)`, 2*w.id, 2*w.id+1)
				return fmt.Sprintf(`UPDATE swap SET code = -1 - code WHERE %s; UPDATE swap SET code = %d + code WHERE %s`, both, sum+1, both)
			},
			func() string { // one is handed to another row, by another transaction
				if w.number%2 == 0 {
					return fmt.Sprintf(`DELETE FROM swap WHERE code = %d`, 1000+w.id)
				}
				return fmt.Sprintf(`INSERT INTO swap SELECT %d, %d WHERE NOT EXISTS (SELECT FROM swap WHERE code = %d) ON CONFLICT DO NOTHING`,
					10_000*(w.id+1)+w.number, 1000+w.id, 1000+w.id)
			},
			func() string {
				return fmt.Sprintf(`UPDATE moving SET id = -id, v = '%d' WHERE abs(id) = %d`, w.number, 8*(1+n(8))+w.id)
			},
			func() string {
				id := 8*(1+n(8)) + w.id
				return fmt.Sprintf(`DELETE FROM moving WHERE abs(id) = %d; INSERT INTO moving VALUES (%d, 'again')`, id, id)
			},
			func() string {
				return fmt.Sprintf(`INSERT INTO wiped VALUES (%d, %d) ON CONFLICT DO NOTHING`, w.id, w.number)
			},
			func() string {
				id := 10_000*(w.id+1) + w.number
				if columns := w.columns.Load(); columns > 0 {
					return fmt.Sprintf(`INSERT INTO grown (id, v, c%d) VALUES (%d, 'v', 'new') ON CONFLICT (id) DO UPDATE SET c%d = 'changed'`, columns, id, columns)
				}
				return fmt.Sprintf(`INSERT INTO grown VALUES (%d, 'v') ON CONFLICT DO NOTHING`, id)
			},
			func() string {
				if tables := w.tables.Load(); tables > 0 {
					return fmt.Sprintf(`INSERT INTO extra%d VALUES (%d, 'v') ON CONFLICT (id) DO UPDATE SET v = 'w'`, 1+n(int(tables)), 10_000*(w.id+1)+n(50))
				}
				return `SELECT`
			},
		}[n(14)]()
	}
}

// many is so many rows that the publisher streams them.
func (w *chaosWriter) many() []string {
	w.streams.Add(1)
	n, kept := 300+w.random.IntN(500), w.random.IntN(3)
	insert := func(from, to int) string {
		return fmt.Sprintf(`INSERT INTO bulk SELECT %d, %d, g, md5(g::text) FROM generate_series(%d, %d) g`, w.id, w.number, from, to)
	}
	mine := fmt.Sprintf(`writer = %d AND number = %d`, w.id, w.number)
	script := []string{insert(1, n), `SAVEPOINT a`, insert(n+1, 2*n)}
	switch kept {
	case 0:
		script = append(script, `ROLLBACK TO a`, insert(n+1, n+n/2))
	case 1:
		script = append(script, `SAVEPOINT b`, fmt.Sprintf(`UPDATE bulk SET text = 'changed' WHERE %s AND n %% 3 = 0`, mine), `RELEASE a`)
	}
	return append(script, fmt.Sprintf(`DELETE FROM bulk WHERE %s AND n %% 7 = 0`, mine))
}

func (w *chaosWriter) streamed() []string {
	script := append([]string{`BEGIN`}, w.many()...)
	return append(append(script, w.sign("streamed")), pick(w.random, `COMMIT`, `COMMIT`, `ROLLBACK`))
}

// prepare leaves a prepared transaction, which holds only rows that no other unit wants.
func (w *chaosWriter) prepare(ctx context.Context) error {
	script := []string{`BEGIN`, w.sign("prepared"), fmt.Sprintf(`UPDATE parked SET n = n + 1 WHERE id = %d`, w.id)}
	if w.random.IntN(3) == 0 {
		script = append(script, w.many()...)
	}
	gid := fmt.Sprintf("w%d_%d", w.id, w.number)
	err := w.exec(ctx, append(script, `PREPARE TRANSACTION '`+gid+`'`)...)
	if err == nil {
		w.parked = gid
	}
	return err
}

// decide ends the prepared transaction.
func (w *chaosWriter) decide(ctx context.Context) error {
	if err := w.exec(ctx); err != nil || w.parked == "" {
		return err
	}
	err := w.exec(ctx, pick(w.random, `COMMIT PREPARED`, `COMMIT PREPARED`, `ROLLBACK PREPARED`)+` '`+w.parked+`'`)
	if err == nil {
		w.parked = ""
	}
	return err
}

// change changes the tables now and then: it adds columns, to the target first, and
// tables.
func (l *chaosLoad) change(ctx context.Context, random *rand.Rand) {
	for n := 1; l.rest(ctx, time.Duration(200+random.IntN(1500))*time.Millisecond); n++ {
		if random.IntN(3) > 0 {
			column := l.columns.Load() + 1
			add := fmt.Sprintf(`ALTER TABLE grown ADD COLUMN IF NOT EXISTS c%d text`, column)
			l.insist(ctx, l.c.target, add)
			l.insist(ctx, l.c.source, add)
			l.columns.Store(column)
			continue
		}
		table := l.tables.Load() + 1
		create := fmt.Sprintf(`CREATE TABLE IF NOT EXISTS extra%d (id int PRIMARY KEY, v text)`, table)
		l.insist(ctx, l.c.target, create)
		l.insist(ctx, l.c.source, create, fmt.Sprintf(`INSERT INTO extra%d SELECT g, 'old' FROM generate_series(1, 100) g ON CONFLICT DO NOTHING`, table),
			fmt.Sprintf(`DO $$ BEGIN ALTER PUBLICATION p ADD TABLE extra%d; EXCEPTION WHEN duplicate_object THEN NULL; END $$`, table))
		l.tables.Store(table)
		if !slices.Contains(l.c.plan.flags, "--auto-refresh") {
			l.c.refresh(ctx)
		}
	}
}

// insist runs SQL until it succeeds: its server may be down. What it runs may be run
// again.
func (l *chaosLoad) insist(ctx context.Context, uri string, sql ...string) {
	for ctx.Err() == nil {
		conn, err := pgconn.Connect(ctx, uri)
		for _, statement := range sql {
			if err == nil {
				_, err = conn.Exec(ctx, statement).ReadAll()
			}
		}
		hangUp(conn)
		if err == nil {
			return
		}
		if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains([]string{"57", "08", "40"}, refusal.Code[:2]) {
			l.c.t.Errorf("%s: %v", sql, err)
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// hangUp closes a connection, if there is one.
func hangUp(conn *pgconn.PgConn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	<-conn.CleanupDone()
}

// pause waits: chaos comes at times that were drawn, not when it suits.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
