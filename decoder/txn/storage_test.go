package txn

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
)

func row(size int) []decoder.Value { return text(strings.Repeat("x", size)) }

// The largest transaction leaves memory first, not the one that needs room.
func TestTheLargestSpillsFirst(t *testing.T) {
	w := wire{}
	spool := &memorySpool{}
	a := NewAssembler(Options{Budget: NewBudget(60_000), Spool: spool.create})
	for xid, rows := range map[uint32]int{7: 15, 8: 1} {
		feed(t, a, w.streamStart(xid, true), w.relation(xid, table(1, "t", "v")))
		for range rows {
			feed(t, a, w.insert(xid, 1, row(1000)))
		}
		feed(t, a, w.streamStop())
	}
	large, small := a.streams[7], a.streams[8]
	require.Zero(t, spool.open())
	feed(t, a, w.streamStart(8, false))
	for spool.open() == 0 {
		feed(t, a, w.insert(8, 1, row(1000)))
	}
	require.Zero(t, large.tape.memory)
	require.Equal(t, large.tape.size, large.tape.stored)
	require.Zero(t, small.tape.stored)
	require.NotZero(t, small.tape.memory)
	require.Equal(t, large.tape.size, a.Stats().SpooledBytes)
	require.NoError(t, a.Close())
	require.Zero(t, a.Stats())
}

// With a file once, a transaction does not fill memory again: it writes what it
// has gathered when that is enough for a good write.
func TestSpooledTransactionStaysSmall(t *testing.T) {
	w := wire{}
	spool := &memorySpool{}
	a := NewAssembler(Options{Budget: NewBudget(64 << 20), Spool: spool.create})
	feed(t, a, w.begin(7, 1), w.relation(0, table(1, "t", "v")), w.insert(0, 1, row(1000)))
	require.NoError(t, a.spill(a.current))
	for range 5000 {
		feed(t, a, w.insert(0, 1, row(1000)))
		require.Less(t, a.current.tape.memory, int64(2*largestChunk))
	}
	transaction := finish(t, a, w.commit(7, 1, 2))
	require.Greater(t, transaction.tape.stored, int64(4_000_000))
	changes, err := replay(transaction)
	require.NoError(t, err)
	require.Equal(t, 5001, changes)
	require.NotZero(t, len(transaction.tape.chunks), "the end must come from memory")
}

// A record that is larger than all the memory there is goes through.
func TestRecordLargerThanTheBudget(t *testing.T) {
	w := wire{}
	spool := &memorySpool{}
	b := NewBudget(100_000)
	a := NewAssembler(Options{Budget: b, Spool: spool.create})
	feed(t, a, w.begin(7, 1), w.relation(0, table(1, "t", "v")))
	sizes := []int{10, 1_000_000, 10, 300_000, 5000}
	for _, size := range sizes {
		feed(t, a, w.insert(0, 1, row(size)))
		require.LessOrEqual(t, b.Used(), int64(50_000))
	}
	transaction := finish(t, a, w.commit(7, 1, 2))
	for range 2 {
		reader := transaction.Changes()
		for _, size := range sizes {
			change, err := reader.Next()
			require.NoError(t, err)
			require.Len(t, change.Message.(*decoder.Insert).New[0].Data, size)
		}
		require.Greater(t, b.Used(), int64(1_000_000), "the memory of the replay counts")
	}
	transaction.Release()
	require.Zero(t, b.Used())
}

// Savepoints cost memory too, as loops with exception handlers make many.
func TestSubtransactionsCount(t *testing.T) {
	w := wire{}
	b := NewBudget(1 << 20)
	a := NewAssembler(Options{Budget: b})
	feed(t, a, w.streamStart(7, true), w.relation(7, table(1, "t")))
	before := b.Used()
	for xid := range uint32(10_000) {
		feed(t, a, w.relation(xid+10, table(1, "t")))
	}
	require.Greater(t, b.Used()-before, int64(10_000*(80+200)))
	feed(t, a, w.streamStop())
	full := b.Used()
	for xid := range uint32(10_000) {
		feed(t, a, w.streamAbort(7, xid+10))
	}
	require.Empty(t, a.streams[7].markOf)
	require.Less(t, b.Used(), full-10_000*200+1000)
	transaction := finish(t, a, w.streamCommit(7, 1, 2))
	require.Less(t, b.Used(), int64(2000), "what only an open transaction needs is free")
	transaction.Release()
	require.Zero(t, b.Used())
}

func TestSpoolErrorsNameTheTransaction(t *testing.T) {
	w := wire{}
	fault := errors.New("no file for you")
	for name, spool := range map[string]func() (SpoolFile, error){
		"create": func() (SpoolFile, error) { return nil, fault },
		"write":  func() (SpoolFile, error) { return &faultyFile{fault: fault, fails: "write"}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAssembler(Options{Budget: NewBudget(1), Spool: spool})
			feed(t, a, w.begin(7, 1), w.relation(0, table(1, "t", "v")))
			_, err := a.Add(w.insert(0, 1, row(10)))
			require.ErrorIs(t, err, fault)
			require.EqualError(t, err, "spool transaction 7: no file for you")
			_, again := a.Add(w.commit(7, 1, 2))
			require.Equal(t, err, again, "the transaction must not pass as complete")
			require.NoError(t, a.Close())
			require.Zero(t, a.Stats())
		})
	}
}

func TestSpillAndTruncateErrors(t *testing.T) {
	w := wire{}
	fault := errors.New("the disk is gone")
	for _, fails := range []string{"write", "truncate", "close", "read"} {
		t.Run(fails, func(t *testing.T) {
			file := &faultyFile{fault: fault}
			a := NewAssembler(Options{
				Budget: NewBudget(1 << 20),
				Spool:  func() (SpoolFile, error) { return file, nil },
			})
			feed(t, a, w.streamStart(7, true), w.relation(7, table(1, "t", "v")),
				w.insert(7, 1, row(10)), w.insert(8, 1, row(10)), w.streamStop())
			if fails == "write" {
				file.fails = fails
				require.EqualError(t, a.spill(a.streams[7]), "spool transaction 7: the disk is gone")
				return
			}
			require.NoError(t, a.spill(a.streams[7]))
			file.fails = fails
			var err error
			switch fails {
			case "truncate":
				_, err = a.Add(w.streamAbort(7, 8))
			case "close":
				err = a.Close()
			case "read":
				_, err = finish(t, a, w.streamCommit(7, 1, 2)).Changes().Next()
			}
			require.ErrorIs(t, err, fault)
			require.ErrorContains(t, err, "transaction 7")
		})
	}
}

// A file that does not hold what was written is found out.
func TestDamagedSpool(t *testing.T) {
	w := wire{}
	for name, damaged := range map[string]struct {
		how    func(*memoryFile)
		reason string
	}{
		"short":       {func(f *memoryFile) { f.data = f.data[:len(f.data)-1] }, "unexpected EOF"},
		"long record": {func(f *memoryFile) { f.data[0] = 0xFF }, "reaches beyond its end"},
		"other byte":  {func(f *memoryFile) { f.data[recordHeader] = '?' }, "unknown message type"},
	} {
		t.Run(name, func(t *testing.T) {
			spool, streams := &memorySpool{}, &latest{}
			a := NewAssembler(Options{Budget: NewBudget(1), Spool: spool.create, Streams: streams})
			feed(t, a, w.streamStart(7, true), w.relation(7, table(1, "t", "v")))
			for range 300 { // more than is read at once
				feed(t, a, w.insert(7, 1, row(1000)))
			}
			feed(t, a, w.streamStop())
			transaction := finish(t, a, w.streamCommit(7, 1, 2))
			damaged.how(spool.files[0])
			_, err := replay(transaction)
			require.ErrorContains(t, err, "read transaction 7: ")
			require.ErrorContains(t, err, damaged.reason)
			require.Less(t, a.budget.Used(), int64(1<<20), "memory for what is not there")
			follower := streams.open.Follow()
			for err = nil; err == nil; {
				_, _, err = follower.Next(0)
			}
			require.ErrorContains(t, err, "read transaction 7: ")
			require.ErrorContains(t, err, damaged.reason)
			require.Less(t, a.budget.Used(), int64(1<<20), "memory for what is not there")
			follower.Close()
			transaction.Release()
			require.Zero(t, a.budget.Used())
		})
	}
}

// faultyFile is a memoryFile of which one operation fails.
type faultyFile struct {
	memoryFile
	fault error
	fails string
}

func (f *faultyFile) Write(data []byte) (int, error) {
	if f.fails == "write" {
		return 0, f.fault
	}
	return f.memoryFile.Write(data)
}

func (f *faultyFile) ReadAt(data []byte, offset int64) (int, error) {
	if f.fails == "read" {
		return 0, f.fault
	}
	return f.memoryFile.ReadAt(data, offset)
}

func (f *faultyFile) Truncate(size int64) error {
	if f.fails == "truncate" {
		return f.fault
	}
	return f.memoryFile.Truncate(size)
}

func (f *faultyFile) Close() error {
	if f.fails == "close" {
		return f.fault
	}
	return f.memoryFile.Close()
}

// With little room for spool files the next transaction waits for the one before it.
func TestFrugalBudget(t *testing.T) {
	for most, b := range map[int]*Budget{1: NewFrugalBudget(100), 2: NewBudget(100)} {
		for range most {
			require.Nil(t, b.overfull())
			b.complete(0, 1)
		}
		lowered := b.overfull()
		require.NotNil(t, lowered)
		b.release(0, 1)
		<-lowered
		require.Nil(t, b.overfull())
	}
}
