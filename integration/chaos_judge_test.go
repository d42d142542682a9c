package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/lsn"
)

// unit is what tells one transaction of a load from all others.
type unit struct{ writer, number int }

func (u unit) String() string { return fmt.Sprintf("unit %d/%d", u.writer, u.number) }

// committed is a unit that the publisher has committed.
type committed struct {
	unit
	end      lsn.LSN // where its commit ends
	prepared bool    // it was prepared before
}

// ledgerRow is a row of the target's ledger, with the columns that only the target has.
type ledgerRow struct {
	unit
	runner  string // which process of pgapply wrote it
	backend int    // in which session
}

// sample is what an observer saw: first the publisher, then, later, the target in one
// snapshot.
type sample struct {
	at time.Duration // since the round began

	// publisher is the server's life that was asked, empty if none answered, and
	// confirmed what its slot has as flushed on the target.
	publisher string
	confirmed lsn.LSN

	// target is the server's life that was asked, empty if none answered. ready says
	// that the ledger is no longer being copied, progress how far the target says that
	// it has come, and ledger what it holds.
	target   string
	ready    bool
	progress lsn.LSN
	ledger   []ledgerRow
}

// judge says what in the samples must not be, given all that the publisher committed,
// in its order. It knows nothing of how pgapply works.
func judge(order []committed, samples []sample) (verdict []string) {
	rank := make(map[unit]int, len(order))
	for i, c := range order {
		rank[c.unit] = i
	}
	var last struct {
		sample
		shown int
	}
	var forgotten lsn.LSN // the publisher has forgotten what ends up to here
	for _, s := range samples {
		guilty := func(format string, arguments ...any) {
			verdict = append(verdict, fmt.Sprintf("at %s: ", s.at.Round(time.Millisecond))+fmt.Sprintf(format, arguments...))
		}
		if s.publisher != "" {
			if s.publisher == last.publisher && s.confirmed < last.confirmed {
				guilty("the confirmed position went back from %s to %s", last.confirmed, s.confirmed)
			}
			last.publisher, last.confirmed = s.publisher, s.confirmed
			forgotten = max(forgotten, s.confirmed)
		}
		if s.target == "" || !s.ready {
			continue
		}
		shows := make([]bool, len(order))
		for _, row := range s.ledger {
			i, known := rank[row.unit]
			switch {
			case !known:
				guilty("%s is on the target, and the publisher never committed it", row.unit)
			case shows[i]:
				guilty("%s is there twice", row.unit)
			default:
				shows[i] = true
			}
		}
		shown := 0
		for shown < len(order) && shows[shown] {
			shown++
		}
		for i := shown; i < len(order); i++ {
			if shows[i] {
				guilty("%s is there, and %s, which committed before it, is not", order[i], order[shown])
				break
			}
		}
		for i := range order {
			switch {
			case !shows[i] && order[i].end <= forgotten:
				guilty("%s, which ends at %s, is missing, and the publisher was told to forget what ends up to %s", order[i], order[i].end, forgotten)
			case !shows[i] && order[i].end <= s.progress:
				guilty("%s, which ends at %s, is missing, and the target says that it has come to %s", order[i], order[i].end, s.progress)
			case shows[i] && order[i].end > s.progress && (!order[i].prepared || i != shown-1):
				// The position behind a prepared transaction is recorded by another one.
				guilty("%s, which ends at %s, is there, and the target says that it has come to %s", order[i], order[i].end, s.progress)
			default:
				continue
			}
			break
		}
		if s.target == last.target && (s.progress < last.progress || shown < last.shown) {
			guilty("the target went back from %s with %d units to %s with %d", last.progress, last.shown, s.progress, shown)
		}
		last.target, last.progress, last.shown = s.target, s.progress, shown
	}
	if len(samples) > 0 {
		verdict = append(verdict, judgeWriters(order, rank, samples[len(samples)-1].ledger)...)
	}
	return verdict
}

// judgeWriters says which processes have written at a time. The sessions of one may take
// turns; with another's they must not overlap. What was prepared by one may be committed
// by another.
func judgeWriters(order []committed, rank map[unit]int, ledger []ledgerRow) (verdict []string) {
	type session struct {
		runner  string
		backend int
	}
	type turn struct{ first, last int }
	turns := map[session]*turn{}
	for _, row := range ledger {
		i, s := rank[row.unit], session{row.runner, row.backend}
		if order[i].prepared {
			continue
		}
		if turns[s] == nil {
			turns[s] = &turn{i, i}
		}
		turns[s].first, turns[s].last = min(turns[s].first, i), max(turns[s].last, i)
	}
	for a, mine := range turns {
		for b, other := range turns {
			if a.runner < b.runner && mine.first < other.last && other.first < mine.last {
				verdict = append(verdict, fmt.Sprintf("processes %s and %s have written at a time: units %d to %d, and %d to %d, of the publisher's order",
					a.runner, b.runner, mine.first, mine.last, other.first, other.last))
			}
		}
	}
	return verdict
}

func TestJudge(t *testing.T) {
	order := []committed{
		{unit{0, 1}, 10, false},
		{unit{1, 1}, 20, false},
		{unit{0, 2}, 30, true},
		{unit{1, 2}, 40, false},
	}
	rows := func(n int) (ledger []ledgerRow) {
		for _, c := range order[:n] {
			ledger = append(ledger, ledgerRow{c.unit, "1", 100})
		}
		return ledger
	}
	at := func(confirmed, progress lsn.LSN, ledger []ledgerRow) sample {
		return sample{publisher: "p", confirmed: confirmed, target: "t", ready: true, progress: progress, ledger: ledger}
	}
	later := func(s sample) sample { s.publisher, s.target = "p2", "t2"; return s }
	by := func(runner string, backend int, row ledgerRow) ledgerRow {
		row.runner, row.backend = runner, backend
		return row
	}
	for name, c := range map[string]struct {
		samples []sample
		says    string
	}{
		"all is well":                 {[]sample{at(0, 0, nil), at(5, 10, rows(1)), at(20, 25, rows(2)), at(40, 40, rows(4))}, ""},
		"prepared, and not recorded":  {[]sample{at(20, 20, rows(3))}, ""},
		"commits lost with a server":  {[]sample{at(10, 30, rows(3)), later(at(5, 10, rows(1)))}, ""},
		"still copying":               {[]sample{{publisher: "p", confirmed: 40, target: "t", progress: 40}}, ""},
		"servers that do not answer":  {[]sample{at(10, 10, rows(1)), {}, {publisher: "p", confirmed: 10}, {target: "t", ready: true, progress: 10, ledger: rows(1)}}, ""},
		"one process after the other": {[]sample{at(40, 40, []ledgerRow{by("1", 1, rows(4)[0]), by("1", 2, rows(4)[1]), by("2", 3, rows(4)[2]), by("3", 4, rows(4)[3])})}, ""},

		"acknowledged too early":                {[]sample{at(20, 10, rows(1))}, "at 0s: unit 1/1, which ends at 0/14, is missing, and the publisher was told to forget what ends up to 0/14"},
		"acknowledged and lost":                 {[]sample{at(20, 20, rows(2)), later(at(0, 10, rows(1)))}, "told to forget what ends up to 0/14"},
		"confirmed goes back":                   {[]sample{at(20, 20, rows(2)), at(10, 20, rows(2))}, "went back from 0/14 to 0/A"},
		"progress without its rows":             {[]sample{at(0, 20, rows(1))}, "unit 1/1, which ends at 0/14, is missing, and the target says that it has come to 0/14"},
		"rows without progress":                 {[]sample{at(0, 10, rows(2))}, "unit 1/1, which ends at 0/14, is there, and the target says that it has come to 0/A"},
		"prepared, and one more":                {[]sample{at(0, 20, rows(4))}, "unit 0/2, which ends at 0/1E, is there"},
		"out of order":                          {[]sample{at(0, 10, append(rows(1), rows(3)[2]))}, "unit 0/2 is there, and unit 1/1, which committed before it, is not"},
		"prepared by one, committed by another": {[]sample{at(40, 40, []ledgerRow{by("2", 2, rows(4)[0]), by("2", 2, rows(4)[1]), by("1", 1, rows(4)[2]), by("2", 2, rows(4)[3])})}, ""},
		"twice":                                 {[]sample{at(0, 10, append(rows(1), rows(1)...))}, "unit 0/1 is there twice"},
		"invented":                              {[]sample{at(0, 10, append(rows(1), ledgerRow{unit: unit{7, 7}}))}, "unit 7/7 is on the target, and the publisher never committed it"},
		"target goes back":                      {[]sample{at(0, 20, rows(2)), at(0, 10, rows(1))}, "the target went back from 0/14 with 2 units to 0/A with 1"},
		"two processes at a time":               {[]sample{at(40, 40, []ledgerRow{by("1", 1, rows(4)[0]), by("2", 2, rows(4)[1]), by("2", 2, rows(4)[2]), by("1", 1, rows(4)[3])})}, "processes 1 and 2 have written at a time"},
	} {
		t.Run(name, func(t *testing.T) {
			verdict := judge(order, c.samples)
			if c.says == "" {
				require.Empty(t, verdict)
				return
			}
			require.NotEmpty(t, verdict)
			require.Contains(t, fmt.Sprint(verdict), c.says)
		})
	}
}
