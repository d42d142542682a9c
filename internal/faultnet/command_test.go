package faultnet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommands(t *testing.T) {
	for _, test := range []struct {
		sql  string
		want []string
	}{
		{"", nil},
		{" ;; -- nothing\n", nil},
		{"COMMIT", []string{"COMMIT"}},
		{"/* a /* nested */ one */ commit work;", []string{"COMMIT"}},
		{"end", []string{"COMMIT"}},
		{"END; START TRANSACTION", []string{"COMMIT", "BEGIN"}},
		{"abort", []string{"ROLLBACK"}},
		{"COMMIT PREPARED 'x'; commit", []string{"COMMIT PREPARED", "COMMIT"}},
		{"prepare transaction 'x'", []string{"PREPARE TRANSACTION"}},
		{"prepare p as select 1", []string{"PREPARE"}},
		{"rollback to savepoint a", []string{"ROLLBACK TO"}},
		{"START_REPLICATION SLOT s LOGICAL 0/0", []string{"START_REPLICATION"}},
		{"INSERT INTO t VALUES ('; COMMIT', \"; COMMIT\", $$; COMMIT$$, $q$; $$ COMMIT$q$, E'\\'; COMMIT', '''; COMMIT')", []string{"INSERT"}},
		{"SELECT $1, $2; COMMIT", []string{"SELECT", "COMMIT"}},
		{"SELECT '\\'; COMMIT", []string{"SELECT", "COMMIT"}},
		{"BEGIN; DELETE FROM t -- ; COMMIT\n; COMMIT", []string{"BEGIN", "DELETE", "COMMIT"}},
		{"(SELECT 1); WITH x AS (SELECT 1) SELECT * FROM x", []string{"SELECT", "WITH"}},
		{"SELECT 'open", []string{"SELECT"}},
	} {
		require.Equal(t, test.want, commands(test.sql), "%s", test.sql)
	}
}

// A statement put in front is counted in front, whatever follows it.
func FuzzCommands(f *testing.F) {
	f.Add("COMMIT; $a$ ; $a$; /* */ 'x'")
	f.Fuzz(func(t *testing.T, sql string) {
		rest := commands(sql)
		require.Equal(t, append([]string{"COMMIT"}, rest...), commands("COMMIT;"+sql))
	})
}
