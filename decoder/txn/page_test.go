package txn

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/decoder"
)

// Small transactions share pages, whoever is released first and whatever comes after, and
// take what their changes need: a held one reads the same at any time.
func TestSmallTransactionsSharePages(t *testing.T) {
	const transactions = 1000
	b := NewBudget(64 << 20)
	a, w := NewAssembler(Options{Budget: b}), wire{}
	feed(t, a, w.begin(1, 1), w.relation(0, table(1, "t", "v")))
	finish(t, a, w.commit(1, 1, 2)).Release()
	// Transaction i has i%7 rows; one in a hundred does not fit in a page.
	rows := func(i int) int {
		if i%100 == 99 {
			return 2000
		}
		return i % 7
	}
	arrive := func(i int) *Transaction {
		feed(t, a, w.begin(uint32(i), 1))
		for row := range rows(i) {
			feed(t, a, w.insert(0, 1, text(strconv.Itoa(i*10_000+row))))
		}
		return finish(t, a, w.commit(uint32(i), 1, 2))
	}
	reads := func(i int, transaction *Transaction) {
		t.Helper()
		changes := transaction.Changes()
		for row := range rows(i) {
			change, err := changes.Next()
			require.NoError(t, err)
			require.Equal(t, strconv.Itoa(i*10_000+row), string(change.Message.(*decoder.Insert).New[0].Data))
		}
	}
	held := map[int]*Transaction{}
	small := int64(0)
	for i := range transactions {
		before := b.Used()
		held[i] = arrive(i)
		if rows(i) < 7 {
			small += b.Used() - before - held[i].bookkeeping - held[i].Bytes()
		}
	}
	require.Zero(t, small, "bytes that small transactions take beside their changes")
	for i := range transactions {
		if i%3 != 0 {
			held[i].Release()
			held[i] = arrive(i) // in memory of those before
		}
	}
	for i, transaction := range held {
		reads(i, transaction)
	}
	for i := transactions - 1; i >= 0; i-- {
		held[i].Release()
	}
	require.NoError(t, a.Close())
	require.Zero(t, b.Used())
}

// A small transaction that has to go to a file leaves its page, and may come back to one.
func TestSmallTransactionsLeaveThePageForAFile(t *testing.T) {
	b := NewBudget(2 << 10)
	a, w := NewAssembler(Options{Budget: b, Spool: (&reusedSpool{}).create}), wire{}
	feed(t, a, w.begin(1, 1), w.relation(0, table(1, "t", "v")))
	for row := range 100 {
		feed(t, a, w.insert(0, 1, text(strconv.Itoa(row))))
	}
	spooled := finish(t, a, w.commit(1, 1, 2))
	require.Equal(t, 1, spooled.tape.files())
	changes := spooled.Changes()
	for row := range 100 {
		change, err := changes.Next()
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(row), string(change.Message.(*decoder.Insert).New[0].Data))
	}
	spooled.Release()
	require.NoError(t, a.Close())
	require.Zero(t, b.Used())
}
