package integration

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// TestSequencesBesideARunner: the sequences of what the subscription replicates, while
// it does, and what is missing on the target does not keep the others.
func TestSequencesBesideARunner(t *testing.T) {
	l := newLink(t)
	l.both(`CREATE TABLE a (id serial PRIMARY KEY)`, `CREATE TABLE b (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)`, `CREATE SEQUENCE lone`)
	l.onSource(`CREATE SEQUENCE absent`, `ALTER TABLE a ADD also bigint DEFAULT nextval('absent')`, `CREATE PUBLICATION p FOR TABLE a, b`, `SELECT setval('lone', 9)`)
	l.onTarget(`ALTER TABLE a ADD also bigint`)
	l.start()
	l.onSource(`INSERT INTO a SELECT FROM generate_series(1, 5)`, `INSERT INTO b SELECT FROM generate_series(1, 6)`)
	l.catchUp()

	flags := []string{"--name", l.name, "--source", l.source, "--target", l.target}
	stdout, stderr, code := shell(t, append([]string{"sequences", "--json", "--margin", "100"}, flags...)...)
	require.Equal(t, 3, code, stderr)
	require.Contains(t, stderr, "1 sequence could not be set")
	var report struct {
		Set, Errors int
		Sequences   []struct{ Sequence, Outcome, Remedy string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	require.Equal(t, 2, report.Set)
	require.Equal(t, "public.a_id_seq", report.Sequences[0].Sequence)
	require.Equal(t, "public.absent", report.Sequences[1].Sequence)
	require.Equal(t, "error", report.Sequences[1].Outcome)
	require.NotEmpty(t, report.Sequences[1].Remedy)
	require.Equal(t, "105|106|1", pgtest.Query(t, l.target, `SELECT a.last_value, b.last_value, l.last_value FROM a_id_seq a, b_id_seq b, lone l`))

	l.onTarget(`CREATE SEQUENCE absent`)
	stdout, stderr, code = shell(t, append([]string{"sequences", "--dry-run"}, flags...)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "nothing was changed")
	l.onSource(`INSERT INTO a DEFAULT VALUES`)
	l.catchUp()
	l.same(`SELECT id, also FROM a ORDER BY id`)
}
