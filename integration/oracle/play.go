package oracle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/lsn"
)

// Failure is what a play came to that it should not.
type Failure struct {
	// Sign tells failures apart: shrinking keeps to those with the same one.
	Sign string
	Text string
}

// Result of a play.
type Result struct {
	Failure *Failure // nil when all ends are equal
	// NativeCrashed says that the native subscription brought its server down, and
	// that the script was played again without it.
	NativeCrashed bool
	// Statements of the workload, and those that the publisher refused, by message.
	Statements int
	Refused    map[string]int
	// Rows that all tables have together in the end.
	Rows int
	// Transactions that the engines have applied, and conflicts that they have noted if
	// these were compared.
	Transactions int64
	Conflicts    int
	// NativeConflicts says that they were compared with those that native has logged.
	NativeConflicts bool
}

// play is a script that is being played.
type play struct {
	*Arena
	script   *Script
	result   Result
	database string // the publisher's
	ends     []*end // the native one first, if it takes part
	sessions map[string]*client
	logged   int64 // where the target's log was at the start
	// copying says that tables may have to be copied yet. Nobody has locked a table on the
	// publisher when that is looked for, which would have to wait.
	copying bool
}

// Play plays a script on databases of its own. The error is one of the arena or of
// the script; what the script showed is in the result.
//
// Native: the apply worker of 18 does not survive the abort of a transaction that it
// has not heard of, which a publisher of 18 sends when a transaction is found to be
// aborted already while it is decoded. Such a script is played again without it.
func (a *Arena) Play(ctx context.Context, script *Script) (Result, error) {
	result, crashed, err := a.play(ctx, script, true)
	switch {
	case crashed == &a.target:
		result, crashed, err = a.play(ctx, script, false)
		result.NativeCrashed = true
	}
	if crashed != nil {
		result.Failure = &Failure{Sign: "a server crashes", Text: fmt.Sprintf("PostgreSQL %d has crashed", crashed.Major())}
		return result, nil
	}
	return result, err
}

// play plays a script, and tells which server has crashed over it.
func (a *Arena) play(ctx context.Context, script *Script, withNative bool) (Result, *server, error) {
	number := a.plays.Add(1)
	p := &play{Arena: a, script: script, database: a.playName(number, "pub"), sessions: map[string]*client{}, logged: a.target.LogSize()}
	p.result.Refused = map[string]int{}
	if withNative {
		p.ends = append(p.ends, &end{name: native, index: -1, database: a.playName(number, native), slot: a.playName(number, native)})
	}
	for i, mode := range script.Modes {
		if script.runs(i) {
			name := a.playName(number, mode.Name)
			p.ends = append(p.ends, &end{name: mode.Name, index: i, database: name, slot: name, log: &lockedBuffer{}})
		}
	}
	targets := make([]string, len(p.ends))
	for i, e := range p.ends {
		targets[i] = e.database
	}
	err := a.create(ctx, p.database, targets)
	if err == nil {
		err = p.run(ctx)
	}
	p.close()

	crashed, clearErr := a.clear(context.WithoutCancel(ctx), p.database, targets)
	if crashed != nil {
		err = nil // it follows from that
	}
	if p.result.Failure != nil && strings.HasPrefix(p.result.Failure.Sign, native) {
		if said, logErr := a.target.Log(p.logged); logErr == nil {
			p.result.Failure.Text += "\n" + complaints(said)
		}
	}
	return p.result, crashed, errors.Join(err, clearErr)
}

// complaints are the lines of a server's log that say what went wrong.
func complaints(log string) string {
	var lines []string
	for _, line := range strings.Split(log, "\n") {
		if strings.Contains(line, "ERROR:") || strings.Contains(line, "CONTEXT:") || strings.Contains(line, "DETAIL:") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// fail notes the failure. Only the first one counts.
func (p *play) fail(sign, format string, arguments ...any) {
	if p.result.Failure == nil {
		p.result.Failure = &Failure{Sign: sign, Text: fmt.Sprintf(format, arguments...)}
	}
}

// run plays the steps until one shows a failure.
func (p *play) run(ctx context.Context) error {
	var err error
	if p.sessions[""], err = open(ctx, p.publisher.URI(p.database)); err != nil {
		return err
	}
	for _, e := range p.ends {
		if e.setup, err = open(ctx, p.target.URI(e.database)); err != nil {
			return err
		}
	}
	started := false
	for _, l := range p.script.lines() {
		switch l.verb {
		case runSQL:
			err = p.sql(ctx, l, started)
		case start:
			err = p.start(ctx)
			started = true
		case stop:
			p.halt(p.byIndex(l.engine))
		case startAgain:
			err = p.launch(p.byIndex(l.engine))
		case cut:
			err = p.cut(ctx, p.byIndex(l.engine), l.on)
		case hold:
			err = p.hold(ctx, l.sql)
		case held:
			err = p.wait(ctx, "copy", "SELECT NULL WHERE false", waits(ctx), nil)
		case letGo:
			p.letGo()
		case joined:
			p.copying = true
			err = p.wait(ctx, "know all tables", "SELECT NULL WHERE false", p.knows(ctx, "idfsr"), nil)
		case catchUp:
			err = p.catchUp(ctx)
		}
		if err != nil || p.result.Failure != nil {
			return err
		}
	}
	return p.compare(ctx)
}

func (p *play) byIndex(index int) *end {
	return p.ends[slices.IndexFunc(p.ends, func(e *end) bool { return e.index == index })]
}

// sql runs a statement where it belongs. One of the workload may fail, as it does
// for psql; everything else must not.
func (p *play) sql(ctx context.Context, l line, started bool) error {
	if l.on == onPublisher {
		return p.onPublisher(ctx, l, started)
	}
	var ends sync.WaitGroup
	faults := make([]error, len(p.ends)+1)
	for i, e := range p.ends {
		if l.on != onNative || e.native() {
			ends.Go(func() { faults[i] = e.setup.insist(ctx, l.sql) })
		}
	}
	if l.on == onBoth {
		faults[len(p.ends)] = p.onPublisher(ctx, l, false)
	}
	ends.Wait()
	return errors.Join(faults...)
}

func (p *play) onPublisher(ctx context.Context, l line, mayFail bool) error {
	s, err := p.session(ctx, l.session)
	if err != nil {
		return err
	}
	err = s.exec(ctx, l.sql)
	if !mayFail {
		return err
	}
	p.result.Statements++
	if err != nil {
		refusal, refused := errors.AsType[*pgconn.PgError](err)
		if !refused {
			return err
		}
		p.result.Refused[sign(refusal.Message)]++
	}
	if l.session == "" && s.conn.TxStatus() != 'I' {
		return s.exec(ctx, "ROLLBACK")
	}
	return nil
}

func (p *play) session(ctx context.Context, name string) (*client, error) {
	if s := p.sessions[name]; s != nil {
		return s, nil
	}
	s, err := open(ctx, p.publisher.URI(p.database))
	if err != nil {
		return nil, err
	}
	p.sessions[name] = s
	return s, s.exec(ctx, lockTimeout) // a script that was made small may have lost it
}

// start creates all subscriptions at once and waits until they stream.
func (p *play) start(ctx context.Context) error {
	var all sync.WaitGroup
	faults := make([]error, len(p.ends))
	for i, e := range p.ends {
		all.Go(func() {
			if !e.native() {
				faults[i] = p.launch(e)
				return
			}
			faults[i] = e.setup.exec(ctx, fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION %s
				WITH (copy_data = %t, slot_name = '%s', %s)`,
				p.publisher.Port(), p.database, strings.Join(p.script.nativePublishes, ", "), p.script.copies, e.slot, p.script.native))
		})
	}
	all.Wait()
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if p.copying = p.script.copies; p.copying {
		return nil // the workload goes on beside
	}
	return p.wait(ctx, "start", fmt.Sprintf(`SELECT slot_name FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.database = '%s' AND r.state = 'streaming'`, p.database), func(*end) (bool, error) { return false, nil }, nil)
}

// catchUp waits until every subscription has applied what is written so far. Only the
// native one is asked through its slot: an engine confirms at its leisure what nothing
// was to be applied of.
func (p *play) catchUp(ctx context.Context) error {
	for _, e := range p.ends {
		if !e.native() && e.engine == nil {
			if err := p.launch(e); err != nil { // its start was taken out
				return err
			}
		}
	}
	// A commit of our own, since what is flushed may otherwise end within a record of
	// an open transaction, and nobody is sent half a record.
	if err := p.sessions[""].exec(ctx, `SELECT pg_logical_emit_message(true, 'catch up', '')`); err != nil {
		return err
	}
	rows, err := p.sessions[""].query(ctx, `SELECT pg_current_wal_flush_lsn()`)
	if err != nil {
		return err
	}
	position, err := lsn.Parse(rows[0][0])
	if err != nil {
		return err
	}
	ready := p.ready(ctx)
	p.copying = false
	return p.wait(ctx, "catch up", fmt.Sprintf(`SELECT slot_name FROM pg_replication_slots WHERE database = '%s' AND confirmed_flush_lsn >= '%s'`,
		p.database, position), func(e *end) (bool, error) {
		return e.engine != nil && lsn.LSN(e.engine.Status().Applied) >= position, nil
	}, ready)
}

// wait repeats a query on the publisher until it gives the slots of all ends that
// have not arrived in another way, and until all of them are ready, if that is asked for.
func (p *play) wait(ctx context.Context, what, query string, arrived, ready func(*end) (bool, error)) error {
	var missing []*end
	err := p.until(ctx, func() (bool, error) {
		rows, err := p.publisher.administrator.query(ctx, query)
		if err != nil {
			return false, err
		}
		slots := map[string]bool{}
		for _, row := range rows {
			slots[row[0]] = true
		}
		missing = missing[:0]
		for _, e := range p.ends {
			there := slots[e.slot]
			if !there {
				there, err = arrived(e)
			}
			if there && ready != nil {
				there, err = ready(e)
			}
			if err != nil {
				return false, err
			}
			if !there {
				missing = append(missing, e)
			}
			p.look(e)
		}
		return len(missing) == 0 || p.result.Failure != nil, nil
	})
	if !errors.Is(err, errPatience) {
		return err
	}
	// The native one comes first: what spoils it is the script's fault before it is
	// an engine's.
	text, err := p.late(ctx, missing[0])
	p.fail(missing[0].name+" does not "+what, "%s does not %s within %s\n%s", missing[0].name, what, p.Patience, text)
	return err
}

// hold locks something on every target until letGo.
func (p *play) hold(ctx context.Context, lock string) error {
	for _, e := range p.ends {
		var err error
		if e.holder, err = open(ctx, p.target.URI(e.database)); err != nil {
			return err
		}
		if err := e.holder.exec(ctx, "BEGIN; "+lock); err != nil {
			return err
		}
	}
	return nil
}

func (p *play) letGo() {
	for _, e := range p.ends {
		if e.holder != nil {
			e.holder.close()
			e.holder = nil
		}
	}
}

// waits asks whether somebody waits for what is held.
func waits(ctx context.Context) func(*end) (bool, error) {
	return func(e *end) (bool, error) {
		if e.holder == nil {
			return true, nil
		}
		rows, err := e.setup.query(ctx, `SELECT 1 FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		return len(rows) > 0, err
	}
}

// ready asks whether all tables are copied, where they are.
func (p *play) ready(ctx context.Context) func(*end) (bool, error) {
	if !p.copying {
		return nil
	}
	return p.knows(ctx, "r")
}

// knows asks whether all published tables are in one of the states.
func (p *play) knows(ctx context.Context, states string) func(*end) (bool, error) {
	return func(e *end) (bool, error) {
		publications, known := p.script.nativePublishes, `SELECT format('%I.%I', n.nspname, c.relname) FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE strpos('`+states+`', srsubstate::text) > 0`
		if !e.native() {
			publications, known = p.script.publications, `SELECT format('%I.%I', schema_name, table_name) FROM pgapply.subscription_table WHERE strpos('`+states+`', state::text) > 0`
		}
		rows, err := p.sessions[""].query(ctx, `SELECT DISTINCT format('%I.%I', schemaname, tablename) FROM pg_publication_tables WHERE pubname IN ('`+strings.Join(publications, "', '")+`')`)
		if err != nil {
			return false, err
		}
		have, err := e.setup.query(ctx, known)
		if _, refused := errors.AsType[*pgconn.PgError](err); refused {
			return false, nil // an engine's state is not there yet
		}
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(rows, func(row []string) bool {
			return !slices.ContainsFunc(have, func(known []string) bool { return known[0] == row[0] })
		}), nil
	}
}

// close ends everything that the play has started.
func (p *play) close() {
	p.letGo()
	for _, e := range p.ends {
		p.halt(e)
		e.setup.close()
	}
	for _, name := range slices.Sorted(maps.Keys(p.sessions)) {
		p.sessions[name].close()
	}
}
