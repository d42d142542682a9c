package oracle

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// number is what an environment variable says.
func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return value
}

// seedsWithFaults are those that once showed a fault which nothing else brings about: a
// conflict that was decided while a change before it was in doubt.
func seedsWithFaults() []uint64 { return []uint64{7069} }

// TestOracle plays PGAPPLY_TEST_SEEDS seeds from PGAPPLY_TEST_SEED on, and those of
// seedsWithFaults, then PGAPPLY_TEST_COPIES seeds from there on with copies; the odd ones into a target that tracks commit timestamps. The first
// failure of each kind is made small.
func TestOracle(t *testing.T) {
	publisherMajor := int(number(t, "PGAPPLY_TEST_PUBLISHER_MAJOR", uint64(pgtest.Major(t))))
	targetMajor := int(number(t, "PGAPPLY_TEST_TARGET_MAJOR", uint64(pgtest.Major(t))))
	first, seeds := number(t, "PGAPPLY_TEST_SEED", 1), number(t, "PGAPPLY_TEST_SEEDS", 10)
	copies := number(t, "PGAPPLY_TEST_COPIES", 3)
	shrinking := time.Duration(number(t, "PGAPPLY_TEST_SHRINK", 120)) * time.Second

	publisher := pgtest.Start(t, with(PublisherSettings(publisherMajor), publisherMajor)...)
	var arenas []*Arena
	for _, tracked := range []bool{false, true} {
		target := pgtest.Start(t, with(TargetSettings(tracked), targetMajor)...)
		arena, err := NewArena(t.Context(), publisher, target, t.TempDir())
		require.NoError(t, err)
		defer arena.Close()
		arenas = append(arenas, arena)
	}

	var failed []uint64
	var statements, refusals, rows, conflicts, alike int
	var transactions, crashes int64
	features, refused := map[string]int{}, map[string]int{}
	shrunk := map[string]bool{}
	began := time.Now()
	type way struct {
		seed     uint64
		generate func(uint64, Servers) *Script
	}
	var played []way
	for _, seed := range seedsWithFaults() {
		played = append(played, way{seed, Generate})
	}
	for seed := first; seed < first+seeds; seed++ {
		played = append(played, way{seed, Generate})
	}
	for seed := first; seed < first+copies; seed++ {
		played = append(played, way{seed, GenerateCopying})
	}
	for _, way := range played {
		seed, arena := way.seed, arenas[way.seed%2]
		script := way.generate(seed, arena.Servers())
		result, err := arena.Play(t.Context(), script)
		if err != nil { // of the script or of the servers
			failed = append(failed, seed)
			t.Errorf("seed %d cannot be played: %v\n%s", seed, err, script)
			continue
		}
		statements, rows = statements+result.Statements, rows+result.Rows
		for message, count := range result.Refused {
			refusals += count
			refused[message] += count
		}
		transactions += result.Transactions
		conflicts += result.Conflicts
		if result.NativeConflicts {
			alike++
		}
		if result.NativeCrashed {
			crashes++
		}
		for feature, count := range script.Features {
			features[feature] += count
		}
		if result.Failure == nil {
			continue
		}
		failed = append(failed, seed)
		t.Errorf("seed %d: %s\n%s", seed, result.Failure.Sign, result.Failure.Text)
		if shrunk[result.Failure.Sign] {
			continue
		}
		shrunk[result.Failure.Sign] = true
		small, last := arena.Shrink(t.Context(), script, result.Failure, shrinking)
		t.Logf("made small, it fails with\n%s\n%s", last.Text, small)
	}
	took := time.Since(began)
	for _, feature := range slices.Sorted(maps.Keys(features)) {
		t.Logf("%6d %s", features[feature], feature)
	}
	for _, message := range slices.Sorted(maps.Keys(refused)) {
		t.Logf("%6d refused: %s", refused[message], message)
	}
	t.Logf("oracle: seeds %d to %d, %d with copies, on %d to %d: %d equal, %d not %v; %d statements, %d refused, %d rows in the end, %d transactions applied, %d conflicts compared, for %d seeds with native ones, %d crashes of native, %.1f s a seed",
		first, first+seeds-1, copies, publisherMajor, targetMajor, len(played)-len(failed), len(failed), failed,
		statements, refusals, rows, transactions, conflicts, alike, crashes, took.Seconds()/float64(len(played)))
}

func with(settings map[string]string, major int) []pgtest.Option {
	options := []pgtest.Option{pgtest.OnMajor(major)}
	for name, value := range settings {
		options = append(options, pgtest.With(name, value))
	}
	return options
}
