package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// TestStopInAnyState: SIGTERM ends the program with 0 within 15 seconds, whatever it
// waits for. The proxies stand for networks that swallow everything, and for servers
// that are down.
func TestStopInAnyState(t *testing.T) {
	t.Parallel()
	type ends struct{ source, target *faultnet.Proxy }
	for name, bring := range map[string]func(*testing.T, *link, *process, ends){
		"busy": func(t *testing.T, l *link, _ *process, _ ends) {
			l.startLoad(2).issue(2000)
			awaitDone(t, l.target, 100)
		},
		"target silent": func(t *testing.T, l *link, _ *process, through ends) {
			through.target.Stall(faultnet.BothWays)
			l.onSource(`INSERT INTO entry VALUES (1, 1, 'x')`)
			l.awaitSent()
		},
		"publisher silent": func(t *testing.T, l *link, _ *process, through ends) {
			through.source.Stall(faultnet.BothWays)
		},
		"both silent": func(t *testing.T, l *link, _ *process, through ends) {
			through.target.Stall(faultnet.BothWays)
			l.onSource(`INSERT INTO entry VALUES (1, 1, 'x')`)
			l.awaitSent()
			through.source.Stall(faultnet.BothWays)
		},
		"target gone": func(t *testing.T, l *link, p *process, through ends) {
			through.target.Refuse()
			through.target.DropAll()
			p.says("retry_in")
		},
		"publisher gone": func(t *testing.T, l *link, p *process, through ends) {
			through.source.Refuse()
			through.source.DropAll()
			p.says("retry_in")
		},
		"target silent at once": func(t *testing.T, l *link, p *process, through ends) {
			through.target.Stall(faultnet.FromServer)
			through.target.DropAll()
			p.says("retry_in")
			require.Eventually(t, func() bool { return through.target.Connections() > 0 }, patience, 10*time.Millisecond)
		},
		"silent while it starts": func(t *testing.T, l *link, p *process, through ends) {
			holder := session(t, l.target)
			holder(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '` + l.name + `:w0'`)
			// The terminated backend lets go of it when it ends.
			holder(`DO $$ BEGIN
				LOOP
					BEGIN
						PERFORM pg_replication_origin_session_setup(external_id) FROM pg_show_replication_origin_status()
							WHERE external_id LIKE 'pgapply_` + l.name + `%_0';
						EXIT;
					EXCEPTION WHEN object_in_use THEN
						NULL;
					END;
				END LOOP;
			END $$`)
			l.onSource(`INSERT INTO entry VALUES (1, 1, 'x')`) // an idle session is not missed
			p.says("waiting: replication origin")
			through.target.Stall(faultnet.BothWays)
			// It tries four times a second: by now it waits for an answer.
			pgtest.WaitFor(t, l.target, `SELECT clock_timestamp() > state_change + '1 s' FROM pg_stat_activity WHERE application_name = $1`, "t", l.name+":w0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLink(t)
			l.loadTables()
			var through ends
			var err error
			var source, target string
			through.source, source, err = faultnet.ListenURI(l.source)
			require.NoError(t, err)
			t.Cleanup(through.source.Close)
			through.target, target, err = faultnet.ListenURI(l.target)
			require.NoError(t, err)
			t.Cleanup(through.target.Close)
			p := l.spawn("--source", source, "--target", target)
			l.streams(p)
			bring(t, l, p, through)
			began := time.Now()
			p.terminate()
			require.Zero(t, p.exitCode(15*time.Second))
			t.Logf("stopped within %s", time.Since(began).Round(time.Millisecond))
		})
	}
}

// awaitSent waits until the publisher has sent all that was committed so far.
func (l *link) awaitSent() {
	l.t.Helper()
	position := pgtest.Query(l.t, l.source, `SELECT pg_current_wal_flush_lsn()`)
	pgtest.WaitFor(l.t, l.source, `SELECT sent_lsn >= $1::pg_lsn FROM pg_stat_replication WHERE application_name = $2`, "t", position, l.name)
}
