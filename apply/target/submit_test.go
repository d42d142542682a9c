package target

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/conflict"
	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// publisher writes transactions as they come from one, each of inserts into tables
// (id int PRIMARY KEY, v int).
type publisher struct {
	t         *testing.T
	uri       string
	assembler *txn.Assembler
	position  uint64
	relations map[string]*decoder.Relation
}

func newPublisher(t *testing.T, uri string) *publisher {
	p := &publisher{t: t, uri: uri, assembler: txn.NewAssembler(txn.Options{Budget: txn.NewBudget(1 << 20)}), position: 100, relations: map[string]*decoder.Relation{}}
	t.Cleanup(func() { require.NoError(t, p.assembler.Close()) })
	return p
}

func (p *publisher) add(format string, parts ...any) *txn.Transaction {
	p.t.Helper()
	frame := []byte(format)
	for _, part := range parts {
		if text, ok := part.(string); ok {
			frame = append(frame, text...)
			continue
		}
		var err error
		frame, err = binary.Append(frame, binary.BigEndian, part)
		require.NoError(p.t, err)
	}
	t, err := p.assembler.Add(frame)
	require.NoError(p.t, err)
	return t
}

// commit is a transaction of inserts, each "table id v".
func (p *publisher) commit(inserts ...string) *txn.Transaction {
	p.t.Helper()
	end := p.position + 10
	p.add("B", end, int64(0), uint32(p.position))
	for _, insert := range inserts {
		fields := strings.Fields(insert)
		relation := p.relations[fields[0]]
		if relation == nil {
			relation = relationOf(p.t, p.uri, fields[0], decoder.IdentityDefault)
			p.relations[fields[0]] = relation
			p.add("R", relation.ID, "public\x00", fields[0]+"\x00d", uint16(2), byte(1), "id\x00", uint32(23), int32(-1), byte(0), "v\x00", uint32(23), int32(-1))
		}
		p.add("I", relation.ID, "N", uint16(2), "t", uint32(len(fields[1])), fields[1], "t", uint32(len(fields[2])), fields[2])
	}
	t := p.add("C", byte(0), end, end+1, int64(0))
	p.position = end
	p.t.Cleanup(t.Release)
	return t
}

// assembledEnd is the end of the transaction that was so many before the last one.
func (p *publisher) assembledEnd(back int) lsn.LSN { return lsn.LSN(int(p.position) + 1 + 10*back) }

// submitted is a session without a state, which records positions in a table of its own.
func submitted(t *testing.T) (*Session, *publisher) {
	uri := pgtest.Database(t, pgtest.SharedServer(t))
	raise := `BEGIN IF NEW.v < 0 OR NEW.v > 100 AND nextval('public.tries') = 1 THEN RAISE 'refused'; END IF; RETURN NULL; END`
	pgtest.Exec(t, uri, `CREATE TABLE recorded (position pg_lsn PRIMARY KEY)`, `CREATE SEQUENCE tries`,
		`CREATE TABLE t (id int PRIMARY KEY, v int)`, `CREATE TABLE u (id int PRIMARY KEY, v int)`,
		`CREATE TABLE checked (id int PRIMARY KEY, v int)`, `CREATE TABLE late (id int PRIMARY KEY, v int)`, `CREATE TABLE later (id int PRIMARY KEY, v int)`,
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$`+raise+`$$`,
		`CREATE CONSTRAINT TRIGGER c AFTER INSERT ON checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
		`CREATE CONSTRAINT TRIGGER l AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`,
		`CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET CONSTRAINTS public.l DEFERRED; INSERT INTO public.later SELECT NEW.*; RETURN NULL; END$$`,
		`CREATE CONSTRAINT TRIGGER p AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION put_off()`,
		`ALTER TABLE checked ENABLE ALWAYS TRIGGER c`, `ALTER TABLE late ENABLE ALWAYS TRIGGER p`, `ALTER TABLE later ENABLE ALWAYS TRIGGER l`)
	s := openFeed(t, uri)
	s.options.Policies = conflict.Policies{}
	s.pipe.Prepare(token{}, recordStatement, `INSERT INTO public.recorded SELECT $1::pg_catalog.pg_lsn WHERE $2::text IS NOT NULL`, nil)
	require.NoError(t, s.finish())
	return s, newPublisher(t, uri)
}

// is proves what is committed: rows of all tables, and positions.
func (p *publisher) is(rows, positions string) {
	p.t.Helper()
	require.Equal(p.t, rows, pgtest.Query(p.t, p.uri, `SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM (TABLE t UNION ALL TABLE u UNION ALL TABLE checked UNION ALL TABLE late)`))
	require.Equal(p.t, positions, pgtest.Query(p.t, p.uri, `SELECT coalesce(string_agg((position - '0/0')::text, ' ' ORDER BY position), '') FROM recorded`))
}

// first applies a group whose COMMIT is on its way then.
func first(t *testing.T, s *Session, group ...*txn.Transaction) {
	t.Helper()
	s.Send(group)
	s.synced = time.Now().Add(time.Hour) // however slow this machine is
	_, done, err := s.Submit(true)
	require.NoError(t, err)
	require.False(t, done)
}

// TestSubmitted groups commit one after the other, each with what was counted for it.
func TestSubmitted(t *testing.T) {
	s, p := submitted(t)
	for i := range 5 {
		s.synced = time.Now().Add(time.Hour) // however slow this machine is
		s.Send([]*txn.Transaction{p.commit(fmt.Sprintf("t %d 0", 2*i)), p.commit(fmt.Sprintf("u %d 0", 2*i+1))})
		if i > 0 {
			outcome, err := s.Confirm()
			require.NoError(t, err)
			require.Equal(t, Outcome{Committed: 2, Recorded: p.assembledEnd(-2), Inserts: 2}, outcome)
		}
		_, done, err := s.Submit(true)
		require.NoError(t, err)
		require.False(t, done)
	}
	outcome, err := s.Confirm()
	require.NoError(t, err)
	require.Equal(t, 2, outcome.Committed)
	require.Equal(t, byte('I'), s.pipe.TxStatus())
	p.is("0 1 2 3 4 5 6 7 8 9", "121 141 161 181 201")

	s.Send([]*txn.Transaction{p.commit()}) // nothing to do: at once
	outcome, done, err := s.Submit(true)
	require.NoError(t, err)
	require.True(t, done)
	require.Equal(t, Outcome{Committed: 1}, outcome)
	s.Send([]*txn.Transaction{p.commit("t 10 0")})
	outcome, done, err = s.Submit(false)
	require.NoError(t, err)
	require.True(t, done, "nothing waits")
	require.Equal(t, int64(1), outcome.Inserts)
	p.is("0 1 2 3 4 5 6 7 8 9 10", "121 141 161 181 201 221")

	s.synced = time.Now().Add(-syncPause)
	s.Send([]*txn.Transaction{p.commit("t 11 0")})
	_, done, err = s.Submit(true)
	require.NoError(t, err)
	require.True(t, done, "others want to know of it")
}

// TestSubmittedInVain: a group does not commit, and the one behind it, whose changes were
// sent already, does so after it and not before.
func TestSubmittedInVain(t *testing.T) {
	for name, row := range map[string]string{"refused before COMMIT": "checked 2 101", "refused by COMMIT": "late 2 101"} {
		t.Run(name, func(t *testing.T) {
			s, p := submitted(t)
			first(t, s, p.commit("t 1 0"), p.commit(row))
			s.Send([]*txn.Transaction{p.commit("t 3 0")})
			p.is("", "")
			outcome, err := s.Confirm()
			require.NoError(t, err)
			require.True(t, outcome.Replayed)
			require.Equal(t, 2, outcome.Committed)
			p.is("1 2", "111 121")
			outcome, done, err := s.Submit(true)
			require.NoError(t, err)
			require.True(t, done)
			require.Equal(t, Outcome{Committed: 1, Recorded: p.assembledEnd(0), Inserts: 1}, outcome)
			p.is("1 2 3", "111 121 131")
		})
	}
}

// TestSubmittedAndRolledBack: COMMIT answers ROLLBACK, and what follows is not in its way.
// Such a session is given up, with all that it has open.
func TestSubmittedAndRolledBack(t *testing.T) {
	s, p := submitted(t)
	spell := func(sql string) {
		s.pipe.Deallocate(commitStatement)
		s.pipe.Prepare(token{}, commitStatement, sql, nil)
	}
	spell("ROLLBACK")
	first(t, s, p.commit("t 1 0"))
	spell("COMMIT")
	s.Send([]*txn.Transaction{p.commit("t 2 0")})
	_, err := s.Confirm()
	var lost *ConnectionError
	require.ErrorAs(t, err, &lost)
	require.ErrorContains(t, err, "ROLLBACK")
	s.Close()
	pgtest.WaitFor(t, p.uri, `SELECT count(*) = 0 FROM pg_locks WHERE relation = 't'::regclass`, "t")
	p.is("", "")
}

// TestSubmittedBehindAnError: a group stops for good, and nothing of the next one happens.
func TestSubmittedBehindAnError(t *testing.T) {
	for _, row := range []string{"checked 2 -1", "late 2 -1"} {
		t.Run(row, func(t *testing.T) {
			s, p := submitted(t)
			first(t, s, p.commit("t 1 0"), p.commit(row))
			s.Send([]*txn.Transaction{p.commit("t 3 0"), p.commit("u 4 0")})
			outcome, err := s.Confirm()
			var stopped *TransactionError
			require.ErrorAs(t, err, &stopped)
			require.ErrorContains(t, err, "refused")
			require.Equal(t, 1, outcome.Committed)
			p.is("1", "111")
			require.Equal(t, byte('I'), s.pipe.TxStatus())
		})
	}
}

// TestSubmittedBeforeAnError: the group behind one that commits meets an error.
func TestSubmittedBeforeAnError(t *testing.T) {
	s, p := submitted(t)
	pgtest.Exec(t, p.uri, `ALTER TABLE u ADD CHECK (v < 1000)`)
	first(t, s, p.commit("t 1 0"))
	s.Send([]*txn.Transaction{p.commit("t 2 0"), p.commit("u 3 1000"), p.commit("t 4 0")})
	outcome, err := s.Confirm()
	require.NoError(t, err)
	require.Equal(t, 1, outcome.Committed)
	_, done, err := s.Submit(true)
	require.NoError(t, err)
	require.False(t, done, "COMMIT has not waited for the rows")
	outcome, err = s.Confirm()
	require.ErrorContains(t, err, "u_v_check")
	require.Equal(t, 1, outcome.Committed)
	p.is("1 2", "111 121")
}

// TestKeysBehindACommit: whoever asks the catalogs in between loses nothing of it.
func TestKeysBehindACommit(t *testing.T) {
	for _, row := range []string{"t 1 0", "checked 1 101"} {
		s, p := submitted(t)
		first(t, s, p.commit(row))
		keys := NewKeys()
		next := []*txn.Transaction{p.commit("u 2 0")}
		told, err := s.Keys(next, keys)
		require.NoError(t, err)
		require.Equal(t, row == "t 1 0", told)
		outcome, err := s.Confirm()
		require.NoError(t, err)
		require.Equal(t, 1, outcome.Committed)
		p.is("1", "111")
	}
}

// TestLostBehindACommit: nobody but the origin can tell what became of it.
func TestLostBehindACommit(t *testing.T) {
	s, p := submitted(t)
	first(t, s, p.commit("t 1 0"))
	s.Close()
	s.Send([]*txn.Transaction{p.commit("t 2 0")})
	_, err := s.Confirm()
	var lost *ConnectionError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, "0", pgtest.Query(t, p.uri, `SELECT count(*) FROM t WHERE id = 2`))
}

// TestInsertsNeedNoAnswer: COMMIT follows a few rows that are inserted at once, and does
// nothing when one of them is refused.
func TestInsertsNeedNoAnswer(t *testing.T) {
	s, p := submitted(t)
	s.Send([]*txn.Transaction{p.commit("t 1 0")}) // binds the table
	_, _, err := s.Submit(false)
	require.NoError(t, err)

	second := p.commit("t 2 0", "t 3 0")
	s.Send([]*txn.Transaction{second})
	require.NoError(t, s.sendBatches())
	unread := s.pipe.Waiting()
	require.NoError(t, s.sendCommit(second))
	require.Greater(t, s.pipe.Waiting(), unread, "nothing was read before COMMIT")
	require.NoError(t, s.finish())
	p.is("1 2 3", "111 121")

	s.sent = sent{}
	s.Send([]*txn.Transaction{p.commit("t 4 0", "t 1 0")})
	outcome, done, err := s.Submit(false)
	require.ErrorContains(t, err, "insert_exists")
	require.True(t, done)
	require.Zero(t, outcome.Committed)
	require.Equal(t, byte('I'), s.pipe.TxStatus())
	p.is("1 2 3", "111 121")
}

// TestTablesAreForeseen: one question to the catalogs does for all tables of a group, and
// for this group only.
func TestTablesAreForeseen(t *testing.T) {
	s, p := submitted(t)
	group := []*txn.Transaction{p.commit("t 1 0"), p.commit("u 2 0", "checked 3 0"), p.commit("late 4 0")}
	s.group = group
	_, err := s.load(group[0].Relations()[0])
	require.NoError(t, err)
	require.Len(t, s.foreseen, 3)
	for relation := range s.foreseen {
		s.Close() // nobody can be asked any more
		bound, err := s.load(relation)
		require.NoError(t, err)
		require.Equal(t, relation.Name, bound.Name)
		break
	}
	require.Len(t, s.foreseen, 2)

	s, p = submitted(t)
	group = []*txn.Transaction{p.commit("t 1 0"), p.commit("u 2 0")}
	s.group = group
	s.current = group[0]
	require.NoError(t, s.truncate(group[0].Relations(), &decoder.Truncate{}))
	require.Nil(t, s.foreseen, "TRUNCATE has changed the catalogs, of partitions too")
	require.NoError(t, s.rollBack())
	s.exact = true
	_, err = s.load(group[0].Relations()[0])
	require.NoError(t, err)
	require.Empty(t, s.foreseen, "what is applied exactly sees its own changes")
	s.exact = false
	require.NoError(t, s.rollBack())

	s.Send(group)
	require.Nil(t, s.foreseen)
	_, _, err = s.Submit(false)
	require.NoError(t, err)
	p.is("1 2", "121")
}
