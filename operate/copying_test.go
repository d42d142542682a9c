package operate

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
)

func TestCopyLines(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := &state.Copy{Tables: 12, EstimatedRows: 1}
	require.Equal(t, "0%; 0 of 12 tables; 0 of about 1 row; 0 B", CopyLine(c, began))
	c = &state.Copy{Since: began, Tables: 12, Done: 3, Failed: 1, Rows: 1_234_567, EstimatedRows: 5_000_000, Bytes: 100 << 20, Share: 0.25}
	require.Equal(t, "25% in 50s, about 2m30s left; 3 of 12 tables (1 failed); 1,234,567 of about 5,000,000 rows; 100.0 MiB, 2.0 MiB/s",
		CopyLine(c, began.Add(50*time.Second)))
	require.Equal(t, "1,000 rows, 7 B", CopyTableLine(&state.CopyTable{Rows: 1000, EstimatedRows: 1000, Bytes: 7}), "it was never analyzed")
	require.Equal(t, "5 of about 10 rows, 7 B, 1 of 4 parts", CopyTableLine(&state.CopyTable{Rows: 5, EstimatedRows: 10, Bytes: 7, Parts: 4, PartsDone: 1}))

	require.Equal(t, `table          rows     size  time         rate
public.a  1,000,000  2.0 MiB  2.0s    1.0 MiB/s
public.b                                         not copied
s.c               1      5 B  1.0s        5 B/s
together  1,000,001  2.0 MiB  3.0s  682.7 KiB/s
`, CopySummary([]tablesync.TableProgress{
		{Schema: "public", Name: "a", Rows: 1_000_000, Bytes: 2 << 20, Started: began, Finished: began.Add(2 * time.Second)},
		{Schema: "public", Name: "b", Err: errors.New("x"), Finished: began},
		{Schema: "s", Name: "c", Rows: 1, Bytes: 5, Started: began.Add(2 * time.Second), Finished: began.Add(3 * time.Second)},
	}))
}

func TestReportOfACopy(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	seen := observation{
		subscription: &state.Subscription{Enabled: true, SlotName: "s", SlotState: state.SlotCreated},
		holder:       &state.Holder{PID: 1},
		indexes:      []string{"by_v of public.a", "one of public.a"},
		tables: []state.Table{
			{Text: "public.a", State: state.TableDataSync},
			{Text: "public.b", State: state.TableInit, LastError: "it is full"},
			{Text: "public.c", State: state.TableReady, RowsCopied: 7},
		},
		runner: &state.Runner{PID: 2, Host: "h", StartedAt: began, Status: &state.Status{
			Phase: state.Copying, Since: began, UpdatedAt: began.Add(10 * time.Second),
			Copy: &state.Copy{Since: began, Tables: 3, Done: 1, Rows: 5, EstimatedRows: 10, Share: 0.5, Running: []state.CopyTable{
				{Table: "public.a", Rows: 5, EstimatedRows: 10, Share: 0.5, Parts: 1},
			}},
		}},
	}
	report := newReport("s", state.Target{}, seen)
	text := report.Text()
	for _, part := range []string{
		"runner        copying for 10s; process 2 on h",
		"copied        50% in 10s, about 10s left; 1 of 3 tables; 5 of about 10 rows; 0 B\n",
		"  copying     public.a: 5 of about 10 rows, 0 B\n",
		"tables        1 initializing, 1 copying, 1 ready\n",
		"indexes       2 to be made again after the copy\n",
		"attention     table public.b could not be copied: it is full\n",
	} {
		require.Contains(t, text, part)
	}
	require.Equal(t, []string{"table public.b could not be copied: it is full"}, report.Problems, "what a copy has dropped is no problem while it lasts")
	require.Equal(t, `table     state         copied rows  size  last error
public.a  copying, 50%            5   0 B
public.b  initializing            0   0 B  it is full
public.c  ready                   7   0 B
`, report.TablesText())

	// The copy is over, and the indexes are not there.
	seen.tables = seen.tables[2:]
	seen.runner.Status.Copy, seen.runner.Status.Phase = nil, state.Streaming
	report = newReport("s", state.Target{}, seen)
	require.Len(t, report.Problems, 1)
	require.Contains(t, report.Problems[0], "2 indexes wait to be made again since a copy: by_v of public.a, one of public.a")
	report.ListTables()
	require.Equal(t, []TableView{{Table: "public.c", State: "r", StateText: "ready", Rows: 7}}, report.AllTables)
	require.Equal(t, "the subscription has no tables\n", newReport("s", state.Target{}, observation{}).TablesText())
}
