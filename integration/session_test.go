package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// session opens a connection that stays until the test ends, and returns a
// function that runs SQL on it.
func session(t *testing.T, uri string) func(sql string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func(sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err, sql)
	}
}
