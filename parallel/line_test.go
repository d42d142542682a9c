package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLineMoves: what the line says of one group after the other.
func TestLineMoves(t *testing.T) {
	const closed, more = true, true
	offer := func(l *Line, keys ...uint64) Move {
		require.Equal(t, Ask, l.Next(closed, more))
		l.Offer(keys)
		return l.Next(closed, more)
	}
	t.Run("idle", func(t *testing.T) {
		l := NewLine(4, 100)
		require.Equal(t, Apply, l.Next(!closed, !more))
		require.Equal(t, Apply, l.Next(closed, !more), "nobody waits")
		require.Equal(t, Enter, offer(l, 1))
		require.Equal(t, Finish, l.Next(!closed, !more), "it may grow")
		l.Leave(InTurn)
		require.Equal(t, Apply, l.Next(!closed, !more))
	})
	t.Run("extent", func(t *testing.T) {
		l := NewLine(2, 100)
		require.Equal(t, Share, l.Extent())
		require.Equal(t, Enter, offer(l, 1))
		require.Equal(t, Finish, offer(l, 1))
		require.Equal(t, Settled, l.Extent())
		l.Leave(InTurn)
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, Ask, l.Next(closed, more))
		l.Bar()
		require.Equal(t, Whole, l.Extent())
		require.Equal(t, Finish, l.Next(closed, more))
		l.Leave(InTurn)
		require.Equal(t, Apply, l.Next(closed, more))
		require.Equal(t, Whole, l.Extent(), "it will be barred unasked")
		require.Equal(t, Apply, l.Next(closed, more))
		require.Equal(t, Share, l.Extent())
		require.Equal(t, Whole, NewLine(1, 100).Extent())
	})
	t.Run("one session", func(t *testing.T) {
		l := NewLine(1, 100)
		require.Equal(t, Apply, l.Next(closed, more))
	})
	t.Run("beside others", func(t *testing.T) {
		l := NewLine(3, 100)
		require.Equal(t, Enter, offer(l, 1, 2))
		require.Equal(t, Enter, offer(l, 3, 3))
		require.Equal(t, Finish, offer(l, 4, 1), "1 is in line")
		l.Leave(AsHoped)
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 5))
		require.Equal(t, Finish, offer(l, 6), "3 are in line")
		l.Leave(AsHoped)
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, 3, l.Len())
	})
	t.Run("waits for the last that it meets", func(t *testing.T) {
		l := NewLine(4, 100)
		require.Equal(t, Enter, offer(l, 1))
		require.Equal(t, Enter, offer(l, 2))
		require.Equal(t, Finish, offer(l, 2, 1))
		l.Leave(InTurn)
		require.Equal(t, Finish, l.Next(closed, more))
		l.Leave(AsHoped)
		require.Equal(t, Enter, l.Next(closed, more))
	})
	t.Run("barred", func(t *testing.T) {
		l := NewLine(4, 100)
		require.Equal(t, Enter, offer(l, 1))
		require.Equal(t, Ask, l.Next(closed, more))
		l.Bar()
		require.Equal(t, Finish, l.Next(closed, more))
		l.Leave(InTurn)
		require.Equal(t, Apply, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 1))
	})
	t.Run("many keys", func(t *testing.T) {
		l := NewLine(4, 3)
		require.Equal(t, Enter, offer(l, 1, 2, 3, 4), "alone")
		require.Equal(t, Finish, offer(l, 5))
		l.Leave(InTurn)
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 6, 7))
		require.Equal(t, Finish, offer(l, 8))
	})
	t.Run("hot keys", func(t *testing.T) {
		l := NewLine(4, 100)
		var asked []int
		for group := range 200 {
			for at := group; at == group; {
				switch l.Next(closed, more) {
				case Ask:
					asked = append(asked, group)
					l.Offer([]uint64{1})
				case Finish:
					l.Leave(InTurn)
				case Enter, Apply:
					at++
				}
			}
		}
		require.Less(t, len(asked), 20, "%v", asked)
		require.Greater(t, asked[len(asked)-1], 100, "now and then it is tried")
		for l.Len() > 0 {
			l.Leave(InTurn)
		}
		for l.Next(closed, more) == Apply {
		}
		l.Offer([]uint64{2})
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 3))
		l.Leave(InTurn)
		l.Leave(AsHoped)
		require.Equal(t, Enter, offer(l, 4))
		require.Equal(t, Finish, offer(l, 4), "it meets")
		l.Leave(InTurn)
		require.Equal(t, Enter, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 5), "the first time costs nothing")
	})
	t.Run("what misses", func(t *testing.T) {
		l := NewLine(4, 100)
		for range 2 {
			require.Equal(t, Enter, offer(l, 1))
			require.Equal(t, Enter, offer(l, 2))
			l.Leave(InTurn)
			l.Leave(Missed)
		}
		require.Equal(t, Apply, l.Next(closed, more))
		require.Equal(t, Enter, offer(l, 3))
	})
}

// TestGroups plays groups of random transactions as the head does, with a small database,
// random interleavings, failures and conflicts that the keys do not show, and compares
// with the transactions applied one after the other. Time is virtual.
func TestGroups(t *testing.T) {
	for _, sessions := range []int{1, 2, 3, 8} {
		t.Run(fmt.Sprint(sessions, " sessions"), rapid.MakeCheck(func(rt *rapid.T) {
			p := groupPlan{
				sessions: sessions,
				units:    rapid.SliceOfN(rapid.Custom(drawUnit), 20, 60).Draw(rt, "transactions"),
				limit:    rapid.IntRange(1, 4).Draw(rt, "limit"),
				keys:     rapid.IntRange(2, 40).Draw(rt, "keys"),
				stop:     rapid.IntRange(0, 9).Draw(rt, "stop") == 7,
			}
			var failures []string
			synctest.Test(t, func(*testing.T) { failures = p.play() })
			for _, failure := range failures {
				rt.Error(failure)
			}
		}))
	}
}

// groupPlan is what happens: transactions that arrive one after the other.
type groupPlan struct {
	sessions, limit, keys int
	units                 []unit
	stop                  bool // before all are applied
}

// unit is one transaction.
type unit struct {
	changes []change
	secret  bool          // its keys are not known
	barrier bool          // it commits by itself
	pause   time.Duration // until the next one arrives
}

func drawUnit(rt *rapid.T) unit {
	u := unit{
		secret:  rapid.IntRange(0, 14).Draw(rt, "secret") == 7,
		barrier: rapid.IntRange(0, 14).Draw(rt, "barrier") == 7,
		pause:   drawDuration(rt, "pause", 3),
	}
	u.changes = rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) change {
		return change{
			key:     rapid.IntRange(0, 30).Draw(rt, "key"),
			hidden:  rapid.IntRange(100, 160).Draw(rt, "hidden"),
			value:   rapid.IntRange(1, 30).Draw(rt, "value"),
			fails:   rapid.IntRange(0, 29).Draw(rt, "fails") == 17,
			latency: drawDuration(rt, "latency", 5),
		}
	}), 0, 3).Draw(rt, "changes")
	return u
}

// groups is one run of a plan.
type groups struct {
	plan     groupPlan
	line     *Line
	pool     *Pool
	db       *database
	sessions []*session // 0 is the head's
	arrived  chan int
	inLine   []*playedGroup

	mu       sync.Mutex
	waits    *playedGroup // whom the head waits for
	applied  []int
	failures []string
}

type playedGroup struct {
	units   []int
	keys    []uint64
	running *Running
	session *session // who applies it; nil while none does. The mutex of groups guards it.
}

func (p groupPlan) play() []string {
	g := &groups{plan: p, line: NewLine(p.sessions, p.keys), pool: New(p.sessions - 1), db: newDatabase(), arrived: make(chan int, len(p.units))}
	for i := range p.sessions {
		g.sessions = append(g.sessions, g.db.session(i))
	}
	ctx, stop := context.WithCancelCause(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if err := g.head(ctx); err != nil && !errors.Is(err, errStopped) {
			g.fail("the head ends with %v", err)
		}
	}()
	for i, u := range p.units {
		g.arrived <- i
		elapse(u.pause)
	}
	if p.stop {
		stop(errStopped)
	} else {
		close(g.arrived)
	}
	g.cure(gone)
	g.pool.Close()
	stop(nil)
	g.verify()
	return g.failures
}

var errStopped = errors.New("stopped")

func (g *groups) fail(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures = append(g.failures, fmt.Sprintf(format, args...))
}

// cure makes workers yield that stand in the head's way, until it is gone.
func (g *groups) cure(gone chan struct{}) {
	for range 10_000 {
		select {
		case <-gone:
			return
		default:
		}
		synctest.Wait()
		g.mu.Lock()
		var at *session
		if g.waits != nil {
			at = g.waits.session
		}
		g.mu.Unlock()
		if at != nil {
			for _, worker := range at.blockers() {
				g.pool.Yield(worker)
			}
		}
		elapse(time.Second)
	}
	g.fail("the head hangs: %+v", g.pool.Workers())
}

// head forms groups, and does with them what the line says.
func (g *groups) head(ctx context.Context) error {
	var forming []int
	held, open := -1, true
	for {
		closed := false
		for !closed {
			next := held
			held = -1
			if next < 0 && len(forming) == 0 && g.line.Len() == 0 {
				select {
				case i, ok := <-g.arrived:
					if !ok {
						return nil
					}
					next = i
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			} else if next < 0 {
				select {
				case i, ok := <-g.arrived:
					if !ok {
						open = false
						next = -1
					} else {
						next = i
					}
				default:
				}
			}
			if next < 0 {
				break
			}
			if len(forming) > 0 && (g.plan.units[next].barrier || len(forming) == g.plan.limit) {
				held, closed = next, true
				break
			}
			forming = append(forming, next)
			closed = len(forming) == g.plan.limit || g.plan.units[next].barrier
		}
		if len(forming) == 0 {
			if g.line.Len() == 0 && !open {
				return nil
			}
			if err := g.finish(ctx); err != nil {
				return err
			}
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := g.move(ctx, &forming, closed, held >= 0 || len(g.arrived) > 0); err != nil {
			return err
		}
	}
}

func (g *groups) move(ctx context.Context, forming *[]int, closed, more bool) error {
	switch g.line.Next(closed, more) {
	case Finish:
		return g.finish(ctx)
	case Ask:
		if keys, known := g.keysOf(*forming); known {
			g.line.Offer(keys)
		} else {
			g.line.Bar()
		}
		return nil
	case Enter:
		group := &playedGroup{units: *forming}
		group.keys, _ = g.keysOf(*forming)
		for _, other := range g.inLine {
			for _, key := range group.keys {
				if slices.Contains(other.keys, key) {
					g.fail("%v enters beside %v", group.units, other.units)
				}
			}
		}
		if len(g.inLine) > 0 {
			group.running = g.pool.Start(uint32(group.units[0]), func(worker int) Task {
				g.mu.Lock()
				defer g.mu.Unlock()
				group.session = g.sessions[worker]
				return &groupTask{g: g, group: group, session: group.session}
			})
		}
		g.inLine = append(g.inLine, group)
		if len(g.inLine) > g.plan.sessions {
			g.fail("%d groups are in line", len(g.inLine))
		}
	case Apply:
		if len(g.inLine) > 0 {
			g.fail("%v is applied beside others", *forming)
		}
		g.apply(&playedGroup{units: *forming})
	}
	*forming = nil
	return nil
}

// keysOf tells the keys of a group.
func (g *groups) keysOf(units []int) (keys []uint64, known bool) {
	for _, i := range units {
		u := g.plan.units[i]
		if u.secret || u.barrier {
			return nil, false
		}
		for _, c := range u.changes {
			keys = append(keys, uint64(c.key))
		}
	}
	return keys, true
}

// finish has the oldest group commit.
func (g *groups) finish(ctx context.Context) error {
	group := g.inLine[0]
	fate := InTurn
	if group.running != nil {
		g.waitsFor(group)
		done, err := group.running.Finish(ctx, func(task Task) error { return task.(*groupTask).end() })
		g.waitsFor(nil)
		if err != nil {
			return err
		}
		switch {
		case done:
			fate = AsHoped
		case group.session != nil:
			fate = Missed
		}
	}
	if fate != AsHoped {
		g.apply(group)
	}
	g.inLine = g.inLine[1:]
	g.line.Leave(fate)
	return nil
}

func (g *groups) waitsFor(group *playedGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waits = group
}

// apply is the head's own way.
func (g *groups) apply(group *playedGroup) {
	head := g.sessions[0]
	g.mu.Lock()
	group.session, g.waits = head, group
	g.mu.Unlock()
	defer g.waitsFor(nil)
	for _, i := range group.units {
		for _, c := range g.plan.units[i].changes {
			if err := head.apply(c); err != nil {
				g.fail("apply %v: %v", group.units, err)
			}
		}
	}
	g.commit(head, group.units)
}

func (g *groups) commit(s *session, units []int) {
	g.mu.Lock()
	g.applied = append(g.applied, units...)
	g.mu.Unlock()
	s.end(true)
}

// groupTask applies a group on a worker.
type groupTask struct {
	g       *groups
	group   *playedGroup
	session *session
	applied bool
}

func (t *groupTask) Advance(uint64) error {
	if t.applied {
		return nil
	}
	for _, i := range t.group.units {
		for _, c := range t.g.plan.units[i].changes {
			if c.fails {
				return errors.New("injected")
			}
			if err := t.session.apply(c); err != nil {
				return err
			}
		}
	}
	t.applied = true
	return nil
}

func (t *groupTask) end() error {
	if err := t.Advance(0); err != nil {
		return err
	}
	t.g.commit(t.session, t.group.units)
	return nil
}

func (t *groupTask) Abandon() error {
	t.session.end(false)
	return nil
}

func (t *groupTask) Cancel() { t.session.cancel() }

// verify compares the end with the transactions applied one after the other.
func (g *groups) verify() {
	if len(g.applied) != len(g.plan.units) && !g.plan.stop {
		g.fail("%d of %d transactions were applied", len(g.applied), len(g.plan.units))
	}
	rows := map[int]int{}
	for i, unit := range g.applied {
		if unit != i {
			g.fail("commit %d is of %d", i, unit)
		}
		for _, c := range g.plan.units[unit].changes {
			rows[c.key] = c.of(rows[c.key])
		}
	}
	if diff := cmp.Diff(rows, g.db.rows); diff != "" {
		g.fail("rows, as they should be and as they are:\n%s", diff)
	}
	if len(g.db.locks) > 0 {
		g.fail("%d locks remain", len(g.db.locks))
	}
}

// TestGroupsRunBeside: groups that do not meet take the time of one.
func TestGroupsRunBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := groupPlan{sessions: 4, limit: 1, keys: 100}
		for i := range 40 {
			p.units = append(p.units, unit{changes: []change{{key: i, hidden: 100 + i, value: 1, latency: time.Minute}}})
		}
		began := time.Now()
		require.Empty(t, p.play())
		require.Less(t, time.Since(began), 16*time.Minute)
	})
}
