package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// TestNoRoomForOrigins: the target has fewer origins in use than there are workers. The
// start says which setting it is, and fewer workers do.
func TestNoRoomForOrigins(t *testing.T) {
	setting := "max_active_replication_origins"
	if pgtest.Major(t) < 18 {
		setting = "max_replication_slots"
	}
	publisher, target := pgtest.Start(t), pgtest.Start(t, pgtest.With(setting, "2"))
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE t (id int PRIMARY KEY)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	err := l.run()
	var refusal *apply.Error
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, apply.Refused, refusal.Class)
	require.ErrorContains(t, err, "no room for replication origin")
	require.Contains(t, refusal.Hint, setting)
	l.start(func(o *apply.Options) { o.Workers = 2 })
	l.onSource(`INSERT INTO t VALUES (1)`)
	l.catchUp()
	l.same(`TABLE t`)
}
