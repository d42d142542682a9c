package integration

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/internal/pgtest"
)

// smallDisk mounts a disk of that size in memory. The function gives it more room. Where
// mounting is not permitted, which is a matter of the machine, the path is empty.
func smallDisk(t *testing.T, size string) (disk string, enlarge func()) {
	t.Helper()
	path, err := os.MkdirTemp("", "pgapply-disk-") // where the server's user comes through
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.Remove(path)) })
	mount := func(options string) error {
		said, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, said)
		}
		return nil
	}
	if err := mount("mode=0755,size=" + size); err != nil {
		t.Logf("no disk can be mounted here: %v", err)
		return "", nil
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(path, syscall.MNT_DETACH)) })
	return path, func() { t.Helper(); require.NoError(t, mount("remount,size=256m")) }
}

// TestTargetsDiskFull: what has no room on the target is tried again until it has, and
// everything behind it waits.
func TestTargetsDiskFull(t *testing.T) {
	t.Parallel()
	publisher, _ := pgtest.Shared(t)
	server := pgtest.Start(t)
	l := linkOf(t, publisher, server)
	l.both(`CREATE TABLE t (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE t`)
	path, enlarge := smallDisk(t, "4m")
	if path != "" {
		data, err := os.Stat(pgtest.Query(t, l.target, `SHOW data_directory`))
		require.NoError(t, err)
		owner := data.Sys().(*syscall.Stat_t)
		require.NoError(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
		l.onTarget(`CREATE TABLESPACE small LOCATION '`+path+`'`, `ALTER TABLE t SET TABLESPACE small`)
		t.Cleanup(func() { require.NoError(t, server.Close()) }) // before the disk goes
	} else {
		l.onTarget(`CREATE FUNCTION full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no space left' USING ERRCODE = '53100'; END $$`,
			`CREATE TRIGGER full BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id > 1000) EXECUTE FUNCTION full()`, `ALTER TABLE t ENABLE ALWAYS TRIGGER full`)
		enlarge = func() { l.onTarget(`DROP TRIGGER full ON t`) }
	}
	l.start()
	for i := range 10 {
		l.onSource(fmt.Sprintf(`INSERT INTO t SELECT %d + g, repeat('x', 1000) FROM generate_series(1, 1000) g`, 1000*i))
	}
	l.failure("53100", "free disk space on the target")
	require.NotEqual(t, "10000", pgtest.Query(t, l.target, `SELECT count(*) FROM t`))
	enlarge()
	l.catchUp()
	l.same(`SELECT count(*), sum(id) FROM t`)
	l.stop()
}

// TestSpoolsDiskFull: transactions in progress that together have no room on the disk are
// received again, each when it is committed.
func TestSpoolsDiskFull(t *testing.T) {
	t.Parallel()
	publisher, target := pgtest.Pair(t, smallMemory)
	l := linkOf(t, publisher, target)
	l.both(`CREATE TABLE c (id int PRIMARY KEY, v text)`)
	l.onSource(`CREATE PUBLICATION p FOR TABLE c`)
	path, _ := smallDisk(t, "3m")
	l.start(func(o *apply.Options) {
		o.MemoryLimit, o.SpoolDir = 1<<20, path
		if path == "" {
			o.SpoolDir, o.SpoolLimit = t.TempDir(), 3<<20 // that it is full comes to the same
		}
	})
	var open []*pgtest.Session
	for i := range 3 {
		session := pgtest.Open(t, l.source)
		session.Exec(`BEGIN`, fmt.Sprintf(`INSERT INTO c SELECT %d + g, repeat('x', 400) FROM generate_series(1, 5000) g`, 10000*i))
		open = append(open, session)
	}
	pgtest.WaitFor(t, l.target, `SELECT status -> 'stream' ->> 'streaming' FROM pgapply.runner`, "off")
	for _, session := range open {
		session.Exec(`COMMIT`)
	}
	l.catchUp()
	l.same(`SELECT count(*), sum(id) FROM c`)
	l.stop()
	if path == "" {
		return
	}
	left, err := os.ReadDir(path)
	require.NoError(t, err)
	require.Empty(t, left)
}
