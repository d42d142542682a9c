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

// alone tells whether an example disturbs others, or is disturbed by them, on the
// same servers: it restarts one, or looks at what WAL they keep.
func (e *fieldExample) alone() bool {
	return slices.ContainsFunc(e.items, func(item fieldItem) bool {
		return item.step != nil && slices.Contains([]string{"RESTART", "DO slot-advances"}, item.step.verb)
	})
}
