package oracle

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// everything is what servers of the newest major have.
func everything() Servers {
	return Servers{Publisher: 18, Target: 18, Extensions: map[string]bool{"icu": true, "xml": true, "citext": true, "hstore": true, "ltree": true}}
}

func TestSameSeedSameScript(t *testing.T) {
	different := map[string]bool{}
	for seed := range uint64(20) {
		script := Generate(seed, everything())
		require.Equal(t, script.String(), Generate(seed, everything()).String())
		require.Equal(t, script.Features, Generate(seed, everything()).Features)
		different[script.String()] = true
	}
	require.Len(t, different, 20)
}

// TestFeatures: everything that scripts can have comes up soon.
func TestFeatures(t *testing.T) {
	const seeds = 150
	used := map[string]int{}
	for seed := range uint64(seeds) {
		for feature := range Generate(seed, everything()).Features {
			used[feature]++
		}
	}
	wanted := []string{
		"primary key", "index", "full with key", "full", "insert only", "no columns",
		"several key columns", "toasted key", "identity key", "identity column", "unique column", "stored out of line",
		"odd name", "other schema", "odd settings", "streamed at once", "all tables", "full without equality",
		"index for a search by all columns", "row filter", "column list", "other type on the target",
		"extra column on the target", "other order on the target", "trigger on the target",
		"generated column on both ends", "generated column on the publisher", "generated column plain on the target", "generated column published",
		"root published", "partitions published", "partitioned on the target", "partitioned on the publisher", "other partitions on the target",
		"move between partitions", "add partition", "drop partition",
		"insert", "upsert", "update", "delete", "key change", "key that only looks different", "unique value changes hands",
		"some inserts", "some updates", "some deletes", "some moves between partitions", "unique values shift", "keys are swapped",
		"updated again and again", "deleted and inserted again", "burst of transactions", "rows removed by hand", "rows changed by hand",
		"live two-phase", "backlog two-phase", "tiny two-phase", "ahead two-phase", "native two-phase", "ahead streaming parallel",
		"bulk insert", "bulk update", "bulk delete", "truncate", "truncate several", "truncate restart identity",
		"row without columns", "logical message",
		"commit", "rollback", "nested savepoint", "rollback to savepoint", "rollback of what was streamed", "release savepoint", "prepared",
		"add column", "add column with default", "definition changed in a transaction", "drop column", "rename column", "widen column",
		"change replica identity", "alter publication", "target changed alone", "rows loaded by hand", "rows written by hand", "rows written by hand in the way", "target rewritten", "key made again on the target",
		"subtransactions", "foreign key", "trigger that refuses rows", "shorten the column list", "rename table", "drop table", "new table", "enum grows",
		"catch up", "restart", "connections cut", "binary",
		"live streaming off", "live streaming on", "live streaming parallel", "backlog streaming off", "backlog streaming on",
		"backlog streaming parallel", "tiny streaming off", "tiny streaming on", "tiny streaming parallel",
	}
	for _, k := range kinds {
		wanted = append(wanted, "column "+k.name)
		if k.key {
			wanted = append(wanted, "key "+k.name)
		}
	}
	for _, feature := range wanted {
		require.NotZero(t, used[feature], "no seed below %d has: %s", seeds, feature)
	}
}

// TestFeaturesOfCopies: what happens while tables are copied comes up soon, and nothing
// whose outcome depends on when a row is copied.
func TestFeaturesOfCopies(t *testing.T) {
	used := map[string]int{}
	for seed := range uint64(60) {
		script := GenerateCopying(seed, everything())
		require.Equal(t, script.String(), GenerateCopying(seed, everything()).String())
		for feature := range script.Features {
			used[feature]++
		}
	}
	for _, feature := range []string{
		"rows to be copied", "statements beside a copy", "held copy", "new table", "restart", "connections cut", "prepared", "truncate", "row filter", "column list",
		"partitioned on the target", "partitioned on the publisher", "foreign key", "full", "insert only", "bulk update", "key change", "target changed alone",
	} {
		require.NotZero(t, used[feature], "no seed has: %s", feature)
	}
	for _, feature := range []string{"trigger on the target", "trigger that refuses rows", "rows loaded by hand", "rename table"} {
		require.Zero(t, used[feature], feature)
	}
}

// TestServersLimitFeatures: nothing is written that the servers do not know.
func TestServersLimitFeatures(t *testing.T) {
	old := Servers{Publisher: 14, Target: 14}
	for seed := range uint64(100) {
		text := Generate(seed, old).String()
		for _, unknown := range []string{"icu", "citext", "hstore", "xml", "WHERE (k", "VIRTUAL", "publish_generated_columns", "ALTER DATABASE %I SET debug_logical_replication_streaming", "streaming = parallel", "two-phase", "two_phase"} {
			require.NotContains(t, text, unknown)
		}
	}
}

var createdTable = regexp.MustCompile(`CREATE TABLE (s\.\w+|s\."(?:[^"]|"")*"|"other schema"\.\w+)`)

// TestPartsOfAScript: whatever is taken out, what is left names no table that is not
// there.
func TestPartsOfAScript(t *testing.T) {
	used := regexp.MustCompile(`(?:INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|ADD TABLE|ALTER TABLE) (s\.t\w+|"other schema"\.\w+)`)
	renamed := regexp.MustCompile(`ALTER TABLE s\.(t\d) SET SCHEMA`)
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		script := Generate(seed, everything())
		for range 10 {
			var out []int
			for u := range script.units {
				if !script.units[u].fixed && r.IntN(8) == 0 {
					out = append(out, u)
				}
			}
			tables := map[string]bool{}
			for _, l := range script.without(out).lines() {
				for _, match := range createdTable.FindAllStringSubmatch(l.sql, -1) {
					tables[match[1]] = true
				}
				if match := renamed.FindStringSubmatch(l.sql); match != nil {
					tables[`"other schema".`+match[1]] = true
				}
				for _, match := range used.FindAllStringSubmatch(l.sql, -1) {
					require.True(t, tables[match[1]], "seed %d: %s", seed, l.sql)
				}
			}
		}
	}
}

func TestKindsArePrintable(t *testing.T) {
	names := map[string]bool{}
	for _, k := range kinds {
		require.False(t, names[k.name], k.name)
		names[k.name] = true
		require.Contains(t, k.value, "$n", k.name)
		require.NotContains(t, k.at("7"), "$", k.name)
		require.False(t, k.key && k.incomparable, k.name)
		require.True(t, k.vary == "" || strings.Contains(k.vary, "$c"), k.name)
	}
}
