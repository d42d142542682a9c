package integration

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/decoder"
	"pgapply/internal/faultnet"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
	"pgapply/operate"
)

// kept are the rows that were skipped.
func (l *link) kept() string {
	l.t.Helper()
	return pgtest.Query(l.t, l.target, `SELECT operation, remote_tuple FROM pgapply.conflict WHERE conflict_type = 'skipped' ORDER BY id`)
}

// TestSkipPrepared: of a prepared transaction that is skipped nothing reaches the
// tables, everything is kept, and its COMMIT PREPARED passes.
func TestSkipPrepared(t *testing.T) {
	l := twoPhaseLink(t)
	l.onTarget(`INSERT INTO c VALUES (2, 'in the way')`)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'), (2, 'b'); PREPARE TRANSACTION 'a'`, `INSERT INTO c VALUES (3, 'c')`)
	l.failure("insert_exists")
	l.skip()
	l.catchUp()
	require.Equal(t, "1", l.prepared())
	l.onSource(`COMMIT PREPARED 'a'`)
	l.catchUp()
	require.Equal(t, "0", l.prepared())
	require.Equal(t, "2|in the way\n3|c", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	require.Equal(t, "INSERT|{\"v\": \"a\", \"id\": \"1\"}\nINSERT|{\"v\": \"b\", \"id\": \"2\"}", l.kept())
	require.Equal(t, "t", pgtest.Query(t, l.target, `SELECT skip_lsn IS NULL FROM pgapply.subscription`))
}

// TestSkipPreparedOnce: also when the connection breaks at any of the steps of it.
func TestSkipPreparedOnce(t *testing.T) {
	l := twoPhaseLink(t)
	l.stop()
	proxy, through := l.proxied()
	for i, cut := range []struct {
		at      faultnet.Point
		command string
	}{
		{faultnet.Before, "PREPARE TRANSACTION"},
		{faultnet.Reply, "PREPARE TRANSACTION"},
		{faultnet.Before, "COMMIT"},
		{faultnet.Reply, "COMMIT"},
	} {
		l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`)
		l.onTarget(`INSERT INTO c VALUES (1, 'in the way')`)
		l.launch(l.options(twoPhase, func(o *apply.Options) { o.OnError = "pause" }))
		position := finishedAt(t, l.failure("insert_exists").LastError)
		l.stop()
		l.skipAt(position)
		l.onTarget(`UPDATE pgapply.subscription SET enabled = true`)
		fault := proxy.Cut(cut.at, cut.command, 1)
		l.launch(l.options(twoPhase, through))
		happens(t, fault)
		l.catchUp()
		require.Equal(t, "1", l.prepared(), "cut %d", i)
		l.onSource(`COMMIT PREPARED 'a'`)
		l.catchUp()
		require.Equal(t, "1|in the way", pgtest.Query(t, l.target, `SELECT * FROM c`))
		require.Equal(t, `INSERT|{"v": "a", "id": "1"}`, l.kept(), "cut %d", i)
		require.NotZero(t, l.engine.Status().Retries, "cut %d", i)
		l.stop()
		l.both(`DELETE FROM c`)
		l.onTarget(`DELETE FROM pgapply.conflict`)
		l.start(twoPhase)
		l.catchUp() // one row is missing, which is no error
		l.stop()
	}
}

// TestSkipLatePrepared: a transaction from before the slot knew of prepared ones arrives
// at its COMMIT PREPARED, and ends far below what is applied.
func TestSkipLatePrepared(t *testing.T) {
	l := twoPhaseLink(t, func(o *apply.Options) { o.TwoPhase = false })
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`, `INSERT INTO c VALUES (2, 'b')`)
	l.catchUp()
	l.stop()
	l.onTarget(`INSERT INTO c VALUES (1, 'in the way')`)
	l.start(twoPhase)
	l.onSource(`COMMIT PREPARED 'a'`, `INSERT INTO c VALUES (3, 'c')`)
	l.failure("insert_exists")
	pgtest.WaitFor(t, l.target, `SELECT last_error LIKE '%insert_exists%' FROM pgapply.runner`, "t")
	l.skip()
	l.catchUp()
	require.Equal(t, "0", l.prepared())
	require.Equal(t, "1|in the way\n2|b\n3|c", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	require.Equal(t, `INSERT|{"v": "a", "id": "1"}`, l.kept())
}

// TestSkipOfAnEnd: the end of a transaction that the target holds as prepared cannot be
// skipped; with its changes gone it can.
func TestSkipOfAnEnd(t *testing.T) {
	l := twoPhaseLink(t)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`)
	l.catchUp()
	l.stop()
	l.onSource(`COMMIT PREPARED 'a'`, `INSERT INTO c VALUES (2, 'b')`)
	l.skipAt(l.commitPrepared())
	l.launch(l.options(twoPhase))
	l.failure("the transaction cannot be skipped", `it ends prepared transaction "a"`, "pgapply skip --lsn none", "ROLLBACK PREPARED")
	require.Equal(t, "1", l.prepared())
	_, err := operate.Skip(t.Context(), operate.Endpoints{Name: l.name, Target: l.target}, 0)
	require.NoError(t, err)
	require.Equal(t, "1|a\n2|b", l.settled())

	l.onSource(`BEGIN; INSERT INTO c VALUES (3, 'c'); PREPARE TRANSACTION 'c'`)
	l.catchUp()
	l.stop()
	l.onSource(`COMMIT PREPARED 'c'`)
	l.skipAt(l.commitPrepared())
	l.onTarget(`ROLLBACK PREPARED ` + literal(pgtest.Query(t, l.target, `SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`)))
	l.start(twoPhase)
	l.catchUp()
	require.Equal(t, "1|a\n2|b", pgtest.Query(t, l.target, `SELECT * FROM c ORDER BY id`))
	require.Zero(t, l.engine.Status().Retries)
}

// TestSkipWhatIsPrepared: where the changes are prepared already, and only the position
// is not recorded, they go.
func TestSkipWhatIsPrepared(t *testing.T) {
	l := twoPhaseLink(t)
	l.stop()
	proxy, through := l.proxied()
	l.start(twoPhase, through)
	l.catchUp()
	fault := proxy.CutBeforeCommit(1)
	l.onSource(`BEGIN; INSERT INTO c VALUES (1, 'a'); PREPARE TRANSACTION 'a'`)
	happens(t, fault)
	proxy.Refuse() // before it comes back
	l.stop()
	require.Equal(t, "1", l.prepared())
	l.skipAt(l.peek(func(m decoder.Message) lsn.LSN {
		if begin, ok := m.(*decoder.BeginPrepare); ok {
			return begin.EndLSN
		}
		return 0
	}))
	l.start(twoPhase)
	l.catchUp()
	require.Equal(t, "1", l.prepared())
	require.Equal(t, `INSERT|{"v": "a", "id": "1"}`, l.kept())
	l.onSource(`COMMIT PREPARED 'a'`)
	l.catchUp()
	require.Equal(t, "0|", l.prepared()+"|"+pgtest.Query(t, l.target, `SELECT * FROM c`))
}

// commitPrepared is where the COMMIT PREPARED ends that comes next.
func (l *link) commitPrepared() string {
	return l.peek(func(m decoder.Message) lsn.LSN {
		if end, ok := m.(*decoder.CommitPrepared); ok {
			return end.EndLSN
		}
		return 0
	})
}

// peek looks into the slot, which nobody uses, for a position that no error has named.
func (l *link) peek(wanted func(decoder.Message) lsn.LSN) string {
	l.t.Helper()
	frames := pgtest.Query(l.t, l.source, `SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,
		'proto_version', '3', 'publication_names', 'p')`, l.name)
	var d decoder.Decoder
	for frame := range strings.Lines(frames) {
		raw, err := hex.DecodeString(strings.TrimSpace(frame))
		require.NoError(l.t, err)
		message, err := d.Decode(raw)
		require.NoError(l.t, err)
		if position := wanted(message); position != 0 {
			return position.String()
		}
	}
	require.Fail(l.t, "the slot has no such message")
	return ""
}
