package txn

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// feed adds frames of which none completes a transaction.
func feed(t testing.TB, a *Assembler, frames ...frame) {
	t.Helper()
	for _, f := range frames {
		transaction, err := a.Add(f)
		require.NoError(t, err)
		require.Nil(t, transaction)
	}
}

// finish adds the frame that completes a transaction.
func finish(t testing.TB, a *Assembler, f frame) *Transaction {
	t.Helper()
	transaction, err := a.Add(f)
	require.NoError(t, err)
	require.NotNil(t, transaction)
	return transaction
}

// inserts completes an ordinary transaction of rows, each of that size.
func inserts(t testing.TB, a *Assembler, xid uint32, rows, size int) *Transaction {
	t.Helper()
	w := wire{}
	feed(t, a, w.begin(xid, 1), w.relation(0, table(1, "t", "v")))
	for range rows {
		feed(t, a, w.insert(0, 1, text(strings.Repeat("x", size))))
	}
	return finish(t, a, w.commit(xid, 1, 2))
}

func replay(transaction *Transaction) (changes int, err error) {
	reader := transaction.Changes()
	for {
		if _, err = reader.Next(); err != nil {
			break
		}
		changes++
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return changes, err
}

func TestKindIsTheCommand(t *testing.T) {
	require.Equal(t, "COMMIT", Commit.String())
	require.Equal(t, "PREPARE TRANSACTION", Prepare.String())
	require.Equal(t, "COMMIT PREPARED", CommitPrepared.String())
	require.Equal(t, "ROLLBACK PREPARED", RollbackPrepared.String())
	require.Equal(t, "Kind(0)", Kind(0).String())
}

func TestReleasedTransactionCannotBeRead(t *testing.T) {
	a := NewAssembler(Options{Budget: NewBudget(1 << 20)})
	transaction := inserts(t, a, 7, 2, 10)
	reader := transaction.Changes()
	_, err := reader.Next()
	require.NoError(t, err)
	size := transaction.Bytes()
	transaction.Release()

	// An empty replay would be taken for an empty transaction.
	_, err = reader.Next()
	require.ErrorContains(t, err, "transaction 7: it is released")
	_, err = transaction.Changes().Next()
	require.ErrorContains(t, err, "transaction 7: it is released")
	require.Equal(t, 2, transaction.Len())
	require.Equal(t, size, transaction.Bytes())
}

// The workers that apply transactions release them while the next ones arrive.
func TestReleaseElsewhere(t *testing.T) {
	spool := &memorySpool{}
	a := NewAssembler(Options{Budget: NewBudget(8000), Spool: spool.create})
	complete := make(chan *Transaction)
	var workers sync.WaitGroup
	workers.Go(func() {
		for transaction := range complete {
			changes, err := replay(transaction)
			if changes != 10 || err != nil {
				t.Errorf("transaction %d: %d changes, %v", transaction.XID, changes, err)
			}
			transaction.Release()
		}
	})
	for xid := range uint32(200) {
		complete <- inserts(t, a, xid+1, 10, 200)
	}
	close(complete)
	workers.Wait()
	require.NoError(t, a.Close())
	require.Zero(t, a.budget.Used())
	require.Zero(t, spool.open())
}

// A table of relations that is too long to be searched.
func TestManyTables(t *testing.T) {
	const tables, blocks = 100, 3
	w := wire{}
	a := NewAssembler(Options{Budget: NewBudget(1 << 20)})
	for block := range blocks {
		feed(t, a, w.streamStart(7, block == 0))
		for id := range uint32(tables) {
			if block == 0 {
				feed(t, a, w.relation(7, table(id, fmt.Sprint("t", id), "v")))
			}
			feed(t, a, w.insert(7, id, text(fmt.Sprint(id))), w.truncate(7, 0, id, 0))
		}
		// What a subtransaction brings goes with it.
		feed(t, a, w.relation(8, table(1, "t1", "v")), w.insert(8, 1, text("gone")), w.streamStop(), w.streamAbort(7, 8))
	}
	transaction := finish(t, a, w.streamCommit(7, 1, 2))
	reader := transaction.Changes()
	for range blocks {
		for id := range uint32(tables) {
			change, err := reader.Next()
			require.NoError(t, err)
			require.Equal(t, id, change.Relation.ID)
			require.Equal(t, fmt.Sprint(id), string(change.Message.(*decoder.Insert).New[0].Data))
			change, err = reader.Next()
			require.NoError(t, err)
			require.Equal(t, []uint32{id, 0}, []uint32{change.Relations[0].ID, change.Relations[1].ID})
		}
	}
	_, err := reader.Next()
	require.ErrorIs(t, err, io.EOF)
}

// A description keeps its first place when a later one is cut off, and gets a
// new one when its only one is. Whoever has seen the table sees what he saw.
func TestTableOfRelationsIsCut(t *testing.T) {
	for _, length := range []int{3, longTable + 3} {
		table := relationTable{}
		relations := make([]decoder.Relation, length+1)
		at := func(relation *decoder.Relation, index int) {
			found, ok := table.find(relation)
			require.True(t, ok)
			require.EqualValues(t, index, found)
		}
		for i := range length {
			_, found := table.find(&relations[i])
			require.False(t, found)
			require.EqualValues(t, i, table.add(&relations[i]))
			at(&relations[i], i)
		}
		require.EqualValues(t, length, table.add(&relations[1]))
		at(&relations[1], 1)
		seen := table.relations

		table.cut(length - 1)
		at(&relations[1], 1)
		for i, again := range []int{length, length - 1} {
			_, found := table.find(&relations[again])
			require.False(t, found)
			require.EqualValues(t, length-1+i, table.add(&relations[again]))
			at(&relations[again], length-1+i)
		}
		require.Same(t, &relations[length-1], seen[length-1])
		require.Same(t, &relations[1], seen[length])
	}
}

// One description is one pointer, for whoever maps it to the target.
func TestDescriptionsAreShared(t *testing.T) {
	w := wire{}
	a := NewAssembler(Options{Budget: NewBudget(1 << 20)})
	relation := func(transaction *Transaction) *decoder.Relation {
		change, err := transaction.Changes().Next()
		require.NoError(t, err)
		return change.Relation
	}
	feed(t, a, w.streamStart(7, true), w.relation(7, table(1, "t", "v")), w.insert(7, 1, text("a")), w.streamStop())
	streamed := finish(t, a, w.streamCommit(7, 1, 2))
	var plain [2]*Transaction
	for i := range plain {
		final := lsn.LSN(i + 2)
		feed(t, a, w.begin(8, final), w.insert(0, 1, text("b")))
		plain[i] = finish(t, a, w.commit(8, final, final+1))
	}
	require.Same(t, relation(streamed), relation(plain[0]))
	require.Same(t, relation(streamed), relation(plain[1]))
}

// reusedSpool has one file in memory of its own that is used again and again.
type reusedSpool struct{ file memoryFile }

func (s *reusedSpool) create() (SpoolFile, error) {
	s.file = memoryFile{data: s.file.data[:0]}
	return &s.file, nil
}
