package operate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
	"pgapply/internal/plain"
)

// TableView is a table of the subscription. The JSON names are stable.
type TableView struct {
	Table string `json:"table"`
	// State is its letter, as in Report.Tables, and StateText the word for it.
	State     string `json:"state"`
	StateText string `json:"state_text"`
	// Rows and Bytes are those of the copy, once it is done.
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	LastError string `json:"last_error,omitempty"`
}

func tablesNotReady(tables []state.Table, subscription string) []TableView {
	list := []TableView{}
	for i := range tables {
		if tables[i].State != state.TableReady {
			list = append(list, newTableView(&tables[i], subscription))
		}
	}
	return list
}

func newTableView(table *state.Table, subscription string) TableView {
	return TableView{
		Table: table.Text, State: string(rune(table.State)), StateText: table.State.String(),
		Rows: table.RowsCopied, Bytes: table.BytesCopied, LastError: Named(table.LastError, subscription),
	}
}

// ListTables fills AllTables: those that are not ready first.
func (r *Report) ListTables() {
	r.AllTables = slices.Clone(r.TablesNotReady)
	for i := range r.tables {
		if r.tables[i].State == state.TableReady {
			r.AllTables = append(r.AllTables, newTableView(&r.tables[i], r.Subscription))
		}
	}
}

// addCopying says what keeps tables from taking part.
func (r *Report) addCopying() {
	var failed []TableView
	for _, table := range r.TablesNotReady {
		if table.LastError != "" {
			failed = append(failed, table)
		}
	}
	switch len(failed) {
	case 0:
	case 1:
		r.problem("table %s could not be copied: %s", failed[0].Table, failed[0].LastError)
	default:
		r.problem("%d tables could not be copied, which `pgapply status --tables` lists; the first is %s: %s", len(failed), failed[0].Table, failed[0].LastError)
	}
	copies := r.Runner.Alive && r.Status != nil && (r.Status.Copy != nil || r.Status.Phase == state.Copying)
	if len(r.DeferredIndexes) > 0 && !copies {
		r.problem("%s to be made again since a copy: %s. Each start tries before it streams, and the log says what keeps it",
			waiting(len(r.DeferredIndexes)), strings.Join(r.DeferredIndexes, ", "))
	}
}

func waiting(indexes int) string {
	if indexes == 1 {
		return "1 index waits"
	}
	return fmt.Sprintf("%d indexes wait", indexes)
}

// TablesText lists the tables, for a person. Rows and sizes are those of the copy: of one
// that goes on what it has come to, as the runner last said.
func (r *Report) TablesText() string {
	r.ListTables()
	if len(r.AllTables) == 0 {
		return "the subscription has no tables\n"
	}
	rows := [][]string{{"table", "state", "copied rows", "size", "last error"}}
	for _, table := range r.AllTables {
		row := []string{table.Table, table.StateText, count(table.Rows), size(table.Bytes), table.LastError}
		if at := r.copyOf(table.Table); at != nil {
			row[1] = fmt.Sprintf("%s, %d%%", table.StateText, int(100*at.Share))
			row[2], row[3] = count(at.Rows), size(at.Bytes)
		}
		rows = append(rows, row)
	}
	return columns(rows, "llrrl")
}

// copyOf is how far the copy of a table is that goes on, or nil.
func (r *Report) copyOf(table string) *state.CopyTable {
	if !r.Runner.Alive || r.Status == nil || r.Status.Copy == nil {
		return nil
	}
	running := r.Status.Copy.Running
	if i := slices.IndexFunc(running, func(t state.CopyTable) bool { return t.Table == table }); i >= 0 {
		return &running[i]
	}
	return nil
}

// columns lays rows out under each other; align has an l or an r for each column.
func columns(rows [][]string, align string) string {
	widths := make([]int, len(align))
	for _, row := range rows {
		for i, cell := range row {
			cell = plain.Line(cell)
			row[i] = cell
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if align[i] == 'r' {
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell + "  ")
		}
		text.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return text.String()
}

// CopyLine says how far a copy is, what matters most first.
func CopyLine(c *state.Copy, at time.Time) string {
	line := fmt.Sprintf("%d%%", int(100*c.Share))
	if !c.Since.IsZero() {
		line += " in " + duration(max(at.Sub(c.Since), 0))
	}
	if left := c.Left(at); left > 0 {
		line += ", about " + duration(left) + " left"
	}
	line += fmt.Sprintf("; %d of %s", c.Done, counted(int64(c.Tables), "table"))
	if c.Failed > 0 {
		line += fmt.Sprintf(" (%d failed)", c.Failed)
	}
	line += "; " + rowsOf(c.Rows, c.EstimatedRows) + "; " + size(c.Bytes)
	if rate := c.Rate(at); rate > 0 {
		line += ", " + size(int64(rate)) + "/s"
	}
	return line
}

// CopyTableLine says how far the copy of a table is.
func CopyTableLine(t *state.CopyTable) string {
	line := rowsOf(t.Rows, t.EstimatedRows) + ", " + size(t.Bytes)
	if t.Parts > 1 {
		line += fmt.Sprintf(", %d of %d parts", t.PartsDone, t.Parts)
	}
	return line
}

// rowsOf says how many rows of how many; an estimate that they have passed says nothing.
func rowsOf(rows, estimated int64) string {
	if rows > 0 && rows >= estimated {
		return counted(rows, "row")
	}
	return fmt.Sprintf("%s of about %s", count(rows), counted(estimated, "row"))
}

// CopySummary is the table that says how a copy ended.
func CopySummary(tables []tablesync.TableProgress) string {
	rows := [][]string{{"table", "rows", "size", "time", "rate", ""}}
	var total tablesync.TableProgress
	for i := range tables {
		table := &tables[i]
		name := strings.ToValidUTF8(table.Schema+"."+table.Name, "?")
		if table.Err != nil || table.Finished.IsZero() {
			rows = append(rows, []string{name, "", "", "", "", "not copied"})
			continue
		}
		rows = append(rows, copied(name, table))
		total.Rows += table.Rows
		total.Bytes += table.Bytes
		if total.Started.IsZero() || table.Started.Before(total.Started) {
			total.Started = table.Started
		}
		if table.Finished.After(total.Finished) {
			total.Finished = table.Finished
		}
	}
	if len(tables) > 1 {
		rows = append(rows, copied("together", &total))
	}
	return columns(rows, "lrrrrl")
}

func copied(name string, table *tablesync.TableProgress) []string {
	took := table.Finished.Sub(table.Started)
	rate := ""
	if took > 0 {
		rate = size(int64(float64(table.Bytes)/took.Seconds())) + "/s"
	}
	return []string{name, count(table.Rows), size(table.Bytes), duration(took), rate, ""}
}
