package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// fieldSteps are the steps of a script by their verb, but for ERRSTOP, which
// looks at what follows it.
func fieldSteps() map[string]func(c *fieldCase, argument string) {
	return map[string]func(*fieldCase, string){
		"START":       (*fieldCase).start,
		"STOP":        func(c *fieldCase, _ string) { c.engine.stop() },
		"KILL":        func(c *fieldCase, _ string) { c.engine.kill() },
		"START AGAIN": func(c *fieldCase, _ string) { c.startAgain() },
		"FREEZE":      func(c *fieldCase, _ string) { c.engine.signal(syscall.SIGSTOP); c.engine.frozen = true },
		"THAW":        func(c *fieldCase, _ string) { c.engine.signal(syscall.SIGCONT); c.engine.frozen = false },
		"RESUME":      func(c *fieldCase, _ string) { c.resume() },
		"RESTART":     (*fieldCase).restart,
		"SURVIVED":    func(c *fieldCase, _ string) { c.survived() },
		"CATCHUP":     (*fieldCase).catchUp,
		"ERRSTOP":     nil,
		"WATCH":       (*fieldCase).watch,
		"RECORDED":    (*fieldCase).recorded,
		"CLEAN":       (*fieldCase).clean,
		"MEMORY":      (*fieldCase).memory,
		"SLEEP":       (*fieldCase).sleep,
		"WAIT":        (*fieldCase).waitFor,

		"DO kill-target-backends": func(c *fieldCase, _ string) { c.killTargetBackends() },
		"DO slot-advances":        func(c *fieldCase, _ string) { c.slotAdvances() },
		"DO skip":                 func(c *fieldCase, _ string) { c.skip() },
		"DO sync-sequences":       func(c *fieldCase, _ string) { c.syncSequences(true) },
		"DO sync-sequences-again": func(c *fieldCase, _ string) { c.syncSequences(false) },
	}
}

// start starts the engine and waits until it streams with every table ready.
func (c *fieldCase) start(options string) {
	c.makeProbe()
	c.engine.start(options)
	c.await(60*time.Second, "the start", func() (bool, string) {
		c.engine.mustRun()
		slot := c.ask(c.pub, `
			SELECT coalesce((SELECT active FROM pg_replication_slots WHERE slot_name = $1), false),
				coalesce((SELECT max(state) FROM pg_stat_replication WHERE application_name = $1), 'no walsender')`, c.name)
		if slot != "t|streaming" {
			return false, "the slot is active: " + strings.Replace(slot, "|", ", and the walsender says: ", 1)
		}
		published := c.ask(c.pub, `SELECT count(*) FROM pg_publication_tables WHERE pubname = 'p'`)
		tables, err := c.tgt.ask(c.looking, `SELECT count(*), count(*) FILTER (WHERE state <> 'r') FROM pgapply.subscription_table WHERE subscription = $1`, c.name)
		if err != nil {
			return false, err.Error()
		}
		known, waiting, _ := strings.Cut(tables, "|")
		return number(known) >= number(published) && waiting == "0",
			fmt.Sprintf("%s tables are published, %s are known, %s of them are not ready", published, known, waiting)
	})
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

func (c *fieldCase) startAgain() {
	if c.engine.wanted && c.engine.present().running() {
		c.fail("the engine runs already")
	}
	c.engine.launch()
}

// resume lets a stopped subscription go on.
func (c *fieldCase) resume() {
	if said, code := c.engine.verb("resume"); code != 0 {
		c.fail("pgapply resume ends with %d: %s", code, said)
	}
	if !c.engine.present().running() {
		c.engine.launch()
	}
}

// restart restarts the server of an end in mode fast.
func (c *fieldCase) restart(end string) {
	if end != "tgt" && end != "pub" {
		c.fail("RESTART(tgt) or RESTART(pub), not (%s)", end)
	}
	c.end(end).forget()
	server := c.pair.target
	if end == "pub" {
		server = c.pair.publisher
	}
	if err := server.Restart(c.ctx); err != nil {
		c.fail("%v", err)
	}
}

func (c *fieldCase) survived() {
	if first := c.engine.processes[0]; !first.running() {
		c.fail("the first engine process is gone: %s", first.command.ProcessState)
	}
}

// catchUp waits until the publisher knows that all of it is durable on the target.
func (c *fieldCase) catchUp(argument string) {
	limit := 30 * time.Second
	if argument != "" {
		limit = c.duration(argument)
	}
	position := c.ask(c.pub, `SELECT pg_current_wal_flush_lsn()`)
	c.await(limit, "catching up to "+position, func() (bool, string) {
		c.engine.mustRun()
		slot := c.ask(c.pub, `SELECT confirmed_flush_lsn >= $1::pg_lsn AND active, confirmed_flush_lsn, active
			FROM pg_replication_slots WHERE slot_name = $2`, position, c.name)
		return strings.HasPrefix(slot, "t|"), "the slot has (reached, confirmed, active) " + slot
	})
	c.endWatches()
}

func (c *fieldCase) duration(text string) time.Duration {
	duration, err := fieldDuration(text)
	if err != nil {
		c.fail("%q is not a time such as 60 s", text)
	}
	return duration
}

// recorded wants exactly one conflict of a type, table and key, in the table where
// there is one, else in the log, which shows no keys.
func (c *fieldCase) recorded(argument string) {
	wanted := fieldList(argument, ";")
	if len(wanted) != 3 {
		c.fail("RECORDED(type; table; key), not (%s)", argument)
	}
	kind, table, key := wanted[0], wanted[1], wanted[2]
	if c.ask(c.tgt, `SELECT to_regclass('pgapply.conflict') IS NULL`) == "t" {
		line := regexp.MustCompile(`"conflict": "` + regexp.QuoteMeta(kind) + `".*"table": "` + regexp.QuoteMeta(table) + `"`)
		if found := line.FindAllString(c.engine.log.String(), -1); len(found) != 1 {
			c.fail("the log has %d such conflicts, not one", len(found))
		}
		return
	}
	// The key is that of the row: the replica identity, or for a row in the way
	// the key that it holds.
	const held = `
		SELECT count(*) FROM pgapply.conflict f
		WHERE f.subscription = $1 AND f.conflict_type = $2 AND f.relname = $3 AND EXISTS (
			SELECT FROM (
				SELECT f.replica_identity UNION ALL
				SELECT l -> 'key' FROM jsonb_array_elements(CASE jsonb_typeof(f.local_conflicts) WHEN 'array' THEN f.local_conflicts ELSE '[]' END) l
			) keys (key)
			WHERE jsonb_typeof(key) = 'object' AND
				(SELECT array_agg(coalesce(value, '') ORDER BY value) FROM jsonb_each_text(key)) =
				(SELECT array_agg(value ORDER BY value) FROM unnest(string_to_array($4, '|')) value))`
	if found := c.ask(c.tgt, held, c.name, kind, table, key); found != "1" {
		c.fail("there are %s such conflicts, not one, among these in pgapply.conflict:\n%s", found,
			c.ask(c.tgt, `SELECT conflict_type, relname, replica_identity, local_conflicts, resolution FROM pgapply.conflict ORDER BY id`))
	}
}

// clean wants no conflict of some types.
func (c *fieldCase) clean(types string) {
	for _, kind := range fieldList(types, ",") {
		if strings.Contains(c.engine.log.String(), `"`+kind+`"`) {
			c.fail("the log has a conflict %s", kind)
		}
		if c.ask(c.tgt, `SELECT to_regclass('pgapply.conflict') IS NULL`) == "t" {
			continue
		}
		if found := c.ask(c.tgt, `SELECT count(*) FROM pgapply.conflict WHERE subscription = $1 AND conflict_type = $2`, c.name, kind); found != "0" {
			c.fail("pgapply.conflict has %s rows of type %s", found, kind)
		}
	}
}

// memory bounds the peak of resident memory. A megabyte is a million bytes.
func (c *fieldCase) memory(argument string) {
	count, unit, _ := strings.Cut(argument, " ")
	most, err := strconv.ParseInt(count, 10, 64)
	if err != nil || unit != "MB" {
		c.fail("MEMORY(n MB), not (%s)", argument)
	}
	if peak := c.engine.peakMemory(); peak > most*1e6 {
		c.fail("the engine has taken %d MB", peak/1e6)
	}
}

// sleep lets time pass because the script says so.
func (c *fieldCase) sleep(argument string) {
	c.hold(c.duration(argument), func() {})
}

// waitFor waits for the end of what a session does in the background.
func (c *fieldCase) waitFor(name string) {
	for _, end := range []*fieldEnd{c.pub, c.tgt} {
		if s := c.sessions[end.name+" "+name]; s != nil {
			c.wait(s)
			return
		}
	}
	c.fail("there is no session %s", name)
}
