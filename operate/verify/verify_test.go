package verify

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// pair is two databases whose tables are compared, without anybody who replicates.
type pair struct {
	t              *testing.T
	source, target string
	options        Options
}

func newPair(t *testing.T, publisher, target *cluster.Cluster) *pair {
	p := &pair{t: t, source: pgtest.Database(t, publisher), target: pgtest.Database(t, target)}
	p.options = Options{
		Source: End{URI: p.source}, Target: End{URI: p.target}, ApplicationName: "verify", Publications: []string{"p"},
		Jobs: 2, Limit: 100, Patience: time.Minute,
	}
	return p
}

func sharedPair(t *testing.T) *pair {
	publisher, target := pgtest.Shared(t)
	return newPair(t, publisher, target)
}

func (p *pair) both(sql ...string) {
	p.t.Helper()
	pgtest.Exec(p.t, p.source, sql...)
	pgtest.Exec(p.t, p.target, sql...)
}

func (p *pair) onSource(sql ...string) { p.t.Helper(); pgtest.Exec(p.t, p.source, sql...) }
func (p *pair) onTarget(sql ...string) { p.t.Helper(); pgtest.Exec(p.t, p.target, sql...) }

// verify compares tables of schema public.
func (p *pair) verify(tables ...string) *Report {
	p.t.Helper()
	p.options.Tables = nil
	for _, name := range tables {
		p.options.Tables = append(p.options.Tables, Table{"public", name})
	}
	report, err := Run(p.t.Context(), p.options)
	require.NoError(p.t, err)
	return report
}

// found compares one table and returns its differences, each as a line.
func (p *pair) found(table string) []string {
	p.t.Helper()
	t := p.verify(table).Tables[0]
	require.Empty(p.t, t.Error)
	require.Zero(p.t, t.Unsettled+t.Unexamined)
	lines := []string{}
	for _, d := range t.Differences {
		line := fmt.Sprintf("%s %s", d.Kind, strings.Join(d.Key, ","))
		if len(d.Columns) > 0 {
			line += ": " + strings.Join(d.Columns, " ")
		}
		if d.SourceRows+d.TargetRows > 0 {
			line += fmt.Sprintf(" %d/%d", d.SourceRows, d.TargetRows)
		}
		lines = append(lines, line)
	}
	return lines
}

// follower is told what to say, and may do something before.
type follower func() (lsn.LSN, bool)

func (f follower) Applied(context.Context) (lsn.LSN, bool, error) {
	position, follows := f()
	return position, follows, nil
}

func upToDate() (lsn.LSN, bool) { return math.MaxUint64, true }

// hostile fills a table with what is hard to write and to compare.
const hostile = `
	CREATE TABLE h (id bigint PRIMARY KEY, txt text, num numeric, doc jsonb, at timestamptz, ratio float8, small real, raw bytea,
		day date, span interval, one "char", fixed character(5), list text[], money money, yes boolean, net inet, ranged int4range, point point);
	INSERT INTO h SELECT i, 'row ' || i || repeat(chr(8364), (i % 5)::int), i / 7.0, jsonb_build_object('b', i, 'a', jsonb_build_array(i, null)),
		'2020-02-29 23:59:59.999999+00'::timestamptz + i * interval '1 hour', sqrt(i), i / 3.0, decode(md5(i::text), 'hex'),
		'2000-01-01'::date + (i % 10000)::int, i * interval '1 minute', chr((65 + i % 26)::int)::"char", (i % 1000)::text, array[i::text, null, '', '"', '\'],
		i::int::money, i % 2 = 0, '10.0.0.0'::inet + i, int4range(i::int, i::int + 5), point(i / 3.0, i)
		FROM generate_series(1, 20000) i;
	INSERT INTO h (id) VALUES (-1);
	INSERT INTO h (id, txt, num, doc, at, ratio, small, raw, day, span) VALUES
		(-2, '', 'NaN', 'null', 'infinity', 'NaN', '-0', '', 'infinity', '0'),
		(-3, E'\x01\t\n\r\x0b\x7f''"\\,(){}', 1.50, '"\u00e9\n"', '-infinity', '-0', 'Infinity', '\x00', '0044-03-15 BC', '-1 mon +1 day -00:00:01'),
		(-4, 'NULL', 1.5, '{"":""}', '0044-03-15 12:00:00+00 BC', 'Infinity', 'NaN', '\x5c78', '-infinity', '178000000 years'),
		(-5, repeat('long', 100000), 1e-500, '[1.0, 1.00, 1e2]', '1883-11-18 12:03:58+00', 5e-324, 1e-45, '\xff', '4714-11-24 BC', '1 us'),
		(-6, ' ', -0.0, '{"k": "\\"}', '9999-12-31 23:59:59+14', 0.1, 0.1, '\x20', '5874897-12-31', '1 day');
	ALTER TABLE h REPLICA IDENTITY FULL`

const publish = `CREATE PUBLICATION p FOR ALL TABLES`

func TestEveryDifferenceIsFoundAndNothingElse(t *testing.T) {
	p := sharedPair(t)
	checkHostile(t, p)
}

// checkHostile makes rows differ in every type.
func checkHostile(t *testing.T, p *pair) {
	p.both(hostile)
	p.onSource(publish)
	p.options.pages, p.options.rows = 40, 1000 // several slices, and rounds
	require.Empty(t, p.found("h"))
	p.onTarget(
		`UPDATE h SET txt = NULL, small = 0 WHERE id = -2`, `UPDATE h SET num = 1.5 WHERE id = -3`, `UPDATE h SET txt = NULL, ratio = 'NaN' WHERE id = -4`,
		`UPDATE h SET raw = '\xfe', small = 0 WHERE id = -5`, `UPDATE h SET small = '0', at = NULL WHERE id = -6`, `UPDATE h SET ratio = ratio + 1e-15 WHERE id = 3`,
		`UPDATE h SET at = at + interval '1 us' WHERE id = 7`, `UPDATE h SET doc = doc || '{"c": null}' WHERE id = 11`,
		`UPDATE h SET list = array[''], one = 'z' WHERE id = 20`, `UPDATE h SET fixed = 'x', yes = NOT yes, net = NULL WHERE id = 21`,
		`UPDATE h SET point = '(0,0)', ranged = 'empty' WHERE id = 22`, `UPDATE h SET day = NULL, span = '1 day', money = 1 WHERE id = 19999`,
		`DELETE FROM h WHERE id = 12345`, `INSERT INTO h (id) VALUES (20001)`)
	require.Equal(t, []string{
		"different -2: txt small", "different -3: num", "different -4: txt ratio", "different -5: small raw", "different -6: at small", "different 3: ratio",
		"different 7: at", "different 11: doc", "different 20: one list", "different 21: fixed yes net", "different 22: ranged point",
		"missing 12345", "different 19999: day span money", "extra 20001",
	}, p.found("h"))
}
