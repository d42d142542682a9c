package integration

import (
	"encoding/json"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// verified is what the tests read of `pgapply verify --json`.
type verified struct {
	Tables []struct {
		Table       string
		Differences []struct {
			Kind    string
			Key     []string
			Columns []string
		}
		Unsettled int64
	}
	Differing, Unsettled, Repaired int64
	NoRunner                       bool `json:"no_runner"`
}

func (l *link) verify(code int, flags ...string) (report verified) {
	l.t.Helper()
	stdout, stderr, got := shell(l.t, append([]string{"verify", "--json", "--name", l.name, "--source", l.source, "--target", l.target}, flags...)...)
	require.Equal(l.t, code, got, "%s%s", stdout, stderr)
	require.NoError(l.t, json.Unmarshal([]byte(stdout), &report))
	return report
}

// TestVerifyUnderLoad: while rows are written all the time, one of them all the time,
// only what somebody has changed on the target is found, and can be repaired.
func TestVerifyUnderLoad(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE account (id int PRIMARY KEY, balance numeric, note text)`, `CREATE TABLE log (at timestamptz, what text)`,
		`INSERT INTO account SELECT i, i, 'note ' || i FROM generate_series(1, 20000) i`)
	l.onSource(`ALTER TABLE log REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE account, log`)
	l.start()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				pgtest.Exec(t, l.source, `DO $$ DECLARE n int; BEGIN FOR i IN 1 .. 100 LOOP
					n := 1000 + (random() * 18000)::int;
					UPDATE account SET balance = balance + 1 WHERE id = 1;
					COMMIT;
					UPDATE account SET balance = balance - 0.01, note = note || 'x' WHERE id = n;
					DELETE FROM account WHERE id = n + 1;
					COMMIT;
					INSERT INTO account VALUES (n + 1, i, NULL) ON CONFLICT DO NOTHING;
					INSERT INTO log VALUES (clock_timestamp(), 'x');
					COMMIT;
				END LOOP; END $$`)
			}
		})
	}
	defer writers.Wait()
	stopWriters := sync.OnceFunc(func() { close(stop) })
	defer stopWriters()

	require.Zero(t, l.verify(0, "--jobs", "1").Differing)
	l.onTarget(`UPDATE account SET note = 'changed' WHERE id = 500`, `DELETE FROM account WHERE id = 501`, `INSERT INTO account VALUES (-1)`)
	for range 2 {
		report := l.verify(8)
		require.EqualValues(t, 3, report.Differing)
		require.Equal(t, "public.account", report.Tables[0].Table)
		require.Equal(t, []string{"extra", "different", "missing"}, []string{
			report.Tables[0].Differences[0].Kind, report.Tables[0].Differences[1].Kind, report.Tables[0].Differences[2].Kind,
		})
	}
	require.EqualValues(t, 3, l.verify(0, "--table", "account", "--repair=apply", "--yes").Repaired)
	require.Zero(t, l.verify(0, "--table", "acc*").Differing)
	stopWriters()
	writers.Wait()
	l.catchUp()
	l.same(`SELECT * FROM account ORDER BY id`)

	l.stop()
	l.onSource(`DELETE FROM account WHERE id = 500`)
	report := l.verify(8)
	require.True(t, report.NoRunner)
	require.EqualValues(t, 1, report.Differing)
	_, stderr, code := shell(t, "verify", "--repair=apply", "--yes", "--name", l.name, "--source", l.source, "--target", l.target)
	require.Equal(t, 3, code)
	require.Contains(t, stderr, "pgapply run")
}
