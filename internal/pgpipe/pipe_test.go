package pgpipe_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgpipe"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func open(t *testing.T) *pgpipe.Pipe[uint64] {
	t.Helper()
	config, err := pgconn.ParseConfig(pgtest.Database(t, pgtest.SharedServer(t)))
	require.NoError(t, err)
	pgpipe.Configure(config)
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Conn().Close() }) // a test may have lost it
	p := pgpipe.New[uint64](conn)
	_, err = p.Query(`CREATE TABLE t (id int PRIMARY KEY)`)
	require.NoError(t, err)
	p.Sync()
	_, some, err := p.Next()
	require.NoError(t, err)
	require.False(t, some)
	return p
}

func text(values ...string) [][]byte {
	var result [][]byte
	for _, value := range values {
		result = append(result, []byte(value))
	}
	return result
}

// TestOrder: outcomes come in the order of the statements, with their tokens, while
// Prepare, Deallocate and Sync are read on the way.
func TestOrder(t *testing.T) {
	p := open(t)
	p.Prepare(1, "insert", `INSERT INTO t SELECT generate_series($1::int, $2::int)`, nil)
	p.Prepare(2, "delete", `DELETE FROM t WHERE id > $1`, nil)
	require.NoError(t, p.Exec(10, "insert", text("1", "5"), nil))
	require.NoError(t, p.Exec(11, "delete", text("3"), nil))
	p.Deallocate("delete")
	p.Sync()
	require.NoError(t, p.Exec(12, "insert", text("9", "9"), nil))
	require.Equal(t, 7, p.Waiting())
	var got []string
	for {
		result, some, err := p.Next()
		require.NoError(t, err)
		if !some {
			break
		}
		got = append(got, result.Tag.String())
		require.Equal(t, uint64(9+len(got)), result.Token)
	}
	require.Equal(t, []string{"INSERT 0 5", "DELETE 2", "INSERT 0 1"}, got)
	require.Zero(t, p.Waiting())
}

// TestRecover: an error names its statement; what follows up to the Sync does not
// happen, whether or not a Sync was sent already.
func TestRecover(t *testing.T) {
	p := open(t)
	p.Prepare(1, "begin", `BEGIN`, nil)
	p.Prepare(1, "rollback", `ROLLBACK`, nil)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1)`, nil)
	for _, synced := range []bool{false, true} {
		require.NoError(t, p.Exec(1, "begin", nil, nil))
		require.NoError(t, p.Exec(2, "insert", text("1"), nil))
		require.NoError(t, p.Exec(3, "insert", text("1"), nil))
		require.NoError(t, p.Exec(4, "insert", text("2"), nil))
		if synced {
			p.Sync()
		}
		var err error
		var result pgpipe.Result[uint64]
		for err == nil {
			result, _, err = p.Next()
		}
		refusal, ok := errors.AsType[*pgconn.PgError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "23505", refusal.Code)
		require.Equal(t, uint64(3), result.Token)
		require.NoError(t, p.Recover())
		require.Equal(t, byte('E'), p.TxStatus())
		require.NoError(t, p.Exec(5, "rollback", nil, nil))
		p.Sync()
		_, some, err := p.Next()
		require.NoError(t, err)
		require.True(t, some)
		_, some, err = p.Next()
		require.NoError(t, err)
		require.False(t, some)
		require.Equal(t, byte('I'), p.TxStatus())
	}
	rows, err := p.Query(`SELECT count(*) FROM t`)
	require.NoError(t, err)
	require.Equal(t, "0", string(rows[0][0]))
}

// TestFailedPrepare names the statement that could not be prepared.
func TestFailedPrepare(t *testing.T) {
	p := open(t)
	p.Prepare(7, "bad", `INSERT INTO nowhere VALUES ($1)`, nil)
	require.NoError(t, p.Exec(8, "bad", text("1"), nil))
	result, _, err := p.Next()
	require.Error(t, err)
	require.Equal(t, uint64(7), result.Token)
	require.NoError(t, p.Recover())
	_, err = p.Query(`SELECT nonsense`)
	require.Error(t, err)
	require.NoError(t, p.Recover())
	_, err = p.Run(`SELECT $1, $2`, []pgpipe.Parameter{{Value: []byte{0, 0, 0, 5}, Type: 23, Binary: true}, {}})
	require.NoError(t, err)
}

// TestQueryWaitsItsTurn: a query must not take another statement's outcome.
func TestQueryWaitsItsTurn(t *testing.T) {
	p := open(t)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1)`, nil)
	require.NoError(t, p.Exec(2, "insert", text("1"), nil))
	_, err := p.Query(`SELECT 1`)
	require.ErrorContains(t, err, "unread")
}

// TestManyRows keeps far more in flight than the buffers of both sides hold.
func TestManyRows(t *testing.T) {
	p := open(t)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1::text::int)`, nil)
	const rows = 20_000
	for i := range rows {
		require.NoError(t, p.Exec(uint64(i), "insert", text(strconv.Itoa(i)), nil))
	}
	read := 0
	for {
		result, some, err := p.Next()
		require.NoError(t, err)
		if !some {
			break
		}
		require.Equal(t, uint64(read), result.Token)
		read++
	}
	require.Equal(t, rows, read)
}

// TestLostConnection: once the server is gone, nothing touches the connection any more,
// on which pgconn then writes its farewell, and everything says what was lost.
func TestLostConnection(t *testing.T) {
	p := open(t)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1)`, nil)
	require.NoError(t, p.Exec(2, "insert", text("1"), nil))
	_, _, err := p.Next()
	require.NoError(t, err)
	p.Prepare(3, "end", `SELECT pg_terminate_backend(pg_backend_pid())`, nil)
	require.NoError(t, p.Exec(3, "end", nil, nil))
	_, _, err = p.Next()
	require.Error(t, err)
	for range 100 {
		p.Prepare(4, "again", `SELECT 1`, nil)
		p.Deallocate("again")
		p.Sync()
		require.Equal(t, err, p.Exec(4, "insert", text("2"), nil))
		require.Equal(t, err, p.Copy(4, "insert", []byte("2\n")))
		require.Equal(t, err, p.Flush())
		_, queried := p.Query(`SELECT 1`)
		require.Equal(t, err, queried)
		require.ErrorIs(t, p.Recover(), err)
	}
}
