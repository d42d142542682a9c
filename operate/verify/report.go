package verify

import "fmt"

// Kind says how a row differs.
type Kind string

// The kinds of differences.
const (
	Missing   Kind = "missing"   // the publisher has it, the target not
	Extra     Kind = "extra"     // the target has it, the publisher not
	Different Kind = "different" // both have it, with other values
)

// Difference is a row that was proved to differ. The JSON names are stable.
type Difference struct {
	Kind Kind `json:"kind"`
	// Key has the values of the key's columns, in the order of TableReport.Key. Of a
	// table without a key it is the hash of the row.
	Key []string `json:"key"`
	// Columns are those that differ, of kind Different.
	Columns []string `json:"columns,omitempty"`
	// SourceRows and TargetRows are how many rows each end has under the key, where one
	// has several.
	SourceRows int64 `json:"source_rows,omitempty"`
	TargetRows int64 `json:"target_rows,omitempty"`
	// Repair is the statement that would repair it, or did, where that was asked for.
	Repair string `json:"repair,omitempty"`
}

// TableReport is what was found out about a table. The JSON names are stable.
type TableReport struct {
	Table string `json:"table"`
	// Error is why it could not be compared; empty when it was.
	Error string `json:"error,omitempty"`
	// Key are the columns that identify a row; empty where whole rows are counted.
	Key        []string `json:"key"`
	SourceRows int64    `json:"source_rows"`
	TargetRows int64    `json:"target_rows"`
	// Missing, Extra and Different count rows that were proved to differ.
	Missing   int64 `json:"missing"`
	Extra     int64 `json:"extra"`
	Different int64 `json:"different"`
	// Unsettled rows differed whenever they were looked at, and changed in between, or
	// the target did not get far enough.
	Unsettled int64 `json:"unsettled"`
	// Unexamined rows are in chunks that differ, and were not looked at, since so many
	// others differ.
	Unexamined int64 `json:"unexamined"`
	// Repaired counts differences that were repaired, Spared those that were none any
	// more when they were to be.
	Repaired int64 `json:"repaired"`
	Spared   int64 `json:"spared"`
	// Differences are the first ones, in the order of their keys.
	Differences []Difference `json:"differences"`
	// Behind is why rows did not settle, where it is known.
	Behind  string  `json:"behind,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Equal tells whether nothing was found that differs or may.
func (t *TableReport) Equal() bool {
	return t.Error == "" && t.Missing+t.Extra+t.Different+t.Unsettled+t.Unexamined == 0
}

// Report is the outcome of a comparison. The JSON names are stable.
type Report struct {
	Tables []TableReport `json:"tables"`
	// Sample: one in so many rows was compared.
	Sample int64 `json:"sample"`
	// Alone: nobody applied, and what was on its way counts as different.
	Alone bool `json:"no_runner"`
	// The sums over the tables.
	Rows        int64   `json:"rows"`
	Differing   int64   `json:"differing"`
	Unsettled   int64   `json:"unsettled"`
	Unexamined  int64   `json:"unexamined"`
	NotCompared int     `json:"not_compared"`
	Repaired    int64   `json:"repaired"`
	Spared      int64   `json:"spared"`
	Seconds     float64 `json:"seconds"`
}

func (r *Report) total() {
	for i := range r.Tables {
		t := &r.Tables[i]
		r.Rows += max(t.SourceRows, t.TargetRows)
		r.Differing += t.Missing + t.Extra + t.Different
		r.Unsettled += t.Unsettled
		r.Unexamined += t.Unexamined
		r.Repaired += t.Repaired
		r.Spared += t.Spared
		if t.Error != "" {
			r.NotCompared++
		}
	}
}

// add puts what became of the candidates into the table's report.
func (t *TableReport) add(of *table, result *settled, unexamined int64, limit int) {
	t.Unexamined, t.Unsettled, t.Behind = unexamined, int64(len(result.unsettled)), result.behind
	for _, candidate := range result.differences {
		kind := candidate.kind()
		switch kind {
		case Missing:
			t.Missing++
		case Extra:
			t.Extra++
		case Different:
			t.Different++
		}
		if len(t.Differences) < limit {
			t.Differences = append(t.Differences, candidate.difference(of))
		}
	}
}

func (c *candidate) kind() Kind {
	switch {
	case c.source.n > 0 && c.target.n > 0:
		return Different
	case c.source.n > 0:
		return Missing
	}
	return Extra
}

func (c *candidate) difference(of *table) Difference {
	d := Difference{Kind: c.kind(), Key: c.values}
	if len(of.key) == 0 {
		d.Key = []string{fmt.Sprintf("%016x", uint64(c.id))}
	}
	if len(c.source.columns) > 0 && len(c.target.columns) > 0 {
		for place, hash := range c.source.columns {
			if hash != c.target.columns[place] {
				d.Columns = append(d.Columns, of.columns[place].name)
			}
		}
	}
	if c.source.n > 1 || c.target.n > 1 {
		d.SourceRows, d.TargetRows = c.source.n, c.target.n
	}
	return d
}
