package oracle

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// workload are the statements that sessions of the publisher run.
func workload(s *Script) []string {
	var statements []string
	for _, l := range s.lines() {
		if l.verb == runSQL && l.session != "" && l.sql != lockTimeout {
			statements = append(statements, l.session+": "+l.sql)
		}
	}
	return statements
}

// TestShrinkKeepsTheCause: of a script that fails because of two statements little
// more than these is left.
func TestShrinkKeepsTheCause(t *testing.T) {
	for seed := range uint64(20) {
		script := Generate(seed, everything())
		all := workload(script)
		first, last := all[len(all)/3], all[len(all)/2]
		plays := 0
		fails := func(s *Script) bool {
			plays++
			var has [2]bool
			for _, statement := range workload(s) {
				has[0] = has[0] || statement == first
				has[1] = has[1] || statement == last
			}
			return has[0] && has[1] && s.runs(1)
		}
		small := shrink(script, fails, func() bool { return true })
		require.True(t, fails(small))
		require.Equal(t, map[int]bool{1: true}, small.engines)
		// Both statements, and the other ends of transactions that they are part of.
		require.LessOrEqual(t, len(workload(small)), 10, "seed %d\n%s", seed, small)
		require.Less(t, plays, 400, "seed %d", seed)
		require.LessOrEqual(t, strings.Count(small.String(), "ADD TABLE"), 3)
		// The script that was shrunk is as it was.
		require.Equal(t, Generate(seed, everything()).String(), script.String())
	}
}

// TestShrinkColumns: columns that do not matter go from the table and from all
// statements.
func TestShrinkColumns(t *testing.T) {
	script := Generate(3, everything())
	fails := func(s *Script) bool {
		for _, statement := range workload(s) {
			if strings.Contains(statement, "INSERT INTO s.t") {
				return true
			}
		}
		return false
	}
	require.True(t, fails(script))
	small := shrink(script, fails, func() bool { return true })
	require.Len(t, workload(small), 1)
	require.NotRegexp(t, `\bc[1-5]\b`, small.String())
}

// TestShrinkEndsInTime: when the time is up the smallest script so far is the answer.
func TestShrinkEndsInTime(t *testing.T) {
	script := Generate(5, everything())
	left := 10
	plays := 0
	small := shrink(script, func(*Script) bool { plays++; return true }, func() bool { left--; return left > 0 })
	require.Less(t, plays, 11)
	require.Less(t, len(small.lines()), len(script.lines()))
}

// TestShrinkWithoutSuccess leaves a script that only fails whole.
func TestShrinkWithoutSuccess(t *testing.T) {
	script := Generate(5, everything())
	require.Equal(t, script.String(), shrink(script, func(s *Script) bool { return s.String() == script.String() }, func() bool { return true }).String())
}

func TestSignIsTheSameEveryTime(t *testing.T) {
	require.Equal(t, sign(`apply INSERT on s.t1 in transaction 757, finished at 0/1B8AC28: column "a" is bad`),
		sign(`apply INSERT on s.t2 in transaction 9, finished at 4/2: column "b" is bad`))
	require.NotEqual(t, sign(`column "a" is bad`), sign(`table "a" is bad`))
}
