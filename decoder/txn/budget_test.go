package txn

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWaitForReadyTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		b.charge(90) // what is open does not count
		require.NoError(t, b.Wait(t.Context()))
		b.complete(50, 0)
		require.NoError(t, b.Wait(t.Context()), "half is allowed")
		b.complete(20, 0)
		require.EqualValues(t, 90, b.Used())

		waiting := make(chan error, 2)
		for range cap(waiting) {
			go func() { waiting <- b.Wait(t.Context()) }()
		}
		synctest.Wait()
		require.Empty(t, waiting)
		b.release(19, 0)
		synctest.Wait()
		require.Empty(t, waiting)
		b.release(1, 0)
		synctest.Wait()
		require.Len(t, waiting, 2)
		require.NoError(t, <-waiting)
		require.NoError(t, <-waiting)
	})
}

// A target that is slow must not make the disk full: of transactions with spool
// files one is being applied, one waits, and no more arrive.
func TestWaitForSpooledTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spool := &memorySpool{}
		b := NewBudget(5000)
		a := NewAssembler(Options{Budget: b, Spool: spool.create})
		first := inserts(t, a, 7, 1, 10_000)
		require.NoError(t, b.Wait(cancelled(t)))
		second := inserts(t, a, 8, 1, 10_000)
		require.Equal(t, 2, spool.open())

		waiting := make(chan error, 1)
		go func() { waiting <- b.Wait(t.Context()) }()
		synctest.Wait()
		require.Empty(t, waiting)
		first.Release()
		require.NoError(t, <-waiting)
		second.Release()
		require.Zero(t, b.files.Load())
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	b := NewBudget(100)
	b.charge(51)
	b.complete(51, 0)
	cause := errors.New("the stream is stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	require.ErrorIs(t, b.Wait(ctx), cause)
	b.release(51, 0)
	require.NoError(t, b.Wait(t.Context()))
}

// Memory counts by its capacity until Release, whoever calls it however often.
func TestReleaseGivesMemoryBack(t *testing.T) {
	b := NewBudget(10_000)
	a := NewAssembler(Options{Budget: b})
	first := inserts(t, a, 7, 1, 20<<10) // a chunk of its own, of 64 KiB
	require.Greater(t, b.Used(), int64(64<<10))
	second := inserts(t, a, 8, 1, 10)
	used := b.Used()
	require.Error(t, b.Wait(cancelled(t)), "a large transaction holds the reader back")
	second.Release()
	second.Release()
	require.Less(t, b.Used(), used)
	require.Error(t, b.Wait(cancelled(t)))
	first.Release()
	require.NoError(t, b.Wait(cancelled(t)))
	require.Zero(t, b.Used())
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestChunkCapacities(t *testing.T) {
	for size, capacity := range map[int]int{
		0: 256, 1: 256, 256: 256, 257: 1 << 10, 1 << 10: 1 << 10, 1<<10 + 1: 4 << 10, 4 << 10: 4 << 10,
		4<<10 + 1: 16 << 10, 16<<10 + 1: 64 << 10, 64<<10 + 1: 256 << 10,
		256 << 10: 256 << 10, 256<<10 + 1: 256<<10 + 1,
	} {
		require.Equal(t, capacity, chunkCapacity(size), "%d bytes", size)
		var r recycler
		require.EqualValues(t, capacity, r.newChunk(size).capacity())
	}
	for class := range chunkSizes {
		require.Equal(t, class, sizeClass(smallestChunk<<(2*class)))
	}
	require.Equal(t, largestChunk, smallestChunk<<(2*(chunkSizes-1)))
}
