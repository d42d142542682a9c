package integration

import (
	"os"
	"path"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// fieldDirectory holds the examples, and a README.md that explains their format.
const fieldDirectory = "testdata/field"

// fieldGap is what cannot be played yet, since the program lacks something.
type fieldGap struct {
	example string
	variant string // empty for all
	// missing is the verb, or the flag of run, that will tell when it is there.
	missing string
	why     string
}

// fieldGaps is to get shorter: TestFieldGaps fails when something listed here has
// become playable.
func fieldGaps() []fieldGap {
	return nil
}

// fieldPlayers is how many variants are played at once. They wait more than they
// work, so it may be more than there are processors.
const fieldPlayers = 4

// TestField plays the examples. PGAPPLY_FIELD_EXAMPLES names another file or
// directory with examples to play instead.
func TestField(t *testing.T) {
	place := fieldDirectory
	if other := os.Getenv("PGAPPLY_FIELD_EXAMPLES"); other != "" {
		place = other
	}
	examples, err := loadFieldExamples(place)
	require.NoError(t, err)
	shared := startFieldPair(t)
	var players errgroup.Group
	players.SetLimit(fieldPlayers)
	for _, example := range examples {
		for _, variant := range example.plays() {
			if slices.ContainsFunc(fieldGaps(), func(gap fieldGap) bool { return gap.covers(example.name, variant) }) {
				continue
			}
			players.Go(func() error {
				t.Run(path.Join(example.name, variant), func(t *testing.T) {
					pair := shared
					if example.alone() {
						pair = startFieldPair(t)
					}
					require.NoError(t, playField(t, pair, example, variant))
				})
				return nil // t knows
			})
		}
	}
	_ = players.Wait()
}

func (g fieldGap) covers(example, variant string) bool {
	return g.example == example && (g.variant == "" || g.variant == variant)
}

// alone tells whether an example disturbs others, or is disturbed by them, on the
// same servers: it restarts one, or looks at what WAL they keep.
func (e *fieldExample) alone() bool {
	return slices.ContainsFunc(e.items, func(item fieldItem) bool {
		return item.step != nil && slices.Contains([]string{"RESTART", "DO slot-advances"}, item.step.verb)
	})
}

// TestFieldGaps: the list of what cannot be played is true.
func TestFieldGaps(t *testing.T) {
	examples, err := loadFieldExamples(fieldDirectory)
	require.NoError(t, err)
	for _, gap := range fieldGaps() {
		require.True(t, slices.ContainsFunc(examples, func(e *fieldExample) bool {
			return slices.ContainsFunc(e.plays(), func(variant string) bool { return gap.covers(e.name, variant) })
		}), "there is no example %s %s", gap.example, gap.variant)
		require.False(t, offers(t, gap.missing), "pgapply has %s now: take %s out of fieldGaps", gap.missing, gap.example)
	}
	require.True(t, offers(t, "status") && offers(t, "--binary") && !offers(t, "--no-such-flag"), "offers can tell")
}
