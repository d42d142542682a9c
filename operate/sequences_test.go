package operate

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// both runs statements on publisher and target.
func (b *bed) both(sql ...string) {
	b.t.Helper()
	pgtest.Exec(b.t, b.source, sql...)
	pgtest.Exec(b.t, b.target, sql...)
}

func (b *bed) sequences(options SequencesOptions) *SequenceReport {
	b.t.Helper()
	options.Endpoints = b.ends
	report, err := Sequences(b.t.Context(), options)
	require.NoError(b.t, err)
	return report
}

func TestSequencesAreCopied(t *testing.T) {
	b := sharedBed(t)
	b.both(`create table sq (id serial primary key)`,
		`create table iq (id bigint generated always as identity (start 1000 increment 10) primary key)`,
		`create sequence s_desc increment -5 start 100 minvalue -1000 maxvalue 100`,
		`create sequence s_unused start 7`, `create schema "Q s"`, `create sequence "Q s"."Seq 1" start 500`,
		`create sequence s_cache cache 50`, `create sequence s_set`)
	pgtest.Exec(t, b.source, `insert into sq select from generate_series(1, 37)`, `insert into iq select from generate_series(1, 4)`,
		`select nextval('s_desc'), nextval('s_desc'), nextval('"Q s"."Seq 1"'), nextval('s_cache'), setval('s_set', 99, false)`)
	positions := func() string {
		return pgtest.Query(t, b.target, `select s, a.last_value, a.is_called from (
			select 'iq', * from iq_id_seq union all select 'desc', * from s_desc union all select 'set', * from s_set) a (s)`)
	}

	before := positions()
	dry := b.sequences(SequencesOptions{All: true, DryRun: true})
	require.NoError(t, dry.Err())
	require.Equal(t, 6, dry.Set)
	require.Contains(t, dry.Text(), "TARGET THEN")
	require.Contains(t, dry.Text(), "6 set, 1 kept, 0 errors; this was a dry run, nothing was changed\n")
	require.Equal(t, before, positions(), "a dry run changes nothing")

	report := b.sequences(SequencesOptions{All: true})
	require.NoError(t, report.Err())
	golden(t, "sequences.txt", report.Text())
	text, err := json.MarshalIndent(report.Sequences[0], "", "  ")
	require.NoError(t, err)
	golden(t, "sequence.json", string(text)+"\n")
	require.Equal(t, "38|1040|90|7|501|51|99", pgtest.Query(t, b.target,
		`select nextval('sq_id_seq'), nextval('iq_id_seq'), nextval('s_desc'), nextval('s_unused'), nextval('"Q s"."Seq 1"'), nextval('s_cache'), nextval('s_set')`))

	again := b.sequences(SequencesOptions{All: true})
	require.NoError(t, again.Err())
	require.Equal(t, 7, again.Kept)
	require.Contains(t, again.Text(), "the target is ahead: --allow-backwards would set it")
	require.Equal(t, "39|1050|85|100", pgtest.Query(t, b.target, `select nextval('sq_id_seq'), nextval('iq_id_seq'), nextval('s_desc'), nextval('s_set')`))

	require.Equal(t, 1, b.sequences(SequencesOptions{All: true, Margin: 30}).Kept, "the session on the target has cached more than the margin")
	back := b.sequences(SequencesOptions{All: true, AllowBackwards: true})
	require.Equal(t, 7, back.Set)
	require.Equal(t, "38|1040|90|99", pgtest.Query(t, b.target, `select nextval('sq_id_seq'), nextval('iq_id_seq'), nextval('s_desc'), nextval('s_set')`))
}

// Publications come from the options, or else from the state.
func TestSequencesOfPublishedTables(t *testing.T) {
	b := sharedBed(t)
	b.both(`create table a (id serial)`, `create table b (id serial)`, `create sequence lone`)
	pgtest.Exec(t, b.source, `create publication p for table a`, `create publication q for table b`, `insert into a default values`, `insert into b default values`)
	names := func(options SequencesOptions) string {
		t.Helper()
		var list []string
		for _, s := range b.sequences(options).Sequences {
			list = append(list, s.Sequence)
		}
		return strings.Join(list, " ")
	}
	require.Equal(t, "public.b_id_seq", names(SequencesOptions{Publications: []string{"q"}}))
	require.Equal(t, "public.a_id_seq public.b_id_seq public.lone", names(SequencesOptions{All: true}))

	_, err := Sequences(t.Context(), SequencesOptions{Endpoints: b.ends})
	requireClass(t, err, apply.Refused, `knows no subscription "orders"`, "--publication", "--all")
	b.complete()
	require.Equal(t, "public.a_id_seq", names(SequencesOptions{}))
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: b.ends, Publications: []string{"p", "r"}})
	requireClass(t, err, apply.Refused, `no publication "r"`)

	other := b.ends
	other.Source = pgtest.Database(t, b.publisher)
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: other})
	requireClass(t, err, apply.Refused, "has its publications in database")
	other.Source = b.target
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: other, All: true})
	requireClass(t, err, apply.Refused, "the same database")
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: b.ends, Margin: -1})
	requireClass(t, err, apply.Configuration, "--margin")
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: b.ends, All: true, Publications: []string{"p"}})
	requireClass(t, err, apply.Configuration, "exclude each other")
	other.Source = nowhere(t)
	_, err = Sequences(t.Context(), SequencesOptions{Endpoints: other, All: true})
	require.Equal(t, apply.Source, apply.ClassOf(err))

	empty := sharedBed(t).sequences(SequencesOptions{All: true})
	require.NoError(t, empty.Err())
	require.Equal(t, "there are no sequences to copy\n", empty.Text())
}

// What cannot be set is named with its remedy, and the others are set.
func TestSequencesThatDiffer(t *testing.T) {
	b := sharedBed(t)
	pgtest.Exec(t, b.source, `create sequence missing`, `create sequence step`, `create sequence small`, `create sequence fits`, `create sequence fine`,
		`create table renamed (id serial)`, `create sequence sign increment -1`, `select setval('small', 40000), setval('fits', 77), nextval('fine'), setval('renamed_id_seq', 5)`)
	pgtest.Exec(t, b.target, `create sequence step increment 2`, `create sequence small as smallint`, `create sequence fits as integer cycle`, `create sequence fine`,
		`create sequence sign`, `create table renamed (id serial)`, `alter sequence renamed_id_seq rename to "other ""name"`, `create sequence renamed_id_seq`)
	report := b.sequences(SequencesOptions{All: true})
	requireClass(t, report.Err(), apply.Refused, "4 sequences could not be set")
	golden(t, "sequences-differ.txt", report.Text())
	require.Equal(t, "1|t|77|t|5|1", pgtest.Query(t, b.target,
		`select a.last_value, a.is_called, b.last_value, b.is_called, c.last_value, d.last_value from fine a, fits b, "other ""name" c, renamed_id_seq d`))

	requireClass(t, b.sequences(SequencesOptions{All: true, DryRun: true}).Err(), apply.Refused, "had this not been a dry run")
	pgtest.Exec(t, b.target, `alter sequence step increment 1`, `alter sequence small as bigint minvalue 1 maxvalue 9223372036854775807`, `create sequence missing`, `alter sequence sign increment -1 minvalue -100 maxvalue -1 start -1 restart`)
	require.NoError(t, b.sequences(SequencesOptions{All: true}).Err())
}

// A role needs no more than SELECT and UPDATE. What it lacks is said.
func TestSequencesOfAPlainRole(t *testing.T) {
	b := sharedBed(t)
	role := "seq_" + b.slot
	pgtest.Exec(t, b.target, `create role `+role+` login`)
	t.Cleanup(func() { pgtest.Exec(t, b.target, `drop owned by `+role, `drop role `+role) })
	b.both(`create sequence near`, `create sequence far`, `create sequence down increment -3 cache 4`, `create sequence forbidden`, `create sequence idle`, `create sequence own`)
	pgtest.Exec(t, b.source, `select setval('near', 1000), setval('far', 5000000000), setval('down', -99), setval('forbidden', 8), setval('own', 6)`)
	pgtest.Exec(t, b.target, `grant select, update on sequence near, far, down, idle to `+role, `grant select on sequence forbidden to `+role, `alter sequence own owner to `+role)
	b.ends.Target = as(t, b.target, role)

	report := b.sequences(SequencesOptions{All: true})
	require.Equal(t, 1, report.Errors)
	require.Contains(t, report.Text(), "role \""+role+"\" may not set it\n        remedy: on the target: GRANT SELECT, UPDATE ON SEQUENCE \"public\".\"forbidden\" TO \""+role+"\"")
	require.Equal(t, 1, report.Kept, report.Text())
	// One that it does not own is stepped up to where it should be: whole caches at a time.
	require.Equal(t, "1000|t|5000000000|t|-106|6", pgtest.Query(t, b.target,
		`select n.last_value, n.is_called, f.last_value, f.is_called, d.last_value, o.last_value from near n, far f, down d, own o`))
	require.Equal(t, "near 1000", fmt.Sprintf("near %s", report.Sequences[4].After))

	back := b.sequences(SequencesOptions{All: true, AllowBackwards: true})
	require.Equal(t, "-99", pgtest.Query(t, b.target, `select last_value from down`))
	require.Equal(t, 1, back.Set)
}

// A transaction that has taken a value holds the sequence. What it takes while it is
// waited for counts.
func TestSequencesUnderALock(t *testing.T) {
	b := sharedBed(t)
	b.both(`create sequence held`)
	pgtest.Exec(t, b.source, `select setval('held', 10)`)
	session := pgtest.Open(t, b.target)
	session.Exec(`begin`, `select nextval('held')`)
	report := b.sequences(SequencesOptions{All: true})
	requireClass(t, report.Err(), apply.Refused, "1 sequence could not be set")
	require.Contains(t, report.Text(), fmt.Sprintf("a transaction that is open for longer than 2s holds it: process %d", session.PID()))

	done := make(chan *SequenceReport)
	go func() {
		options := SequencesOptions{Endpoints: b.ends, All: true}
		report, err := Sequences(t.Context(), options)
		if err != nil {
			report = nil
		}
		done <- report
	}()
	pgtest.WaitFor(t, b.target, `select count(*) from pg_locks where relation = 'held'::regclass and not granted`, "1")
	session.Exec(`select nextval('held') from generate_series(1, 20)`, `commit`)
	report = <-done
	require.NotNil(t, report)
	require.Equal(t, 1, report.Kept, report.Text())
	require.Equal(t, "21", report.Sequences[0].Before.String())
	require.Equal(t, "21|t", pgtest.Query(t, b.target, `select last_value, is_called from held`))
}

// While applications take values on both ends, the target gives none twice, and once
// they rest none that the publisher gave.
func TestSequencesWhileValuesAreTaken(t *testing.T) {
	for _, owner := range []bool{true, false} {
		t.Run(fmt.Sprintf("owner=%t", owner), func(t *testing.T) {
			b := sharedBed(t)
			b.both(`create sequence busy`)
			pgtest.Exec(t, b.target, `create table given (value bigint)`)
			if !owner {
				role := "seq_" + b.slot
				pgtest.Exec(t, b.target, `create role `+role+` login`, `grant select, update on sequence busy to `+role)
				t.Cleanup(func() { pgtest.Exec(t, b.target, `drop owned by `+role, `drop role `+role) })
				b.ends.Target = as(t, b.target, role)
			}
			var takers sync.WaitGroup
			for range 2 {
				takers.Go(func() {
					pgtest.Exec(t, b.target, `do $$ begin for i in 1 .. 3000 loop insert into given select nextval('busy') from generate_series(1, 30); commit; end loop; end $$`)
				})
			}
			taken := make(chan struct{})
			go func() { takers.Wait(); close(taken) }()
			set := 0
			for round := 0; ; round++ {
				// A little ahead of the target, so that it may be overtaken at any moment;
				// but the first time so far that it can not.
				ahead := 100 << (10 - round%11)
				if round == 0 {
					ahead = 1 << 40
				}
				at, err := strconv.Atoi(pgtest.Query(t, b.target, `select last_value from busy`))
				require.NoError(t, err)
				pgtest.Exec(t, b.source, fmt.Sprintf(`select setval('busy', %d)`, at+ahead))
				set += b.sequences(SequencesOptions{All: true}).Set
				if channelClosed(taken) {
					break
				}
			}
			require.NotZero(t, set)
			require.Equal(t, "180000|180000", pgtest.Query(t, b.target, `select count(*), count(distinct value) from given`))
		})
	}
}

func channelClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
