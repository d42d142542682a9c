package txn

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// TestScripts plays the part of a publisher by the scripts in testdata/scripts. Their
// commands:
//
//	new [limit=BYTES] [spool] [streams]
//	                            start a connection; without limit the budget is 1 MiB.
//	                            With streams, add prints what Streams are told
//	add [keep]                  one message a line; prints each transaction that is
//	                            complete, and releases it unless keep
//	follow XID                  start to follow the newest stream with that id
//	next XID [limit=N] [steps=N]
//	                            print what a follower comes to, no more than N steps;
//	                            without limit as if all that is complete were applied
//	unfollow XID
//	replay                      print the kept transactions again
//	release                     release them
//	stats                       counters
//	close
//
// A message is written as its verb and arguments; see messageVerbs. Inside a
// stream block a content's subtransaction is given by xid=N and else is the
// transaction itself. Positions follow from the transaction id X unless given:
// the commit or prepare is at X0 (hexadecimal) and ends at X8.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{t: t}
		defer s.close()
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t         testing.TB
	wire      wire
	spool     *memorySpool
	budget    *Budget
	assembler *Assembler
	kept      []*Transaction
	xid       uint32 // of the stream block

	told      strings.Builder // what Streams were told
	opened    map[string]*Open
	followers map[string]*Follower
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		s.close()
		limit := int64(1 << 20)
		d.MaybeScanArgs(t, "limit", &limit)
		*s = script{
			t: t, budget: NewBudget(limit), spool: &memorySpool{},
			opened: map[string]*Open{}, followers: map[string]*Follower{},
		}
		options := Options{Budget: s.budget}
		if d.HasArg("spool") {
			options.Spool = s.spool.create
		}
		if d.HasArg("streams") {
			options.Streams = s
		}
		s.assembler = NewAssembler(options)
		return ""
	case "add":
		return s.add(strings.Split(strings.TrimSpace(d.Input), "\n"), d.HasArg("keep"))
	case "follow":
		s.followers[d.CmdArgs[0].Key] = s.opened[d.CmdArgs[0].Key].Follow()
		return ""
	case "unfollow":
		s.followers[d.CmdArgs[0].Key].Close()
		s.followers[d.CmdArgs[0].Key].Close() // does nothing
		return ""
	case "next":
		limit, steps := s.assembler.Completed(), math.MaxInt
		d.MaybeScanArgs(t, "limit", &limit)
		d.MaybeScanArgs(t, "steps", &steps)
		return s.next(s.followers[d.CmdArgs[0].Key], limit, steps)
	case "replay":
		out := &strings.Builder{}
		for _, transaction := range s.kept {
			show(out, transaction)
		}
		return out.String()
	case "release":
		s.release()
		return ""
	case "stats":
		stats := s.assembler.Stats()
		return fmt.Sprintf("open streams: %d\nin memory: %t\nspooled: %d bytes in %d files\nignored aborts: %d\n",
			stats.OpenStreams, stats.MemoryBytes > 0, stats.SpooledBytes, s.spool.open(), stats.IgnoredAborts)
	case "close":
		if err := s.assembler.Close(); err != nil {
			return err.Error() + "\n"
		}
		return s.takeTold()
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (s *script) add(lines []string, keep bool) string {
	out := &strings.Builder{}
	for _, line := range lines {
		transaction, err := s.assembler.Add(s.encode(line))
		out.WriteString(s.takeTold())
		if err != nil {
			fmt.Fprintf(out, "%s\n  %v\n", line, err)
			continue
		}
		if transaction == nil {
			continue
		}
		show(out, transaction)
		if keep {
			s.kept = append(s.kept, transaction)
		} else {
			transaction.Release()
		}
	}
	return out.String()
}

func (s *script) next(f *Follower, limit uint64, steps int) string {
	out := &strings.Builder{}
	for range steps {
		step, found, err := f.Next(limit)
		switch {
		case errors.Is(err, io.EOF):
			fmt.Fprintln(out, "the end")
		case err != nil:
			fmt.Fprintln(out, err)
		case !found:
			fmt.Fprintln(out, "no more for now")
		case step.Undo:
			fmt.Fprintf(out, "undo from %d\n", step.Position)
			continue
		default:
			fmt.Fprintf(out, "%d: %s\n", step.Position, showChange(f.open.XID(), step.Change))
			continue
		}
		break
	}
	return out.String()
}

func (s *script) Opened(o *Open) {
	fmt.Fprintf(&s.told, "opened %d\n", o.XID())
	s.opened[fmt.Sprint(o.XID())] = o
}

func (s *script) Arrived(o *Open) { fmt.Fprintf(&s.told, "arrived %d\n", o.XID()) }

func (s *script) Ended(o *Open, rolledBack bool) {
	if rolledBack {
		fmt.Fprintf(&s.told, "rolled back %d\n", o.XID())
	} else {
		fmt.Fprintf(&s.told, "ended %d\n", o.XID())
	}
}

func (s *script) takeTold() string {
	defer s.told.Reset()
	return s.told.String()
}

func (s *script) release() {
	for _, transaction := range s.kept {
		transaction.Release()
		transaction.Release() // does nothing
	}
	s.kept = nil
}

// close ends a connection and proves that nothing of it is left.
func (s *script) close() {
	if s.assembler == nil {
		return
	}
	require.NoError(s.t, s.assembler.Close())
	s.release()
	for _, follower := range s.followers {
		follower.Close()
	}
	require.Zero(s.t, s.budget.Used())
	require.Zero(s.t, s.assembler.Stats().SpooledBytes)
	require.Zero(s.t, s.spool.open())
}

// messageVerbs names the message of each verb and its arguments.
var messageVerbs = map[string]func(s *script, a *arguments) frame{
	"begin":  func(s *script, a *arguments) frame { return s.wire.begin(a.number(0), a.final()) },
	"commit": func(s *script, a *arguments) frame { return s.wire.commit(a.number(0), a.final(), a.end()) },
	"begin-prepare": func(s *script, a *arguments) frame {
		return s.wire.beginPrepare(a.number(0), a.final(), a.end(), a.options["gid"])
	},
	"prepare": func(s *script, a *arguments) frame {
		return s.wire.prepare(a.number(0), a.final(), a.end(), a.options["gid"])
	},
	"commit-prepared": func(s *script, a *arguments) frame {
		return s.wire.commitPrepared(a.number(0), a.final(), a.end(), a.options["gid"])
	},
	"rollback-prepared": func(s *script, a *arguments) frame {
		return s.wire.rollbackPrepared(a.number(0), a.final(), a.end(), a.options["gid"])
	},
	"stream-start": func(s *script, a *arguments) frame {
		s.xid = a.number(0)
		return s.wire.streamStart(s.xid, a.flag("first"))
	},
	"stream-stop": func(s *script, a *arguments) frame { return s.wire.streamStop() },
	"stream-commit": func(s *script, a *arguments) frame {
		return s.wire.streamCommit(a.number(0), a.final(), a.end())
	},
	"stream-prepare": func(s *script, a *arguments) frame {
		return s.wire.streamPrepare(a.number(0), a.final(), a.end(), a.options["gid"])
	},
	"stream-abort": func(s *script, a *arguments) frame {
		if a.flag("at") {
			return s.wire.streamAbortAt(a.number(0), a.number(1))
		}
		return s.wire.streamAbort(a.number(0), a.number(1))
	},
	"origin": func(s *script, a *arguments) frame { return s.wire.origin(a.words[0]) },
	// relation OID NAME COLUMN[*][:TYPE] ...
	"relation": func(s *script, a *arguments) frame {
		return s.wire.relation(a.xid(), table(a.number(0), a.words[1], a.words[2:]...))
	},
	"type": func(s *script, a *arguments) frame {
		return s.wire.typeName(a.xid(), a.number(0), "public", a.words[1])
	},
	// insert OID VALUE ...
	"insert": func(s *script, a *arguments) frame {
		return s.wire.insert(a.xid(), a.number(0), text(a.words[1:]...))
	},
	// update OID [K|O VALUE ...] N VALUE ...
	"update": func(s *script, a *arguments) frame {
		next := slices.Index(a.words, "N")
		kind, old := decoder.OldNone, []string(nil)
		if next > 1 {
			kind, old = decoder.OldKind(a.words[1][0]), a.words[2:next]
		}
		return s.wire.update(a.xid(), a.number(0), kind, text(old...), text(a.words[next+1:]...))
	},
	// delete OID K|O VALUE ...
	"delete": func(s *script, a *arguments) frame {
		return s.wire.delete(a.xid(), a.number(0), decoder.OldKind(a.words[1][0]), text(a.words[2:]...))
	},
	"truncate": func(s *script, a *arguments) frame {
		ids := []uint32{}
		for i := range a.words {
			ids = append(ids, a.number(i))
		}
		return s.wire.truncate(a.xid(), 0, ids...)
	},
	// message PREFIX CONTENT: a transactional one
	"message": func(s *script, a *arguments) frame { return s.wire.message(a.xid(), 1, a.words[0], a.words[1]) },
	"message-at-once": func(s *script, a *arguments) frame {
		return s.wire.message(a.xid(), 0, a.words[0], a.words[1])
	},
	"bytes": func(s *script, a *arguments) frame { return frame(a.words[0]) },
}

func (s *script) encode(line string) frame {
	words := strings.Fields(line)
	verb, found := messageVerbs[words[0]]
	require.True(s.t, found, "unknown message %q", line)
	a := &arguments{script: s, options: map[string]string{}}
	for _, word := range words[1:] {
		if key, value, found := strings.Cut(word, "="); found {
			a.options[key] = value
		} else {
			a.words = append(a.words, word)
		}
	}
	return verb(s, a)
}

type arguments struct {
	script  *script
	words   []string
	options map[string]string
}

func (a *arguments) number(index int) uint32 {
	number, err := strconv.ParseUint(a.words[index], 10, 32)
	require.NoError(a.script.t, err)
	return uint32(number)
}

func (a *arguments) flag(name string) bool { return slices.Contains(a.words, name) }

func (a *arguments) xid() uint32 {
	if xid, found := a.options["xid"]; found {
		return (&arguments{script: a.script, words: []string{xid}}).number(0)
	}
	return a.script.xid
}

func (a *arguments) final() lsn.LSN { return a.position("lsn", "0") }

func (a *arguments) end() lsn.LSN { return a.position("end", "8") }

func (a *arguments) position(option, digit string) lsn.LSN {
	digits, found := a.options[option]
	if !found {
		digits = a.words[0] + digit
	}
	position, err := lsn.Parse("0/" + digits)
	require.NoError(a.script.t, err)
	return position
}

func parseColumn(text string) decoder.Column {
	column := decoder.Column{Name: text, TypeOID: 25, TypeModifier: -1}
	if name, oid, found := strings.Cut(text, ":"); found {
		number, err := strconv.ParseUint(oid, 10, 32)
		if err != nil {
			panic(err)
		}
		column.Name, column.TypeOID = name, uint32(number)
	}
	column.Name, column.Key = strings.CutSuffix(column.Name, "*")
	return column
}

// show prints a transaction.
func show(out io.Writer, t *Transaction) {
	fmt.Fprintf(out, "%s %d at %s, end %s, time %d", t.Kind, t.XID, t.FinalLSN, t.EndLSN, t.Time)
	if t.Streamed {
		fmt.Fprint(out, ", streamed")
	}
	if t.GID != "" {
		fmt.Fprintf(out, ", gid %s", t.GID)
	}
	if t.Origin != "" {
		fmt.Fprintf(out, ", origin %s", t.Origin)
	}
	if t.Kind == RollbackPrepared {
		fmt.Fprintf(out, ", of the prepare that ends %s, time %d", t.PrepareEndLSN, t.PrepareTime)
	}
	fmt.Fprintf(out, ", %d changes\n", t.Len())
	changes := t.Changes()
	for {
		change, err := changes.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			fmt.Fprintf(out, "  %v\n", err)
			return
		}
		fmt.Fprintf(out, "  %s\n", showChange(t.XID, change))
	}
}

// showChange prints a change of the transaction with that id.
func showChange(xid uint32, c Change) string {
	out := &strings.Builder{}
	if c.SubXID != xid {
		fmt.Fprintf(out, "[%d] ", c.SubXID)
	}
	fmt.Fprint(out, c.Message.Type())
	if c.Relation != nil {
		fmt.Fprintf(out, " %s", showRelation(c.Relation))
	}
	switch m := c.Message.(type) {
	case *decoder.Insert:
		fmt.Fprintf(out, ": %s", showRow(m.New))
	case *decoder.Update:
		fmt.Fprint(out, ": ")
		if m.OldKind != decoder.OldNone {
			fmt.Fprintf(out, "%c %s -> ", m.OldKind, showRow(m.Old))
		}
		fmt.Fprint(out, showRow(m.New))
	case *decoder.Delete:
		fmt.Fprintf(out, ": %c %s", m.OldKind, showRow(m.Old))
	case *decoder.Truncate:
		for _, relation := range c.Relations {
			fmt.Fprintf(out, " %s", showRelation(relation))
		}
	case *decoder.LogicalMessage:
		fmt.Fprintf(out, " %s: %s", m.Prefix, m.Content)
	}
	return out.String()
}

func showRelation(r *decoder.Relation) string {
	columns := []string{}
	for _, column := range r.Columns {
		text := column.Name
		if column.Key {
			text += "*"
		}
		if column.TypeName != "" {
			text += " " + column.TypeNamespace + "." + column.TypeName
		}
		columns = append(columns, text)
	}
	return fmt.Sprintf("%s(%s)", r.Name, strings.Join(columns, ", "))
}

func showRow(row decoder.Tuple) string {
	values := []string{}
	for _, value := range row {
		switch value.Kind {
		case decoder.Null:
			values = append(values, "~")
		case decoder.Unchanged:
			values = append(values, "^")
		default:
			values = append(values, string(value.Data))
		}
	}
	return strings.Join(values, " ")
}

// memorySpool keeps spool files in memory. Its files notice wrong use.
type memorySpool struct {
	files []*memoryFile
	limit int64 // of each file; zero means none
}

type memoryFile struct {
	limit  int64
	data   []byte
	closed bool
}

var errSpoolFull = errors.New("the spool is full")

func (s *memorySpool) create() (SpoolFile, error) {
	file := &memoryFile{limit: s.limit}
	s.files = append(s.files, file)
	return file, nil
}

// open counts the files that are not closed.
func (s *memorySpool) open() int {
	open := 0
	for _, file := range s.files {
		if !file.closed {
			open++
		}
	}
	return open
}

func (f *memoryFile) use() {
	if f.closed {
		panic("a closed spool file is used")
	}
}

func (f *memoryFile) Write(data []byte) (int, error) {
	f.use()
	if room := f.limit - int64(len(f.data)); f.limit > 0 && room < int64(len(data)) {
		f.data = append(f.data, data[:room]...)
		return int(room), errSpoolFull
	}
	f.data = append(f.data, data...)
	return len(data), nil
}

func (f *memoryFile) ReadAt(data []byte, offset int64) (int, error) {
	f.use()
	n := copy(data, f.data[min(offset, int64(len(f.data))):])
	if n < len(data) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.use()
	if size > int64(len(f.data)) {
		panic("a spool file is truncated beyond its end")
	}
	f.data = f.data[:size]
	return nil
}

func (f *memoryFile) Close() error {
	f.use()
	f.closed = true
	return nil
}
