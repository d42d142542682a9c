package integration

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestVerifyAcrossMajors: one changed value, one missing and one extra row are found among
// all rows of a table with many types, and nothing else, though 14 and 18 are not one
// major. `make verify-million` plays it with a million rows, and says how long that takes
// beside COPY TO of the same table on both ends.
func TestVerifyAcrossMajors(t *testing.T) {
	t.Parallel()
	rows, pairs := 3000, [][2]int{{14, 18}}
	if text := os.Getenv("PGAPPLY_TEST_ROWS"); text != "" {
		var err error
		pairs = append(pairs, [2]int{18, 14})
		rows, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for _, majors := range pairs {
		t.Run(fmt.Sprintf("%d to %d", majors[0], majors[1]), func(t *testing.T) {
			l := linkOf(t, serverOf(t, majors[0]), serverOf(t, majors[1]))
			l.both(`CREATE TABLE t (id bigint PRIMARY KEY, name text, amount numeric, doc jsonb, at timestamptz, ratio float8, raw bytea)`)
			l.onSource(`CREATE PUBLICATION p FOR TABLE t`, fmt.Sprintf(`INSERT INTO t SELECT g, 'name ' || g, g * 1.10, jsonb_build_object('n', g, 'of', jsonb_build_array(g %% 7, null)),
				'2020-01-01 00:00+00'::timestamptz + g * interval '1 second 7 microseconds', g / 3.0, sha256(g::text::bytea) FROM generate_series(1, %d) g`, rows))
			l.start(copying)
			pgtest.WaitFor(t, l.target, `SELECT state FROM pgapply.subscription_table`, "r")
			require.Zero(t, l.verify(0).Differing)

			middle := rows / 2
			l.onTarget(fmt.Sprintf(`UPDATE t SET ratio = ratio + 1e-9 WHERE id = %d`, middle), fmt.Sprintf(`DELETE FROM t WHERE id = %d`, rows), `INSERT INTO t VALUES (0)`)
			began := time.Now()
			report := l.verify(8)
			took := time.Since(began)
			require.EqualValues(t, 3, report.Differing)
			require.Len(t, report.Tables, 1)
			found := map[string]string{}
			for _, difference := range report.Tables[0].Differences {
				found[difference.Key[0]] = fmt.Sprint(difference.Kind, difference.Columns)
			}
			require.Equal(t, map[string]string{"0": "extra[]", strconv.Itoa(middle): "different[ratio]", strconv.Itoa(rows): "missing[]"}, found)
			t.Logf("verify of %d rows: %.2f s; COPY TO: %.2f s on the publisher, %.2f s on the target", rows, took.Seconds(), copyOut(t, l.source).Seconds(), copyOut(t, l.target).Seconds())
			l.stop()
			l.onSource(`SELECT pg_drop_replication_slot('` + l.name + `')`)
		})
	}
}

// copyOut takes table t out, and throws it away.
func copyOut(t *testing.T, uri string) time.Duration {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), uri)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	began := time.Now()
	_, err = conn.PgConn().CopyTo(t.Context(), io.Discard, `COPY t TO STDOUT`)
	require.NoError(t, err)
	return time.Since(began)
}
