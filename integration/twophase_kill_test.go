package integration

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/faultnet"
	"pgapply/internal/pgtest"
)

// rounds is how often each moment of TestKillPrepared comes.
func rounds(t *testing.T) int {
	t.Helper()
	value := os.Getenv("PGAPPLY_TEST_ROUNDS")
	if value == "" {
		return 1
	}
	n, err := strconv.Atoi(value)
	require.NoError(t, err, "PGAPPLY_TEST_ROUNDS=%q is not a number", value)
	return n
}

// moment is when somebody is killed: when a connection to the target was cut at a
// command, of the PREPARE or of its end; without a command, in between the two.
type moment struct {
	name    string
	at      faultnet.Point
	command string
	atEnd   bool
}

func moments() []moment {
	return []moment{
		{"PREPARE is sent", faultnet.After, "PREPARE TRANSACTION", false},
		{"PREPARE is done, and nobody knows", faultnet.Reply, "PREPARE TRANSACTION", false},
		{"PREPARE is done, and its position not", faultnet.Before, "COMMIT", false},
		{"between PREPARE and its end", 0, "", false},
		{"the end is about to be sent", faultnet.Before, "COMMIT PREPARED", true},
		{"the end is sent", faultnet.After, "COMMIT PREPARED", true},
		{"the end is done, and nobody knows", faultnet.Reply, "COMMIT PREPARED", true},
		{"the end is done, and its position not", faultnet.Before, "COMMIT", true},
	}
}

// TestKillPrepared: whoever is killed, and whenever, each prepared transaction ends as
// it did on the publisher, once.
func TestKillPrepared(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"pgapply", "publisher", "target"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			newPreparedKills(t, victim).run()
		})
	}
}

// preparedKills is one victim of TestKillPrepared.
type preparedKills struct {
	*link
	victim            string
	publisher, server *cluster.Cluster
	proxy             *faultnet.Proxy
	flags             []string
	process           *process
	kills, round      int
}

func newPreparedKills(t *testing.T, victim string) *preparedKills {
	k := &preparedKills{victim: victim, publisher: pgtest.Start(t, pgtest.OnMajor(max(15, pgtest.Major(t))), pgtest.Durable()), server: pgtest.Start(t, pgtest.Durable())}
	k.link = linkOf(t, k.publisher, k.server)
	k.both(`CREATE TABLE entry (round int, text text)`, `CREATE TABLE counter (id int PRIMARY KEY, n int)`)
	k.onSource(`CREATE PUBLICATION p FOR TABLE entry, counter`, `INSERT INTO counter VALUES (0, 0), (1, 0)`,
		`ALTER DATABASE `+k.name+` SET logical_decoding_work_mem = '64kB'`)
	k.onTarget(`INSERT INTO counter VALUES (0, 0), (1, 0)`)
	proxy, uri, err := faultnet.ListenURI(k.target)
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	k.proxy, k.flags = proxy, []string{"--two-phase", "--target", uri}
	return k
}

func (k *preparedKills) run() {
	started := time.Now()
	for range rounds(k.t) {
		for _, m := range moments() {
			k.round++
			k.kill(m)
			k.compare(m)
		}
	}
	k.t.Logf("%s killed %d times around %d prepared transactions, in %s", k.victim, k.kills, k.round, time.Since(started).Round(time.Millisecond))
}

// kill plays one prepared transaction with a kill in it: of one row or of so many that
// it is streamed, committed or rolled back.
func (k *preparedKills) kill(m moment) {
	// A new process, whose first pause after an error is short.
	k.process = k.spawn(k.flags...)
	k.streams(k.process)
	k.catchUp() // no other COMMIT is on its way
	end := "COMMIT PREPARED"
	if k.round%3 == 2 {
		end = "ROLLBACK PREPARED"
	}
	command := m.command
	if command == "COMMIT PREPARED" {
		command = end
	}
	arm := func(here bool) *faultnet.Fault {
		if !here || command == "" {
			return nil
		}
		return k.proxy.Cut(m.at, command, 1)
	}
	rows := 1
	if (k.round+k.round/len(moments()))%2 == 0 {
		rows = 2000
	}
	fault := arm(!m.atEnd)
	k.onSource(fmt.Sprintf(`BEGIN; UPDATE counter SET n = n + 1 WHERE id = 0;
		INSERT INTO entry SELECT %d, repeat('x', 100) FROM generate_series(1, %d); PREPARE TRANSACTION 'a'`, k.round, rows))
	if fault == nil {
		k.catchUp()
	}
	if !m.atEnd {
		k.strike(fault)
	}
	k.onSource(`UPDATE counter SET n = n + 1 WHERE id = 1`)
	k.catchUp()
	fault = arm(m.atEnd)
	k.onSource(end + ` 'a'`)
	if m.atEnd {
		k.strike(fault)
	}
	k.catchUp()
	k.process.stop()
}

// strike kills the victim when the connection was cut, and brings it back.
func (k *preparedKills) strike(fault *faultnet.Fault) {
	if fault != nil {
		happens(k.t, fault)
	}
	k.kills++
	switch k.victim {
	case "pgapply":
		k.process.kill()
		k.process = k.spawn(k.flags...)
		k.streams(k.process)
	case "publisher":
		require.NoError(k.t, k.publisher.Kill())
		require.NoError(k.t, k.publisher.Restart(k.t.Context()))
	case "target":
		require.NoError(k.t, k.server.Kill())
		require.NoError(k.t, k.server.Restart(k.t.Context()))
	}
	k.process.alive()
}

func (k *preparedKills) compare(m moment) {
	k.t.Helper()
	require.Equal(k.t, "0", k.prepared(), m.name)
	require.Equal(k.t, "0", pgtest.Query(k.t, k.target, `SELECT count(*) FROM pgapply.progress WHERE gid IS NOT NULL`), m.name)
	k.same(`SELECT * FROM counter ORDER BY id`)
	if rows := `SELECT round, count(*) FROM entry GROUP BY 1 ORDER BY 1`; pgtest.Query(k.t, k.source, rows) != "" {
		k.same(rows)
	}
	require.NotContains(k.t, k.process.stderr.String(), "conflict", m.name)
}
