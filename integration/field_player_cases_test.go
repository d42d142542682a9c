package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFieldPlayerNotices plays scripts that ask for what is not so. A player that
// lets one of them pass proves nothing with the others.
func TestFieldPlayerNotices(t *testing.T) {
	const (
		tables = "```sql both\nCREATE TABLE t(id int PRIMARY KEY, v text);\n```\n```sql pub\nCREATE PUBLICATION p FOR TABLE t;\n```\n"
		begun  = tables + "> START\n"
		one    = "```sql pub\nINSERT INTO t VALUES (1,'x');\n```\n"
		two    = "```sql pub\nINSERT INTO t VALUES (2,'y');\n```\n"
		stuck  = begun + one + "> CATCHUP\n```sql tgt\nALTER TABLE t DROP COLUMN v;\n```\n" + two
		still  = "```sql tgt\nSELECT * FROM t;\n```\n```expect\n1\n```\n"
		missed = begun + "```sql pub\nINSERT INTO t VALUES (1), (2);\n```\n> CATCHUP\n```sql tgt\nDELETE FROM t;\n```\n" +
			"```sql pub\nUPDATE t SET v='z';\n```\n> CATCHUP\n"
	)
	pair := startFieldPair(t)
	for _, test := range []struct{ name, script, notice string }{
		{"SQL error", "```sql tgt\nSELECT 1/0;\n```", "sql tgt: on tgt: SELECT 1/0: ERROR: division by zero"},
		{"other output", begun + one + "> CATCHUP\n```sql tgt\nTABLE t;\n```\n```expect\n1|y\n```", "the target prints something else"},
		{"no row where one is NULL", "```sql tgt\nSELECT NULL;\n```\n```expect\n```", "the target prints something else"},
		{"ends differ", tables + one + "```sql check\nTABLE t;\n```", "the ends differ"},
		{"check prints nothing", tables + "```sql check\nTABLE t;\n```", "the check prints nothing"},
		{"unknown step", "> HOPE", "there is no step HOPE"},
		{"no start", "> CATCHUP", "START comes first"},
		{"start that cannot be", tables + "> START(on-error=hope)", "the engine does not run: exit status 2"},
		{"second start", begun + "> START AGAIN", "the engine runs already"},
		{"catching up without an engine", begun + "> KILL\n> CATCHUP", "the engine does not run: signal: killed"},
		{"catching up with a frozen one", begun + "> FREEZE\n" + one + "> CATCHUP(300 ms)", "not within 300ms"},
		{"limit", "Setup: limit=2\n" + begun + "> FREEZE\n" + one + "> CATCHUP", "the case's limit of 2s is over"},
		{"limit during SQL", "Setup: limit=1\n```sql tgt\nSELECT pg_sleep(60);\n```", "the case's limit of 1s is over"},
		{"another process", begun + "> KILL\n> START AGAIN\n> CATCHUP\n> SURVIVED", "the first engine process is gone"},
		{"watched value", begun + "> WATCH(SELECT count(*) FROM t => 1 or 2)\n> SLEEP(100 ms)\n> CATCHUP", "gives 0, and may give only [\"1\" \"2\"]"},
		{"watch that fails", begun + "> WATCH(SELECT * FROM absent => 1)\n> SLEEP(100 ms)", `relation "absent" does not exist`},
		{"memory", begun + "> MEMORY(1 MB)", "the engine has taken"},
		{"background error", "```sql pub W &\nSELECT 1/0;\n```\n> WAIT(W)", "session W: SELECT 1/0"},
		{"busy session", "```sql pub W &\nSELECT pg_sleep(60);\n```\n```sql pub W\nSELECT 1;\n```", "still at work"},
		{"absent session", "> WAIT(W)", "no session W"},
		{"conflict that is not", begun + "> RECORDED(update_missing; t; 1)", "conflicts"},
		{"conflict that is twice", missed + "> RECORDED(update_missing; t; 3)", "conflicts"},
		{"conflict", missed + "> CLEAN(update_origin_differs, update_missing)", "update_missing"},
		{"no error", begun + one + "> FREEZE\n" + two + "> ERRSTOP(column; t 2|y)\n" + still, "no error that matches column"},
		{"another error", stuck + "> ERRSTOP(nowhere; t 2|y)\n" + still, "no error that matches nowhere"},
		{"no such row", stuck + "> ERRSTOP(\"v\"; t 2|z)\n" + still, "no transaction that is not confirmed writes 2|z to t"},
		{"row of a confirmed transaction", stuck + "> ERRSTOP(\"v\"; t 1|x)\n" + still, "no transaction that is not confirmed writes 1|x to t"},
		{"nothing to show", stuck + "> ERRSTOP(\"v\"; t 2|y)\n", "nothing below"},
		{"shows something else", stuck + "> ERRSTOP(\"v\"; t 2|y)\n" + strings.Replace(still, "expect\n1", "expect\n7", 1), "SELECT * FROM t gives 1"},
		{"does not stay", stuck + "```sql tgt W &\nSELECT pg_sleep(1.5); INSERT INTO t VALUES (7);\n```\n> ERRSTOP(\"v\"; t 2|y)\n" + still, "after it had stopped: SELECT * FROM t gives 1\n7"},
		{"acknowledged", stuck + "```sql tgt\nUPDATE pgapply.subscription SET ack_lsn = 'FFFF/0';\n```\n> ERRSTOP(\"v\"; t 2|y)\n" + still, "the target has recorded acknowledged|FFFF/0"},
		{"origin too far", stuck + "```sql tgt\nSELECT pg_replication_origin_create('x_'||oid) FROM pg_database WHERE datname=current_database(); SELECT pg_replication_origin_advance('x_'||oid, 'FFFF/0') FROM pg_database WHERE datname=current_database();\n```\n> ERRSTOP(\"v\"; t 2|y)\n" + still, "the target has recorded origin x_"},
		{"ended as if all were well", stuck + "> STOP\n> ERRSTOP(\"v\"; t 2|y)\n" + still, "as if all were well"},
		{"slot gone", stuck + "> STOP\n```sql pub\nSELECT pg_drop_replication_slot(current_database()::name);\n```\n> ERRSTOP(\"v\"; t 2|y)\n" + still, "the slot is gone"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			examples, err := parseFieldExamples("f.md", "### N-"+strings.ReplaceAll(test.name, " ", "-")+" n\n"+test.script)
			require.NoError(t, err)
			examples[0].stopLimit = 2 * time.Second
			err = playField(t, pair, examples[0], "")
			require.Error(t, err)
			require.IsType(t, &fieldFailure{}, err)
			require.ErrorContains(t, err, test.notice)
			t.Log(err)
		})
	}
}
