package integration

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"pgapply/decoder"
	"pgapply/decoder/txn"
	"pgapply/internal/lsn"
)

// errStop plays ERRSTOP(pattern; table row): an error stops the engine before the
// transaction that writes the row, and everything stays as it was before that.
func (c *fieldCase) errStop(argument string, pairs []*fieldBlock) {
	at := strings.LastIndex(argument, ";")
	table, row, found := strings.Cut(strings.TrimSpace(argument[at+1:]), " ")
	if at < 0 || !found {
		c.fail("ERRSTOP(pattern; table row), not (%s)", argument)
	}
	if len(pairs) == 0 {
		c.fail("nothing below says what the target must show")
	}
	pattern, err := regexp.Compile(argument[:at])
	if err != nil {
		c.fail("%v", err)
	}
	end := c.endOf(table, row)
	c.failing = end
	reported := ""
	c.await(c.example.stopLimit, "stopping with an error", func() (bool, string) {
		c.stoppedBefore(end)
		if reported == "" {
			reported = c.reports(pattern)
		}
		if reported == "" {
			return false, "no error that matches " + pattern.String() + " was reported"
		}
		different := c.differs(pairs)
		return different == "", different
	})
	c.t.Logf("%s: reported: %s", c.place, reported)
	c.hold(3*time.Second, func() {
		c.stoppedBefore(end)
		if different := c.differs(pairs); different != "" {
			c.fail("after it had stopped: %s", different)
		}
	})
}

// fieldTrouble finds the lines with which the engine reports an error.
var fieldTrouble = regexp.MustCompile(`^\S+ \S+\s+(WARN|ERROR)\s|^pgapply: |^hint: `)

// reports returns the error that matches the pattern, from what the engine has
// written since the last step, or from its status.
func (c *fieldCase) reports(pattern *regexp.Regexp) string {
	for line := range strings.Lines(c.engine.said()) {
		if fieldTrouble.MatchString(line) && pattern.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	said, code := c.engine.verb("status", "--json")
	var status struct {
		Error string `json:"last_error"`
		Hint  string `json:"last_error_hint"`
	}
	if code == 0 && json.Unmarshal([]byte(said), &status) == nil && pattern.MatchString(status.Error+" "+status.Hint) {
		return status.Error
	}
	return ""
}

// differs says which of the blocks shows something else than it should.
func (c *fieldCase) differs(pairs []*fieldBlock) string {
	for _, pair := range pairs {
		if pair.session != "" {
			c.fail("what is looked at again and again needs sessions of its own, not %s", pair.session)
		}
		have, err := c.tgt.once(c.looking, pair.statements)
		if err != nil {
			return err.Error()
		}
		if have != *pair.expect {
			return strings.Join(pair.statements, "; ") + " gives " + have
		}
	}
	return ""
}

// stoppedBefore ends the case if anything claims that the transaction which ends
// there is done, or if the slot is gone, or if the engine has ended as if all were
// well.
func (c *fieldCase) stoppedBefore(end lsn.LSN) {
	switch slot := c.ask(c.pub, `SELECT confirmed_flush_lsn < $1::pg_lsn, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $2`, end, c.name); {
	case slot == "":
		c.fail("the slot is gone")
	case !strings.HasPrefix(slot, "t|"):
		c.fail("the slot has confirmed %s, and the transaction ends at %s", slot[2:], end)
	}
	beyond := c.ask(c.tgt, `
		SELECT 'origin ' || external_id, remote_lsn FROM pg_replication_origin_status WHERE `+fieldOrigin("external_id")+` AND remote_lsn >= $1::pg_lsn
		UNION ALL
		SELECT 'acknowledged', ack_lsn FROM pgapply.subscription WHERE name = $2 AND ack_lsn >= $1::pg_lsn`, end, c.name)
	// Where origins are not permitted, positions are rows of this table.
	for column := range strings.Lines(c.ask(c.tgt, `SELECT quote_ident(attname) FROM pg_attribute
		WHERE attrelid = to_regclass('pgapply.progress') AND atttypid = 'pg_lsn'::regtype AND NOT attisdropped`)) {
		column = strings.TrimSpace(column)
		beyond += c.ask(c.tgt, `SELECT 'progress', `+column+` FROM pgapply.progress WHERE `+column+` >= $1::pg_lsn`, end)
	}
	if beyond != "" {
		c.fail("the transaction ends at %s, and the target has recorded %s", end, beyond)
	}
	if p := c.engine.present(); !p.running() {
		c.engine.wanted = false
		if p.command.ProcessState.ExitCode() == 0 {
			c.fail("the engine has ended as if all were well")
		}
	}
}

// makeProbe creates a slot of our own beside the engine's if a step will ask where
// a transaction ends: what the engine has not confirmed, the publisher still shows.
func (c *fieldCase) makeProbe() {
	if c.probed && c.probe == "" {
		c.probe = c.name + "_probe"
		c.ask(c.pub, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, c.probe)
	}
}

// endOf finds the first transaction that the engine has not confirmed and that
// writes the row, given as psql would print it, and returns where it ends.
func (c *fieldCase) endOf(table, row string) lsn.LSN {
	slot := c.ask(c.pub, `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1`, c.name)
	confirmed, err := lsn.Parse(slot)
	if err != nil {
		c.fail("the slot is gone, or has no position: %v", err)
	}
	frames, err := c.pub.once(c.looking, []string{
		// Bytes without a meaning are no obstacle.
		`SELECT set_config('client_encoding', 'SQL_ASCII', false) WHERE current_setting('server_encoding') = 'SQL_ASCII'`,
		fmt.Sprintf(`SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('%s', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')`, c.probe),
	})
	if err != nil {
		c.fail("on pub: %v", err)
	}
	assembler := txn.NewAssembler(txn.Options{Budget: txn.NewBudget(1 << 30)})
	defer assembler.Close()
	for line := range strings.Lines(strings.TrimPrefix(frames, "SQL_ASCII\n")) {
		frame, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			c.fail("%v", err)
		}
		transaction, err := assembler.Add(frame)
		if err != nil {
			c.fail("%v", err)
		}
		if transaction == nil {
			continue
		}
		writes, err := writesRow(transaction, table, row)
		if err != nil {
			c.fail("%v", err)
		}
		end := transaction.EndLSN
		transaction.Release()
		if writes && end > confirmed {
			return end
		}
	}
	c.fail("no transaction that is not confirmed writes %s to %s; confirmed is %s", row, table, confirmed)
	return 0
}

func writesRow(transaction *txn.Transaction, table, row string) (bool, error) {
	changes := transaction.Changes()
	for {
		change, err := changes.Next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		var tuple decoder.Tuple
		switch message := change.Message.(type) {
		case *decoder.Insert:
			tuple = message.New
		case *decoder.Update:
			tuple = message.New
		default:
			continue
		}
		relation := change.Relation
		if (relation.Name == table || relation.Namespace+"."+relation.Name == table) && printTuple(tuple) == row {
			return true, nil
		}
	}
}

func printTuple(tuple decoder.Tuple) string {
	values := make([]string, len(tuple))
	for i, value := range tuple {
		values[i] = string(value.Data)
	}
	return strings.Join(values, "|")
}
