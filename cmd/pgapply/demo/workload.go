package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

const (
	tellers  = 4
	branches = 10
	accounts = 10_000
	// feeRows is what the one large transaction of a workload writes.
	feeRows = 50_000
	// pause lies between the starts of two transactions of a teller, so that a
	// small machine has something left for replication.
	pause = 2 * time.Millisecond
)

// workload is what the bank's clients do: tellers who work side by side, each on a
// connection of its own, and half-way through one large transaction.
type workload struct {
	uri      string
	duration time.Duration

	committed, rolledBack atomic.Int64
	took                  time.Duration
}

func (w *workload) run(ctx context.Context) error {
	begun := time.Now()
	defer func() { w.took = time.Since(begun) }()
	closing := begun.Add(w.duration)
	clients, ctx := errgroup.WithContext(ctx)
	for number := range tellers {
		clients.Go(func() error {
			return wrap("teller", w.session(ctx, func(ctx context.Context, conn *pgx.Conn) error {
				t := &teller{conn: conn, workload: w, number: number, random: rand.New(rand.NewPCG(1, uint64(number)))}
				return t.work(ctx, closing)
			}))
		})
	}
	clients.Go(func() error {
		timer := time.NewTimer(w.duration / 2)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		return wrap("charge the fees", w.session(ctx, w.chargeFees))
	})
	return clients.Wait()
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// session runs something on a connection of its own to the publisher.
func (w *workload) session(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, w.uri)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	return do(ctx, conn)
}

// transaction sends the statements of one transaction at once.
func (w *workload) transaction(ctx context.Context, conn *pgx.Conn, statements *pgx.Batch, end string) error {
	statements.Queue(end)
	if err := conn.SendBatch(ctx, statements).Close(); err != nil {
		return err
	}
	if end == "ROLLBACK" {
		w.rolledBack.Add(1)
	} else {
		w.committed.Add(1)
	}
	return nil
}

func begin() *pgx.Batch {
	statements := &pgx.Batch{}
	statements.Queue("BEGIN")
	return statements
}

// chargeFees is one large transaction. It takes back a part of what it did, and
// changes and deletes rows of its own.
func (w *workload) chargeFees(ctx context.Context, conn *pgx.Conn) error {
	const insert = `INSERT INTO transfers (debit, credit, amount, details)
		SELECT 1 + i % $2::int, 0, 2.50, '{"kind": "fee"}' FROM generate_series(1, $1::int) i`
	s := begin()
	s.Queue(insert, feeRows, accounts)
	s.Queue("SAVEPOINT twice")
	s.Queue(insert, feeRows/5, accounts)
	s.Queue("ROLLBACK TO twice")
	s.Queue("UPDATE transfers SET amount = 0, details = details || '{\"waived\": true}' WHERE credit = 0 AND id % 4 = 0")
	s.Queue("DELETE FROM transfers WHERE credit = 0 AND id % 10 = 0")
	return w.transaction(ctx, conn, s, "COMMIT")
}

// teller is one client of the publisher.
type teller struct {
	conn     *pgx.Conn
	workload *workload
	number   int
	random   *rand.Rand
	opened   []int // accounts that this teller has opened and not closed
	last     int   // number of the last one
}

// work serves until the bank closes.
func (t *teller) work(ctx context.Context, closing time.Time) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for time.Now().Before(closing) {
		if err := t.serve(ctx); err != nil {
			return err
		}
		<-ticker.C
	}
	return nil
}

// serve runs one transaction.
func (t *teller) serve(ctx context.Context) error {
	s, end := begin(), "COMMIT"
	switch n := t.random.IntN(100); {
	case n < 65:
		t.transfer(s)
	case n < 73:
		t.changeMind(s)
	case n < 80:
		t.transfer(s)
		end = "ROLLBACK"
	case n < 85:
		t.open(s)
	case n < 88:
		t.close(s)
	case n < 93:
		t.amendContract(s)
	case n < 96:
		t.auditAction(s)
	default:
		t.archive(s)
	}
	return t.workload.transaction(ctx, t.conn, s, end)
}

// transfer moves money. Accounts are locked in the order of their numbers, and
// branches after them, so that tellers do not deadlock.
func (t *teller) transfer(s *pgx.Batch) {
	from, to := t.account(), t.account()
	amount := t.random.IntN(10_000)
	low, high, sign := from, to, -1
	if low > high {
		low, high, sign = to, from, 1
	}
	const update = "UPDATE accounts SET balance = balance + $2::int / 100.0 WHERE id = $1"
	s.Queue(update, low, sign*amount)
	s.Queue(update, high, -sign*amount)
	s.Queue("INSERT INTO transfers (debit, credit, amount, details) VALUES ($1, $2, $3::int / 100.0, jsonb_build_object('teller', $4::int))", from, to, amount, t.number)
	s.Queue("INSERT INTO history (account, delta, note) VALUES ($1, $2::int / -100.0, NULL), ($3, $2::int / 100.0, 'from ' || $1::int)", from, amount, to)
	s.Queue("UPDATE branches SET balance = balance + 0.01 WHERE id = $1", 1+t.random.IntN(branches))
}

// changeMind takes back a part of a transaction.
func (t *teller) changeMind(s *pgx.Batch) {
	account := t.account()
	s.Queue("INSERT INTO history (account, delta, note) VALUES ($1, 0, 'asked')", account)
	s.Queue("SAVEPOINT maybe")
	s.Queue("UPDATE accounts SET balance = 0 WHERE id = $1", account)
	s.Queue("INSERT INTO history (account, delta, note) VALUES ($1, 0, 'never happened')", account)
	s.Queue("ROLLBACK TO maybe")
	s.Queue("INSERT INTO history (account, delta, note) VALUES ($1, 0, 'changed his mind')", account)
}

func (t *teller) open(s *pgx.Batch) {
	t.last++
	account := accounts + t.last*tellers + t.number
	t.opened = append(t.opened, account)
	s.Queue("INSERT INTO accounts (id, branch, owner) VALUES ($1, $2, $3)", account, 1+t.random.IntN(branches), t.name())
	s.Queue("INSERT INTO contracts (account, text) VALUES ($1, $2)", account, t.text())
}

func (t *teller) close(s *pgx.Batch) {
	if len(t.opened) == 0 {
		t.open(s)
		return
	}
	account := t.opened[0]
	t.opened = t.opened[1:]
	s.Queue("DELETE FROM contracts WHERE account = $1", account)
	s.Queue("DELETE FROM accounts WHERE id = $1", account)
}

// amendContract leaves the long text alone, replaces it, or moves the contract to
// another key.
func (t *teller) amendContract(s *pgx.Batch) {
	account := 1 + t.random.IntN(accounts/20)
	switch t.random.IntN(3) {
	case 0:
		s.Queue("UPDATE contracts SET revision = revision + 1, text = $2 WHERE abs(account) = $1", account, t.text())
	case 1:
		s.Queue("UPDATE contracts SET revision = revision + 1, tags = tags || $2 WHERE abs(account) = $1", account, []string{t.name()})
	default:
		s.Queue("UPDATE contracts SET account = -account WHERE abs(account) = $1", account)
	}
}

// auditAction adds a row, changes one of the teller's, and now and then removes all
// but the newest of them.
func (t *teller) auditAction(s *pgx.Batch) {
	s.Queue("INSERT INTO audit (teller, action, subject) VALUES ($1, $2, $3)", t.number, "came", fmt.Sprintf("10.0.%d.%d", t.number, t.random.IntN(256)))
	s.Queue("UPDATE audit SET action = 'seen', subject = NULL WHERE teller = $1 AND at = (SELECT min(at) FROM audit WHERE teller = $1)", t.number)
	if t.random.IntN(10) == 0 {
		s.Queue("DELETE FROM audit WHERE teller = $1 AND at < (SELECT max(at) FROM audit WHERE teller = $1)", t.number)
	}
}

// archive removes a few of the oldest transfers.
func (t *teller) archive(s *pgx.Batch) {
	s.Queue("INSERT INTO history (account, delta, note) VALUES ($1, 0, 'archived')", t.account())
	s.Queue("DELETE FROM transfers WHERE id IN (SELECT id FROM transfers WHERE credit > 0 ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED)")
}

// account is one that is never closed.
func (t *teller) account() int { return 1 + t.random.IntN(accounts) }

// name has characters that a careless program trips over.
func (t *teller) name() string {
	names := []string{"O'Hara", `back\slash`, `"quoted"`, "tab\tbed", "Łódź", "{brace}", "", "NULL"}
	return names[t.random.IntN(len(names))]
}

// text is long enough to be stored out of line.
func (t *teller) text() string {
	return strings.Repeat(fmt.Sprintf("%016x", t.random.Uint64()), 200+t.random.IntN(300))
}
