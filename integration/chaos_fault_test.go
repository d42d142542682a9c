package integration

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/faultnet"
)

// fault is one kind of what can happen in a round of chaos.
type fault struct {
	name   string
	weight int // how often, beside the others
	draw   func(*rand.Rand, *step)
	do     func(*chaos, step)
}

func faults() []fault {
	return []fault{
		{"pgapply killed", 4, nil, func(c *chaos, _ step) {
			c.process.kill()
			c.start()
		}},
		{"pgapply stopped with SIGTERM", 2, nil, func(c *chaos, _ step) {
			c.terminateProcess()
			c.start()
		}},
		{"pgapply frozen", 2, lasting, func(c *chaos, s step) {
			c.signal(c.process, syscall.SIGSTOP)
			c.pause(s.lasts)
			c.signal(c.process, syscall.SIGCONT)
		}},
		{"pgapply frozen and overtaken", 1, lasting, (*chaos).overtake},

		{"publisher killed", 2, nil, func(c *chaos, _ step) { c.restart(c.publisher, c.publisher.Kill) }},
		{"publisher stopped immediately", 1, nil, func(c *chaos, _ step) { c.restart(c.publisher, stopping(c.publisher, cluster.Immediate)) }},
		{"publisher restarted", 1, nil, func(c *chaos, _ step) { c.restart(c.publisher, stopping(c.publisher, cluster.Fast)) }},
		{"target killed", 3, nil, func(c *chaos, _ step) { c.restart(c.server, c.server.Kill) }},
		{"target's postmaster killed", 1, nil, func(c *chaos, _ step) { c.restart(c.server, c.server.KillPostmaster) }},
		{"target stopped immediately", 2, nil, func(c *chaos, _ step) { c.restart(c.server, stopping(c.server, cluster.Immediate)) }},
		{"target restarted", 1, nil, func(c *chaos, _ step) { c.restart(c.server, stopping(c.server, cluster.Fast)) }},

		{"walsender terminated", 2, nil, func(c *chaos, _ step) {
			c.try(c.source, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '`+c.name+`'`)
		}},
		{"all sessions on the target terminated", 2, nil, func(c *chaos, _ step) { c.terminate(`true`) }},
		{"a session that applies terminated", 2, func(random *rand.Rand, s *step) { s.script = fmt.Sprintf(":w%d", random.IntN(3)) }, func(c *chaos, s step) {
			c.terminate(`application_name LIKE '%` + s.script + `'`)
		}},
		{"control session terminated", 2, nil, func(c *chaos, _ step) { c.terminate(`application_name LIKE '%:control'`) }},

		{"link to the target cut at a statement", 6, func(random *rand.Rand, s *step) {
			command := pick(random, "COMMIT", "COMMIT", "COMMIT", "BEGIN", "PREPARE TRANSACTION", "COMMIT PREPARED", "ROLLBACK PREPARED", "SELECT", "INSERT", "UPDATE", "SAVEPOINT")
			s.script = fmt.Sprintf("%s %s %d: %s", pick(random, "before", "after", "reply"), command, 1+random.IntN(4), ending(random))
		}, func(c *chaos, s step) { c.await(c.through.target, s) }},
		{"link to the publisher cut at a statement", 3, func(random *rand.Rand, s *step) {
			s.script = fmt.Sprintf("%s %s %d: %s", pick(random, "before", "after"), faultnet.StatusUpdate, 1+random.IntN(20), ending(random))
			if random.IntN(3) == 0 {
				s.script = fmt.Sprintf("%s %s: %s\nnow: cut all", pick(random, "before", "after", "reply"), pick(random, "IDENTIFY_SYSTEM", "START_REPLICATION"), ending(random))
			}
		}, func(c *chaos, s step) { c.await(c.through.source, s) }},
		{"link to the target disturbed", 3, disturbing, func(c *chaos, s step) { c.play(c.through.target, s.script) }},
		{"link to the publisher disturbed", 3, disturbing, func(c *chaos, s step) { c.play(c.through.source, s.script) }},
		{"link to the target mute", 1, lasting, func(c *chaos, s step) { c.mute(c.through.target, s) }},
		{"link to the publisher mute", 1, lasting, func(c *chaos, s step) { c.mute(c.through.source, s) }},
	}
}

func lasting(random *rand.Rand, s *step) { s.lasts = some(random) }

// ending draws how a connection ends.
func ending(random *rand.Rand) string {
	end := pick(random, "cut", "reset")
	switch random.IntN(6) {
	case 0:
		end += fmt.Sprintf(", refuse for %s", some(random))
	case 1:
		end += " all"
	}
	return end
}

// disturbing draws something that befalls a whole link.
func disturbing(random *rand.Rand, s *step) {
	lasts, side := some(random), pick(random, "client", "server", "both")
	s.script = "now: " + pick(random,
		fmt.Sprintf("stall %s for %s", side, lasts),
		fmt.Sprintf("stall %s for %s, refuse for %s", side, lasts, lasts/2),
		fmt.Sprintf("trickle %s %d B/s for %s", side, 500+random.IntN(20_000), lasts),
		fmt.Sprintf("delay %dms for %s", 1+random.IntN(40), 2*lasts),
		pick(random, "cut all", "reset all"),
		fmt.Sprintf("refuse for %s, %s", lasts, pick(random, "cut all", "reset all")),
	)
}

func stopping(server *cluster.Cluster, mode cluster.Mode) func() error {
	return func() error { return server.Stop(mode) }
}

// restart takes a server down and brings it back.
func (c *chaos) restart(server *cluster.Cluster, down func() error) {
	require.NoError(c.t, down())
	require.NoError(c.t, server.Restart(c.t.Context()))
}

func (c *chaos) signal(p *process, signal syscall.Signal) {
	require.NoError(c.t, p.command.Process.Signal(signal))
}

// try runs SQL that need not succeed: its server may be unable to answer.
func (c *chaos) try(uri, sql string) {
	conn, err := pgconn.Connect(c.t.Context(), uri)
	if err != nil {
		return
	}
	defer hangUp(conn)
	_, _ = conn.Exec(c.t.Context(), sql).ReadAll()
}

// terminate ends sessions of pgapply on the target.
func (c *chaos) terminate(which string) {
	c.try(c.target, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE '%`+c.name+`:%' AND `+which)
}

// overtake freezes pgapply while what it sends piles up on its way, has the target forget
// that it has the right to write, and lets another take over. What arrives then must not be
// applied any more, and what wakes up must not write.
func (c *chaos) overtake(s step) {
	frozen, link := c.process, c.through.target
	link.Stall(faultnet.FromClient)
	c.pause(s.lasts / 4)
	c.signal(frozen, syscall.SIGSTOP)
	c.start()
	c.try(c.target, `SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a JOIN pg_locks l USING (pid)
		WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock' AND l.granted AND a.application_name LIKE '%`+c.name+`:control'`)
	c.pause(s.lasts)
	link.Resume(faultnet.FromClient)
	c.pause(s.lasts / 2)
	c.signal(frozen, syscall.SIGCONT)
	c.pause(s.lasts)
	frozen.alive()
	frozen.kill()
}

// terminateProcess asks pgapply to stop. One that has said nothing yet may not listen for
// signals yet: it dies of this one, and has done nothing that it could end in order.
func (c *chaos) terminateProcess() {
	p := c.process
	p.terminate()
	code := p.exitCode(15 * time.Second)
	status, _ := p.command.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() && status.Signal() == syscall.SIGTERM && p.stderr.String() == "" {
		return
	}
	require.Zero(c.t, code)
}

// play does what a script says.
func (c *chaos) play(link *faultnet.Proxy, script string) []*faultnet.Fault {
	faults, err := link.Play(script)
	require.NoError(c.t, err)
	return faults
}

// await gives what a script waits for the time to happen.
func (c *chaos) await(link *faultnet.Proxy, s step) {
	timer := time.NewTimer(1500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-c.play(link, s.script)[0].Fired():
	case <-timer.C:
		c.missed++
	}
	link.Disarm()
}

// mute has a link swallow what its server says, and cuts it in the end, unless pgapply is to
// give it up by itself, which usually takes longer than a round.
func (c *chaos) mute(link *faultnet.Proxy, s step) {
	c.play(link, "now: mute all")
	c.pause(s.lasts)
	if link == c.through.target && c.plan.hasty {
		return
	}
	c.play(link, "now: cut all")
}
