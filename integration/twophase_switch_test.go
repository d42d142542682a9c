package integration

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"pgapply/apply"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

func (l *link) slotIsTwoPhase() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.source, `SELECT two_phase FROM pg_replication_slots WHERE slot_name = $1`, l.name)
}

// TestTwoPhaseTurnedOn: what was prepared before the slot knew of such transactions
// comes with its end; what is prepared afterwards comes at once.
func TestTwoPhaseTurnedOn(t *testing.T) {
	l := twoPhaseLink(t, func(o *apply.Options) { o.TwoPhase = false })
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`)
	l.catchUp()
	require.Equal(t, "0", l.prepared())
	require.Equal(t, "f", l.slotIsTwoPhase())
	l.stop()
	l.onSource(`BEGIN; INSERT INTO c VALUES (3, 'c'); PREPARE TRANSACTION 'c'`, `INSERT INTO c VALUES (4, 'd')`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (5, 'e'); PREPARE TRANSACTION 'e'`)
	l.catchUp()
	require.Equal(t, "t", l.slotIsTwoPhase())
	require.Equal(t, "2", l.prepared(), "c and e")
	l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'b'`, `INSERT INTO c VALUES (6, 'f')`)
	l.catchUp()
	require.Equal(t, "2", l.prepared())
	require.Equal(t, "1|a\n4|d\n6|f", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	l.onSource(`COMMIT PREPARED 'c'`, `ROLLBACK PREPARED 'e'`)
	require.Equal(t, "1|a\n3|c\n4|d\n6|f", l.settled())
	require.Zero(t, l.engine.Status().Retries)
}

// TestTwoPhaseTurnedOff: the slot becomes an ordinary one again, unless a part of a
// transaction is on the target, which would then come as a whole.
func TestTwoPhaseTurnedOff(t *testing.T) {
	_, target := pgtest.Shared(t)
	publisher := pgtest.Start(t, pgtest.OnMajor(18))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`)
	l.catchUp()
	l.stop()
	name := pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
	requireClass(t, apply.Refused, l.run(), "two-phase cannot be turned off", name, "start with --two-phase")
	checkup, err := operate.Check(t.Context(), l.options())
	require.NoError(t, err)
	require.Regexp(t, `error +two-phase +two-phase cannot be turned off while the target holds`, checkup.Text())
	// Committed by a person, it would come once more.
	l.onTarget(`COMMIT PREPARED ` + literal(name))
	requireClass(t, apply.Refused, l.run(), "two-phase cannot be turned off", name, "COMMIT PREPARED has come")
	require.Equal(t, "t", l.slotIsTwoPhase())
	l.onSource(`COMMIT PREPARED 'a'`)
	l.start(twoPhase)
	require.Equal(t, "1|a", l.settled())
	// The publisher may have prepared what has not come yet.
	l.stop()
	l.onSource(`BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`)
	l.start()
	require.Equal(t, "f", l.slotIsTwoPhase())
	l.onSource(`BEGIN; INSERT INTO c VALUES (3, 'c'); PREPARE TRANSACTION 'c'`, `INSERT INTO c VALUES (4, 'd')`)
	l.catchUp()
	require.Equal(t, "0", l.prepared())
	require.Equal(t, "1|a\n4|d", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	l.onSource(`COMMIT PREPARED 'b'`, `ROLLBACK PREPARED 'c'`)
	require.Equal(t, "1|a\n2|b\n4|d", l.settled())
	l.stop()
	require.Contains(t, pgtest.Query(t, l.target, `SELECT settings FROM pgapply.subscription`), `"two_phase": false`)
}

// TestTwoPhaseForGood: a slot that the publisher cannot turn back, and one that somebody
// else has made a two-phase one, are decoded right without the option.
func TestTwoPhaseForGood(t *testing.T) {
	_, target := pgtest.Shared(t)
	l := linkOf(t, pgtest.Start(t, pgtest.OnMajor(17)), target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`, `SELECT pg_create_logical_replication_slot('`+l.name+`', 'pgoutput', false, true)`)
	log, said := observer.New(zap.InfoLevel)
	adopt := func(o *apply.Options) { o.CreateSlot, o.Log = false, zap.New(log) }
	l.start(adopt)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`)
	l.catchUp()
	require.Equal(t, "2", l.prepared())
	l.stop()
	l.start(adopt)
	pgtest.WaitFor(t, l.source, `SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = $1`, "t", l.name)
	l.awaitRetries(1)
	l.onSource(`COMMIT PREPARED 'a'`, `ROLLBACK PREPARED 'b'`)
	require.Equal(t, "1|a", l.settled())
	require.Equal(t, "t", l.slotIsTwoPhase())
	require.Len(t, said.FilterMessageSnippet("remains a two-phase one").All(), 2, "once for each start")
	l.stop()
	requireClass(t, apply.Refused, l.run(adopt, func(o *apply.Options) { o.MessageHandler = ignore{} }), "two-phase one for good", "handler")
}

// ignore is a handler of logical messages.
type ignore struct{}

func (ignore) HandleMessage(context.Context, apply.Message) error { return nil }

// TestTwoPhaseRefused: what cannot work together is said before anything is changed.
func TestTwoPhaseRefused(t *testing.T) {
	_, target := pgtest.Shared(t)
	l := linkOf(t, pgtest.Start(t, pgtest.OnMajor(14)), target)
	l.onSource(`CREATE PUBLICATION p`)
	requireClass(t, apply.Refused, l.run(twoPhase), "PostgreSQL 14", "from 15 on", "start without --two-phase")
	l.untouched()
	_, err := apply.New(l.options(twoPhase, func(o *apply.Options) { o.MessageHandler = ignore{} }))
	requireClass(t, apply.Configuration, err, "--two-phase", "handler", "whether a prepared one does is not known")
}

// TestTwoPhaseBeginsAnew: what an earlier subscription has prepared and left is named,
// and ended by cleanup, before a new one begins.
func TestTwoPhaseBeginsAnew(t *testing.T) {
	l := twoPhaseLink(t)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`)
	l.catchUp()
	l.stop()
	ends := operate.Endpoints{Name: l.name, Source: l.source, Target: l.target}
	checkup, err := operate.Check(t.Context(), l.options(twoPhase))
	require.NoError(t, err)
	require.Regexp(t, `ok +two-phase +max_prepared_transactions leaves \d+ of 20 on the target`, checkup.Text())
	_, err = operate.Cleanup(t.Context(), operate.CleanupOptions{Endpoints: ends, Confirmed: true})
	requireClass(t, apply.Refused, err, "has prepared transactions on the target", "--prepared=commit")

	// A state that is lost, and nothing of the target's transactions.
	name := pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)
	l.onTarget(`DELETE FROM pgapply.subscription`)
	l.onSource(`SELECT pg_drop_replication_slot('` + l.name + `')`)
	requireClass(t, apply.Refused, l.run(twoPhase), "an earlier subscription", name, "`pgapply cleanup --prepared=commit`")
	require.Empty(t, pgtest.Query(t, l.source, `SELECT slot_name FROM pg_replication_slots WHERE slot_name = $1`, l.name))
	checkup, err = operate.Check(t.Context(), l.options(twoPhase))
	require.NoError(t, err)
	require.Regexp(t, `error +two-phase +an earlier subscription`, checkup.Text())

	removal, err := operate.Cleanup(t.Context(), operate.CleanupOptions{Endpoints: ends, Prepared: operate.CommitPrepared, Confirmed: true})
	require.NoError(t, err)
	require.Contains(t, removal.Done, fmt.Sprintf("committed prepared transaction %s", name))
	require.Equal(t, "1|a", pgtest.Query(t, l.target, `SELECT * FROM c`))
	l.onSource(`COMMIT PREPARED 'a'`)
	l.start(twoPhase)
	l.onSource(`BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`, `COMMIT PREPARED 'b'`)
	require.Equal(t, "1|a\n2|b", l.settled())
}

// TestPreparedDecidedByHand: a person may end what is prepared on the target. A commit
// passes as done; for what was rolled back there the publisher's COMMIT PREPARED is an
// error, which can be passed.
func TestPreparedDecidedByHand(t *testing.T) {
	l := twoPhaseLink(t)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `BEGIN; INSERT INTO c VALUES (2, 'b'); PREPARE TRANSACTION 'b'`,
		`BEGIN; INSERT INTO c VALUES (3, 'c'); PREPARE TRANSACTION 'c'`, `BEGIN; INSERT INTO c VALUES (4, 'd'); PREPARE TRANSACTION 'd'`)
	l.catchUp()
	name := func(which int) string {
		return pgtest.Query(t, l.target, fmt.Sprintf(`SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared OFFSET %d LIMIT 1`, which))
	}
	a, b, c, d := name(0), name(1), name(2), name(3)
	require.Regexp(t, regexp.MustCompile(`^pgapply_`+l.name+`_\d+_\d+_[0-9A-F]+$`), a)
	l.onTarget(`COMMIT PREPARED `+literal(a), `ROLLBACK PREPARED `+literal(b), `ROLLBACK PREPARED `+literal(c), `COMMIT PREPARED `+literal(d))
	l.onSource(`COMMIT PREPARED 'a'`)
	l.catchUp()
	require.Equal(t, "1|a\n4|d", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	l.onSource(`ROLLBACK PREPARED 'c'`, `ROLLBACK PREPARED 'd'`) // also where the target has decided otherwise
	l.catchUp()
	l.onSource(`COMMIT PREPARED 'b'`, `INSERT INTO c VALUES (5, 'e')`)
	l.failure(`the publisher commits prepared transaction "b", which the target does not have`, "rolled it back here", "pgapply skip --lsn")
	l.skip()
	l.catchUp()
	require.Equal(t, "1|a\n4|d\n5|e", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`))
}

// skip leaves out the transaction that the engine's last error is about.
func (l *link) skip() {
	l.t.Helper()
	l.skipAt(finishedAt(l.t, l.engine.Status().LastError))
}

func (l *link) skipAt(position string) {
	l.t.Helper()
	_, err := operate.Skip(l.t.Context(), operate.Endpoints{Name: l.name, Target: l.target}, parse(l.t, position))
	require.NoError(l.t, err)
}

func parse(t *testing.T, position string) lsn.LSN {
	t.Helper()
	parsed, err := lsn.Parse(position)
	require.NoError(t, err)
	return parsed
}
