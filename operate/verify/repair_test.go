package verify

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func differ(p *pair) {
	p.both(hostile)
	p.onSource(publish)
	p.onTarget(`UPDATE h SET txt = 'x', num = NULL, doc = NULL, at = NULL, ratio = 0, small = 0, raw = NULL, list = NULL WHERE id < 10`,
		`DELETE FROM h WHERE id IN (-3, -4, 500)`, `INSERT INTO h (id) VALUES (20001), (20002)`)
}

// What is printed makes the target's rows the publisher's.
func TestPrintedRepair(t *testing.T) {
	p := sharedPair(t)
	differ(p)
	p.options.Repair = func(ctx context.Context, d *Differences) error { return d.Print(ctx) }
	report := p.verify("h").Tables[0]
	require.EqualValues(t, 18, report.Missing+report.Extra+report.Different)
	for _, d := range report.Differences {
		require.NotEmpty(t, d.Repair)
		require.False(t, d.Kind == Missing && !strings.HasPrefix(d.Repair, "INSERT "), d.Repair)
		p.onTarget(d.Repair)
	}
	require.Empty(t, p.found("h"))
}

// A repair is stamped with its origin, so that it does not travel on, and fires no triggers.
func TestAppliedRepair(t *testing.T) {
	p := sharedPair(t)
	differ(p)
	name := pgtest.Query(t, p.target, `SELECT current_database()`)
	p.onTarget(`CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''fired''; END'`,
		`CREATE TRIGGER no BEFORE INSERT OR UPDATE OR DELETE ON h FOR EACH ROW EXECUTE FUNCTION no()`, publish,
		`SELECT pg_replication_origin_create('`+name+`')`, `SELECT pg_create_logical_replication_slot('`+name+`', 'pgoutput')`)
	t.Cleanup(func() {
		pgtest.Exec(t, p.target, `SELECT pg_drop_replication_slot('`+name+`')`, `SELECT pg_replication_origin_drop('`+name+`')`)
	})
	p.options.Follow = follower(upToDate)
	repairer, err := NewRepairer(t.Context(), &p.options, name)
	require.NoError(t, err)
	p.options.Repair = repairer.Apply
	report := p.verify("h")
	repairer.Close()
	require.EqualValues(t, 18, report.Repaired)
	p.options.Repair = nil
	require.Empty(t, p.found("h"))
	travels := func(origin string) string {
		return pgtest.Query(t, p.target, `SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'p', 'origin', $2)
			WHERE get_byte(data, 0) IN (ascii('I'), ascii('U'), ascii('D'))`, name, origin)
	}
	require.Equal(t, "18", travels("any"))
	require.Equal(t, "0", travels("none"))
}

// Between the comparison and the repair rows may have become what they should be.
func TestRepairSparesWhatIsEqualByThen(t *testing.T) {
	p := sharedPair(t)
	p.both(`CREATE TABLE w (id int PRIMARY KEY, a int)`, `INSERT INTO w SELECT i, i FROM generate_series(1, 10) i`)
	p.onSource(publish)
	p.onTarget(`UPDATE w SET a = 0 WHERE id = 5`, `INSERT INTO w VALUES (11, 11), (12, 12), (13, 13)`, `UPDATE w SET a = 0 WHERE id = 6`)
	name := pgtest.Query(t, p.target, `SELECT current_database()`)
	p.onTarget(`SELECT pg_replication_origin_create('` + name + `')`)
	t.Cleanup(func() { pgtest.Exec(t, p.target, `SELECT pg_replication_origin_drop('`+name+`')`) })
	repairing := false
	p.options.Follow = follower(func() (lsn.LSN, bool) {
		if repairing { // the rows are locked that were there to be locked
			p.onSource(`INSERT INTO w VALUES (12, 12) ON CONFLICT DO NOTHING`)
		}
		return upToDate()
	})
	repairer, err := NewRepairer(t.Context(), &p.options, name)
	require.NoError(t, err)
	defer repairer.Close()
	p.options.Repair = func(ctx context.Context, d *Differences) error {
		p.onSource(`UPDATE w SET a = 0 WHERE id = 5`, `INSERT INTO w VALUES (11, 11)`)
		repairing = true
		return repairer.Apply(ctx, d)
	}
	report := p.verify("w")
	require.EqualValues(t, 5, report.Differing)
	require.EqualValues(t, 2, report.Repaired)
	require.EqualValues(t, 3, report.Spared)
	require.Equal(t, "11|11\n12|12", pgtest.Query(t, p.target, `SELECT * FROM w WHERE id > 10 ORDER BY 1`))
	require.Equal(t, "0|6", pgtest.Query(t, p.target, `SELECT min(a) FILTER (WHERE id = 5), min(a) FILTER (WHERE id = 6) FROM w`))

	// Without anybody who applies nothing is repaired.
	p.options.Repair = repairer.Apply
	p.onTarget(`UPDATE w SET a = -1 WHERE id = 1`)
	calls := 0
	p.options.Follow = follower(func() (lsn.LSN, bool) { calls++; return 1 << 62, calls == 1 })
	_, err = Run(t.Context(), p.options)
	require.ErrorIs(t, err, ErrAlone)
}
