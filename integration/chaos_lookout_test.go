package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// lookout looks at both servers while a round runs, by sessions of its own and without
// anything of pgapply's, and keeps what it saw for judge.
type lookout struct {
	c       *chaos
	ended   chan struct{}
	once    sync.Once
	task    sync.WaitGroup
	samples []sample // the task's, until it has ended
}

// observe makes the slot that will tell the publisher's order of commits, before the
// load begins, and starts to look.
func (c *chaos) observe() {
	c.onSource(`CREATE PUBLICATION seen FOR TABLE ledger`, `SELECT pg_create_logical_replication_slot('seen_' || current_database(), 'pgoutput')`)
	o := &lookout{c: c, ended: make(chan struct{})}
	c.lookout = o
	ctx, cancel := context.WithCancel(context.Background())
	o.task.Go(func() { o.run(ctx) })
	c.t.Cleanup(func() {
		cancel()
		o.task.Wait()
	})
}

// lookPause is how often it looks.
const lookPause = 60 * time.Millisecond

func (o *lookout) run(ctx context.Context) {
	var publisher, target *pgconn.PgConn
	defer func() {
		hangUp(publisher)
		hangUp(target)
	}()
	ticker := time.NewTicker(lookPause)
	defer ticker.Stop()
	for last := false; ; {
		s := sample{at: time.Since(o.c.began)}
		publisher = o.ask(ctx, publisher, o.c.source, `SELECT pg_postmaster_start_time(), confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '`+o.c.name+`'`, func(row [][]byte) error {
			s.publisher = string(row[0])
			return position(&s.confirmed, row[1])
		})
		target = o.ask(ctx, target, o.c.target, `SELECT pg_postmaster_start_time(),
				(SELECT max(position) FROM pgapply.progress WHERE gid IS NULL),
				(SELECT state = 'r' FROM pgapply.subscription_table WHERE table_name = 'ledger'),
				(SELECT string_agg(concat_ws(' ', writer, number, backend, runner), ',') FROM ledger)`, func(row [][]byte) (err error) {
			s.target, s.ready = string(row[0]), string(row[2]) == "t"
			if s.ledger, err = readLedger(string(row[3])); err != nil {
				return err
			}
			return position(&s.progress, row[1])
		})
		o.samples = append(o.samples, s)
		if last || ctx.Err() != nil {
			return
		}
		select {
		case <-ticker.C:
		case <-o.ended:
			last = true
		}
	}
}

// ask reads one row, if the server can be asked, and returns the session for the next
// question.
func (o *lookout) ask(ctx context.Context, conn *pgconn.PgConn, uri, sql string, read func([][]byte) error) *pgconn.PgConn {
	// A server that is being killed may leave an answer open.
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error
	if conn == nil {
		if conn, err = pgconn.Connect(bounded, uri); err != nil {
			return nil
		}
	}
	results, err := conn.Exec(bounded, sql).ReadAll()
	if err == nil && len(results[0].Rows) == 1 {
		if err := read(results[0].Rows[0]); err != nil {
			o.c.t.Errorf("%s: %v", sql, err)
		}
		return conn
	}
	if err != nil {
		hangUp(conn)
		return nil
	}
	return conn
}

// end takes a last look, at the first time, and returns all.
func (o *lookout) end() []sample {
	o.once.Do(func() { close(o.ended) })
	o.task.Wait()
	return o.samples
}

func position(into *lsn.LSN, text []byte) (err error) {
	if text != nil {
		*into, err = lsn.Parse(string(text))
	}
	return err
}

func readLedger(text string) (ledger []ledgerRow, err error) {
	if text == "" {
		return nil, nil
	}
	for row := range strings.SplitSeq(text, ",") {
		var w ledgerRow
		if n, err := fmt.Sscan(row, &w.writer, &w.number, &w.backend, &w.runner); n < 3 {
			return nil, fmt.Errorf("row %q of the ledger: %w", row, err)
		}
		ledger = append(ledger, w)
	}
	return ledger, nil
}

// order reads what the publisher has committed, in its order.
func (o *lookout) order(ctx context.Context) (order []committed, err error) {
	conn, err := pgconn.Connect(ctx, o.c.source)
	if err != nil {
		return nil, err
	}
	defer hangUp(conn)
	rows := conn.ExecParams(ctx, `SELECT data FROM pg_logical_slot_get_binary_changes('seen_' || current_database(), NULL, NULL, 'proto_version', '1', 'publication_names', 'seen')`,
		nil, nil, nil, []int16{1}).Read() // in binary
	if rows.Err != nil {
		return nil, rows.Err
	}
	var d decoder.Decoder
	var open []committed
	for _, row := range rows.Rows {
		message, err := d.Decode(row[0])
		if err != nil {
			return nil, err
		}
		switch m := message.(type) {
		case *decoder.Insert:
			c := committed{prepared: string(m.New[2].Data) == "prepared"}
			if _, err := fmt.Sscan(string(m.New[0].Data)+" "+string(m.New[1].Data), &c.writer, &c.number); err != nil {
				return nil, err
			}
			open = append(open, c)
		case *decoder.Commit:
			for i := range open {
				open[i].end = m.EndLSN
			}
			order, open = append(order, open...), nil
		}
	}
	return order, nil
}
