package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/lsn"
	"pgapply/internal/pgtest"
)

// fieldPair are the servers that examples are played on.
type fieldPair struct{ publisher, target *cluster.Cluster }

func startFieldPair(t testing.TB) fieldPair {
	t.Helper()
	options := []pgtest.Option{pgtest.OnMajor(18), pgtest.With("logical_decoding_work_mem", "64kB")}
	return fieldPair{
		publisher: pgtest.Start(t, options...),
		target:    pgtest.Start(t, append(options, pgtest.With("track_commit_timestamp", "on"))...),
	}
}

// fieldCase is one example in one variant while it is played.
type fieldCase struct {
	t *testing.T
	// ctx ends with the time for the case, or with the test. looking ends a little
	// later, so that it can still be said what was there instead.
	ctx      context.Context
	looking  context.Context
	example  *fieldExample
	name     string // of both databases, the subscription and the slot
	pair     fieldPair
	pub, tgt *fieldEnd
	engine   *fieldEngine
	sessions map[string]*fieldSession
	watches  []*fieldWatch

	place     string      // what is being played, for messages
	lastBlock *fieldBlock // the last one that was played
	// probed says that there is an ERRSTOP, which needs the slot probe.
	probed  bool
	probe   string
	failing lsn.LSN // where the transaction of the last ERRSTOP ends
}

// fieldFailure is what was not as the script says it should be.
type fieldFailure struct{ place, what string }

func (f *fieldFailure) Error() string { return f.place + ": " + f.what }

// playField plays one variant of an example, in a test of its own. It returns a
// *fieldFailure when the engine does not what the script says.
func playField(t *testing.T, pair fieldPair, example *fieldExample, variant string) (failure error) {
	defer func() {
		reason := recover()
		failed, ok := reason.(*fieldFailure)
		if ok {
			failure = failed
		} else if reason != nil {
			panic(reason)
		}
	}()
	script, err := example.script(variant)
	require.NoError(t, err)
	steps, probed := fieldSteps(), false
	for _, item := range script {
		if item.step == nil {
			continue
		}
		if _, known := steps[item.step.verb]; !known {
			return &fieldFailure{fmt.Sprintf("%s:%d", example.file, item.line), "there is no step " + item.step.verb}
		}
		probed = probed || item.step.verb == "ERRSTOP"
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), example.limit, fmt.Errorf("the case's limit of %s is over", example.limit))
	t.Cleanup(cancel)
	looking, blind := context.WithTimeout(t.Context(), example.limit+10*time.Second)
	t.Cleanup(blind)
	c := &fieldCase{
		t: t, ctx: ctx, looking: looking, example: example, name: fieldName(example.name, variant), pair: pair,
		probed: probed, sessions: make(map[string]*fieldSession),
	}
	c.pub = newFieldEnd(c, "pub", pair.publisher, example.encodings["pub"])
	c.tgt = newFieldEnd(c, "tgt", pair.target, example.encodings["tgt"])
	c.engine = newFieldEngine(c)

	for i, item := range script {
		if item.block != nil {
			c.place = fmt.Sprintf("%s:%d: sql %s", example.file, item.line, item.block.end)
			c.play(item.block)
			c.lastBlock = item.block
			continue
		}
		c.place = fmt.Sprintf("%s:%d: %s", example.file, item.line, item.step.verb)
		if item.step.verb == "ERRSTOP" {
			c.errStop(item.step.argument, pairsBelow(script[i+1:]))
		} else {
			steps[item.step.verb](c, item.step.argument)
		}
		c.engine.markStep()
	}
	c.place = fmt.Sprintf("%s: the end", example.file)
	c.endWatches()
	c.engine.finish()
	return nil
}

// fieldName makes a name that needs no quotes as database, slot and subscription.
func fieldName(example, variant string) string {
	word := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, strings.ToLower(example+"_"+variant))
	return "f_" + strings.TrimRight(fmt.Sprintf("%.50s", word), "_")
}

// fail ends the case: it unwinds to playField.
func (c *fieldCase) fail(format string, arguments ...any) {
	what := fmt.Sprintf(format, arguments...)
	if over := context.Cause(c.ctx); over != nil {
		what = over.Error() + ": " + what // and may be the cause of what failed
	}
	panic(&fieldFailure{c.place, what})
}

// end returns the end that a block names.
func (c *fieldCase) end(name string) *fieldEnd {
	if name == "pub" {
		return c.pub
	}
	return c.tgt
}

// play runs a block and compares what it prints.
func (c *fieldCase) play(block *fieldBlock) {
	switch {
	case block.end == "both":
		c.run(c.pub, "", block.statements)
		c.run(c.tgt, "", block.statements)
	case block.end == "check":
		published, applied := c.run(c.pub, "", block.statements), c.run(c.tgt, "", block.statements)
		if published == "" {
			c.fail("the check prints nothing")
		}
		if published != applied {
			c.fail("the ends differ (-publisher +target):\n%s", cmp.Diff(published, applied))
		}
		c.expect(block, applied)
	case block.background:
		c.session(c.end(block.end), block.session).begin(block.statements)
	default:
		c.expect(block, c.run(c.end(block.end), block.session, block.statements))
	}
}

func (c *fieldCase) expect(block *fieldBlock, have string) {
	if block.expect != nil && *block.expect != have {
		c.fail("the target prints something else (-want +have):\n%s", cmp.Diff(*block.expect, have))
	}
}

// run runs statements in a named session, or in one of their own.
func (c *fieldCase) run(end *fieldEnd, session string, statements []string) string {
	if session != "" {
		s := c.session(end, session)
		s.begin(statements)
		return c.wait(s)
	}
	printed, err := end.once(c.ctx, statements)
	if err != nil {
		c.fail("on %s: %v", end.name, err)
	}
	return printed
}

// wait waits for the statements that a session is at.
func (c *fieldCase) wait(s *fieldSession) string {
	if s.answer == nil {
		c.fail("session %s has nothing to do", s.name)
	}
	answer := <-s.answer // it ends with c.ctx
	s.answer = nil
	if answer.err != nil {
		c.fail("on %s, session %s: %v", s.end.name, s.name, answer.err)
	}
	return answer.printed
}

// session returns a session by its name, which stays until the end of the case.
func (c *fieldCase) session(end *fieldEnd, name string) *fieldSession {
	key := end.name + " " + name
	if s := c.sessions[key]; s != nil {
		if s.answer != nil {
			c.fail("session %s is still at work: WAIT(%s) first", name, name)
		}
		return s
	}
	connection, err := end.connect(c.ctx)
	if err != nil {
		c.fail("on %s: %v", end.name, err)
	}
	s := &fieldSession{name: name, end: end, connection: connection, ctx: c.ctx}
	c.sessions[key] = s
	c.t.Cleanup(s.close)
	return s
}

// await looks every 20 ms until what it waits for is there. look returns what it
// sees instead, for the message.
func (c *fieldCase) await(limit time.Duration, what string, look func() (reached bool, have string)) {
	expired := time.NewTimer(limit)
	defer expired.Stop()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		reached, have := look()
		if reached {
			return
		}
		select {
		case <-pause.C:
		case <-expired.C:
			c.fail("%s: not within %s, but %s", what, limit, have)
		case <-c.ctx.Done():
			c.fail("%s: still %s", what, have)
		}
	}
}

// hold looks every 100 ms for as long as said. look ends the case when it sees
// what must not be.
func (c *fieldCase) hold(period time.Duration, look func()) {
	over := time.NewTimer(period)
	defer over.Stop()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for {
		look()
		select {
		case <-pause.C:
		case <-over.C:
			look()
			return
		case <-c.ctx.Done():
			c.fail("no time is left")
		}
	}
}

// ask queries an end, and ends the case when that fails.
func (c *fieldCase) ask(end *fieldEnd, sql string, arguments ...any) string {
	printed, err := end.ask(c.looking, sql, arguments...)
	if err != nil {
		c.fail("on %s: %v", end.name, err)
	}
	return printed
}

// pairsBelow are the blocks on the target, with what is expected of them, that
// follow a step at once.
func pairsBelow(script []fieldItem) []*fieldBlock {
	var pairs []*fieldBlock
	for _, item := range script {
		if item.block == nil || item.block.end != "tgt" || item.block.expect == nil {
			break
		}
		pairs = append(pairs, item.block)
	}
	return slices.Clip(pairs)
}
