package integration

import (
	"strings"
	"time"
)

// What DO can be followed by. Their texts in the examples say what they are for.

// killTargetBackends ends, five times, everybody's sessions on the target but ours.
func (c *fieldCase) killTargetBackends() {
	for range 5 {
		killed := c.ask(c.tgt, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> $1`, fieldApplication)
		c.t.Logf("ended %s sessions on the target", killed)
		c.sleep("300 ms")
	}
}

// slotAdvances: traffic that is not published must not keep WAL.
func (c *fieldCase) slotAdvances() {
	if active := c.ask(c.pub, `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, c.name); active != "t" {
		c.fail("the slot is not active")
	}
	for range 3 {
		c.play(c.lastBlock)
		c.catchUp("")
	}
	c.ask(c.pub, `CHECKPOINT`)
	c.await(30*time.Second, "the slot lets WAL go", func() (bool, string) {
		kept := c.ask(c.pub, `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) < 64 * 1024 * 1024, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
			FROM pg_replication_slots WHERE slot_name = $1`, c.name)
		return strings.HasPrefix(kept, "t|"), "it keeps (below 64 MB, bytes) " + kept
	})
}

// syncSequences copies the values of sequences. A second time it may refuse.
func (c *fieldCase) syncSequences(must bool) {
	if said, code := c.engine.verb("sequences", "--all"); must && code != 0 {
		c.fail("pgapply sequences ends with %d: %s", code, said)
	}
}

// skip leaves out the transaction that the last ERRSTOP was about.
func (c *fieldCase) skip() {
	if c.failing == 0 {
		c.fail("there was no ERRSTOP")
	}
	if said, code := c.engine.verb("skip", "--lsn", c.failing.String()); code != 0 {
		c.fail("pgapply skip ends with %d: %s", code, said)
	}
}
