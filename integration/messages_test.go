package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// mailbox is a handler of messages that the test answers for, one by one.
type mailbox struct {
	t        *testing.T
	messages chan apply.Message
	answers  chan error
}

func newMailbox(t *testing.T) *mailbox {
	return &mailbox{t: t, messages: make(chan apply.Message), answers: make(chan error)}
}

func (b *mailbox) HandleMessage(ctx context.Context, m apply.Message) error {
	m.Content = append([]byte(nil), m.Content...)
	select {
	case b.messages <- m:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-b.answers:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next waits for a message, whose handler then waits for an answer.
func (b *mailbox) next() apply.Message {
	b.t.Helper()
	select {
	case m := <-b.messages:
		return m
	case <-time.After(time.Minute):
		require.Fail(b.t, "no message comes")
		return apply.Message{}
	}
}

// take waits for this message.
func (b *mailbox) take(content string) apply.Message {
	b.t.Helper()
	m := b.next()
	require.Equal(b.t, content, string(m.Content))
	return m
}

func (b *mailbox) answer(err error) {
	b.t.Helper()
	select {
	case b.answers <- err:
	case <-time.After(time.Minute):
		require.Fail(b.t, "nobody waits for an answer")
	}
}

// accept takes the next messages, in this order.
func (b *mailbox) accept(contents ...string) {
	b.t.Helper()
	for _, content := range contents {
		b.take(content)
		b.answer(nil)
	}
}

func (b *mailbox) option(o *apply.Options) { o.MessageHandler = b }

// messageLink has a table on both ends, and publishes it.
func messageLink(t *testing.T) *link {
	l := newLink(t)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	return l
}

// emit is SQL that writes a transactional message.
func emit(content string) string {
	return fmt.Sprintf("SELECT pg_logical_emit_message(true, 'known', '%s')", content)
}

// notebook is a handler that writes down what comes.
type notebook chan apply.Message

func (n notebook) HandleMessage(_ context.Context, m apply.Message) error {
	m.Content = append([]byte(nil), m.Content...)
	n <- m
	return nil
}

// TestMessageHandlerOrder: messages come in the order of the commits, alone and in
// groups, from large transactions as from small ones, and without those that were rolled
// back, of which a publisher that streams would not tell.
func TestMessageHandlerOrder(t *testing.T) {
	eachMode(t, func(t *testing.T, l *link) {
		notes := make(notebook, 100)
		change := l.mode.change
		l.mode.change = func(o *apply.Options) { change(o); o.MessageHandler = notes }
		l.streamEarly()
		l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
		l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
		l.play(`SELECT pg_logical_emit_message(true, 'not known', 'first')`)
		if l.mode.backlog {
			l.stop()
		}
		early, late := session(t, l.source), session(t, l.source)
		early(`BEGIN; ` + emit("early 1") + `; INSERT INTO t VALUES (1, 'early')`)
		late(`BEGIN; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(100, 3000) g; ` + emit("late 1"))
		late(`SAVEPOINT lost; ` + emit("lost") + `; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(4000, 7000) g`)
		late(`ROLLBACK TO lost; ` + emit("late 2"))
		late(`SAVEPOINT kept; ` + emit("late 3") + `; RELEASE kept`)
		l.onSource(`BEGIN; INSERT INTO t VALUES (2, 'x'); ` + emit("between 1") + `; ` + emit("between 2") + `; COMMIT`)
		l.onSource(`BEGIN; ` + emit("rolled back") + `; ROLLBACK`)
		early(emit("early 2") + `; COMMIT`)
		l.onSource(emit("alone"))
		late(`COMMIT`)
		l.onSource(`INSERT INTO t VALUES (3, 'y')`, emit("last"))
		if l.mode.backlog {
			l.start()
		}
		l.catchUp()
		l.same(`SELECT * FROM t ORDER BY id`)
		var contents []string
		var before apply.Message
		for len(notes) > 0 {
			m := <-notes
			contents = append(contents, string(m.Content))
			require.True(t, m.EndLSN > before.EndLSN || m.EndLSN == before.EndLSN && m.LSN > before.LSN, "%v is not after %v", m, before)
			require.True(t, m.Transactional())
			require.NotZero(t, m.XID)
			require.Less(t, m.LSN, m.EndLSN)
			require.False(t, m.CommitTime.Before(before.CommitTime))
			before = m
		}
		require.Equal(t, []string{"first", "between 1", "between 2", "early 1", "early 2", "alone", "late 1", "late 2", "late 3", "last"}, contents)
		require.Zero(t, l.engine.Status().Retries)
		require.Empty(t, pgtest.Query(t, l.target, `SELECT * FROM pgapply.message`), "nobody has asked for it")
	})
}

// TestMessageHandlerBeforeCommit: neither the rows of the transaction are visible, nor
// is its position acknowledged, before the handler has returned.
func TestMessageHandlerBeforeCommit(t *testing.T) {
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option)
	l.onSource(`BEGIN; INSERT INTO t VALUES (1); `+emit("one")+`; INSERT INTO t VALUES (2); COMMIT`, `INSERT INTO t VALUES (3)`)
	m := box.take("one")
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	// All of it was written by then: the change behind the message too.
	pgtest.WaitFor(t, l.target, `SELECT query LIKE 'SET CONSTRAINTS%' FROM pg_stat_activity WHERE application_name = $1`, "t", l.name+":w0")
	require.Equal(t, "t", pgtest.Query(t, l.source, `SELECT confirmed_flush_lsn < $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, m.EndLSN.String(), l.name))
	box.answer(nil)
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

// TestMessageHandlerAtOnce: a message that is not transactional comes while its
// transaction runs, which may still be rolled back.
func TestMessageHandlerAtOnce(t *testing.T) {
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option, func(o *apply.Options) { o.Messages = "table" })
	writer := session(t, l.source)
	writer(`BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(false, 'now', 'at once')`)
	l.onSource(`INSERT INTO t VALUES (2)`) // which flushes the log
	m := box.take("at once")
	require.False(t, m.Transactional())
	require.Zero(t, m.XID)
	require.Equal(t, "now", m.Prefix)
	// It is also where it was written, and nothing behind it is acknowledged.
	require.Equal(t, m.LSN.String(), pgtest.Query(t, l.target, `SELECT remote_lsn FROM pgapply.message`))
	require.Equal(t, "t", pgtest.Query(t, l.source, `SELECT confirmed_flush_lsn <= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, m.LSN.String(), l.name))
	box.answer(nil)
	writer(`ROLLBACK`)
	l.catchUp()
	require.Equal(t, "2", pgtest.Query(t, l.target, `SELECT id FROM t`))

	// One that is refused is an apply error, and comes again.
	l.onSource(`SELECT pg_logical_emit_message(false, 'now', 'refused')`, `INSERT INTO t VALUES (3)`)
	box.take("refused")
	box.answer(errors.New("the broker is away"))
	l.failure(`prefix "now"`, "the broker is away", "mend what the handler")
	box.accept("refused")
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
	require.Equal(t, "2", pgtest.Query(t, l.target, `SELECT count(*) FROM pgapply.message`), "each is kept once")
}

// TestMessageHandlerRefuses: an error of the handler is an apply error: nothing of the
// transaction is applied, nothing after it, and the message comes again. What shared
// its target transaction comes again too, and is committed by itself.
func TestMessageHandlerRefuses(t *testing.T) {
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option)
	l.stop()
	l.onSource(`BEGIN; INSERT INTO t VALUES (1); `+emit("one")+`; COMMIT`,
		`BEGIN; INSERT INTO t VALUES (2); `+emit("two")+`; COMMIT`, `INSERT INTO t VALUES (3)`)
	l.launch(l.options(box.option))
	box.accept("one")
	alone := false
	for refusals := 0; refusals < 4; { // in the group, in half of it, alone, and exactly
		m := box.next()
		if string(m.Content) == "one" {
			require.False(t, alone, "it comes again once")
			alone = true
			box.answer(nil)
			continue
		}
		require.Equal(t, "two", string(m.Content))
		box.answer(errors.New("the broker is away"))
		refusals++
	}
	status := l.failure(`prefix "known"`, "the broker is away", "mend what the handler")
	require.Contains(t, status.LastErrorHint, "skip --lsn "+finishedAt(t, status.LastError))
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT id FROM t`))
	box.accept("two")
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

// TestMessageHandlerOnError: the option decides what follows, and a skip passes the
// handler by, but loses nothing.
func TestMessageHandlerOnError(t *testing.T) {
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option, func(o *apply.Options) { o.OnError = "stop" })
	l.onSource(`BEGIN; INSERT INTO t VALUES (1); ` + emit("unbearable") + `; COMMIT`)
	refusal := errors.New("cannot be borne")
	for range 2 {
		box.take("unbearable")
		box.answer(refusal)
	}
	err := l.wait()
	requireClass(t, apply.Conflict, err, "cannot be borne", "mend what the handler")
	require.ErrorIs(t, err, refusal)
	position, err := lsn.Parse(finishedAt(t, err.Error()))
	require.NoError(t, err)
	_, err = l.store().SetSkip(t.Context(), position)
	require.NoError(t, err)
	l.onSource(`BEGIN; INSERT INTO t VALUES (2); ` + emit("good") + `; COMMIT`)
	l.start(box.option)
	box.accept("good")
	l.catchUp()
	require.Equal(t, "2", pgtest.Query(t, l.target, `SELECT id FROM t`))
	require.Equal(t, "known|unbearable|t", pgtest.Query(t, l.target, `SELECT prefix, convert_from(content, 'UTF8'), transactional FROM pgapply.message`))
}

// TestMessageHandlerComesAgain: what was handled and not committed is handled again,
// what was committed is not.
func TestMessageHandlerComesAgain(t *testing.T) {
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option)
	l.onSource(`BEGIN; INSERT INTO t VALUES (1); ` + emit("one") + `; COMMIT`)
	first := box.take("one")
	// As if the process had died between the handler and the commit.
	l.onTarget(`SELECT pg_terminate_backend(` + l.applyBackend() + `)`)
	box.answer(nil)
	again := box.take("one")
	require.Equal(t, first, again)
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	// A stop lets the handler finish, and the transaction with it.
	l.cancel()
	box.answer(nil)
	require.NoError(t, l.wait())
	require.Equal(t, "1", pgtest.Query(t, l.target, `SELECT id FROM t`))
	l.onSource(`BEGIN; INSERT INTO t VALUES (2); ` + emit("two") + `; COMMIT`)
	l.start(box.option)
	box.accept("two")
	l.catchUp()
	l.same(`SELECT * FROM t ORDER BY id`)
}

// TestMessageHandlerIsStopped: one that waits for something else does not keep the
// engine from pausing or stopping; its transaction is rolled back.
func TestMessageHandlerIsStopped(t *testing.T) {
	t.Parallel()
	l, box := messageLink(t), newMailbox(t)
	l.start(box.option)
	l.onSource(`BEGIN; INSERT INTO t VALUES (1); ` + emit("one") + `; COMMIT`)
	box.take("one")
	_, err := l.store().Pause(t.Context(), "")
	require.NoError(t, err)
	pgtest.WaitFor(t, l.target, `SELECT status ->> 'state' FROM pgapply.runner`, string(state.Paused))
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	_, err = l.store().Resume(t.Context())
	require.NoError(t, err)
	box.accept("one")
	l.catchUp()
	l.same(`SELECT * FROM t`)
}
