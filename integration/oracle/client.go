package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// client runs SQL on a connection of its own.
type client struct{ conn *pgconn.PgConn }

func open(ctx context.Context, uri string) (*client, error) {
	conn, err := pgconn.Connect(ctx, uri)
	if err != nil {
		return nil, err
	}
	return &client{conn}, nil
}

// execTimeout bounds a statement. Each takes milliseconds.
const execTimeout = 30 * time.Second

// query runs SQL and returns the last statement's rows; NULL is "␀".
func (c *client) query(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	results, err := c.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sql, err)
	}
	if len(results) == 0 {
		return nil, nil
	}
	last := results[len(results)-1]
	rows := make([][]string, len(last.Rows))
	for i, row := range last.Rows {
		rows[i] = make([]string, len(row))
		for j, value := range row {
			rows[i][j] = "␀"
			if value != nil {
				rows[i][j] = string(value)
			}
		}
	}
	return rows, nil
}

func (c *client) exec(ctx context.Context, sql string) error {
	_, err := c.query(ctx, sql)
	return err
}

// insist runs SQL, again if what applies changes at the same time is in its way: each
// may have to wait for the other, or it finds a row changed or moved under its hands.
func (c *client) insist(ctx context.Context, sql string) error {
	err := c.exec(ctx, sql)
	for range 10 {
		if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || refusal.Code != "40P01" && refusal.Code != "40001" {
			break
		}
		err = c.exec(ctx, sql)
	}
	return err
}

// close ends the connection; a nil client has none.
func (c *client) close() {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), execTimeout)
	defer cancel()
	_ = c.conn.Close(ctx)
	<-c.conn.CleanupDone()
}
