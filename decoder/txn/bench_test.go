package txn

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/spool"
)

// BenchmarkRow is what one row costs from its frame to its replay, in large
// transactions and in those of four rows.
func BenchmarkRow(b *testing.B) {
	for _, variant := range []struct {
		name  string
		rows  int
		limit int64
	}{
		{"memory", 100_000, 1 << 30},
		{"spooled", 100_000, 4 << 20},
		{"small", 4, 1 << 30},
	} {
		b.Run(variant.name, func(b *testing.B) {
			w := wire{}
			begin, commit := w.begin(7, 1), w.commit(7, 1, 2)
			row := text("1234567", "1", "-4711", "0123456789012345678901234567890123456789")
			insert := w.insert(0, 1, row)
			files, err := spool.Open(b.TempDir(), 0)
			require.NoError(b, err)
			a := NewAssembler(Options{
				Budget: NewBudget(variant.limit),
				Spool:  func() (SpoolFile, error) { return files.Create() },
			})
			feed(b, a, begin, w.relation(0, table(1, "t", "id", "branch", "balance", "filler")))
			finish(b, a, commit).Release()
			b.SetBytes(int64(len(insert)))
			b.ReportAllocs()
			add := func(f frame) *Transaction {
				transaction, err := a.Add(f)
				if err != nil {
					b.Fatal(err)
				}
				return transaction
			}
			rows := 0
			for b.Loop() {
				if rows == 0 {
					add(begin)
				}
				add(insert)
				if rows++; rows == variant.rows {
					drain(b, add(commit))
					rows = 0
				}
			}
			require.NoError(b, errors.Join(a.Close(), files.Close()))
		})
	}
}

// BenchmarkStreamedRow is what one row of a streamed transaction costs: when
// nobody can follow, when one could (and the row is replayed in the end, as in the
// first case), and when a follower reads it instead.
func BenchmarkStreamedRow(b *testing.B) {
	for _, variant := range []struct {
		name             string
		told, isFollowed bool
		limit            int64
	}{
		{"alone", false, false, 1 << 30},
		{"told", true, false, 1 << 30},
		{"followed", true, true, 1 << 30},
		{"followed-spooled", true, true, 4 << 20},
	} {
		b.Run(variant.name, func(b *testing.B) {
			const rows, perBlock = 100_000, 1000
			w, streams := wire{}, &latest{}
			files, err := spool.Open(b.TempDir(), 0)
			require.NoError(b, err)
			options := Options{
				Budget: NewBudget(variant.limit),
				Spool:  func() (SpoolFile, error) { return files.Create() },
			}
			if variant.told {
				options.Streams = streams
			}
			a := NewAssembler(options)
			first, relation := w.streamStart(7, true), w.relation(7, table(1, "t", "id", "branch", "balance", "filler"))
			insert := w.insert(7, 1, text("1234567", "1", "-4711", "0123456789012345678901234567890123456789"))
			next, stop, commit := w.streamStart(7, false), w.streamStop(), w.streamCommit(7, 1, 2)
			b.SetBytes(int64(len(insert)))
			b.ReportAllocs()
			var follower *Follower
			count := 0
			for b.Loop() {
				if count == 0 {
					feed(b, a, first, relation)
					if variant.isFollowed {
						follower = streams.open.Follow()
					}
				}
				if _, err := a.Add(insert); err != nil {
					b.Fatal(err)
				}
				if count++; count%perBlock != 0 {
					continue
				}
				feed(b, a, stop)
				for more := variant.isFollowed; more; {
					if _, more, err = follower.Next(a.Completed()); err != nil {
						b.Fatal(err)
					}
				}
				if count < rows {
					feed(b, a, next)
					continue
				}
				count = 0
				transaction := finish(b, a, commit)
				if variant.isFollowed {
					follower.Close()
					transaction.Release()
				} else {
					drain(b, transaction)
				}
			}
			if follower != nil {
				follower.Close()
			}
			require.NoError(b, errors.Join(a.Close(), files.Close()))
		})
	}
}

// latest are Streams that know the one that was opened last.
type latest struct{ open *Open }

func (l *latest) Opened(o *Open)    { l.open = o }
func (l *latest) Arrived(*Open)     {}
func (l *latest) Ended(*Open, bool) {}

func drain(b *testing.B, transaction *Transaction) {
	reader := transaction.Changes()
	for {
		if _, err := reader.Next(); err != nil {
			if !errors.Is(err, io.EOF) {
				b.Fatal(err)
			}
			break
		}
	}
	transaction.Release()
}

// BenchmarkSmallTransaction is what a transaction of one row costs when thousands of them
// wait for the commit of their group.
func BenchmarkSmallTransaction(b *testing.B) {
	const group = 10_000
	w := wire{}
	begin, insert, commit := w.begin(7, 1), w.insert(0, 1, text("1234567", "some text")), w.commit(7, 1, 2)
	a := NewAssembler(Options{Budget: NewBudget(1 << 30)})
	feed(b, a, begin, w.relation(0, table(1, "t", "id", "v")))
	finish(b, a, commit).Release()
	b.ReportAllocs()
	held := make([]*Transaction, 0, group)
	for b.Loop() {
		for _, f := range [...]frame{begin, insert} {
			if _, err := a.Add(f); err != nil {
				b.Fatal(err)
			}
		}
		held = append(held, finish(b, a, commit))
		if len(held) == group {
			for _, transaction := range held {
				drain(b, transaction)
			}
			held = held[:0]
		}
	}
}
