//go:build !race

package txn

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/invariant"
)

// Rows cost no allocation, neither when they arrive nor when they are replayed,
// in memory or spooled: a transaction of many rows costs what one of few does.
// (The race detector makes sync.Pool forget at random, so it is not there.)
func TestRowsCostNoAllocation(t *testing.T) {
	w := wire{}
	begin, commit := w.begin(7, 1), w.commit(7, 1, 2)
	insert := w.insert(0, 1, text("1", strings.Repeat("x", 100)))
	other := w.insert(0, 2, text("1", strings.Repeat("x", 100)))
	for name, options := range map[string]Options{
		"memory":  {Budget: NewBudget(64 << 20)},
		"spooled": {Budget: NewBudget(512 << 10), Spool: (&reusedSpool{}).create},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAssembler(options)
			feed(t, a, begin, w.relation(0, table(1, "t", "id", "v")), w.relation(0, table(2, "u", "id", "v")))
			finish(t, a, commit).Release()
			perTransaction := func(rows int) float64 {
				return testing.AllocsPerRun(5, func() {
					feed(t, a, begin)
					for range rows / 2 {
						_, _ = a.Add(insert)
						_, _ = a.Add(other)
					}
					transaction := finish(t, a, commit)
					for range 2 {
						changes, err := replay(transaction)
						require.NoError(t, err)
						require.Equal(t, rows, changes)
					}
					transaction.Release()
				})
			}
			few, many := perTransaction(100), perTransaction(20_000)
			t.Logf("allocations: %.0f for 100 rows, %.0f for 20,000", few, many)
			require.Less(t, few, 20.0)
			require.Less(t, many, few+100, "a few are the list of chunks")
		})
	}
}

// Small transactions wait for the commit of their group by the thousand: they are
// allocated by the dozen and share pages, and cost nothing more for being replayed.
func TestSmallTransactionsCostNoAllocationEach(t *testing.T) {
	const group = 1000
	w := wire{}
	begin, insert, commit := w.begin(7, 1), w.insert(0, 1, text("1", "2", "3")), w.commit(7, 1, 2)
	a := NewAssembler(Options{Budget: NewBudget(64 << 20)})
	feed(t, a, begin, w.relation(0, table(1, "t", "a", "b", "c")))
	finish(t, a, commit).Release()
	held := make([]*Transaction, 0, group)
	perGroup := testing.AllocsPerRun(5, func() {
		// It runs often enough that little is left of the last group's memory.
		runtime.GC()
		runtime.GC()
		for range group {
			_, _ = a.Add(begin)
			_, _ = a.Add(insert)
			transaction, _ := a.Add(commit)
			held = append(held, transaction)
		}
		for _, transaction := range held {
			if changes, err := replay(transaction); changes != 1 || err != nil {
				t.Fatal(changes, err)
			}
		}
		for _, transaction := range held {
			transaction.Release()
		}
		held = held[:0]
	})
	t.Logf("allocations: %.0f for %d transactions", perGroup, group)
	most := 0.1
	if invariant.Enabled {
		most += 7 // no decoder is used twice then
	}
	require.Less(t, perGroup, most*group)
}

// Neither do those that are followed while they arrive.
func TestFollowingCostsNoAllocation(t *testing.T) {
	for name, options := range map[string]Options{
		"memory":  {Budget: NewBudget(64 << 20)},
		"spooled": {Budget: NewBudget(512 << 10), Spool: (&reusedSpool{}).create},
	} {
		t.Run(name, func(t *testing.T) {
			followed := &latest{}
			options.Streams = followed
			a, w := NewAssembler(options), wire{}
			start, relation := w.streamStart(7, true), w.relation(7, table(1, "t", "id", "v"))
			insert := w.insert(7, 1, text("1", strings.Repeat("x", 100)))
			again, stop, commit := w.streamStart(7, false), w.streamStop(), w.streamCommit(7, 1, 2)
			perTransaction := func(rows int) float64 {
				return testing.AllocsPerRun(5, func() {
					feed(t, a, start, relation, stop)
					follower := followed.open.Follow()
					for block := range 10 {
						feed(t, a, again)
						for range rows / 10 {
							_, _ = a.Add(insert)
						}
						feed(t, a, stop)
						for range rows/10 - block {
							if _, found, err := follower.Next(a.Completed()); !found || err != nil {
								t.Fatal(found, err)
							}
						}
					}
					transaction := finish(t, a, commit)
					follower.Close()
					transaction.Release()
				})
			}
			few, many := perTransaction(100), perTransaction(20_000)
			t.Logf("allocations: %.0f for 100 rows, %.0f for 20,000", few, many)
			require.Less(t, few, 60.0)
			require.Less(t, many, few+100, "a few are the list of chunks")
		})
	}
}
