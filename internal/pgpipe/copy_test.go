package pgpipe_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// TestCopy among other statements, with more data than the buffers of both sides hold.
func TestCopy(t *testing.T) {
	p := open(t)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1)`, nil)
	p.Prepare(1, "copy", `COPY t FROM STDIN`, nil)
	p.Prepare(1, "count", `SELECT count(*), sum(id) FROM t`, nil)
	var data bytes.Buffer
	const rows = 200_000
	for i := range rows {
		fmt.Fprintf(&data, "%d\n", i+10)
	}
	for range 2 { // the second time for nothing
		require.NoError(t, p.Exec(2, "insert", text("1"), nil))
		require.NoError(t, p.Copy(3, "copy", data.Bytes()))
		require.NoError(t, p.Copy(4, "copy", nil))
		require.NoError(t, p.Exec(5, "count", nil, nil))
		for _, want := range []string{"INSERT 0 1", fmt.Sprint("COPY ", rows), "COPY 0", "SELECT 1"} {
			result, some, err := p.Next()
			if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
				require.Equal(t, "23505", refusal.Code)
				require.Equal(t, uint64(2), result.Token, "and the data behind it are ignored")
				require.NoError(t, p.Recover())
				break
			}
			require.NoError(t, err)
			require.True(t, some)
			require.Equal(t, want, result.Tag.String())
		}
		p.Sync()
		_, some, err := p.Next()
		require.NoError(t, err)
		require.False(t, some)
	}
}

// TestCopyThatFails halfway through its data.
func TestCopyThatFails(t *testing.T) {
	p := open(t)
	p.Prepare(1, "copy", `COPY t FROM STDIN`, nil)
	p.Prepare(1, "insert", `INSERT INTO t VALUES ($1)`, nil)
	require.NoError(t, p.Copy(2, "copy", []byte("1\n2\nnonsense\n"+strings.Repeat("3\n", 500_000))))
	require.NoError(t, p.Exec(3, "insert", text("9"), nil))
	result, _, err := p.Next()
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "22P02", refusal.Code)
	require.Equal(t, uint64(2), result.Token)
	require.NoError(t, p.Recover())
	rows, err := p.Query(`SELECT count(*) FROM t`)
	require.NoError(t, err)
	require.Equal(t, "0", string(rows[0][0]))
}

// TestCopyThatCannotBePrepared is the fault of its preparation.
func TestCopyThatCannotBePrepared(t *testing.T) {
	p := open(t)
	p.Prepare(7, "copy", `COPY nowhere FROM STDIN`, nil)
	require.NoError(t, p.Copy(8, "copy", []byte("1\n")))
	result, _, err := p.Next()
	require.Error(t, err)
	require.Equal(t, uint64(8), result.Token, "a utility statement is looked at when it runs")
	require.NoError(t, p.Recover())
}
