package demo

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"
)

// tables lists the published tables.
func tables(ctx context.Context, publisher *pgx.Conn) ([]string, error) {
	rows, err := publisher.Query(ctx, "SELECT tablename FROM pg_publication_tables WHERE pubname = $1 ORDER BY tablename", publication)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// comparison is what a table's rows came to.
type comparison struct{ same, publisherOnly, targetOnly int64 }

func (c comparison) identical() bool { return c.publisherOnly == 0 && c.targetOnly == 0 }

// compare reads a table from both sides in the order of its rows, and walks through
// the two as a merge does. Each row counts as often as it occurs.
func compare(ctx context.Context, publisher, target *pgx.Conn, table string) (c comparison, err error) {
	left, err := readRows(ctx, publisher, table)
	if err != nil {
		return c, err
	}
	defer left.rows.Close()
	right, err := readRows(ctx, target, table)
	if err != nil {
		return c, err
	}
	defer right.rows.Close()
	for !left.ended && !right.ended {
		switch order := bytes.Compare(left.row, right.row); {
		case order == 0:
			c.same++
			left.next()
			right.next()
		case order < 0:
			c.publisherOnly++
			left.next()
		default:
			c.targetOnly++
			right.next()
		}
	}
	for ; !left.ended; left.next() {
		c.publisherOnly++
	}
	for ; !right.ended; right.next() {
		c.targetOnly++
	}
	if err := left.rows.Err(); err != nil {
		return c, err
	}
	return c, right.rows.Err()
}

// reader is a table's rows as text, in the order of their bytes.
type reader struct {
	rows  pgx.Rows
	row   []byte // valid until next
	ended bool
}

func readRows(ctx context.Context, conn *pgx.Conn, table string) (*reader, error) {
	name := pgx.Identifier{table}.Sanitize()
	rows, err := conn.Query(ctx, "SELECT t::text COLLATE \"C\" AS line FROM "+name+" t ORDER BY line")
	if err != nil {
		return nil, err
	}
	r := &reader{rows: rows}
	r.next()
	return r, nil
}

func (r *reader) next() {
	r.ended = !r.rows.Next()
	if !r.ended {
		r.row = r.rows.RawValues()[0]
	}
}
